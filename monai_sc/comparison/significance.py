"""Is one method better than another, or are the test cases too few to tell?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

NUM_RESAMPLES = 9999
BATCH = 1000  # resamples at a time, which bounds the memory


@dataclass(frozen=True)
class Difference:
    """A mean difference over cases.

    Attributes:
        mean: of the differences.
        interval: of 95 %, nan with fewer than two cases.
        p_value: two-sided, nan with fewer than two cases.
        num_cases: that it is the mean of.
    """

    mean: float
    interval: tuple[float, float]
    p_value: float
    num_cases: int


def bootstrap_mean(values: np.ndarray) -> tuple[tuple[float, float], np.ndarray]:
    """Return the 95 % percentile interval of the mean of values, and the means of the bootstrap samples.

    Args:
        values: ``(cases,)``; with fewer than two the interval is nan, and there are no samples.
    """
    if len(values) < 2:
        return (np.nan, np.nan), np.empty(0)
    result = bootstrap(
        (values,),
        np.mean,
        n_resamples=NUM_RESAMPLES,
        batch=BATCH,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return (float(result.confidence_interval.low), float(result.confidence_interval.high)), (
        result.bootstrap_distribution
    )


def paired_difference(first: np.ndarray, second: np.ndarray) -> Difference:
    r"""Return the mean of ``first - second`` over cases, with the interval and the p-value of a paired bootstrap.

    Cases are drawn with replacement, a case of both at once (Efron and Tibshirani 1993, chapters 13 and 15). With
    :math:`m^*_1 \dots m^*_B` the means of the samples,
    :math:`p = \min(1, 2 (1 + \min(\#\{m^* \le 0\}, \#\{m^* \ge 0\})) / (B + 1))`, and the interval is that of their
    percentiles, so that both say the same. With few cases the bootstrap is too sure of itself: ``p`` is at least
    :math:`2^{1 - n}` for ``n`` cases, the least of any test that swaps the two in each pair.

    Args:
        first: ``(cases,)``, such as the mean Dice of each case; pairs with a nan are left out.
        second: ``(cases,)``, of the same cases.

    Example:
        >>> import numpy as np
        >>> better = paired_difference(np.array([0.8, 0.9, 0.7, 0.8]), np.array([0.7, 0.7, 0.6, 0.6]))
        >>> round(better.mean, 2), better.p_value
        (0.15, 0.125)
    """
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    difference = difference[np.isfinite(difference)]
    interval, samples = bootstrap_mean(difference)
    if not len(samples):
        return Difference(float(difference.mean()) if len(difference) else np.nan, interval, np.nan, len(difference))
    extreme = min(int((samples <= 0).sum()), int((samples >= 0).sum()))
    p_value = min(1.0, max(2 * (1 + extreme) / (1 + len(samples)), 2.0 ** (1 - len(difference))))
    return Difference(float(difference.mean()), interval, p_value, len(difference))


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Return p-values adjusted for their number (Holm 1979).

    In rising order, :math:`\tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1) p_{(j)})`. A nan stays, and does not
    count among the ``m``.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted = [float(p) for p in p_values]
    order = sorted((k for k in range(len(adjusted)) if adjusted[k] == adjusted[k]), key=lambda k: adjusted[k])
    largest = 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * adjusted[k]))
        adjusted[k] = largest
    return adjusted
