from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional.gaussian_process import GaussianProcess
from monai_sc.functional.synthetic_likelihood import fit_by_simulation

TRUE = np.array([0.55, 0.4, 0.6])
EFFECT = np.array([[3.0, 0.5, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 4.0], [2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])


def linear_model(rng):
    return lambda x, size: EFFECT @ x + rng.normal(scale=0.2 / np.sqrt(size), size=5)


def fit(observed, covariance, weights=None, seed=0, budget=40_000):
    rng = np.random.default_rng(100 + seed)
    weights = np.ones(5) if weights is None else weights
    return fit_by_simulation(
        linear_model(rng), np.copy, 3, observed, covariance, weights=weights, budget=budget, seed=seed
    )


@pytest.mark.parametrize(
    "correlation", [pytest.param(0.0, id="independent"), pytest.param(0.8, id="correlated-statistics")]
)
def test_draws_of_a_linear_model_have_the_mean_and_spread_of_least_squares(correlation):
    errors = np.array([0.1, 0.1, 0.15, 0.1, 0.05])
    covariance = np.outer(errors, errors) * (correlation + (1 - correlation) * np.eye(5))
    observed = EFFECT @ TRUE + np.array([0.1, -0.05, 0.1, 0.0, -0.02])
    posterior = fit(observed, covariance)
    weighted = EFFECT / np.square(errors)[:, None]
    bread = np.linalg.inv(EFFECT.T @ weighted)
    estimate = bread @ weighted.T @ observed
    # The draws vary as the estimate does where the statistics are independent; else one power cannot set the variance
    # along every direction, but does so on the average of the directions, each in units of its own.
    power = 3 / np.trace(bread @ weighted.T @ covariance @ weighted)
    spread = np.sqrt(np.diag(bread) / power)
    np.testing.assert_allclose(posterior.draws.mean(axis=0), estimate, atol=0.5 * spread.max())
    np.testing.assert_allclose(posterior.draws.std(axis=0), spread, rtol=0.4)
    np.testing.assert_allclose(posterior.best, estimate, atol=1.5 * spread.max())
    np.testing.assert_allclose(posterior.jacobian, EFFECT, atol=1.5)
    np.testing.assert_allclose(posterior.unit_variance, np.full(5, 0.04), rtol=0.5)


def test_statistic_without_weight_has_no_say():
    covariance = 0.01 * np.eye(5)
    observed = EFFECT @ TRUE
    observed[4] += 5
    weights = np.array([1, 1, 1, 1, 1e-9])
    posterior = fit(observed, covariance, weights)
    np.testing.assert_allclose(posterior.draws.mean(axis=0), TRUE, atol=0.04)


def test_parameter_without_effect_keeps_its_uniform_law():
    rng = np.random.default_rng(0)
    simulate = lambda x, size: np.array([4 * x[0], 4 * x[0] ** 2]) + rng.normal(scale=1 / np.sqrt(size), size=2)  # noqa: E731
    posterior = fit_by_simulation(
        simulate, np.copy, 2, np.array([2.0, 1.0]), 0.01 * np.eye(2), weights=np.ones(2), budget=40_000, seed=0
    )
    assert posterior.draws[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    low, high = np.quantile(posterior.draws[:, 1], [0.025, 0.975])
    assert high - low > 0.75


def test_points_without_statistics_are_passed_over_and_a_model_without_any_is_refused():
    rng = np.random.default_rng(0)
    simulate = linear_model(rng)
    partly = lambda x, size: simulate(x, size) if x[0] > 0.4 else np.full(5, np.nan)  # noqa: E731
    options = {"weights": np.ones(5), "budget": 10_000, "seed": 0}
    posterior = fit_by_simulation(partly, np.copy, 3, EFFECT @ TRUE, 0.01 * np.eye(5), **options)
    np.testing.assert_allclose(posterior.draws.mean(axis=0), TRUE, atol=0.06)
    with pytest.raises(ValueError, match=r"^simulate must return statistics, but did so at 0 points only\.$"):
        fit_by_simulation(lambda x, size: np.full(5, np.nan), np.copy, 3, EFFECT @ TRUE, 0.01 * np.eye(5), **options)


def test_same_seed_gives_the_same_and_another_one_other_draws():
    first, again, other = (fit(EFFECT @ TRUE, 0.01 * np.eye(5), seed=seed, budget=5000) for seed in (0, 0, 1))
    assert np.array_equal(first.draws, again.draws)
    assert not np.array_equal(first.draws, other.draws)


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_gaussian_process_finds_the_function_and_the_noise(noise):
    rng = np.random.default_rng(1)
    points = rng.random((150, 2))
    function = np.stack([np.sin(4 * points[:, 0]), points[:, 1] ** 2 - points[:, 0]], axis=1)
    weights = rng.choice([1.0, 4.0], 150)
    process = GaussianProcess(points, function + noise * rng.normal(size=(150, 2)) / np.sqrt(weights)[:, None], weights)
    mean, variance = process(points)
    np.testing.assert_allclose(mean, process.mean(points))
    assert np.abs(mean - function).max() < 1.5 * noise + 0.02
    assert np.mean(np.square(mean - function) < 4 * variance + 1e-4) > 0.85
    np.testing.assert_allclose(process.unit_variance, noise**2, rtol=0.5, atol=1e-3)
    far = process(np.array([[30.0, 30.0]]))[1]
    np.testing.assert_allclose(far[0], process.scale)
    np.testing.assert_allclose(process.jacobian(np.array([0.5, 0.5]))[0, 0], 4 * np.cos(2), atol=0.2 + noise)
