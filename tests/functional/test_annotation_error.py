from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy import ndimage

from monai_sc.functional import coarsen_contour, drop_components, punch_holes, translate_label

CHANGES = [
    pytest.param(lambda x: drop_components(x, 0.5, seed=1), id="drop"),
    pytest.param(lambda x: translate_label(x, [1] * (x.ndim - 1)), id="translate"),
    pytest.param(lambda x: coarsen_contour(x, 5.0, seed=1), id="coarsen"),
    pytest.param(lambda x: punch_holes(x, (2, 2), (0, 0), seed=1), id="holes"),
]


def disc(size=61, radius=20):
    return (np.hypot(*np.indices((size, size)) - size // 2) <= radius)[None]


def blobs(seed, shape=(40, 50)):
    return ndimage.gaussian_filter(np.random.default_rng(seed).random((2, *shape)), (0, *[2] * len(shape))) > 0.5


@pytest.mark.parametrize("change", CHANGES)
def test_kind_dtype_and_metadata_are_kept_and_the_input_is_not_written_to(label, as_kind, change):
    for dtype in (bool, np.uint8, np.float32):
        given = as_kind(label.astype(dtype))
        out = change(given)
        assert type(out) is type(given)
        assert out.dtype == given.dtype
        assert np.array_equal(np.asarray(out), change(label).astype(dtype))
        assert np.array_equal(np.asarray(given), label.astype(dtype))
        assert np.any(np.asarray(out) != label)
        if isinstance(given, MetaTensor):
            assert torch.equal(out.affine, given.affine)


@pytest.mark.parametrize("change", CHANGES)
def test_an_empty_label_stays_empty(change):
    for shape in ((1, 7, 6), (2, 5, 6, 7)):
        assert not change(np.zeros(shape, dtype=np.uint8)).any()


@pytest.mark.parametrize("change", CHANGES)
def test_a_label_that_is_not_binary_is_refused(change):
    with pytest.raises(ValueError, match="label must be binary"):
        change(np.full((1, 4, 4), 3))


class TestDropComponents:
    def test_each_component_goes_with_its_probability(self):
        label = np.zeros((2, 9, 60), dtype=np.uint8)
        label[:, 1, ::3] = label[:, 2, 1::3] = 1  # 20 components of two voxels that touch by a corner
        runs = 300
        kept = np.stack([drop_components(label, (0.3, 0.8), seed=seed) for seed in range(runs)])
        pairs = kept[:, :, 1, ::3]
        assert np.array_equal(pairs, kept[:, :, 2, 1::3])
        for channel, p in enumerate((0.3, 0.8)):
            assert 1 - pairs[:, channel].mean() == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / (20 * runs)))
            assert pairs[:, channel].mean(axis=0).std() < 2 * math.sqrt(p * (1 - p) / runs)

    def test_certain_and_impossible(self):
        label = blobs(0)
        assert not drop_components(label, 1, seed=0).any()
        assert np.array_equal(drop_components(label, 0, seed=0), label)

    @pytest.mark.parametrize("prob", [-0.1, 1.1, math.nan, (0.5, 2)])
    def test_refused(self, prob):
        with pytest.raises(ValueError, match=r"drop_prob must be a probability in \[0, 1\]"):
            drop_components(blobs(0), prob, seed=0)


