from __future__ import annotations

import json
import math

import numpy as np
import pytest

from monai_sc.correction.shape import GivenShape, blend_shapes, given_offset, learn_given_shape
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
@pytest.mark.parametrize(("spacing", "unit"), [(None, 1.0), ((0.7, 1.3), 0.7)], ids=["voxels", "mm"])
def test_label_is_where_the_weighted_mean_of_the_two_distances_is_not_negative(weight, spacing, unit):
    sides = spacing or (1, 1)
    scores = distance_to(11 * unit, spacing=sides)
    given = disc(11 * unit, spacing=sides, centre=(26, 33))
    shape = GivenShape(1.5 * unit, 0.5, 0.0, 5, 0.9)
    far = 10 * unit
    phi = signed_distance(given[None], spacing=spacing, origin="face")[0]
    mean = (1 - weight) * scores.clip(-far, far) + weight * (1.5 * unit - phi).clip(-far, far)
    blended = blend_shapes(scores, given, shape, weight=weight, unit=unit, spacing=spacing)
    assert np.array_equal(blended, mean >= 0)
    assert dice(blended, given) < 1
    assert dice(blended, scores >= 0) < 1


def test_given_label_that_is_full_adds_nothing():
    full = np.ones((SIZE, SIZE), dtype=bool)
    assert np.array_equal(blend_shapes(distance_to(12), full, AGREE, weight=0.5), disc(12))


@pytest.mark.parametrize(("weight", "drawn"), [(0.5, False), (0.0, True)])
def test_what_nobody_drew_is_made_of_a_prediction_only_where_labels_have_no_say(weight, drawn):
    empty = np.zeros((SIZE, SIZE), dtype=bool)
    assert blend_shapes(distance_to(12), empty, AGREE, weight=weight).any() == drawn


@pytest.mark.parametrize("k", [-3, 0, 3])
def test_missed_object_is_the_given_one_moved_by_the_offset(k):
    shape = GivenShape(float(-k), 0.5, 0.9, 5, 0.9)
    absent = np.full((SIZE, SIZE), -85.0)
    blended = blend_shapes(absent, disc(12 + k), shape, weight=0.5)
    assert dice(blended, disc(12)) > 0.97
    assert np.array_equal(blended, signed_distance(disc(12 + k)[None], origin="face")[0] <= -k)


def test_missed_object_that_the_offset_would_delete_stays_as_it_was_given():
    shape = GivenShape(-9.0, 0.5, 0.0, 5, 0.9)
    assert np.array_equal(blend_shapes(np.full((SIZE, SIZE), -85.0), disc(4), shape, weight=0.5), disc(4))


def test_object_found_elsewhere_is_replaced_by_the_given_one():
    given = disc(5, centre=(12, 12))
    blended = blend_shapes(distance_to(6, centre=(45, 45)), given, AGREE, weight=0.5)
    assert np.array_equal(blended, given)


def test_given_speck_that_the_prediction_does_not_touch_is_left_out():
    given = disc(12)
    given[3:6, 3:6] = True
    assert np.array_equal(blend_shapes(distance_to(12), given, AGREE, weight=0.5), disc(12))


@pytest.mark.parametrize("k", [-6, 6])
def test_own_offset_of_a_case_is_taken_away_as_far_as_it_is_the_labels(k):
    own, none = (GivenShape(0.0, 4.0, part, 5, 0.9) for part in (1.0, 0.0))
    given = disc(16 + k)
    assert dice(blend_shapes(distance_to(16), given, own, weight=1), disc(16)) > 0.98
    assert np.array_equal(blend_shapes(distance_to(16), given, none, weight=1), given)


def test_bump_of_the_given_label_is_kept_in_part_and_by_full_weight_all():
    given = disc(12)
    given[10:20, 27:34] = True
    bump = given & ~disc(12)
    kept = {w: (blend_shapes(distance_to(12), given, AGREE, weight=w) & bump).sum() for w in (0, 0.5, 1)}
    assert kept[0] == 0
    assert 0.1 < kept[0.5] / kept[1] < 0.8
    assert kept[1] == bump.sum()


def test_flips_commute():
    given = disc(11, centre=(27, 34))
    scores = distance_to(12)
    blended = blend_shapes(scores, given, AGREE, weight=0.5)
    for axis in (0, 1):
        flipped = blend_shapes(np.flip(scores, axis), np.flip(given, axis), AGREE, weight=0.5)
        assert np.array_equal(flipped, np.flip(blended, axis))


def test_inputs_are_not_written_to():
    scores, given = distance_to(12), disc(14)
    scores.setflags(write=False)
    given.setflags(write=False)
    blend_shapes(scores, given, AGREE, weight=0.5)
    blend_shapes(np.full_like(scores, -85), given, AGREE, weight=0.5)
    given_offset(given, scores >= 0, None)


def test_shape_survives_json():
    shape = learn_given_shape([-1.0, -2.5, -2.0], [0.9, 0.8, 0.7], 0.3)
    assert GivenShape.from_dict(json.loads(json.dumps(shape.as_dict()))) == shape
