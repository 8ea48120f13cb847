"""Compare given labels of other cases with corrected predictions; all distances are in voxels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor
from scipy import stats

from monai_sc.correction.boundaries import box_around, distance, given_offset, learn_given_shape
from monai_sc.correction.cases import Case, Cases, Size
from monai_sc.correction.class_fit import ClassFit, Judgement, group_of, upper_bound
from monai_sc.correction.fitted import Fields, Fitted, Spacing
from monai_sc.correction.shifts import LEAST_SPREAD, STEP, ClassCorrection, ShiftCounts, ShiftTable
from monai_sc.functional.masks import dice
from monai_sc.functional.threads import in_threads

LARGE = 3.0  # standard deviations: a single case counts if its bias is over that many of what cases differ by
LOGIT_STEP = 0.75  # of the bias, which one step of the "logit" correction removes
GOOD = 0.25  # error (1 less Dice) of corrected predictions on held-out cases, under which they serve to correct labels
CLOSE = 0.16  # error under which they serve where labels scatter by more than they do
BETTER = 0.9  # part of the error of labels without a network that must be left at most with it


@dataclass(frozen=True)
class GivenRow:
    """What one training case shows, lists by class.

    Attributes:
        offset: of its given label against the corrected prediction.
        agreement: Dice of the uncorrected prediction with the given label.
        counts: what shifts of the given label would do to its Dice with the corrected prediction.
        group: of the case.
    """

    offset: list[float]
    agreement: list[float]
    counts: list[ShiftCounts]
    group: Hashable


def compare_given(
    fitted: Fitted,
    predictions: Iterable[NdarrayOrTensor],
    given: Iterable[NdarrayOrTensor],
    *,
    spacing: Spacing | Iterable[Spacing] = None,
    groups: Sequence[Hashable] | None = None,
) -> Fitted:
    """Learn how given labels lie to corrected predictions, from some of the cases that are to be corrected.

    Where clean cases have no given label, this decides whether corrected predictions, given labels that are moved to
    them, or a blend of both are nearest to the truth; where there is a single clean case, whether its bias is large
    against what the others differ by.

    Args:
        fitted: by the clean cases.
        predictions: of a few dozen cases; more narrow the estimate little.
        given: their labels.
        spacing: as for :py:meth:`SpatialCorrector.fit`.
        groups: as for it.

    Raises:
        ValueError: when a shape or a value does not fit.
    """
    form = fitted.options.format
    cases = Cases(form, predictions, given, spacing=spacing, groups=groups)
    cases.unit = fitted.unit
    model = with_pending(fitted)

    def row_of(case: Case) -> GivenRow:
        logits = case.predicted_logits()
        found = model.fields(logits, raw=case.raw, size=case.size, group=case.group)
        plain = form.predicted(logits if case.raw is None else case.raw)
        return given_row(model, found, plain, case.label, case.size, case.group, case.left_out)

    return settle_rows(fitted, list(in_threads(row_of, cases)), has_groups=groups is not None)


def given_row(
    model: Fitted,
    found: Fields,
    predicted: np.ndarray,
    given: np.ndarray,
    size: Size,
    group: Hashable,
    left_out: np.ndarray | None = None,
) -> GivenRow:
    """Return what a training case shows.

    Args:
        model: by which the prediction was corrected.
        found: the corrected prediction.
        predicted: masks ``(classes, *spatial)`` of the prediction as it was.
        given: those of the given label.
        size: of a voxel.
        group: of the case.
        left_out: voxels that do not count.
    """
    table = ShiftTable(model.options.reach(model.unit))
    counts, offsets = [], []
    for k, (mask, corrected) in enumerate(zip(given, found.scores >= 0, strict=True)):
        offsets.append(given_offset(mask, corrected, size))
        box = box_around(mask | corrected, float(table.shifts[-1]), size)
        phi = None if box is None else distance(mask[box], model.options.metric, size)
        ignored = None if left_out is None else left_out[k][box or ()]
        counts.append(table.count(mask[box or ()], phi, corrected[box or ()], ignored))
    return GivenRow(offsets, dice(predicted, given, left_out).tolist(), counts, group)


def with_pending(fitted: Fitted) -> Fitted:
    """Return it with the corrections that await what other cases say."""
    fits = (fit if fit.pending is None else replace(fit, correction=fit.pending) for fit in fitted.fits)
    return replace(fitted, fits=tuple(fits))


def settle_rows(fitted: Fitted, rows: Sequence[GivenRow], *, has_groups: bool) -> Fitted:
    """Return a fit that knows what :py:func:`given_row` says of some training cases."""
    if not rows:
        return fitted
    options, reach = fitted.options, fitted.options.reach(fitted.unit)
    groups = [row.group for row in rows] if has_groups else None
    settled = []
    for k, fit in enumerate(with_pending(fitted).fits):
        agreement = [row.agreement[k] for row in rows]
        shape = learn_given_shape([row.offset[k] for row in rows], agreement, fit.network.spread, groups)
        if fit.num_pairs > 1 and fit.shape is not None:  # these cases have the truth beside them
            settled.append(replace(fit, shape=replace(fit.shape, agreement=shape.agreement)))
            continue
        fit = replace(fit, shape=shape)
        if options.as_asked:
            source = "blend" if options.shape_weight and shape.num_cases else "predict"
            settled.append(replace(fit, source=source))
            continue
        single = fitted.num_clean == 1 or fit.num_pairs == 1
        if single:
            fit = _settle_single(fit, shape.spread)
        table = ShiftTable(reach, [row.counts[k] for row in rows])
        settled.append(_choose_source(fit, table, groups, single, options.shape_weight, reach))
    return replace(fitted, fits=tuple(settled))


def _settle_single(fit: ClassFit, spread: float) -> ClassFit:
    """Return the fit of a single clean case: its bias counts if it is large against what other cases differ by."""

    def counts(bias: float) -> bool:
        return bool(np.isfinite(bias) and abs(bias) > LARGE * spread)

    one = "based on a single clean case, whose bias is large compared with the differences between other cases"
    small = "based on a single clean case, and not large compared with the differences between other cases"
    correction, move = fit.correction, fit.move
    if fit.pending is not None:
        accepted = counts(fit.network.mean)
        correction = (
            replace(fit.pending, note=one)
            if accepted
            else ClassCorrection(floor=fit.pending.floor, dice_before=fit.pending.dice_before, note=small)
        )
        fit = replace(fit, judged=Judgement("predictions", (), (), accepted, one if accepted else small))
    if fit.num_pairs == 1 and move.representation != "none":
        accepted = counts(fit.labels.mean)
        move = replace(move, note=one) if accepted else ClassCorrection(floor=move.floor, note=small)
        fit = replace(fit, judged_labels=Judgement("labels", (), (), accepted, one if accepted else small))
    return replace(fit, correction=correction, move=move, pending=None)


def _choose_source(
    fit: ClassFit, table: ShiftTable, groups: Sequence[Hashable] | None, single: bool, weight: float, reach: float
) -> ClassFit:
    """Return a fit with the source of labels where no pairs say it.

    The error of corrected predictions is known from clean cases. What given labels differ from them by is the error of
    both: were the two independent, their squares would add up. A network that has memorised its labels differs from
    them by less, so that they seem better than they are, and stay. One that is close serves as well where the
    boundaries of given labels lie off by clearly more from case to case than its own.
    """
    shape = fit.shape
    if shape is None or not shape.num_cases or not fit.learnt:
        return replace(fit, source="keep")
    if single and not (fit.judged.accepted or fit.judged_labels.accepted):
        return replace(fit, source="keep", move=ClassCorrection(floor=fit.move.floor, note=fit.correction.note))
    curves = table.dice
    cases = np.arange(len(curves))
    shifts = [shape.offset_of(group_of(groups, i)) for i in cases.tolist()]
    moved_dice = curves[cases, [table.nearest(shift) for shift in shifts]]
    kept, moved = (1 - float(values.mean()) for values in (curves[:, table.still], moved_dice))
    after = np.array(fit.judged.after if fit.judged.accepted else fit.judged.before)
    network = 1 - (float(after.mean()) if len(after) else fit.single_dice)
    # At most, as far as the clean cases can say.
    error = after.std(ddof=1) / math.sqrt(len(after)) * stats.t.ppf(0.9, len(after) - 1) if len(after) > 1 else network
    worst = network + float(error)
    move = fit.move if fit.num_pairs == 1 else _move_of(fit, single, reach)
    best = "move" if move.representation != "none" else "keep"
    label = math.sqrt(max((moved if best == "move" else kept) ** 2 - worst**2, 0.0))
    blend = math.hypot((1 - weight) * worst, weight * math.sqrt(max(moved**2 - worst**2, 0.0)))
    # Where clean cases show the network off, the labels that it has learnt from are off as well.
    towards = fit.judged.accepted and fit.correction.representation != "none"
    towards = towards and (shape.offset + _rest_of_bias(fit)) * fit.correction.shift_of() > 0
    if (towards and worst < GOOD) or (_scattered(fit) and worst < CLOSE) or blend < BETTER * label:
        bound = upper_bound(1 - after) if len(after) > 2 else 2 * network + 0.05
        if move.representation == "none":  # where the network says that labels lie, whether that is clear or not
            own = {group: _on_grid(offset, reach) for group, offset in shape.group_offsets.items()}
            move = replace(move, representation="distance", shift=_on_grid(shape.offset, reach), group_shifts=own)
        shifts = [move.shift_of(group_of(groups, i)) for i in cases.tolist()]
        limit = np.maximum(bound, upper_bound(1 - curves[cases, [table.nearest(shift) for shift in shifts]]))
        return replace(fit, move=move, source="blend" if weight else "predict", limit=float(limit))
    return replace(fit, move=move, source=best)


def _scattered(fit: ClassFit) -> bool:
    """Say whether given labels lie off by clearly more from case to case than the network does on clean cases.

    It is the F test of the two variances; a network that has memorised some of the labels makes them seem less.
    """
    network, shape = fit.network, fit.shape
    if shape is None or network.num_used < 3 or shape.num_cases < 3 or not np.isfinite(network.spread):
        return False
    ratio = shape.spread**2 / max(network.spread, LEAST_SPREAD) ** 2
    return bool(ratio > stats.f.ppf(0.99, shape.num_cases - 1, network.num_used - 1))


def _rest_of_bias(fit: ClassFit) -> float:
    """Return what the correction leaves of the bias of the network: the offset of labels lacks it."""
    correction, told = fit.correction, fit.correction.evidence
    if not np.isfinite(fit.network.mean):
        return 0.0
    if correction.representation == "none" and told.get("distance", 1.0) <= told.get("none", 0.0):
        return 0.0  # a shift by it does harm: it is the mean of what differs from place to place
    return fit.network.mean - correction.shift_of() * (LOGIT_STEP if correction.representation == "logit" else 1.0)


def _on_grid(shift: float, reach: float) -> float:
    """Return the shift of the tables that is nearest."""
    return float(np.clip(STEP * round(shift / STEP), -reach, reach))


def _move_of(fit: ClassFit, single: bool, reach: float) -> ClassCorrection:
    """Return the shift of given labels that their offset to corrected predictions says, if it is clear."""
    shape: Any = fit.shape
    spread = shape.spread if np.isfinite(shape.spread) else 0.0
    used = max(fit.network.num_used, 1)
    correction = fit.correction
    rest = _rest_of_bias(fit)
    clean = spread if single else fit.network.spread
    error = math.hypot(spread / math.sqrt(shape.num_cases), clean / math.sqrt(used) if np.isfinite(clean) else math.inf)
    limit = LARGE * spread if single else float(stats.t.ppf(0.975, max(used - 1, 1))) * error
    base = ClassCorrection(floor=correction.floor)
    if not abs(shape.offset + rest) > max(limit, 1e-9):
        return replace(base, note="the offset of given labels to corrected predictions is not clear")
    return replace(
        base,
        representation="distance",
        shift=_on_grid(shape.offset + rest, reach),
        group_shifts={group: _on_grid(offset + rest, reach) for group, offset in shape.group_offsets.items()},
        note="by the offset of given labels to corrected predictions",
    )
