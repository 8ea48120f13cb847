from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from monai_sc.functional import signed_distance

METRIC_AND_ORIGIN = list(itertools.product(("euclidean", "taxicab"), ("voxel", "face")))
ANISOTROPIC = {2: (0.7, 1.9), 3: (1.1, 0.4, 2.5)}


def neighbours(voxel, shape):
    for axis, sign in itertools.product(range(len(shape)), (-1, 1)):
        n = (*voxel[:axis], voxel[axis] + sign, *voxel[axis + 1 :])
        if 0 <= n[axis] < shape[axis]:
            yield n


def slow_euclidean(mask, spacing, origin):
    """Compare every voxel with every other: Definition 2, or the mean of the voxels on both sides of the face."""
    edge = {v for v in np.ndindex(mask.shape) if any(mask[n] != mask[v] for n in neighbours(v, mask.shape))}
    phi = np.empty(mask.shape)
    for voxel in np.ndindex(mask.shape):
        lengths = {v: math.hypot(*np.subtract(v, voxel) * spacing) for v in np.ndindex(mask.shape)}
        distance = min(d for v, d in lengths.items() if mask[v] != mask[voxel])
        if origin == "face":
            distance = (distance + min(d for v, d in lengths.items() if mask[v] == mask[voxel] and v in edge)) / 2
        phi[voxel] = -distance if mask[voxel] else distance
    return phi


def slow_taxicab(mask, origin):
    """Walk from each class over face neighbours until every voxel of the other class is reached."""
    phi = np.empty(mask.shape)
    for value in (False, True):
        steps = 0
        front = reached = {v for v in np.ndindex(mask.shape) if mask[v] == value}
        while front:
            steps += 1
            front = {n for v in front for n in neighbours(v, mask.shape)} - reached
            reached = reached | front
            for voxel in front:
                distance = steps - 0.5 if origin == "face" else steps
                phi[voxel] = -distance if mask[voxel] else distance
    return phi


CASES = [
    pytest.param([0, 0, 1, 1, 1, 0], {}, [2, 1, -1, -2, -1, 1], id="line"),
    pytest.param([0, 0, 1, 1, 1, 0], {"origin": "face"}, [1.5, 0.5, -0.5, -1.5, -0.5, 0.5], id="line-from-the-face"),
    pytest.param([0, 0, 1, 1, 1, 0], {"spacing": (0.5,)}, [1, 0.5, -0.5, -1, -0.5, 0.5], id="line-in-mm"),
    pytest.param([0, 1], {"metric": "taxicab"}, [1, -1], id="two-voxels-taxicab"),
    pytest.param(
        [1, 0, 1], {"metric": "taxicab", "origin": "face"}, [-0.5, 0.5, -0.5], id="hole-taxicab-from-the-face"
    ),
    pytest.param([[1, 0], [0, 0]], {}, [[-1, 1], [1, math.sqrt(2)]], id="corner-euclidean"),
    pytest.param([[1, 0], [0, 0]], {"metric": "taxicab"}, [[-1, 1], [1, 2]], id="corner-taxicab"),
    pytest.param([[1, 0], [0, 0]], {"spacing": (3, 4)}, [[-3, 4], [3, 5]], id="corner-3-by-4-mm"),
    pytest.param([[[1, 0]], [[0, 0]]], {"spacing": (3, 1, 4)}, [[[-3, 4]], [[3, 5]]], id="corner-3d"),
]


@pytest.mark.parametrize(("mask", "options", "expected"), CASES)
def test_distance_is_negative_inside_and_positive_outside(mask, options, expected):
    phi = signed_distance(np.array([mask]), **options)
    assert phi.dtype == np.float32
    np.testing.assert_allclose(phi[0], expected, rtol=1e-6)


