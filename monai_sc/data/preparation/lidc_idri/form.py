"""What the forms share that LIDC-IDRI is passed on in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monai_sc.data.preparation.layout import SourceCase

CROP = 128
"""Width and height of the image of a case, in pixels."""


@dataclass(frozen=True)
class Drawing:
    """One slice of a nodule, as its readers drew it.

    Attributes:
        image: ``(width, height)``.
        masks: ``(readers, width, height)``, bool; at least four readers, all False for one who drew nothing.
        affine: ``(4, 4)``, of pixels to mm in RAS; ``None`` for a picture.
    """

    image: np.ndarray
    masks: np.ndarray
    affine: np.ndarray | None = None

    def at_least(self, readers: int) -> np.ndarray:
        """Return the pixels ``(width, height)`` that at least so many readers drew, bool."""
        return np.asarray(self.masks.sum(axis=0) >= readers)


class Form(ABC):
    """One form of the data set in one folder."""

    @abstractmethod
    def cases(self) -> list[SourceCase]:
        """Return the cases in any order; see :py:meth:`monai_sc.data.preparation.layout.Layout.cases`."""

    @abstractmethod
    def read(self, case: SourceCase) -> Drawing:
        """Return the content of one case.

        Raises:
            ValueError: in one sentence with the file, when one cannot be used.
        """

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        """Return what the official data set has and the folder lacks; see the layout."""
        return []


def patients_in(folder: Path) -> list[Path]:
    """Return the folders of patients in a folder, such as ``LIDC-IDRI-0001``, by their name."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in found if re.fullmatch(r"LIDC-IDRI-\d{4}", entry.name) and entry.is_dir()]
