"""Fit the parameters of the Markov label noise to pairs of clean and real masks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np
from monai.config import NdarrayOrTensor
from scipy import ndimage
from scipy.optimize import least_squares
from scipy.stats import qmc
from typing_extensions import Unpack

from monai_sc.functional.checks import binary_mask, check_same_shape, check_spacing
from monai_sc.functional.distance import has_boundary, signed_distance
from monai_sc.functional.masks import bounding_box
from monai_sc.functional.noise import MarkovParameters, case_seed, check_markov_parameters, markov_label_noise

LEAST_BUDGET, MIN_GROUPS, NUM_RESAMPLES = 5000, 5, 400
NUM_ANCHORS = 32  # positions of a boundary whose displacement is compared with that of all others
NEAR, FAR = 2.5, 8.0  # the most distant neighbours of a position, in smallest sides of a voxel

LEAST_TRAVEL = 0.05  # mean number of steps times march_prob
LEAST_SMOOTHING, MOST_SMOOTHING = 0.5, 3.0  # a narrower filter changes no voxel
NO_SMOOTHING = 0.13  # share of its axis
MOST_FLIPS, MOST_SPREAD = 0.3, 2.0
NUM_SIMULATED = 1000  # pairs, at least, for the statistics of the fit
PRIOR_PRECISION = 12.0  # of a uniform law on an interval of length 1

NUM_FIRST, NUM_GENERATIONS, GENERATION, NUM_LAST = 128, 9, 36, 144  # points
FIRST_SHARE = 0.15  # of the budget


class GridParameters(TypedDict, total=False):
    """The parameters of the Markov label noise that are given, not fitted."""

    step_size: float | None
    in_plane: bool
    slice_axis: int | None
    slice_correlation: float


@dataclass(frozen=True)
class PairStatistics:
    """Statistics of many pairs of a clean and a noisy mask, in which every pair counts alike.

    Attributes:
        displacement: mean over pairs of the mean displacement of their boundary, in mm or voxels; negative where noisy
            masks are too large.
        spread_between: standard deviation over pairs of their mean displacement.
        spread_within: root of the mean over pairs of the variance of the displacement along their boundary.
        near_correlation: of the displacements (less the mean of the pair) at two positions of a boundary that are at
            most 2.5 voxels apart; a rough boundary has a small one.
        far_correlation: the same of positions between 2.5 and 8 voxels apart.
        stray_rate: voxels away from the boundary that flipped, in components or holes of their own, per voxel of the
            region around the structure.
        dice: mean Dice.
        dice_spread: standard deviation of the Dice over pairs.
        displacements: ``(pairs,)``, the mean of each; ``nan`` where the noisy mask does not meet the clean one.
        dices: ``(pairs,)``.
    """

    displacement: float
    spread_between: float
    spread_within: float
    near_correlation: float
    far_correlation: float
    stray_rate: float
    dice: float
    dice_spread: float
    displacements: np.ndarray
    dices: np.ndarray

    @property
    def spread(self) -> float:
        """Standard deviation of the displacement, over pairs and along their boundaries together."""
        return float(np.hypot(self.spread_between, self.spread_within))


STATISTICS = tuple(name for name, kind in PairStatistics.__annotations__.items() if kind == "float")
# The least standard errors on the scales of the fit; that of strays is one voxel.
LEAST_ERRORS = {"displacement": 0.01, "dice": 0.001}
LEAST_ERROR = 0.02


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

    def parameters_of(self, case_id: str, seed: int = 0) -> dict[str, Any]:
        """Return the parameters of one case, with a number of steps that depends on ``seed`` and ``case_id`` alone."""
        steps = _draw_num_steps(self.parameters["num_steps"], self.step_spread, case_seed(seed, case_id))
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

    The noise is simulated on the clean masks, with the same random numbers for all parameters that are tried, and those
    are taken for which eight statistics of the simulated pairs resemble those of the real ones, see
    :py:class:`~monai_sc.functional.fit.PairStatistics` (the method of simulated moments, McFadden, Econometrica 1989).
    The weighted squares of their differences in standard errors, on the scale of the logarithm for spreads and of the
    root for the rate of strays, are minimised by Nelder and Mead's method from the best of a Sobol sequence, and then
    by a linear regression around the best. The same regression turns statistics of resampled groups into parameters,
    whose quantiles are the intervals; the prior law is uniform in :math:`\theta_1`, :math:`\log T`, the logarithm of
    the mean :math:`T \theta_2`, :math:`\theta_3^{1/4}` up to a :math:`\theta_3` of 0.3, and the width of a smoothing
    before the flips up to 3 voxels.

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
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    for name in fixed.keys() - GridParameters.__annotations__.keys():
        raise TypeError(f"{name} cannot be given; these can: {', '.join(GridParameters.__annotations__)}.")
    check_markov_parameters(
        **cast(MarkovParameters, {"num_steps": 1, "expansion_prob": 0.5, "march_prob": 0.5, **fixed})
    )
    for name, value in (weights or {}).items():
        if name not in STATISTICS or not 0 <= value < np.inf:
            raise ValueError(f"weights must be at least 0, of {', '.join(STATISTICS)}, got {value} of {name}.")
    if weights and weights.keys() == set(STATISTICS) and not any(weights.values()):
        raise ValueError("weights must leave a statistic that counts, but all are 0.")
    pairs = _Pairs(clean, noisy, spacing, groups)
    resampled = pairs.resample(np.random.default_rng([seed, 0]))
    observed, scaled = _scaled(_scalars(pairs.rows), pairs.unit), _scaled(resampled, pairs.unit)
    least = {**dict.fromkeys(STATISTICS, LEAST_ERROR), **LEAST_ERRORS, "stray_rate": pairs.rows[:, 7].sum() ** -0.5}
    variance = scaled.var(axis=0) + np.square([*least.values()])
    weight = np.array([(weights or {}).get(name, 1.0) for name in STATISTICS]) / variance

    def simulate(points: np.ndarray, budget: float) -> np.ndarray:
        num_pairs = max(int(budget / len(points)), 10)
        rows = [pairs.simulate(_values(x, max_steps), num_pairs, rng, fixed) for x in points]
        return np.array([_scaled(_scalars(row), pairs.unit) for row in rows])

    rng = np.random.default_rng([seed, 1])
    points, found = _search(simulate, 6 if vary_steps else 5, observed, weight, budget, rng)
    best, slopes = _least_squares(points, found, observed, weight)
    weighted = slopes * weight
    inverse = np.linalg.inv(weighted @ slopes.T + PRIOR_PRECISION * np.eye(len(best)))
    gain = inverse @ weighted
    # Each draw is where the statistics of resampled groups, and a draw of the prior law, pull the best.
    difference = scaled - scaled.mean(axis=0)
    pull = difference @ gain.T + PRIOR_PRECISION * (rng.random((len(difference), len(best))) - best) @ inverse
    draws = _values(np.clip(best + pull, 0, 1), max_steps)
    values = _values(best, max_steps)
    rows = pairs.simulate(values, max(len(pairs.rows), NUM_SIMULATED), rng, fixed)
    misfit = float(weight @ np.square(_scaled(_scalars(rows), pairs.unit) - observed))
    by_chance = np.square(difference - difference @ gain.T @ slopes) @ weight
    return MarkovFit(
        parameters=_noise_parameters(values, fixed),
        step_spread=float(f"{values.get('step_spread', 0.0):.4g}"),
        intervals={n: (float(np.quantile(d, 0.025)), float(np.quantile(d, 0.975))) for n, d in draws.items()},
        draws=draws,
        real=_statistics(pairs.rows),
        simulated=_statistics(rows),
        standard_errors=dict(zip(STATISTICS, map(float, resampled.std(axis=0)), strict=True)),
        distance=misfit,
        p_value=float((1 + np.count_nonzero(by_chance >= misfit)) / (1 + len(by_chance))),
        num_used=len(pairs.rows),
        num_skipped=pairs.num_skipped,
        num_groups=pairs.num_groups,
    )


def _search(
    simulate: Callable[[np.ndarray, float], np.ndarray],
    num_parameters: int,
    observed: np.ndarray,
    weight: np.ndarray,
    budget: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points in ``[0, 1]`` that come nearest, and their statistics.

    Each generation is drawn from the normal law of the best points of the two before it (the cross-entropy method).
    """
    points = qmc.Sobol(num_parameters, rng=rng).random(NUM_FIRST)
    found = simulate(points, FIRST_SHARE * budget)
    for k in range(NUM_GENERATIONS):
        recent = slice(-2 * GENERATION if k > 1 else 0, None)
        order = np.argsort(np.square(found[recent] - observed) @ weight)  # without statistics: last
        elite = points[recent][order[: 3 * num_parameters]]
        covariance = 1.3 * np.cov(elite.T) + 1e-4 * np.eye(num_parameters)
        known = np.isfinite(found).all(axis=1)
        known[:-NUM_LAST] = False
        centre = elite.mean(axis=0)
        if k > NUM_GENERATIONS / 2 and known.sum() > NUM_LAST / 2:
            centre = _least_squares(points[known], found[known], observed, weight)[0]
        drawn = rng.multivariate_normal(centre, covariance, GENERATION)
        drawn = 1 - np.abs(1 - np.mod(drawn, 2))  # folded into the interval
        points = np.concatenate([points, drawn])
        found = np.concatenate([found, simulate(drawn, (1 - FIRST_SHARE) * budget / NUM_GENERATIONS)])
    points, found = points[-NUM_LAST:], found[-NUM_LAST:]
    known = np.isfinite(found).all(axis=1)
    if known.sum() < NUM_LAST / 2:
        raise ValueError("clean must hold larger structures: the noise deletes most of those that are given.")
    return points[known], found[known]


