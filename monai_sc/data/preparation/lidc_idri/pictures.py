"""LIDC-IDRI as pictures of nodules: the crops of the Probabilistic U-Net, and slices by nodule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from monai_sc.data.preparation.layout import CLEAN, TEST, TRAIN, SourceCase, open_picture, visible_files
from monai_sc.data.preparation.lidc_idri.form import CROP, Drawing, Form, patients_in
from monai_sc.data.preparation.lidc_idri.nodules import READERS
from monai_sc.data.preparation.pictures import check_size

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

    Args:
        folders: with ``images`` and ``gt``, by their split; by ``None`` if there is one only.
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

    Args:
        root: that holds the folders of the patients.
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
