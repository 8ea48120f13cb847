from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from monai_sc.datasets.phantom import phantom_image
from monai_sc.functional import case_seed, markov_label_noise, shift_boundary
from monai_sc.functional.fit import _p_value, draw_num_steps, fit_markov_noise
from monai_sc.functional.fit_model import PairModel, RealPairs, noise_parameters
from monai_sc.functional.pair_statistics import SCALARS

SCALES = {"stray_rate": np.sqrt, "dice": float, "displacement": float}


def disc(size, radius, ndim=2):
    grid = np.indices((size,) * ndim) - (size - 1) / 2
    return ((grid**2).sum(axis=0) <= radius**2)[None]


def noisy_copies(clean, seed=0, step_spread=0.0, **parameters):
    copies = []
    for k, mask in enumerate(clean):
        own = case_seed(seed, str(k))
        steps = draw_num_steps(parameters["num_steps"], step_spread, own)
        copies.append(markov_label_noise(mask, **{**parameters, "num_steps": steps}, seed=own))
    return copies


DISCS = [disc(32, radius) for radius in np.linspace(6, 10, 16)]
GROWN = noisy_copies(DISCS, num_steps=3, expansion_prob=0.9, march_prob=0.4)


@pytest.fixture(scope="module")
def quick():
    """Return a rough fit to few pairs."""
    return fit_markov_noise(DISCS, GROWN, budget=5000, max_steps=20)


def test_rough_fit_resembles_the_pairs_in_dice_and_displacement(quick):
    assert quick.simulated.dice == pytest.approx(quick.real.dice, abs=0.02)
    assert quick.simulated.displacement == pytest.approx(quick.real.displacement, abs=0.25)
    assert quick.simulated.spread == pytest.approx(quick.real.spread, rel=0.2)
    assert (quick.num_used, quick.num_skipped, quick.num_groups) == (16, 0, 16)
    assert quick.real.num_pairs == 16
    assert 0 < quick.p_value <= 1


def test_parameters_are_ready_for_the_noise(quick):
    noisy = markov_label_noise(DISCS[0], **quick.parameters, seed=0)
    assert noisy.shape == DISCS[0].shape
    assert quick.parameters_of("case-1") == quick.parameters
    assert quick.step_spread == 0


def test_intervals_are_those_of_the_joint_draws(quick):
    assert quick.intervals.keys() == quick.draws.keys()
    assert {*quick.draws} == {"num_steps", "expansion_prob", "march_prob", "flip_prob", "smooth_sigma"}
    assert len({len(values) for values in quick.draws.values()}) == 1
    for name, (low, high) in quick.intervals.items():
        assert low <= np.median(quick.draws[name]) <= high
    correlation = np.corrcoef(np.log(quick.draws["num_steps"]), np.log(quick.draws["march_prob"]))[0, 1]
    assert correlation < -0.3  # more steps, each with a smaller probability


def test_same_seed_gives_the_same_and_a_weight_is_1_unless_it_is_given(quick):
    clean = [torch.from_numpy(mask) for mask in DISCS]
    again = fit_markov_noise(clean, GROWN, budget=5000, max_steps=20, weights={"dice": 1})
    assert again.parameters == quick.parameters
    assert again.intervals == quick.intervals
    assert again.distance == quick.distance


def recovery(clean, true, step_spread=0.0, seed=13, budget=20_000, **options):
    """Fit masks that were made with known parameters; of 95 % intervals some miss, with other seeds than these."""
    noisy = noisy_copies(clean, seed=seed, step_spread=step_spread, **true)
    fit = fit_markov_noise(clean, noisy, vary_steps=step_spread > 0, budget=budget, **options)
    for name in SCALARS:
        if name == "stray_rate":
            continue  # few voxels, or none
        scale = SCALES.get(name, np.log)
        real, simulated = scale(getattr(fit.real, name)), scale(getattr(fit.simulated, name))
        least = 0.02 if name == "dice" else 0.12
        error = fit.standard_errors[name] * (1 if scale is float else 1 / getattr(fit.real, name))
        assert abs(real - simulated) < max(3 * error, least), name
    assert fit.p_value > 0.005
    for name, value in {**true, "step_spread": step_spread}.items():
        if name in fit.intervals:
            low, high = fit.intervals[name]
            assert low <= value <= high, name
    return fit


