import itertools

import numpy as np
import pytest

from monai_sc.benchmark.summary import holm, paired_difference

SEEDS = range(3)


def exact(difference):
    """Return the means of all samples with replacement that there are, each as likely as the others."""
    return np.array([np.mean(sample) for sample in itertools.product(difference, repeat=len(difference))])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [0.0, 0.03, -0.1])
def test_bootstrap_is_that_of_all_samples(seed, shift):
    """The standard error of a share among 9999 samples is under 0.005, that of a p-value under 0.01."""
    rng = np.random.default_rng(seed)
    second = rng.uniform(0.5, 0.9, 6)
    first = second + shift + rng.normal(0, 0.05, 6)
    means = exact(first - second)
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(np.mean(first) - np.mean(second))
    p_value = min(1, max(2 * min(np.mean(means <= 0), np.mean(means >= 0)), 1 / 32))
    assert found.p_value == pytest.approx(p_value, abs=0.03)
    for edge, share in zip(found.interval, (0.025, 0.975), strict=True):
        assert np.mean(means < edge) - 0.01 <= share <= np.mean(means <= edge) + 0.01


def test_pairs_matter():
    """Cases differ much, the methods by a little in each of them."""
    second = np.linspace(0.2, 0.9, 15)
    first = second + np.linspace(0.005, 0.015, 15)
    paired = paired_difference(first, second)
    assert paired.mean == pytest.approx(0.01)
    assert paired.p_value == pytest.approx(2 / 10_000)
    assert paired_difference(first, second[::-1]).p_value > 0.5


def test_order_of_the_two_turns_the_sign_only():
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 10))
    one, other = paired_difference(first, second), paired_difference(second, first)
    assert one.mean == -other.mean
    assert one.p_value == other.p_value
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-9)


def test_equal_methods_do_not_differ():
    found = paired_difference(np.array([0.5, 0.7, 0.9]), np.array([0.5, 0.7, 0.9]))
    assert (found.mean, found.interval, found.p_value) == (0, (0, 0), 1)


@pytest.mark.parametrize(("values", "mean"), [([0.5, np.nan], 0.5), ([0.5], 0.5), ([np.nan], np.nan), ([], np.nan)])
def test_too_few_cases_have_no_interval(values, mean):
    found = paired_difference(np.array(values), np.zeros(len(values)))
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert np.isnan([*found.interval, found.p_value]).all()


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        pytest.param([0.04], [0.04], id="one-stays"),
        pytest.param([0.01, 0.04, 0.03], [0.03, 0.06, 0.06], id="never-falls"),
        pytest.param([0.5, 0.9], [1.0, 1.0], id="at-most-1"),
        pytest.param([0.02, np.nan, 0.01], [0.02, np.nan, 0.02], id="nan-does-not-count"),
        pytest.param([], [], id="none"),
    ],
)
def test_adjusted_by_hand(p_values, adjusted):
    assert holm(p_values) == pytest.approx(adjusted, nan_ok=True)


def test_share_of_false_alarms():
    """Of methods that do not differ, about one in twenty seems to; with 30 cases the bootstrap is a little bold."""
    rng = np.random.default_rng(0)
    alarms = [paired_difference(rng.normal(0, 1, 30), np.zeros(30)).p_value < 0.05 for _ in range(150)]
    assert 0.01 < np.mean(alarms) < 0.11
