"""What each shift of a boundary would do to the Dice of each clean case, and the choice among shifts."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from monai_sc.functional.bias import group_means
from monai_sc.functional.distance import has_boundary
from monai_sc.wording import counted

STEP = 0.25  # voxels between the shifts that are tried
REACH = 30.0  # voxels: largest shift that is tried
EPS = 1e-4  # voxels: by which distances may differ where only the unit of the spacing differs
LEAST_SPREAD = 0.15  # voxels, of two displacements
CLEAR = 0.841  # one-sided probability: one standard error with many cases, more with few
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


@dataclass(frozen=True)
class ClassCorrection:
    r"""How the boundary of a class is moved, in predictions or in given labels.

    Attributes:
        representation: ``"distance"``, ``"logit"``, or ``"none"``.
        shift: by which the boundary is moved; negative shrinks. With ``"logit"`` it is :math:`\hat\Delta` of eq. 8. In
            the unit of the spacing.
        gamma: width of the ``"logit"`` correction.
        floor: part of an object that must be left, else it is not moved.
        group_shifts: of the groups that have one of their own.
        dice_before: mean Dice on the clean cases, not moved.
        dice_after: the same, moved, each case by what the others say; ``nan`` with a single case.
        evidence: that mean for each candidate.
        note: why it is what it is.
    """

    representation: str = "none"
    shift: float = 0.0
    gamma: float = 1.0
    floor: float = LEFT
    group_shifts: dict[str, float] = field(default_factory=dict)
    dice_before: float = math.nan
    dice_after: float = math.nan
    evidence: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def shift_of(self, group: Hashable = None) -> float:
        """Return the shift of a group, or the common one."""
        return self.group_shifts.get(str(group), self.shift) if self.representation != "none" else 0.0

    def scaled(self, factor: float) -> ClassCorrection:
        """Return it with shifts in another unit."""
        groups = {group: shift * factor for group, shift in self.group_shifts.items()}
        return replace(self, shift=self.shift * factor, group_shifts=groups)


@functools.cache
def student(probability: float, cases: int) -> float:
    """Return the quantile of Student's t for the mean of some cases."""
    return float(stats.t.ppf(probability, cases - 1))


def clear_gain(gains: np.ndarray) -> bool:
    """Say whether the mean of paired gains ``(cases,)`` is clear: over the quantile of Student's t, in its errors.

    That is one standard error with many cases. With few, the error is itself uncertain, and more is asked for.
    """
    values = gains[np.isfinite(gains)]
    if len(values) < 2 or not values.mean() > 1e-9:
        return False
    error = values.std(ddof=1) / math.sqrt(len(values))
    return bool(values.mean() > student(CLEAR, len(values)) * error)


def excludes_zero(displacements: np.ndarray) -> bool:
    """Say whether the 95% interval of a mean displacement excludes 0; never with fewer than two cases.

    Two values may be equal by chance: their standard deviation counts as at least 0.15 voxels.
    """
    values = displacements[np.isfinite(displacements)]
    if len(values) < 2:
        return False
    spread = max(float(values.std(ddof=1)), LEAST_SPREAD if len(values) == 2 else 0.0)
    error = spread / math.sqrt(len(values))
    return bool(abs(values.mean()) > student(0.975, len(values)) * error)


