"""Parameters of a model that can only be simulated, from statistics of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

__all__ = ["GaussianProcess", "Posterior", "fit_by_simulation"]

NUM_SEARCHES, NUM_WALKS, GENERATION = 8, 4, 36
NUM_CANDIDATES = 6
NUM_NEAR = 160
NOISES = np.geomspace(1e-3, 10, 15)  # of a simulation of mean size, in units of the variance of the process
FIRST_SHARE, SEARCH_SHARE, LAST_SHARE = 0.07, 0.43, 0.12  # of the budget
NUM_CHAINS = 40
CHAIN_STEPS = 600
UNKNOWN = -1e9  # log-likelihood where too few simulations lie to predict one; finite, so that walks leave it
PRIOR_PRECISION = 12.0  # of a uniform law on an interval of length 1


class GaussianProcess:
    r"""Smooth functions of the parameters that predict the statistics, a Gaussian process about a plane for each.

    The covariance of two points is :math:`s^2 \exp(-r^2/2)` with :math:`r` their distance in units that are the same
    for all statistics: a multiple of the standard deviation of the points along each axis, which is chosen, as the
    noise of each statistic is, where the marginal likelihood is largest.

    Args:
        points: ``(simulations, parameters)``.
        statistics: ``(simulations, statistics)``.
        sizes: ``(simulations,)``; the variance of a simulation is taken to be inverse to its size.
    """

    def __init__(self, points: np.ndarray, statistics: np.ndarray, sizes: np.ndarray) -> None:
        self.points = points
        self.root = np.sqrt(sizes / sizes.mean())
        self.centre = points.mean(axis=0)
        plane = self._plane(points) * self.root[:, None]
        target = statistics * self.root[:, None]
        self.slope = np.linalg.solve(plane.T @ plane + 1e-6 * np.eye(plane.shape[1]), plane.T @ target)
        residual = target - plane @ self.slope
        best = -np.inf
        for stretch in (1.0, 1.5, 2.5, 4.0):
            unit = stretch * np.maximum(points.std(axis=0), 0.01)
            kernel = self._kernel(points, unit) * np.outer(self.root, self.root)
            values, vectors = np.linalg.eigh(kernel)
            values = np.maximum(values, 0)
            squares = np.square(vectors.T @ residual)
            # (noise, statistics): with the best scale for each, up to a constant
            scales = np.array([(squares / (values + n)[:, None]).mean(axis=0) for n in NOISES])
            volumes = np.array([np.log(values + n).sum() for n in NOISES])
            likelihood = -0.5 * (len(points) * np.log(scales) + volumes[:, None])
            if likelihood.max(axis=0).sum() > best:
                best = likelihood.max(axis=0).sum()
                noise = NOISES[likelihood.argmax(axis=0)]
                self.unit, self.vectors = unit, vectors
                self.inverse = 1 / (values[:, None] + noise)
                self.scale = (squares * self.inverse).mean(axis=0)
                self.unit_variance = self.scale * noise * sizes.mean()
                self.coefficients = self.root[:, None] * (vectors @ (self.inverse * (vectors.T @ residual)))

    def _plane(self, points: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(points), 1)), points - self.centre], axis=1)

    def _kernel(self, points: np.ndarray, unit: np.ndarray) -> np.ndarray:
        a, b = points / unit, self.points / unit
        squares = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * a @ b.T
        return np.asarray(np.exp(-np.maximum(squares, 0) / 2))

    def mean(self, points: np.ndarray) -> np.ndarray:
        """Return the prediction ``(points, statistics)``."""
        return np.asarray(self._plane(points) @ self.slope + self._kernel(points, self.unit) @ self.coefficients)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the prediction and its variance, both ``(points, statistics)``."""
        kernel = self._kernel(points, self.unit)
        explained = np.square((kernel * self.root) @ self.vectors) @ self.inverse
        prediction = self._plane(points) @ self.slope + kernel @ self.coefficients
        return prediction, self.scale * np.maximum(1 - explained, 0)

    def jacobian(self, point: np.ndarray) -> np.ndarray:
        """Return the derivative of the statistics ``(statistics, parameters)`` at ``point``."""
        step = 0.1 * np.diag(self.unit)
        return np.asarray(((self.mean(point + step) - self.mean(point - step)) / (2 * np.diag(step)[:, None])).T)


