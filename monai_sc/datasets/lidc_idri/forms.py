"""The forms in which LIDC-IDRI is distributed: scans with XML files, and PNG images of nodules."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monai_sc.datasets.layout import CLEAN, TEST, TRAIN, SourceCase, check_size, open_picture, visible_files
from monai_sc.datasets.lidc_idri.dicom import CtSlice, Reading, Series, read_reading, read_series, read_slice, series_of
from monai_sc.datasets.lidc_idri.nodules import READERS, Nodule, nodules_of

CROP = 128
"""Width and height of the image of a case, in pixels."""


@dataclass(frozen=True)
class Drawing:
    """One slice of a nodule, as its readers drew it.

    Attributes:
        image: ``(width, height)``.
        masks: ``(readers, width, height)``, bool; at least four readers, all False for one who drew nothing.
        affine: ``(4, 4)``, of pixels to mm in RAS; ``None`` for a picture.
    """

    image: np.ndarray
    masks: np.ndarray
    affine: np.ndarray | None = None

    def at_least(self, readers: int) -> np.ndarray:
        """Return the pixels ``(width, height)`` that at least so many readers drew, bool."""
        return np.asarray(self.masks.sum(axis=0) >= readers)


class Form(ABC):
    """One form of the data set in one folder."""

    @abstractmethod
    def cases(self) -> list[SourceCase]:
        """Return the cases in any order; see :py:meth:`monai_sc.datasets.layout.Layout.cases`."""

    @abstractmethod
    def read(self, case: SourceCase) -> Drawing:
        """Return the content of one case.

        Raises:
            ValueError: in one sentence with the file, when one cannot be used.
        """

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        """Return what the official data set has and the folder lacks; see the layout."""
        return []


def patients_in(folder: Path) -> list[Path]:
    """Return the folders of patients in a folder, such as ``LIDC-IDRI-0001``, by their name."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in found if re.fullmatch(r"LIDC-IDRI-\d{4}", entry.name) and entry.is_dir()]


CROP_FOLDERS = {"train": TRAIN, "val": CLEAN, "test": TEST}
NUM_CROPS = {TRAIN: 8843, CLEAN: 1993, TEST: 1980}
MASKS = [f"mask-{reader}" for reader in range(READERS)]


class PictureForm(Form):
    """A PNG file for each image, and one for the mask of each reader."""

    def read(self, case: SourceCase) -> Drawing:
        image = open_picture(case.files["image"], ["L"])
        if min(image.shape) < CROP:
            raise ValueError(
                f"Picture {case.files['image']} must have at least {CROP} x {CROP} pixels, got {image.shape[0]} x "
                f"{image.shape[1]}; unpack it again."
            )
        masks = np.stack([_middle(_open_mask(case.files[name], image)) for name in MASKS])
        return Drawing(_middle(image), masks)


class CropForm(PictureForm):
    """The crops that were published with the Hierarchical Probabilistic U-Net (Kohl et al. 2019), 180 x 180 pixels.

    In a folder are ``images/LIDC-IDRI-0001/z-105.0_c0.png`` and ``gt/LIDC-IDRI-0001/z-105.0_c0_l0.png`` to ``_l3.png``;
    ``_l1`` to ``_l4`` does as well. A pixel is 0.5 mm. The middle 128 x 128 pixels are taken, as of any larger picture.
    """

    def __init__(self, folders: dict[str | None, Path]) -> None:
        self.folders = folders

    def cases(self) -> list[SourceCase]:
        return [
            case
            for split, folder in self.folders.items()
            for patient in patients_in(folder / "images")
            for case in _crops_of(patient, folder / "gt" / patient.name, split)
        ]

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        found = Counter(case.split for case in cases)
        wanted = {None: sum(NUM_CROPS.values())} if None in self.folders else NUM_CROPS
        return [
            f"{total - found[split]} of {total} slices of {split or 'all splits'}"
            for split, total in wanted.items()
            if found[split] < total
        ]