def _least_squares(
    points: np.ndarray, found: np.ndarray, observed: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best point, and the slopes there ``(parameters, statistics)``, by a quadratic regression."""
    centre = points.mean(axis=0)
    upper = np.triu_indices(len(centre))

    def features(x: np.ndarray) -> np.ndarray:
        away = x - centre
        products = (away[..., :, None] * away[..., None, :])[..., upper[0], upper[1]]
        return np.concatenate([np.ones((*x.shape[:-1], 1)), away, products], axis=-1)

    coefficients = np.linalg.lstsq(features(points), found, rcond=None)[0]
    low, high = points.min(axis=0), points.max(axis=0)  # beyond them the regression knows nothing
    result = least_squares(
        lambda x: np.sqrt(weight) * (features(x) @ coefficients - observed),
        np.clip(centre, low, high),
        bounds=(low, high + 1e-9),
    )
    steps = 0.01 * np.eye(len(centre))
    slopes = (features(result.x + steps) - features(result.x - steps)) @ coefficients / 0.02
    return np.clip(result.x, 0, 1), slopes


class _Pairs:
    """The usable pairs, cut down to the surroundings of their structures, and simulations on their clean masks."""

    def __init__(
        self,
        clean: Sequence[NdarrayOrTensor],
        noisy: Sequence[NdarrayOrTensor],
        spacing: Sequence[float] | Sequence[Sequence[float]] | None,
        groups: Sequence[Hashable] | None,
    ) -> None:
        number = len(clean)
        if len(noisy) != number:
            raise ValueError(f"clean and noisy must have the same number of masks, got {number} and {len(noisy)}.")
        if groups is not None and len(groups) != number:
            raise ValueError(f"groups must have one entry per pair ({number}), got {len(groups)}.")
        is_one = spacing is None or not len(spacing) or np.ndim(spacing[0]) == 0
        spacings: Any = [spacing] * number if is_one else spacing
        if len(spacings) != number:
            raise ValueError(f"spacing must be one for all or one per pair ({number}), got {len(spacings)}.")
        masks: list[tuple[np.ndarray, np.ndarray, tuple[float, ...] | None]] = []
        group_of: dict[Hashable, int] = {}
        group, num_masks = [], 0
        for k in range(number):
            pair = binary_mask(clean[k], "clean"), binary_mask(noisy[k], "noisy")
            check_same_shape(*pair, ("clean", "noisy"))
            own_spacing = check_spacing(spacings[k], pair[0].ndim - 1)
            num_masks += len(pair[0])
            for channel in np.flatnonzero(has_boundary(pair[0]) & has_boundary(pair[1])):
                masks.append((pair[0][channel], pair[1][channel], own_spacing))
                group.append(group_of.setdefault(k if groups is None else groups[k], len(group_of)))
        self.group, self.num_groups, self.num_skipped = np.array(group), len(group_of), num_masks - len(masks)
        if self.num_groups < MIN_GROUPS:
            raise ValueError(
                f"clean and noisy must have usable pairs in at least {MIN_GROUPS} groups, got {self.num_groups}: "
                f"{self.num_skipped} of {num_masks} pairs have a mask that is empty or full."
            )
        if all(np.array_equal(a, b) for a, b, _ in masks):
            raise ValueError(f"noisy must differ from clean, but all {len(masks)} usable pairs are equal.")
        self.unit = min(min(own) if own else 1.0 for *_, own in masks)
        # Simulated boundaries may go half as far again as any real one.
        either = [a | _without_strays(b, a) for a, b, _ in masks]
        reach = max(float(_depth(a, own)[shown].max()) for (a, _, own), shown in zip(masks, either, strict=True))
        self.clean, rows = [], []
        for (a, b, own), shown in zip(masks, either, strict=True):
            box = bounding_box(shown, [int(np.ceil(1.5 * max(reach, 0) / s)) + 4 for s in own or [1.0] * a.ndim]) or ()
            self.clean.append(_Clean(a[box].copy(), own, self.unit))
            rows.append(self.clean[-1].compare(b[box]))
        self.rows = np.array(rows)

    def resample(self, rng: np.random.Generator) -> np.ndarray:
        """Return the scalar statistics of resampled groups ``(resamples, statistics)``."""
        choices = rng.integers(self.num_groups, size=(NUM_RESAMPLES, self.num_groups))
        times = [np.bincount(choice, minlength=self.num_groups)[self.group] for choice in choices]
        found = np.array([_scalars(np.repeat(self.rows, t, axis=0)) for t in times])
        return found[np.isfinite(found).all(axis=1)]

    def simulate(
        self, values: Mapping[str, Any], num_pairs: int, rng: np.random.Generator, fixed: Mapping[str, Any]
    ) -> np.ndarray:
        """Measure simulated pairs, the clean masks in turn; none where more than half of the masks vanish."""
        parameters, spread = _noise_parameters(values, fixed), float(values.get("step_spread", 0.0))
        rows = []
        for k in np.resize(rng.permutation(len(self.clean)), num_pairs):
            own_seed, clean = int(rng.integers(2**62)), self.clean[k]
            own: Any = {**parameters, "num_steps": _draw_num_steps(parameters["num_steps"], spread, own_seed)}
            noisy = np.asarray(markov_label_noise(clean.mask[None], spacing=clean.spacing, seed=own_seed, **own))
            if has_boundary(noisy)[0]:
                rows.append(clean.compare(noisy[0]))
        return np.array(rows if len(rows) > num_pairs / 2 else [[np.nan] * 9])


class _Clean:
    """A clean mask ``(*spatial)``, prepared so that many noisy masks can be compared with it.

    Boundary positions are the faces between foreground and background of the noisy mask, strays left out. The
    displacement of a face is the signed distance of the clean mask there (the mean over the two voxels that share it),
    with the sign of :py:func:`~monai_sc.functional.boundary_displacement`: **negative where the noisy mask is too
    large**. So a boundary that is moved by ``k`` along an axis is displaced by ``k`` exactly.
    """

    def __init__(self, mask: np.ndarray, spacing: tuple[float, ...] | None, unit: float) -> None:
        self.mask, self.spacing, self.unit = mask, spacing, unit
        self.depth = _depth(mask, spacing)

    def compare(self, noisy: np.ndarray) -> list[float]:
        """Return one row of measures, which ``_scalars`` sums up."""
        kept = _without_strays(noisy, self.mask)
        dice = 2 * np.count_nonzero(noisy & self.mask) / (np.count_nonzero(noisy) + np.count_nonzero(self.mask))
        points, displacement = self.boundary(kept)
        mean = displacement.mean() if len(points) else np.nan
        deviation = displacement - mean
        deviation[np.abs(deviation) < 1e-6] = 0  # rounding
        some = np.linspace(0, len(points), min(NUM_ANCHORS, len(points)), endpoint=False).astype(int)
        squares = (np.square(points[some, None] - points).sum(axis=2) / self.unit**2).ravel()
        product = np.outer(deviation[some], deviation).ravel()
        square = (np.square(deviation[some])[:, None] + np.square(deviation)).ravel() / 2
        near = (squares > 0) & (squares <= NEAR**2)
        far = (squares > NEAR**2) & (squares <= FAR**2)
        sums = [values[band].sum() for band in (near, far) for values in (product, square)]
        variance = np.square(deviation).mean() if len(points) else np.nan
        return [mean, variance, *sums, np.count_nonzero(kept ^ noisy), noisy.size, dice]

    def boundary(self, noisy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return place ``(positions, axes)`` and displacement ``(positions,)`` of the boundary of ``noisy``."""
        points, displacements = [], []
        for axis in range(noisy.ndim):
            before = (slice(None),) * axis + (slice(None, -1),)
            after = (slice(None),) * axis + (slice(1, None),)
            hits = np.nonzero(noisy[before] != noisy[after])
            place = np.stack(hits, axis=1).astype(np.float64)
            place[:, axis] += 0.5
            points.append(place * np.asarray(self.spacing or 1.0))
            displacements.append(-(self.depth[before][hits] + self.depth[after][hits]) / 2)
        return np.concatenate(points), np.concatenate(displacements)


def _without_strays(noisy: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """Return ``noisy`` without components that have no voxel in ``clean``, and likewise without holes."""
    kept = noisy.copy()
    for foreground in (True, False):
        components, number = ndimage.label(noisy == foreground)
        rooted = np.zeros(number + 1, dtype=bool)
        rooted[components[clean == foreground]] = True
        rooted[0] = True  # the other class
        if not rooted.all():
            kept[~rooted[components]] = not foreground
    return kept


def _depth(mask: np.ndarray, spacing: tuple[float, ...] | None) -> np.ndarray:
    return np.asarray(signed_distance(mask[None], spacing=spacing, origin="face"))[0].astype(np.float64)


def _scalars(rows: np.ndarray) -> np.ndarray:
    """Return the scalar statistics of measured pairs ``(pairs, 9)``, in the order of ``STATISTICS``."""
    mean, variance = rows[np.isfinite(rows[:, 0]), :2].T  # of the masks that meet
    near, near_square, far, far_square, stray, voxels = rows[:, 2:8].sum(axis=0)
    correlations = [a / b if b > 0 else 1.0 for a, b in ((near, near_square), (far, far_square))]
    dice = rows[:, 8]
    return np.array(
        [mean.mean(), mean.std(), np.sqrt(variance.mean()), *correlations, stray / voxels, dice.mean(), dice.std()]
        if len(mean)
        else np.full(len(STATISTICS), np.nan)
    )


def _scaled(scalars: np.ndarray, unit: float) -> np.ndarray:
    """Return statistics ``(..., statistics)`` on the scales of the fit, on which their errors are about normal."""
    displacement, between, within, near, far, stray, dice, dice_spread = np.moveaxis(scalars, -1, 0)
    spreads = [np.log(np.maximum(spread / unit, 0.01)) for spread in (between, within)]
    values = [displacement / unit, *spreads, near, far, np.sqrt(stray), dice, np.log(np.maximum(dice_spread, 0.001))]
    return np.stack(values, axis=-1)


def _statistics(rows: np.ndarray) -> PairStatistics:
    return PairStatistics(*map(float, _scalars(rows)), displacements=rows[:, 0], dices=rows[:, 8])


def pair_statistics(
    clean: Sequence[np.ndarray], noisy: Sequence[np.ndarray], *, spacing: Sequence[float] | None = None
) -> PairStatistics:
    """Return the statistics of pairs of boolean masks ``(*spatial)``, whose clean ones are neither empty nor full."""
    own = None if spacing is None else tuple(spacing)
    rows = [_Clean(a, own, min(own or (1.0,))).compare(b) for a, b in zip(clean, noisy, strict=True)]
    return _statistics(np.array(rows))


def _draw_num_steps(num_steps: int, step_spread: float, seed: int) -> int:
    """Return the steps of one case: log-normal over cases, cut off two standard deviations from the median."""
    deviation = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,))).standard_normal()
    return round(num_steps * float(np.exp(step_spread * np.clip(deviation, -2, 2))))


