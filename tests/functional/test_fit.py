from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import ndimage

from monai_sc.datasets.phantom import phantom_image
from monai_sc.functional import case_seed, markov_label_noise, shift_boundary
from monai_sc.functional.fit import STATISTICS, MarkovFit, fit_markov_noise, pair_statistics
from monai_sc.functional.masks import dice


def disc(size, radius, ndim=2):
    grid = np.indices((size,) * ndim) - (size - 1) / 2
    return ((grid**2).sum(axis=0) <= radius**2)[None]


DISCS = [disc(32, radius) for radius in np.linspace(6, 10, 16)]
GROWN = [
    markov_label_noise(mask, num_steps=3, expansion_prob=0.9, march_prob=0.4, seed=case_seed(0, str(k)))
    for k, mask in enumerate(DISCS)
]


@pytest.fixture(scope="module")
def quick():
    """Return a rough fit to few pairs."""
    return fit_markov_noise(DISCS, GROWN, budget=5000, max_steps=20)


def test_rough_fit_resembles_the_pairs(quick):
    assert quick.simulated.dice == pytest.approx(quick.real.dice, abs=0.02)
    assert quick.simulated.displacement == pytest.approx(quick.real.displacement, abs=0.25)
    assert quick.simulated.spread == pytest.approx(quick.real.spread, rel=0.2)
    assert (quick.num_used, quick.num_skipped, quick.num_groups) == (16, 0, 16)
    assert len(quick.real.dices) == 16
    assert 0 < quick.p_value <= 1


def test_parameters_are_ready_for_the_noise(quick):
    assert markov_label_noise(DISCS[0], **quick.parameters, seed=0).shape == DISCS[0].shape
    assert quick.parameters_of("case-1") == quick.parameters
    assert quick.step_spread == 0


def test_intervals_are_those_of_the_joint_draws(quick):
    assert [*quick.intervals] == ["num_steps", "expansion_prob", "march_prob", "flip_prob", "smooth_sigma"]
    for name, (low, high) in quick.intervals.items():
        assert (low, high) == pytest.approx(np.quantile(quick.draws[name], (0.025, 0.975)))
    correlation = np.corrcoef(np.log(quick.draws["num_steps"]), np.log(quick.draws["march_prob"]))[0, 1]
    assert correlation < -0.3  # more steps, each with a smaller probability


def test_same_seed_gives_the_same_and_a_weight_is_1_unless_it_is_given(quick):
    again = fit_markov_noise(
        [torch.from_numpy(mask) for mask in DISCS], GROWN, budget=5000, max_steps=20, weights={"dice": 1}
    )
    assert (again.parameters, again.intervals) == (quick.parameters, quick.intervals)
    assert (again.distance, again.p_value) == (quick.distance, quick.p_value)


def test_steps_of_cases_are_log_normal_with_the_median_and_cut_off(quick):
    fit = MarkovFit(**{**vars(quick), "parameters": {**quick.parameters, "num_steps": 100}, "step_spread": 0.5})
    steps = np.array([fit.parameters_of(str(k))["num_steps"] for k in range(2000)])
    assert np.median(steps) == pytest.approx(100, rel=0.05)
    assert np.log(steps).std() == pytest.approx(0.5, rel=0.08)
    assert (round(100 * np.exp(-1)), round(100 * np.exp(1))) == (steps.min(), steps.max())


def slow_boundary(clean, noisy, spacing):
    """Return places and displacements of the faces of ``noisy``, from the definition, voxel by voxel."""
    steps = [step for axis in range(clean.ndim) for step in (np.eye(clean.ndim, dtype=int)[axis],)]
    voxels = [np.array(v) for v in itertools.product(*map(range, clean.shape))]

    def beside(v):
        return any(
            ((v + s >= 0).all() and (v + s < clean.shape).all() and clean[tuple(v + s)] != clean[tuple(v)])
            for step in steps
            for s in (step, -step)
        )

    edge = [v for v in voxels if beside(v)]

    def depth(v):
        other = min(np.linalg.norm((v - w) * spacing) for w in edge if clean[tuple(w)] != clean[tuple(v)])
        own = min(np.linalg.norm((v - w) * spacing) for w in edge if clean[tuple(w)] == clean[tuple(v)])
        return (other + own) / 2 * (-1 if clean[tuple(v)] else 1)

    places, moved = [], []
    for v, step in itertools.product(voxels, steps):
        w = v + step
        if (w < clean.shape).all() and noisy[tuple(v)] != noisy[tuple(w)]:
            places.append((v + w) / 2 * spacing)
            moved.append(-(depth(v) + depth(w)) / 2)
    return np.array(places), np.array(moved)


