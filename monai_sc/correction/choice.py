"""The choice of a correction for one class, by what it does to the clean cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from monai_sc.functional.distance import has_boundary, signed_distance
from monai_sc.wording import counted

__all__ = ["ClassCorrection", "ShiftCounts", "ShiftTable", "choose_correction"]

STEP = 0.25  # between the shifts that are tried, in the unit of the distances
LEFT = 0.5  # a shift that leaves less of a structure than this is refused, unless clean labels are as much smaller


@dataclass(frozen=True)
class ClassCorrection:
    r"""How the predicted boundary of a class is moved.

    Attributes:
        representation: ``"distance"``, ``"logit"``, or ``"none"``.
        shift: by which it is moved back; negative shrinks. With ``"logit"`` it is :math:`\hat\Delta` of eq. 8.
        gamma: width of the ``"logit"`` correction.
        floor: part of a predicted structure that must be left, else the case is not corrected.
        dice_before: mean Dice on the clean cases, uncorrected.
        dice_after: the same, corrected; never less.
        dice_present: the same over the clean cases that hold the class, corrected if that serves better there; 1 where
            none holds it. It tells whether the network has learnt the class.
        evidence: for each candidate its mean Dice on the clean cases, each case judged by what the others give.
        note: why the correction is what it is.
    """

    representation: str = "none"
    shift: float = 0.0
    gamma: float = 1.0
    floor: float = LEFT
    dice_before: float = float("nan")
    dice_after: float = float("nan")
    dice_present: float = 1.0
    evidence: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the correction as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ClassCorrection:
        """Return the correction that :py:meth:`as_dict` wrote."""
        return cls(**content)


class ShiftCounts(NamedTuple):
    """The voxels of one case and class: of the prediction by shift, those of them in the label, and of the label."""

    predicted: np.ndarray
    common: np.ndarray
    true: int


class ShiftTable:
    """What each shift would do to the Dice of each clean case, for one class.

    The shifts are those of a grid of a quarter of a unit within ``reach``. A case costs one signed distance, whatever
    the number of shifts: the voxels are counted by their distance, in the label and out of it.

    Args:
        reach: largest shift, in the unit of the distances.
        metric: ``"euclidean"`` or ``"taxicab"``.
        counts: of the cases, from :py:meth:`count`.
    """

    def __init__(self, reach: float, metric: str, counts: Sequence[ShiftCounts] = ()) -> None:
        steps = int(np.floor(reach / STEP))
        self.shifts = STEP * np.arange(-steps, steps + 1)
        self.metric = metric
        self.predicted = [own.predicted for own in counts]
        self.common = [own.common for own in counts]
        self.true = [own.true for own in counts]

    def count(
        self,
        prediction: np.ndarray,
        label: np.ndarray,
        *,
        spacing: Sequence[float] | None,
        ignored: np.ndarray | None,
        unit: float = 1.0,
    ) -> ShiftCounts:
        """Count the voxels of a case: boolean masks ``(*spatial)``; a distance of 1 counts as ``unit``."""
        counted = np.ones(label.shape, dtype=bool) if ignored is None else ~ignored
        if has_boundary(prediction[None])[0]:
            phi = np.asarray(signed_distance(prediction[None], metric=self.metric, spacing=spacing, origin="face"))[0]
            # The first shift whose region holds the voxel; a shift s holds those with a distance of at most s.
            first = np.searchsorted(self.shifts, unit * phi[counted].ravel())
            size = len(self.shifts) + 1
            within = label[counted].ravel()
            predicted = np.bincount(first, minlength=size).cumsum()[:-1]
            common = np.bincount(first[within], minlength=size).cumsum()[:-1]
        else:  # nothing to move
            same = np.ones(len(self.shifts), dtype=np.int64)
            predicted = same * int((prediction & counted).sum())
            common = same * int((prediction & label & counted).sum())
        return ShiftCounts(predicted, common, int((label & counted).sum()))

    @property
    def floor(self) -> float:
        """The part of a prediction that must be left: a half, or a half of what the clean cases say is right."""
        size, true = self._volumes()
        ratios = true[(size > 0) & (true > 0)] / size[(size > 0) & (true > 0)]
        return LEFT * float(min(1.0, ratios.min())) if len(ratios) else LEFT

    def dice(self) -> np.ndarray:
        """Return the Dice ``(cases, shifts)``; 1 where both masks are empty, that of no shift where one is refused."""
        predicted, common = np.array(self.predicted, dtype=np.float64), np.array(self.common, dtype=np.float64)
        total = predicted + np.array(self.true)[:, None]
        dice = np.where(total > 0, 2 * common / np.maximum(total, 1), 1.0)
        still = len(self.shifts) // 2
        refused = predicted < self.floor * predicted[:, still : still + 1]
        return np.asarray(np.where(refused, dice[:, still : still + 1], dice))

    def refused(self, shift: float) -> int:
        """Return in how many clean cases a shift leaves too little."""
        predicted = np.array(self.predicted)
        still = len(self.shifts) // 2
        return int((predicted[:, self.nearest(shift)] < self.floor * predicted[:, still]).sum())

    def nearest(self, shift: float) -> int:
        """Return the index of the shift of the grid that is nearest to ``shift``."""
        return int(np.argmin(np.abs(self.shifts - shift)))

    def _volumes(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.predicted)[:, len(self.shifts) // 2], np.array(self.true)


def choose_correction(
    table: ShiftTable,
    displacements: np.ndarray,
    representation: str,
    *,
    gamma: float = 1.0,
    logit_dice: Mapping[float, np.ndarray] | None = None,
) -> ClassCorrection:
    r"""Return the correction of one class.

    ``"auto"`` compares no correction, ``"distance"`` with the bias, ``"distance"`` with the shift that serves best, and
    ``"logit"`` with each :math:`\gamma`; a case is judged by the bias or the shift that the other cases give. What
    does not beat no correction on the clean cases, so and with all of them, is not chosen.

    Args:
        table: of the clean cases.
        displacements: ``(cases,)``, in the same order; ``nan`` where there is none.
        representation: ``"auto"``, ``"distance"`` or ``"logit"``.
        gamma: of ``"logit"``, unless ``representation`` is ``"auto"``.
        logit_dice: by :math:`\gamma` the Dice ``(cases,)`` of the ``"logit"`` correction by the bias of all cases.
    """
    dice = table.dice()
    still = len(table.shifts) // 2
    before = float(dice[:, still].mean())
    usable = np.isfinite(displacements)
    base = ClassCorrection(floor=table.floor, dice_before=before, dice_after=before)
    if not usable.any():
        return replace(base, note="no clean case shows a boundary of it and of its prediction")
    bias = float(displacements[usable].mean())
    if representation != "auto":
        after = dice[:, table.nearest(bias)] if representation == "distance" else (logit_dice or {})[gamma]
        fixed = replace(
            base,
            representation=representation,
            shift=bias,
            gamma=gamma,
            dice_after=float(np.mean(after)),
            note="as asked",
        )
        return fixed
    candidates: dict[str, tuple[float, ClassCorrection]] = {"none": (before, base)}
    count = len(dice)
    rest = ~np.eye(count, dtype=bool) if count > 1 else np.ones((1, 1), dtype=bool)
    biases = [np.nanmean(displacements[r]) if np.isfinite(displacements[r]).any() else 0.0 for r in rest]
    judged = [dice[i, table.nearest(b)] for i, b in enumerate(biases)]
    at_bias = float(table.shifts[table.nearest(bias)])
    candidates["distance"] = (
        float(np.mean(judged)),
        replace(base, representation="distance", shift=at_bias, dice_after=float(dice[:, table.nearest(bias)].mean())),
    )
    if count > 1:  # with one case, the shift that is best for it would be judged by itself
        judged = [dice[i, _best(dice[r], table, b)] for i, (r, b) in enumerate(zip(rest, biases, strict=True))]
        index = _best(dice, table, bias)
        candidates["best shift"] = (
            float(np.mean(judged)),
            replace(
                base,
                representation="distance",
                shift=float(table.shifts[index]),
                dice_after=float(dice[:, index].mean()),
            ),
        )
    for width, scores in (logit_dice or {}).items():
        candidates[f"logit, gamma {width:g}"] = (
            float(scores.mean()),
            replace(base, representation="logit", shift=bias, gamma=width, dice_after=float(scores.mean())),
        )
    evidence = {name: score for name, (score, _) in candidates.items()}
    name = max(candidates, key=lambda n: evidence[n])
    chosen = candidates[name][1]
    words = {"distance": "a shift by the bias", "best shift": "this shift"}.get(name, "the published rule")
    note = f"{words} gives the best Dice on {counted(count, 'clean case')}"
    if chosen.dice_after <= before or evidence[name] <= before:
        chosen, note = base, "no correction gives a better Dice on the clean cases"
        if refused := table.refused(bias):
            note += f"; a shift by {bias:+.2f} would leave too little of it in {refused} of {count}"
    return replace(chosen, evidence=evidence, note=note)


def _best(dice: np.ndarray, table: ShiftTable, bias: float) -> int:
    """Return the shift with the highest mean Dice; of equals the one that is nearest to the bias."""
    means = dice.mean(axis=0)
    equal = means >= means.max() - 1e-9
    return int(np.argmin(np.where(equal, np.abs(table.shifts - bias), np.inf)))
