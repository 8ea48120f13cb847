"""The official layout of Cityscapes: street scenes with fine and coarse labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from monai_sc.data.preparation.layout import CLEAN, TEST, TRAIN, Content, Layout, SourceCase, visible_files
from monai_sc.data.preparation.pictures import check_size, open_label, open_rgb, refuse_unpaired
from monai_sc.functional import case_seed

CAR = 26
LABEL_IDS = range(34)
IMAGE_SUFFIX = "_leftImg8bit.png"


class CityscapesLayout(Layout):
    """Cityscapes, as its packages leftImg8bit, gtFine and gtCoarse are unpacked into one folder.

    The label is where gtFine is a car, its noisy version where gtCoarse is. An image counts when cars are at least
    ``min_car_share`` of the pixels of gtFine. The paper keeps 2086 of the 2975 training images, of which 100 are clean,
    and 350 of the 500 validation images, by a rule that is not known here; so the number of cases depends on
    ``min_car_share`` and need not be that of the paper.

    The official validation part is the split ``"test"``. Of the training part, 100 cases are ``"clean"``: those whose
    id, with ``seed``, has the smallest hash. Where the training part lacks images, this number is in proportion, but
    at least 1. A part that is there alone is divided by the preparation instead. The official test part, whose labels
    are not public, and train_extra are not read. A frame is a group of its own: some cities are one long sequence.

    Args:
        source: the folder with ``leftImg8bit``, ``gtFine`` and ``gtCoarse``.
        min_car_share: of the pixels of an image, in ``[0, 1]``; 0 keeps images without a car.
        seed: of the choice of the clean cases.

    Raises:
        ValueError: when ``min_car_share`` is out of range.
    """

    name = "cityscapes"
    classes = ("car",)
    default_size = (512, 256)
    split_sizes = {TRAIN: 1986, CLEAN: 100, TEST: 350}
    parts = {"train": 2975, "val": 500}  # with the official number of images

    def __init__(self, source: Path, *, min_car_share: float = 0.01, seed: int = 0) -> None:
        super().__init__(source)
        if not 0 <= min_car_share <= 1:
            raise ValueError(f"min_car_share must be a share of the pixels, in [0, 1], got {min_car_share}.")
        self.min_car_share = float(min_car_share)
        self.seed = seed

    def cases(self) -> list[SourceCase]:
        """Return the cases with enough cars, ordered by their id; this reads gtFine of every image.

        Raises:
            ValueError: in one sentence with the file or folder, when the folder does not have this layout, a case
                lacks a file, gtFine of an image cannot be used, or no image of a part has enough cars.
        """
        here = [part for part in self.parts if (self.source / "leftImg8bit" / part).is_dir()]
        if not here:
            raise ValueError(
                f"Folder {self.source} must hold leftImg8bit/train, got neither that nor leftImg8bit/val; give the "
                "folder that leftImg8bit, gtFine and gtCoarse were unpacked in."
            )
        found = []
        for part in here:
            kept = [case for case in self._paired(part) if self._car_share(case) >= self.min_car_share]
            if not kept:
                raise ValueError(
                    f"Folder {self.source / 'gtFine' / part} must hold an image with a share of car pixels of at least "
                    f"{self.min_car_share:g}, got none; lower min_car_share."
                )
            clean = self._clean_ids(kept) if part == "train" else set()
            for case in kept:
                split = TEST if part == "val" else CLEAN if case.id in clean else TRAIN
                found.append(SourceCase(case.id, case.files, case.group, split if len(here) > 1 else None))
        return sorted(found, key=lambda case: case.id)

    def _paired(self, part: str) -> list[SourceCase]:
        """Return the cases of a part, with and without cars."""
        images = self._files("leftImg8bit", part, IMAGE_SUFFIX)
        labels = {kind: self._files(kind, part, f"_{kind}_labelIds.png") for kind in ("gtFine", "gtCoarse")}
        for kind, files in labels.items():
            refuse_unpaired(images, files, (self.source / "leftImg8bit" / part, self.source / kind / part))
        return [
            SourceCase(name, {"image": image, **{kind: files[name] for kind, files in labels.items()}}, group=name)
            for name, image in images.items()
        ]

    def _files(self, kind: str, part: str, suffix: str) -> dict[str, Path]:
        """Return the files of all cities by the name of their frame."""
        folder = self.source / kind / part
        if not folder.is_dir():
            raise ValueError(f"Folder {folder} does not exist; unpack {kind} of Cityscapes beside its other packages.")
        cities = [city for city in sorted(folder.iterdir()) if city.is_dir() and not city.name.startswith(".")]
        return visible_files(cities, [suffix])

    def _car_share(self, case: SourceCase) -> float:
        return float(np.mean(_open_ids(case.files["gtFine"]) == CAR))

    def _clean_ids(self, kept: Sequence[SourceCase]) -> set[str]:
        images = len(self._files("leftImg8bit", "train", IMAGE_SUFFIX))
        count = max(1, round(self.split_sizes[CLEAN] * images / self.parts["train"]))
        return set(sorted((case.id for case in kept), key=lambda name: case_seed(self.seed, name))[:count])

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        """Return which images the folder lacks; images with too few cars do not count as missing."""
        phrases = []
        for part, count in self.parts.items():
            is_here = (self.source / "leftImg8bit" / part).is_dir()
            lacking = count - (len(self._files("leftImg8bit", part, IMAGE_SUFFIX)) if is_here else 0)
            if lacking > 0:
                phrases.append(f"{lacking} of the {count} images of leftImg8bit/{part}, with their gtFine and gtCoarse")
        return phrases

    def read(self, case: SourceCase) -> Content:
        image = open_rgb(case.files["image"])
        labels = {kind: _open_ids(case.files[kind]) for kind in ("gtFine", "gtCoarse")}
        for kind, label in labels.items():
            check_size(label, image, case.files[kind])
        return Content(image, labels["gtFine"][None] == CAR, noisy=labels["gtCoarse"][None] == CAR)

    def options(self) -> dict[str, float]:
        return {"min_car_share": self.min_car_share}


LAYOUT = CityscapesLayout


def _open_ids(file: Path) -> np.ndarray:
    return open_label(file, LABEL_IDS, ["L"])
