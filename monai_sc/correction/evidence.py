"""What the predictions of the clean cases show, of each case and class."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from monai_sc.correction.cases import CleanCases
from monai_sc.correction.choice import ClassCorrection, ShiftCounts, ShiftTable
from monai_sc.correction.move import measure, voxel_volume
from monai_sc.correction.presence import presence_features
from monai_sc.functional.bias import boundary_displacement, grouped_bias
from monai_sc.functional.correction import correct_boundary
from monai_sc.functional.dice import dice

Exchange = Callable[[list[Any]], list[Any]]
"""Given what a process measured, one entry per case of its own, it returns that of all processes, in one order."""

REACH = 30.0  # voxels: largest shift that is tried


@dataclass(frozen=True)
class Evidence:
    """What the clean cases show; arrays are ``(cases, classes)``.

    Attributes:
        displacements: of the boundary, ``nan`` where there is none.
        dice: of the uncorrected prediction.
        features: of its presence, ``(cases, classes, features)``.
        present: whether the label holds the class.
        tables: what shifts would do, one per class.
    """

    displacements: np.ndarray
    dice: np.ndarray
    features: np.ndarray
    present: np.ndarray
    tables: Sequence[ShiftTable]

    @property
    def predicted(self) -> np.ndarray:
        """Whether the prediction holds the class."""
        return np.asarray(self.features[..., -1] > 0)  # the last feature is its size

    def dice_with(self, k: int, correction: ClassCorrection, by_logit: Mapping[float, np.ndarray]) -> np.ndarray:
        """Return the Dice ``(cases,)`` of class ``k`` with a correction, given what :py:func:`logit_dice` returned."""
        if correction.representation == "none":
            return np.asarray(self.dice[:, k])
        if correction.representation == "logit":
            return by_logit[correction.gamma][:, k]
        table = self.tables[k]
        return np.asarray(table.dice()[:, table.nearest(correction.shift)])

    def floor(self, k: int) -> float:
        """Return the mean Dice of class ``k`` over the cases that hold it, 0 if none does."""
        present = self.present[:, k]
        return float(self.dice[present, k].mean()) if present.any() else 0.0


class _CaseEvidence(NamedTuple):
    """What one case shows: entries ``(classes,)`` and ``(classes, features)`` of the arrays of :py:class:`Evidence`."""

    displacement: np.ndarray
    dice: np.ndarray
    features: np.ndarray
    present: np.ndarray
    counts: Sequence[ShiftCounts]


def gather_evidence(
    cases: CleanCases, *, metric: str, region: str, max_shift: float | None, exchange: Exchange
) -> Evidence:
    """Return what the clean cases show, from one pass over them.

    Args:
        cases: the clean cases, of which a process may have a part.
        metric: of the distances.
        region: of the bias.
        max_shift: no larger shift is tried.
        exchange: with the other processes.

    Raises:
        ValueError: when there is no case, or a case does not fit.
    """
    # The largest shift that is tried follows from the first case of all, which another process may have.
    rest = iter(cases)
    first = [*itertools.islice(rest, 1)]
    sizes = exchange([1.0 if size is None else min(size) for *_, size in first])
    if not sizes:
        raise ValueError("predictions must hold at least one clean case, got none.")
    reach = REACH * sizes[0] if max_shift is None else min(max_shift, REACH * sizes[0])
    own = []
    for logits, masks, left_out, size in itertools.chain(first, rest):
        predicted = logits >= 0
        sides, length = measure(size, metric)
        displacement = boundary_displacement(
            predicted, masks, region=region, metric=metric, spacing=sides, ignore=left_out
        )
        counts = []
        for k, channel in enumerate(predicted):
            table, ignored = ShiftTable(reach, metric), None if left_out is None else left_out[k]
            counts.append(table.count(channel, masks[k], spacing=sides, unit=length, ignored=ignored))
        counted = logits if left_out is None else np.where(left_out, -np.inf, logits)
        inside = masks if left_out is None else masks & ~left_out
        own.append(
            _CaseEvidence(
                displacement=length * displacement,
                dice=dice(predicted, masks, left_out),
                features=np.array([presence_features(channel, voxel=voxel_volume(size)) for channel in counted]),
                present=np.asarray(inside.reshape(len(inside), -1).any(axis=1)),
                counts=counts,
            )
        )
    rows: list[_CaseEvidence] = exchange(own)
    return Evidence(
        np.stack([row.displacement for row in rows]),
        np.stack([row.dice for row in rows]),
        np.stack([row.features for row in rows]),
        np.stack([row.present for row in rows]),
        [ShiftTable(reach, metric, [row.counts[k] for row in rows]) for k in range(len(rows[0].counts))],
    )


def logit_dice(
    cases: CleanCases,
    bias: np.ndarray,
    gammas: Iterable[float],
    floors: Sequence[float],
    *,
    metric: str,
    max_shift: float | None,
    exchange: Exchange,
) -> dict[float, np.ndarray]:
    r"""Return by :math:`\gamma` the Dice ``(cases, classes)`` of the ``"logit"`` correction by the bias of all cases.

    Args:
        cases: the clean cases; they are read only if there is a :math:`\gamma`.
        bias: of each class; ``nan`` counts as 0.
        gammas: widths of the correction.
        floors: of each class, the part of a prediction that must be left, else it is not corrected.
        metric: of the distances.
        max_shift: no boundary moves farther.
        exchange: with the other processes.
    """
    shifts = np.nan_to_num(bias)
    found: dict[float, list[np.ndarray]] = {gamma: [] for gamma in gammas}
    if not found:
        return {}
    for logits, masks, left_out, size in cases:
        sides, length = measure(size, metric)
        for gamma, values in found.items():
            corrected = correct_boundary(
                logits,
                (shifts / length).tolist(),
                representation="logit",
                gamma=gamma,
                metric=metric,
                spacing=sides,
                max_shift=None if max_shift is None else max_shift / length,
            )
            moved, predicted = np.asarray(corrected) >= 0, logits >= 0
            for k, floor in enumerate(floors):
                if moved[k].sum() < floor * predicted[k].sum():
                    moved[k] = predicted[k]
            values.append(dice(moved, masks, left_out))
    return {gamma: np.stack(exchange(values)) for gamma, values in found.items()}


def shifts_of_groups(
    evidence: Evidence, groups: Sequence[Hashable], corrections: Sequence[ClassCorrection]
) -> tuple[dict[str, list[float]], list[ClassCorrection]]:
    """Return by group the shift of each class, and the corrections for a group that is not among them.

    A class is moved by the bias of each group, drawn toward the common one, if that serves better on the clean cases
    than the common correction; else all groups have the common shift.

    Args:
        evidence: of the clean cases.
        groups: of each of them.
        corrections: the common ones.
    """
    biases = grouped_bias(evidence.displacements, groups)
    shifts = {str(group): [c.shift for c in corrections] for group in biases}
    chosen = list(corrections)
    for k, (table, common) in enumerate(zip(evidence.tables, corrections, strict=True)):
        own = {group: float(np.nan_to_num(bias.mean[k])) for group, bias in biases.items()}
        dice = table.dice()
        after = float(np.mean([dice[case, table.nearest(own[group])] for case, group in enumerate(groups)]))
        if after <= common.dice_after:
            continue
        for group, shift in own.items():
            shifts[str(group)][k] = float(table.shifts[table.nearest(shift)])
        shift = common.shift if common.representation != "none" else 0.0
        chosen[k] = replace(
            common, representation="distance", shift=shift, dice_after=after, note="each group is moved by its own bias"
        )
    return shifts, chosen
