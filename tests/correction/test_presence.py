from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from monai_sc.correction import PresenceRates
from monai_sc.correction.presence import (
    FEATURES,
    RISK,
    CaseObjects,
    choose_presence_rule,
    find_objects,
    object_sizes,
    objects_of_case,
    presence_rates,
    smallest_object,
)
from monai_sc.correction.shifts import clear_gain


def case(true=(), false=(), *, missed=0, given=None, feature="mean_confidence"):
    """Return the objects of a case: values of a feature of those that are there, and of those that are not.

    Each has ten voxels; one that is there overlaps nine of ten clean ones. ``missed`` clean objects were not predicted.
    """
    values = [*true, *false]
    features = np.full((len(values), len(FEATURES)), 0.7)
    features[:, FEATURES.index(feature)] = values
    size = np.full(len(values), 10)
    common = np.array([9] * len(true) + [0] * len(false), dtype=int)
    touched = np.zeros(len(values), dtype=bool) if given is None else np.array(given, dtype=bool)
    return CaseObjects(features, size, common, touched, 10 * (len(true) + missed), given is not None)


SURE = [0.9, 0.95, 0.92, 0.97, 0.94, 0.91]
WEAK = [0.5, 0.55, 0.52, 0.58, 0.53, 0.51]
BOTH = [*(case([v]) for v in SURE), *(case((), [v]) for v in WEAK)]


def chosen(cases):
    return choose_presence_rule(cases, np.arange(len(cases)))


@pytest.mark.parametrize(
    ("predicted", "present", "counts"),
    [
        pytest.param("1111", "1111", (0, 0, 4, 0), id="always-there-and-found"),
        pytest.param("1011", "1101", (1, 1, 3, 1), id="one-of-each"),
        pytest.param("1100", "0000", (4, 2, 0, 0), id="never-there"),
        pytest.param("0000", "1111", (0, 0, 4, 4), id="never-found"),
        pytest.param("0000", "0000", (4, 0, 0, 0), id="neither"),
    ],
)
def test_rates_count_what_is_not_there_and_what_is_not_found(predicted, present, counts):
    rates = presence_rates([c == "1" for c in predicted], [c == "1" for c in present])
    assert isinstance(rates, PresenceRates)
    assert (rates.num_absent, rates.num_spurious, rates.num_present, rates.num_missed) == counts


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(("count", "total"), [(0, 5), (1, 5), (3, 7), (5, 5), (40, 100)])
def test_intervals_are_those_of_clopper_and_pearson(count, total, confidence):
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, count, total - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, total - count) if count < total else 1.0
    hit = [index < count for index in range(total)]
    spurious = presence_rates(hit, [False] * total, confidence=confidence)
    assert spurious.spurious_interval == pytest.approx((low, high), abs=1e-7)
    missed = presence_rates([not h for h in hit], [True] * total, confidence=confidence)
    assert missed.missed_interval == pytest.approx((low, high), abs=1e-7)


def test_rate_of_no_case_has_no_interval():
    rates = presence_rates([True], [True])
    assert all(math.isnan(bound) for bound in rates.spurious_interval)
    assert rates.missed_interval == pytest.approx((0, 0.975))


def test_objects_are_components_with_mean_and_highest_probability_and_volume():
    logit = np.array([[-3.0, 0.0, math.log(3), -1.0], [-1.0, -math.inf, -1.0, math.log(9)]])
    components, features = find_objects(logit, voxel=2.5)
    assert components.tolist() == [[0, 1, 1, 0], [0, 0, 0, 2]]
    np.testing.assert_allclose(features, [[(0.5 + 0.75) / 2, 0.75, 5.0], [0.9, 0.9, 2.5]])


def test_nothing_predicted_has_no_objects():
    components, features = find_objects(np.full((3, 3), -1.0))
    assert not components.any()
    assert features.shape == (0, 3)


