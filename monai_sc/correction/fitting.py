"""Fit all classes on the clean cases: one pass to choose, and one that judges what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monai_sc.correction.cases import Case, Cases
from monai_sc.correction.class_fit import (
    ClassBias,
    ClassFit,
    describe_class,
    fit_class,
    group_of,
    judge_labels,
    judge_predictions,
)
from monai_sc.correction.evidence import Evidence, Exchange, gather_evidence
from monai_sc.correction.fitted import CorrectionOptions, Fitted
from monai_sc.correction.presence import presence_rates
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.functional.masks import dice
from monai_sc.functional.threads import in_threads

MANY = 20  # clean cases; more are judged in ten folds
FOLDS = 10


def fit_cases(options: CorrectionOptions, cases: Cases, exchange: Exchange) -> tuple[Fitted, list[dict[str, Any]]]:
    """Fit on the clean cases, and return also what the other cases make of each of them.

    Raises:
        ValueError: when there is no case, no class is usable in any of them, or a case does not fit.
    """
    unit = cases.unit
    evidence = gather_evidence(
        cases,
        metric=options.metric,
        region=options.region,
        reach=options.reach(unit),
        has_groups=cases.columns["groups"] is not None,
        exchange=exchange,
    )
    _refuse_unusable(evidence)
    count, classes = len(evidence.rows), range(len(options.class_names))
    folds = fold_numbers(count)

    def fitted(rows: np.ndarray, clearly: bool) -> Fitted:
        fits = [
            fit_class(
                evidence,
                k,
                rows,
                representation=options.representation,
                gamma=options.gamma,
                presence=options.presence and not options.as_asked,
                cap=options.cap(unit),
                clearly=clearly,
            )
            for k in classes
        ]
        return Fitted(options, tuple(fits), unit, count)

    whole = fitted(np.arange(count), True)
    tolerance = options.tolerated(unit)
    whole = replace(whole, fits=tuple(describe_class(evidence, k, fit, tolerance) for k, fit in enumerate(whole.fits)))
    rows: list[dict[str, Any]] = []
    if count > 1:
        others = [fitted(np.flatnonzero(folds != fold), False) for fold in range(folds.max() + 1)]
        if _is_told(evidence, [*others, whole]):
            rows = [_told(evidence, i, others[folds[i]].fits) for i in range(count)]
        else:
            own = zip(evidence.positions, cases, strict=True)
            rows = exchange(list(in_threads(lambda item: _judge(item[1], others[folds[item[0]]], whole), own)))
        for row, shown in zip(rows, evidence.rows, strict=True):
            row["displacement"] = shown.given_displacement
    judged = tuple(_judged_class(evidence, k, fit, rows, options) for k, fit in enumerate(whole.fits))
    return replace(whole, fits=judged), rows


def nothing_fitted(options: CorrectionOptions, num_clean: int, unit: float | None) -> Fitted:
    """Return what is known where no clean case is usable: it corrects nothing."""
    fit = ClassFit(
        correction=ClassCorrection(dice_before=0.0, dice_after=0.0, note="no usable clean case"),
        source="keep",
        network=ClassBias(num_skipped=num_clean),
        dice_present=0.0,
        single_dice=0.0,
        rates=presence_rates([False] * num_clean, [True] * num_clean),
    )
    return Fitted(options, (fit,) * len(options.class_names), unit, num_clean)


def fold_numbers(count: int) -> np.ndarray:
    """Return for each clean case which fold judges with it: each its own, ten folds where they are many."""
    return np.arange(count) % (FOLDS if count > MANY else count)


def _refuse_unusable(evidence: Evidence) -> None:
    columns = [evidence.column(name) for name in ("displacement", "given_displacement")]
    if not any(np.isfinite(column).any() for column in columns):
        other, longer = ("prediction", ", or train the network longer") if evidence.predicted else ("given label", "")
        raise ValueError(
            f"labels must have at least one usable case, but in all {len(evidence.rows)} the label or {other} is empty "
            f"or full in every class; give clean cases that show the structures{longer}."
        )


def _is_told(evidence: Evidence, models: Sequence[Fitted]) -> bool:
    """Say whether the tables hold all that judges: one boundary moves, nothing is dropped, no class has a rival."""
    options = models[0].options
    moved = not options.as_asked and all(fit.rule is None for model in models for fit in model.fits)
    single = all(len(objects.size) < 2 for row in evidence.rows for objects in row.objects)
    return moved and single and not options.format.softmax and not len(evidence.pairs)


def _told(evidence: Evidence, index: int, fits: Sequence[ClassFit]) -> dict[str, Any]:
    """Return what :py:func:`_judge` would, from the tables."""
    group = group_of(evidence.groups, index)
    shifts = [fit.correction.shift_of(group) for fit in fits]
    after = [t.dice[index, t.nearest(shift)] for t, shift in zip(evidence.tables, shifts, strict=True)]
    return {"plain": evidence.rows[index].dice, "predicted": np.array(after)}


def _judge(case: Case, model: Fitted, whole: Fitted) -> dict[str, Any]:
    """Return the Dice by class of what other cases make of a clean case, by source, and how labels differ."""
    found: dict[str, Any] = {}
    fields, form = None, model.options.format
    if case.logits is not None:
        fields = model.fields(case.logits, raw=case.raw, size=case.size, group=case.group)
        plain = form.predicted(case.logits if case.raw is None else case.raw)
        found["plain"] = dice(plain, case.label, case.left_out)
        found["predicted"] = dice(model.predicted(fields, case.size), case.label, case.left_out)
    if case.given is None:
        return found
    found["keep"] = dice(case.given, case.label, case.left_out)
    # What a person would have to believe: how a label differs from the given one, and from that as all cases move it.
    moved = whole.label(None, case.given, size=case.size, group=case.group, source="move").masks
    for source in ("move",) if fields is None else ("move", "blend", "predict"):
        if source == "blend" and not model.options.shape_weight:
            continue
        label = model.label(fields, case.given, size=case.size, group=case.group, source=source).masks
        found[source] = dice(label, case.label, case.left_out)
        found[f"{source} from keep"] = 1 - dice(label, case.given, case.left_out)
        found[f"{source} from move"] = 1 - dice(label, moved, case.left_out)
    return found


def _judged_class(
    evidence: Evidence, k: int, fit: ClassFit, rows: Sequence[dict[str, Any]], options: CorrectionOptions
) -> ClassFit:
    pairs = evidence.pairs
    if evidence.predicted:
        before, after = (np.array([row[name][k] for row in rows]) for name in ("plain", "predicted"))
        fit = judge_predictions(fit, before, after, options.as_asked)
    if options.as_asked:
        source = "blend" if fit.shape is not None and options.shape_weight else "predict"
        return replace(fit, source=source if evidence.predicted else "move")
    if not len(pairs):
        return fit
    if len(pairs) == 1:
        return replace(fit, source="keep")
    judged = [rows[i] for i in pairs]
    sources = [name for name in ("move", "blend", "predict") if name in judged[0]]
    return judge_labels(
        fit,
        np.array([row["keep"][k] for row in judged]),
        {name: np.array([row[name][k] for row in judged]) for name in sources},
        {
            (name, other): np.array([row[f"{name} from {other}"][k] for row in judged])
            for name in sources
            for other in ("keep", "move")
        },
        evidence.column("given_displacement")[pairs, k],
    )
