from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from monai_sc.functional import boundary_bias, boundary_displacement, grouped_bias, shift_boundary

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


@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
@pytest.mark.parametrize(
    ("shape", "radius"),
    [pytest.param((96, 96), 30, id="disc"), pytest.param((60, 60, 60), 18, id="ball-3d")],
)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_round_label_of_another_radius_is_measured_within_a_quarter_of_a_voxel(shape, radius, k, metric):
    label = ball(shape, radius)
    if metric == "euclidean":
        larger, smaller = ball(shape, radius + k), ball(shape, radius - k)
    else:  # the balls of that metric are diamonds, so a boundary moves by its steps
        if k > 5:
            return  # a diamond's tips make an erosion by much uneven
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


@pytest.mark.parametrize("num_cases", [3, 6, 24])
def test_interval_holds_the_true_mean_as_often_as_it_says_also_with_few_cases(num_cases):
    rng = np.random.default_rng(num_cases)
    held = 0
    for seed in range(200):
        low, high = boundary_bias(rng.normal(-3, 2, size=(num_cases, 1)), num_resamples=400, seed=seed).interval[0]
        held += low <= -3 <= high
    assert 0.9 <= held / 200 <= 0.99


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
    assert bias.half_width(24)[0] == pytest.approx(np.diff(bias.interval[0])[0] / 2, rel=0.1)
    assert bias.half_width(6)[0] == pytest.approx(2.5706 * values.std(ddof=1) / 6**0.5, rel=1e-4)
    with pytest.raises(ValueError, match=r"^num_cases must be at least 2, got 1: one case says nothing"):
        bias.half_width(1)


def test_group_with_many_cases_keeps_its_own_bias_and_one_with_few_gets_the_common_one():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(m, 1, n) for m, n in ((-4, 40), (0, 40), (6, 1), (0, 1))])[:, None]
    values[-1] = np.nan
    groups = ["a"] * 40 + ["b"] * 40 + ["c", "d"]
    biases = grouped_bias(values, groups)
    common = np.nanmean(values)
    assert list(biases) == ["a", "b", "c", "d"]
    assert biases["a"].mean[0] == pytest.approx(values[:40].mean(), abs=0.05)
    assert common < biases["c"].mean[0] < values[80, 0]
    assert biases["d"].mean[0] == pytest.approx(common)
    assert biases["d"].num_used.tolist() == [0]
    assert biases["d"].num_skipped.tolist() == [1]
    assert biases["d"].verdict == ("cannot tell",)


def test_group_is_drawn_toward_the_common_bias_as_worked_out_by_hand():
    # Within groups the variance is 2, between them (2 * 2^2 + 2 * 2^2 - 2) / 2 = 7, so a group keeps 7 / (7 + 2 / 2).
    biases = grouped_bias(np.array([[0.0], [2.0], [4.0], [6.0]]), ["a", "a", "b", "b"])
    assert [float(bias.mean[0]) for bias in biases.values()] == pytest.approx([3 - 2 * 7 / 8, 3 + 2 * 7 / 8])


@pytest.mark.parametrize("options", [{}, {"confidence": 0.8}], ids=str)
def test_interval_of_a_group_is_drawn_toward_the_common_one_as_the_mean_is(options):
    values = np.array([[0.0], [2.0], [4.0], [6.0]])
    common, *own = (boundary_bias(part, **options).interval for part in (values, values[:2], values[2:]))
    for found, expected in zip(grouped_bias(values, ["a", "a", "b", "b"], **options).values(), own, strict=True):
        np.testing.assert_allclose(found.interval, common / 8 + 7 * expected / 8)


def test_groups_that_differ_by_chance_only_get_the_common_bias():
    values = np.array([[1.0], [3.0], [2.0], [1.0], [3.0], [2.0]])
    for bias in grouped_bias(values, [0, 0, 0, 1, 1, 1]).values():
        assert bias.mean.tolist() == [2.0]
        assert bias.interval.tolist() == boundary_bias(values).interval.tolist()


def test_groups_must_name_every_case():
    with pytest.raises(ValueError, match=r"^groups must have one name per case \(3\), got 2\.$"):
        grouped_bias(np.ones((3, 1)), ["a", "b"])
    with pytest.raises(ValueError, match=r"^groups must be names, got nan; give the cases without one a name"):
        grouped_bias(np.ones((3, 1)), ["a", "b", float("nan")])


def test_equal_cases_have_an_interval_of_no_width():
    bias = boundary_bias(np.full((4, 1), -2.0))
    assert bias.interval.tolist() == [[-2, -2]]


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


def test_interval_depends_on_nothing_but_its_input_and_seed():
    values = np.random.default_rng(0).normal(size=(12, 2))
    first, again, other = (boundary_bias(values, seed=seed).interval for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(boundary_bias(values[:, :1], seed=3).interval[0], first[0])


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
        pytest.param(np.eye(3), {"num_resamples": 0}, r"^num_resamples must be .*, got 0", id="no-resamples"),
    ],
)
def test_bias_without_a_usable_case_or_with_a_wrong_option_is_refused(displacements, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_bias(displacements, **options)


def test_tensor_of_displacements_is_taken():
    assert boundary_bias(torch.tensor([[-5.0], [-3.0]])).mean.tolist() == [-4]
