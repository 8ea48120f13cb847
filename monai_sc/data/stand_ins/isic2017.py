"""A stand-in for ISIC 2017, Task 1: generated lesions of the skin, in the official folders and files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from monai_sc.data.preparation.isic2017 import Isic2017Layout
from monai_sc.data.stand_ins.folder import check_new_folder
from monai_sc.functional import case_seed

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
