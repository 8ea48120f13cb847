"""LIDC-IDRI as it is downloaded: lung nodules in CT that four readers drew, each for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.datasets.layout import CLEAN, TEST, TRAIN, Content, Layout, SourceCase, visible_files
from monai_sc.datasets.lidc_idri.forms import (
    CROP,
    NUM_CROPS,
    CropForm,
    Drawing,
    Form,
    ScanForm,
    SliceForm,
    crop_folders,
    patients_in,
)
from monai_sc.datasets.lidc_idri.nodules import READERS
from monai_sc.functional.checks import check_choice

ANNOTATORS = tuple(f"annotator-{reader + 1}" for reader in range(READERS))
NOISY = ("union", "intersection", *ANNOTATORS)


class LidcIdriLayout(Layout):
    """LIDC-IDRI (Armato et al. 2011, Med. Phys. 38, 915), in one of three forms, found by the names of its folders.

    - The scans of The Cancer Imaging Archive; see :py:class:`monai_sc.datasets.lidc_idri.forms.ScanForm`. The
      image of a case is in Hounsfield units, and has geometry.
    - The crops of the Probabilistic U-Net, whose own splits are taken; see
      :py:class:`monai_sc.datasets.lidc_idri.forms.CropForm`.
    - Pictures by patient and nodule; see :py:class:`monai_sc.datasets.lidc_idri.forms.SliceForm`.

    Folders of patients may lie in ``source``, or in a folder ``LIDC-IDRI`` inside. A case is one slice of one nodule
    that at least one reader drew, 128 x 128 pixels; the label is empty where fewer than ``agreement`` readers drew the
    same. A nodule larger than the image is cut off. All slices of a patient are one group.

    The readers of an XML file have no names: the first of one scan need not be the first of another.

    Args:
        source: the folder as it was unpacked.
        agreement: readers who must have drawn a pixel for it to be in the label, 1 to 4; 3 is the strict majority.
        noisy: the noisy label: ``"union"`` or ``"intersection"`` of all readers, or what one drew, ``"annotator-1"``
            to ``"annotator-4"``.
        gaps: take scans whose slices are not evenly spaced; a download may lack slices.

    Raises:
        ValueError: when ``agreement`` or ``noisy`` is not one of these.
    """

    name = "lidc_idri"
    classes = ("nodule",)
    default_size = (CROP, CROP)
    split_sizes = {split: NUM_CROPS[split] for split in (TRAIN, CLEAN, TEST)}

    def __init__(self, source: Path, *, agreement: int = 3, noisy: str = "union", gaps: bool = False) -> None:
        super().__init__(source)
        self.agreement = check_choice(agreement, range(1, READERS + 1), "agreement")
        self.noisy = check_choice(noisy, NOISY, "noisy")
        self.gaps = gaps

    def cases(self) -> list[SourceCase]:
        found = sorted(self._form.cases(), key=lambda case: case.id)
        if not found:
            raise ValueError(f"Folder {self.source} must hold a nodule with an outline, got none; unpack it again.")
        return found

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        return self._form.missing(cases)

    def read(self, case: SourceCase) -> Content:
        drawing = self._form.read(case)
        return Content(
            image=drawing.image[None],
            labels=drawing.at_least(self.agreement)[None],
            noisy=self._noisy_of(drawing)[None],
            affine=drawing.affine,
        )

    def options(self) -> dict[str, Any]:
        return {"agreement": self.agreement, "noisy": self.noisy, "gaps": self.gaps}

    def _noisy_of(self, drawing: Drawing) -> np.ndarray:
        if self.noisy in ANNOTATORS:
            return np.asarray(drawing.masks[ANNOTATORS.index(self.noisy)])
        return drawing.at_least(1 if self.noisy == "union" else len(drawing.masks))

    @cached_property
    def _form(self) -> Form:
        visible_files(self.source, ())  # which refuses a folder that does not exist
        crops = crop_folders(self.source)
        if crops:
            return CropForm(crops)
        for root in (self.source, self.source / "LIDC-IDRI"):
            patients = patients_in(root)
            if any(entry.name.startswith("nodule-") for patient in patients for entry in patient.iterdir()):
                return SliceForm(root)
            if patients:
                return ScanForm(self.source, root, gaps=self.gaps)
        raise ValueError(
            f"Folder {self.source} must hold LIDC-IDRI, folders of patients such as LIDC-IDRI-0001, or train, val and "
            "test with images and gt, got none of them; name the folder that holds them."
        )
