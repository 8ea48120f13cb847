"""Fit one class on the clean cases: its bias, its shift, its false-positive filter, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monai_sc.correction.boundaries import GivenShape, learn_given_shape
from monai_sc.correction.evidence import Evidence
from monai_sc.correction.presence import (
    PresenceRates,
    PresenceRule,
    choose_presence_rule,
    presence_rates,
    smallest_object,
)
from monai_sc.correction.shifts import ClassCorrection, choose_correction, clear_gain, excludes_zero, student
from monai_sc.functional.bias import boundary_bias

SOURCES = ("keep", "move", "blend", "predict")
"""Where a corrected label comes from: it stays; it is moved; a prediction with its shape; a prediction."""

LEARNT = 0.5  # Dice on the clean cases that hold a class under which its prediction, uncorrected, is mostly wrong


@dataclass(frozen=True)
class ClassBias:
    """The boundary bias of a class over the clean cases, see :py:class:`monai_sc.functional.BoundaryBias`."""

    mean: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    num_used: int = 0
    num_skipped: int = 0
    spread: float = math.nan
    verdict: str = "cannot tell"

    @classmethod
    def of(cls, displacements: np.ndarray, tolerance: float) -> ClassBias:
        """Return the bias of displacements ``(cases,)``; ``nan`` is a case to skip."""
        if not np.isfinite(displacements).any():
            return cls(num_skipped=len(displacements))
        found = boundary_bias(displacements[:, None], tolerance=tolerance)
        low, high = (float(v) for v in found.interval[0])
        return cls(
            float(found.mean[0]),
            (low, high),
            int(found.num_used[0]),
            int(found.num_skipped[0]),
            float(found.spread[0]),
            found.verdict[0],
        )


@dataclass(frozen=True)
class Judgement:
    """What a correction is worth on held-out clean cases.

    Attributes:
        of: ``"labels"``, compared with the given ones, or ``"predictions"``, compared with uncorrected ones.
        before: Dice of each case that judges, as it was.
        after: Dice of each, corrected by what the others give.
        accepted: whether the correction is made.
        note: why.
    """

    of: str = "predictions"
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    accepted: bool = False
    note: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the mean Dice before and after, the standard error of the difference, and the number of cases."""
        gains = np.subtract(self.after, self.before)
        error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.nan
        return {
            "of": self.of,
            "cases": len(self.before),
            "before": float(np.mean(self.before)) if self.before else math.nan,
            "after": float(np.mean(self.after)) if self.after else math.nan,
            "error": error,
            "accepted": self.accepted,
            "note": self.note,
        }


@dataclass(frozen=True)
class ClassFit:
    """What is known of one class, and what is done with it; distances are in voxels.

    Attributes:
        correction: of predictions.
        move: of given labels.
        rule: for predicted objects that are not there.
        rates: how often the class is predicted where it is absent, and missed where it is present.
        shape: how given labels lie to corrected predictions.
        source: of a corrected label, one of ``SOURCES``.
        network: bias of the predictions.
        labels: bias of the given labels, where cases have both.
        judged: what the correction is worth on held-out cases.
        judged_labels: the same for labels, where cases have both.
        dice_present: mean Dice of the uncorrected prediction over the clean cases that hold the class.
        limit: a corrected label that differs more than this (1 less Dice) from the moved given one is not believed.
        smallest: volume under which the class has no object.
        pending: correction of predictions that a single clean case gives, until other cases say whether it is large.
        num_pairs: clean cases that have both labels.
        single_dice: Dice of a single clean case, corrected by itself.
    """

    correction: ClassCorrection = field(default_factory=ClassCorrection)
    move: ClassCorrection = field(default_factory=ClassCorrection)
    rule: PresenceRule | None = None
    rates: PresenceRates | None = None
    shape: GivenShape | None = None
    source: str = "predict"
    network: ClassBias = field(default_factory=ClassBias)
    labels: ClassBias = field(default_factory=ClassBias)
    judged: Judgement = field(default_factory=Judgement)
    judged_labels: Judgement = field(default_factory=lambda: Judgement("labels"))
    dice_present: float = math.nan
    limit: float = math.nan
    smallest: float = 0.0
    pending: ClassCorrection | None = None
    num_pairs: int = 0
    single_dice: float = math.nan

    @property
    def learnt(self) -> bool:
        """Whether the network has learnt the class, as far as clean cases can say."""
        return not self.dice_present < LEARNT