@pytest.mark.parametrize("origin", ["voxel", "face"])
@pytest.mark.parametrize("in_mm", [False, True], ids=["voxel", "anisotropic"])
@pytest.mark.parametrize("shape", [(8, 9), (5, 4, 6)], ids=["2d", "3d"])
def test_euclidean_is_the_brute_force_distance(shape, in_mm, origin):
    rng = np.random.default_rng(0)
    label = np.stack([rng.random(shape) < p for p in (0.04, 0.5, 0.95)])
    spacing = ANISOTROPIC[len(shape)] if in_mm else None
    phi = signed_distance(label, spacing=spacing, origin=origin)
    expected = [slow_euclidean(mask, spacing or [1] * len(shape), origin) for mask in label]
    np.testing.assert_allclose(phi, expected, rtol=1e-6)


@pytest.mark.parametrize("origin", ["voxel", "face"])
@pytest.mark.parametrize("shape", [(13, 11), (7, 6, 8)], ids=["2d", "3d"])
def test_taxicab_is_the_shortest_path_over_face_neighbours(shape, origin):
    rng = np.random.default_rng(1)
    label = np.stack([rng.random(shape) < p for p in (0.02, 0.5, 0.97)])
    phi = signed_distance(label, metric="taxicab", origin=origin)
    assert np.array_equal(phi, [slow_taxicab(mask, origin) for mask in label])


@pytest.mark.parametrize(("metric", "origin"), METRIC_AND_ORIGIN)
@pytest.mark.parametrize("shape", [(16, 15), (8, 9, 7)], ids=["2d", "3d"])
def test_no_voxel_is_nearer_than_the_origin_and_the_sign_is_the_class(shape, metric, origin):
    rng = np.random.default_rng(2)
    label = np.stack([rng.random(shape) < p for p in (0.05, 0.3, 0.9)])
    phi = signed_distance(label, metric=metric, origin=origin)
    assert np.abs(phi).min() == (1 if origin == "voxel" else 0.5)
    assert np.array_equal(phi < 0, label)


@pytest.mark.parametrize(("metric", "origin"), METRIC_AND_ORIGIN)
def test_channel_without_a_boundary_is_nan_and_leaves_the_others_alone(label, metric, origin):
    channels = np.stack([np.zeros_like(label[0]), label[0], np.ones_like(label[0])])
    phi = signed_distance(channels, metric=metric, origin=origin)
    assert np.isnan(phi[[0, 2]]).all()
    assert np.array_equal(phi[1], signed_distance(label[:1], metric=metric, origin=origin)[0])


def test_taxicab_from_the_face_is_half_a_voxel_nearer_everywhere(label):
    voxel, face = (signed_distance(label, metric="taxicab", origin=origin) for origin in ("voxel", "face"))
    assert np.array_equal(np.abs(voxel) - np.abs(face), np.full(label.shape, 0.5))
    assert np.array_equal(np.sign(voxel), np.sign(face))


@pytest.mark.parametrize(
    ("axis", "spacing"),
    [
        pytest.param(0, (5.0, 0.5), id="2d-thick-axis"),
        pytest.param(1, (5.0, 0.5), id="2d-thin-axis"),
        pytest.param(0, (0.5, 0.75, 6.0), id="3d-thin-axis"),
        pytest.param(2, (0.5, 0.75, 6.0), id="3d-thick-axis"),
    ],
)
def test_slab_from_the_face_is_half_a_voxel_along_its_axis_and_a_shift_is_its_thickness(axis, spacing):
    thickness = spacing[axis]
    shape = tuple(8 + a for a in range(len(spacing)))
    position = np.indices(shape)[axis]
    phi = [signed_distance(position[None] >= first, spacing=spacing, origin="face")[0] for first in (4, 5, 2)]
    expected = (4 - 0.5 - position) * thickness
    np.testing.assert_allclose(phi[0], expected, rtol=1e-6)
    np.testing.assert_allclose(phi[1] - phi[0], np.full(shape, thickness), rtol=1e-5)
    np.testing.assert_allclose(phi[2] - phi[0], np.full(shape, -2 * thickness), rtol=1e-5)


