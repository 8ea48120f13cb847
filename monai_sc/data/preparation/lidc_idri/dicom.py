"""The CT series of LIDC-IDRI: which slices a folder of DICOM files holds, and the content of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from monai.utils import optional_import

from monai_sc.transforms.load import reason_of

# Of the extra "lidc" only: where pydicom is installed, MONAI 1.6 looks for a GPU decoder in every LoadImage, and warns.
dcmread, HAS_PYDICOM = optional_import("pydicom", name="dcmread")

GEOMETRY = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns")
NAMES = ("SOPInstanceUID", "SeriesInstanceUID", "Modality")
MAX_UNEVEN = 0.1
INSTALL = "pip install 'monai-sc[lidc]'"
T = TypeVar("T")


@dataclass(frozen=True)
class Series:
    """The slices of one scan.

    Attributes:
        folder: that holds them.
        uid: of the series.
        size: ``(columns, rows)`` of each slice.
        files: by SOP instance UID, from the lowest to the highest.
    """

    folder: Path
    uid: str
    size: tuple[int, int]
    files: dict[str, Path]


@dataclass(frozen=True)
class CtSlice:
    """One slice.

    Attributes:
        uid: of the SOP instance.
        values: ``(columns, rows)``, in Hounsfield units, float32.
        affine: ``(4, 4)``, of ``(column, row, 0)`` to mm in RAS.
    """

    uid: str
    values: np.ndarray
    affine: np.ndarray


def read_series(folder: Path, files: Sequence[Path], *, gaps: bool = False) -> Series | None:
    """Return the slices of a folder from the headers of its files; ``None`` if they are not CT.

    Args:
        folder: to name in errors.
        files: all DICOM files of the folder, at least one.
        gaps: take slices that are not evenly spaced.

    Raises:
        ValueError: when a file cannot be read or lacks an entry, the files are of several series, differ in size, are
            not axial, or without ``gaps`` not evenly spaced: a step differs by over a tenth from the median of all.
    """
    if _header(files[0], NAMES).Modality != "CT":  # some patients have chest X-rays, too
        return None
    headers = [(file, _header(file, (*NAMES, *GEOMETRY))) for file in files]
    series = _one(folder, "be of one series", [str(header.SeriesInstanceUID) for _, header in headers])
    size = _one(folder, "have one size", [(int(header.Columns), int(header.Rows)) for _, header in headers])
    for file, header in headers:
        _signs(file, header)
    headers.sort(key=lambda entry: (float(entry[1].ImagePositionPatient[2]), entry[0].name))
    uids = [str(header.SOPInstanceUID) for _, header in headers]
    if len(set(uids)) < len(uids):
        raise ValueError(f"Series {folder} must hold each slice once, got one twice; download the folder again.")
    if not gaps:
        _check_even(folder, np.array([float(header.ImagePositionPatient[2]) for _, header in headers]))
    return Series(folder, series, size, {uid: file for uid, (file, _) in zip(uids, headers, strict=True)})


def read_slice(file: Path) -> CtSlice:
    """Return the content of one file.

    Raises:
        ValueError: when the file cannot be read, lacks an entry, or is not axial.
    """
    header = _read(file, (*NAMES, *GEOMETRY, "RescaleSlope", "RescaleIntercept"))
    try:
        pixels = header.pixel_array
    except Exception as error:  # pydicom has many
        raise _unreadable(file, error) from error
    values = pixels.T * float(header.RescaleSlope) + float(header.RescaleIntercept)
    x, y, z = (float(v) for v in header.ImagePositionPatient)
    row_mm, column_mm = (float(v) for v in header.PixelSpacing)  # of the step to the next row first
    right, down = _signs(file, header)
    thickness = float(header.get("SliceThickness") or 1)
    affine = np.diag([-right * column_mm, -down * row_mm, thickness, 1.0])  # DICOM is LPS
    affine[:3, 3] = -x, -y, z
    return CtSlice(str(header.SOPInstanceUID), values.astype(np.float32), affine)


def _header(file: Path, required: Sequence[str]) -> Any:
    return _read(file, required, stop_before_pixels=True, specific_tags=list(required))


def _read(file: Path, required: Sequence[str], **options: Any) -> Any:
    if not HAS_PYDICOM:
        raise ValueError(f"DICOM file {file} needs pydicom to be read, which is not installed; {INSTALL}.")
    try:
        content = dcmread(file, **options)
    except Exception as error:  # pydicom has many
        raise _unreadable(file, error) from error
    for name in required:
        if content.get(name) in (None, ""):
            raise ValueError(f"DICOM file {file} must have an entry {name}, got none; download it again.")
    return content


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(f"DICOM file {file} cannot be read: {reason_of(error)}; download it again.")


def _signs(file: Path, header: Any) -> tuple[int, int]:
    """Return 1 where columns go to the patient's left, and rows to the back; -1 for a patient who lies on the front."""
    cosines = [float(v) for v in header.ImageOrientationPatient]
    signs = round(cosines[0]), round(cosines[4])
    if not np.allclose(cosines, [signs[0], 0, 0, 0, signs[1], 0], atol=1e-3) or 0 in signs:
        raise ValueError(
            f"DICOM file {file} must be an axial slice, of orientation 1, 0, 0, 0, 1, 0, got "
            f"{', '.join(f'{v:g}' for v in cosines)}; leave this series out."
        )
    return signs


def _one(folder: Path, what: str, values: Sequence[T]) -> T:
    found = sorted(set(values), key=str)
    if len(found) > 1:
        raise ValueError(f"The files of series {folder} must {what}, got {found[0]} and {found[1]}; download it again.")
    return found[0]


def _check_even(folder: Path, z: np.ndarray) -> None:
    steps = np.diff(z)
    if not len(steps):
        return
    usual = float(np.median(steps))
    worst = int(np.argmax(np.abs(steps - usual)))
    if abs(steps[worst] - usual) > MAX_UNEVEN * usual or usual <= 0:
        raise ValueError(
            f"Series {folder} must have evenly spaced slices, got a step of {steps[worst]:g} mm after z = {z[worst]:g} "
            f"mm where {usual:g} mm is usual; download it again, or take such series as they are, with gaps."
        )
