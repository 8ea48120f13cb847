"""Regions that overlap, each the union of some values of a label map, as nnU-Net trains them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

DESCRIPTION = "dataset.json"  # of nnU-Net


class Regions:
    """What the channels of predictions mean, whose values do not exclude each other.

    Attributes:
        values: of all of them, sorted.

    Raises:
        ValueError: when they are no sets of whole numbers over 0, or two of them are equal.
    """

    def __init__(self, sets: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> None:
        try:
            self.sets = [tuple(dict.fromkeys(int(value) for value in own if _is_value(value))) for own in sets]
            is_sound = [len(own) for own in self.sets] == [len(own) for own in sets]
        except TypeError:
            is_sound = False
        if not is_sound or not self.sets or not all(self.sets) or len(set(map(frozenset, self.sets))) < len(self.sets):
            raise ValueError(
                f"regions must be the values of each channel, whole numbers over 0, such as 1+2,1,2, got {sets!r}."
            )
        self.names = ["+".join(map(str, own)) for own in self.sets] if names is None else list(names)
        self.values = sorted({value for own in self.sets for value in own})
        # (1 + values, channels): which regions hold the background and each value
        self.members = np.array([[value in own for own in self.sets] for value in (0, *self.values)])

    def masks(self, codes: np.ndarray) -> np.ndarray:
        """Return the mask of each region as booleans ``(channels, *spatial)``.

        Args:
            codes: ``(*spatial)``: 0, and 1, 2, ... for :py:attr:`values`; under 0 in none.
        """
        return np.stack([self.members[:, k][np.maximum(codes, 0)] for k in range(len(self.sets))])

    def codes(self, masks: np.ndarray, given: np.ndarray, dice: Sequence[float | None] | None = None) -> np.ndarray:
        """Return the label map that fits masks best: every voxel is in as few wrong regions as possible.

        A region counts the more, the better it is known: by ``-log(1 - dice)``. Of values that fit alike, the given one
        counts, else the one in most regions.

        Args:
            masks: boolean ``(channels, *spatial)``.
            given: the label map before ``(*spatial)``, as of :py:meth:`masks`.
            dice: of each region to the truth, as far as it is known; ``None`` is the mean of the others.
        """
        scores = np.array([np.nan] * len(self.sets) if dice is None else dice, dtype=float)
        unknown = np.isnan(scores)
        scores[unknown] = 0.5 if unknown.all() else scores[~unknown].mean()
        weights = -np.log(1 - np.clip(scores, 0.1, 0.99))
        weights /= weights.sum()
        result = given.copy()
        moved = (masks != self.masks(given)).any(axis=0)
        wrong = (masks[:, moved].T[:, None] != self.members) @ weights  # (voxels, values)
        wrong -= 1e-4 * self.members.mean(axis=1)
        own = given[moved]
        wrong[np.flatnonzero(own >= 0), own[own >= 0]] -= 1e-3
        result[moved] = wrong.argmin(axis=1)
        return result


def _is_value(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def read_regions(text: str) -> list[list[int]]:
    """Return the regions that a text such as ``1+2,1,2`` names.

    Raises:
        ValueError: when it names none.
    """
    try:
        return [[int(value) for value in own.split("+")] for own in text.split(",")]
    except ValueError as error:
        raise ValueError(f"regions must be the values of each channel, such as 1+2,1,2, got {text!r}.") from error


def described_regions(*folders: Path) -> Regions | None:
    """Return the regions that the ``dataset.json`` of nnU-Net names, in or beside one of some folders, if it has any.

    Raises:
        ValueError: when the file is damaged.
    """
    for file in (place / DESCRIPTION for folder in folders for place in (folder, folder.resolve().parent)):
        if not file.is_file():
            continue
        try:
            labels = json.loads(file.read_text(encoding="utf-8")).get("labels")
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(f"{file} must be the JSON of nnU-Net, got {error}; correct it.") from error
        if not isinstance(labels, dict) or not any(isinstance(own, list) and len(own) > 1 for own in labels.values()):
            continue
        sets = {name: own if isinstance(own, list) else [own] for name, own in labels.items() if name != "ignore"}
        sets = {name: own for name, own in sets.items() if own != [0]}
        try:
            return Regions(list(sets.values()), list(sets))
        except ValueError as error:
            raise ValueError(f"{file} cannot be used: {error}") from error
    return None
