"""A Gaussian process: smooth functions through noisy values."""

from __future__ import annotations

import numpy as np

STRETCHES = (1.0, 1.5, 2.5, 4.0)  # lengths of the covariance, in standard deviations of the points
NOISES = np.geomspace(1e-3, 10, 15)[:, None]  # variance at a point of mean weight, over that of the process


class GaussianProcess:
    r"""Predict several values at a point from noisy values at others: about a plane, a Gaussian process for each.

    The covariance at two points is :math:`s^2 \exp(-r^2/2)`, where :math:`r` is their distance in units that are the
    same for all values: a multiple of the standard deviation of the points along each axis. The multiple, and the
    noise and :math:`s^2` of each value, are those of the largest marginal likelihood (Rasmussen and Williams, 2006,
    eq. 5.8).

    Args:
        points: ``(points, axes)``.
        values: ``(points, values)``.
        weights: ``(points,)``, over 0: the variance of the noise is inverse to it.

    Attributes:
        scale: ``(values,)``, :math:`s^2`.
        unit_variance: ``(values,)``, of the noise at a weight of 1.

    Example:
        >>> points = np.linspace(0, 3, 30)[:, None]
        >>> process = GaussianProcess(points, np.sin(points), np.ones(30))
        >>> bool(np.abs(process.mean(points + 0.05) - np.sin(points + 0.05)).max() < 0.03)
        True
    """

    def __init__(self, points: np.ndarray, values: np.ndarray, weights: np.ndarray) -> None:
        self.points, self.centre = points, points.mean(axis=0)
        self.root = np.sqrt(weights / weights.mean())
        plane, target = self._plane(points) * self.root[:, None], values * self.root[:, None]
        self.slope = np.linalg.solve(plane.T @ plane + 1e-6 * np.eye(plane.shape[1]), plane.T @ target)
        residual = target - plane @ self.slope
        best = -np.inf
        for stretch in STRETCHES:
            unit = stretch * np.maximum(points.std(axis=0), 0.01)
            kernel = self._kernel(points, unit) * np.outer(self.root, self.root)
            eigenvalues, vectors = np.linalg.eigh(kernel)
            along = vectors.T @ residual
            total = np.maximum(eigenvalues, 0) + NOISES  # (noises, points)
            scale = np.maximum((1 / total) @ np.square(along) / len(points), 1e-20)  # (noises, values)
            likelihood = -(len(points) * np.log(scale) + np.log(total).sum(axis=1)[:, None]) / 2
            if likelihood.max(axis=0).sum() > best:
                best, chosen = likelihood.max(axis=0).sum(), likelihood.argmax(axis=0)
                self.unit, self.vectors, self.inverse = unit, vectors, 1 / total[chosen].T
                self.scale = scale[chosen, np.arange(len(chosen))]
                self.unit_variance = self.scale * NOISES[chosen, 0] * weights.mean()
                self.coefficients = self.root[:, None] * (vectors @ (self.inverse * along))

    def _plane(self, points: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(points), 1)), points - self.centre], axis=1)

    def _kernel(self, points: np.ndarray, unit: np.ndarray) -> np.ndarray:
        a, b = points / unit, self.points / unit
        squares = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * a @ b.T
        return np.asarray(np.exp(-np.maximum(squares, 0) / 2))

    def mean(self, points: np.ndarray) -> np.ndarray:
        """Return the prediction ``(points, values)``."""
        return np.asarray(self._plane(points) @ self.slope + self._kernel(points, self.unit) @ self.coefficients)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the prediction and its variance, both ``(points, values)``."""
        kernel = self._kernel(points, self.unit)
        explained = np.square((kernel * self.root) @ self.vectors) @ self.inverse
        return self.mean(points), self.scale * np.maximum(1 - explained, 0)

    def jacobian(self, point: np.ndarray) -> np.ndarray:
        """Return the derivative of the prediction ``(values, axes)`` at ``point``."""
        step = 0.1 * np.diag(self.unit)
        return np.asarray(((self.mean(point + step) - self.mean(point - step)) / (0.2 * self.unit[:, None])).T)
