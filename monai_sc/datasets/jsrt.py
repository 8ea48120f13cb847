"""JSRT, chest X-rays, with the SCR masks: the official files, and the layout of 256 x 256 PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    folders_below,
    open_label,
    open_picture,
    refuse_unpaired,
    visible_files,
)
from monai_sc.functional import case_seed
from monai_sc.transforms.noise import noise_preset

JSRT_PIXEL_MM = 0.175 * 2048 / 256
"""Size of a pixel of 256 x 256 files in mm: the films were scanned at 0.175 mm and 2048 x 2048."""

CHEST = ("lung", "heart", "clavicle")
ORGANS = {
    "lung": ("left lung", "right lung"),
    "heart": ("heart",),
    "clavicle": ("left clavicle", "right clavicle"),
}
NOISY_FOLDERS = ("lung_180_0.8_0.05_0.2", "heart_180_0.8_0.05_0.2", "clavicle_100_0.8_0.02_0.2")
READY_SPLITS = {"train": TRAIN, "val": CLEAN, "test": TEST}
RAW_SIZE = 2048
RAW_MAXIMUM = 4095  # 12 bits


class JsrtLayout(Layout):
    """JSRT with SCR, in one of two layouts.

    The official one: the ``.IMG`` files of JSRT (2048 x 2048 numbers of 16 bits, big-endian, of which 12 are used; a
    bright pixel is a small number, which is turned round), and the folders ``fold1`` and ``fold2`` of SCR with the
    masks, ``masks/left lung/*.gif`` and so on (1024 x 1024). Both may lie anywhere under the source, behind links too.
    The splits are drawn. An official image that is not there, or none of whose masks is, counts as missing.

    The ready one: 256 x 256 PNG files in ``images_{train,val,test}`` and ``{lung,heart,clavicle}_gts_{train,val,test}``
    with the same names, masks of 0 and 255; where they are there, the released noisy masks of the training cases in
    ``lung_180_0.8_0.05_0.2`` and so on. The splits are those of the folders.
    """

    name = "jsrt"
    classes = CHEST
    default_size = (256, 256)
    split_sizes = {TRAIN: 148, CLEAN: 24, TEST: 75}

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.is_ready = (source / "images_train").is_dir()

    def cases(self) -> list[SourceCase]:
        return self._ready_cases() if self.is_ready else self._official_cases()

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        if not self.is_ready:
            present, names = {case.id for case in cases}, official_names()
            absent = [name for name in names if name not in present]
            some = ", ".join([*absent[:3], *(["..."] if len(absent) > 3 else [])])
            return [f"{len(absent)} of the {len(names)} images or all their masks: {some}"] if absent else []
        lacking = {split: size - sum(case.split == split for case in cases) for split, size in self.split_sizes.items()}
        return [
            f"{number} of the {self.split_sizes[split]} images of the {split} cases"
            for split, number in lacking.items()
            if number > 0
        ]

    def options(self) -> dict[str, Any]:
        return {"layout": "ready" if self.is_ready else "official"}

    def read(self, case: SourceCase) -> Content:
        files = case.files
        image = open_picture(files["image"], ["L"])[None] if self.is_ready else _raw(files["image"])[None]
        masks = {
            name: open_label(file, [0, 255], ["L", "P", "1"]) > 0 for name, file in files.items() if name != "image"
        }
        shapes = {mask.shape for mask in masks.values()} | ({image.shape[1:]} if self.is_ready else set())
        if len(shapes) > 1:
            found = ", ".join(f"{files[name]} {mask.shape}" for name, mask in masks.items())
            own = f", the image {files['image']} {image.shape[1:]}" if self.is_ready else ""
            raise ValueError(f"The masks of a case must have one size, got {found}{own}.")
        width, height = shapes.pop()
        if not self.is_ready and width != height:
            raise ValueError(
                f"Mask {files[CHEST[1]]} must be square, as its image is, got {width} x {height}; unpack SCR again."
            )
        organs = {name: (name,) for name in CHEST} if self.is_ready else ORGANS
        labels = np.stack([np.any([masks[part] for part in organs[name]], axis=0) for name in CHEST])
        noisy = np.stack([masks[name] for name in NOISY_FOLDERS]) if NOISY_FOLDERS[0] in masks else None
        return Content(image, labels, noisy)

    def _official_cases(self) -> list[SourceCase]:
        folders = folders_below(self.source)
        images = visible_files(folders, [".img"])
        organs: dict[str, list[Path]] = {}
        for folder in folders:
            if folder.parent.name.lower() == "masks" and folder.parent.parent.name.lower() in ("fold1", "fold2"):
                organs.setdefault(folder.name.lower(), []).append(folder)
        if not images or not organs:
            raise ValueError(
                f"Folder {self.source} must hold the .IMG files of JSRT and the folders fold1/masks and fold2/masks of "
                f"SCR, or images_train and so on, got no {'masks' if images else '.IMG file'}; give the folder that "
                "both were unpacked in."
            )
        masks: dict[str, dict[str, Path]] = {}
        for organ, own in organs.items():
            for name, file in visible_files(own, [".gif"]).items():
                masks.setdefault(name, {})[organ] = file
        official = set(official_names())
        cases = []
        for name in sorted(images.keys() | masks.keys()):
            if name in official and (name not in images or name not in masks):
                continue  # missing, not broken
            if name not in images:
                raise ValueError(
                    f"Mask {next(iter(masks[name].values()))} must have an image {name}.IMG under {self.source}, got "
                    "none; unpack JSRT again, or delete the masks of that name."
                )
            absent = [organ for parts in ORGANS.values() for organ in parts if organ not in masks.get(name, {})]
            if absent:
                raise ValueError(
                    f"Image {images[name]} must have a mask masks/{absent[0]}/{name}.gif in fold1 or fold2 of SCR, got "
                    "none; unpack SCR again, or delete the image."
                )
            cases.append(SourceCase(name, {"image": images[name], **masks[name]}, name))
        if not cases:
            raise ValueError(
                f"Folder {self.source} must hold an image with all its masks, got none; unpack both again."
            )
        return cases

    def _ready_cases(self) -> list[SourceCase]:
        cases = []
        for folder, split in READY_SPLITS.items():
            folders = {"image": f"images_{folder}"} | {name: f"{name}_gts_{folder}" for name in CHEST}
            if split == TRAIN and (self.source / NOISY_FOLDERS[0]).exists():
                folders |= {name: name for name in NOISY_FOLDERS}
            files = {kind: visible_files(self.source / name, [".png"]) for kind, name in folders.items()}
            for kind, name in folders.items():
                refuse_unpaired(files["image"], files[kind], (self.source / folders["image"], self.source / name))
            for name in sorted(files["image"]):
                cases.append(SourceCase(name, {kind: own[name] for kind, own in files.items()}, name, split))
        return cases


LAYOUT = JsrtLayout


def official_names() -> list[str]:
    """Return the names of the 247 images: 154 with a nodule, 93 without."""
    return [f"JPCLN{k:03d}" for k in range(1, 155)] + [f"JPCNN{k:03d}" for k in range(1, 94)]


def _raw(file: Path) -> np.ndarray:
    expected = RAW_SIZE * RAW_SIZE * 2
    if file.stat().st_size != expected:
        raise ValueError(
            f"Image {file} must have {expected} bytes, 2048 x 2048 numbers of 16 bits, got {file.stat().st_size}; copy "
            "it again from its source."
        )
    values = np.frombuffer(file.read_bytes(), dtype=">u2").reshape(RAW_SIZE, RAW_SIZE)
    if values.max() > RAW_MAXIMUM:
        raise ValueError(f"Image {file} must hold numbers of 12 bits, 0 to {RAW_MAXIMUM}, got {values.max()}.")
    return ((RAW_MAXIMUM - values.T.astype(np.float32)) * (255 / RAW_MAXIMUM)).astype(np.float32)


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