def fit_class(
    evidence: Evidence,
    k: int,
    rows: np.ndarray,
    *,
    representation: str,
    gamma: float,
    presence: bool,
    cap: float,
    clearly: bool = True,
) -> ClassFit:
    """Fit one class on some of the clean cases; what that is worth is not judged yet."""
    fit = ClassFit(smallest=smallest_object([evidence.rows[i].sizes[k] for i in rows]))
    groups = evidence.groups
    displacement, given = (evidence.column(name)[:, k] for name in ("displacement", "given_displacement"))
    pairs = np.intersect1d(rows, evidence.pairs)
    if evidence.predicted:
        correction = choose_correction(
            evidence.tables[k],
            displacement,
            representation,
            rows,
            gamma=gamma,
            groups=groups,
            clearly=clearly,
            cap=cap,
        )
        rule = choose_presence_rule(evidence.objects(k), rows) if presence else None
        fit = replace(fit, correction=correction, rule=rule)
    if len(pairs):
        move = choose_correction(evidence.given_tables[k], given, "auto", pairs, groups=groups, clearly=clearly)
        fit = replace(fit, move=move)
    if len(pairs) > 1 and evidence.predicted:
        offsets = evidence.column("offset")[pairs, k]
        own = [fit.correction.shift_of(None if groups is None else groups[i]) for i in pairs]
        usable = displacement[rows][np.isfinite(displacement[rows])]
        spread = float(usable.std(ddof=1)) if len(usable) > 1 else math.nan
        names = None if groups is None else [groups[i] for i in pairs]
        agreement = evidence.column("agreement")[pairs, k].tolist()
        fit = replace(fit, shape=learn_given_shape((offsets + own).tolist(), agreement, spread, names))
    return fit


def describe_class(evidence: Evidence, k: int, fit: ClassFit, tolerance: float) -> ClassFit:
    """Return a fit with the bias of predictions and labels, and what is known of existence."""
    present = evidence.column("present")[:, k]
    if evidence.predicted:
        scores = evidence.column("dice")[:, k]
        found = [len(case.size) > 0 for case in evidence.objects(k)]
        fit = replace(
            fit,
            network=ClassBias.of(evidence.column("displacement")[:, k], tolerance),
            rates=presence_rates(found, present),
            dice_present=float(scores[present].mean()) if present.any() else math.nan,
        )
        if len(scores) == 1:
            table = evidence.tables[k]
            fit = replace(fit, single_dice=float(table.dice[0, table.nearest(fit.correction.shift)]))
    pairs = evidence.pairs
    fit = replace(fit, num_pairs=len(pairs))
    if len(pairs):
        fit = replace(fit, labels=ClassBias.of(evidence.column("given_displacement")[pairs, k], tolerance))
    return fit


def judge_predictions(fit: ClassFit, before: np.ndarray, after: np.ndarray, as_asked: bool) -> ClassFit:
    """Return a fit whose correction of predictions is taken back unless held-out cases are clearly better with it.

    Args:
        fit: by all clean cases.
        before: Dice ``(cases,)`` of uncorrected predictions.
        after: corrected, each by what the others say.
        as_asked: the correction was asked for, and is made whatever it does.
    """
    changes = fit.correction.representation != "none" or fit.rule is not None
    if len(before) < 2:
        judged = Judgement("predictions", (), (), as_asked, "a single clean case leaves none for judging")
        if as_asked or fit.correction.representation == "none":
            return replace(fit, judged=judged)
        return replace(fit, judged=judged, correction=_undone(fit.correction, SINGLE), pending=fit.correction)
    enough = clear_gain(after - before) if len(before) > 2 else bool((after - before).mean() > 0)
    accepted = as_asked or (changes and enough)
    note = "as asked" if as_asked else "held-out cases are clearly better with it" if accepted else "no clear gain"
    if changes and not accepted:
        reason = "on held-out clean cases its correction shows no clear gain"
        fit = replace(fit, rule=None, correction=_undone(fit.correction, reason))
    done = after if accepted else before
    return replace(fit, judged=Judgement("predictions", (*before.tolist(),), (*done.tolist(),), accepted, note))