def _values(x: np.ndarray, max_steps: int) -> dict[str, np.ndarray]:
    """Return the parameters of points ``(..., 5 or 6)``, each axis from 0 to 1; a ``smooth_sigma`` of 0 is none.

    The axes are: the logarithm of the number of steps; ``expansion_prob``; the logarithm of the mean number of steps
    times ``march_prob``; the fourth root of ``flip_prob``; the width of the smoothing, whose first part stands for
    none; and the spread of the number of steps, if it is to vary.
    """
    sigma = LEAST_SMOOTHING + (MOST_SMOOTHING - LEAST_SMOOTHING) * (x[..., 4] - NO_SMOOTHING) / (1 - NO_SMOOTHING)
    spread = MOST_SPREAD * x[..., 5] if x.shape[-1] == 6 else np.zeros_like(sigma)
    num_steps = np.round(max_steps ** x[..., 0])
    travel = LEAST_TRAVEL * (max_steps / LEAST_TRAVEL) ** x[..., 2]
    values = {
        "num_steps": num_steps,
        "expansion_prob": x[..., 1],
        "march_prob": np.minimum(travel / (num_steps * np.exp(spread**2 / 2)), 1.0),
        "flip_prob": MOST_FLIPS * x[..., 3] ** 4,
        "smooth_sigma": np.where(x[..., 4] > NO_SMOOTHING, sigma, 0.0),
    }
    return {**values, "step_spread": spread} if x.shape[-1] == 6 else values


def _noise_parameters(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of :py:func:`~monai_sc.functional.markov_label_noise`, with four digits."""
    parameters: dict[str, Any] = {"num_steps": int(values["num_steps"])}
    for name in ("expansion_prob", "march_prob", "flip_prob"):
        parameters[name] = float(f"{values[name]:.4g}")
    smooth = {"smoothing": "before_flips", "smooth_sigma": float(f"{values['smooth_sigma']:.4g}")}
    return {**parameters, **(smooth if values["smooth_sigma"] > 0 else {"smoothing": None}), **fixed}
