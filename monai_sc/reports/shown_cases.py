"""The cases that a picture shows."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from PIL import Image, ImageOps

from monai_sc.files.read import read_image, why_turned
from monai_sc.files.write import WRITABLE, file_suffix, without_suffix
from monai_sc.store.label_store import LabelStore

IMAGES = (*WRITABLE, ".jpg", ".jpeg")


class ShownCases(Sequence[dict[str, Any]]):
    """Cases of a store as :py:func:`~monai_sc.reports.plot_correction` draws them, each read when it is asked for.

    They are those whose labels the current round changed most and least, and evenly between; in round 0, those at even
    distances in the list.
    """

    def __init__(self, store: LabelStore, num_cases: int) -> None:
        self.store = store
        self.number = store.current
        ids = [str(case["id"]) for case in store.cases]
        if self.number:
            changed = {entry["case"]: sum(entry["voxels_changed"]) for entry in store.manifest(self.number)}
            ids.sort(key=lambda case_id: -changed[case_id])
        self.ids = [ids[i] for i in np.unique(np.linspace(0, len(ids) - 1, num_cases).round().astype(int))]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        case_id = self.ids[index]
        image = read_image(self.store.case(case_id)["image"], f"Image of case {case_id!r}")
        return {
            "id": case_id,
            "image": image.numpy()[0],
            "given": self.store.read(case_id, 0),
            "corrected": self.store.read(case_id, self.number) if self.number else None,
            "clean": self.store.read_clean(case_id),
        }


def find_image(name: str, shape: tuple[int, ...], folder: PathLike | None) -> np.ndarray | None:
    """Return the image ``(*spatial)`` of a label file, ``None`` where there is none that fits.

    Raises:
        ValueError: when the image cannot be read.
    """
    if folder is None:
        return None
    stem = Path(folder) / without_suffix(name)
    for file in [f for end in ("", "_0000") for f in sorted(stem.parent.glob(f"{glob.escape(stem.name)}{end}.*"))]:
        if without_suffix(file.name) not in (stem.name, f"{stem.name}_0000") or file_suffix(file) not in IMAGES:
            continue
        image = _upright(file) if why_turned(file) else read_image(file, f"Image file {file}").numpy()[0]
        if image.shape == shape:
            return np.asarray(image)
    return None


def _upright(file: Path) -> np.ndarray:
    """Return the grey values ``(width, height)`` of a picture as a viewer shows it."""
    with Image.open(file) as picture:
        return np.asarray(ImageOps.exif_transpose(picture).convert("F")).T