class TestPunchHoles:
    HAND = [
        pytest.param([0, 1, 1, 1, 1, 1, 0], 1, [0, 1, 0, 0, 0, 1, 0], id="one-place"),
        pytest.param([0, 1, 1, 1, 0, 0, 0], 0.5, [0, 1, 0, 1, 0, 0, 0], id="one-voxel"),
        pytest.param([0, 1, 1, 1, 1, 0, 0], 1, [0, 1, 1, 1, 1, 0, 0], id="fits-nowhere"),
        pytest.param([1, 1, 1, 0, 0, 0, 0], 0, [1, 0, 1, 0, 0, 0, 0], id="the-edge-of-the-image-is-a-boundary"),
        pytest.param([1, 1, 1, 1, 1, 1, 1], 2, [1, 0, 0, 0, 0, 0, 1], id="full"),
    ]

    @pytest.mark.parametrize(("label", "radius", "expected"), HAND)
    def test_by_hand(self, label, radius, expected):
        for seed in range(3):
            assert punch_holes(np.array([label]), (1, 1), (radius, radius), seed=seed).tolist() == [expected]

    def test_a_hole_is_a_ball_that_no_corner_of_the_background_touches(self):
        label = np.zeros((1, 9, 9), dtype=np.uint8)
        label[0, 1:8, 1:8] = 1
        label[0, 1, 1] = 0  # so that the voxel (2, 2) touches the background by a corner only
        places = {tuple(np.argwhere(label[0] != punch_holes(label, (1, 1), (0, 0), seed=s)[0])[0]) for s in range(300)}
        assert places == {(i, j) for i in range(2, 7) for j in range(2, 7)} - {(2, 2)}
        hole = (label != punch_holes(label, (1, 1), (1.5, 1.5), seed=0))[0]
        assert hole.sum() == 9

    @pytest.mark.parametrize("shape", [(60, 70), (24, 26, 28)], ids=["2d", "3d"])
    @pytest.mark.parametrize("seed", range(4))
    def test_holes_are_enclosed_and_channels_do_not_mix(self, shape, seed):
        label = blobs(seed, shape)
        number, radius = ((0, 3), (4, 9)), ((1, 2), (0, 1.5))
        punched = punch_holes(label, number, radius, seed=seed)
        assert np.any(punched[1] != label[1])
        for channel, (mask, left) in enumerate(zip(label, punched, strict=True)):
            hole = mask & ~left
            assert not np.any(left & ~mask)
            beyond = np.pad(hole, 1)
            around = ndimage.binary_dilation(beyond, np.ones((3,) * mask.ndim)) & ~beyond
            assert np.pad(left, 1)[around].all()
            assert ndimage.label(hole)[1] <= number[channel][1]
        first = punch_holes(label[:1], number[:1], radius[:1], seed=seed)
        assert np.array_equal(first[0], punched[0])

    def test_number_and_radius_are_uniform(self):
        label = np.ones((1, 200, 200), dtype=np.uint8)
        numbers, areas = [], []
        for seed in range(150):
            components, count = ndimage.label(1 - punch_holes(label, (0, 2), (2, 8), seed=seed)[0])
            numbers.append(count)
            areas += np.bincount(components.ravel())[1:].tolist() if count == 1 else []
        assert np.mean(numbers) == pytest.approx(1, abs=4.5 * math.sqrt(2 / 3 / 150))
        radii = np.sqrt(np.array(areas) / math.pi)
        assert radii.mean() == pytest.approx(5, abs=4.5 * math.sqrt(3 / len(radii)))
        assert radii.min() < 3 < 7 < radii.max()

    def test_radii_are_in_the_unit_of_spacing(self):
        label = np.ones((1, 40, 80), dtype=bool)
        hole = np.argwhere(~punch_holes(label, (1, 1), (6, 6), spacing=(2, 1), seed=0)[0])
        assert np.ptp(hole, axis=0).tolist() == [6, 12]

    def test_the_seed_decides(self):
        label = blobs(0)
        first, same, other = (punch_holes(label, (3, 6), (0, 2), seed=seed) for seed in (3, 3, 4))
        assert np.array_equal(first, same)
        assert not np.array_equal(first, other)

    REFUSED = [
        pytest.param({"number": (2, 1)}, r"number must be \(low, high\) with 0 <= low <= high", id="number"),
        pytest.param({"number": (0.5, 1)}, r"number must be whole numbers, got \(0\.5, 1\)\.$", id="half-a-hole"),
        pytest.param({"number": [(1, 2)] * 3}, r"number must be one value or one per channel \(2\), got 3", id="three"),
        pytest.param({"radius": [(1, 2)] * 3}, r"radius must be one value or one per channel \(2\)", id="three-radii"),
        pytest.param({"radius": (-1, 1)}, r"radius must be \(low, high\) with 0 <= low <= high", id="radius"),
        pytest.param({"spacing": (1, 0)}, "spacing must be 2 positive numbers", id="spacing"),
        pytest.param({"seed": -1}, "seed must be at least 0, got -1", id="seed"),
    ]

    @pytest.mark.parametrize(("options", "message"), REFUSED)
    def test_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            punch_holes(blobs(0), **{"number": (1, 2), "radius": (1, 2), "seed": 0, **options})


class TestTranslate:
    @pytest.mark.parametrize("shift", [(3, -2), (0, 0), (-1.4, 2.6), (40, 1), (-100, 0), (5, 50)])
    def test_it_is_a_shift_with_background_coming_in(self, shift):
        label = blobs(1)
        expected = [ndimage.shift(mask.astype(float), np.rint(shift), order=0) > 0.5 for mask in label]
        assert np.array_equal(translate_label(label, shift), expected)

    def test_one_shift_for_each_channel(self):
        label = blobs(2)
        moved = translate_label(label, [(1, 0), (0, -4)])
        assert np.array_equal(moved[0], translate_label(label[:1], (1, 0))[0])
        assert np.array_equal(moved[1], translate_label(label[1:], (0, -4))[0])

    def test_nothing_is_left_of_what_is_moved_out_of_the_image_however_far(self):
        assert not translate_label(blobs(0), (0, 1e300)).any()

    @pytest.mark.parametrize("shift", [(1,), (1, 2, 3), [(1, 2)] * 3, (1, math.nan), (1, math.inf)])
    def test_refused(self, shift):
        with pytest.raises(ValueError, match="shift must be 2 numbers, one per spatial axis, or that for each of 2"):
            translate_label(blobs(0), shift)


