from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, ndimage, stats

from monai_sc.functional import boundary_bias, boundary_displacement, grouped_bias, shift_boundary
from monai_sc.functional.bias import group_means

EMPTY, LINE, FULL = np.zeros((1, 5)), np.array([[0, 0, 1, 1, 0]]), np.ones((1, 5))


def ball(shape, radius):
    grid = np.indices(shape) - np.reshape([(size - 1) / 2 for size in shape], (-1, *[1] * len(shape)))
    return ((grid**2).sum(axis=0) <= radius**2)[None]


def slab(shape, axis, first, last):
    position = np.indices(shape)[axis]
    return ((position >= first) & (position <= last))[None]


def is_beside_boundary(mask):
    """Say for each voxel whether a face neighbour has the other class."""
    beside = np.zeros(mask.shape, dtype=bool)
    for axis in range(mask.ndim):
        ahead, behind = ([slice(None)] * axis + [part] for part in (slice(1, None), slice(None, -1)))
        differs = mask[tuple(ahead)] != mask[tuple(behind)]
        beside[tuple(ahead)] |= differs
        beside[tuple(behind)] |= differs
    return beside


def slow_phi(mask, metric, spacing, from_the_face):
    """Compare every voxel with every voxel of the other class, and with those of its own class beside the boundary."""

    def nearest(voxel, candidates):
        steps = np.abs(np.argwhere(candidates) - voxel) * spacing
        return (steps.sum(axis=1) if metric == "taxicab" else np.sqrt((steps**2).sum(axis=1))).min()

    phi = np.empty(mask.shape)
    beside = is_beside_boundary(mask)
    for voxel in np.ndindex(mask.shape):
        distance = nearest(voxel, mask != mask[voxel])
        if from_the_face:
            distance = (distance + nearest(voxel, beside & (mask == mask[voxel]))) / 2
        phi[voxel] = -distance if mask[voxel] else distance
    return phi


@pytest.mark.parametrize("shift", [-3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "axis", "metric", "spacing"),
    [
        pytest.param((24, 9), 0, "euclidean", None, id="2d"),
        pytest.param((9, 24), 1, "taxicab", None, id="2d-taxicab"),
        pytest.param((6, 24, 5), 1, "euclidean", None, id="3d"),
        pytest.param((6, 5, 24), 2, "taxicab", None, id="3d-taxicab"),
        pytest.param((24, 9), 0, "euclidean", (4.0, 0.5), id="2d-thick-voxels"),
        pytest.param((9, 24), 1, "euclidean", (4.0, 0.5), id="2d-thin-voxels"),
        pytest.param((24, 6, 5), 0, "euclidean", (2.5, 0.7, 0.7), id="3d-thick-voxels"),
    ],
)
def test_slab_grown_by_k_gives_minus_k_and_one_shrunk_by_k_gives_plus_k(shape, axis, metric, spacing, shift):
    label, prediction = slab(shape, axis, 8, 15), slab(shape, axis, 8 - shift, 15 + shift)
    displacement = boundary_displacement(prediction, label, metric=metric, spacing=spacing)
    assert displacement.dtype == np.float64
    thin = (
        0.04 if shift == -3 and metric == "euclidean" else 1e-5
    )  # two voxels are left, which smoothing thins a little
    unit = spacing[axis] if spacing else 1
    np.testing.assert_allclose(displacement, [-shift * unit], atol=thin * unit)


