"""The official layout of ISIC 2017, Task 1: dermoscopy images with the mask of a lesion."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from monai_sc.datasets.layout import (
    CLEAN,
    TEST,
    TRAIN,
    Content,
    Layout,
    SourceCase,
    check_new_folder,
    check_size,
    open_label,
    open_rgb,
    refuse_unpaired,
    visible_files,
)
from monai_sc.functional import case_seed


class Isic2017Layout(Layout):
    """ISIC 2017, Task 1, as the folders of the challenge are unpacked.

    The official training, validation and test parts are the splits ``"train"``, ``"clean"`` and ``"test"``. A part that
    is there alone is divided by the preparation instead. The superpixels and the metadata beside the images are not
    read.
    """

    name = "isic2017"
    classes = ("lesion",)
    default_size = (256, 256)
    split_sizes = {TRAIN: 2000, CLEAN: 150, TEST: 600}
    parts = {TRAIN: "ISIC-2017_Training", CLEAN: "ISIC-2017_Validation", TEST: "ISIC-2017_Test_v2"}

    def folders(self, split: str) -> tuple[Path, Path]:
        """Return the folders of the images and of the masks of a split."""
        part = self.parts[split]
        return self.source / f"{part}_Data", self.source / f"{part}_Part1_GroundTruth"

    def cases(self) -> list[SourceCase]:
        here = [split for split in self.parts if any(folder.is_dir() for folder in self.folders(split))]
        if not here:
            raise ValueError(
                f"Folder {self.source} must hold ISIC-2017_Training_Data and ISIC-2017_Training_Part1_GroundTruth, "
                "got neither; give the folder that ISIC 2017 was unpacked in."
            )
        absent = [split for split in self.parts if split not in here]
        if len(here) > 1 and absent:
            raise ValueError(
                f"Folder {self.source} must hold one part of ISIC 2017 or all three, but lacks "
                f"{self.folders(absent[0])[0].name}; unpack it beside the others."
            )
        found: dict[str, SourceCase] = {}
        for split in here:
            folders = self.folders(split)
            images = visible_files(folders[0], [".jpg", ".jpeg"])
            masks = visible_files(folders[1], ["_segmentation.png"])
            refuse_unpaired(images, masks, folders)
            for name, image in images.items():
                if name in found:
                    raise ValueError(f"{found[name].files['image']} and {image} must be one case; delete one of them.")
                files = {"image": image, "mask": masks[name]}
                found[name] = SourceCase(name, files, group=name, split=None if absent else split)
        return [found[name] for name in sorted(found)]

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        phrases = []
        for split, count in self.split_sizes.items():
            folder = self.folders(split)[0]
            lacking = count - sum(case.files["image"].parent == folder for case in cases)
            if lacking > 0:
                phrases.append(f"{lacking} of the {count} images of {folder.name}")
        return phrases

    def read(self, case: SourceCase) -> Content:
        image = open_rgb(case.files["image"])
        mask = open_label(case.files["mask"], [0, 255], ["L", "1"])
        check_size(mask, image, case.files["mask"])
        return Content(image, mask[None] > 0)


LAYOUT = Isic2017Layout


SIZES = ((96, 72), (96, 64), (120, 80))  # width and height; the official images differ in size too
SKIN, LESION = (215, 165, 140), (120, 75, 60)
SUPERPIXEL = 8  # length of its side


def write_isic2017(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write small generated images and masks as ISIC 2017, Task 1, lies after unpacking.

    A split without cases has no folders.
    """
    check_new_folder(out)
    number = 0
    for split, count in num_cases.items():
        if not count:
            continue
        data, truth = Isic2017Layout(out).folders(split)
        names = [f"ISIC_{k:07d}" for k in range(number, number + count)]
        number += count
        for folder in (data, truth):
            folder.mkdir(parents=True)
        for name in names:
            image, mask = _lesion(case_seed(seed, name))
            Image.fromarray(image.swapaxes(0, 1)).save(data / f"{name}.jpg", quality=95)
            Image.fromarray(_superpixels(mask.shape).swapaxes(0, 1)).save(data / f"{name}_superpixels.png")
            Image.fromarray(np.where(mask, np.uint8(255), np.uint8(0)).T).save(truth / f"{name}_segmentation.png")
        with (data / f"{data.name}_metadata.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("image_id", "age_approximate", "sex"), *((n, "unknown", "male") for n in names)]
            )


def _lesion(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image ``(width, height, 3)``, uint8, and the mask of its lesion ``(width, height)``, bool."""
    state = np.random.RandomState(seed % 2**32)
    shape = SIZES[state.randint(len(SIZES))]
    x, y = (axis - state.uniform(0.4, 0.6) * n for axis, n in zip(np.indices(shape), shape, strict=True))
    radius = np.full(shape, state.uniform(0.2, 0.35) * min(shape))
    for waves in (2, 3, 5):
        radius *= 1 + state.uniform(0, 0.3 / waves) * np.cos(waves * np.arctan2(y, x) + state.uniform(0, 2 * np.pi))
    mask = np.hypot(x, y) < radius
    amount = ndimage.gaussian_filter(mask.astype(float), 1.5)[..., None]
    image = np.array(SKIN) * (1 - amount) + np.array(LESION) * amount
    texture = ndimage.gaussian_filter(state.normal(size=shape), 2)
    image += (10 * texture / texture.std())[..., None] + state.normal(scale=5, size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), mask


def _superpixels(shape: tuple[int, ...]) -> np.ndarray:
    """Return the superpixel of each pixel ``(width, height, 3)``, the lowest byte of its number in red."""
    x, y = np.indices(shape) // SUPERPIXEL
    number = x + y * (x.max() + 1)
    return np.stack([number % 256, number // 256, number * 0], axis=-1).astype(np.uint8)