def slow_strays(noisy, clean):
    """Return ``noisy`` without its components that miss ``clean``, and without holes that miss the background."""
    kept = noisy.copy()
    for value in (True, False):
        components, number = ndimage.label(noisy == value)
        for k in range(1, number + 1):
            if not (clean[components == k] == value).any():
                kept[components == k] = not value
    return kept


@pytest.mark.parametrize(("shape", "spacing"), [((14, 13), None), ((5, 7, 6), (1.0, 0.5, 0.5))], ids=["2d", "3d-mm"])
def test_statistics_are_those_of_slow_loops(shape, spacing):
    sides = np.array(spacing or (1.0,) * len(shape))
    grid = [np.indices(shape) - (np.array(shape).reshape(-1, *[1] * len(shape)) - 1) / 2 for _ in range(2)]
    clean = [(np.square(g / (n / 3.2)).sum(axis=0) <= 1) for g, n in zip(grid, (min(shape),) * 2, strict=True)]
    noise = {"num_steps": 2, "expansion_prob": 0.7, "march_prob": 0.3, "flip_prob": 0.02}
    noisy = [markov_label_noise(mask[None], **noise, seed=k)[0] for k, mask in enumerate(clean)]
    means, variances, strays, scores, bands = [], [], [], [], {"near": np.zeros(2), "far": np.zeros(2)}
    for a, b in zip(clean, noisy, strict=True):
        kept = slow_strays(b, a)
        places, moved = slow_boundary(a, kept, sides)
        means.append(moved.mean())
        variances.append(moved.var())
        strays.append((kept ^ b).mean())
        scores.append(dice(a[None], b[None])[0])
        for p, u in zip(places, moved - moved.mean(), strict=True):
            for q, w in zip(places, moved - moved.mean(), strict=True):
                distance = np.linalg.norm(p - q) / sides.min()
                if 0 < distance <= 8:
                    bands["near" if distance <= 2.5 else "far"] += u * w, (u**2 + w**2) / 2
    found = pair_statistics(clean, noisy, spacing=spacing)
    assert found.displacement == pytest.approx(np.mean(means), abs=1e-6)
    assert found.spread_between == pytest.approx(np.std(means), abs=1e-6)
    assert found.spread_within == pytest.approx(np.sqrt(np.mean(variances)), abs=1e-6)
    assert found.spread == pytest.approx(np.sqrt(np.var(means) + np.mean(variances)), abs=1e-6)
    assert found.stray_rate == pytest.approx(np.mean(strays))
    assert found.stray_rate > 0
    assert (found.dice, found.dice_spread) == pytest.approx((np.mean(scores), np.std(scores)))
    np.testing.assert_allclose(found.dices, scores)
    np.testing.assert_allclose(found.displacements, means, atol=1e-6)
    # The loops take all pairs of positions, the statistics a part of them.
    assert found.near_correlation == pytest.approx(bands["near"][0] / bands["near"][1], abs=0.15)
    assert found.far_correlation == pytest.approx(bands["far"][0] / bands["far"][1], abs=0.15)


def test_mask_that_does_not_meet_the_clean_one_has_a_dice_and_no_displacement():
    rows = np.indices((30, 12))[0]
    clean = (rows >= 10) & (rows < 20)
    found = pair_statistics([clean] * 2, [rows > 25, (rows >= 8) & (rows < 22)])
    assert found.displacement == pytest.approx(-2)
    assert found.dice == pytest.approx(20 / 24 / 2)
    assert (found.near_correlation, found.far_correlation) == (1, 1)  # it does not vary


def recovery(true, number, step_spread=0.0, **options):
    """Fit masks that were made with known parameters; of 95 % intervals some miss, with other seeds."""
    clean = [phantom_image((64, 64), k)[1][:1] for k in range(number)]
    rng, noisy = np.random.default_rng(11), []
    for k, mask in enumerate(clean):
        steps = round(true["num_steps"] * np.exp(step_spread * np.clip(rng.standard_normal(), -2, 2)))
        noisy.append(markov_label_noise(mask, **{**true, "num_steps": steps}, seed=k))
    fit = fit_markov_noise(clean, noisy, vary_steps=step_spread > 0, max_steps=50, **options)
    assert fit.simulated.dice == pytest.approx(fit.real.dice, abs=0.02)
    assert fit.simulated.displacement == pytest.approx(fit.real.displacement, abs=0.15)
    assert fit.simulated.spread == pytest.approx(fit.real.spread, rel=0.12)
    for name, value in {**true, "step_spread": step_spread}.items():
        if name in fit.intervals:
            low, high = fit.intervals[name]
            assert low <= value <= high, name
    return fit


