"""DICOM and XML files as those of LIDC-IDRI, for its stand-in."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from monai.utils import optional_import

Dataset, _ = optional_import("pydicom", name="Dataset")
FileMetaDataset, _ = optional_import("pydicom.dataset", name="FileMetaDataset")

CT_IMAGE, CHEST_XRAY = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.1.1"
EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"

NAMESPACE = "http://www.nih.gov"
INTERCEPT = -1024


@dataclass(frozen=True)
class Roi:
    """A line in one slice: its points ``(x, y)``, and whether the nodule is inside, else outside."""

    slice_index: int
    points: list[tuple[int, int]]
    inclusion: bool = True


def write_series(
    folder: Path, scan: np.ndarray, patient: str, uids: tuple[str, str], spacing: tuple[float, float]
) -> list[tuple[str, float]]:
    """Write a CT scan, and return SOP instance UID and height of each slice, in the order of ``scan``.

    Args:
        folder: for the files, which is made.
        scan: ``(slices, columns, rows)``, in Hounsfield units, the lowest slice first.
        patient: name of the patient.
        uids: of the study and the series.
        spacing: of pixels and of slices, in mm.
    """
    pixel, step = spacing
    written = []
    for index, values in enumerate(scan):
        slice_uid, z = f"{uids[1]}.{index + 1}", round(-150 + step * index, 3)
        data = _dataset(patient, uids, slice_uid, CT_IMAGE, "CT")
        data.FrameOfReferenceUID = f"{uids[0]}.9"
        data.SliceThickness = step
        data.ImagePositionPatient = [-pixel * values.shape[0] / 2, -pixel * values.shape[1] / 2, z]
        data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        data.PixelSpacing = [pixel, pixel]
        data.RescaleIntercept, data.RescaleSlope = INTERCEPT, 1
        # numbered from the head, so that the names of the files are not in the order of their heights
        data.InstanceNumber = len(scan) - index
        _set_pixels(data, np.rint(values - INTERCEPT).astype(np.int16).T)
        _save(data, folder / f"{len(scan) - index:06d}.dcm")
        written.append((slice_uid, z))
    return written


def write_chest_xray(folder: Path, patient: str, uids: tuple[str, str]) -> None:
    """Write a small picture as a chest X-ray, which lacks the position that slices have."""
    data = _dataset(patient, uids, f"{uids[1]}.1", CHEST_XRAY, "DX")
    _set_pixels(data, np.zeros((32, 32), dtype=np.int16))
    _save(data, folder / "000001.dcm")


def write_xml(
    file: Path, series_uid: str, slices: Sequence[tuple[str, float]], readers: Sequence[Sequence[Sequence[Roi]]]
) -> None:
    """Write what readers marked in a scan, with one mark of what is no nodule by the first.

    Args:
        file: to write.
        series_uid: of the scan.
        slices: SOP instance UID and height of each, as :py:func:`write_series` returns them.
        readers: for each reader the lines of each nodule.
    """
    root = ElementTree.Element("LidcReadMessage", xmlns=NAMESPACE, uid="1.2.3")
    header = ElementTree.SubElement(root, "ResponseHeader")
    _add(header, "Version", "1.7")
    _add(header, "SeriesInstanceUid", series_uid)
    for number, nodules in enumerate(readers):
        session = ElementTree.SubElement(root, "readingSession")
        _add(session, "annotationVersion", "3.12")
        _add(session, "servicingRadiologistID", "anon")
        for name, rois in enumerate(nodules):
            nodule = ElementTree.SubElement(session, "unblindedReadNodule")
            _add(nodule, "noduleID", f"Nodule {name + 1:03d}")
            for roi in rois:
                _add_roi(nodule, roi, slices)
        if number == 0:
            other = ElementTree.SubElement(session, "nonNodule")
            _add(other, "nonNoduleID", "1")
            _add(other, "imageZposition", str(slices[0][1]))
            _add(other, "imageSOP_UID", slices[0][0])
            _add_point(other, "locus", (30, 30))
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(file, encoding="UTF-8", xml_declaration=True)


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = text


def _add_roi(parent: ElementTree.Element, roi: Roi, slices: Sequence[tuple[str, float]]) -> None:
    element = ElementTree.SubElement(parent, "roi")
    uid, z = slices[roi.slice_index]
    _add(element, "imageZposition", str(z))
    _add(element, "imageSOP_UID", uid)
    _add(element, "inclusion", str(roi.inclusion).upper())
    for point in roi.points:
        _add_point(element, "edgeMap", point)


def _add_point(parent: ElementTree.Element, name: str, point: tuple[int, int]) -> None:
    element = ElementTree.SubElement(parent, name)
    _add(element, "xCoord", str(point[0]))
    _add(element, "yCoord", str(point[1]))


def _dataset(patient: str, uids: tuple[str, str], uid: str, kind: str, modality: str) -> Any:
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = kind
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = uid
    data.file_meta.TransferSyntaxUID = EXPLICIT_LITTLE_ENDIAN
    data.PatientID = data.PatientName = patient
    data.StudyInstanceUID, data.SeriesInstanceUID = uids
    data.Modality = modality
    return data


def _set_pixels(data: Any, pixels: np.ndarray) -> None:
    """Store pixels ``(rows, columns)``, int16."""
    data.Rows, data.Columns = pixels.shape
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
    data.PixelData = pixels.tobytes()


def _save(data: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(file, enforce_file_format=True)