@pytest.mark.parametrize(
    ("shape", "radius"),
    [pytest.param((96, 96), 30, id="disc"), pytest.param((60, 60, 60), 18, id="ball-3d")],
)
@pytest.mark.parametrize(
    ("metric", "k"),  # a diamond's tips make an erosion by more than 5 steps uneven
    [*itertools.product(["euclidean", "taxicab"], [1, 2, 3, 5]), ("euclidean", 8)],
)
def test_round_label_of_another_radius_is_measured_within_a_quarter_of_a_voxel(shape, radius, k, metric):
    label = ball(shape, radius)
    if metric == "euclidean":
        larger, smaller = ball(shape, radius + k), ball(shape, radius - k)
    else:  # the balls of that metric are diamonds, so a boundary moves by its steps
        larger = ndimage.binary_dilation(label[0], iterations=k)[None]
        smaller = ndimage.binary_erosion(label[0], iterations=k)[None]
    grown, shrunk = (boundary_displacement(mask, label, metric=metric)[0] for mask in (larger, smaller))
    assert grown == pytest.approx(-k, abs=0.25)
    assert shrunk == pytest.approx(k, abs=0.25)


@pytest.mark.parametrize("s", [-4.0, 4.0])
def test_ball_in_thick_slices_is_measured_in_mm(s):
    grid = (np.indices((30, 90, 90)) - np.reshape([14.5, 44.5, 44.5], (3, 1, 1, 1))) * np.reshape(
        [3, 1, 1], (3, 1, 1, 1)
    )
    distance = np.sqrt((grid**2).sum(axis=0))[None]
    assert boundary_displacement(distance <= 25 + s, distance <= 25, spacing=(3, 1, 1))[0] == pytest.approx(
        -s, abs=0.25
    )


def slow_points(mask):
    """Return where each face between the classes cuts the line between two centres, by the smoothed mask."""
    smooth = ndimage.gaussian_filter(np.pad(mask, 4, mode="edge").astype(float), 0.7, mode="nearest", truncate=3)
    points = []
    for voxel in np.ndindex(mask.shape):
        for axis in range(mask.ndim):
            other = tuple(v + (a == axis) for a, v in enumerate(voxel))
            if other[axis] == mask.shape[axis] or mask[voxel] == mask[other]:
                continue
            near, far = (smooth[tuple(v + 4 for v in place)] - 0.5 for place in (voxel, other))
            part = near / (near - far) if (near > 0) != (far > 0) else 0.5
            points.append([v + part * (a == axis) for a, v in enumerate(voxel)])
    return np.array(points), smooth


def slow_displacement(prediction, label, spacing):
    (own, _), (other, field) = slow_points(label), slow_points(prediction)
    distances = []
    for point in own:
        nearest = np.sqrt((((other - point) * spacing) ** 2).sum(axis=1)).min()
        inside = ndimage.map_coordinates(field, point[:, None] + 4, order=1)[0] > 0.5
        distances.append(-nearest if inside else nearest)
    return np.mean(distances)


@pytest.mark.parametrize(
    ("shape", "spacing"),
    [
        pytest.param((17, 15), None, id="2d"),
        pytest.param((17, 15), (0.7, 1.9), id="2d-anisotropic"),
        pytest.param((10, 11, 9), (1.1, 0.4, 2.5), id="3d-anisotropic"),
    ],
)
def test_displacement_is_the_lesser_of_the_two_means_over_points_of_the_boundaries(shape, spacing):
    rng = np.random.default_rng(3)
    for _ in range(4):
        label, prediction = (
            ball(shape, rng.uniform(2.5, 4.5))[0] | np.roll(ball(shape, 2.5)[0], rng.integers(-2, 3), 0)
            for _ in range(2)
        )
        one, other = (
            slow_displacement(*pair, spacing or [1] * len(shape)) for pair in ((prediction, label), (label, prediction))
        )
        expected = one if abs(one) < abs(other) else -other
        found = boundary_displacement(prediction[None], label[None], spacing=spacing)[0]
        assert found == pytest.approx(expected, abs=1e-5)
        assert boundary_displacement(label[None], prediction[None], spacing=spacing)[0] == pytest.approx(-found)


