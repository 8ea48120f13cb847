from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import ndimage

from monai_sc.correction.choice import ClassCorrection, ShiftTable, choose_correction
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
    return signed_distance(prediction[None], metric=metric, spacing=spacing, origin="face")[0] <= shift


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
    empty = ShiftTable(reach, metric)
    counts = [empty.count(prediction, label, spacing=spacing, ignored=ignored) for prediction, label, ignored in cases]
    return ShiftTable(reach, metric, counts)


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
@pytest.mark.parametrize("seed", range(4))
def test_table_holds_the_dice_of_every_shift_as_thresholds_of_the_distance_give_it(shape, metric, spacing, seed):
    cases = random_cases(seed, shape, 5)
    table = table_of(cases, 3.3, metric, spacing)
    floor = slow_floor(cases)
    assert table.floor == pytest.approx(floor)
    assert table.shifts.tolist() == [i / 4 for i in range(-13, 14)]
    expected = [[slow_dice(case, shift, floor, metric, spacing) for shift in table.shifts] for case in cases]
    np.testing.assert_allclose(table.dice(), expected, rtol=1e-12)
    assert np.ptp(table.dice(), axis=1).max() > 0.05


def test_distance_counts_in_the_unit_that_is_given():
    prediction, label = disc(8), disc(5)
    counts = ShiftTable(8, "taxicab").count(prediction, label, spacing=None, ignored=None, unit=2.0)
    mm, voxels = ShiftTable(8, "taxicab", [counts]), table_of([(prediction, label, None)], 4.0, "taxicab")
    np.testing.assert_allclose(mm.dice()[0, ::2], voxels.dice()[0])


def test_what_is_ignored_does_not_matter_where_the_prediction_stays():
    prediction, label = disc(8), disc(6)
    ignored = np.zeros_like(label)
    ignored[:12] = True
    first = table_of([(prediction, label, ignored)]).dice()
    np.testing.assert_array_equal(table_of([(prediction, label ^ ignored, ignored)]).dice(), first)
    assert np.abs(table_of([(prediction, label ^ ignored, None)]).dice() - first).max() > 0.1


def test_shift_that_leaves_less_than_half_counts_as_refused_and_leaves_the_dice():
    thick, thin = np.zeros((2, 20, 12), dtype=bool)
    thick[2:18], thin[9:12] = True, True
    table = table_of([(thick, thick, None), (thin, thin, None)])
    assert table.floor == 0.5
    assert [table.refused(shift) for shift in (-0.25, -1, -2, -4)] == [0, 1, 1, 1]
    assert table.dice()[1, table.nearest(-1)] == 1
    assert table.dice()[0, table.nearest(-2)] == pytest.approx(2 * 12 / (12 + 16))


def test_floor_is_lower_where_the_clean_labels_are_as_much_smaller():
    table = table_of([(disc(9), disc(4), None)])
    assert table.floor == pytest.approx(0.5 * disc(4).sum() / disc(9).sum())
    assert table_of([(disc(4), disc(9), None)]).floor == 0.5
    assert table_of([(disc(4), disc(0) & False, None)]).floor == 0.5


def slow_choice(cases, displacements, logit_dice, reach):
    """Return the Dice of each candidate, judged case by case by the others."""
    floor = slow_floor(cases)
    steps = int(reach / 0.25)
    shifts = [0.25 * i for i in range(-steps, steps + 1)]

    def of(case, shift):
        return slow_dice(case, shift, floor, "euclidean", None)

    def nearest(value):
        return min(shifts, key=lambda s: abs(s - value))

    def bias_of(indices):
        values = [displacements[i] for i in indices if math.isfinite(displacements[i])]
        return sum(values) / len(values) if values else 0.0

    def best(indices):
        means = {s: np.mean([of(cases[i], s) for i in indices]) for s in shifts}
        highest = max(means.values())
        return min((s for s in shifts if means[s] >= highest - 1e-9), key=lambda s: abs(s - bias_of(indices)))

    number = range(len(cases))
    rest = [[j for j in number if j != i] or [i] for i in number]
    evidence = {"none": np.mean([of(case, 0) for case in cases])}
    evidence["distance"] = np.mean([of(cases[i], nearest(bias_of(rest[i]))) for i in number])
    after = {"none": evidence["none"], "distance": np.mean([of(case, nearest(bias_of(number))) for case in cases])}
    shift = {"none": 0.0, "distance": nearest(bias_of(number))}
    if len(cases) > 1:
        evidence["best shift"] = np.mean([of(cases[i], best(rest[i])) for i in number])
        shift["best shift"] = best(number)
        after["best shift"] = np.mean([of(case, shift["best shift"]) for case in cases])
    for gamma, scores in logit_dice.items():
        name = f"logit, gamma {gamma:g}"
        evidence[name] = after[name] = scores.mean()
        shift[name] = bias_of(number)
    winner = max(evidence, key=evidence.get)
    if evidence[winner] <= evidence["none"] or after[winner] <= after["none"]:
        winner = "none"
    return evidence, winner, shift[winner], after[winner]


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_choice_is_that_of_explicit_loops_over_the_cases_that_are_left_out(seed, number):
    rng = np.random.default_rng(seed)
    cases = random_cases(seed, (13, 12), number)
    displacements = rng.uniform(-2, 2, number)
    if number > 2:
        displacements[-1] = math.nan
    logit_dice = {0.5: rng.uniform(0.3, 0.6, number), 1.0: rng.uniform(0.3, 0.6, number)}
    chosen = choose_correction(table_of(cases, 2.0), displacements, "auto", logit_dice=logit_dice)
    evidence, winner, shift, after = slow_choice(cases, displacements, logit_dice, 2.0)
    assert chosen.evidence == pytest.approx(evidence)
    expected = {"none": "none", "distance": "distance", "best shift": "distance"}.get(winner, "logit")
    assert chosen.representation == expected
    assert chosen.shift == pytest.approx(shift)
    assert chosen.dice_after == pytest.approx(after)
    assert chosen.dice_before == pytest.approx(evidence["none"])
    if expected == "logit":
        assert winner == f"logit, gamma {chosen.gamma:g}"


