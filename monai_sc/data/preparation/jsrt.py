"""JSRT, chest X-rays, with the SCR masks: the official files, and the layout of 256 x 256 PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.data.preparation.layout import CLEAN, TEST, TRAIN, Content, Layout, SourceCase, open_picture, visible_files

__all__ = ["CHEST", "JSRT_PIXEL_MM", "NOISY_FOLDERS", "ORGANS", "RAW_SIZE", "JsrtLayout", "official_names"]

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
    masks, ``masks/left lung/*.gif`` and so on (1024 x 1024). Both may lie anywhere under the source. The splits are
    drawn.

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
            return _phrase(sorted(set(official_names()) - {case.id for case in cases}), "images")
        counts = {split: sum(case.split == split for case in cases) for split in self.split_sizes}
        return [
            f"{counts[split]} of {number} images of the {split} cases"
            for split, number in self.split_sizes.items()
            if counts[split] < number
        ]

    def options(self) -> dict[str, Any]:
        return {"layout": "ready" if self.is_ready else "official"}

    def read(self, case: SourceCase) -> Content:
        files = case.files
        image = _grey(files["image"])[None] if self.is_ready else _raw(files["image"])[None]
        masks = {name: _mask(file) for name, file in files.items() if name != "image"}
        shapes = {mask.shape for mask in masks.values()} | ({image.shape[1:]} if self.is_ready else set())
        if len(shapes) > 1:
            found = ", ".join(f"{files[name]} {mask.shape}" for name, mask in masks.items())
            own = f", the image {files['image']} {image.shape[1:]}" if self.is_ready else ""
            raise ValueError(f"The masks of a case must have one size, got {found}{own}.")
        organs = {name: (name,) for name in CHEST} if self.is_ready else ORGANS
        labels = np.stack([np.any([masks[part] for part in organs[name]], axis=0) for name in CHEST])
        noisy = np.stack([masks[name] for name in NOISY_FOLDERS]) if NOISY_FOLDERS[0] in masks else None
        return Content(image, labels, noisy)

    def _official_cases(self) -> list[SourceCase]:
        images = {file.stem: file for file in _found(self.source, ".img")}
        folds = [folder for folder in self.source.rglob("fold[12]") if (folder / "masks").is_dir()]
        if not images or not folds:
            lacking = "the .IMG files of JSRT" if not images else "the folders fold1/masks and fold2/masks of SCR"
            raise ValueError(
                f"{self.source} must hold the .IMG files of JSRT and the folders fold1 and fold2 of SCR (or folders "
                f"images_train and so on), got none of {lacking}."
            )
        masks: dict[str, dict[str, Path]] = {}
        for fold in sorted(folds):
            for organ in (part for parts in ORGANS.values() for part in parts):
                for name, file in visible_files(fold / "masks" / organ, [".gif"]).items():
                    masks.setdefault(name, {})[organ] = file
        cases = []
        for name in sorted(images.keys() | masks.keys()):
            if name not in images:
                raise ValueError(f"{next(iter(masks[name].values()))} has no image {name}.IMG under {self.source}.")
            lacking = [organ for parts in ORGANS.values() for organ in parts if organ not in masks.get(name, {})]
            if lacking:
                raise ValueError(f"{images[name]} has no mask masks/{lacking[0]}/{name}.gif in a fold of SCR.")
            cases.append(SourceCase(name, {"image": images[name], **masks[name]}, name))
        return cases

    def _ready_cases(self) -> list[SourceCase]:
        cases = []
        for folder, split in READY_SPLITS.items():
            files = {"image": visible_files(self.source / f"images_{folder}", [".png"])}
            files |= {name: visible_files(self.source / f"{name}_gts_{folder}", [".png"]) for name in CHEST}
            if split == TRAIN and (self.source / NOISY_FOLDERS[0]).exists():
                files |= {name: visible_files(self.source / name, [".png"]) for name in NOISY_FOLDERS}
            for kind, own in files.items():
                for name in sorted(own.keys() ^ files["image"].keys()):
                    have, lacks = ("image", kind) if name in files["image"] else (kind, "image")
                    where = next(iter(files[lacks].values()), self.source / "x").parent
                    raise ValueError(f"{files[have][name]} has no file of the same name in {where}.")
            for name in sorted(files["image"]):
                cases.append(SourceCase(name, {kind: own[name] for kind, own in files.items()}, name, split))
        return cases


def official_names() -> list[str]:
    """Return the names of the 247 images: 154 with a nodule, 93 without."""
    return [f"JPCLN{k:03d}" for k in range(1, 155)] + [f"JPCNN{k:03d}" for k in range(1, 94)]


def _found(folder: Path, suffix: str) -> list[Path]:
    files = [f for f in sorted(folder.rglob("*")) if f.suffix.lower() == suffix and not f.name.startswith(".")]
    for file in files:
        if twins := [other for other in files if other.stem == file.stem and other != file]:
            raise ValueError(f"{file} and {twins[0]} must be one file, not two; delete one of them.")
    return files


def _raw(file: Path) -> np.ndarray:
    expected = RAW_SIZE * RAW_SIZE * 2
    if file.stat().st_size != expected:
        raise ValueError(
            f"Image {file} must have {expected} bytes, 2048 x 2048 numbers of 16 bits, got {file.stat().st_size}; copy "
            "it again from its source."
        )
    values = np.fromfile(file, dtype=">u2").reshape(RAW_SIZE, RAW_SIZE)
    if values.max() > RAW_MAXIMUM:
        raise ValueError(f"Image {file} must hold numbers of 12 bits, 0 to {RAW_MAXIMUM}, got {values.max()}.")
    return ((RAW_MAXIMUM - values.T.astype(np.float32)) * (255 / RAW_MAXIMUM)).astype(np.float32)


def _grey(file: Path) -> np.ndarray:
    return open_picture(file, ["L"])


def _mask(file: Path) -> np.ndarray:
    values = open_picture(file, ["L", "P", "1"])
    stray = np.setdiff1d(np.unique(values), [0, 255])
    if values.dtype == bool:
        return values
    if len(stray):
        raise ValueError(f"Mask {file} must hold 0 and 255 only, got {', '.join(map(str, stray[:4]))}.")
    return values > 0


def _phrase(names: Sequence[str], what: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"the {what} {', '.join(names[:3])}{more}"]