@pytest.mark.parametrize(
    ("shape", "metric", "spacing", "region"),
    [
        pytest.param((11, 9), "euclidean", None, "image", id="2d"),
        pytest.param((11, 9), "taxicab", None, "image", id="2d-taxicab"),
        pytest.param((11, 9), "taxicab", None, "boundary", id="2d-taxicab-boundary"),
        pytest.param((11, 9), "euclidean", (0.7, 1.9), "image", id="2d-anisotropic"),
        pytest.param((6, 7, 5), "euclidean", (1.1, 0.4, 2.5), "image", id="3d-anisotropic"),
        pytest.param((6, 7, 5), "taxicab", None, "boundary", id="3d-taxicab-boundary"),
    ],
)
def test_displacement_is_the_mean_over_all_voxels_or_over_both_sides_of_the_boundary(shape, metric, spacing, region):
    rng = np.random.default_rng(3)
    label, prediction = (np.stack([rng.random(shape) < p for p in (0.2, 0.6)]) for _ in range(2))
    if region == "boundary":  # in one piece each, so that nothing is a stray
        label, prediction = (np.stack([ball(shape, r)[0] for r in radii]) for radii in ((1.5, 2.5), (2.5, 1.2)))
    displacement = boundary_displacement(prediction, label, region=region, metric=metric, spacing=spacing)
    expected = []
    for pair in zip(prediction, label, strict=True):
        phi = [slow_phi(mask, metric, spacing or [1] * len(shape), region == "boundary") for mask in pair]
        expected.append((phi[0] - phi[1])[is_beside_boundary(pair[1]) if region == "boundary" else ...].mean())
    np.testing.assert_allclose(displacement, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
def test_strays_and_holes_do_not_move_the_boundary_mean(metric):
    label = ball((60, 60), 15)
    prediction = ball((60, 60), 18)
    expected = boundary_displacement(prediction, label, metric=metric)
    prediction[0, 4:7, 4:7] = True  # an object that is not there
    prediction[0, 30, 30] = False  # a hole in the middle
    assert boundary_displacement(prediction, label, metric=metric) == expected
    label[0, 50:54, 50:54] = True  # an object that was not found
    assert boundary_displacement(prediction, label, metric=metric) == expected
    assert abs(boundary_displacement(prediction, label, metric=metric, region="image")[0] - expected[0]) > 0.4


@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
@pytest.mark.parametrize("region", ["boundary", "image"])
def test_ignored_voxels_do_not_count(metric, region):
    label = ball((50, 50), 14)
    prediction = label.copy()
    prediction[0, :25] = ball((50, 50), 18)[0, :25]  # biased in one half only
    ignore = np.zeros_like(label)
    ignore[0, :28] = True
    assert boundary_displacement(prediction, label, metric=metric, region=region)[0] < -0.5
    assert boundary_displacement(prediction, label, metric=metric, region=region, ignore=ignore)[0] == pytest.approx(
        0, abs=0.1 if region == "boundary" else 0.7
    )
    everything = np.ones_like(label)
    assert np.isnan(boundary_displacement(prediction, label, metric=metric, region=region, ignore=everything)).all()


def test_masks_that_do_not_overlap_have_no_displacement():
    first, second = np.zeros((2, 1, 20, 20), dtype=bool)
    first[0, 2:6, 2:6] = second[0, 12:16, 12:16] = True
    assert np.isnan(boundary_displacement(first, second)).all()
    first, second = np.stack([first[0], second[0]]), np.stack([second[0], second[0]])
    assert np.array_equal(boundary_displacement(first, second), [np.nan, 0], equal_nan=True)


@pytest.mark.parametrize("region", ["boundary", "image"])
@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
def test_perfect_prediction_has_no_displacement(label, region, metric):
    assert boundary_displacement(label, label, region=region, metric=metric).tolist() == [0, 0]


@pytest.mark.parametrize("region", ["boundary", "image"])
@pytest.mark.parametrize(
    ("prediction", "true"),
    [
        pytest.param(EMPTY, LINE, id="empty-prediction"),
        pytest.param(FULL, LINE, id="full-prediction"),
        pytest.param(LINE, EMPTY, id="empty-label"),
        pytest.param(LINE, FULL, id="full-label"),
        pytest.param(EMPTY, EMPTY, id="both-empty"),
    ],
)
def test_displacement_without_a_boundary_is_nan_and_leaves_other_channels_alone(prediction, true, region):
    grown = np.array([[0, 1, 1, 1, 1]])
    displacement = boundary_displacement(
        np.stack([prediction[0], grown[0]]), np.stack([true[0], LINE[0]]), region=region
    )
    assert math.isnan(displacement[0])
    assert displacement[1] == boundary_displacement(grown, LINE, region=region)[0] < 0


@pytest.mark.parametrize("region", ["boundary", "image"])
def test_flips_do_not_change_the_displacement(label, region):
    prediction = shift_boundary(label, 1.5)
    expected = boundary_displacement(prediction, label, region=region)
    for axis in range(1, label.ndim):
        flipped = boundary_displacement(np.flip(prediction, axis), np.flip(label, axis), region=region)
        np.testing.assert_allclose(flipped, expected, rtol=1e-6)


def test_any_kind_is_measured_and_not_written_to(label, as_kind):
    prediction, true = as_kind(shift_boundary(label, 1)), as_kind(label)
    displacement = boundary_displacement(prediction, true)
    assert isinstance(displacement, np.ndarray)
    assert np.array_equal(displacement, boundary_displacement(shift_boundary(label, 1), label))
    assert np.array_equal(np.asarray(prediction), shift_boundary(label, 1))
    assert np.array_equal(np.asarray(true), label)


@pytest.mark.parametrize(
    ("prediction", "true", "options", "message"),
    [
        pytest.param(
            LINE * 0.3, LINE, {}, r"^prediction must be binary, only 0 and 1 .*, got 0.3;", id="soft-prediction"
        ),
        pytest.param(LINE, LINE * 2, {}, r"^label must be binary, only 0 and 1 .*, got 2;", id="label-of-2"),
        pytest.param(
            LINE,
            FULL[:, :4],
            {},
            r"^prediction and label must have the same shape, got \(1, 5\) and \(1, 4\)",
            id="shape",
        ),
        pytest.param(
            LINE, LINE, {"region": "rim"}, r"^region must be one of 'boundary', 'image', got 'rim'\.$", id="region"
        ),
        pytest.param(
            LINE, LINE, {"metric": "l1"}, r"^metric must be one of 'euclidean', 'taxicab', got 'l1'\.$", id="metric"
        ),
        pytest.param(LINE, LINE, {"spacing": (1, 2)}, r"^spacing must be 1 positive numbers", id="spacing"),
        pytest.param(
            LINE, LINE, {"ignore": LINE[:, :4]}, r"^ignore must have the shape of .*, got \(1, 4\)", id="ignore"
        ),
        pytest.param(LINE, EMPTY, {"metric": "l1"}, r"^metric must be one of", id="metric-of-an-empty-label"),
    ],
)
def test_wrong_input_or_option_is_refused(prediction, true, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_displacement(prediction, true, **options)


def test_bias_is_the_mean_over_usable_cases_and_counts_the_others():
    bias = boundary_bias(np.array([[-5, np.nan, 1], [-3, np.nan, np.nan], [np.nan, np.nan, np.nan]]))
    np.testing.assert_array_equal(bias.mean, [-4, np.nan, 1])
    assert bias.num_used.tolist() == [2, 0, 1]
    assert bias.num_skipped.tolist() == [1, 3, 2]


def test_interval_needs_two_cases_and_contains_the_mean():
    bias = boundary_bias(np.array([[-5, 2], [-3, np.nan], [-4.5, np.nan]]))
    assert bias.interval.shape == (2, 2)
    assert bias.interval[0, 0] < bias.mean[0] < bias.interval[0, 1]
    assert np.isnan(bias.interval[1]).all()
    assert np.isnan(bias.spread[1])
    assert bias.verdict[1] == "cannot tell"


@pytest.mark.parametrize(
    ("values", "half_width"),  # of the law of Student for 95 %: 12.706, 4.303 and 3.182
    [
        pytest.param([-5, -3], 12.706 * 2**0.5 / 2**0.5, id="two-cases"),
        pytest.param([1, 2, 3], 4.303 * 1 / 3**0.5, id="three-cases"),
        pytest.param([0, 0, 4, 4], 3.182 * (16 / 3) ** 0.5 / 2, id="four-cases"),
        pytest.param([-2, -2, -2, -2], 0, id="equal-cases"),
    ],
)
def test_interval_is_that_of_student(values, half_width):
    bias = boundary_bias(np.array(values, dtype=float)[:, None])
    mean = np.mean(values)
    np.testing.assert_allclose(bias.interval, [[mean - half_width, mean + half_width]], rtol=1e-3)


@pytest.mark.parametrize("num_cases", [2, 3, 5, 8])
def test_interval_holds_the_true_mean_as_often_as_it_says_also_with_few_cases(num_cases):
    many = np.random.default_rng(num_cases).normal(-3, 2, size=(num_cases, 2000))  # one class for each sample
    low, high = boundary_bias(many).interval.T
    assert 0.935 <= np.mean((low <= -3) & (high >= -3)) <= 0.965


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        pytest.param([-5.0, -4.5, -5.5, -5.2], "biased", id="far-from-0"),
        pytest.param([-0.2, 0.1, 0.0, 0.2], "unbiased", id="near-0"),
        pytest.param([0.4, 0.5, 0.45, 0.5], "unbiased", id="not-0-but-within-the-tolerance"),
        pytest.param([-5.0, 4.0, 1.0], "cannot tell", id="anywhere"),
        pytest.param([-5.0], "cannot tell", id="one-case"),
    ],
)
def test_verdict_says_what_the_interval_allows(values, verdict):
    assert boundary_bias(np.array(values)[:, None]).verdict == (verdict,)