@pytest.mark.parametrize(("metric", "origin"), METRIC_AND_ORIGIN)
def test_complement_has_the_opposite_distance(label, metric, origin):
    phi = signed_distance(label, metric=metric, origin=origin)
    assert np.array_equal(signed_distance(1 - label, metric=metric, origin=origin), -phi)


@pytest.mark.parametrize(("metric", "origin"), METRIC_AND_ORIGIN)
def test_flips_and_transposes_commute(label, metric, origin):
    spacing = ANISOTROPIC[label.ndim - 1] if metric == "euclidean" else None
    phi = signed_distance(label, metric=metric, origin=origin, spacing=spacing)
    for axis in range(1, label.ndim):
        flipped = signed_distance(np.flip(label, axis), metric=metric, origin=origin, spacing=spacing)
        np.testing.assert_allclose(flipped, np.flip(phi, axis), rtol=1e-6)
    for order in itertools.permutations(range(1, label.ndim)):
        moved = spacing and [spacing[axis - 1] for axis in order]
        transposed = signed_distance(label.transpose(0, *order), metric=metric, origin=origin, spacing=moved)
        np.testing.assert_allclose(transposed, phi.transpose(0, *order), rtol=1e-6)


def test_result_is_float32_of_the_same_kind_and_the_input_is_not_written_to(label, as_kind):
    for dtype in (bool, np.uint8, np.int64, np.float16, np.float64):
        given = as_kind(label.astype(dtype))
        phi = signed_distance(given)
        assert type(phi) is type(given)
        assert phi.dtype in (np.float32, torch.float32)
        assert np.array_equal(np.asarray(phi), signed_distance(label))
        assert np.array_equal(np.asarray(given), label.astype(dtype))
        if isinstance(given, MetaTensor):
            assert torch.equal(phi.affine, given.affine)
            assert phi.meta["filename_or_obj"] == "case-1.nii.gz"


def test_bfloat16_label_has_a_distance(label):
    phi = signed_distance(torch.from_numpy(label).to(torch.bfloat16))
    assert phi.dtype == torch.float32
    assert np.array_equal(phi.numpy(), signed_distance(label))


def test_read_only_and_non_contiguous_arrays_are_read_as_they_are(label):
    given = label[..., ::-2]
    given.setflags(write=False)
    assert np.array_equal(signed_distance(given), signed_distance(np.ascontiguousarray(given)))


LINE = np.array([[0, 0, 1, 1, 0]])
REFUSED = [
    pytest.param(
        LINE,
        {"metric": "chessboard"},
        r"^metric must be one of 'euclidean', 'taxicab', got 'chessboard'\.$",
        id="metric",
    ),
    pytest.param(LINE, {"origin": "edge"}, r"^origin must be one of 'voxel', 'face', got 'edge'\.$", id="origin"),
    pytest.param(
        LINE, {"spacing": (1, 1)}, r"^spacing must be 1 positive numbers, one per spatial axis", id="spacing-axes"
    ),
    pytest.param(LINE, {"spacing": (-1,)}, r"^spacing must be 1 positive numbers", id="negative-spacing"),
    pytest.param(LINE, {"spacing": (math.nan,)}, r"^spacing must be 1 positive numbers", id="nan-spacing"),
    pytest.param(
        LINE, {"spacing": (2,), "metric": "taxicab"}, r"^spacing must be None with metric 'taxicab'", id="taxicab-in-mm"
    ),
    pytest.param(LINE * 2, {}, r"^label must be binary, only 0 and 1 in every channel, got 2;", id="not-binary"),
    pytest.param(
        LINE[0], {}, r"^label must have the shape \(channels, \*spatial\), got \(5,\)\.$", id="no-spatial-axis"
    ),
]


@pytest.mark.parametrize(("label", "options", "message"), REFUSED)
def test_wrong_label_or_option_is_refused(label, options, message):
    with pytest.raises(ValueError, match=message):
        signed_distance(label, **options)
