"""The parameters of the Markov label noise that best explain pairs of clean and real masks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.checks import binary_mask, check_same_shape, check_spacing
from monai_sc.functional.distance import has_boundary
from monai_sc.functional.noise import MarkovParameters, case_seed, markov_label_noise
from monai_sc.functional.pair_statistics import (
    SCALARS,
    CleanMask,
    ErrorTable,
    PairErrors,
    PairStatistics,
    pair_statistics,
    split_strays,
)
from monai_sc.functional.synthetic_likelihood import Posterior, fit_by_simulation

__all__ = ["MarkovFit", "draw_num_steps", "fit_markov_noise"]

NUM_RESAMPLES = 400
MIN_GROUPS = 5
MOST_SMOOTHING, LEAST_SMOOTHING = 3.0, 0.5  # a narrower filter changes no voxel
MOST_SPREAD = 2.0
NO_SMOOTHING = 0.13  # share of its coordinate
MOST_FLIPS = 0.3
LEAST_TRAVEL = 0.05  # steps times march_prob, in steps


def draw_num_steps(num_steps: int, step_spread: float, seed: int) -> int:
    """Return the number of steps of one case: log-normal over cases, cut off two standard deviations from the median.

    Args:
        num_steps: median over cases, at least 0.
        step_spread: standard deviation of the logarithm of the number over cases; 0 gives ``num_steps`` to all.
        seed: of this case.
    """
    deviation = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,))).standard_normal()
    return round(num_steps * float(np.exp(step_spread * np.clip(deviation, -2, 2))))


@dataclass(frozen=True)
class MarkovFit:
    """A Markov label noise that resembles real annotation error, and how well it does.

    Attributes:
        parameters: for :py:func:`~monai_sc.functional.markov_label_noise`, as ``**fit.parameters``; where cases differ
            in their number of steps (``step_spread`` over 0), that of the median case, and
            :py:meth:`parameters_of` gives those of a case.
        step_spread: standard deviation over cases of the logarithm of their number of steps; 0 unless it was fitted.
        intervals: 95 % interval of each parameter. A wide one is not identified by these pairs; see ``draws``.
        draws: ``(draws,)`` of each parameter, drawn jointly: where one trades off with another (more steps, each with a
            smaller ``march_prob``), they lie along a line. A ``smooth_sigma`` of 0 stands for no smoothing.
        real: statistics of the given pairs.
        simulated: the same statistics with the noise that was fitted.
        standard_errors: of each statistic in ``real``, from a bootstrap over groups.
        distance: sum over the statistics of their squared difference over its variance, on the scales of the fit.
        p_value: probability of such a distance or a larger one if the noise were of this law. A small one says that the
            law does not make errors of this kind; the statistics that differ say which.
        num_used: pairs that were used, one for each channel.
        num_skipped: pairs that were not, since a mask is empty or full.
        vanished: share of the simulated masks that the noise left empty or full, which are skipped, too.
        num_groups: groups that the used pairs come from.
    """

    parameters: dict[str, Any]
    step_spread: float
    intervals: dict[str, tuple[float, float]]
    draws: dict[str, np.ndarray]
    real: PairStatistics
    simulated: PairStatistics
    standard_errors: dict[str, float]
    distance: float
    p_value: float
    num_used: int
    num_skipped: int
    vanished: float
    num_groups: int

    def parameters_of(self, case_id: str, seed: int = 0) -> dict[str, Any]:
        """Return the parameters of one case, with a number of steps that depends on ``seed`` and ``case_id`` alone."""
        steps = draw_num_steps(self.parameters["num_steps"], self.step_spread, case_seed(seed, case_id))
        return {**self.parameters, "num_steps": steps}


def fit_markov_noise(
    clean: Sequence[NdarrayOrTensor],
    noisy: Sequence[NdarrayOrTensor],
    *,
    spacing: Sequence[float] | Sequence[Sequence[float]] | None = None,
    groups: Sequence[Hashable] | None = None,
    vary_steps: bool = False,
    weights: Mapping[str, float] | None = None,
    max_steps: int = 100,
    budget: int = 60_000,
    seed: int = 0,
) -> MarkovFit:
    r"""Fit the Markov label noise to pairs of clean and noisy masks.

    The noise is simulated on the clean masks, and its parameters are those for which eight statistics of the simulated
    pairs resemble those of the real ones: see :py:class:`~monai_sc.functional.pair_statistics.PairStatistics`.
    Differences are measured in standard errors, on the scale of the logarithm for spreads and lengths, and of the root
    for the rate of strays. The method is that of a synthetic likelihood (Wood, Nature 2010), see
    :py:func:`~monai_sc.functional.synthetic_likelihood.fit_by_simulation`; the prior law is uniform in
    :math:`\log T`, :math:`\theta_1`, :math:`\log \theta_2`, :math:`\theta_3^{1/4}` and the width of the smoothing.

    With the same number of steps for all, the error of the law is much alike in all cases, but people agree on most
    cases and disagree much on few. ``vary_steps`` gives each case its own number of steps, log-normal over cases; the
    law of a case stays what it is.

    Args:
        clean: each ``(channels, *spatial)``, 0 and 1 only, in 2D or 3D; shapes may differ. All channels are fitted
            together: fit classes that differ one by one.
        noisy: the same structures as someone else drew them, same shapes. A channel that is empty or full here or in
            ``clean`` is skipped.
        spacing: size of a voxel along each spatial axis, in mm, of all pairs; or one such sequence per pair. The
            parameters are then in steps of the smallest side of a voxel, as ``markov_label_noise(spacing=...)`` takes
            them.
        groups: of each pair, such as its patient: pairs of a group resemble each other, so that uncertainty is measured
            over groups. Without them each pair is a group.
        vary_steps: fit how much the number of steps differs between cases, too.
        weights: of statistics in the distance, by name; 1 where it is not given, and 0 leaves a statistic out. Where
            the law cannot reach all of them, it says which matter.
        max_steps: most (median) steps that are tried, at least 1.
        budget: pairs that are simulated in all, at least 20000; about a minute for the default and masks of 128 x 128.
        seed: of the simulations and the search; the result depends on nothing else.

    Raises:
        ValueError: when ``clean`` and ``noisy`` do not match, fewer than 5 groups have a usable pair, all usable pairs
            are equal, or an option is out of range.
    """
    for name, value, least in (
        ("max_steps", max_steps, 1),
        ("budget", budget, 20_000),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    pairs = _Pairs(clean, noisy, spacing, groups)
    covariance = pairs.covariance(np.random.default_rng([seed, 0]))
    weight = _weights_of(weights)
    problem = _Problem(pairs, vary_steps, max_steps, seed)
    posterior = fit_by_simulation(
        problem.simulate,
        problem.snap,
        problem.num_parameters,
        pairs.observed,
        covariance,
        weights=weight,
        budget=budget,
        seed=seed,
    )
    return _report(pairs, problem, posterior, covariance, weight)


def _weights_of(weights: Mapping[str, float] | None) -> np.ndarray:
    given = dict(weights or {})
    for name, value in given.items():
        if name not in SCALARS:
            raise ValueError(f"weights must be of {', '.join(SCALARS)}, got one of {name!r}.")
        if not (value >= 0 and np.isfinite(value)):
            raise ValueError(f"weights must be at least 0, got {value} for {name}.")
    return np.array([max(float(given.get(name, 1)), 1e-9) for name in SCALARS])


class _Pairs:
    """The usable pairs, cut down to the surroundings of the structures."""

    def __init__(
        self,
        clean: Sequence[NdarrayOrTensor],
        noisy: Sequence[NdarrayOrTensor],
        spacing: Sequence[float] | Sequence[Sequence[float]] | None,
        groups: Sequence[Hashable] | None,
    ) -> None:
        if len(clean) != len(noisy):
            raise ValueError(f"clean and noisy must have the same number of masks, got {len(clean)} and {len(noisy)}.")
        if groups is not None and len(groups) != len(clean):
            raise ValueError(f"groups must have one entry per pair ({len(clean)}), got {len(groups)}.")
        one_for_all = spacing is None or np.ndim(spacing[0]) == 0
        spacings = cast(Any, [spacing] * len(clean) if one_for_all else spacing)
        if len(spacings) != len(clean):
            raise ValueError(f"spacing must be one for all or one per pair ({len(clean)}), got {len(spacings)}.")
        masks: list[tuple[np.ndarray, np.ndarray, tuple[float, ...] | None, Hashable]] = []
        num_masks = 0
        for k, own in enumerate(spacings):
            pair = binary_mask(clean[k], "clean"), binary_mask(noisy[k], "noisy")
            check_same_shape(*pair, ("clean", "noisy"))
            num_masks += len(pair[0])
            own = check_spacing(own, pair[0].ndim - 1)
            for channel in np.flatnonzero(has_boundary(pair[0]) & has_boundary(pair[1])):
                masks.append((pair[0][channel], pair[1][channel], own, k if groups is None else groups[k]))
        self.num_skipped = num_masks - len(masks)
        names = list(dict.fromkeys(group for *_, group in masks))
        self.num_groups = len(names)
        if self.num_groups < MIN_GROUPS:
            raise ValueError(
                f"clean and noisy must have usable pairs in at least {MIN_GROUPS} groups, got {self.num_groups}: "
                f"{self.num_skipped} of {num_masks} pairs have a mask that is empty or full."
            )
        if all(np.array_equal(a, b) for a, b, *_ in masks):
            raise ValueError(f"noisy must differ from clean, but all {len(masks)} usable pairs are equal.")
        number = {name: k for k, name in enumerate(names)}
        self.group = np.array([number[group] for *_, group in masks])
        self.spacings = [own for _, _, own, _ in masks]
        finest = min(min(own) if own else 1.0 for own in self.spacings)
        boxes = [_box(a | split_strays(b, a)[0]) for a, b, *_ in masks]
        self.lag_width = finest
        # Simulated boundaries may go half as far again as the real ones do, and a few voxels.
        reach = 0.0
        for (a, b, own, _), box in zip(masks, boxes, strict=True):
            near = _grow(box, (1,) * a.ndim)
            displacement = CleanMask(a[near], own).compare(b[near]).displacement
            reach = max(reach, -displacement.min(initial=0))
        self.clean, self.errors = [], []
        for (a, b, own, _), box in zip(masks, boxes, strict=True):
            region = _grow(box, [int(np.ceil(1.5 * reach / s)) + 4 for s in own or (1.0,) * a.ndim])
            self.clean.append(CleanMask(a[region].copy(), own, self.lag_width))
            self.errors.append(self.clean[-1].compare(b[region]))
        self.table = ErrorTable(self.errors)
        self.observed = self.link(self.table.scalars(None, self.lag_width))

    def link(self, scalars: np.ndarray) -> np.ndarray:
        """Put the statistics on the scales on which they are compared."""
        mean, magnitude, between, within, length, stray, dice, dice_spread = scalars
        unit = self.lag_width
        length = min(length, unit * len(self.errors[0].correlation[0]))
        logs = np.log(np.maximum([magnitude, between, within, length], 0.01 * unit) / unit)
        return np.array([mean / unit, *logs, np.sqrt(stray), dice, np.log(max(dice_spread, 1e-3))])

    def covariance(self, rng: np.random.Generator) -> np.ndarray:
        """Return that of the real statistics, on those scales, from a bootstrap over groups."""
        self.resamples = np.array([self.table.scalars(w, self.lag_width) for w in self._weights(rng)])
        linked = np.array([self.link(row) for row in self.resamples if np.isfinite(np.delete(row, 4)).all()])
        voxels = float(self.table.stray[:, 1].sum())
        floor = np.array([0.01, *[0.02] * 4, voxels**-0.5, 0.001, 0.02])
        return np.cov(linked.T) + np.diag(floor**2)

    def _weights(self, rng: np.random.Generator) -> list[np.ndarray]:
        draws = rng.integers(self.num_groups, size=(NUM_RESAMPLES, self.num_groups))
        return [np.bincount(draw, minlength=self.num_groups)[self.group].astype(float) for draw in draws]


class _Problem:
    """What a point of the search means, and its simulation."""

    def __init__(self, pairs: _Pairs, vary_steps: bool, max_steps: int, seed: int) -> None:
        self.pairs, self.vary_steps, self.max_steps, self.seed = pairs, vary_steps, max_steps, seed
        self.num_parameters = 6 if vary_steps else 5
        self.calls = 0

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters that ``x`` ``(..., num_parameters)`` in ``[0, 1]`` stands for."""
        sigma = LEAST_SMOOTHING + (MOST_SMOOTHING - LEAST_SMOOTHING) * (x[..., 4] - NO_SMOOTHING) / (1 - NO_SMOOTHING)
        spread = MOST_SPREAD * x[..., 5] if self.vary_steps else np.zeros_like(sigma)
        num_steps = np.round(self.max_steps ** x[..., 0])
        travel = LEAST_TRAVEL * (self.max_steps / LEAST_TRAVEL) ** x[..., 2]
        values = {
            "num_steps": num_steps,
            "expansion_prob": x[..., 1],
            "march_prob": np.minimum(travel / (num_steps * np.exp(spread**2 / 2)), 1.0),
            "flip_prob": MOST_FLIPS * x[..., 3] ** 4,
            "smooth_sigma": np.where(x[..., 4] > NO_SMOOTHING, sigma, 0.0),
        }
        return {**values, "step_spread": spread} if self.vary_steps else values

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Return the points that are simulated where ``x`` ``(points, num_parameters)`` are asked for."""
        values, x = self.values(x), x.copy()
        if self.max_steps > 1:
            x[:, 0] = np.log(values["num_steps"]) / np.log(self.max_steps)
        travel = values["num_steps"] * values["march_prob"] * np.exp(values.get("step_spread", 0.0) ** 2 / 2)
        x[:, 2] = np.clip(np.log(travel / LEAST_TRAVEL) / np.log(self.max_steps / LEAST_TRAVEL), 0, 1)
        x[:, 4] = np.maximum(x[:, 4], NO_SMOOTHING)
        return x

    def simulate(self, x: np.ndarray, num_pairs: int) -> np.ndarray:
        """Return the statistics, on the scales of the fit; ``nan`` where more than half of the masks vanish."""
        errors = self.errors(_rounded(self.values(x)), num_pairs)
        if len(errors) < num_pairs / 2:
            return np.full(len(SCALARS), np.nan)
        return self.pairs.link(ErrorTable(errors).scalars(None, self.pairs.lag_width))

    def errors(self, values: Mapping[str, float], num_pairs: int) -> list[PairErrors]:
        """Return the errors of simulated pairs, on each clean mask equally often.

        A mask that the noise leaves empty, or fills, is left out, since real pairs with such a mask are, too.
        """
        self.calls += 1
        rng = np.random.default_rng([self.seed, self.calls])
        parameters, spread = markov_parameters(values), values.get("step_spread", 0.0)
        chosen = np.resize(rng.permutation(len(self.pairs.clean)), num_pairs)
        errors = []
        for k, case in zip(chosen, rng.integers(2**62, size=num_pairs), strict=True):
            own: MarkovParameters = {**parameters, "num_steps": draw_num_steps(int(values["num_steps"]), spread, case)}  # type: ignore[typeddict-item]
            clean = self.pairs.clean[k]
            noisy = markov_label_noise(clean.mask[None], **own, spacing=self.pairs.spacings[k], seed=int(case))
            if has_boundary(np.asarray(noisy))[0]:
                errors.append(clean.compare(np.asarray(noisy)[0]))
        return errors


def markov_parameters(values: Mapping[str, float]) -> MarkovParameters:
    smooth = {"smoothing": "before_flips", "smooth_sigma": values["smooth_sigma"]}
    return cast(
        MarkovParameters,
        {
            "num_steps": int(values["num_steps"]),
            **{name: values[name] for name in ("expansion_prob", "march_prob", "flip_prob")},
            **(smooth if values["smooth_sigma"] else {"smoothing": None}),
        },
    )


def _report(
    pairs: _Pairs, problem: _Problem, posterior: Posterior, covariance: np.ndarray, weights: np.ndarray
) -> MarkovFit:
    values = _rounded(problem.values(posterior.best))
    num_simulated = max(len(pairs.clean), 1000)
    simulated = problem.errors(values, num_simulated)
    total = covariance + np.diag(posterior.unit_variance / num_simulated)
    difference = pairs.link(ErrorTable(simulated).scalars(None, pairs.lag_width)) - pairs.observed
    weights = weights / np.diag(total)
    distance = float(weights @ np.square(difference))
    draws = problem.values(posterior.draws)
    real = pair_statistics(pairs.errors, lag_width=pairs.lag_width)
    finite = np.where(np.isfinite(pairs.resamples), pairs.resamples, np.nan)
    return MarkovFit(
        parameters=dict(markov_parameters(values)),
        step_spread=values.get("step_spread", 0.0),
        intervals={n: (float(np.quantile(d, 0.025)), float(np.quantile(d, 0.975))) for n, d in draws.items()},
        draws=draws,
        real=real,
        simulated=pair_statistics(simulated, lag_width=pairs.lag_width, histogram_edges=real.histogram_edges),
        standard_errors=dict(zip(SCALARS, map(float, np.nanstd(finite, axis=0)), strict=True)),
        distance=distance,
        p_value=_p_value(distance, posterior.jacobian, total, weights, problem.seed),
        num_used=len(pairs.clean),
        num_skipped=pairs.num_skipped,
        vanished=1 - len(simulated) / num_simulated,
        num_groups=pairs.num_groups,
    )


def _rounded(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _p_value(distance: float, jacobian: np.ndarray, covariance: np.ndarray, weights: np.ndarray, seed: int) -> float:
    """Return how often differences that the parameters cannot take up are as large, by the law of their covariance."""
    information = jacobian.T @ (weights[:, None] * jacobian) + 12 * np.eye(jacobian.shape[1])
    rng = np.random.default_rng([seed, 1])
    differences = rng.multivariate_normal(np.zeros(len(weights)), covariance, 4000)
    taken_up = differences @ (weights[:, None] * jacobian) @ np.linalg.inv(information) @ jacobian.T
    return float((1 + np.count_nonzero(np.square(differences - taken_up) @ weights >= distance)) / 4001)


def _box(mask: np.ndarray) -> list[tuple[int, int]]:
    box = []
    for axis in range(mask.ndim):
        hit = np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        box.append((int(hit[0]), int(hit[-1]) + 1))
    return box


def _grow(box: list[tuple[int, int]], margin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(max(low - m, 0), high + m) for (low, high), m in zip(box, margin, strict=True))
