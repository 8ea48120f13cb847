from __future__ import annotations

import math

import numpy as np
import pytest

from monai_sc.correction.boundaries import GivenShape, blend_shapes, given_offset, learn_given_shape
from monai_sc.functional import shift_boundary, signed_distance

SIZE = 60
AGREE = GivenShape(offset=0.0, spread=0.5, own=0.0, num_cases=5, agreement=0.9)


def distance_to(radius, spacing=(1, 1), centre=(30, 30), size=SIZE):
    y, x = ((np.arange(size) - c) * s for c, s in zip(centre, spacing, strict=True))
    return radius - np.hypot(y[:, None], x[None])


def disc(radius, **options):
    return distance_to(radius, **options) >= 0


def dice(first, second):
    return 2 * (first & second).sum() / (first.sum() + second.sum())


@pytest.mark.parametrize("spacing", [None, (0.7, 1.3)], ids=["voxels", "mm"])
@pytest.mark.parametrize("k", [-4, -2, 2, 4])
def test_offset_of_a_given_disc_is_negative_where_it_is_larger(k, spacing):
    given, corrected = (disc(r, spacing=spacing or (1, 1)) for r in (12 + k, 12))
    assert given_offset(given, corrected, spacing) == pytest.approx(-k, abs=0.25)


def test_stray_parts_do_not_count_for_the_offset():
    given = disc(14)
    given[2:5, 2:5] = True
    assert given_offset(given, disc(12), None) == given_offset(disc(14), disc(12), None)


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        pytest.param(disc(5, centre=(10, 10)), disc(5, centre=(45, 45)), id="apart"),
        pytest.param(disc(-1), disc(5), id="nothing-given"),
        pytest.param(disc(5), disc(-1), id="nothing-predicted"),
    ],
)
def test_masks_that_do_not_meet_have_no_offset(given, corrected):
    assert math.isnan(given_offset(given, corrected, None))


@pytest.mark.parametrize(
    ("offsets", "clean_spread", "expected"),
    [
        pytest.param([-3, -1, -2], 0.0, (-2, 1, 1, 3), id="all-of-it-is-the-label's"),
        pytest.param([-3, -1, -2], 0.5, (-2, 1, 0.75, 3), id="a-quarter-of-the-variance-is-the-prediction's"),
        pytest.param([-3, -1, -2], 1.0, (-2, 1, 0, 3), id="all-of-it-is-the-prediction's"),
        pytest.param([-3, -1, -2], 4.0, (-2, 1, 0, 3), id="never-under-0"),
        pytest.param([-3, -1, -2], math.nan, (-2, 1, 0, 3), id="one-clean-case-tells-nothing"),
        pytest.param([-3, math.nan, -1, -2, math.nan], 0.5, (-2, 1, 0.75, 3), id="nan-does-not-count"),
        pytest.param([2, 2, 2, 40], 0.0, (2, 19, 1, 4), id="median-of-an-outlier"),
        pytest.param([4], 0.0, (4, 0, 0, 1), id="one-case"),
        pytest.param([1, 1, 1], 0.0, (1, 0, 0, 3), id="no-spread"),
    ],
)
def test_what_is_learnt_of_offsets(offsets, clean_spread, expected):
    shape = learn_given_shape(offsets, [0.8] * (len(offsets) - 1) + [0.6], clean_spread)
    assert (shape.offset, shape.spread, shape.own, shape.num_cases) == pytest.approx(expected)
    assert shape.agreement == pytest.approx(0.8 - 0.2 / len(offsets))


@pytest.mark.parametrize("offsets", [[], [math.nan, math.nan]], ids=["no-case", "no-usable-case"])
def test_nothing_is_learnt_of_no_offset(offsets):
    shape = learn_given_shape(offsets, [0.5] * len(offsets), 1.0)
    assert (shape.offset, shape.own, shape.num_cases) == (0, 0, 0)
    assert math.isnan(shape.spread)


def test_no_weight_gives_the_prediction():
    given = disc(16, centre=(28, 33))
    assert np.array_equal(blend_shapes(distance_to(12), given, AGREE, weight=0), disc(12))


def test_full_weight_gives_the_given_shape_moved_by_the_offset():
    given = disc(13, centre=(27, 32))
    assert np.array_equal(blend_shapes(distance_to(12), given, AGREE, weight=1), given)
    larger = shift_boundary(given[None], 3)[0]
    shape = GivenShape(-3.0, 0.5, 0.0, 5, 0.9)
    assert dice(blend_shapes(distance_to(12), larger, shape, weight=1), given) > 0.98


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("spacing", [None, (1.0, 1.857)], ids=["cubes", "anisotropic"])
def test_label_is_where_the_weighted_mean_of_the_two_distances_is_not_negative(weight, spacing):
    sides = spacing or (1, 1)
    scores = distance_to(11, spacing=sides)
    given = disc(11, spacing=sides, centre=(26, 33))
    shape = GivenShape(1.5, 0.5, 0.0, 5, 0.9)
    phi = signed_distance(given[None], spacing=spacing, origin="face")[0]
    mean = (1 - weight) * scores.clip(-10, 10) + weight * (1.5 - phi).clip(-10, 10)
    blended = blend_shapes(scores, given, shape, weight=weight, size=spacing)
    assert np.array_equal(blended, mean >= 0)
    assert np.array_equal(blend_shapes(scores, given, shape, weight=weight, phi=phi, size=spacing), blended)
    assert dice(blended, given) < 1
    assert dice(blended, scores >= 0) < 1


def test_each_group_has_an_offset_of_its_own():
    offsets, groups = [-3.0, -3.2, -2.8, 1.0, 1.2, 0.8], ["ann"] * 3 + ["ben"] * 3
    shape = learn_given_shape(offsets, [0.9] * 6, 0.1, groups)
    assert shape.offset_of("ann") == pytest.approx(-3, abs=0.1)
    assert shape.offset_of("ben") == pytest.approx(1, abs=0.1)
    assert shape.offset_of("cleo") == shape.offset == pytest.approx(-1, abs=0.2)
    assert shape.spread < 0.3  # within groups, not between them
    larger = shift_boundary(disc(12)[None], 3)[0]
    assert dice(blend_shapes(distance_to(12), larger, shape, weight=1, group="ann"), disc(12)) > 0.97


def test_own_error_of_a_label_is_taken_out_case_by_case():
    shape = GivenShape(0.0, 4.0, 1.0, 9, 0.9)
    assert dice(blend_shapes(distance_to(12), disc(17), shape, weight=1), disc(12)) > 0.98
    kept = GivenShape(0.0, 4.0, 0.0, 9, 0.9)
    assert np.array_equal(blend_shapes(distance_to(12), disc(17), kept, weight=1), disc(17))


def test_given_label_that_is_full_adds_nothing():
    full = np.ones((SIZE, SIZE), dtype=bool)
    assert np.array_equal(blend_shapes(distance_to(12), full, AGREE, weight=0.5), disc(12))


def test_shape_scales():
    shape = GivenShape(-3.0, 0.5, 0.2, 9, 0.9, {"ann": -2.0})
    assert shape.scaled(0.5) == GivenShape(-1.5, 0.25, 0.2, 9, 0.9, {"ann": -1.0})