def test_objects_of_a_case_count_what_is_clean_and_what_was_drawn():
    logit = np.full((1, 12), -1.0)
    logit[0, 1:4] = logit[0, 6:8] = logit[0, 10] = 1.0
    label, given = np.zeros((2, 1, 12), dtype=bool)
    label[0, 2:6], given[0, 7] = True, True
    found = objects_of_case(logit, label, given, None, 1.0)
    assert found.size.tolist() == [3, 2, 1]
    assert found.common.tolist() == [2, 0, 0]
    assert found.given.tolist() == [False, True, False]
    assert (found.true, found.has_given) == (4, True)
    ignored = np.zeros((1, 12), dtype=bool)
    ignored[0, 10] = True
    assert len(objects_of_case(logit, label, given, ignored, 1.0).size) == 2


def slow_bound(values, feature):
    """Return what the next value falls under with a probability of RISK, and less than the least by a deviation."""
    known = [math.log(v) if feature == "size" else math.log(v / (1 - v)) for v in values]
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((k - mean) ** 2 for k in known) / (len(known) - 1))
    bound = stats.t.ppf(RISK, len(known) - 1, mean, deviation * math.sqrt(1 + 1 / len(known)))
    bound = min(bound, min(known) - deviation)
    return math.exp(bound) if feature == "size" else 1 / (1 + math.exp(-bound))


def slow_dice(case, kept):
    total = case.true + sum(size for size, keep in zip(case.size, kept, strict=True) if keep)
    return 2 * sum(c for c, keep in zip(case.common, kept, strict=True) if keep) / total if total else 1.0


def slow_judgement(cases, index):
    """Return the Dice of each case by the rule of the others on one feature, with drawn objects spared and without."""
    may_empty = any(case.true == 0 for case in cases)
    spared, dropped = [], []
    for case in cases:
        known = [v for c in cases if c is not case for v in c.features[c.common > 0, index]]
        limit = slow_bound(known, FEATURES[index]) if len(known) > 2 else 0
        values = case.features[:, index]
        kept = [v >= limit for v in values]
        if len(kept) and not any(kept) and not may_empty:
            kept[int(np.argmax(values))] = True
        dropped.append(slow_dice(case, kept))
        spared.append(slow_dice(case, [keep or drawn for keep, drawn in zip(kept, case.given, strict=True)]))
    return np.array(spared), np.array(dropped)


@pytest.mark.parametrize("seed", range(24))
def test_rule_is_judged_by_the_bounds_of_the_others(seed):
    random = np.random.RandomState(seed)
    cases = []
    for _ in range(random.randint(3, 12)):
        true, false = (random.randint(0, 4, 2) + random.randint(0, 2, 2)) * [1, seed % 3]
        here = np.array([True] * true + [False] * false, dtype=bool)
        sure = np.where(here, random.uniform(0.75, 0.99, len(here)), random.uniform(0.5, 0.8, len(here)))
        size = random.randint(5, 60, len(here))
        features = np.stack([sure, (1 + sure) / 2, size], axis=1)
        common = (size * here * random.uniform(0.3, 1, len(here))).astype(int)
        drawn = here | (random.rand(len(here)) < 0.3) if seed % 2 else np.zeros(len(here), dtype=bool)
        has_true = seed % 4 == 0 or true  # else each clean case holds the class
        clean = int(common.sum() + random.randint(0, 9) * true) if has_true else 5
        cases.append(CaseObjects(features, size, common, drawn, clean, bool(seed % 2)))
    rule = chosen(cases)
    before = np.array([slow_dice(case, [True] * len(case.size)) for case in cases])
    there = np.array([case.true > 0 for case in cases])
    expected, best = None, 0.0
    for index, feature in enumerate(FEATURES):
        spared, dropped = slow_judgement(cases, index)
        drops = bool(seed % 2) and clear_gain(dropped - spared)
        judged = dropped if drops else spared
        gain = judged.mean() - before.mean()
        known = sum(int((case.common > 0).sum()) for case in cases) > 2
        harms = there.any() and judged[there].mean() < before[there].mean()
        if known and not harms and clear_gain(judged - before) and gain > best:
            expected, best = (feature, drops, judged), gain
    if expected is None:
        assert rule is None
    else:
        assert (rule.feature, rule.drops_given) == expected[:2]
        assert rule.gain == pytest.approx(best)
        assert rule.dice_after[0] == pytest.approx(expected[2].mean())
        assert rule.may_empty == (not there.all())


