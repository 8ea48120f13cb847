from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional import synthetic_likelihood
from monai_sc.functional.synthetic_likelihood import _Runs, _walk, fit_by_simulation

TRUE = np.array([0.55, 0.4, 0.6])
EFFECT = np.array([[3.0, 0.5, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 4.0], [2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])


def linear_model(rng, sizes=None):
    """Return a simulation, which notes its sizes."""

    def simulate(x, size):
        if sizes is not None:
            sizes.append(size)
        return EFFECT @ x + rng.normal(scale=0.2 / np.sqrt(size), size=5)

    return simulate


def fit(observed, covariance, weights=None, seed=0, budget=40_000, sizes=None):
    rng = np.random.default_rng(100 + seed)
    weights = np.ones(5) if weights is None else weights
    return fit_by_simulation(
        linear_model(rng, sizes), np.copy, 3, observed, covariance, weights=weights, budget=budget, seed=seed
    )


@pytest.mark.parametrize(
    "correlation", [pytest.param(0.0, id="independent"), pytest.param(0.8, id="correlated-statistics")]
)
def test_draws_of_a_linear_model_have_the_mean_and_spread_of_least_squares(correlation):
    errors = np.array([0.1, 0.1, 0.15, 0.1, 0.05])
    covariance = np.outer(errors, errors) * (correlation + (1 - correlation) * np.eye(5))
    observed = EFFECT @ TRUE + np.array([0.1, -0.05, 0.1, 0.0, -0.02])
    sizes = []
    posterior = fit(observed, covariance, sizes=sizes)
    assert sum(sizes) == pytest.approx(40_000, rel=0.02)  # the budget
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


def test_every_walk_knows_all_simulations(monkeypatch):
    class Runs(_Runs):
        def emulate(self):
            super().emulate()
            self.known = len(self.points)

    def walk(runs, *arguments, **options):
        walks.append(runs.known == len(runs.points))
        return _walk(runs, *arguments, **options)

    walks = []
    monkeypatch.setattr(synthetic_likelihood, "_Runs", Runs)
    monkeypatch.setattr(synthetic_likelihood, "_walk", walk)
    fit(EFFECT @ TRUE, 0.01 * np.eye(5), budget=5000)
    assert walks == [True] * (synthetic_likelihood.NUM_WALKS + 2)


class KnownLaw:
    """A normal law in place of an emulator; to the cautious, nothing is known of a first parameter over ``edge``."""

    def __init__(self, mean, deviation, *, start, edge=np.inf):
        self.mean, self.deviation, self.edge = np.array(mean), np.array(deviation), edge
        self.best = np.tile(start, (80, 1)) + 1e-3 * np.random.default_rng(0).normal(size=(80, 2))

    def log_likelihood(self, points, *, cautious):
        distance = np.square((points - self.mean) / self.deviation).sum(axis=1)
        return -0.5 * distance - 1e6 * (cautious and points[:, 0] > self.edge), distance


@pytest.mark.parametrize("width", [1e-3, 1.0], ids=["steps-too-short", "steps-too-long"])
@pytest.mark.parametrize("power", [1.0, 0.25])
def test_walk_from_afar_draws_from_the_law_whatever_the_length_of_its_first_steps(power, width):
    law = KnownLaw([0.35, 0.6], [0.04, 0.06], start=[0.95, 0.05])
    draws, distances = _walk(law, width**2 * np.eye(2), power, 600, np.random.default_rng(0))
    assert len(draws) == 40 * 300 / 10  # of 40 walks the second half, of which every tenth step
    np.testing.assert_allclose(draws.mean(axis=0), law.mean, atol=0.015)
    np.testing.assert_allclose(draws.std(axis=0), law.deviation / np.sqrt(power), rtol=0.15)
    np.testing.assert_allclose(distances, law.log_likelihood(draws, cautious=False)[1])


@pytest.mark.parametrize(("options", "share"), [({}, 0), ({"cautious": True}, 0), ({"cautious": False}, 0.5)])
def test_walk_that_is_cautious_stays_where_something_is_known(options, share):
    law = KnownLaw([0.5, 0.5], [0.1, 0.1], start=[0.4, 0.5], edge=0.5)
    draws, _ = _walk(law, 0.01 * np.eye(2), 1.0, 600, np.random.default_rng(0), **options)
    assert np.mean(draws[:, 0] > 0.5) == pytest.approx(share, abs=0.1 * (share > 0))


@pytest.fixture
def runs():
    """Return simulations with the statistics 7, 6, ... 0; observed was 3, with a variance of 4."""
    runs = _Runs(lambda point, size: 10 * point, np.copy, np.array([3.0]), np.array([4.0]))
    runs.add(np.array([[0.7], [0.6], [0.5], [0.4]]), 5.0)
    runs.add(np.array([[0.3], [0.2], [0.1], [0.0]]), 20.9)
    return runs


def test_simulations_are_kept_with_their_sizes_and_the_last_ones_are_sorted_by_distance(runs):
    assert runs.sizes.tolist() == [10, 10, 10, 10, 20, 20, 20, 20]
    assert runs.last(3).tolist() == [[0.2], [0.1], [0.0]]
    assert runs.last(8)[0].tolist() == [0.3]
    assert runs.least_distance(3) == pytest.approx(1 / 4)
    assert runs.least_distance(2) == pytest.approx(1)


class Emulator:
    """Predicts 5, with the given variance, of a process whose own variance is ``scale``."""

    def __init__(self, error, scale):
        self.error, self.scale = error, np.array([scale])

    def __call__(self, points):
        return np.full((len(points), 1), 5.0), np.full((len(points), 1), self.error)


@pytest.mark.parametrize(
    ("error", "scale", "unknown", "unknown_to_the_cautious"),
    [
        pytest.param(0.0, 8.0, False, False, id="exact"),
        pytest.param(3.0, 8.0, False, False, id="under-half-of-its-variance"),
        pytest.param(5.0, 8.0, True, True, id="over-half"),
        pytest.param(0.8, 1.0, False, True, id="over-half-but-little-beside-the-observation"),
        pytest.param(1.2, 1.0, True, True, id="over-half-and-not-little"),
    ],
)
def test_likelihood_is_the_normal_one_of_both_variances_where_the_emulator_knows_enough(
    runs, error, scale, unknown, unknown_to_the_cautious
):
    runs.emulator = Emulator(error, scale)
    expected = -0.5 * (2**2 / (4 + error) + np.log((4 + error) / 4))
    for cautious, without in ((False, unknown), (True, unknown_to_the_cautious)):
        found, distance = runs.log_likelihood(np.zeros((2, 1)), cautious=cautious)
        np.testing.assert_allclose(found, np.full(2, expected - 1e6 * without))
        np.testing.assert_allclose(distance, np.full(2, 4 / (4 + error)))