def test_half_width_narrows_as_the_t_law_says():
    values = np.random.default_rng(0).normal(-3, 2, size=(24, 1))
    bias = boundary_bias(values)
    assert bias.spread[0] == pytest.approx(values.std(ddof=1))
    assert bias.half_width(24)[0] == pytest.approx(np.diff(bias.interval[0])[0] / 2)
    assert bias.half_width(6)[0] == pytest.approx(2.5706 * values.std(ddof=1) / 6**0.5, rel=1e-4)
    with pytest.raises(ValueError, match=r"^num_cases must be at least 2, got 1: one case gives no error estimate"):
        bias.half_width(1)


def test_group_with_many_cases_keeps_its_own_bias_and_one_with_few_is_drawn_to_the_others():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(m, 1, n) for m, n in ((-4, 40), (0, 40), (6, 1), (0, 1))])[:, None]
    values[-1] = np.nan
    biases = grouped_bias(values, ["a"] * 40 + ["b"] * 40 + ["c", "d"])
    assert list(biases) == ["a", "b", "c", "d"]
    assert biases["a"].mean[0] == pytest.approx(values[:40].mean(), abs=0.05)
    assert biases["b"].mean[0] == pytest.approx(values[40:80].mean(), abs=0.05)
    assert values[:80].mean() < biases["c"].mean[0] < values[80, 0]
    assert biases["a"].mean[0] < biases["d"].mean[0] < biases["c"].mean[0]
    assert biases["d"].num_used.tolist() == [0]
    assert biases["d"].num_skipped.tolist() == [1]
    assert biases["d"].verdict == ("cannot tell",)
    widths = [float(np.diff(bias.interval[0])[0]) for bias in biases.values()]
    assert widths[0] == pytest.approx(widths[1], rel=0.01)
    assert widths[0] < widths[2] < widths[3] < 100