def _undone(correction: ClassCorrection, note: str) -> ClassCorrection:
    """Return a correction that is not made, for a reason."""
    if correction.representation == "none":
        return replace(correction, note=note) if note == SINGLE else correction
    before = correction.dice_before
    return replace(correction, representation="none", shift=0.0, group_shifts={}, dice_after=before, note=note)


SINGLE = "based on a single clean case: made only if it is large compared with the differences between other cases"


def judge_labels(
    fit: ClassFit,
    keep: np.ndarray,
    dice: Mapping[str, np.ndarray],
    differs: Mapping[tuple[str, str], np.ndarray],
    given: np.ndarray,
) -> ClassFit:
    """Return a fit with the source of corrected labels that held-out pairs speak for.

    Moved labels must beat given ones clearly, and what a network says must clearly beat the better of them. The choice
    is repeated without each case, which then judges it; with two cases there are too few for that.

    Args:
        fit: by all clean cases.
        keep: Dice ``(pairs,)`` of the given labels.
        dice: by source, Dice of the labels that it gives, each by what the other cases say.
        differs: by source, and ``"keep"`` or ``"move"``, 1 less the Dice of these labels with those.
        given: displacement of the given labels.
    """
    rows = np.arange(len(keep))
    two = len(keep) == 2
    can_move = fit.move.representation != "none" and (not two or excludes_zero(given))
    network = [name for name in ("blend", "predict") if name in dice] if fit.learnt else []

    def choose(chosen: np.ndarray, better: Callable[[np.ndarray], bool]) -> str:
        best = "move" if can_move and better(dice["move"][chosen] - keep[chosen]) else "keep"
        known = keep if best == "keep" else dice[best]
        for name in sorted(network, key=lambda n: -dice[n][chosen].mean())[:1]:
            if better(dice[name][chosen] - known[chosen]):
                return name
        return best

    source = choose(rows, clear_gain)
    after = keep.copy()
    for i in rows:
        other = source if two else choose(rows[rows != i], lambda gains: bool(gains.mean() > 0))
        after[i] = keep[i] if other == "keep" else dice[other][i]
    accepted = source != "keep" and clear_gain(after - keep)
    words = {
        "move": "held-out labels are clearly better when moved by their bias",
        "blend": "held-out labels are clearly better when corrected by the network and blended with the given shape",
        "predict": "corrected by the network, held-out labels are clearly better",
    }
    note = words[source] if accepted else "no correction makes held-out labels clearly better"
    judged = Judgement("labels", (*keep.tolist(),), (*(after if accepted else keep).tolist(),), accepted, note)
    fit = replace(fit, source=source if accepted else "keep", judged_labels=judged)
    if not accepted or source == "move":
        return fit
    moves = can_move and clear_gain(dice["move"] - keep)
    move = fit.move if moves else replace(fit.move, representation="none", shift=0.0, group_shifts={})
    return replace(fit, move=move, limit=upper_bound(differs[source, "move" if moves else "keep"]))


def upper_bound(values: Sequence[float] | np.ndarray, risk: float = 0.01) -> float:
    """Return what the next of these positive values exceeds with a probability of ``risk``, at least the largest."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return math.nan
    if len(known) < 3:
        return float(max(2 * known.max(), 0.1))
    logs = np.log(np.maximum(known, 0.02))  # under it, values are rounding of the boundary to voxels
    step = student(1 - risk, len(logs)) * logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs))
    return float(max(min(1.0, np.exp(logs.mean() + step)), known.max()))


def group_of(groups: Sequence[Hashable] | None, index: int) -> Hashable:
    """Return the group of a case, ``None`` where there are none."""
    return None if groups is None else groups[index]
