"""The false-positive filter: predicted objects that are not there, judged object by object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage, stats

from monai_sc.correction.shifts import clear_gain, student

FEATURES = ("mean_confidence", "peak_confidence", "size")
RISK = 0.01  # that a rule drops an object which is there


@dataclass(frozen=True)
class PresenceRates:
    """How often a class is predicted where it is absent, and not predicted where it is present, over clean cases.

    Attributes:
        num_absent: clean cases without the class.
        num_spurious: those of them with a prediction of it.
        spurious_interval: of their rate (exact, Clopper and Pearson 1934); ``(nan, nan)`` with no such case.
        num_present: clean cases with the class.
        num_missed: those of them without a prediction of it.
        missed_interval: of their rate.
    """

    num_absent: int
    num_spurious: int
    spurious_interval: tuple[float, float]
    num_present: int
    num_missed: int
    missed_interval: tuple[float, float]


def presence_rates(
    predicted: Sequence[bool] | np.ndarray, present: Sequence[bool] | np.ndarray, *, confidence: float = 0.95
) -> PresenceRates:
    """Return the rates of one class.

    Example:
        >>> rates = presence_rates([True, True, False, True], [True, False, False, True])
        >>> rates.num_spurious, rates.num_absent, rates.num_missed
        (1, 2, 0)
    """
    guess, truth = np.asarray(predicted, dtype=bool), np.asarray(present, dtype=bool)
    spurious, missed = int((guess & ~truth).sum()), int((~guess & truth).sum())
    absent, there = int((~truth).sum()), int(truth.sum())
    return PresenceRates(
        absent, spurious, _interval(spurious, absent, confidence), there, missed, _interval(missed, there, confidence)
    )


def _interval(count: int, total: int, confidence: float) -> tuple[float, float]:
    if not total:
        return (float("nan"), float("nan"))
    low, high = stats.binomtest(count, total).proportion_ci(confidence, method="exact")
    return float(low), float(high)


@dataclass(frozen=True)
class CaseObjects:
    """The predicted objects of one class in one case: connected components, by face neighbours.

    Attributes:
        features: ``(objects, features)``, in the order of ``FEATURES``.
        size: voxels of each.
        common: those of them in the clean label.
        given: whether an object overlaps the given label; ``False`` where there is none.
        true: voxels of the clean label.
        has_given: whether there is a given label.
    """

    features: np.ndarray
    size: np.ndarray
    common: np.ndarray
    given: np.ndarray
    true: int
    has_given: bool


def find_objects(logit: np.ndarray, *, voxel: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the objects of a prediction, and what tells how sure the network is of each.

    Args:
        logit: ``(*spatial)``, of one class against the rest; objects are where it is at least 0.
        voxel: volume of a voxel, for the size.

    Returns:
        The components ``(*spatial)``, 0 for the background, and their features ``(objects, features)``: mean and
        largest probability, and size.
    """
    mask = logit >= 0
    components, number = ndimage.label(mask)
    inside = components[mask]
    probability = 1 / (1 + np.exp(-logit[mask].astype(np.float64)))
    size = np.bincount(inside, minlength=number + 1)[1:]
    mean = np.bincount(inside, weights=probability, minlength=number + 1)[1:] / np.maximum(size, 1)
    peak = np.zeros(number + 1)
    np.maximum.at(peak, inside, probability)
    return components, np.stack([mean, peak[1:], size * voxel], axis=1)


def objects_of_case(
    logit: np.ndarray, label: np.ndarray, given: np.ndarray | None, ignored: np.ndarray | None, voxel: float
) -> CaseObjects:
    """Return the predicted objects of one class ``(*spatial)`` in a clean case."""
    if ignored is not None:
        logit, label = np.where(ignored, -np.inf, logit), label & ~ignored
    components, features = find_objects(logit, voxel=voxel)
    number = len(features)
    size = np.bincount(components.ravel(), minlength=number + 1)[1:]
    common = np.bincount(components[label], minlength=number + 1)[1:]
    touched = np.zeros(number + 1, dtype=bool)
    if given is not None:
        touched[components[given]] = True
    return CaseObjects(features, size, common, touched[1:], int(label.sum()), given is not None)


@dataclass(frozen=True)
class PresenceRule:
    """Keep a predicted object where a feature of it is at least a threshold.

    Attributes:
        feature: one of ``FEATURES``.
        threshold: in the unit of the feature: a probability, or a volume in voxels.
        drops_given: it also drops objects that overlap the given label, since clean cases show that such ones are
            false; else it never does.
        may_empty: it may drop all objects of a case, since some clean case is without the class.
        gain: in the mean Dice over all clean cases, each judged by the rule that the others give.
        dice_before: mean Dice over all clean cases, and over those that hold the class, without the rule.
        dice_after: the same with it, each case judged by the rule that the others give.
    """

    feature: str
    threshold: float
    drops_given: bool
    may_empty: bool
    gain: float
    dice_before: tuple[float, float]
    dice_after: tuple[float, float]

    def keeps(self, features: np.ndarray) -> np.ndarray:
        """Say of each object ``(objects, features)`` of a case whether it is kept; one is where none may be dropped."""
        values = features[:, FEATURES.index(self.feature)]
        kept = np.asarray(values >= self.threshold)
        if len(kept) and not self.may_empty and not kept.any():
            kept[int(np.argmax(values))] = True
        return kept