def test_the_cases_of_the_oracle_lead_to_every_choice():
    winners = set()
    for seed in range(12):
        cases = random_cases(seed, (13, 12), 3)
        displacements = np.random.default_rng(seed).uniform(-2, 2, 3)
        logit_dice = {1.0: np.full(3, 0.45)}
        winners.add(
            choose_correction(table_of(cases, 2.0), displacements, "auto", logit_dice=logit_dice).representation
        )
    assert winners == {"none", "distance", "logit"}


@pytest.mark.parametrize("k", [-3, -2, 2, 3])
def test_discs_that_are_off_by_k_are_moved_by_about_minus_k(k):
    cases = [(disc(r + k), disc(r), None) for r in (7, 8, 9)]
    chosen = choose_correction(table_of(cases), np.full(3, float(-k)), "auto")
    assert chosen.representation == "distance"
    assert chosen.shift == pytest.approx(-k, abs=0.5)
    assert chosen.dice_after > 0.94 > 0.8 > chosen.dice_before


def test_one_case_offers_no_best_shift_since_it_would_judge_itself():
    table = table_of([(disc(10), disc(7), None)])
    chosen = choose_correction(table, np.array([-1.0]), "auto")
    assert set(chosen.evidence) == {"none", "distance"}
    assert chosen.shift == -1


def test_right_predictions_are_left_as_they_are():
    table = table_of([(disc(r), disc(r), None) for r in (7, 8, 9)])
    chosen = choose_correction(table, np.array([-1.0, -2.0, -1.5]), "auto")
    assert (chosen.representation, chosen.shift, chosen.dice_after) == ("none", 0, 1)
    assert chosen.note == "no correction gives a better Dice on the clean cases"


def test_note_says_that_a_shift_would_leave_too_little():
    bar = np.zeros((20, 12), dtype=bool)
    bar[9:12] = True
    chosen = choose_correction(table_of([(bar, bar, None)] * 2), np.array([-2.0, -2.0]), "auto")
    assert chosen.representation == "none"
    assert chosen.note.endswith("a shift by -2.00 would leave too little of it in 2 of 2")


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_class_without_a_displacement_has_no_correction(representation):
    table = table_of([(disc(3) & False, disc(3), None)] * 2)
    chosen = choose_correction(table, np.full(2, math.nan), representation, logit_dice={1.0: np.zeros(2)})
    assert (chosen.representation, chosen.shift) == ("none", 0)
    assert chosen.dice_before == chosen.dice_after == 0
    assert "no clean case shows a boundary" in chosen.note


@pytest.mark.parametrize(("representation", "after"), [("distance", None), ("logit", 0.25)])
def test_correction_that_was_asked_for_is_taken_by_the_bias_also_where_it_does_harm(representation, after):
    cases = [(disc(8), disc(8), None)] * 2
    chosen = choose_correction(
        table_of(cases), np.array([-2.0, -1.1]), representation, gamma=0.7, logit_dice={0.7: np.array([0.1, 0.4])}
    )
    assert (chosen.representation, chosen.gamma, chosen.note) == (representation, 0.7, "as asked")
    assert chosen.shift == pytest.approx(-1.55)
    expected = slow_dice(cases[0], -1.5, 0.5, "euclidean", None) if after is None else after
    assert chosen.dice_after == pytest.approx(expected)
    assert chosen.dice_after < chosen.dice_before == 1


def test_correction_survives_json():
    chosen = choose_correction(table_of([(disc(9), disc(7), None)] * 2), np.array([-2.0, -2.0]), "auto")
    assert ClassCorrection.from_dict(json.loads(json.dumps(chosen.as_dict()))) == chosen
