from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from monai_sc.functional import boundary_bias, boundary_displacement, shift_boundary

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
    np.testing.assert_allclose(displacement, [-shift * (spacing[axis] if spacing else 1)], atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "radius"), [pytest.param((72, 72), 22, id="disc"), pytest.param((44, 44, 44), 13, id="ball-3d")]
)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_round_label_is_measured_alike_when_dilated_and_when_eroded(shape, radius, k):
    label = ball(shape, radius)
    grown, shrunk = (boundary_displacement(shift_boundary(label, s), label)[0] for s in (k, -k))
    assert abs(grown + shrunk) < 0.25
    assert grown == pytest.approx(-k, abs=0.5)
    assert shrunk == pytest.approx(k, abs=0.5)


@pytest.mark.parametrize(
    ("shape", "metric", "spacing"),
    [
        pytest.param((11, 9), "euclidean", None, id="2d"),
        pytest.param((11, 9), "taxicab", None, id="2d-taxicab"),
        pytest.param((11, 9), "euclidean", (0.7, 1.9), id="2d-anisotropic"),
        pytest.param((6, 7, 5), "euclidean", (1.1, 0.4, 2.5), id="3d-anisotropic"),
        pytest.param((6, 7, 5), "taxicab", None, id="3d-taxicab"),
    ],
)
@pytest.mark.parametrize("region", ["boundary", "image"])
def test_displacement_is_the_mean_over_all_voxels_or_over_both_sides_of_the_boundary(shape, metric, spacing, region):
    rng = np.random.default_rng(3)
    label, prediction = (np.stack([rng.random(shape) < p for p in (0.2, 0.6)]) for _ in range(2))
    displacement = boundary_displacement(prediction, label, region=region, metric=metric, spacing=spacing)
    expected = []
    for pair in zip(prediction, label, strict=True):
        phi = [slow_phi(mask, metric, spacing or [1] * len(shape), region == "boundary") for mask in pair]
        expected.append((phi[0] - phi[1])[is_beside_boundary(pair[1]) if region == "boundary" else ...].mean())
    np.testing.assert_allclose(displacement, expected, rtol=1e-5, atol=1e-6)


def test_stray_speck_moves_the_image_mean_and_not_the_boundary_mean():
    label = ball((60, 60), 10)
    prediction = label.copy()
    prediction[0, 1, 1] = True
    assert boundary_displacement(prediction, label)[0] == 0
    assert boundary_displacement(prediction, label, region="image")[0] < -0.5


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
    assert -5 <= bias.interval[0, 0] < bias.mean[0] < bias.interval[0, 1] <= -3
    assert np.isnan(bias.interval[1]).all()


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
        assert high - low == pytest.approx(2 * quantile * cases.std() / math.sqrt(len(cases)), rel=0.1)
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
        pytest.param(np.eye(3), {"num_resamples": 0}, r"^num_resamples must be .*, got 0", id="no-resamples"),
    ],
)
def test_bias_without_a_usable_case_or_with_a_wrong_option_is_refused(displacements, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_bias(displacements, **options)


def test_tensor_of_displacements_is_taken():
    assert boundary_bias(torch.tensor([[-5.0], [-3.0]])).mean.tolist() == [-4]