@pytest.mark.parametrize(
    ("effect", "freedom"),
    [pytest.param([0, 0], 2, id="nothing"), pytest.param([50, 0], 1, id="one"), pytest.param([30, 40], 1, id="a-mix")],
)
@pytest.mark.parametrize("distance", [1.0, 4.0])
def test_p_value_is_that_of_what_the_parameter_cannot_take_up_of_two_statistics(effect, freedom, distance):
    effects = np.array(effect, dtype=float)[:, None]
    found = _p_value(distance, effects, np.eye(2), np.ones(2), np.random.default_rng(0))
    assert found == pytest.approx(stats.chi2.sf(distance, freedom), abs=0.02)


@pytest.mark.slow
def test_known_noise_with_smoothing_that_shrinks_is_recovered():
    clean = [phantom_image((64, 64), k)[1][:1] for k in range(60)]
    true = {"num_steps": 10, "expansion_prob": 0.3, "march_prob": 0.2, "smoothing": "before_flips", "smooth_sigma": 1.2}
    fit = recovery(clean, true, budget=10_000, max_steps=50)
    low, high = fit.intervals["expansion_prob"]
    assert high - low < 0.25


@pytest.mark.slow
def test_spread_of_the_steps_over_cases_is_recovered():
    clean = [phantom_image((64, 64), k)[1][:1] for k in range(80)]
    true = {"num_steps": 8, "expansion_prob": 0.8, "march_prob": 0.15, "flip_prob": 0.002}
    fit = recovery(clean, true, step_spread=0.8, seed=11, max_steps=50)
    steps = [fit.parameters_of(str(k))["num_steps"] for k in range(400)]
    assert np.std(np.log(np.maximum(steps, 1))) == pytest.approx(fit.step_spread, rel=0.25)


@pytest.mark.slow
def test_balls_in_mm_are_fitted():
    clean = [disc(16, radius, ndim=3) for radius in np.linspace(4, 5.5, 8)]
    spacing = (1.0, 0.5, 0.5)
    noisy = [
        markov_label_noise(mask, num_steps=4, expansion_prob=0.9, march_prob=0.3, spacing=spacing, seed=k)
        for k, mask in enumerate(clean)
    ]
    fit = fit_markov_noise(clean, noisy, spacing=spacing, budget=5000, max_steps=20)
    assert fit.simulated.displacement == pytest.approx(fit.real.displacement, abs=0.15)
    assert fit.real.displacement == pytest.approx(-0.5, abs=0.3)
    assert fit.simulated.dice == pytest.approx(fit.real.dice, abs=0.02)
    assert fit.real.lags[0] == 0.5


@pytest.mark.slow
def test_error_of_another_law_is_told_by_the_p_value():
    rng = np.random.default_rng(0)
    clean = [phantom_image((64, 64), k)[1][:1] for k in range(60)]
    # Every boundary moves as a whole, a few of them far, and does not get rough.
    noisy = [shift_boundary(mask, rng.choice([-2.0, 3.0, 7.0], p=[0.5, 0.4, 0.1])) for mask in clean]
    fit = fit_markov_noise(clean, noisy, budget=5000, max_steps=20)
    assert fit.p_value < 0.01
    assert np.array_equal(fit.simulated.histogram_edges, fit.real.histogram_edges)  # so that they can be compared


def test_empty_and_full_masks_are_skipped_and_channels_are_pairs():
    clean = [np.concatenate([mask, mask * 0, mask | True]) for mask in DISCS]
    noisy = [np.concatenate([mask, mask, mask]) for mask in GROWN]
    noisy[0] = noisy[0] * 0
    pairs = RealPairs(clean, noisy, None, None)
    assert (len(pairs.clean), pairs.num_skipped, pairs.num_groups) == (15, 33, 15)


