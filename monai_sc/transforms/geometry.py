"""The geometry that a file states: its unit of length, and how far two files lie apart."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

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
