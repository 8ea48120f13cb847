"""The files of LIDC-IDRI: the CT series in DICOM, and the XML files with what each reader drew."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from monai.utils import optional_import

from monai_sc.files.read import reason_of


@dataclass(frozen=True)
class Contour:
    """A closed line that a reader drew in one slice, the ``roi`` of the file.

    Attributes:
        slice_uid: SOP instance UID of the slice.
        z: of the slice, in mm.
        inclusion: whether the line is around the nodule; else it is around what does not belong to it.
        points: ``(x, y)`` in pixels, column and row from 0; a nodule under 3 mm has one point only.
    """

    slice_uid: str
    z: float
    inclusion: bool
    points: tuple[tuple[int, int], ...]


ReadNodule = tuple[Contour, ...]
"""One nodule as one reader marked it."""


@dataclass(frozen=True)
class Reading:
    """What all readers marked in one scan.

    Attributes:
        file: that this is from.
        series_uid: of the scan.
        readers: the nodules of each, one tuple for every reading session; what is not a nodule is left out.
    """

    file: Path
    series_uid: str
    readers: tuple[tuple[ReadNodule, ...], ...]


def series_of(file: Path) -> str | None:
    """Return the UID of the series that a file is about; ``None`` if it is not about a CT scan.

    Raises:
        ValueError: when the file cannot be read, or names no series.
    """
    return _series_uid(_root(file), file)


def read_reading(file: Path) -> Reading:
    """Return what a file about a CT scan says.

    Raises:
        ValueError: when the file cannot be read, is not about a CT scan, or lacks a part.
    """
    root = _root(file)
    uid = _series_uid(root, file)
    if uid is None:
        raise ValueError(
            f"XML file {file} must describe a CT scan (LidcReadMessage), got another kind; download it again."
        )
    sessions = root.findall("{*}readingSession")
    if not sessions:
        raise ValueError(f"XML file {file} must hold a readingSession for each reader, got none; download it again.")
    return Reading(file, uid, tuple(_nodules(session, file) for session in sessions))


def _series_uid(root: ElementTree.Element, file: Path) -> str | None:
    if _name(root) != "LidcReadMessage":  # IdriReadMessage is about a chest X-ray
        return None
    header = _part(root, "ResponseHeader", file)
    for element in header:
        if _name(element).lower() == "seriesinstanceuid" and element.text:
            return element.text.strip()
    raise ValueError(f"XML file {file} must name the series in SeriesInstanceUid, got none; download it again.")


def _nodules(session: ElementTree.Element, file: Path) -> tuple[ReadNodule, ...]:
    return tuple(
        tuple(_contour(roi, file) for roi in nodule.findall("{*}roi"))
        for nodule in session.findall("{*}unblindedReadNodule")
    )


def _contour(roi: ElementTree.Element, file: Path) -> Contour:
    inclusion = _text(roi, "inclusion", file).upper()
    if inclusion not in ("TRUE", "FALSE"):
        raise ValueError(f"XML file {file} must have TRUE or FALSE as inclusion, got {inclusion!r}; download it again.")
    points = tuple(
        (int(_number(edge, "xCoord", file)), int(_number(edge, "yCoord", file))) for edge in roi.findall("{*}edgeMap")
    )
    return Contour(_text(roi, "imageSOP_UID", file), _number(roi, "imageZposition", file), inclusion == "TRUE", points)


def _number(element: ElementTree.Element, name: str, file: Path) -> float:
    text = _text(element, name, file)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"XML file {file} must have a number as {name}, got {text!r}; download it again.") from None


def _text(element: ElementTree.Element, name: str, file: Path) -> str:
    return (_part(element, name, file).text or "").strip()


def _part(element: ElementTree.Element, name: str, file: Path) -> ElementTree.Element:
    part = element.find(f"{{*}}{name}")
    if part is None:
        raise ValueError(f"XML file {file} must have {name} in each {_name(element)}, got none; download it again.")
    return part


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _root(file: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(file).getroot()
    except (OSError, ElementTree.ParseError, ValueError) as error:  # ValueError: of an unknown encoding
        raise ValueError(f"XML file {file} cannot be read: {error}; download it again.") from error


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
            f"mm where {usual:g} mm is usual; download it again, or accept such series with gaps."
        )
