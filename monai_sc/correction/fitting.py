"""The fit: one pass over the clean cases to choose, and one that judges what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.correction.cases import Case, Cases
from monai_sc.correction.class_fit import (
    ClassFit,
    describe_class,
    fit_class,
    group_of,
    judge_labels,
    judge_predictions,
)
from monai_sc.correction.evidence import Evidence, Exchange, gather_evidence
from monai_sc.functional.dice import dice
from monai_sc.functional.threads import in_threads

if TYPE_CHECKING:
    from monai_sc.correction.corrector import SpatialCorrector

MANY = 20  # clean cases; more are judged in ten folds
FOLDS = 10


def fit_classes(
    corrector: SpatialCorrector, cases: Cases, exchange: Exchange
) -> tuple[list[ClassFit], int, list[dict[str, Any]]]:
    """Return what the clean cases say of each class, their number, and what others make of each of them.

    Args:
        corrector: whose options count.
        cases: the clean cases, of which a process may have a part.
        exchange: with the other processes.

    Raises:
        ValueError: when there is no case, no class is usable in any of them, or a case does not fit.
    """
    evidence = gather_evidence(
        cases,
        metric=corrector.metric,
        region=corrector.region,
        reach=corrector.reach,
        has_groups=cases.columns["groups"] is not None,
        exchange=exchange,
    )
    _refuse_unusable(evidence)
    count, classes = len(evidence.rows), range(len(corrector.class_names))
    folds = fold_numbers(count)
    kept = [np.flatnonzero(folds != fold) for fold in range(folds.max() + 1)]
    options = corrector.options

    def fitted(rows: np.ndarray, clearly: bool) -> list[ClassFit]:
        return [fit_class(evidence, k, rows, options, clearly=clearly) for k in classes]

    whole = fitted(np.arange(count), True)
    fits = [describe_class(evidence, k, fit, options.tolerance) for k, fit in enumerate(whole)]
    as_asked = corrector.representation != "auto"
    if count > 1:
        others = [fitted(rows, False) for rows in kept]
        if _is_told(corrector, evidence, [*others, fits]):
            rows = [_told(evidence, i, others[folds[i]]) for i in range(count)]
        else:
            judged = list(
                in_threads(
                    lambda own: _judge(corrector, own[1], others[folds[own[0]]], fits),
                    zip(evidence.positions, cases, strict=True),
                )
            )
            rows = exchange(judged)
        for row, shown in zip(rows, evidence.rows, strict=True):
            row["displacement"] = shown.given_displacement
    else:
        rows = []
    return [_judged_class(evidence, k, fit, rows, as_asked, corrector) for k, fit in enumerate(fits)], count, rows


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


def _is_told(corrector: SpatialCorrector, evidence: Evidence, models: Sequence[Sequence[ClassFit]]) -> bool:
    """Say whether the tables hold all that judges: one boundary moves, nothing is dropped, no class has a rival."""
    fits = [fit for model in models for fit in model]
    moved = corrector.representation == "auto" and all(fit.rule is None for fit in fits)
    single = all(len(objects.size) < 2 for row in evidence.rows for objects in row.objects)
    alone = not corrector.format.softmax and not len(evidence.pairs)
    return moved and alone and single


def _told(evidence: Evidence, index: int, fits: Sequence[ClassFit]) -> dict[str, Any]:
    """Return what :py:func:`_judge` would, from the tables."""
    group = group_of(evidence.groups, index)
    shifts = [fit.correction.shift_of(group) for fit in fits]
    after = [t.dice[index, t.nearest(shift)] for t, shift in zip(evidence.tables, shifts, strict=True)]
    return {"plain": evidence.rows[index].dice, "predicted": np.array(after)}


def _judge(
    corrector: SpatialCorrector, case: Case, fits: Sequence[ClassFit], whole: Sequence[ClassFit]
) -> dict[str, Any]:
    """Return the Dice by class of what other cases make of a clean case, by source, and how labels differ."""
    found: dict[str, Any] = {}
    fields = None
    if case.logits is not None:
        fields = corrector.fields(case.logits, raw=case.raw, size=case.size, group=case.group, fits=fits)
        plain = corrector.format.predicted(case.logits if case.raw is None else case.raw)
        found["plain"] = dice(plain, case.label, case.left_out)
        found["predicted"] = dice(corrector.predicted(fields, case.size), case.label, case.left_out)
    if case.given is None:
        return found
    labels = {
        source: corrector.corrected(
            fields, case.given, size=case.size, group=case.group, fits=fits, source=source
        ).masks
        for source in (("move",) if fields is None else ("move", "blend", "predict"))
        if source != "blend" or corrector.shape_weight
    }
    found["keep"] = dice(case.given, case.label, case.left_out)
    for source, label in labels.items():
        found[source] = dice(label, case.label, case.left_out)
    # What a person would have to believe: how a label differs from the given one, and from that as all cases move it.
    moved = corrector.corrected(None, case.given, size=case.size, group=case.group, fits=whole, source="move").masks
    for source, label in labels.items():
        found[f"{source} from keep"] = 1 - dice(label, case.given, case.left_out)
        found[f"{source} from move"] = 1 - dice(label, moved, case.left_out)
    return found


def _judged_class(
    evidence: Evidence,
    k: int,
    fit: ClassFit,
    rows: Sequence[dict[str, Any]],
    as_asked: bool,
    corrector: SpatialCorrector,
) -> ClassFit:
    pairs = evidence.pairs
    if evidence.predicted:
        names = ("plain", "predicted")
        before, after = (np.array([row[name][k] for row in rows]) for name in names)
        fit = judge_predictions(fit, before, after, as_asked)
    if as_asked:
        source = "blend" if fit.shape is not None and corrector.shape_weight else "predict"
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