MIRRORED = [-3.0, -1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("values", "groups", "means", "intervals"),
    [
        # 2 -+ 4.3027 / sqrt(3): one group says nothing of how groups differ, so it is as if there were none
        pytest.param([1, 2, 3], "aaa", [2], [(-0.4841, 4.4841)], id="one-group-is-as-if-there-were-none"),
        pytest.param([2, 2, 2, 2, 2], "aabbc", [2, 2, 2], [(2, 2)] * 3, id="equal-cases-leave-no-doubt"),
        pytest.param([1, 1, 5, 5], "aabb", [1, 5], [(1, 1), (5, 5)], id="cases-equal-in-each-group-leave-no-doubt"),
        pytest.param([1, 2, 6], "abc", [3, 3, 3], [(np.nan, np.nan)] * 3, id="one-case-per-group-tells-nothing"),
        pytest.param([np.nan, 2, 6], "abc", [4, 4, 4], [(np.nan, np.nan)] * 3, id="one-case-or-none-per-group"),
    ],
)
def test_groups_worked_out_by_hand(values, groups, means, intervals):
    biases = grouped_bias(np.array(values, dtype=float)[:, None], list(groups))
    assert [float(bias.mean[0]) for bias in biases.values()] == pytest.approx(means, abs=1e-4)
    np.testing.assert_allclose([bias.interval[0] for bias in biases.values()], intervals, atol=1e-4)


