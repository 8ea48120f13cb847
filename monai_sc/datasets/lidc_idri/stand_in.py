"""A stand-in for LIDC-IDRI: generated nodules, drawn by four readers who disagree."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from monai.utils import optional_import
from PIL import Image

from monai_sc.datasets.layout import check_new_folder

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
    """Write what readers marked in a scan, with one mark of what is not a nodule by the first."""
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


SIZE = 160  # of a slice, in pixels
SLICES = 11
READERS = 4
CROP_FOLDERS = {"train": "train", "clean": "val", "test": "test"}
AIR, LUNG, TISSUE = -1000, -850, 40


@dataclass(frozen=True)
class Outline:
    """What one reader drew of a nodule in one slice: a star around a centre.

    Attributes:
        slice_index: of the slice.
        center: ``(x, y)``, in pixels.
        radii: of the line at evenly spaced angles, in pixels.
    """

    slice_index: int
    center: tuple[float, float]
    radii: np.ndarray

    def line(self) -> list[tuple[int, int]]:
        """Return the closed line, in steps to one of the eight pixels around, as the readers' tool has it."""
        angle = np.linspace(0, 2 * np.pi, len(self.radii), endpoint=False)
        corners = np.rint(np.array(self.center)[:, None] + self.radii * [np.cos(angle), np.sin(angle)]).astype(int).T
        line: list[tuple[int, int]] = [(int(corners[0, 0]), int(corners[0, 1]))]
        for corner in [*corners[1:], corners[0]]:
            while tuple(corner) != line[-1]:
                x, y = line[-1] + np.sign(corner - line[-1])
                line.append((int(x), int(y)))
        return line

    def mask(self, size: int, low: tuple[int, int] = (0, 0)) -> np.ndarray:
        """Return the pixels over half a pixel inside the line, of a square ``(size, size)`` that begins at ``low``."""
        x, y = np.indices((size, size)) + np.reshape(low, (2, 1, 1)) - np.reshape(self.center, (2, 1, 1))
        turn = np.arctan2(y, x) / (2 * np.pi) * len(self.radii)
        radius = np.interp(turn, np.arange(len(self.radii)), self.radii, period=len(self.radii))
        return np.asarray(np.hypot(x, y) < radius - 0.5)


@dataclass(frozen=True)
class Patient:
    """A generated patient.

    Attributes:
        name: such as ``LIDC-IDRI-0001``.
        scan: ``(slices, x, y)``, in Hounsfield units.
        nodules: for each nodule, the outlines of each reader; one who did not see it has none.
    """

    name: str
    scan: np.ndarray
    nodules: list[list[list[Outline]]]


