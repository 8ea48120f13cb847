"""The grid of an image or label file: its unit of length, its voxels in the world, and whether two files share it."""

from __future__ import annotations

import functools
import gzip
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
import torch
from monai.data import NibabelReader, PILReader
from monai.data.utils import to_affine_nd
from monai.utils import MetaKeys
from nibabel.openers import ImageOpener
from PIL import Image

from monai_sc.files.cases import file_keys, files_of
from monai_sc.files.read import read_image, reason_of, unreadable, why_turned
from monai_sc.files.write import WRITABLE, file_suffix

APART = 0.1  # voxels: corners of two grids that lie nearer are the same
NIFTI_UNITS = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}  # of xyzt_units: unknown (taken for mm), metre, mm, micron
NRRD_UNITS = {
    "": 1.0,
    "mm": 1.0,
    "millimeter": 1.0,
    "millimeters": 1.0,
    "cm": 10.0,
    "m": 1e3,
    "meter": 1e3,
    "um": 1e-3,
    "\u00b5m": 1e-3,  # two characters for micro
    "\u03bcm": 1e-3,
    "micron": 1e-3,
    "microns": 1e-3,
    "micrometer": 1e-3,
    "nm": 1e-6,
}


def mm_per_unit(path: Path) -> float:
    """Return the length in mm of the unit that a file states for its geometry; 1 where it states none.

    NIfTI states it in ``xyzt_units``, NRRD in ``space units``.

    Raises:
        ValueError: when the unit has no known length.
    """
    name = path.name.lower()
    try:
        stamp = path.stat()
    except OSError:
        return 1.0
    if name.endswith((".nii", ".nii.gz", ".hdr", ".img")):
        return _nifti_unit(os.fspath(path), stamp.st_mtime_ns, stamp.st_size)
    if name.endswith((".nrrd", ".nhdr")):
        return _nrrd_unit(os.fspath(path), stamp.st_mtime_ns, stamp.st_size)
    return 1.0


def states_unit(path: Path) -> bool:
    """Return whether a file says which unit its geometry has; only NIfTI files can leave it open."""
    if not path.name.lower().endswith((".nii", ".nii.gz")):
        return True
    stamp = path.stat()
    return _nifti_code(os.fspath(path), stamp.st_mtime_ns, stamp.st_size) != 0


def _nifti_unit(path: str, *stamp: int) -> float:
    code = _nifti_code(path, *stamp)
    if code not in NIFTI_UNITS:
        raise ValueError(f"{path} must state its unit as m, mm or micron, got xyzt_units {code}; correct its header.")
    return NIFTI_UNITS[code]


@functools.lru_cache(maxsize=4096)
def _nifti_code(path: str, *_: int) -> int:
    try:
        header: Any = nib.load(path).header
        return int(header["xyzt_units"]) & 7
    except Exception:  # no NIfTI, or damaged, which its reader tells
        return 0


@functools.lru_cache(maxsize=4096)
def _nrrd_unit(path: str, *_: int) -> float:
    with open(path, "rb") as file:
        head = file.read(1 << 16).split(b"\n\n")[0].decode("utf-8", errors="replace")
    found = re.search(r"^space units:(.*)$", head, re.MULTILINE | re.IGNORECASE)
    units = {unit.strip().lower() for unit in re.findall(r'"([^"]*)"', found.group(1))} if found else {""}
    lengths = {NRRD_UNITS.get(unit) for unit in units} or {1.0}
    if len(lengths) > 1 or None in lengths:
        raise ValueError(
            f"{path} must state one unit for its space, such as mm or um, got {', '.join(sorted(units))}; correct its "
            "header."
        )
    (length,) = lengths
    return float(length or 1.0)


def mm_per_unit_of(meta: Mapping[str, Any]) -> float:
    """Return the length in mm of the unit of an image, by its metadata as MONAI's readers give it."""
    code = meta.get("xyzt_units")
    if code is not None:
        return NIFTI_UNITS.get(int(np.asarray(code).ravel()[0]) & 7, 1.0)
    file = meta.get("filename_or_obj")
    return mm_per_unit(Path(str(file))) if isinstance(file, (str, os.PathLike)) else 1.0


