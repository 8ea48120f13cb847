from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from monai_sc.correction import PresenceRates, PresenceRule
from monai_sc.correction.presence import FEATURES, RISK, choose_presence_rule, presence_features, presence_rates

PRESENT = [True] * 6 + [False] * 6
SURE = [0.9, 0.95, 0.92, 0.97, 0.94, 0.91, 0.5, 0.55, 0.52, 0.58, 0.53, 0.51]


def features_of(values, feature="mean_confidence"):
    """Return features that tell nothing but the one that is named."""
    features = np.ones((len(values), len(FEATURES)))
    features[:, FEATURES.index(feature)] = values
    return features


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


def test_features_are_the_mean_and_the_highest_probability_and_the_volume():
    logit = np.array([[-3.0, 0.0, math.log(3)], [-1.0, -math.inf, math.log(9)]])
    assert presence_features(logit, voxel=2.5).tolist() == pytest.approx([(0.5 + 0.75 + 0.9) / 3, 0.9, 7.5])


def test_nothing_predicted_has_no_confidence_and_no_size():
    assert presence_features(np.full((3, 3), -1.0)).tolist() == [0, 0, 0]


def slow_bound(values, feature):
    """Return what the next value falls under with a probability of RISK, by the law of one more normal value."""
    if len(values) < 3:
        return 0.0
    known = [math.log(v) if feature == "size" else math.log(v / (1 - v)) for v in values]
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((k - mean) ** 2 for k in known) / (len(known) - 1))
    bound = stats.t.ppf(RISK, len(known) - 1, mean, deviation * math.sqrt(1 + 1 / len(known)))
    return math.exp(bound) if feature == "size" else 1 / (1 + math.exp(-bound))


@pytest.mark.parametrize("feature", FEATURES)
def test_weak_objects_of_absent_classes_are_told_by_the_feature_that_tells_them(feature):
    kept = np.array([0.9] * 6 + [0.0] * 6)
    rule = choose_presence_rule(features_of(SURE, feature), kept, np.array(PRESENT), 0.9)
    assert rule.feature == feature
    assert rule.threshold == pytest.approx(slow_bound(SURE[:6], feature))
    assert [rule.keeps(f) for f in features_of(SURE, feature)] == PRESENT
    assert rule.gain == pytest.approx(0.5)
    assert rule.dice_before == pytest.approx((0.45, 0.9))
    assert rule.dice_after == pytest.approx((0.95, 0.9))


def test_next_object_that_is_there_falls_under_the_threshold_about_as_often_as_is_said():
    rng = np.random.default_rng(0)
    number, trials, dropped = 10, 400, 0
    for _ in range(trials):
        latent = rng.normal(3, 0.6, number + 1)
        values = np.exp(latent)
        known = np.concatenate([values[:number], [1e-3] * number])
        present = np.arange(2 * number) < number
        rule = choose_presence_rule(features_of(known, "size"), present * 0.9, present, 0.0)
        dropped += not rule.keeps(features_of(values[-1:], "size")[0])
    assert stats.binomtest(dropped, trials, RISK).pvalue > 0.01


@pytest.mark.parametrize(
    ("values", "kept", "present", "floor"),
    [
        pytest.param(SURE, [0.9] * 12, [True] * 12, 0.9, id="always-there"),
        pytest.param(SURE, [0.0] * 12, [False] * 12, 0.0, id="never-there"),
        pytest.param(SURE, [0.9] * 6 + [1.0] * 6, PRESENT, 0.9, id="nothing-is-spurious"),
        pytest.param([0.7] * 12, [0.9] * 6 + [0.0] * 6, PRESENT, 0.9, id="nothing-tells-them-apart"),
        pytest.param([1 - v for v in SURE], [0.9] * 6 + [0.0] * 6, PRESENT, 0.9, id="the-wrong-ones-are-weak"),
        pytest.param([0.6, 0.9], [0.9, 0.0], [False, True], 0.0, id="one-case-of-each"),
    ],
)
def test_no_rule_where_none_serves(values, kept, present, floor):
    assert choose_presence_rule(features_of(values), np.array(kept), np.array(present), floor) is None