def write_lidc_idri(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write scans as The Cancer Imaging Archive has them: DICOM files and one XML file for each series.

    Every patient has two nodules, of which all readers saw the first and two the second; a nodule under 3 mm, which is
    a point; and a mark of what is not a nodule. The first nodule of the first patient has a hole, and this patient has
    a chest X-ray, too.

    ``num_cases`` are patients; the data set has no splits, so that their sum counts.
    """
    check_new_folder(out)
    for number, patient in enumerate(generate(sum(num_cases.values()), seed)):
        rng = np.random.default_rng([seed, number, 1])
        study, series, xray_study, xray = (f"2.25.{rng.integers(10**17, 10**18)}" for _ in range(4))
        folder = out / patient.name / study / series
        spacing = (round(float(rng.uniform(0.5, 0.9)), 4), float(rng.choice([1.25, 2.0, 2.5])))
        slices = write_series(folder, patient.scan, patient.name, (study, series), spacing)
        readers = []
        for reader in range(READERS):
            nodules = [[Roi(o.slice_index, o.line()) for o in drawn[reader]] for drawn in patient.nodules]
            if number == 0:
                nodules[0] += [Roi(o.slice_index, square(o.center), False) for o in patient.nodules[0][reader][1:2]]
            point = [Roi(1, [(40 + reader, 60)])]
            readers.append([nodule for nodule in [*nodules, point] if nodule])
        write_xml(folder / f"{number + 67:03d}.xml", series, slices, readers)
        if number == 0:
            write_chest_xray(out / patient.name / xray_study / xray, patient.name, (xray_study, xray))


def write_lidc_crops(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write crops in the form of those of the Probabilistic U-Net, 180 x 180 pixels.

    ``num_cases`` are patients; those of the split ``"clean"`` are in ``val``.
    """
    check_new_folder(out)
    patients = generate(sum(num_cases.values()), seed)
    for split, count in num_cases.items():
        root = out / CROP_FOLDERS[split]
        for _, patient in zip(range(count), patients, strict=False):
            for nodule, drawn in enumerate(patient.nodules):
                for index, image, masks in crops_of(patient.scan, drawn, 180):
                    name = f"z{-2.5 * index}_c{nodule}"
                    save(image, root / "images" / patient.name / f"{name}.png")
                    for reader, mask in enumerate(masks):
                        save(mask, root / "gt" / patient.name / f"{name}_l{reader}.png")


def write_lidc_slices(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write slices by patient and nodule, 128 x 128 pixels.

    ``num_cases`` are patients; the form has no splits, so that their sum counts.
    """
    check_new_folder(out)
    for patient in generate(sum(num_cases.values()), seed):
        for nodule, drawn in enumerate(patient.nodules):
            root = out / patient.name / f"nodule-{nodule}"
            for number, (_, image, masks) in enumerate(crops_of(patient.scan, drawn, 128)):
                save(image, root / "images" / f"slice-{number}.png")
                for reader, mask in enumerate(masks):
                    save(mask, root / f"mask-{reader}" / f"slice-{number}.png")


def generate(count: int, seed: int) -> Iterator[Patient]:
    """Yield patients; each depends on its number and the seed only."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        scan = body(rng)
        nodules = []
        for center, radius, seen in (((55, 75), rng.uniform(8, 11), range(4)), ((108, 84), rng.uniform(4, 6), (0, 2))):
            place = tuple(float(c + rng.uniform(-4, 4)) for c in center)
            middle = int(rng.integers(4, SLICES - 4))
            shape = 1 + 0.1 * waves(rng)
            add_nodule(scan, (place[0], place[1]), middle, radius * shape)
            drawn = [read(rng, (place[0], place[1]), middle, radius * shape) for _ in range(READERS)]
            nodules.append([outlines if reader in seen else [] for reader, outlines in enumerate(drawn)])
        yield Patient(f"LIDC-IDRI-{number + 1:04d}", scan, nodules)


def body(rng: np.random.Generator) -> np.ndarray:
    """Return a chest ``(slices, x, y)`` in Hounsfield units: tissue with two lungs."""
    x, y = (np.indices((SIZE, SIZE)) - SIZE / 2) / SIZE
    chest = np.where(np.hypot(x, y * 1.2) < 0.47, TISSUE, AIR)
    chest[np.hypot((np.abs(x) - 0.2) * 1.4, y) < 0.22] = LUNG
    return np.asarray(chest + rng.normal(0, 25, (SLICES, SIZE, SIZE)))


def waves(rng: np.random.Generator) -> np.ndarray:
    """Return a smooth closed curve, of deviation about 1, at 64 angles."""
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    phases = rng.uniform(0, 2 * np.pi, 3)
    return np.asarray(np.cos(np.outer(angle, (2, 3, 5)) + phases).sum(axis=1) / 1.2)


def radius_at(offset: int) -> float:
    """Return the radius of a ball that spans 7 slices, relative to that in its middle."""
    return float(np.sqrt(max(0.0, 1 - (offset / 3.5) ** 2)))


def add_nodule(scan: np.ndarray, center: tuple[float, float], middle: int, radii: np.ndarray) -> None:
    """Add a nodule to a scan."""
    for offset in range(-3, 4):
        inside = Outline(middle + offset, center, radii * radius_at(offset)).mask(SIZE)
        scan[middle + offset][inside] = TISSUE + 0.2 * scan[middle + offset][inside]


def read(rng: np.random.Generator, center: tuple[float, float], middle: int, radii: np.ndarray) -> list[Outline]:
    """Return what a reader draws of a nodule: larger or smaller, along another line, and in fewer slices or as many."""
    first, last = -3 + rng.integers(0, 2), 3 - rng.integers(0, 2)
    drawn = radii * rng.uniform(0.85, 1.2) + 0.5 + 0.4 * waves(rng)  # the line runs outside
    return [Outline(middle + k, center, np.maximum(drawn * radius_at(k), 2)) for k in range(first, last + 1)]


def square(center: Sequence[float]) -> list[tuple[int, int]]:
    """Return the line of an exclusion: a hole of 3 x 3 pixels with its line."""
    x, y = (round(c) for c in center)
    around = [(-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1)]
    return [(x + dx, y + dy) for dx, dy in around]


def crops_of(
    scan: np.ndarray, drawn: Sequence[Sequence[Outline]], size: int
) -> Iterator[tuple[int, np.ndarray, list[np.ndarray]]]:
    """Yield index, grey image and masks ``(size, size)``, uint8, of each slice of a nodule that a reader drew."""
    outlines = [{outline.slice_index: outline for outline in reader} for reader in drawn]
    x, y = (round(c) - size // 2 for c in next(iter(next(filter(None, outlines)).values())).center)
    grey = np.clip((scan + 1000) / 1500 * 255, 0, 255).astype(np.uint8)
    padded = np.pad(grey, ((0, 0), (size, size), (size, size)))
    for index in sorted(set().union(*outlines)):
        masks = [
            reader[index].mask(size, (x, y)).astype(np.uint8) * 255
            if index in reader
            else np.zeros((size, size), np.uint8)
            for reader in outlines
        ]
        yield index, padded[index, x + size : x + 2 * size, y + size : y + 2 * size], masks


def save(picture: np.ndarray, file: Path) -> None:
    """Write a picture ``(width, height)``, uint8, as PNG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(picture.T)).save(file)
