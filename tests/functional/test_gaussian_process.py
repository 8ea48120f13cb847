from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional.gaussian_process import GaussianProcess


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_function_and_noise_are_found(noise):
    rng = np.random.default_rng(1)
    points = rng.random((150, 2))
    function = np.stack([np.sin(4 * points[:, 0]), points[:, 1] ** 2 - points[:, 0]], axis=1)
    weights = rng.choice([1.0, 4.0], 150)
    process = GaussianProcess(points, function + noise * rng.normal(size=(150, 2)) / np.sqrt(weights)[:, None], weights)
    mean, variance = process(points)
    np.testing.assert_allclose(mean, process.mean(points))
    assert np.abs(mean - function).max() < 1.5 * noise + 0.02
    assert np.mean(np.square(mean - function) < 4 * variance + 1e-4) > 0.85
    assert (variance < 0.2 * process.scale).mean() > 0.9  # so many points tell where the function is
    np.testing.assert_allclose(process.unit_variance, noise**2, rtol=0.5, atol=1e-3)
    far = process(np.array([[30.0, 30.0]]))[1]
    np.testing.assert_allclose(far[0], process.scale)
    np.testing.assert_allclose(process.jacobian(np.array([0.5, 0.5]))[0, 0], 4 * np.cos(2), atol=0.2 + noise)


@pytest.mark.parametrize("length", [1.0, 1.5, 2.5])
def test_length_is_that_of_the_process_that_the_values_were_drawn_from(length):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 1))
    covariance = np.exp(-np.square((points - points.T) / (length * points.std())) / 2)
    values = rng.multivariate_normal(np.zeros(200), covariance + 0.002 * np.eye(200), 6).T
    process = GaussianProcess(points, values, np.ones(200))
    np.testing.assert_allclose(process.unit, length * points.std(axis=0))


def test_a_plane_is_found_as_it_is():
    points = np.random.default_rng(0).random((40, 2))
    process = GaussianProcess(points, 1 + points @ [[2.0], [-3.0]], np.ones(40))
    np.testing.assert_allclose(process.jacobian(np.array([0.3, 0.8])), [[2, -3]], atol=1e-4)
    np.testing.assert_allclose(process.mean(np.array([[4.0, -5.0]])), [[24]], atol=1e-3)  # also far from all points


def test_of_values_at_one_place_their_weighted_mean_counts_and_their_noise_is_inverse_to_the_weight():
    points = np.repeat(np.linspace(0, 1, 20), 2)[:, None]
    values, weights = np.tile([0.0, 1.0], 20)[:, None], np.tile([1.0, 3.0], 20)
    process = GaussianProcess(points, values, weights)
    np.testing.assert_allclose(process.mean(points), np.full((40, 1), 0.75), atol=1e-3)
    assert process.unit_variance[0] == pytest.approx((0.75**2 + 3 * 0.25**2) / 2, rel=0.1)