def test_rule_that_would_cost_the_cases_that_hold_the_class_is_refused():
    kept = np.array([0.9] * 6 + [0.0] * 6)
    assert choose_presence_rule(features_of(SURE), kept, np.array(PRESENT), 0.9) is not None
    assert choose_presence_rule(features_of(SURE), kept, np.array(PRESENT), 0.91) is None


def test_rule_that_drops_a_true_object_when_the_others_judge_it_is_refused():
    values = [0.55] + [0.9, 0.91, 0.92, 0.9, 0.91, 0.92] * 2 + [0.1] * 4
    present = np.arange(len(values)) < 13
    kept = np.where(present, 0.9, 0.0)
    assert choose_presence_rule(features_of(values), kept, present, 0.9) is None
    rule = choose_presence_rule(features_of(values), kept, present, 0.9 * 12 / 13)
    assert rule.gain == pytest.approx((4 - 0.9) / 17)


def slow_rule(features, kept, present, floor):
    """Return name, threshold and gain of the rule, with explicit loops over the cases."""
    number, best = len(kept), None
    found = [size > 0 for size in features[:, FEATURES.index("size")]]
    for index, name in enumerate(FEATURES):
        values = features[:, index]

        def dice_with(limit, case):
            dropped = found[case] and values[case] < limit  # noqa: B023
            return (0.0 if present[case] else 1.0) if dropped else kept[case]

        true = [i for i in range(number) if present[i] and found[i]]
        threshold = slow_bound([values[i] for i in true], name)
        judged = [dice_with(slow_bound([values[i] for i in true if i != case], name), case) for case in range(number)]
        after = [dice_with(threshold, case) for case in range(number)]
        better = min(np.mean(judged), np.mean(after)) > np.mean(kept)
        safe = min(np.mean([d[i] for i in range(number) if present[i]]) for d in (judged, after)) >= floor
        gain = np.mean(judged) - np.mean(kept)
        if better and safe and (best is None or gain > best[2] + 1e-12):
            best = (name, threshold, gain)
    return best


def test_rule_is_that_of_explicit_loops_over_the_cases():
    rng = np.random.default_rng(0)
    chosen = dict.fromkeys([None, *FEATURES], 0)
    for _ in range(150):
        number = int(rng.integers(4, 14))
        present = np.arange(number) < rng.integers(1, number)
        kept = np.where(present, rng.choice([0.5, 0.75, 0.875], number), 0.0)
        latent = rng.normal(0, 0.5, (number, 3)) + rng.uniform(0, 4, 3) * present[:, None]
        features = np.concatenate([1 / (1 + np.exp(-latent[:, :2])), np.exp(latent[:, 2:])], axis=1)
        missed = rng.random(number) < 0.15
        features[missed] = 0
        kept = np.where(missed, np.where(present, 0.0, 1.0), kept)
        floor = float(rng.choice([0.0, 0.9, 1.0]) * kept[present].mean())
        expected = slow_rule(features, kept, present, floor)
        rule = choose_presence_rule(features, kept, present, floor)
        chosen[rule and rule.feature] += 1
        assert (rule and rule.feature) == (expected and expected[0])
        if rule:
            assert (rule.threshold, rule.gain) == pytest.approx(expected[1:])
            assert rule.dice_after[0] > rule.dice_before[0]
            assert rule.dice_after[1] >= floor
    assert min(chosen.values()) > 4


def test_rule_survives_json():
    rule = choose_presence_rule(features_of(SURE), np.array([0.9] * 6 + [0.0] * 6), np.array(PRESENT), 0.9)
    assert PresenceRule.from_dict(json.loads(json.dumps(rule.as_dict()))) == rule
