"""Parameters of a model that can only be simulated, from statistics of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from monai_sc.functional.gaussian_process import GaussianProcess

__all__ = ["PRIOR_PRECISION", "Posterior", "fit_by_simulation"]

PRIOR_PRECISION = 12.0  # of a uniform law on an interval of length 1
NUM_FIRST, GENERATION, NUM_SEARCHES, NUM_WALKS, NUM_CANDIDATES = 128, 36, 8, 4, 8  # points
FIRST_SHARE, SEARCH_SHARE, WALK_SHARE, CANDIDATE_SHARE = 0.07, 0.43, 0.35, 0.15  # of the budget
LEAST_SIZE = 10  # of a simulation
NUM_NEAR = 160  # points that the emulator is fitted to
NUM_CHAINS, CHAIN_STEPS = 40, 600
UNKNOWN = 1e6  # taken off the logarithm of the likelihood

Simulate = Callable[[np.ndarray, int], np.ndarray]
Snap = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Posterior:
    """What simulations say about the parameters.

    Attributes:
        best: ``(parameters,)``, in ``[0, 1]``: of a few draws the one whose large simulation came nearest.
        draws: ``(draws, parameters)``.
        jacobian: ``(statistics, parameters)``, of the expected statistics at ``best``.
        unit_variance: ``(statistics,)``, of a simulation of size 1.
    """

    best: np.ndarray
    draws: np.ndarray
    jacobian: np.ndarray
    unit_variance: np.ndarray


def fit_by_simulation(
    simulate: Simulate,
    snap: Snap,
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
    sum of the squared differences of expected and observed statistics, each over its variance; the prior law of the
    parameters is uniform.

    1. A search by cross-entropy (Rubinstein 1999): each generation is drawn from the normal law of the best points of
       the two before it, and its simulations are larger.
    2. A Gaussian process predicts the expected statistics near the best points. Simulations at draws of a Metropolis
       walk over the likelihood, flattened at first, improve it where it counts.
    3. The best of a few points is chosen by large simulations, and a last walk draws from the likelihood. As statistics
       are correlated, and :math:`D` takes no account of it, the likelihood is raised to the power that gives the draws
       the variance of the estimate (Ribatet et al., Statistica Sinica 2012), less where nothing comes as near as
       chance explains.

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

    Raises:
        ValueError: when hardly any simulation has statistics.
    """
    rng = np.random.default_rng(seed)
    variance = np.diag(covariance) / weights
    runs = _Runs(simulate, snap, observed, variance)
    runs.add(qmc.Sobol(num_parameters, rng=rng).random(NUM_FIRST), budget * FIRST_SHARE / NUM_FIRST)
    for growth in np.linspace(0.5, 1.5, NUM_SEARCHES):
        recent = runs.last(2 * GENERATION if len(runs.points) > NUM_FIRST + GENERATION else NUM_FIRST + GENERATION)
        elite = recent[: 3 * num_parameters]
        runs.add(_normal(elite, 1.3, GENERATION, rng), growth * budget * SEARCH_SHARE / (NUM_SEARCHES * GENERATION))
    for _ in range(NUM_WALKS):
        runs.emulate()
        elite = runs.best[: 4 * num_parameters]
        heat = max(2.0, float(runs.distances[num_parameters] / weights.sum()))
        draws, _ = _walk(runs, np.cov(elite.T), 1 / heat, CHAIN_STEPS // 3, rng)
        walked = draws[rng.integers(len(draws), size=GENERATION // 2)]
        points = np.concatenate([walked, _normal(elite, 2.0, GENERATION // 2, rng)])
        runs.add(points, budget * WALK_SHARE / (NUM_WALKS * GENERATION))
    runs.emulate()
    draws, distances = _walk(runs, np.cov(runs.best[: 8 * num_parameters].T), 1.0, CHAIN_STEPS, rng)
    # Half of the candidates is simulated already: the emulator may be wrong where it knows little.
    drawn = draws[np.argsort(distances)[:: len(draws) // 20][: NUM_CANDIDATES // 2]]
    candidates = snap(np.concatenate([drawn, runs.best[: NUM_CANDIDATES - len(drawn)]]))
    runs.add(candidates, budget * CANDIDATE_SHARE / NUM_CANDIDATES)
    best, misfit = runs.last(NUM_CANDIDATES)[0], runs.least_distance(NUM_CANDIDATES)
    runs.emulate()
    jacobian = runs.emulator.jacobian(best)
    power = _power(jacobian, covariance, 1 / variance, misfit)
    draws, _ = _walk(runs, np.cov(draws.T), power, CHAIN_STEPS, rng, cautious=False)
    return Posterior(best, draws, jacobian, runs.emulator.unit_variance)


class _Runs:
    """All simulations so far."""

    emulator: GaussianProcess
    best: np.ndarray
    distances: np.ndarray

    def __init__(self, simulate: Simulate, snap: Snap, observed: np.ndarray, variance: np.ndarray) -> None:
        self.simulate, self.snap, self.observed, self.variance = simulate, snap, observed, variance
        self.points, self.statistics, self.sizes = np.empty((0, 0)), np.empty((0, len(observed))), np.empty(0)

    def add(self, points: np.ndarray, size: float) -> None:
        """Simulate at ``points``, and keep what has statistics."""
        points, whole_size = self.snap(points), max(int(size), LEAST_SIZE)
        statistics = np.array([self.simulate(point, whole_size) for point in points])
        usable = np.isfinite(statistics).all(axis=1)
        self.points = np.concatenate([self.points.reshape(-1, points.shape[1]), points[usable]])
        self.statistics = np.concatenate([self.statistics, statistics[usable]])
        self.sizes = np.concatenate([self.sizes, np.full(usable.sum(), float(whole_size))])
        if len(self.points) < 4 * points.shape[1]:
            raise ValueError(f"simulate must return statistics, but did so at {len(self.points)} points only.")

    def last(self, count: int) -> np.ndarray:
        """Return the last points, the nearest first."""
        distances = np.square(self.statistics[-count:] - self.observed) @ (1 / self.variance)
        return np.asarray(self.points[-count:][np.argsort(distances)])

    def least_distance(self, count: int) -> float:
        """Return the distance of the nearest of the last simulations."""
        return float((np.square(self.statistics[-count:] - self.observed) @ (1 / self.variance)).min())

    def emulate(self) -> None:
        """Fit the emulator to the simulations that are nearest, and sort these by what it predicts for them."""
        near = np.argsort(np.square(self.statistics - self.observed) @ (1 / self.variance))[:NUM_NEAR]
        self.emulator = GaussianProcess(self.points[near], self.statistics[near], self.sizes[near])
        predicted = np.square(self.emulator.mean(self.points[near]) - self.observed) @ (1 / self.variance)
        order = np.argsort(predicted)
        self.best, self.distances = self.points[near[order]], predicted[order]

    def log_likelihood(self, points: np.ndarray, *, cautious: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return it, and the distance, at ``points``; next to none where the emulator knows little.

        That is where over half of its own variance is left, and, unless ``cautious``, where this counts beside the
        variance of the observation.
        """
        prediction, error = self.emulator(self.snap(points))
        total = self.variance + error
        distance = (np.square(prediction - self.observed) / total).sum(axis=1)
        most = 0.5 * self.emulator.scale if cautious else np.maximum(0.5 * self.emulator.scale, 0.25 * self.variance)
        unknown = (error > most).any(axis=1)
        return -0.5 * (distance + np.log(total / self.variance).sum(axis=1)) - UNKNOWN * unknown, distance


def _normal(elite: np.ndarray, inflation: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points of the normal law of ``elite``, with its covariance inflated."""
    covariance = inflation * np.cov(elite.T) + 1e-5 * np.eye(elite.shape[1])
    return _reflect(rng.multivariate_normal(elite.mean(axis=0), covariance, count))


def _reflect(points: np.ndarray) -> np.ndarray:
    """Fold the real numbers into ``[0, 1]``."""
    return np.asarray(1 - np.abs(1 - np.mod(points, 2)))


def _walk(
    runs: _Runs, covariance: np.ndarray, power: float, steps: int, rng: np.random.Generator, *, cautious: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and their distances, from Metropolis walks side by side; the first half of each is left out."""
    starts = runs.best[: 2 * NUM_CHAINS]
    likely = np.argsort(-runs.log_likelihood(starts, cautious=cautious)[0])[: NUM_CHAINS // 4]
    x = starts[rng.choice(likely, NUM_CHAINS)]
    now, distance = runs.log_likelihood(x, cautious=cautious)
    factor = np.linalg.cholesky(covariance + 1e-7 * np.eye(x.shape[1]))
    scale = 2.38 / np.sqrt(x.shape[1])
    draws, distances = [], []
    for step in range(steps):
        proposal = _reflect(x + scale * rng.standard_normal(x.shape) @ factor.T)
        new, new_distance = runs.log_likelihood(proposal, cautious=cautious)
        accept = np.log(rng.random(len(x))) < power * (new - now)
        x = np.where(accept[:, None], proposal, x)
        now, distance = np.where(accept, new, now), np.where(accept, new_distance, distance)
        if step < steps // 2:
            scale *= np.exp(0.1 * (accept.mean() - 0.25))
        elif step % 10 == 0:
            draws.append(x)
            distances.append(distance)
    return np.concatenate(draws), np.concatenate(distances)


def _power(jacobian: np.ndarray, covariance: np.ndarray, weights: np.ndarray, misfit: float) -> float:
    """Return the power of the likelihood with which its draws vary as much as the estimate does.

    Where the least distance, ``misfit``, is larger than differences that the parameters cannot take up account for, the
    power is less by as much, as with the dispersion of a quasi-likelihood.
    """
    weighted = weights[:, None] * jacobian
    sensitivity, variability = jacobian.T @ weighted, weighted.T @ covariance @ weighted
    bread = np.linalg.inv(sensitivity + PRIOR_PRECISION * np.eye(len(sensitivity)))
    left = np.eye(len(weights)) - jacobian @ bread @ weighted.T
    expected = np.trace(left @ covariance @ left.T @ np.diag(weights))
    return float(np.trace(bread @ sensitivity) / np.trace(bread @ variability) / max(1.0, misfit / expected))