@dataclass(frozen=True)
class Posterior:
    """What simulations say about the parameters.

    Attributes:
        best: ``(parameters,)``, in ``[0, 1]``: of a few draws the one whose large simulation came nearest.
        draws: ``(draws, parameters)``.
        jacobian: ``(statistics, parameters)``, at ``best``.
        unit_variance: ``(statistics,)``, of a simulation of size 1.
    """

    best: np.ndarray
    draws: np.ndarray
    jacobian: np.ndarray
    unit_variance: np.ndarray


class _Runs:
    """All simulations so far."""

    def __init__(
        self,
        simulate: Callable[[np.ndarray, int], np.ndarray],
        snap: Callable[[np.ndarray], np.ndarray],
        goal: np.ndarray,
        precision: np.ndarray,
    ) -> None:
        self.simulate, self.snap, self.goal, self.precision = simulate, snap, goal, precision
        self.points: np.ndarray | None = None

    def add(self, points: np.ndarray, size: int) -> None:
        points = self.snap(points)
        statistics = np.array([self.simulate(point, size) for point in points])
        usable = np.isfinite(statistics).all(axis=1)
        new = points[usable], statistics[usable], np.full(usable.sum(), float(size))
        old = (self.points, self.statistics, self.sizes) if self.points is not None else tuple(x[:0] for x in new)
        self.points, self.statistics, self.sizes = (np.concatenate(pair) for pair in zip(old, new, strict=True))

    def raw_distances(self) -> np.ndarray:
        """Return the distance of each simulation."""
        return np.asarray(np.square(self.statistics - self.goal) @ self.precision)

    def emulate(self) -> None:
        """Fit the emulator to the simulations that are nearest, and sort these by what it predicts for them."""
        near = np.argsort(self.raw_distances())[:NUM_NEAR]
        self.emulator = GaussianProcess(self.points[near], self.statistics[near], self.sizes[near])
        predicted = np.square(self.emulator.mean(self.points[near]) - self.goal) @ self.precision
        order = np.argsort(predicted)
        self.best, self.distances = self.points[near[order]], predicted[order]


