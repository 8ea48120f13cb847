"""What the cells of a comparison have measured: means, intervals, and which differences are significant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from monai_sc.benchmark.cells import CellResult

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
    """Return the 95 % percentile interval of the mean of values, and the means of the bootstrap samples."""
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


MEAN = "mean"  # over the classes
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Run:
    """The result of one training, with its place in the tables."""

    noise: str
    method: str
    seed: int
    result: CellResult


def run_rows(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return one row per run and class, and one for the mean of the classes: Dice over cases, and how it was trained.

    ``dice`` and ``std`` (of the sample, nan for one case) are over the cases in which they are defined.
    """
    rows = []
    for run in runs:
        result = run.result
        for name, values in zip((*result.classes, MEAN), result.with_mean.T, strict=True):
            dice, std = mean_and_std(values)
            rows.append(
                {
                    "noise": run.noise,
                    "method": run.method,
                    "seed": run.seed,
                    "class": name,
                    "dice": dice,
                    "std": std,
                    "epochs": result.epochs,
                    "seconds": result.seconds,
                    "image_size": size_text(result.image_size),
                }
            )
    return rows


def summarise(
    runs: Sequence[Run], *, against: str = "sc", paper: Mapping[str, Mapping[str, float]] | None = None
) -> dict[str, Any]:
    """Return what a comparison found, as JSON types but for nan: by noise, then method, in the order of ``runs``.

    Each method has Dice by class, the mean over seeds of the means over cases, with its standard deviation over seeds
    (nan for one seed); the 95 % interval of its total over test cases; and its difference from the method ``against``:
    the Dice of each case is averaged over the seeds that both have, and the cases are resampled in pairs
    (``paired_difference``). p-values are adjusted for the number of methods of
    a noise.

    Args:
        runs: in the order of the tables.
        against: the method that the others are compared with.
        paper: totals that the paper reports, by noise and method.

    Raises:
        ValueError: when runs have different classes.
    """
    classes = {run.result.classes for run in runs}
    if len(classes) > 1:
        raise ValueError(f"All trainings of a comparison must have the same classes, got {sorted(classes)}.")
    names = [*(classes.pop() if classes else ()), MEAN]
    noises: dict[str, dict[str, Any]] = {}
    for noise in dict.fromkeys(run.noise for run in runs):
        here: dict[str, list[Run]] = {}
        for run in runs:
            if run.noise == noise:
                here.setdefault(run.method, []).append(run)
        methods = {method: _method(own, names) for method, own in here.items()}
        for method, row in methods.items():
            row["paper"] = (paper or {}).get(noise, {}).get(method)
        _compare(methods, here, against)
        noises[noise] = methods
    return {"classes": names[:-1], "against": against, "noises": noises}


def _method(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    means = np.array([[mean_and_std(values)[0] for values in run.result.with_mean.T] for run in runs])
    dice = {name: mean_and_std(values) for name, values in zip(names, means.T, strict=True)}
    cases = _cases(runs)
    total = np.array(list(cases.values()))
    return {
        "seeds": [run.seed for run in runs],
        "dice": {name: mean for name, (mean, _) in dice.items()},
        "std": {name: std for name, (_, std) in dice.items()},
        "dice_by_seed": means[:, -1].tolist(),
        "interval": list(bootstrap_mean(total[np.isfinite(total)])[0]),
        "num_cases": len(cases),
        "epochs": sorted({run.result.epochs for run in runs if run.result.epochs is not None}),
        "seconds": float(np.mean([run.result.seconds for run in runs])),
        "image_size": sorted({size_text(run.result.image_size) for run in runs}),
    }


def _compare(methods: dict[str, dict[str, Any]], runs: Mapping[str, Sequence[Run]], against: str) -> None:
    """Add the difference of each method from one of them; ``None`` where the two have no seed or case in common."""
    compared = []
    for method, row in methods.items():
        row["difference"] = None
        if method == against or against not in runs:
            continue
        seeds = {run.seed for run in runs[method]} & {run.seed for run in runs[against]}
        own, other = (_cases([run for run in runs[name] if run.seed in seeds]) for name in (method, against))
        both = [case for case in own if case in other]
        found = paired_difference(np.array([own[case] for case in both]), np.array([other[case] for case in both]))
        if found.num_cases:
            row["difference"] = {
                "mean": found.mean,
                "interval": list(found.interval),
                "p": found.p_value,
                "num_cases": found.num_cases,
                "seeds": sorted(seeds),
            }
            compared.append(row["difference"])
    for difference, adjusted in zip(compared, holm([one["p"] for one in compared]), strict=True):
        difference["p_holm"] = adjusted
        difference["significant"] = bool(adjusted < SIGNIFICANT)


def _cases(runs: Sequence[Run]) -> dict[str, float]:
    """Return the Dice of each case over all classes, the mean over the seeds that have the case."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for case, value in zip(run.result.cases, run.result.with_mean[:, -1], strict=True):
            found.setdefault(case, []).append(float(value))
    return {case: mean_and_std(np.array(values))[0] for case, values in found.items()}


def mean_and_std(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sample without its nan; nan where there are too few values.

    Example:
        >>> import numpy as np
        >>> mean_and_std(np.array([1.0, 3.0, np.nan]))
        (2.0, 1.4142135623730951)
    """
    values = values[np.isfinite(values)]
    return (
        float(values.mean()) if len(values) else np.nan,
        float(values.std(ddof=1)) if len(values) > 1 else np.nan,
    )


def size_text(size: Sequence[int]) -> str:
    """Return a size as users read it.

    Example:
        >>> size_text([128, 128])
        '128x128'
    """
    return "x".join(map(str, size))