def in_mm(affine: np.ndarray, length: float) -> np.ndarray:
    """Return an affine ``(n + 1, n + 1)`` in mm whose unit has a length in mm."""
    scaled = np.array(affine, dtype=np.float64)
    scaled[:-1] *= length
    return scaled


def voxels_apart(affine: np.ndarray, other: np.ndarray, shape: Sequence[int]) -> float:
    """Return how far the corners of two grids ``(4, 4)`` of one shape lie apart at most, in voxels of the second."""
    ndim = min(len(shape), 3)
    corners = np.zeros((2**ndim, 4))
    corners[:, 3] = 1
    for axis in range(ndim):
        corners[:, axis] = [(shape[axis] - 1) * (number >> axis & 1) for number in range(2**ndim)]
    way = corners @ (np.asarray(affine, dtype=np.float64) - other)[:3].T  # (corners, mm)
    columns = np.asarray(other, dtype=np.float64)[:3, :ndim]
    voxels = way @ np.linalg.pinv(columns).T
    aside = np.linalg.norm(way - voxels @ columns.T, axis=1) / np.linalg.norm(columns, axis=0).min()
    return float(max(np.abs(voxels).max(), aside.max()))


MAX_CONDITION = 1e6  # of an affine: far above that of any scanner, far below what rounding makes of one without inverse
COPY_AGAIN = "copy it again from its source"
REPAIR = "correct its header, or convert it again from its source"


class Grid(NamedTuple):
    """Where a file lies.

    Attributes:
        name: of the file, as a sentence calls it.
        shape: ``(*spatial)``.
        affine: ``(4, 4)``, of voxels to mm; ``None`` for a picture, which has no geometry.
    """

    name: str
    shape: tuple[int, ...]
    affine: np.ndarray | None