def test_regions_leave_room_for_boundaries_that_go_half_as_far_again():
    clean = [np.pad(mask, ((0, 0), (30, 30), (30, 30))) for mask in DISCS]
    noisy = [shift_boundary(mask, 6) for mask in clean]
    pairs = RealPairs(clean, noisy, None, None)
    for mask, copy in zip(pairs.clean, noisy, strict=True):
        extent = np.ptp(np.flatnonzero(copy[0].any(axis=1))) + 1
        assert mask.mask.shape[0] >= extent + 2 * (9 + 4)
        assert mask.mask.shape[0] < copy.shape[1]
    farther = [[np.pad(mask, ((0, 0), (40, 0), (0, 40))) for mask in masks] for masks in (clean, noisy)]
    assert [mask.mask.shape for mask in RealPairs(*farther, None, None).clean] == [m.mask.shape for m in pairs.clean]


def test_statistics_are_scaled_by_the_smallest_side_of_a_voxel():
    pairs = RealPairs(DISCS, GROWN, (2.0, 0.5), None)
    statistics = {"displacement": -1, "magnitude": 1.5, "spread_between": 0.5, "spread_within": 0, "dice": 0.8}
    statistics |= {"correlation_length": np.inf, "stray_rate": 0.04, "dice_spread": 0.1}
    assert pairs.scaled(np.array([statistics[name] for name in SCALARS])) == pytest.approx(
        [-2, np.log(3), 0, np.log(0.01), np.log(64), 0.2, 0.8, np.log(0.1)]
    )


def test_standard_errors_are_those_of_groups():
    clean, noisy = DISCS * 4, GROWN * 4
    alone = RealPairs(clean, noisy, None, None).resample(np.random.default_rng(0))[0]
    groups = [k % 16 for k in range(64)]
    grouped = RealPairs(clean, noisy, None, groups).resample(np.random.default_rng(0))[0]
    index = SCALARS.index("dice")
    assert grouped[index] == pytest.approx(2 * alone[index], rel=0.15)
    scores = [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in zip(DISCS, GROWN, strict=True)]
    assert grouped[index] == pytest.approx(np.std(scores) / 4, rel=0.15)


def test_point_of_the_search_and_the_one_it_stands_for_have_the_same_noise():
    model = PairModel(RealPairs(DISCS, GROWN, None, None), vary_steps=True, max_steps=50, fixed={}, seed=0)
    points = np.random.default_rng(0).random((200, 6))
    asked, snapped = model.values(points), model.values(model.snap(points))
    for name, values in asked.items():
        np.testing.assert_allclose(snapped[name], values, rtol=1e-9, atol=1e-12)
    assert asked["num_steps"].min() >= 1
    assert asked["num_steps"].max() <= 50
    assert asked["march_prob"].max() <= 1
    assert (asked["smooth_sigma"] == 0).any()
    assert asked["smooth_sigma"][asked["smooth_sigma"] > 0].min() >= 0.5


def test_axes_of_the_search_stand_for_the_parameters_that_they_name():
    pairs = RealPairs(DISCS, GROWN, None, None)
    middle = np.full(6, 0.5)
    model = PairModel(pairs, vary_steps=True, max_steps=49, fixed={}, seed=0)
    assert {name: float(value) for name, value in model.values(middle).items()} == {
        "num_steps": 7,
        "expansion_prob": 0.5,
        "march_prob": pytest.approx((0.05 * 49) ** 0.5 / (7 * np.exp(0.5))),  # whose mean number of moves is sqrt(2.45)
        "flip_prob": pytest.approx(0.3 / 16),
        "smooth_sigma": pytest.approx(0.5 + 2.5 * 0.37 / 0.87),
        "step_spread": 1,
    }
    model = PairModel(pairs, vary_steps=False, max_steps=49, fixed={}, seed=0)
    assert model.values(middle)["march_prob"] == pytest.approx((0.05 * 49) ** 0.5 / 7)
    assert "step_spread" not in model.values(middle)


