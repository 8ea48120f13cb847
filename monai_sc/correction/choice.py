"""The choice of a shift for one class: made and judged without the case that judges it."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from monai_sc.correction.table import LEFT, ShiftTable
from monai_sc.functional.bias import group_means
from monai_sc.wording import counted

__all__ = ["ClassCorrection", "choose_correction", "clear_gain"]

LEAST_SPREAD = 0.15  # voxels, of two displacements
CLEAR = 0.841  # one-sided probability: one standard error with many cases, more with few


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

    def as_dict(self) -> dict[str, Any]:
        """Return the correction as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ClassCorrection:
        """Return the correction that :py:meth:`as_dict` wrote."""
        return cls(**content)


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
) -> ClassCorrection:
    r"""Return the shift of one class that some clean cases speak for, in voxels.

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
    """
    rows = np.asarray(rows, dtype=np.int64)
    table = table.learnt_from(rows)
    dice = table.dice
    before = dice[rows, table.still]
    usable = rows[np.isfinite(displacements[rows])]
    base = ClassCorrection(floor=table.floor, dice_before=_mean(before), dice_after=_mean(before))
    if not len(usable):
        return replace(base, note="in no clean case do the two boundaries meet")
    bias = float(displacements[usable].mean())
    rest = [usable[usable != i] for i in rows]
    biases = [float(displacements[r].mean()) if len(r) else math.nan for r in rest]

    def at(case: int, shift: float) -> float:
        return float(dice[case, table.nearest(0.0 if math.isnan(shift) else shift)])

    if representation != "auto":
        own_shifts = {} if groups is None else _group_shifts(displacements, groups, usable, table)
        return ClassCorrection(
            representation, bias, gamma, base.floor, own_shifts, base.dice_before, math.nan, note="as asked"
        )
    at_bias = float(table.shifts[table.nearest(bias)])
    candidates = {"distance": replace(base, representation="distance", shift=at_bias)}
    if len(rows) == 1:
        return replace(candidates["distance"], dice_after=math.nan, note="a single clean case gives it")
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
