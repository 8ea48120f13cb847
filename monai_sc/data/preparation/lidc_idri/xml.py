"""The XML files of LIDC-IDRI: what each reader marked in a CT scan."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


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
        readers: the nodules of each, one tuple for every reading session; what is no nodule is left out.
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
            f"XML file {file} must be about a CT scan, as LidcReadMessage, got another; download it again."
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
