from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import ndimage

from monai_sc.correction.boundaries import distance
from monai_sc.correction.shifts import ShiftTable, choose_correction, clear_gain
from monai_sc.functional import signed_distance

REPRESENTATIONS = ("auto", "distance", "logit")


def disc(radius, size=31, centre=None):
    y, x = np.mgrid[:size, :size] - (size // 2 if centre is None else centre)
    return np.hypot(y, x) <= radius


def random_cases(seed, shape, number):
    """Return predictions and labels of blobs, some of them empty or full, and masks of what is ignored."""
    rng = np.random.default_rng(seed)
    cases = []
    for index in range(number):
        smooth = ndimage.gaussian_filter(rng.normal(size=shape), 1.5)
        smooth /= smooth.std()
        prediction, label = smooth > rng.uniform(-0.5, 1.5), smooth + rng.normal(0, 0.3) > rng.uniform(0, 1.5)
        if index and rng.random() < 0.3:
            (prediction if rng.random() < 0.5 else label)[:] = rng.random() < 0.2
        ignored = rng.random(shape) < 0.2 if rng.random() < 0.5 else None
        cases.append((prediction, label, ignored))
    return cases


def slow_moved(prediction, shift, metric, spacing):
    if prediction.all() or not prediction.any():
        return prediction
    return signed_distance(prediction[None], metric=metric, spacing=spacing, origin="face")[0] <= shift + 1e-4


def slow_floor(cases):
    floor = 0.5
    for prediction, label, ignored in cases:
        counted = np.ones(label.shape, dtype=bool) if ignored is None else ~ignored
        size, true = (prediction & counted).sum(), (label & counted).sum()
        if size and true:
            floor = min(floor, 0.5 * true / size)
    return floor


def slow_dice(case, shift, floor, metric, spacing):
    prediction, label, ignored = case
    counted = np.ones(label.shape, dtype=bool) if ignored is None else ~ignored
    moved = slow_moved(prediction, shift, metric, spacing)
    if (moved & counted).sum() < floor * (prediction & counted).sum():
        moved = prediction
    total = (moved & counted).sum() + (label & counted).sum()
    return 2 * (moved & label & counted).sum() / total if total else 1.0


def table_of(cases, reach=4.0, metric="euclidean", spacing=None):
    empty = ShiftTable(reach)
    counts = [
        empty.count(prediction, distance(prediction, metric, spacing), label, ignored)
        for prediction, label, ignored in cases
    ]
    return ShiftTable(reach, counts)


@pytest.mark.parametrize(
    ("shape", "metric", "spacing"),
    [
        pytest.param((17, 14), "euclidean", None, id="2d"),
        pytest.param((17, 14), "taxicab", None, id="2d-taxicab"),
        pytest.param((17, 14), "euclidean", (0.6, 1.7), id="2d-anisotropic"),
        pytest.param((8, 9, 7), "euclidean", (1.1, 0.6, 2.0), id="3d-anisotropic"),
        pytest.param((8, 9, 7), "taxicab", None, id="3d-taxicab"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_table_holds_the_dice_of_every_shift_as_thresholds_of_the_distance_give_it(shape, metric, spacing, seed):
    cases = random_cases(seed, shape, 5)
    table = table_of(cases, 3.3, metric, spacing)
    floor = slow_floor(cases)
    assert table.floor == pytest.approx(floor)
    assert table.shifts.tolist() == [i / 4 for i in range(-13, 14)]
    expected = [[slow_dice(case, shift, floor, metric, spacing) for shift in table.shifts] for case in cases]
    np.testing.assert_allclose(table.dice, expected, rtol=1e-12)
    assert np.ptp(table.dice, axis=1).max() > 0.05


def test_what_is_ignored_does_not_matter_where_the_prediction_stays():
    prediction, label = disc(8), disc(6)
    ignored = np.zeros_like(label)
    ignored[:12] = True
    first = table_of([(prediction, label, ignored)]).dice
    np.testing.assert_array_equal(table_of([(prediction, label ^ ignored, ignored)]).dice, first)
    assert np.abs(table_of([(prediction, label ^ ignored, None)]).dice - first).max() > 0.1


def test_shift_that_leaves_less_than_half_counts_as_refused_and_leaves_the_dice():
    thick, thin = np.zeros((2, 20, 12), dtype=bool)
    thick[2:18], thin[9:12] = True, True
    table = table_of([(thick, thick, None), (thin, thin, None)])
    assert table.floor == 0.5
    assert [table.refused(shift, np.arange(2)) for shift in (-0.25, -1, -2, -4)] == [0, 1, 1, 1]
    assert table.dice[1, table.nearest(-1)] == 1
    assert table.dice[0, table.nearest(-2)] == pytest.approx(2 * 12 / (12 + 16))


def test_case_that_judges_has_no_say_in_what_must_be_left():
    table = table_of([(disc(9), disc(8), None), (disc(9), disc(3), None)])
    assert table.dice[1, table.nearest(-4)] > table.dice[1, table.still]
    others = table.learnt_from(np.array([0]))
    assert others.floor == 0.5 * disc(8).sum() / disc(9).sum() > table.floor
    assert others.dice[1, table.nearest(-4)] == table.dice[1, table.still]
    assert table.learnt_from(np.arange(2)).floor == table.floor


def test_floor_is_lower_where_the_clean_labels_are_as_much_smaller():
    table = table_of([(disc(9), disc(4), None)])
    assert table.floor == pytest.approx(0.5 * disc(4).sum() / disc(9).sum())
    assert table_of([(disc(4), disc(9), None)]).floor == 0.5
    assert table_of([(disc(4), disc(0) & False, None)]).floor == 0.5


def discs_off_by(offsets, radius=9):
    """Return discs and labels whose boundaries lie apart by each offset, negative where the disc is too large."""
    return [(disc(radius - offset, 61), disc(radius, 61), None) for offset in offsets]


def choice_of(cases, displacements, rows=None, **options):
    rows = np.arange(len(cases)) if rows is None else np.asarray(rows)
    return choose_correction(table_of(cases, 8.0), np.array(displacements, dtype=float), "auto", rows, **options)


@pytest.mark.parametrize("k", [-4, -2, 2, 4])
def test_discs_that_are_off_by_k_are_moved_by_k(k):
    found = choice_of(discs_off_by([k] * 4), [k] * 4)
    assert found.representation == "distance"
    assert found.shift == pytest.approx(k, abs=0.25)
    assert found.dice_after > 0.95 > found.dice_before


def test_each_case_is_judged_by_what_the_others_give():
    offsets = [-4.0, -3.0, -2.0, -3.0]
    cases = discs_off_by(offsets)
    table = table_of(cases, 8.0)
    found = choice_of(cases, offsets)
    judged = []
    for i in range(4):
        others = [d for j, d in enumerate(offsets) if j != i]
        judged.append(table.dice[i, table.nearest(sum(others) / 3)])
    assert found.evidence["distance"] == pytest.approx(np.mean(judged))
    assert found.evidence["none"] == pytest.approx(
        np.mean([slow_dice(c, 0, table.floor, "euclidean", None) for c in cases])
    )


@pytest.mark.parametrize(
    ("offsets", "moved"),
    [
        pytest.param([-3, -3.1], True, id="interval-excludes-0"),
        pytest.param([-3, -1], False, id="interval-contains-0"),
        pytest.param([-3, 3], False, id="one-of-each"),
    ],
)
def test_two_cases_move_only_what_their_interval_says(offsets, moved):
    assert (choice_of(discs_off_by(offsets), offsets).representation == "distance") == moved


def test_one_case_gives_its_own_shift_and_judges_nothing():
    found = choice_of(discs_off_by([-3]), [-3])
    assert (found.representation, found.shift) == ("distance", -3)
    assert math.isnan(found.dice_after)


def test_cases_that_are_off_either_way_are_not_moved():
    offsets = [-3, 3, -2.5, 2.5, -3, 3]
    found = choice_of(discs_off_by(offsets), offsets)
    assert (found.representation, found.shift) == ("none", 0)
    assert "no shift raises the Dice of clean cases clearly" in found.note


def test_best_shift_needs_to_be_clearly_better_than_the_bias():
    cases = discs_off_by([-3] * 5)
    assert choice_of(cases, [-3] * 5).shift == -3
    assert choice_of(cases, [-1] * 5).shift == pytest.approx(-3, abs=0.25)  # a bias that is measured wrong


def test_groups_get_shifts_of_their_own_where_these_serve():
    offsets = [-4, -4, -4, -1, -1, -1]
    groups = ["ann"] * 3 + ["ben"] * 3
    found = choice_of(discs_off_by(offsets), offsets, groups=groups)
    assert (found.shift_of("ann"), found.shift_of("ben")) == (-4, -1)
    assert found.shift_of("cleo") == found.shift
    assert choice_of(discs_off_by([-3] * 6), [-3] * 6, groups=groups).group_shifts == {}


def test_only_rows_have_a_say():
    offsets = [-3, -3, -3, 4, 4, 4]
    assert choice_of(discs_off_by(offsets), offsets, [0, 1, 2]).shift == pytest.approx(-3, abs=0.25)
    assert choice_of(discs_off_by(offsets), offsets, [3, 4, 5]).shift == pytest.approx(4, abs=0.25)


def test_note_says_that_a_shift_would_leave_too_little():
    thin = np.zeros((31, 31), dtype=bool)
    thin[10:13] = True
    found = choice_of([(thin, thin, None)] * 4, [-2] * 4)
    assert found.representation == "none"
    assert found.note.endswith("a shift by -2.00 voxels would leave too little of it in 4 of 4")


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_class_without_a_displacement_has_no_correction(representation):
    found = choose_correction(table_of(discs_off_by([-3])), np.array([np.nan]), representation, np.arange(1))
    assert found.representation == "none"
    assert found.note == "the two boundaries meet in no clean case"


@pytest.mark.parametrize("representation", ["distance", "logit"])
def test_correction_that_was_asked_for_is_by_the_bias_whatever_it_does(representation):
    cases = discs_off_by([0] * 3)
    found = choose_correction(table_of(cases), np.array([-2.1] * 3), representation, np.arange(3), gamma=0.5)
    assert (found.representation, found.note) == (representation, "as asked")
    assert (found.shift, found.gamma) == pytest.approx((-2.1, 0.5))


@pytest.mark.parametrize(
    ("gains", "clear"),
    [
        pytest.param([0.1, 0.1, 0.1], True, id="the-same-in-all"),
        pytest.param([0.0, 0.0, 0.0], False, id="none"),
        pytest.param([0.3, -0.2, 0.0], False, id="within-the-error"),
        pytest.param([0.2, 0.0], False, id="two-that-differ"),
        pytest.param([0.2, 0.15], True, id="two-that-agree"),
        pytest.param([0.2], False, id="one-tells-nothing"),
        pytest.param([0.2, math.nan, 0.21, 0.19], True, id="nan-does-not-count"),
    ],
)
def test_gain_is_clear_where_it_is_larger_than_its_error(gains, clear):
    assert clear_gain(np.array(gains)) == clear