def test_groups_that_mirror_each_other_have_mirrored_biases_and_a_group_without_cases_lies_between():
    one, other, none = grouped_bias(np.array([*MIRRORED, np.nan])[:, None], list("aabbc")).values()
    assert -2 < one.mean[0] < -1  # drawn to the other, and less than half way
    np.testing.assert_allclose(one.mean, -other.mean)
    np.testing.assert_allclose(one.interval, -other.interval[:, ::-1])
    np.testing.assert_allclose(none.mean, 0, atol=1e-9)
    np.testing.assert_allclose(none.interval.sum(), 0, atol=1e-6)
    assert np.diff(none.interval) > np.diff(one.interval)


def law_by_integration(parts, group, value):
    """Return mean and distribution function of the bias of a group, by an integral over 1 / sqrt(1 + h lambda)."""
    counts, means = (np.array([f(part) for part in parts]) for f in (len, np.mean))
    total = counts.sum()

    def terms(v):
        spread = (1 / v**2 - 1) * np.mean(1 / counts)  # between groups, in parts of the variance within
        error = spread + 1 / counts
        centre = np.average(means, weights=1 / error)
        squares = sum(((part - part.mean()) ** 2).sum() for part in parts) + ((means - centre) ** 2 / error).sum()
        density = squares ** (-(total - 1) / 2) / math.sqrt(np.prod(counts * error) * (1 / error).sum())
        share = spread / error[group]
        variance = spread * (1 - share) + (1 - share) ** 2 / (1 / error).sum()
        law = stats.t(total - 1, centre + share * (means[group] - centre), math.sqrt(squares / (total - 1) * variance))
        return density, law

    def integral(f):
        return integrate.quad(lambda v: f(*terms(v)), 0, 1, epsabs=0, epsrel=1e-7, limit=200)[0]

    whole = integral(lambda density, law: density)
    return tuple(integral(f) / whole for f in (lambda d, law: d * law.mean(), lambda d, law: d * law.cdf(value)))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(
    "sizes", [pytest.param((2, 2), id="2-2"), pytest.param((1, 4, 2), id="1-4-2"), pytest.param((3, 9), id="3-9")]
)
def test_mean_and_interval_of_a_group_are_those_of_an_integral_over_the_unknown_variance(sizes, confidence):
    rng = np.random.default_rng(len(sizes))
    parts = [rng.normal(rng.normal(), 1, size) for size in sizes]
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    biases = grouped_bias(np.concatenate(parts)[:, None], groups, confidence=confidence)
    for g, bias in biases.items():
        for bound, probability in zip(bias.interval[0], ((1 - confidence) / 2, (1 + confidence) / 2), strict=True):
            mean, below = law_by_integration(parts, g, bound)
            assert bias.mean[0] == pytest.approx(mean, abs=1e-4)
            assert below == pytest.approx(probability, abs=1e-4)