class TestCoarsenContour:
    @pytest.mark.parametrize("seed", range(5))
    def test_vertices_that_are_close_give_the_mask_back(self, seed):
        label = blobs(seed)
        assert np.array_equal(coarsen_contour(label, 0.02, seed=seed), label)

    @pytest.mark.parametrize("number", [4, 5, 8, 12])
    def test_a_disc_becomes_a_polygon_of_that_area(self, number):
        radius = 50
        label = disc(121, radius)
        # The contour of a digital disc runs along the grid, so it is longer than the circle.
        length = 2 * math.pi * radius * 1.055
        area = np.mean([coarsen_contour(label, length / number, seed=seed).sum() for seed in range(10)])
        expected = number / 2 * radius**2 * math.sin(2 * math.pi / number)
        assert area == pytest.approx(expected, rel=0.03)

    def test_corners_lie_on_the_contour_and_edges_within_a_convex_shape(self):
        label = disc()
        for seed in range(10):
            coarse = coarsen_contour(label, 20, seed=seed)
            assert np.all(coarse <= label)
            assert 0.7 * label.sum() < coarse.sum() < label.sum()

    def test_a_hole_stays_a_hole(self):
        ring = disc(81, 35) & ~disc(81, 15)
        coarse = coarsen_contour(ring, 12, seed=0)
        assert not coarse[0, 35:46, 35:46].any()
        assert ndimage.label(~coarse[0])[1] == 2
        assert np.mean(coarse == ring) > 0.95

    def test_the_edge_of_the_image_is_no_contour(self):
        half = disc()[:, 30:]
        for seed in range(5):
            coarse = coarsen_contour(half, 8, seed=seed)
            assert coarse[0, 0, 12:49].all()
            assert coarsen_contour(np.ones((1, 20, 30), dtype=bool), 4.0 * 10**seed, seed=seed).all()

    def test_what_is_smaller_than_its_polygon_stays(self):
        label = np.zeros((1, 9, 9), dtype=bool)
        label[0, 4, 4] = label[0, 1, 1:3] = True
        assert np.array_equal(coarsen_contour(label, 100, seed=0).sum(), 3)

    @pytest.mark.parametrize("axis", [0, 1, 2, -1])
    def test_a_volume_is_redrawn_slice_by_slice(self, axis):
        volume = np.moveaxis(np.repeat(disc()[:, None], 4, axis=1), 1, axis if axis < 0 else axis + 1)
        coarse = np.moveaxis(coarsen_contour(volume, 15, slice_axis=axis, seed=0), axis if axis < 0 else axis + 1, 1)[0]
        assert len({mask.tobytes() for mask in coarse}) == 4  # each slice has a first vertex of its own
        assert np.array_equal(coarse[0], coarsen_contour(disc(), 15, seed=0)[0])

    def test_distances_are_in_the_unit_of_spacing(self):
        label = disc()
        assert np.array_equal(
            coarsen_contour(label, 30.0, spacing=(2, 2), seed=1), coarsen_contour(label, 15.0, seed=1)
        )
        assert not np.array_equal(
            coarsen_contour(label, 15.0, spacing=(1, 3), seed=1), coarsen_contour(label, 15.0, seed=1)
        )

    def test_the_seed_decides(self):
        assert np.array_equal(coarsen_contour(blobs(0), 6, seed=3), coarsen_contour(blobs(0), 6, seed=3))
        assert not np.array_equal(coarsen_contour(blobs(0), 6, seed=3), coarsen_contour(blobs(0), 6, seed=4))

    REFUSED = [
        pytest.param({"vertex_distance": 0}, "vertex_distance must be over 0, got 0", id="no-distance"),
        pytest.param({"vertex_distance": (1, -1)}, "vertex_distance must be over 0", id="negative"),
        pytest.param({"slice_axis": 2}, "slice_axis must be one of 2 spatial axes, got 2", id="axis"),
        pytest.param({"spacing": (1, 1, 1)}, "spacing must be 2 positive numbers", id="spacing"),
        pytest.param({"seed": -1}, "seed must be at least 0, got -1", id="seed"),
    ]

    @pytest.mark.parametrize(("options", "message"), REFUSED)
    def test_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            coarsen_contour(disc(), **{"vertex_distance": 5, "seed": 0, **options})

    def test_a_line_has_no_contour(self):
        with pytest.raises(ValueError, match=r"label must have 2 or 3 spatial axes, got 1\.$"):
            coarsen_contour(np.zeros((1, 5)), 5, seed=0)
