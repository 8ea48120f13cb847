"""Generated chest X-rays in the layouts of JSRT with SCR."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from monai_sc.data.preparation.jsrt import CHEST, NOISY_FOLDERS, ORGANS, RAW_SIZE, official_names
from monai_sc.data.stand_ins.folder import check_new_folder
from monai_sc.functional import case_seed
from monai_sc.transforms.noise import noise_preset

MASK_SIZE, SMALL = 1024, 256
# Centre and half axes of each organ, in parts of the image: (x, y, half width, half height).
ELLIPSES = {
    "right lung": (0.29, 0.47, 0.15, 0.30),
    "left lung": (0.71, 0.47, 0.15, 0.30),
    "heart": (0.55, 0.62, 0.16, 0.15),
    "right clavicle": (0.30, 0.19, 0.16, 0.035),
    "left clavicle": (0.70, 0.19, 0.16, 0.035),
}
BRIGHTNESS = {"right lung": -0.35, "left lung": -0.35, "heart": 0.3, "right clavicle": 0.25, "left clavicle": 0.25}


def write_jsrt(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write ``.IMG`` files of 2048 x 2048 and, in ``scratch/fold1`` and ``fold2``, GIF masks of 1024 x 1024.

    Of ``num_cases`` only the sum counts, since JSRT has no splits; more than its 247 are a ``ValueError``.
    """
    _begin(out, num_cases)
    (out / "All247images").mkdir()
    for number, name in enumerate(official_names()[: sum(num_cases.values())]):
        image, masks = _chest(case_seed(seed, name))
        raw = np.rint(4095 * (1 - image)).astype(">u2")
        np.kron(raw, np.ones((RAW_SIZE // SMALL,) * 2, ">u2")).astype(">u2").tofile(
            out / "All247images" / f"{name}.IMG"
        )
        for organ, mask in masks.items():
            folder = out / "scratch" / f"fold{1 + number % 2}" / "masks" / organ
            folder.mkdir(parents=True, exist_ok=True)
            large = np.kron(mask, np.ones((MASK_SIZE // SMALL,) * 2, bool))
            Image.fromarray(255 * large.astype(np.uint8)).save(folder / f"{name}.gif")


def write_jsrt_ready(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write 256 x 256 PNG files in ``images_train`` and so on, with noisy masks of the training cases.

    More cases than the 247 of JSRT are a ``ValueError``.
    """
    _begin(out, num_cases)
    noise = noise_preset("jsrt-expand")
    names = iter(official_names())
    for split, folder in (("train", "train"), ("clean", "val"), ("test", "test")):
        for name in (next(names) for _ in range(num_cases[split])):
            image, organs = _chest(case_seed(seed, name))
            masks = np.stack([np.any([organs[part] for part in ORGANS[organ]], axis=0) for organ in CHEST])
            pictures = {f"images_{folder}": 255 * image}
            pictures |= {f"{organ}_gts_{folder}": 255 * mask for organ, mask in zip(CHEST, masks, strict=True)}
            if split == "train":
                noisy = np.asarray(noise.make_noisy(masks, case_seed(seed, name)))
                pictures |= {name: 255 * mask for name, mask in zip(NOISY_FOLDERS, noisy, strict=True)}
            for where, picture in pictures.items():
                (out / where).mkdir(exist_ok=True)
                Image.fromarray(np.rint(picture).astype(np.uint8)).save(out / where / f"{name}.png")


def _begin(out: Path, num_cases: Mapping[str, int]) -> None:
    if sum(num_cases.values()) > len(official_names()):
        raise ValueError(f"num_cases must be {len(official_names())} in all or fewer, got {sum(num_cases.values())}.")
    check_new_folder(out)


def _chest(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return an image ``(rows, columns)`` in ``[0, 1]``, and the mask of each organ."""
    rng = np.random.default_rng(seed)
    y, x = (np.indices((SMALL, SMALL)) + 0.5) / SMALL
    shift = rng.normal(0, 0.02, 2)
    image = np.full((SMALL, SMALL), 0.5)
    masks = {}
    for organ, (cx, cy, width, height) in ELLIPSES.items():
        centre = np.array([cx, cy]) + shift + rng.normal(0, 0.008, 2)
        half = np.array([width, height]) * rng.uniform(0.88, 1.12, 2)
        masks[organ] = ((x - centre[0]) / half[0]) ** 2 + ((y - centre[1]) / half[1]) ** 2 <= 1
        image += BRIGHTNESS[organ] * masks[organ]
    image = ndimage.gaussian_filter(image, 2.5) + ndimage.gaussian_filter(rng.normal(size=image.shape), 8) * 0.8
    return np.clip(image + rng.normal(0, 0.03, image.shape), 0, 1), masks