def choose_correction(
    table: ShiftTable,
    displacements: np.ndarray,
    representation: str,
    rows: np.ndarray,
    *,
    gamma: float = 1.0,
    groups: Sequence[Hashable] | None = None,
    clearly: bool = True,
    cap: float = math.inf,
) -> ClassCorrection:
    r"""Choose the shift of one class by some clean cases, in voxels.

    ``"auto"`` compares no shift, ``"distance"`` with the mean displacement, with that of each group, with the shift
    that serves best; each case is judged by what the other cases give. The mean displacement is given up only for what
    serves clearly better (:py:func:`clear_gain`), and no shift as well. With two cases there is one candidate, the mean
    displacement, and only if its interval excludes 0. One case judges nothing: its shift is chosen, and ``dice_after``
    is ``nan``.

    Args:
        table: of all cases.
        displacements: ``(cases,)``, in the same order; ``nan`` where there is none.
        representation: ``"auto"``, ``"distance"`` or ``"logit"``; the latter two by the mean, whatever it does.
        rows: indices of the cases that have a say.
        gamma: of ``"logit"``, unless ``representation`` is ``"auto"``.
        groups: of all cases.
        clearly: a shift must beat no shift clearly, not only on average.
        cap: no shift that was asked for is larger.
    """
    rows = np.asarray(rows, dtype=np.int64)
    table = table.learnt_from(rows)
    dice = table.dice
    before = dice[rows, table.still]
    usable = rows[np.isfinite(displacements[rows])]
    base = ClassCorrection(floor=table.floor, dice_before=_mean(before), dice_after=_mean(before))
    if not len(usable):
        return replace(base, note="the two boundaries meet in no clean case")
    bias = float(displacements[usable].mean())
    rest = [usable[usable != i] for i in rows]
    biases = [float(displacements[r].mean()) if len(r) else math.nan for r in rest]

    def at(case: int, shift: float) -> float:
        return float(dice[case, table.nearest(0.0 if math.isnan(shift) else shift)])

    if representation != "auto":
        groups_own = {} if groups is None else _group_shifts(displacements, groups, usable, table)
        shift = float(np.clip(bias, -cap, cap))
        return ClassCorrection(
            representation, shift, gamma, base.floor, groups_own, base.dice_before, math.nan, note="as asked"
        )
    at_bias = float(table.shifts[table.nearest(bias)])
    candidates = {"distance": replace(base, representation="distance", shift=at_bias)}
    if len(rows) == 1:
        return replace(candidates["distance"], dice_after=math.nan, note="based on a single clean case")
    scores = {"distance": np.array([at(case, shift) for case, shift in zip(rows, biases, strict=True)])}
    if len(rows) > 2:
        scores["best shift"] = np.array(
            [dice[case, _best(dice[rows[rows != case]], table, b)] for case, b in zip(rows, biases, strict=True)]
        )
        best = float(table.shifts[_best(dice[rows], table, bias)])
        candidates["best shift"] = replace(base, representation="distance", shift=best)
    if groups is not None and len(rows) > 2:
        own = {case: _group_shifts(displacements, groups, usable[usable != case], table) for case in rows}
        scores["groups"] = np.array([at(c, own[c].get(str(groups[c]), b)) for c, b in zip(rows, biases, strict=True)])
        candidates["groups"] = replace(
            base,
            representation="distance",
            shift=at_bias,
            group_shifts=_group_shifts(displacements, groups, usable, table),
        )
    evidence = {"none": _mean(before), **{name: _mean(values) for name, values in scores.items()}}
    name = "distance"
    for other in sorted(scores, key=lambda n: -evidence[n]):
        # The simplest shift, by the bias, is given up only for one that is clearly better.
        if other == name or clear_gain(scores[other] - scores[name]):
            name = other
            break
    words = {
        "distance": "a shift by the bias",
        "best shift": "this shift",
        "groups": "a shift of its own for each group",
    }[name]
    note = f"{words} gives the best Dice on {counted(len(rows), 'clean case')}, each judged by the others"
    few = clearly and len(rows) < 3 and not excludes_zero(displacements[rows])
    gains = scores[name] - before
    if few or not (clear_gain(gains) if clearly else gains.mean() > 0):
        note = (
            "the interval of the bias contains 0, from few clean cases"
            if few
            else "no shift raises the Dice of clean cases clearly, each judged by the others"
        )
        if refused := table.refused(bias, rows):
            note += f"; a shift by {bias:+.2f} voxels would leave too little of it in {refused} of {len(rows)}"
        return replace(base, evidence=evidence, note=note)
    return replace(candidates[name], dice_after=evidence[name], evidence=evidence, note=note)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _best(dice: np.ndarray, table: ShiftTable, bias: float) -> int:
    """Return the shift with the highest mean Dice; of equals the one that is nearest to the bias."""
    means = dice.mean(axis=0)
    equal = means >= means.max() - 1e-9
    return int(np.argmin(np.where(equal, np.abs(table.shifts - (0.0 if math.isnan(bias) else bias)), np.inf)))


def _group_shifts(
    displacements: np.ndarray, groups: Sequence[Hashable], rows: np.ndarray, table: ShiftTable
) -> dict[str, float]:
    """Return the shift of each group, drawn toward the common one."""
    if not len(rows):
        return {}
    means = group_means(displacements[rows][:, None], [str(groups[i]) for i in rows])
    return {
        str(group): float(table.shifts[table.nearest(float(mean[0]))])
        for group, mean in means.items()
        if mean[0] == mean[0]
    }