def check_whole(path: Path, name: str, *, to_end: bool) -> None:
    """Refuse a file that is not there, is empty or may not be read; a NIfTI file or a picture that is not whole.

    Raises:
        ValueError: with one sentence.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{name} does not exist or is not a file; correct its path.")
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}; make it readable.") from error
    if empty:
        raise ValueError(f"{name} is empty, of 0 bytes; {COPY_AGAIN}.")
    if _is_nifti(path):
        _check_nifti(path, name, to_end)
    elif PILReader().verify_suffix(path):
        _check_picture(path, name)


def image_grid(path: Path, name: str) -> Grid:
    """Return the grid of a file that is whole, as MONAI gives it; of NIfTI only the header is read.

    Raises:
        ValueError: when it cannot be read, or its affine has no inverse.
    """
    if not _is_nifti(path):
        return grid_of(read_image(path, name), name)
    image: Any = NibabelReader().read(path)  # where voxel size and affine contradict each other, it corrects one
    affine = in_mm(np.asarray(image.affine), mm_per_unit(path))
    return Grid(name, image.shape[:-1] if image.ndim > 3 else image.shape, affine)


def grid_of(image: torch.Tensor, name: str) -> Grid:
    """Return the grid of an image ``(channels, *spatial)`` as MONAI has read it.

    Raises:
        ValueError: when its affine has no inverse.
    """
    affine = getattr(image, "meta", {}).get(MetaKeys.ORIGINAL_AFFINE)
    if affine is not None:
        affine = in_mm(to_affine_nd(3, np.asarray(affine)), mm_per_unit_of(getattr(image, "meta", {})))
        check_affine(affine, image.ndim - 1, name)
    return Grid(name, tuple(image.shape[1:]), affine)


def check_same_grid(grid: Grid, reference: Grid) -> None:
    """Refuse a file that does not lie on the grid of another one; where one has no geometry, only the shape counts.

    Raises:
        ValueError: with one sentence.
    """
    other = reference.name[0].lower() + reference.name[1:]
    if grid.shape != reference.shape:
        way_out = "resample or reorient one of them"
        if grid.affine is None and grid.shape == reference.shape[::-1]:
            way_out = "height and width are exchanged: turn a copy of one of them, such as with Image.transpose of PIL"
        raise ValueError(f"{grid.name} must have the shape of {other}, {reference.shape}, got {grid.shape}; {way_out}.")
    if grid.affine is None or reference.affine is None:
        return
    apart = voxels_apart(grid.affine, reference.affine, grid.shape)
    if not apart <= APART:
        raise ValueError(
            f"{grid.name} must lie where {other} lies, but their corners are up to {apart:.3g} voxels apart; resample "
            "or reorient one of them."
        )


def _is_nifti(path: Path) -> bool:
    return bool(NibabelReader().verify_suffix(path))


def _check_nifti(path: Path, name: str, to_end: bool) -> None:
    packed = path.name.lower().endswith(".gz")
    size = _unpacked_size(path, name) if packed and to_end else path.stat().st_size
    try:
        image: Any = nib.load(path)
        expected = image.dataobj.offset + math.prod(image.shape) * image.get_data_dtype().itemsize
        with ImageOpener(os.fspath(path)) as file:  # nibabel has replaced a voxel size of 0 by 1
            sizes = type(image.header).from_fileobj(file, check=False)["pixdim"][1 : 1 + min(image.ndim, 3)]
    except Exception as error:
        if packed:
            _unpacked_size(path, name)  # which knows more, where the header itself is cut off
        raise unreadable(name, error) from error
    if packed and not to_end:
        # The last four bytes count those before the compression, unless the file was compressed in several parts.
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            told = int.from_bytes(file.read(), "little")
        size = expected if told == expected % 2**32 else _unpacked_size(path, name)
    if size < expected:
        raise ValueError(f"{name} is truncated: {size} of the {expected} bytes that its header states; {COPY_AGAIN}.")
    if not sizes.all():
        raise ValueError(f"{name} must have a positive voxel size, got {sizes.tolist()} mm; {REPAIR}.")
    check_affine(np.asarray(image.affine), image.ndim, name)


def _check_picture(path: Path, name: str) -> None:
    try:
        with Image.open(path) as picture:
            picture.load()  # MONAI's reader (1.6) would leave the file of a truncated picture open
    except Exception as error:
        raise unreadable(name, error) from error
    if turned := why_turned(path):
        raise ValueError(f"{name} cannot be used: {turned}.")


def _unpacked_size(path: Path, name: str) -> int:
    """Return the size of a gzip file before the compression; it is read to its end, where the checksum is."""
    size = 0
    try:
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                size += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is truncated or damaged: {reason_of(error)}; {COPY_AGAIN}.") from error
    return size


def check_affine(affine: np.ndarray, ndim: int, name: str) -> None:
    """Refuse the affine ``(4, 4)`` of a file with ``ndim`` axes if it has no inverse.

    Raises:
        ValueError: with one sentence.
    """
    if not np.isfinite(affine).all():
        raise ValueError(f"{name} must have a finite affine, got {affine.tolist()}; {REPAIR}.")
    if np.linalg.cond(affine[:3, : min(ndim, 3)]) > MAX_CONDITION:  # the third axis of a 2D file may be anything
        raise ValueError(f"{name} must have an affine that has an inverse, got {affine.tolist()}; {REPAIR}.")


def refuse_unfit_labels(cases: Sequence[Mapping[str, Any]], root: Path) -> None:
    """Refuse cases whose label files cannot be written without loss, whose files viewers turn, or lie in a folder.

    Raises:
        ValueError: naming the file.
    """
    resolved = root.resolve()
    for case in cases:
        for file in files_of(case):
            if file_suffix(file) not in WRITABLE:
                raise ValueError(
                    f"Label files must be of a type that can be written without loss, {', '.join(WRITABLE)}, "
                    f"got {file} of case {case['id']!r}."
                )
        files = [file for key in file_keys(case) for file in files_of(case, key)]
        for file in files:
            if turned := why_turned(file):
                raise ValueError(f"File {file} of case {case['id']!r} cannot be used: {turned}.")
            if any(own.is_relative_to(resolved) for own in (file.resolve(), file.parent.resolve())):
                raise ValueError(
                    f"root must be a folder without originals, but {root} holds {file} of {case['id']!r}; "
                    "choose an empty or a new folder."
                )