def fit_by_simulation(
    simulate: Callable[[np.ndarray, int], np.ndarray],
    snap: Callable[[np.ndarray], np.ndarray],
    num_parameters: int,
    observed: np.ndarray,
    covariance: np.ndarray,
    *,
    weights: np.ndarray,
    budget: int,
    seed: int,
) -> Posterior:
    r"""Return parameters whose simulations resemble what was observed.

    The statistics have a synthetic likelihood (Wood, Nature 2010) :math:`\exp(-D/2)`, where :math:`D` is the weighted
    sum of the squared differences of simulated and observed statistics, each over its variance. Quadratic functions of
    the parameters, fitted to the simulations that are nearest, predict the expected statistics. Each generation adds
    larger simulations: at draws of a Metropolis walk over the likelihood so far, flattened, and of a normal law about
    the points that are predicted to be best (cross-entropy, Rubinstein 1999). The prior law is uniform. Since
    statistics are correlated, and :math:`D` takes no account of it, the likelihood of the last walk is raised to the
    power that gives its draws the variance of the estimate (Ribatet et al., Statistica Sinica 2012).

    Args:
        simulate: takes a point in ``[0, 1]``, ``(num_parameters,)``, and the size of the simulation; returns the
            statistics, ``nan`` where there are none.
        snap: takes points ``(points, num_parameters)``, and returns those that are really simulated (it may round).
        num_parameters: of a point.
        observed: ``(statistics,)``.
        covariance: ``(statistics, statistics)``, of the observation.
        weights: ``(statistics,)``, of each in :math:`D`, over 0.
        budget: sum of the sizes of all simulations.
        seed: of the search.
    """
    rng = np.random.default_rng(seed)
    variance = np.diag(covariance) / weights
    runs = _Runs(simulate, snap, observed, 1 / variance)
    first = qmc.Sobol(num_parameters, rng=rng).random(128)
    runs.add(first, max(int(budget * FIRST_SHARE / len(first)), 10))
    sizes = budget * SEARCH_SHARE / (NUM_SEARCHES * GENERATION) * np.linspace(0.5, 1.5, NUM_SEARCHES)
    for size in sizes:
        recent = slice(-2 * GENERATION, None) if len(runs.points) > 128 + GENERATION else slice(None)
        elite = runs.points[recent][np.argsort(runs.raw_distances()[recent])[: 3 * num_parameters]]
        runs.add(_normal(elite, 1.3, GENERATION, rng), max(int(size), 10))
    size = max(int(budget * (1 - FIRST_SHARE - SEARCH_SHARE - LAST_SHARE) / (NUM_WALKS * GENERATION)), 10)
    for _ in range(NUM_WALKS):
        runs.emulate()
        elite = runs.best[: 4 * num_parameters]
        heat = max(2.0, float(runs.distances[num_parameters]) / weights.sum())
        draws, _ = _walk(runs, np.cov(elite.T), variance, 1 / heat, rng, steps=200)
        walked = draws[rng.integers(len(draws), size=GENERATION // 2)]
        runs.add(np.concatenate([walked, _normal(elite, 2.0, GENERATION // 2, rng)]), size)
    runs.emulate()
    draws, distances = _walk(runs, np.cov(runs.best[: 8 * num_parameters].T), variance, 1.0, rng)
    candidates = snap(draws[np.argsort(distances)[:: len(draws) // 20][:NUM_CANDIDATES]])
    runs.add(candidates, max(int(budget * LAST_SHARE / NUM_CANDIDATES), 10))
    runs.emulate()
    predicted = runs.emulator.mean(candidates)
    best = candidates[np.argmin(np.square(predicted - observed) @ (1 / variance))]
    jacobian = runs.emulator.jacobian(best)
    draws, _ = _walk(runs, np.cov(draws.T), variance, _power(jacobian, covariance, 1 / variance), rng)
    return Posterior(best, draws, jacobian, runs.emulator.unit_variance)


def _normal(elite: np.ndarray, inflation: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points of the normal law of ``elite``, with its covariance inflated."""
    covariance = inflation * np.cov(elite.T) + 1e-5 * np.eye(elite.shape[1])
    return _reflect(rng.multivariate_normal(elite.mean(axis=0), covariance, count))


def _reflect(points: np.ndarray) -> np.ndarray:
    """Fold the real numbers into ``[0, 1]``."""
    return np.asarray(1 - np.abs(1 - np.mod(points, 2)))


def _walk(
    runs: _Runs,
    covariance: np.ndarray,
    variance: np.ndarray,
    power: float,
    rng: np.random.Generator,
    *,
    steps: int = CHAIN_STEPS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and their distances, from Metropolis walks side by side; the first half of each is left out."""

    def evaluate(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prediction, error = runs.emulator(runs.snap(x))
        total = variance + error
        distance = (np.square(prediction - runs.goal) / total).sum(axis=1)
        known = (error < 0.5 * runs.emulator.scale).all(axis=1)
        return np.where(known, -0.5 * power * (distance + np.log(total / variance).sum(axis=1)), UNKNOWN), distance

    starts = runs.best[: 2 * NUM_CHAINS]
    best = np.argsort(-evaluate(starts)[0])[: NUM_CHAINS // 4]
    x = starts[rng.choice(best, NUM_CHAINS)]
    now, distance = evaluate(x)
    factor = np.linalg.cholesky(covariance + 1e-7 * np.eye(x.shape[1]))
    scale = 2.38 / np.sqrt(x.shape[1])
    draws, distances = [], []
    for step in range(steps):
        proposal = _reflect(x + scale * rng.standard_normal(x.shape) @ factor.T)
        new, new_distance = evaluate(proposal)
        accept = np.log(rng.random(len(x))) < new - now
        x = np.where(accept[:, None], proposal, x)
        now, distance = np.where(accept, new, now), np.where(accept, new_distance, distance)
        if step < steps // 2:
            scale *= np.exp(0.1 * (accept.mean() - 0.25))
        elif step % 10 == 0:
            draws.append(x)
            distances.append(distance)
    return np.concatenate(draws), np.concatenate(distances)


def _power(jacobian: np.ndarray, covariance: np.ndarray, weights: np.ndarray) -> float:
    """Return the power of the likelihood with which its draws vary as much as the estimate does."""
    sensitivity = jacobian.T @ (weights[:, None] * jacobian)
    variability = (jacobian * weights[:, None]).T @ covariance @ (jacobian * weights[:, None])
    bread = np.linalg.inv(sensitivity + PRIOR_PRECISION * np.eye(len(sensitivity)))
    return float(np.trace(bread @ sensitivity) / np.trace(bread @ variability))