class SliceForm(PictureForm):
    """A folder for each nodule, ``LIDC-IDRI-0001/nodule-0/{images,mask-0,mask-1,mask-2,mask-3}/slice-0.png``.

    A reader who drew nothing has an empty mask; a slice that nobody drew is a case as well.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def cases(self) -> list[SourceCase]:
        return [
            case
            for patient in patients_in(self.root)
            for nodule in sorted(patient.iterdir())
            if re.fullmatch(r"nodule-\d+", nodule.name)
            for case in _slices_of(nodule, patient.name)
        ]


def crop_folders(source: Path) -> dict[str | None, Path]:
    """Return the folders with ``images`` and ``gt`` by their split; an empty dictionary when there is none.

    Those of the splits may be called ``train`` or ``lidc_crops_train``, and have one more such folder inside.
    """
    found: dict[str | None, Path] = {}
    for name, split in CROP_FOLDERS.items():
        outer = [source / name, source / f"lidc_crops_{name}"]
        for folder in [*outer, *(entry / name for entry in outer)]:
            if split not in found and (folder / "images").is_dir():
                found[split] = folder
    return found or ({None: source} if patients_in(source / "images") else {})


def _crops_of(images: Path, masks: Path, split: str | None) -> list[SourceCase]:
    drawn: dict[str, dict[int, Path]] = {}
    for name, file in visible_files(masks, [".png"]).items():
        match = re.fullmatch(r"(.+)_l([0-4])", name)
        if match is None:
            raise ValueError(f"Mask {file} must have a name that ends in _l0 to _l3, got {name}; unpack it again.")
        drawn.setdefault(match[1], {})[int(match[2])] = file
    found = visible_files(images, [".png"])
    for name in sorted(drawn.keys() - found.keys()):
        file = next(iter(drawn[name].values()))
        raise ValueError(f"Mask {file} must have an image in {images}, got none; unpack the images again.")
    cases = []
    for name, file in found.items():
        numbers = sorted(drawn.get(name, {}))
        if len(numbers) != READERS or numbers[-1] - numbers[0] != READERS - 1:
            raise ValueError(
                f"Image {file} must have masks of {READERS} readers in {masks}, got {len(numbers)}; unpack them again."
            )
        files = {mask: drawn[name][number] for mask, number in zip(MASKS, numbers, strict=True)}
        cases.append(SourceCase(f"{images.name}_{name}", {"image": file, **files}, images.name, split))
    return cases


def _slices_of(nodule: Path, patient: str) -> list[SourceCase]:
    images = visible_files(nodule / "images", [".png"])
    masks = {name: visible_files(nodule / name, [".png"]) for name in MASKS}
    for name, files in masks.items():
        for odd in sorted(files.keys() ^ images.keys()):
            raise ValueError(
                f"Folders {nodule / 'images'} and {name} beside it must hold the same slices, but only one of them has "
                f"{odd}.png; unpack both again."
            )
    return [
        SourceCase(
            id=f"{patient}_{nodule.name}_{name}",
            files={"image": file, **{mask: files[name] for mask, files in masks.items()}},
            group=patient,
        )
        for name, file in images.items()
    ]


def _open_mask(file: Path, image: np.ndarray) -> np.ndarray:
    mask = open_picture(file, ["L", "1"])
    check_size(mask, image[None], file)
    values = {int(value) for value in np.unique(mask)}
    if not (values <= {0, 1} or values <= {0, 255}):
        found = ", ".join(map(str, sorted(values)[:4]))
        raise ValueError(f"Mask {file} must hold 0 and 255 only, or 0 and 1, got {found}; unpack it again.")
    return mask > 0


def _middle(picture: np.ndarray) -> np.ndarray:
    """Return the middle of a picture ``(width, height)``, 128 x 128 pixels."""
    x, y = ((size - CROP) // 2 for size in picture.shape)
    return picture[x : x + CROP, y : y + CROP]


NUM_SCANS, NUM_PATIENTS = 1018, 1010


class ScanForm(Form):
    """The DICOM files, ``LIDC-IDRI-0001/<study>/<series>/*.dcm``; what study and series are named does not count.

    The XML file of a scan lies in the folder of its series. Where that has none, it is looked for by its series UID in
    all other folders of the source, such as ``tcia-lidc-xml``. Series that are not CT are left out.

    Only the contours of the last scan are kept in memory, and one slice.
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
