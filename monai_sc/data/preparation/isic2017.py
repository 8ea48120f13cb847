"""The official layout of ISIC 2017, Task 1: dermoscopy images with the mask of a lesion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from monai_sc.data.preparation.layout import CLEAN, TEST, TRAIN, Content, Layout, SourceCase, visible_files
from monai_sc.data.preparation.pictures import check_size, open_label, open_rgb, refuse_unpaired


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