def choose_presence_rule(cases: Sequence[CaseObjects], rows: np.ndarray) -> PresenceRule | None:
    r"""Return the rule that raises the Dice over some clean cases most, ``None`` if none does clearly.

    A rule drops what is less sure, or smaller, than objects that are there: its threshold is the bound that the next
    such object falls under with a probability of 1 %, if the feature (log odds of a confidence, logarithm of a size) is
    normal over objects: their mean less :math:`t_{n-1} s \sqrt{1 + 1/n}`, and at most the least of them less
    :math:`s`. It leaves a case without the class only if some clean case is without it. Nothing is searched, so that a
    few cases are not fitted by chance. Each case is judged by the bound of the others. A rule must raise the mean over
    all cases clearly (:py:func:`~monai_sc.correction.shifts.clear_gain`), and must not lower it over the cases that
    hold the class. It drops objects that overlap the given label only if that is clearly better still.
    """
    own = [cases[i] for i in rows]
    size, common, given = (np.concatenate([*(getattr(c, n) for c in own), []]) for n in ("size", "common", "given"))
    # An object of which half is right never lowers the Dice.
    if (2 * common >= size).all():
        return None
    count = len(own)
    of = np.repeat(np.arange(count), [len(case.size) for case in own])
    true = np.array([case.true for case in own])
    present, may_empty = true > 0, bool((true == 0).any())

    def dice(kept: np.ndarray) -> np.ndarray:
        total = np.bincount(of, size * kept, count) + true
        return np.where(total > 0, 2 * np.bincount(of, common * kept, count) / np.maximum(total, 1), 1.0)

    before = dice(np.ones(len(of)))
    best: PresenceRule | None = None
    for index, name in enumerate(FEATURES):
        values = _normal(np.concatenate([case.features[:, index] for case in own]), name)
        real = common > 0
        bound = _bound(values[real])
        limits = _bounds_of_others(values[real], of[real], count)
        kept = values >= limits[of]
        for i in () if may_empty else np.flatnonzero(np.bincount(of, kept, count) == 0):
            objects = np.flatnonzero(of == i)
            kept[objects[values[objects] == values[objects].max(initial=-np.inf)][:1]] = True
        # Objects that were drawn stay; then all that are under the bound go.
        spared, after = dice(kept | (given > 0)), dice(kept)
        drops_given = any(case.has_given for case in own) and clear_gain(after - spared)
        judged = after if drops_given else spared
        gain = float(judged.mean() - before.mean())
        holds = not present.any() or judged[present].mean() >= before[present].mean()
        if not np.isfinite(bound) or not holds or not clear_gain(judged - before) or (best and gain <= best.gain):
            continue
        best = PresenceRule(
            name,
            float(np.exp(bound) if name == "size" else 1 / (1 + np.exp(-bound))),
            drops_given,
            may_empty,
            gain,
            (float(before.mean()), _mean(before[present])),
            (float(judged.mean()), _mean(judged[present])),
        )
    return best


def smallest_object(labels: Sequence[np.ndarray]) -> float:
    """Return a size under which a class has no object, by the sizes of the objects of each clean label.

    It is the bound that the next object falls under with a probability of 1 %, and no more than the smallest one that
    there is; with fewer than three objects a quarter of that, and 0 where there is none.
    """
    sizes = np.concatenate([*labels, np.zeros(0)])
    if not len(sizes):
        return 0.0
    if len(sizes) < 3:
        return float(sizes.min() / 4)
    logs = np.log(sizes)
    step = student(1 - RISK, len(logs)) * logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))
    return float(min(np.exp(logs.mean() - step), sizes.min()))


def object_sizes(mask: np.ndarray, voxel: float) -> np.ndarray:
    """Return the sizes of the connected components of a mask ``(*spatial)``."""
    components, number = ndimage.label(mask)
    return np.asarray(np.bincount(components.ravel(), minlength=number + 1)[1:] * voxel)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _normal(values: np.ndarray, name: str) -> np.ndarray:
    """Return a feature on a scale on which it may be normal."""
    if name == "size":
        return np.asarray(np.log(np.maximum(values, 1e-9)))
    inside = np.clip(values, 1e-9, 1 - 1e-9)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _bounds_of_others(known: np.ndarray, of: np.ndarray, count: int) -> np.ndarray:
    """Return for each case the bound of the values of all others; ``of`` is the case of each value."""
    if not len(known):
        return np.full(count, -np.inf)
    known = known - (middle := known.mean())
    number = len(known) - np.bincount(of, minlength=count)
    safe = np.maximum(number, 2)
    mean = (known.sum() - np.bincount(of, known, count)) / safe
    squares = (known**2).sum() - np.bincount(of, known**2, count)
    spread = np.sqrt(np.maximum(squares - safe * mean**2, 0) / (safe - 1))
    least = np.full(count, np.inf)
    np.minimum.at(least, of, known)
    order = np.argsort(least)
    others = np.full(count, least[order[0]])
    others[order[0]] = least[order[1]] if count > 1 else np.inf
    step = np.array([student(1 - RISK, n) for n in safe.tolist()]) * spread * np.sqrt(1 + 1 / safe)
    return np.where(number < 3, -np.inf, middle + np.minimum(mean - step, others - spread))


def _bound(known: np.ndarray) -> float:
    """Return what the next of these values falls under with a probability of ``RISK``; minus infinity if unknown."""
    if len(known) < 3:
        return float("-inf")
    spread = float(known.std(ddof=1))
    step = student(1 - RISK, len(known)) * spread * np.sqrt(1 + 1 / len(known))
    return float(min(known.mean() - step, known.min() - spread))
