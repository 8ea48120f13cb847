"""What each shift of a boundary would do to the Dice of each clean case."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from monai_sc.functional.distance import has_boundary

STEP = 0.25  # voxels between the shifts that are tried
REACH = 30.0  # voxels: largest shift that is tried
EPS = 1e-4  # voxels: by which distances may differ where only the unit of the spacing differs
LEFT = 0.5  # a shift that leaves less of an object than this is refused, unless clean labels are as much smaller


class ShiftCounts(NamedTuple):
    """The voxels of one case and class: of the mask by shift, those of them in the clean label, and of the label."""

    moved: np.ndarray
    common: np.ndarray
    true: int


class ShiftTable:
    """What each shift would do to the Dice of each clean case, for one class.

    The shifts are those of a grid of a quarter of a voxel within ``reach``. A case costs one signed distance, whatever
    the number of shifts: the voxels are counted by their distance, in the label and out of it.

    Args:
        reach: largest shift, in voxels.
        counts: of the cases, from :py:meth:`count`; ``None`` for a case without a mask to move.
    """

    def __init__(self, reach: float, counts: Sequence[ShiftCounts | None] = ()) -> None:
        self._rows: np.ndarray | None = None  # of the cases that say what is left; all of them
        steps = int(np.floor(reach / STEP + 1e-6))
        self.shifts = STEP * np.arange(-steps, steps + 1)
        self.still = steps
        empty = ShiftCounts(np.full(len(self.shifts), np.nan), np.full(len(self.shifts), np.nan), 0)
        rows = [own or empty for own in counts]
        self.moved = np.array([own.moved for own in rows], dtype=np.float64).reshape(len(rows), len(self.shifts))
        self.common = np.array([own.common for own in rows], dtype=np.float64).reshape(len(rows), len(self.shifts))
        self.true = np.array([own.true for own in rows], dtype=np.float64)

    def count(
        self, mask: np.ndarray, phi: np.ndarray | None, label: np.ndarray, ignored: np.ndarray | None
    ) -> ShiftCounts:
        """Count the voxels of a case: boolean arrays ``(*spatial)``, and the signed distance of ``mask``."""
        counted = np.ones(label.shape, dtype=bool) if ignored is None else ~ignored
        if phi is not None and has_boundary(mask[None])[0]:
            # The first shift whose region holds the voxel; a shift s holds those with a distance of at most s.
            first = np.ceil((phi[counted] - EPS) / STEP).astype(np.int64) + self.still
            size = len(self.shifts) + 1
            first = np.clip(first, 0, size - 1)
            moved = np.bincount(first, minlength=size).cumsum()[:-1]
            common = np.bincount(first[label[counted]], minlength=size).cumsum()[:-1]
        else:  # nothing to move
            same = np.ones(len(self.shifts), dtype=np.int64)
            moved = same * int((mask & counted).sum())
            common = same * int((mask & label & counted).sum())
        return ShiftCounts(moved, common, int((label & counted).sum()))

    def learnt_from(self, rows: np.ndarray) -> ShiftTable:
        """Return this table with the floor that some of the cases give."""
        table = copy.copy(self)
        for name in ("floor", "dice"):
            table.__dict__.pop(name, None)
        table._rows = rows
        return table

    @functools.cached_property
    def floor(self) -> float:
        """The part of an object that must be left: a half, or a half of what the clean cases say is right."""
        size = self.moved[:, self.still]
        known = (size > 0) & (self.true > 0)
        if self._rows is not None:
            known &= np.isin(np.arange(len(known)), self._rows)
        return LEFT * float(min(1.0, (self.true[known] / size[known]).min())) if known.any() else LEFT

    @functools.cached_property
    def dice(self) -> np.ndarray:
        """The Dice ``(cases, shifts)``; 1 where both are empty, that of no shift where one leaves too little."""
        total = self.moved + self.true[:, None]
        with np.errstate(invalid="ignore"):
            dice = np.where(total == 0, 1.0, 2 * self.common / np.maximum(total, 1))
            refused = self.moved < self.floor * self.moved[:, self.still, None]
        return np.asarray(np.where(refused, dice[:, self.still, None], dice))

    def refused(self, shift: float, rows: np.ndarray) -> int:
        """Return in how many of some cases a shift leaves too little."""
        return int((self.moved[rows, self.nearest(shift)] < self.floor * self.moved[rows, self.still]).sum())

    def nearest(self, shift: float) -> int:
        """Return the index of the shift of the grid that is nearest to ``shift``."""
        return int(np.clip(round(shift / STEP), -self.still, self.still)) + self.still
