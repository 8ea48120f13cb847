"""LIDC-IDRI as The Cancer Imaging Archive has it: a series of DICOM files for each scan, and an XML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from monai_sc.data.preparation.layout import SourceCase, visible_files
from monai_sc.data.preparation.lidc_idri.dicom import CtSlice, Series, read_series, read_slice
from monai_sc.data.preparation.lidc_idri.form import CROP, Drawing, Form, patients_in
from monai_sc.data.preparation.lidc_idri.nodules import Nodule, nodules_of
from monai_sc.data.preparation.lidc_idri.xml import Reading, read_reading, series_of

NUM_SCANS, NUM_PATIENTS = 1018, 1010


class ScanForm(Form):
    """The DICOM files, ``LIDC-IDRI-0001/<study>/<series>/*.dcm``; what study and series are named does not count.

    The XML file of a scan lies in the folder of its series. Where that has none, it is looked for by its series UID in
    all other folders of the source, such as ``tcia-lidc-xml``. Series that are not CT are left out.

    Only the contours of the last scan are kept in memory, and one slice.

    Args:
        source: where XML files are looked for.
        root: that holds the folders of the patients.
        gaps: take scans whose slices are not evenly spaced.
    """

    def __init__(self, source: Path, root: Path, *, gaps: bool) -> None:
        self.source = source
        self.root = root
        self.gaps = gaps
        self._collected: dict[str, Path] | None = None
        self._nodules: tuple[Path, list[Nodule]] | None = None
        self._counts: tuple[int, int] | None = None

    def cases(self) -> list[SourceCase]:
        found: list[SourceCase] = []
        scans = patients = 0
        for patient in patients_in(self.root):
            series = sorted(self._series_of(patient), key=lambda entry: entry.uid)
            for number, entry in enumerate(series):
                name = patient.name if number == 0 else f"{patient.name}_scan-{number}"
                found += self._cases_of(entry, name, patient.name)
            scans += len(series)
            patients += bool(series)
        self._counts = scans, patients
        return found

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        if self._counts is None:
            self.cases()
        counts = zip(self._counts or (0, 0), (NUM_SCANS, NUM_PATIENTS), ("CT scans", "patients"), strict=True)
        return [f"{wanted - count} of {wanted} {what}" for count, wanted, what in counts if count < wanted]

    def read(self, case: SourceCase) -> Drawing:
        file, xml = case.files["image"], case.files["annotations"]
        content = read_slice(file)
        match = re.search(r"_nodule-(\d+)_slice-\d+$", case.id)
        nodules = self._nodules_of(xml)
        number = int(match[1]) if match else len(nodules)
        if number >= len(nodules) or content.uid not in nodules[number].slices:
            raise ValueError(f"XML file {xml} must hold case {case.id}, got another file; list the cases again.")
        return cut(content, nodules[number], file)

    def _series_of(self, patient: Path) -> Iterator[Series]:
        for folder in sorted(Path(path) for path, _, _ in os.walk(patient)):
            files = list(visible_files(folder, [".dcm"]).values())
            series = read_series(folder, files, gaps=self.gaps) if files else None
            if series is not None:
                yield series

    def _cases_of(self, series: Series, name: str, patient: str) -> list[SourceCase]:
        xml = self._xml_of(series)
        reading = read_reading(xml)
        check_fits(reading, series)
        self._nodules = xml, nodules_of(reading)
        slices = {uid: position for position, uid in enumerate(series.files)}
        return [
            SourceCase(
                id=f"{name}_nodule-{number}_slice-{slices[uid]}",
                files={"image": series.files[uid], "annotations": xml},
                group=patient,
            )
            for number, nodule in enumerate(self._nodules[1])
            for uid in nodule.slices
        ]

    def _xml_of(self, series: Series) -> Path:
        beside = by_series(visible_files(series.folder, [".xml"]).values())
        if series.uid in beside:
            return beside[series.uid]
        if beside:
            uid, xml = next(iter(beside.items()))
            raise ValueError(
                f"XML file {xml} must be about the series of its folder, {series.uid}, got {uid}; download it again."
            )
        if self._collected is None:
            self._collected = by_series(collected_xml(self.source))
        if series.uid not in self._collected:
            raise ValueError(
                f"Series {series.folder} must have its XML file, got none; download it with the annotations, or put "
                f"the folder tcia-lidc-xml into {self.source}."
            )
        return self._collected[series.uid]

    def _nodules_of(self, xml: Path) -> list[Nodule]:
        kept = self._nodules  # in a name of its own, for threads
        if kept is None or kept[0] != xml:
            kept = self._nodules = xml, nodules_of(read_reading(xml))
        return kept[1]


def collected_xml(source: Path) -> Iterator[Path]:
    """Yield the XML files under a folder that are not in that of a patient."""
    patients = {folder.name for folder in patients_in(source)}
    for entry in sorted(source.iterdir()):
        if entry.is_dir() and entry.name not in patients:
            yield from collected_xml(entry)
    yield from visible_files(source, [".xml"]).values()


def by_series(files: Iterable[Path]) -> dict[str, Path]:
    """Return the XML files about CT scans by the UID of their series.

    Raises:
        ValueError: when one cannot be read, or two are about the same series.
    """
    found: dict[str, Path] = {}
    for file in files:
        uid = series_of(file)
        if uid is None:
            continue
        if uid in found:
            raise ValueError(f"{found[uid]} and {file} must be about two series, got one; delete one of them.")
        found[uid] = file
    return found


def check_fits(reading: Reading, series: Series) -> None:
    """Refuse contours in a slice that the series does not have, or outside its slices.

    Raises:
        ValueError: naming the XML file.
    """
    columns, rows = series.size
    for contour in (c for nodules in reading.readers for nodule in nodules for c in nodule if len(c.points) > 1):
        if contour.slice_uid not in series.files:
            raise ValueError(
                f"XML file {reading.file} must name slices of series {series.folder}, got {contour.slice_uid}, which "
                "is not in it; download the series again."
            )
        x, y = zip(*contour.points, strict=True)
        if min(x) < 0 or min(y) < 0 or max(x) >= columns or max(y) >= rows:
            raise ValueError(
                f"XML file {reading.file} must have contours inside its slices of {columns} x {rows} pixels, got x up "
                f"to {max(x)} and y up to {max(y)}, or below 0; download it again."
            )


def cut(content: CtSlice, nodule: Nodule, file: Path) -> Drawing:
    """Return the part of a slice around a nodule, the same for all of its slices.

    The middle of the box around all that was drawn is in the middle, unless the part would be over the edge.

    Raises:
        ValueError: when the slice is smaller than the part.
    """
    size = content.values.shape
    if min(size) < CROP:
        raise ValueError(
            f"DICOM file {file} must have at least {CROP} x {CROP} pixels, got {size[0]} x {size[1]}; leave this "
            "series out."
        )
    low, high = nodule.box()
    x, y = (int(v) for v in np.clip((low + high + 1) // 2 - CROP // 2, 0, np.array(size) - CROP))
    readers = nodule.slices[content.uid]
    masks = np.zeros((len(readers), *size), dtype=bool)
    for mask, pixels in zip(masks, readers, strict=True):
        if pixels:
            mask[tuple(np.array(list(pixels)).T)] = True
    affine = content.affine.copy()
    affine[:, 3] = content.affine @ [x, y, 0, 1]
    part = slice(x, x + CROP), slice(y, y + CROP)
    return Drawing(content.values[part], masks[:, part[0], part[1]], affine)