def random_groups(rng):
    """Return displacements ``(cases, 2)``, some of which are not defined, and the groups of the cases."""
    num_groups, tau = rng.integers(1, 9), rng.choice([0, 0.5, 1, 2, 10])
    rows = np.repeat(np.arange(num_groups), rng.integers(1, 11, num_groups))
    values = rng.normal(0, 1) + rng.normal(0, tau, (num_groups, 2))[rows] + rng.normal(0, 1, (len(rows), 2))
    values[1:][rng.random((len(rows) - 1, 2)) < 0.1] = np.nan
    return values, rng.permutation(rows).tolist()


def verdict_of(interval, tolerance):
    low, high = interval
    if low > -tolerance and high < tolerance:
        return "unbiased"
    return "biased" if low > 0 or high < 0 else "cannot tell"


def test_verdict_of_a_group_is_what_its_interval_says():
    rng, seen = np.random.default_rng(5), set()
    for _ in range(100):
        values, groups = random_groups(rng)
        tolerance = rng.choice([0.0, 0.5, 1.0, 2.0])
        for bias in grouped_bias(values, groups, tolerance=tolerance).values():
            assert bias.verdict == tuple(verdict_of(interval, tolerance) for interval in bias.interval)
            seen.update(bias.verdict)
    assert seen == {"biased", "unbiased", "cannot tell"}


def test_mean_of_a_group_lies_in_its_interval_and_the_counts_are_its_own():
    rng = np.random.default_rng(6)
    for _ in range(50):
        values, groups = random_groups(rng)
        for name, bias in grouped_bias(values, groups).items():
            own = values[[group == name for group in groups]]
            known = np.isfinite(bias.interval[:, 0])
            assert np.all((bias.interval[:, 0] <= bias.mean) & (bias.mean <= bias.interval[:, 1]) | ~known)
            assert bias.num_used.tolist() == np.isfinite(own).sum(axis=0).tolist()
            assert bias.num_skipped.tolist() == np.isnan(own).sum(axis=0).tolist()
            for k in np.flatnonzero(bias.num_used > 1):
                assert bias.spread[k] == pytest.approx(np.nanstd(own[:, k], ddof=1))


@pytest.mark.parametrize("sizes", [(6, 12), (1, 5, 10), (4, 4, 4, 4, 4), (8, 1, 3, 2, 10, 5, 4, 6)], ids=str)
@pytest.mark.parametrize("tau", [0.5, 1, 2])
def test_interval_of_a_group_holds_its_true_bias_as_often_as_it_says(sizes, tau):
    rng, rows, samples = np.random.default_rng(17), np.repeat(np.arange(len(sizes)), sizes), 300 // len(sizes)
    true = rng.normal(0, tau, (len(sizes), samples))
    values = true[rows] + rng.normal(0, 1, (len(rows), samples))  # one class for each sample
    intervals = np.stack([bias.interval for bias in grouped_bias(values, rows.tolist()).values()])
    held = (intervals[..., 0] <= true) & (true <= intervals[..., 1])
    assert 0.92 <= held.mean() <= 0.98


def test_groups_that_do_not_differ_gain_from_each_other():
    rng, rows = np.random.default_rng(3), np.repeat(np.arange(5), 4)
    values = rng.normal(-1, 1, (20, 40))
    drawn, alone = grouped_bias(values, rows.tolist())[0], boundary_bias(values[:4])
    assert np.mean((drawn.mean + 1) ** 2) < 0.6 * np.mean((alone.mean + 1) ** 2)
    assert np.mean(np.diff(drawn.interval)) < 0.7 * np.mean(np.diff(alone.interval))


def test_two_groups_that_are_far_apart_keep_their_own_means():
    values = np.array([[-4.0], [-4.2], [-3.8], [1.0], [1.2], [0.8]])
    ann, ben = grouped_bias(values, ["ann"] * 3 + ["ben"] * 3).values()
    assert ann.mean[0] == pytest.approx(-4, abs=0.05)
    assert ben.mean[0] == pytest.approx(1, abs=0.05)
    assert ann.verdict == ben.verdict == ("biased",)


