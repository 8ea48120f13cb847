"""Existence: how often a prediction holds an object that is not there, and the rule that drops such objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

__all__ = ["FEATURES", "PresenceRates", "PresenceRule", "choose_presence_rule", "presence_features", "presence_rates"]

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

    Args:
        predicted: for each clean case whether the class is predicted in it.
        present: for each clean case whether its label holds the class.
        confidence: of the intervals.

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


def presence_features(logit: np.ndarray, *, voxel: float = 1.0) -> np.ndarray:
    """Return what tells of one class how sure the network is that it is there: one value per name in ``FEATURES``.

    Args:
        logit: ``(*spatial)``, of one class against the rest; the object is where it is at least 0.
        voxel: volume of a voxel, for the size.
    """
    inside = logit[logit >= 0]
    if not inside.size:
        return np.zeros(len(FEATURES))
    probability = 1 / (1 + np.exp(-inside.astype(np.float64)))
    return np.array([probability.mean(), probability.max(), inside.size * voxel])


@dataclass(frozen=True)
class PresenceRule:
    """Keep an object where a feature of its prediction is at least a threshold.

    Attributes:
        feature: one of ``FEATURES``.
        threshold: in the unit of the feature: a probability, or a volume.
        gain: in the mean Dice over all clean cases, each judged by the rule that the others give.
        dice_before: mean Dice over all clean cases, and over those that hold the class, without the rule.
        dice_after: the same with it.
    """

    feature: str
    threshold: float
    gain: float
    dice_before: tuple[float, float]
    dice_after: tuple[float, float]

    def keeps(self, features: np.ndarray) -> bool:
        """Say whether an object with these :py:func:`~monai_sc.correction.presence.presence_features` is kept."""
        return bool(features[FEATURES.index(self.feature)] >= self.threshold)

    def as_dict(self) -> dict[str, Any]:
        """Return the rule as JSON types."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PresenceRule:
        """Return the rule that :py:meth:`as_dict` wrote."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
        return cls(**values)


def choose_presence_rule(
    features: np.ndarray, kept_dice: np.ndarray, present: np.ndarray, floor: float
) -> PresenceRule | None:
    r"""Return the rule that raises the Dice over all clean cases most, ``None`` if none does.

    A rule drops what is less sure, or smaller, than objects that are there: its threshold is the bound that the next
    such object falls under with a probability of 1 %, if the feature (log odds of a confidence, logarithm of a size) is
    normal over objects: their mean less :math:`t_{n-1} s \sqrt{1 + 1/n}`. Nothing is searched, so that a few cases
    are not fitted by chance. Dropping an object makes the Dice of a case 1 where the class is absent, else 0. A rule
    must raise the mean over all cases, also when each case is judged by the bound of the others, and must not lower
    the mean over the cases that hold the class under ``floor``.

    Args:
        features: ``(cases, features)`` of :py:func:`~monai_sc.correction.presence.presence_features`.
        kept_dice: ``(cases,)``, Dice of each case with its object kept.
        present: ``(cases,)``, whether the clean label holds the class.
        floor: what the mean over the cases that hold the class must not fall under.
    """
    found = features[:, FEATURES.index("size")] > 0
    dropped_dice = np.where(present, 0.0, 1.0)
    best: PresenceRule | None = None
    for index, name in enumerate(FEATURES):
        values = _normal(features[:, index], name)
        bounds = [_bound(values, present & found & (np.arange(len(values)) != case)) for case in range(len(values))]
        bound = _bound(values, present & found)
        judged, after = (
            np.where(found & (values < limit), dropped_dice, kept_dice) for limit in (np.array(bounds), bound)
        )
        gain = float(judged.mean() - kept_dice.mean())
        enough = all(d.mean() > kept_dice.mean() and d[present].mean() >= floor for d in (judged, after))
        if not enough or (best is not None and gain <= best.gain):
            continue
        best = PresenceRule(
            name,
            float(np.exp(bound) if name == "size" else 1 / (1 + np.exp(-bound))),
            gain,
            (float(kept_dice.mean()), float(kept_dice[present].mean())),
            (float(after.mean()), float(after[present].mean())),
        )
    return best


def _normal(values: np.ndarray, name: str) -> np.ndarray:
    """Return a feature on a scale on which it may be normal."""
    if name == "size":
        return np.asarray(np.log(np.maximum(values, 1e-9)))
    inside = np.clip(values, 1e-9, 1 - 1e-9)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _bound(values: np.ndarray, chosen: np.ndarray) -> float:
    """Return what the next of these values falls under with a probability of ``RISK``; minus infinity if unknown."""
    known = values[chosen]
    if len(known) < 3:
        return float("-inf")
    step = stats.t.ppf(1 - RISK, len(known) - 1) * known.std(ddof=1) * np.sqrt(1 + 1 / len(known))
    return float(known.mean() - step)