@pytest.mark.parametrize("feature", FEATURES)
def test_weak_objects_are_told_by_the_feature_that_tells_them(feature):
    cases = [*(case([v], feature=feature) for v in SURE), *(case((), [v], feature=feature) for v in WEAK)]
    rule = chosen(cases)
    assert rule.feature == feature
    assert rule.threshold == pytest.approx(slow_bound(SURE, feature))
    assert [bool(rule.keeps(c.features)[0]) for c in cases] == [True] * 6 + [False] * 6
    assert rule.gain == pytest.approx(0.5)
    assert rule.dice_before == pytest.approx((0.45, 0.9))
    assert rule.dice_after == pytest.approx((0.95, 0.9))
    assert (rule.drops_given, rule.may_empty) == (False, True)


def test_false_object_beside_a_true_one_is_told_in_the_same_case():
    cases = [case([sure], [weak]) for sure, weak in zip(SURE, WEAK, strict=True)]
    rule = chosen(cases)
    assert not rule.may_empty
    assert rule.keeps(cases[0].features).tolist() == [True, False]


def test_rule_keeps_the_surest_object_where_every_clean_case_holds_the_class():
    rule = chosen([case([sure], [weak]) for sure, weak in zip(SURE, WEAK, strict=True)])
    assert rule.keeps(case((), [0.3, 0.4]).features).tolist() == [False, True]
    assert chosen(BOTH).keeps(case((), [0.3, 0.4]).features).tolist() == [False, False]


def test_objects_that_were_drawn_go_only_where_clean_cases_show_that_they_are_false():
    drawn = [*(case([v], given=[True]) for v in SURE), *(case((), [v], given=[True]) for v in WEAK)]
    assert chosen(drawn).drops_given
    not_drawn = [*(case([v], given=[True]) for v in SURE), *(case((), [v], given=[False]) for v in WEAK)]
    assert not chosen(not_drawn).drops_given


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([case([v]) for v in SURE + WEAK], id="all-are-there"),
        pytest.param([case((), [v]) for v in SURE + WEAK], id="none-is-there"),
        pytest.param([*(case([0.7]) for _ in SURE), *(case((), [0.7]) for _ in WEAK)], id="nothing-tells-them-apart"),
        pytest.param([*(case([v]) for v in WEAK), *(case((), [v]) for v in SURE)], id="the-wrong-ones-are-weak"),
        pytest.param([case((), [0.6]), case([0.9])], id="one-case-of-each"),
        pytest.param([case([], missed=1), case([0.9])], id="missed"),
        pytest.param([*(case([v]) for v in SURE), case((), [WEAK[0]])], id="one-false-object-is-no-clear-gain"),
    ],
)
def test_no_rule_where_none_serves(cases):
    assert chosen(cases) is None


def test_cases_without_a_say_do_not_count():
    assert choose_presence_rule(BOTH, np.arange(6)) is None
    assert choose_presence_rule(BOTH, np.arange(12)) is not None


def test_next_object_that_is_there_falls_under_the_threshold_seldom():
    rng = np.random.default_rng(0)
    found = dropped = 0
    for _ in range(300):
        values = np.exp(rng.normal(3, 0.6, 11))
        false = [case((), [1e-3], feature="size") for _ in range(10)]
        rule = chosen([*(case([v], feature="size") for v in values[:10]), *false])
        found += rule is not None
        dropped += rule is not None and not rule.keeps(case([values[10]], feature="size").features)[0]
    assert found > 200
    assert stats.binomtest(dropped, found, RISK, alternative="greater").pvalue > 0.01


def test_no_object_is_as_small_as_the_smallest():
    assert smallest_object([np.zeros(0)]) == 0
    assert smallest_object([np.array([100.0, 300.0])]) == pytest.approx(25)
    assert smallest_object([np.array([100.0]), np.array([100.0, 100.0])]) == pytest.approx(100)
    sizes = np.exp(np.random.default_rng(0).normal(5, 0.5, 30))
    logs = np.log(sizes)
    bound = stats.t.ppf(RISK, 29, logs.mean(), logs.std(ddof=1) * math.sqrt(1 + 1 / 30))
    assert smallest_object([sizes[:10], sizes[10:]]) == pytest.approx(min(math.exp(bound), sizes.min()))


def test_sizes_are_those_of_components():
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 1]], dtype=bool)
    assert object_sizes(mask, 2.0).tolist() == [4.0, 4.0]