@pytest.mark.parametrize("factor", [-1, 1e-6, 1e6])
def test_biases_of_groups_have_the_unit_of_the_displacements(factor):
    values, groups = random_groups(np.random.default_rng(8))
    for one, other in zip(
        grouped_bias(values, groups).values(), grouped_bias(factor * values, groups).values(), strict=True
    ):
        np.testing.assert_allclose(other.mean, factor * one.mean, rtol=1e-6)
        np.testing.assert_allclose(other.interval, np.sort(factor * one.interval), rtol=1e-6)


def test_means_of_groups_are_those_of_their_biases():
    rng = np.random.default_rng(9)
    for _ in range(20):
        values, groups = random_groups(rng)
        means, biases = group_means(values, groups), grouped_bias(values, groups)
        assert list(means) == list(biases)
        for name, bias in biases.items():
            assert np.array_equal(means[name], bias.mean)


def test_means_without_a_usable_case_are_nan_and_no_case_makes_no_group():
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    means = group_means(values, ["a", "a", "b"])
    np.testing.assert_allclose(list(means.values()), [[2, np.nan], [2, np.nan]])
    assert group_means(np.zeros((0, 1)), []) == {}


@pytest.mark.parametrize("function", [grouped_bias, group_means])
def test_groups_must_name_every_case(function):
    with pytest.raises(ValueError, match=r"^groups must have one name per case \(3\), got 2\.$"):
        function(np.ones((3, 1)), ["a", "b"])
    with pytest.raises(ValueError, match=r"^groups must be names, got nan; give the cases without one a name"):
        function(np.ones((3, 1)), ["a", "b", float("nan")])
    with pytest.raises(ValueError, match=r"^displacements must have the shape \(cases, classes\).*, got \(3,\)\.$"):
        function(np.ones(3), ["a", "b", "c"])


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_of_many_cases_is_that_of_the_normal_law_and_narrows_with_their_number(confidence):
    values = np.random.default_rng(0).normal(-3, 2, size=(400, 1))
    quantile = {0.8: 1.2816, 0.95: 1.96}[confidence]
    widths = []
    for cases in (values[:25], values[:100], values):
        bias = boundary_bias(cases, confidence=confidence)
        low, high = bias.interval[0]
        assert low < bias.mean[0] < high
        assert high - low == pytest.approx(2 * quantile * cases.std() / math.sqrt(len(cases)), rel=0.15)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(
    ("displacements", "options", "message"),
    [
        pytest.param(
            np.full((3, 2), np.nan),
            {},
            r"^displacements must have at least one usable case, but in all 3 .*give clean",
            id="none",
        ),
        pytest.param(
            np.zeros((0, 2)), {}, r"shape \(cases, classes\) with at least one case, got \(0, 2\)\.$", id="no-case"
        ),
        pytest.param(
            np.zeros(3), {}, r"^displacements must have the shape \(cases, classes\).*, got \(3,\)\.$", id="one-axis"
        ),
        pytest.param(np.eye(3), {"confidence": 95}, r"^confidence must be .*, got 95", id="percent"),
        pytest.param(np.eye(3), {"confidence": 0}, r"^confidence must be .*, got 0", id="no-confidence"),
        pytest.param(np.eye(3), {"tolerance": -1}, r"^tolerance must be at least 0, got -1", id="tolerance"),
    ],
)
def test_bias_without_a_usable_case_or_with_a_wrong_option_is_refused(displacements, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_bias(displacements, **options)
    with pytest.raises(ValueError, match=message):
        grouped_bias(displacements, ["a"] * len(displacements), **options)


def test_tensor_of_displacements_is_taken():
    assert boundary_bias(torch.tensor([[-5.0], [-3.0]])).mean.tolist() == [-4]