@pytest.mark.slow
def test_known_noise_with_smoothing_that_shrinks_is_recovered():
    true = {"num_steps": 10, "expansion_prob": 0.3, "march_prob": 0.2, "smoothing": "before_flips", "smooth_sigma": 1.2}
    low, high = recovery(true, 60, budget=10_000).intervals["expansion_prob"]
    assert high - low < 0.25


@pytest.mark.slow
def test_spread_of_the_steps_over_cases_is_recovered():
    true = {"num_steps": 8, "expansion_prob": 0.8, "march_prob": 0.15, "flip_prob": 0.002}
    recovery(true, 80, step_spread=0.8, budget=10_000)


@pytest.mark.slow
def test_balls_in_mm_are_fitted():
    clean, spacing = [disc(16, radius, ndim=3) for radius in np.linspace(4, 5.5, 8)], (1.0, 0.5, 0.5)
    noise = {"num_steps": 4, "expansion_prob": 0.9, "march_prob": 0.3, "spacing": spacing}
    noisy = [markov_label_noise(mask, **noise, seed=k) for k, mask in enumerate(clean)]
    fit = fit_markov_noise(clean, noisy, spacing=[spacing] * 8, budget=5000, max_steps=20)
    assert fit.simulated.displacement == pytest.approx(fit.real.displacement, abs=0.15)
    assert fit.real.displacement == pytest.approx(-0.5, abs=0.3)
    assert fit.simulated.dice == pytest.approx(fit.real.dice, abs=0.02)


@pytest.mark.slow
def test_error_of_another_law_has_a_small_p_value_and_skipped_channels_and_groups_are_counted():
    rng = np.random.default_rng(0)
    # Every boundary moves as a whole, a few of them far, and does not get rough.
    noisy = [shift_boundary(mask, rng.choice([-2.0, 3.0, 7.0], p=[0.5, 0.4, 0.1])) for mask in DISCS]
    clean, noisy = ([np.concatenate([m, m * k]) for m in masks] for k, masks in ((0, DISCS), (1, noisy)))
    fit = fit_markov_noise(clean, noisy, groups=[k // 2 for k in range(16)], budget=5000, max_steps=20)
    assert fit.p_value < 0.01
    assert (fit.num_used, fit.num_skipped, fit.num_groups) == (16, 16, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"noisy": GROWN[:3]}, r"^clean and noisy must have the same number of masks, got 16", id="n"),
        pytest.param({"noisy": [m[:, :9] for m in GROWN]}, r"^clean and noisy must have the same shape", id="shape"),
        pytest.param({"noisy": [m * 2 for m in GROWN]}, r"^noisy must be binary", id="not-binary"),
        pytest.param({"groups": [0, 1]}, r"^groups must have one entry per pair \(16\), got 2\.$", id="groups"),
        pytest.param({"groups": [0, 1] * 8}, r"usable pairs in at least 5 groups, got 2: 0 of 16", id="few-groups"),
        pytest.param({"noisy": [m * 0 for m in GROWN]}, r"got 0: 16 of 16 pairs have a mask that is empty", id="empty"),
        pytest.param({"noisy": DISCS}, r"^noisy must differ from clean, but all 16 usable pairs are equal", id="equal"),
        pytest.param({"spacing": (1, 2, 3)}, r"^spacing must be 2 positive numbers", id="spacing"),
        pytest.param({"spacing": [(1, 2)] * 3}, r"^spacing must be one for all or one per pair \(16\)", id="spacings"),
        pytest.param({"budget": 100}, r"^budget must be at least 5000, got 100\.$", id="budget"),
        pytest.param({"max_steps": 1}, r"^max_steps must be at least 2, got 1\.$", id="max-steps"),
        pytest.param({"weights": {"dice": -1}}, r"^weights must be at least 0, of .*, got -1 of dice\.$", id="weight"),
        pytest.param({"weights": {"f1": 1}}, r"^weights must be at least 0, of displacement, .* 1 of f1\.$", id="name"),
        pytest.param({"weights": dict.fromkeys(STATISTICS, 0)}, r"^weights must leave a statistic", id="no-weight"),
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
