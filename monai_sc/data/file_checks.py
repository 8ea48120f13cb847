"""The file of an image or a label before it is used: is it whole, and on which grid does it lie?"""

from __future__ import annotations

import gzip
import math
import os
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

from monai_sc.data.cases import file_keys, files_of
from monai_sc.data.label_files import WRITABLE, file_suffix
from monai_sc.transforms.geometry import APART, in_mm, mm_per_unit, mm_per_unit_of, voxels_apart
from monai_sc.transforms.load import read_image, reason_of, unreadable, why_turned

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

    Args:
        path: of the file.
        name: of the file, as a sentence calls it.
        to_end: decompress ``.nii.gz`` up to its checksum; else only its size must be what its header says.

    Raises:
        ValueError: with one sentence.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{name} does not exist, or is no file; correct its path.")
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
        raise ValueError(f"{name} is truncated, to {size} of the {expected} bytes that its header tells; {COPY_AGAIN}.")
    if not sizes.all():
        raise ValueError(f"{name} must have voxels of a size over 0, got {sizes.tolist()} mm; {REPAIR}.")
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