def test_simulated_pairs_are_new_at_each_call_and_the_same_with_the_same_seed():
    pairs = RealPairs(DISCS, GROWN, None, None)
    values = {"num_steps": 3, "expansion_prob": 0.5, "march_prob": 0.5, "flip_prob": 0, "smooth_sigma": 0}
    model, again = (PairModel(pairs, vary_steps=False, max_steps=20, fixed={}, seed=5) for _ in range(2))
    first, second = ([[error.dice for error in m.errors(values, 8)] for _ in range(2)] for m in (model, again))
    assert first == second
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("sigma", "smoothing"),
    [
        pytest.param(0, {"smoothing": None}, id="none"),
        pytest.param(1.23456, {"smoothing": "before_flips", "smooth_sigma": 1.235}, id="some"),
    ],
)
def test_parameters_have_four_digits_and_smoothing_only_where_it_was_found(sigma, smoothing):
    values = {"num_steps": 4.0, "expansion_prob": 0.75, "march_prob": 0.123456, "flip_prob": 0.0, "smooth_sigma": sigma}
    expected = {"num_steps": 4, "expansion_prob": 0.75, "march_prob": 0.1235, "flip_prob": 0.0, **smoothing}
    assert noise_parameters(values, {"in_plane": True}) == {**expected, "in_plane": True}


def test_steps_of_cases_are_log_normal_with_the_median_and_cut_off():
    steps = np.array([draw_num_steps(100, 0.5, seed) for seed in range(2000)])
    assert np.median(steps) == pytest.approx(100, rel=0.05)
    assert np.log(steps).std() == pytest.approx(0.5, rel=0.08)
    assert steps.min() >= round(100 * np.exp(-1))
    assert steps.max() <= round(100 * np.exp(1))
    assert {draw_num_steps(7, 0, seed) for seed in range(5)} == {7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"noisy": GROWN[:3]}, r"^clean and noisy must have the same number of masks, got 16", id="n"),
        pytest.param({"noisy": [m[:, :9] for m in GROWN]}, r"^clean and noisy must have the same shape", id="shape"),
        pytest.param({"noisy": [m * 2 for m in GROWN]}, r"^noisy must be binary", id="not-binary"),
        pytest.param({"groups": [0, 1]}, r"^groups must have one entry per pair \(16\), got 2\.$", id="groups"),
        pytest.param({"groups": [0, 1] * 8}, r"usable pairs in at least 5 groups, got 2: 0 of 16", id="few-groups"),
        pytest.param(
            {"noisy": [m * 0 for m in GROWN]},
            r"^clean and noisy must have usable .* got 0: 16 of 16 pairs have a mask that is empty or full\.$",
            id="empty",
        ),
        pytest.param({"noisy": DISCS}, r"^noisy must differ from clean, but all 16 usable pairs are equal", id="equal"),
        pytest.param({"spacing": (1, 2, 3)}, r"^spacing must be 2 positive numbers", id="spacing"),
        pytest.param({"spacing": [(1, 2)] * 3}, r"^spacing must be one for all or one per pair \(16\)", id="spacings"),
        pytest.param({"budget": 100}, r"^budget must be at least 5000, got 100\.$", id="budget"),
        pytest.param({"max_steps": 1}, r"^max_steps must be at least 2, got 1\.$", id="max-steps"),
        pytest.param({"weights": {"dice": -1}}, r"^weights must be at least 0 and finite, got -1 of dice", id="weight"),
        pytest.param({"weights": {"f1": 1}}, r"^weights must be of displacement, .*, got one of f1\.$", id="name"),
        pytest.param({"weights": dict.fromkeys(SCALARS, 0)}, r"^at least one weight must be over 0", id="no-weight"),
        pytest.param({"slice_axis": 7}, r"^slice_axis must be 0, 1 or 2", id="fixed"),
    ],
)
def test_pairs_or_options_that_make_no_sense_are_refused(change, message):
    arguments = {"clean": DISCS, "noisy": GROWN, **change}
    with pytest.raises(ValueError, match=message):
        fit_markov_noise(arguments.pop("clean"), arguments.pop("noisy"), **arguments)


def test_parameter_that_is_fitted_cannot_be_given():
    with pytest.raises(TypeError, match=r"^march_prob cannot be given; these can: step_size, in_plane"):
        fit_markov_noise(DISCS, GROWN, march_prob=0.5)
