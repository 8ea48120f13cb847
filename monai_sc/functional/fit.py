"""The parameters of the Markov label noise that best explain pairs of clean and real masks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np
from monai.config import NdarrayOrTensor
from typing_extensions import Unpack

from monai_sc.functional.fit_model import PairModel, RealPairs, draw_num_steps, noise_parameters
from monai_sc.functional.noise import MarkovParameters, case_seed, check_markov_parameters
from monai_sc.functional.pair_statistics import SCALARS, ErrorTable, PairStatistics, pair_statistics
from monai_sc.functional.synthetic_likelihood import PRIOR_PRECISION, Posterior, fit_by_simulation

LEAST_BUDGET = 5000
LEAST_WEIGHT = 1e-9  # of a statistic that is left out
NUM_SIMULATED = 1000  # pairs, at least, for the statistics of the fit


class GridParameters(TypedDict, total=False):
    """The parameters of the Markov label noise that are given, not fitted."""

    step_size: float | None
    in_plane: bool
    slice_axis: int | None
    slice_correlation: float


@dataclass(frozen=True)
class MarkovFit:
    """A Markov label noise that resembles real annotation error, and how well it does.

    Attributes:
        parameters: for :py:func:`~monai_sc.functional.markov_label_noise`, as ``**fit.parameters``; where cases differ
            in their number of steps (``step_spread`` over 0), that of the median case, and
            :py:meth:`parameters_of` gives those of a case.
        step_spread: standard deviation over cases of the logarithm of their number of steps; 0 unless it was fitted.
        intervals: 95 % interval of each parameter, if the law holds. A wide one is not identified by these pairs.
        draws: ``(draws,)`` of each parameter, drawn jointly: where one trades off with another (more steps, each with a
            smaller ``march_prob``), they lie along a line. A ``smooth_sigma`` of 0 stands for no smoothing.
        real: statistics of the given pairs.
        simulated: the same statistics with the noise that was fitted.
        standard_errors: of each statistic in ``real``, from a bootstrap over groups.
        distance: weighted sum over the statistics of their squared difference over its variance, on the scales of the
            fit.
        p_value: probability of such a distance or a larger one if the noise were of this law. A small one says that the
            law does not make errors of this kind; the statistics that differ say which.
        num_used: pairs that were used, one for each channel.
        num_skipped: pairs that were not, since a mask is empty or full.
        num_groups: groups that the used pairs come from.
        vanished: share of the simulated masks that the noise left empty or full; they are skipped, too.
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
    num_groups: int
    vanished: float

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
    **fixed: Unpack[GridParameters],
) -> MarkovFit:
    r"""Fit the Markov label noise to pairs of clean and noisy masks.

    The noise is simulated on the clean masks, and its parameters are those for which eight statistics of the simulated
    pairs resemble those of the real ones, see :py:class:`~monai_sc.functional.pair_statistics.PairStatistics`.
    Differences are measured in standard errors, on the scale of the logarithm for spreads and lengths, and of the root
    for the rate of strays. The method is that of a synthetic likelihood (Wood, Nature 2010), see
    :py:func:`~monai_sc.functional.synthetic_likelihood.fit_by_simulation`. The prior law is uniform in
    :math:`\theta_1`, :math:`\log T`, the logarithm of the mean :math:`T \theta_2`, :math:`\theta_3^{1/4}` up to a
    :math:`\theta_3` of 0.3, and the width of a smoothing before the flips up to 3 voxels.

    With one number of steps for all, the errors of the law are much alike in all cases; but people agree on most cases,
    and disagree much on a few. ``vary_steps`` gives each case its own number of steps, log-normal over cases; the law
    of a case stays what it is.

    Args:
        clean: each ``(channels, *spatial)``, 0 and 1 only, in 2D or 3D; shapes may differ. All channels are fitted
            together: fit classes that differ one by one.
        noisy: the same structures as someone else drew them, same shapes. A channel that is empty or full here or in
            ``clean`` is skipped.
        spacing: size of a voxel along each spatial axis, in mm, of all pairs; or one such sequence per pair. The
            parameters are then those of ``markov_label_noise(..., spacing=spacing)``.
        groups: of each pair, such as its patient: pairs of a group resemble each other, so that uncertainty is measured
            over groups. Without them each pair is a group.
        vary_steps: fit how much the number of steps differs between cases, too.
        weights: of statistics in the distance, by name; 1 for those that are not named, and 0 leaves one out. Where the
            law cannot reach all of them, the weights say which matter.
        max_steps: most steps, in the median case, that are tried; at least 2.
        budget: pairs that are simulated in all, at least 5000; the default takes about a minute for structures of 20 to
            60 voxels in 2D.
        seed: of the simulations and the search; the result depends on nothing else.
        **fixed: parameters of ``markov_label_noise`` that are not fitted: ``step_size``, ``in_plane``, ``slice_axis``
            and ``slice_correlation``.

    Raises:
        TypeError: when there is no such parameter.
        ValueError: when ``clean`` and ``noisy`` do not match, fewer than 5 groups have a usable pair, all usable pairs
            are equal, or an option is out of range.
    """
    for name, value, least in (("max_steps", max_steps, 2), ("budget", budget, LEAST_BUDGET)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    for name in fixed.keys() - GridParameters.__annotations__.keys():
        raise TypeError(f"{name} cannot be given; these can: {', '.join(GridParameters.__annotations__)}.")
    placeholder = {"num_steps": 1, "expansion_prob": 0.5, "march_prob": 0.5}
    check_markov_parameters(**cast(MarkovParameters, {**placeholder, **fixed}))
    weight = _as_array(weights or {})
    pairs = RealPairs(clean, noisy, spacing, groups)
    errors, covariance = pairs.resample(np.random.default_rng([seed, 0]))
    model = PairModel(pairs, vary_steps=vary_steps, max_steps=max_steps, fixed=fixed, seed=seed)
    posterior = fit_by_simulation(
        model.simulate,
        model.snap,
        model.num_parameters,
        pairs.observed,
        covariance,
        weights=weight,
        budget=budget,
        seed=seed,
    )
    return _report(model, posterior, errors, covariance, weight)


def _as_array(weights: Mapping[str, float]) -> np.ndarray:
    for name, value in weights.items():
        if name not in SCALARS:
            raise ValueError(f"weights must be of {', '.join(SCALARS)}, got one of {name}.")
        if not 0 <= value < np.inf:
            raise ValueError(f"weights must be at least 0 and finite, got {value} of {name}.")
    if weights.keys() == set(SCALARS) and not any(weights.values()):
        raise ValueError("at least one weight must be over 0.")
    return np.array([max(float(weights.get(name, 1)), LEAST_WEIGHT) for name in SCALARS])


def _report(
    model: PairModel, posterior: Posterior, errors: np.ndarray, covariance: np.ndarray, weights: np.ndarray
) -> MarkovFit:
    pairs, values = model.pairs, model.values(posterior.best)
    num_simulated = max(len(pairs.clean), NUM_SIMULATED)
    simulated = model.errors(values, num_simulated)
    total = covariance + np.diag(posterior.unit_variance / num_simulated)
    difference = pairs.scaled(ErrorTable(simulated, pairs.lag_width).scalars()) - pairs.observed
    precision = weights / np.diag(total)
    distance = float(precision @ np.square(difference))
    draws = model.values(posterior.draws)
    real = pair_statistics(pairs.errors, lag_width=pairs.lag_width)
    return MarkovFit(
        parameters=noise_parameters(values, model.fixed),
        step_spread=float(f"{values.get('step_spread', 0.0):.4g}"),
        intervals={n: (float(np.quantile(d, 0.025)), float(np.quantile(d, 0.975))) for n, d in draws.items()},
        draws=draws,
        real=real,
        simulated=pair_statistics(simulated, lag_width=pairs.lag_width, histogram_edges=real.histogram_edges),
        standard_errors=dict(zip(SCALARS, map(float, errors), strict=True)),
        distance=distance,
        p_value=_p_value(distance, posterior.jacobian, total, precision, np.random.default_rng([model.seed, 1])),
        num_used=len(pairs.clean),
        num_skipped=pairs.num_skipped,
        num_groups=pairs.num_groups,
        vanished=1 - len(simulated) / num_simulated,
    )


def _p_value(
    distance: float, jacobian: np.ndarray, covariance: np.ndarray, precision: np.ndarray, rng: np.random.Generator
) -> float:
    """Return how often differences that the parameters cannot take up are as large, by the law of their covariance."""
    weighted = precision[:, None] * jacobian
    information = jacobian.T @ weighted + PRIOR_PRECISION * np.eye(jacobian.shape[1])
    differences = rng.multivariate_normal(np.zeros(len(precision)), covariance, 4000)
    left = differences - differences @ weighted @ np.linalg.inv(information) @ jacobian.T
    return float((1 + np.count_nonzero(np.square(left) @ precision >= distance)) / 4001)
