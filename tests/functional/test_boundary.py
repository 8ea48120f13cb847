from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy import ndimage

from monai_sc.functional import boundary_displacement, correct_boundary, shift_boundary, signed_distance
from monai_sc.functional.boundary import exclusive_label, one_against_rest, probabilities_to_logits

ANISOTROPIC = {2: (0.7, 1.9), 3: (1.1, 0.4, 2.5)}


def logits_of(mask, slope=1.0):
    """Return logits that are linear in the distance to the boundary and not negative exactly on ``mask``."""
    return -slope * np.asarray(signed_distance(mask, origin="face"), dtype=np.float64)


def random_logits(shape, seed):
    """Return two channels of smooth noise: a foreground of less than half of the image, and one of more."""
    noise = np.random.default_rng(seed).normal(size=(2, *shape))
    smooth = np.stack([ndimage.gaussian_filter(channel, 1.2) for channel in noise])
    return smooth / smooth.std() + np.reshape([-0.4, 0.4], (2, *[1] * len(shape)))


def ball(shape, radius):
    grid = np.indices(shape) - np.reshape([size // 2 for size in shape], (-1, *[1] * len(shape)))
    return ((grid**2).sum(axis=0) <= radius**2)[None]


def slab(shape, axis, first, last):
    position = np.indices(shape)[axis]
    return ((position >= first) & (position <= last))[None]


def dice(first, second):
    return 2 * (first & second).sum() / (first.sum() + second.sum())


def slow_logit_correction(logits, bias, gamma=1.0, metric="euclidean", spacing=None, sign=-1):
    """Equation 8 of Yao et al. (ICLR 2023) for one channel, voxel by voxel; the paper prints ``sign=1``."""
    voxels = list(np.ndindex(logits.shape))
    spacing = np.array(spacing or [1] * logits.ndim)
    phi = {}
    for v in voxels:
        inside = logits[v] >= 0
        steps = np.abs(np.array([w for w in voxels if (logits[w] >= 0) != inside]) - v) * spacing
        distance = (steps.sum(axis=1) if metric == "taxicab" else np.sqrt((steps**2).sum(axis=1))).min()
        phi[v] = -distance if inside else distance
    band = [logits[v] for v in voxels if (bias <= phi[v] <= 0 if bias < 0 else 0 <= phi[v] <= bias)]
    if not band:
        return logits
    extreme = max(band) if bias < 0 else min(band)
    corrected = np.empty(logits.shape)
    for v in voxels:
        corrected[v] = logits[v] + sign * extreme * math.exp(-(phi[v] ** 2) / (2 * gamma**2 * bias**2))
    return corrected


LINE = [-1.5, -0.5, 0.5, 1.5, 0.5, -0.5]
RAMP = [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]
CASES = [
    pytest.param([LINE], -1, {}, [[0, 0, 0, 1, 0, 0]], id="negative-bias-shrinks"),
    pytest.param([LINE], 1, {}, [[0, 1, 1, 1, 1, 1]], id="positive-bias-grows"),
    pytest.param([LINE], 0, {}, [[0, 0, 1, 1, 1, 0]], id="no-bias"),
    pytest.param([LINE], -1, {"spacing": (2,)}, [[0, 0, 1, 1, 1, 0]], id="1-mm-is-half-a-voxel"),
    pytest.param([LINE], -1.1, {"spacing": (2,)}, [[0, 0, 0, 1, 0, 0]], id="over-half-a-voxel-moves-it-by-one"),
    pytest.param([LINE], -1.5, {"spacing": (4,)}, [[0, 0, 1, 1, 1, 0]], id="under-half-a-voxel-does-not-move-it"),
    pytest.param([LINE], -9, {}, [[0, 0, 0, 0, 0, 0]], id="bias-over-the-radius-empties"),
    pytest.param([LINE, LINE], (-1, 1), {}, [[0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], id="one-bias-per-channel"),
    pytest.param([RAMP], -2, {"representation": "logit"}, [[0, 0, 0, 0, 0, 1, 1, 1]], id="logit-shrinks"),
    pytest.param([RAMP], 2, {"representation": "logit"}, [[0, 0, 0, 1, 1, 1, 1, 1]], id="logit-grows"),
    pytest.param([RAMP], -2, {"representation": "logit", "gamma": 0.3}, [[0, 0, 0, 0, 1, 1, 1, 1]], id="narrow-logit"),
    pytest.param([LINE], -0.9, {"representation": "logit"}, [[0, 0, 1, 1, 1, 0]], id="logit-under-one-voxel"),
]


@pytest.mark.parametrize(("logits", "bias", "options", "expected"), CASES)
def test_boundary_moves_back_by_the_bias(logits, bias, options, expected):
    corrected = correct_boundary(np.array(logits), bias, **options)
    assert (corrected >= 0).astype(int).tolist() == expected


@pytest.mark.parametrize("shift", [-4, -3, -1, 1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "axis", "metric", "spacing"),
    [
        pytest.param((24, 9), 0, "euclidean", None, id="2d"),
        pytest.param((9, 24), 1, "taxicab", None, id="2d-taxicab"),
        pytest.param((6, 24, 5), 1, "euclidean", None, id="3d"),
        pytest.param((6, 5, 24), 2, "taxicab", None, id="3d-taxicab"),
        pytest.param((24, 9), 0, "euclidean", (3.3, 0.5), id="2d-thick-voxels"),
        pytest.param((9, 5, 24), 2, "euclidean", (2.5, 2.5, 0.7), id="3d-thin-voxels"),
    ],
)
def test_distance_gives_back_a_slab_that_was_shifted(shape, axis, metric, spacing, shift):
    truth = slab(shape, axis, 7, 16)
    predicted = slab(shape, axis, 7 - shift, 16 + shift)
    bias = -shift * (spacing[axis] if spacing else 1)
    corrected = correct_boundary(logits_of(predicted), bias, metric=metric, spacing=spacing)
    assert np.array_equal(corrected >= 0, truth)


@pytest.mark.parametrize("shift", [-4, -3, -2, -1, 1, 2, 3, 4])
@pytest.mark.parametrize(("shape", "radius"), [((70, 66), 22), ((36, 38, 40), 11)], ids=["disc", "ball-3d"])
class TestRoundLabelThatWasShifted:
    def test_distance_gives_it_back_by_its_measured_bias(self, shape, radius, shift):
        truth = ball(shape, radius)
        predicted = shift_boundary(truth, shift)
        bias = boundary_displacement(predicted, truth)
        corrected = correct_boundary(logits_of(predicted), bias) >= 0
        surface = (truth & ~shift_boundary(truth, -1)).sum()
        assert (corrected ^ truth).sum() < 0.3 * surface
        assert (corrected ^ truth).sum() < 0.1 * (predicted ^ truth).sum()

    def test_distance_gives_it_back_by_the_known_shift_to_within_half_a_voxel(self, shape, radius, shift):
        truth = ball(shape, radius)
        corrected = correct_boundary(logits_of(shift_boundary(truth, shift)), -shift) >= 0
        surface = (truth & ~shift_boundary(truth, -1)).sum()
        assert (corrected ^ truth).sum() < 0.55 * surface


@pytest.mark.parametrize("bias", [-2.6, -1, 0.5, 1, 3.2])
@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
def test_distance_scores_are_the_bias_less_the_distance_from_the_face(label, bias, metric):
    corrected = correct_boundary(logits_of(label), bias, metric=metric)
    expected = bias - signed_distance(label, metric=metric, origin="face")
    np.testing.assert_allclose(corrected, expected, rtol=1e-6)


@pytest.mark.parametrize(("bias", "gamma"), [(-2.5, 1), (-1, 0.5), (1.5, 0.7), (3, 1)])
@pytest.mark.parametrize(
    ("shape", "metric", "spacing"),
    [
        pytest.param((12, 10), "euclidean", None, id="2d"),
        pytest.param((12, 10), "taxicab", None, id="2d-taxicab"),
        pytest.param((12, 10), "euclidean", (0.7, 1.9), id="2d-anisotropic"),
        pytest.param((6, 7, 5), "euclidean", None, id="3d"),
        pytest.param((6, 7, 5), "euclidean", (1.1, 0.4, 2.5), id="3d-anisotropic"),
        pytest.param((6, 7, 5), "taxicab", None, id="3d-taxicab"),
    ],
)
def test_logit_is_equation_8_with_the_opposite_sign_voxel_by_voxel(shape, metric, spacing, bias, gamma):
    logits = random_logits(shape, seed=0)
    corrected = correct_boundary(logits, bias, representation="logit", gamma=gamma, metric=metric, spacing=spacing)
    expected = [slow_logit_correction(channel, bias, gamma, metric, spacing) for channel in logits]
    np.testing.assert_allclose(corrected, expected, rtol=1e-5, atol=1e-6)
    assert np.any((corrected >= 0) != (logits >= 0))


@pytest.mark.parametrize("shift", [3, -3], ids=["dilated", "eroded"])
def test_the_sign_that_the_paper_prints_makes_a_disc_worse_and_ours_better(shift):
    truth = ball((101, 101), 40)
    logits = logits_of(shift_boundary(truth, shift))
    before = dice(logits >= 0, truth)
    ours = dice(correct_boundary(logits, -shift, representation="logit") >= 0, truth)

    phi = signed_distance(logits >= 0)
    band = (-shift <= phi) & (phi <= 0) if shift > 0 else (phi >= 0) & (phi <= -shift)
    extreme = logits[band].max() if shift > 0 else logits[band].min()
    printed = dice(logits + extreme * np.exp(-(phi**2) / (2 * shift**2)) >= 0, truth)
    assert printed < before < ours


def test_the_printed_sign_moves_a_line_away_from_the_truth():
    ours, printed = (slow_logit_correction(np.array(RAMP), -2, sign=sign) >= 0 for sign in (-1, 1))
    assert ours.astype(int).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert printed.astype(int).tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("bias", [-40, 40], ids=["shrink", "grow"])
@pytest.mark.parametrize("slope", [0.1, 3])
def test_one_logit_step_on_a_linear_logit_removes_three_quarters_of_the_bias(bias, slope):
    # u = exp(-u²/2) has the solution u = 0.753
    logits = slope * (np.arange(400) - 199.5)[None]
    corrected = correct_boundary(logits, bias, representation="logit") >= 0
    moved = (corrected.sum() - 200) / bias
    assert moved == pytest.approx(0.753, abs=0.03)


@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_no_bias_returns_the_logits(label, representation):
    logits = random_logits(label.shape[1:], seed=1)
    assert np.array_equal(correct_boundary(logits, 0, representation=representation), logits)
    corrected = correct_boundary(logits, (0.0, -2.0), representation=representation)
    assert np.array_equal(corrected[0], logits[0])
    assert np.any(corrected[1] != logits[1])


@pytest.mark.parametrize("representation", ["distance", "logit"])
@pytest.mark.parametrize("bias", [-3, 3])
@pytest.mark.parametrize("value", [-2.0, 0.0, 2.0], ids=["empty", "full-of-zeros", "full"])
def test_channel_that_is_predicted_empty_or_full_is_unchanged(label, representation, bias, value):
    logits = random_logits(label.shape[1:], seed=1)
    logits[0] = value
    corrected = correct_boundary(logits, bias, representation=representation)
    assert np.array_equal(corrected[0], logits[0])
    assert np.array_equal(corrected[1:], correct_boundary(logits[1:], bias, representation=representation))


@pytest.mark.parametrize(("representation", "bias"), [("distance", -1), ("logit", -2)])
def test_logit_of_zero_is_foreground(representation, bias):
    logits = np.array([[-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]])
    corrected = correct_boundary(logits, bias, representation=representation)
    assert (corrected >= 0).astype(int).tolist() == [[0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_kind_dtype_and_metadata_are_kept_and_the_input_is_not_written_to(label, as_kind, representation):
    for dtype in (np.float16, np.float32, np.float64):
        logits = random_logits(label.shape[1:], seed=2).astype(dtype)
        given = as_kind(logits)
        corrected = correct_boundary(given, -1.5, representation=representation)
        assert type(corrected) is type(given)
        assert corrected.dtype == given.dtype
        expected = correct_boundary(logits.astype(np.float64), -1.5, representation=representation)
        tolerance = 1e-2 if dtype == np.float16 else 1e-5
        np.testing.assert_allclose(np.asarray(corrected), expected, rtol=tolerance, atol=tolerance)
        assert np.array_equal(np.asarray(given), logits)
        assert not np.shares_memory(np.asarray(corrected), np.asarray(given))
        if isinstance(given, MetaTensor):
            assert torch.equal(corrected.affine, given.affine)
            assert corrected.meta["filename_or_obj"] == "case-1.nii.gz"


@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_bfloat16_logits_of_mixed_precision_are_corrected(label, representation):
    logits = torch.from_numpy(random_logits(label.shape[1:], seed=2)).to(torch.bfloat16)
    corrected = correct_boundary(logits, -1.5, representation=representation)
    assert corrected.dtype == torch.bfloat16
    expected = correct_boundary(logits.float(), -1.5, representation=representation)
    torch.testing.assert_close(corrected.float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_integer_logits_give_float32_scores(as_kind, representation):
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        logits = np.array([[-3, -1, 1, 3, 1, -1]])
        corrected = correct_boundary(as_kind(logits.astype(dtype)), -1, representation=representation)
        assert corrected.dtype in (np.float32, torch.float32)
        expected = correct_boundary(logits.astype(np.float32), -1, representation=representation)
        np.testing.assert_allclose(np.asarray(corrected), expected, rtol=1e-6)


def test_logits_that_require_a_gradient_are_corrected():
    logits = torch.tensor([LINE], requires_grad=True)
    assert not correct_boundary(logits, -1.0).requires_grad


def test_read_only_and_non_contiguous_logits_are_read_as_they_are(label):
    given = random_logits(label.shape[1:], seed=2)[..., ::-2]
    given.setflags(write=False)
    for representation in ("distance", "logit"):
        plain = correct_boundary(np.ascontiguousarray(given), -1.5, representation=representation)
        assert np.array_equal(correct_boundary(given, -1.5, representation=representation), plain)


@pytest.mark.parametrize("representation", ["distance", "logit"])
@pytest.mark.parametrize("bias", [-1.5, 2.0])
def test_flips_and_transposes_commute(label, representation, bias):
    logits = random_logits(label.shape[1:], seed=3)
    spacing = ANISOTROPIC[label.ndim - 1]
    corrected = correct_boundary(logits, bias, representation=representation, spacing=spacing)
    for axis in range(1, label.ndim):
        flipped = correct_boundary(np.flip(logits, axis), bias, representation=representation, spacing=spacing)
        np.testing.assert_allclose(flipped, np.flip(corrected, axis), rtol=1e-5, atol=1e-6)
    for order in itertools.permutations(range(1, label.ndim)):
        moved = [spacing[axis - 1] for axis in order]
        transposed = correct_boundary(logits.transpose(0, *order), bias, representation=representation, spacing=moved)
        np.testing.assert_allclose(transposed, corrected.transpose(0, *order), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_logits_on_a_gpu_stay_there(label, representation):
    logits = torch.from_numpy(random_logits(label.shape[1:], seed=2)).cuda()
    corrected = correct_boundary(logits, -1.5, representation=representation)
    assert corrected.device == logits.device
    torch.testing.assert_close(corrected.cpu(), correct_boundary(logits.cpu(), -1.5, representation=representation))


REFUSED = [
    pytest.param(
        [[math.nan, 1.0]], -1, {}, r"^logits must be finite, got nan or infinite values; .*diverged", id="nan-logits"
    ),
    pytest.param([[math.inf, -1.0]], -1, {}, r"^logits must be finite", id="infinite-logits"),
    pytest.param(
        [1.0, -1.0], -1, {}, r"^logits must have the shape \(channels, \*spatial\), got \(2,\)\.$", id="no-spatial-axis"
    ),
    pytest.param([LINE], math.nan, {}, r"^bias must be finite, got .*nan.*give 0 for that class", id="nan-bias"),
    pytest.param([LINE, LINE], (0, math.inf), {}, r"^bias must be finite", id="infinite-bias"),
    pytest.param(
        [LINE], (1, 2), {}, r"^bias must be one value or one per channel \(1\), got 2\.$", id="bias-per-channel"
    ),
    pytest.param([LINE], 1, {"gamma": 0}, r"^gamma must be in \(0, 1\], got 0\.$", id="gamma-0"),
    pytest.param([LINE], 1, {"gamma": 1.01}, r"^gamma must be in \(0, 1\], got 1.01\.$", id="gamma-over-1"),
    pytest.param([LINE], 1, {"gamma": math.nan}, r"^gamma must be in \(0, 1\], got nan\.$", id="gamma-nan"),
    pytest.param(
        [LINE],
        1,
        {"representation": "auto"},
        r"^representation must be one of 'distance', 'logit', got 'auto'",
        id="other",
    ),
    pytest.param([LINE], 1, {"metric": "l1"}, r"^metric must be one of 'euclidean', 'taxicab', got 'l1'", id="metric"),
    pytest.param([LINE], 1, {"spacing": (1, 1)}, r"^spacing must be 1 positive numbers", id="spacing"),
    pytest.param(
        [LINE],
        1,
        {"metric": "taxicab", "spacing": (2,)},
        r"^spacing must be None with metric 'taxicab'",
        id="taxicab-in-mm",
    ),
    pytest.param([LINE], 1, {"max_shift": -1}, r"^max_shift must be at least 0 or None, got -1\.$", id="max-shift"),
    pytest.param(
        [LINE], 1, {"max_shift": math.nan}, r"^max_shift must be at least 0 .*, got nan\.$", id="max-shift-nan"
    ),
    pytest.param([[-1.0, -1.0]], 1, {"metric": "l1"}, r"^metric must be one of", id="metric-of-an-empty-prediction"),
    pytest.param([[-1.0, -1.0]], 1, {"spacing": (1, 1)}, r"^spacing must be", id="spacing-of-an-empty-prediction"),
]


@pytest.mark.parametrize(("logits", "bias", "options", "message"), REFUSED)
def test_wrong_logits_bias_or_option_is_refused(logits, bias, options, message):
    with pytest.raises(ValueError, match=message):
        correct_boundary(np.array(logits), bias, **options)


@pytest.mark.parametrize("representation", ["distance", "logit"])
@pytest.mark.parametrize("spacing", [False, True], ids=["voxels", "mm"])
@pytest.mark.parametrize("bias", [-5, 4])
def test_no_boundary_moves_farther_than_the_cap(label, representation, spacing, bias):
    logits = random_logits(label.shape[1:], seed=4)
    options = {"representation": representation, "spacing": ANISOTROPIC[label.ndim - 1] if spacing else None}
    capped = correct_boundary(logits, bias, max_shift=1.5, **options)
    assert np.array_equal(capped, correct_boundary(logits, 1.5 * np.sign(bias), **options))
    assert not np.array_equal(capped, correct_boundary(logits, bias, **options))
    within = correct_boundary(logits, (bias, np.sign(bias)), max_shift=6, **options)
    assert np.array_equal(within, correct_boundary(logits, (bias, np.sign(bias)), **options))
    assert np.array_equal(correct_boundary(logits, bias, max_shift=0, **options), logits)


def softmax(logits):
    weights = np.exp(logits)
    return weights / weights.sum(axis=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_of_sigmoid_probabilities_are_the_logits(label, dtype):
    logits = 3 * random_logits(label.shape[1:], seed=5)
    found = probabilities_to_logits((1 / (1 + np.exp(-logits))).astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, logits, rtol=1e-2 if dtype == np.float32 else 1e-9, atol=1e-4)


def test_softmax_of_the_logits_of_softmax_probabilities_is_what_they_were():
    probabilities = softmax(3 * np.random.default_rng(0).normal(size=(4, 9, 8)))
    found = probabilities_to_logits(probabilities, exclusive=True)
    np.testing.assert_allclose(found, np.log(probabilities), rtol=1e-9)
    np.testing.assert_allclose(softmax(found), probabilities, rtol=1e-9)


@pytest.mark.parametrize("clip", [1e-6, 1e-3])
def test_certain_probabilities_are_clipped_and_the_boundary_stays(clip):
    found = probabilities_to_logits(np.array([[0.0, clip / 2, 0.5, np.nextafter(0.5, 0), 1.0]]), clip=clip)
    high = math.log((1 - clip) / clip)
    np.testing.assert_allclose(found[0, [0, 1, 4]], [-high, -high, high], rtol=1e-9)
    assert found[0, 2] == 0
    assert found[0, 3] < 0


def test_probabilities_of_any_kind_keep_it_and_are_not_written_to(as_kind):
    probabilities = np.random.default_rng(0).random((2, 5, 4)).astype(np.float32)
    given = as_kind(probabilities)
    found = probabilities_to_logits(given)
    assert type(found) is type(given)
    assert np.array_equal(np.asarray(found), probabilities_to_logits(probabilities))
    assert np.array_equal(np.asarray(given), probabilities)


@pytest.mark.parametrize(
    ("probabilities", "options", "message"),
    [
        pytest.param(
            [[0.5, 1.5]], {}, r"^probabilities must be in \[0, 1\], got values from 0.5 to 1.5; give log", id="1.5"
        ),
        pytest.param([[-3.0, 1.0]], {}, r"^probabilities must be in \[0, 1\], got values from -3 to 1", id="logits"),
        pytest.param([[math.nan, 1.0]], {}, r"^probabilities must be in \[0, 1\]", id="nan"),
        pytest.param(
            [0.5], {}, r"^probabilities must have the shape \(channels, \*spatial\), got \(1,\)\.$", id="shape"
        ),
        pytest.param([[0.5]], {"clip": 0}, r"^clip must be in \(0, 0.5\), got 0\.$", id="clip-0"),
        pytest.param([[0.5]], {"clip": 0.5}, r"^clip must be in \(0, 0.5\), got 0.5\.$", id="clip-half"),
    ],
)
def test_wrong_probabilities_are_refused(probabilities, options, message):
    with pytest.raises(ValueError, match=message):
        probabilities_to_logits(np.array(probabilities), **options)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_sigmoid_of_one_against_the_rest_is_the_softmax(as_kind, classes):
    logits = 3 * np.random.default_rng(0).normal(size=(classes, 6, 7))
    found = one_against_rest(as_kind(logits))
    assert type(found) is type(as_kind(logits))
    np.testing.assert_allclose(1 / (1 + np.exp(-np.asarray(found))), softmax(logits), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_logits_of_coarse_numbers_are_float32(dtype):
    logits = probabilities_to_logits(np.array([[0, 1]], dtype=dtype))
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, [[-13.8155, 13.8155]], rtol=0.005)


def test_one_against_the_rest_of_large_logits_is_finite():
    found = one_against_rest(np.array([[800.0, -800], [-800, 800], [0, 800]], dtype=np.float32))
    np.testing.assert_allclose(found, [[800, -1600 - math.log(2)], [-1600, 0], [-800, 0]], atol=1e-3)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        pytest.param(
            [[1.0]], r"^logits must have one channel per class, two at least, got \(1, 1\)\.$", id="one-class"
        ),
        pytest.param([[math.inf], [0]], r"^logits must be finite", id="infinite"),
        pytest.param([1.0, 2.0], r"^logits must have the shape \(channels, \*spatial\)", id="no-spatial-axis"),
    ],
)
def test_wrong_logits_of_a_softmax_are_refused(logits, message):
    with pytest.raises(ValueError, match=message):
        one_against_rest(np.array(logits))
    with pytest.raises(ValueError, match=message):
        exclusive_label(np.array(logits), np.array(logits))


@pytest.mark.parametrize(
    ("logits", "scores", "expected"),
    [
        pytest.param([0, 4, 1], [0, 2, -3], 1, id="claimed-by-its-holder"),
        pytest.param([0, 4, 1], [0, 2, 5], 2, id="claimed-by-two-goes-to-the-larger-score"),
        pytest.param([4, 1, 0], [0, -1, 0], 2, id="a-score-of-0-is-a-claim"),
        pytest.param([0, 4, 1], [9, -1, -3], 0, id="given-up-with-no-other-class-beside-it"),
        pytest.param([4, 1, 2], [-9, -1, -3], 0, id="background-stays"),
        pytest.param([1, 1.3, 1.2], [0, -1, -1], 1, id="held-by-less-than-half-was-no-boundary-to-move"),
        pytest.param([1, 1.2, 1.3], [0, -1, -1], 2, id="the-same-for-the-other"),
    ],
)
def test_voxel_goes_to_one_class(logits, scores, expected):
    found = exclusive_label(np.array(scores, dtype=float)[:, None], np.array(logits, dtype=float)[:, None])
    assert found.tolist() == [expected]
    assert found.dtype == np.int64


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_uncorrected_scores_give_the_largest_logit(classes):
    logits = np.stack([random_logits((12, 11), seed=seed)[0] for seed in range(classes)])
    assert np.array_equal(exclusive_label(one_against_rest(logits), logits), logits.argmax(axis=0))


def slow_exclusive_labels(scores, logits, v, spacing, look=True):
    """Return the classes that the voxel ``v`` may have by the rule: several where voxels are equally near."""
    claims = {k: scores[k][v] for k in range(1, len(scores)) if scores[k][v] >= 0}
    if claims:
        return {max(claims, key=claims.get)}
    holder = np.array(logits).argmax(axis=0)
    k = holder[v]
    if k == 0 or softmax(np.array([channel[v] for channel in logits]))[k] < 0.5:
        return {k}
    if not look:
        return {0}
    others = np.argwhere(holder != k)
    distances = np.sqrt((((others - v) * spacing) ** 2).sum(axis=1))
    near = map(tuple, others[distances <= distances.min() + 1e-9])
    beyond = set().union(*(slow_exclusive_labels(scores, logits, w, spacing, look=False) for w in near))
    return {j if logits[j][v] > logits[0][v] else 0 for j in beyond}


@pytest.mark.parametrize("spacing", [None, (0.7, 1.9), (1.1, 0.4, 2.5)])
def test_exclusive_label_is_that_of_the_rule_voxel_by_voxel(spacing):
    shape = (9, 8, 5) if spacing is not None and len(spacing) == 3 else (15, 14)
    noise = np.random.default_rng(0).normal(size=(4, *shape))
    logits = 9 * np.stack([ndimage.gaussian_filter(channel, 1) for channel in noise])
    scores = np.random.default_rng(1).normal(-1, 1, size=logits.shape)
    found = exclusive_label(scores, logits, spacing=spacing)
    allowed = {v: slow_exclusive_labels(scores, logits, v, spacing or (1, 1)) for v in np.ndindex(shape)}
    assert all(found[v] in allowed[v] for v in allowed)
    assert {v for v in allowed if len(allowed[v]) == 1}
    assert set(np.unique(found)) == {0, 1, 2, 3}


def test_class_with_values_between_two_others_gets_no_rim():
    y, x = np.mgrid[:40, :40] - 20
    organ = 12 - np.hypot(y, x)  # two pixels too wide
    logits = np.stack([-3 * organ, 3 * organ, -0.2 - 0.5 * organ])
    scores = np.stack([0 * organ, organ - 2, np.full(organ.shape, -30.0)])
    rim = (organ < 2) & (one_against_rest(logits)[1] >= 0)
    assert (logits[2] > logits[0])[rim].all()  # the third class is likelier there than the background
    found = exclusive_label(scores, logits)
    assert (found[rim] == 0).all()
    assert (found[organ >= 2] == 1).all()


def test_class_that_is_less_likely_than_the_background_gets_nothing():
    x = np.arange(20.0)[None]
    logits = np.stack([np.zeros(x.shape), 9.5 - x, np.where(x > 9.5, 30, -30)])
    scores = np.stack([0 * x, 7.5 - x, np.where(x > 9.5, 1.0, -1.0)])
    found = exclusive_label(scores, logits)
    assert (found == np.where(x < 8, 1, np.where(x < 10, 0, 2))).all()


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [((0, 0), (10, 10)), ((2, 0), (8, 8)), ((0, 2), (12, 12)), ((2, -2), (8, 8)), ((2, 1), (8, 11))],
)
def test_what_one_class_gives_up_is_of_the_other_unless_that_draws_back_too(shifts, expected):
    x = np.arange(20.0)[None]
    logits = np.stack([np.full(x.shape, -9.0), 9.5 - x, x - 9.5])  # they meet between 9 and 10, with no background
    scores = np.stack([0 * x, 9.5 - x - shifts[0], x - 9.5 - shifts[1]])
    found = exclusive_label(scores, logits)
    assert (found == np.where(x < expected[0], 1, np.where(x < expected[1], 0, 2))).all()


def test_scores_of_another_shape_than_the_logits_are_refused():
    with pytest.raises(ValueError, match=r"^scores and logits must have the same shape, got \(2, 3\) and \(2, 4\)\.$"):
        exclusive_label(np.zeros((2, 3)), np.zeros((2, 4)))


def test_scores_in_half_precision_stay_finite():
    logits = np.array([[-1, -1, 1, 1]], dtype=np.float16)
    assert correct_boundary(logits, 1e9).tolist() == [[65504.0] * 4]
