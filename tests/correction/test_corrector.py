from __future__ import annotations

import functools
import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from scipy import ndimage

from monai_sc.correction import Fitted, SpatialCorrector, compare_given
from monai_sc.functional import shift_boundary
from tests.correction.discs import SIZE, dice, disc, distance_to

EMPTY = np.full((1, SIZE, SIZE), -5.0)


def bar(thickness, size=SIZE):
    """Return the signed distance to a bar across the image, centred between two rows or on one."""
    position = np.arange(size) - (size // 2 - (thickness % 2 == 0) / 2)
    return np.repeat((thickness / 2 - np.abs(position))[None, :, None], size, axis=2)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=0))
    return weights / weights.sum(axis=0)


def off_by(k, radii=(9, 10, 11, 12)):
    """Return predictions of discs that are ``k`` too large, and the clean labels."""
    return [distance_to(r + k) for r in radii], [disc(r) for r in radii]


def smooth_noise(rng, shape, sigma):
    noise = ndimage.gaussian_filter(rng.normal(size=shape), sigma)
    return noise / noise.std()


class TestPredictionsThatAreOffByK:
    @pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
    @pytest.mark.parametrize("k", [-6, -3, 2, 4])
    @pytest.mark.parametrize("axis", [1, 2])
    def test_slabs_are_given_back(self, axis, k, metric):
        predictions = [np.swapaxes(bar(t + 2 * k), 1, axis) for t in (16, 18, 20, 21)]
        labels = [np.swapaxes(bar(t), 1, axis) >= 0 for t in (16, 18, 20, 21)]
        corrector = SpatialCorrector(["slab"], metric=metric).fit(predictions, labels)
        assert corrector.bias.mean[0] == pytest.approx(-k, abs=0.25)
        assert corrector.bias.num_used.tolist() == [4]
        for prediction, label in zip(predictions, labels, strict=True):
            assert dice(corrector.transform(prediction) == 1, label) > 0.98 > dice(prediction >= 0, label)

    @pytest.mark.parametrize("k", [-5, -2, 2, 5])
    @pytest.mark.parametrize(
        ("shape", "spacing", "radii"),
        [
            pytest.param((80, 80), None, (19, 21, 22, 24), id="2d"),
            pytest.param((64, 110), (1.2, 0.7), (19, 21, 22, 24), id="2d-anisotropic"),
            pytest.param((44, 44, 44), None, (12, 13), id="3d"),
            pytest.param((28, 44, 50), (1.6, 1.0, 0.9), (12, 13), id="3d-anisotropic"),
        ],
    )
    def test_discs_and_balls_are_given_back_in_the_unit_of_the_spacing(self, shape, spacing, radii, k):
        predictions = [distance_to(r + k, shape, spacing) for r in radii]
        labels = [distance_to(r, shape, spacing) >= 0 for r in radii]
        corrector = SpatialCorrector(["ball"]).fit(predictions, labels, spacing=spacing)
        assert corrector.bias.mean[0] == pytest.approx(-k, abs=0.25)
        for prediction, label in zip(predictions, labels, strict=True):
            assert dice(corrector.transform(prediction, spacing=spacing) == 1, label) > (
                0.98 if len(shape) == 2 else 0.95
            )

    @pytest.mark.parametrize("k", [-3, 3])
    def test_taxicab_shift_of_voxels_with_equal_sides_is_in_their_unit(self, k):
        predictions, labels = [bar(t + 2 * k) for t in (16, 18, 20)], [bar(t) >= 0 for t in (16, 18, 20)]
        corrector = SpatialCorrector(["slab"], metric="taxicab").fit(predictions, labels, spacing=(0.5, 0.5))
        assert corrector.bias.mean[0] == pytest.approx(-k * 0.5, abs=0.25)
        assert dice(corrector.transform(predictions[0], spacing=(0.5, 0.5)) == 1, labels[0]) > 0.98

    def test_each_case_may_have_its_own_spacing(self):
        spacings = [(1.0, 1.0), (0.5, 2.0), (2.0, 0.8)]
        predictions = [distance_to(12 + 3, spacing=s) for s in spacings]
        labels = [distance_to(12, spacing=s) >= 0 for s in spacings]
        corrector = SpatialCorrector(["disc"]).fit(predictions, labels, spacing=spacings)
        assert corrector.bias.mean[0] == pytest.approx(-3, abs=0.25)
        for prediction, label, spacing in zip(predictions, labels, spacings, strict=True):
            assert dice(corrector.transform(prediction, spacing=spacing) == 1, label) > 0.94

    @pytest.mark.parametrize("representation", ["distance", "logit"])
    def test_published_representations_are_taken_where_they_are_asked_for(self, representation):
        predictions, labels = off_by(3)
        corrector = SpatialCorrector(["disc"], representation=representation).fit(predictions, labels)
        (correction,) = corrector.corrections
        assert correction.representation == representation
        assert correction.shift == pytest.approx(corrector.bias.mean[0])
        for prediction, label in zip(predictions, labels, strict=True):
            assert dice(corrector.transform(prediction) == 1, label) > dice(prediction >= 0, label) + 0.1

    def test_each_class_gets_its_own_shift(self):
        radii = (10, 11, 12)
        predictions = [np.concatenate([distance_to(r + 3), distance_to(r), distance_to(r - 2)]) for r in radii]
        labels = [np.concatenate([disc(r)] * 3) for r in radii]
        corrector = SpatialCorrector(["large", "right", "small"]).fit(predictions, labels)
        np.testing.assert_allclose(corrector.bias.mean, [-3, 0, 2], atol=0.25)
        for prediction, label in zip(predictions, labels, strict=True):
            corrected = corrector.transform(prediction) == 1
            assert min(dice(*pair) for pair in zip(corrected, label, strict=True)) > 0.96
            assert np.array_equal(corrected[1], label[1])


def random_cases(rng, shape, classes, exclusive):
    """Return predictions and clean labels of a badly behaved network: blobs and thin bars, some of them not there."""
    predictions, labels = [], []
    for _ in range(rng.integers(1, 7)):
        scores, masks = [], []
        for _ in range(classes):
            score = smooth_noise(rng, shape, rng.uniform(1, 3)) - rng.uniform(0.3, 2)
            if rng.random() < 0.2:
                axis = rng.integers(len(shape))
                position = np.indices(shape)[axis] - rng.integers(2, shape[axis] - 2)
                score = rng.integers(1, 3) - 0.5 - np.abs(position)
            mask = score >= rng.normal(0, 0.4)
            if rng.random() < 0.25:
                mask = np.zeros(shape, dtype=bool)
            if rng.random() < 0.15:
                score = -np.abs(score) - 0.1
            if rng.random() < 0.3:
                score = score + rng.normal(0, 0.7, shape)
            if rng.random() < 0.3:
                score = score + rng.uniform(-1, 1)
            scores.append(score * rng.uniform(0.3, 4))
            masks.append(mask)
        if exclusive:
            scores = [np.full(shape, rng.normal(0, 0.2)), *scores]
            masks = [np.max([mask * (k + 1) for k, mask in enumerate(masks)], axis=0)]
        predictions.append(np.stack(scores).astype(np.float32))
        labels.append(np.stack(masks))
    return predictions, labels


def gains(predictions, labels, output, probabilities, spacing, **options):
    """Return the gain in the mean Dice per class over the clean cases, or ``None`` where no case is usable."""
    classes = len(predictions[0]) - (output == "softmax")
    names = [f"class {k}" for k in range(classes)]
    corrector = SpatialCorrector(names, output=output, probabilities=probabilities, **options)
    try:
        corrector = corrector.fit(predictions, labels, spacing=spacing)
    except ValueError as error:
        if "usable" in str(error):
            return None
        raise
    before, after = [], []
    for prediction, label in zip(predictions, labels, strict=True):
        corrected = corrector.transform(prediction, spacing=spacing)
        if output == "softmax":
            plain = prediction.argmax(axis=0)
            pairs = [(plain == k + 1, corrected[0] == k + 1, label[0] == k + 1) for k in range(classes)]
        else:
            plain = prediction >= (0.5 if probabilities else 0)
            pairs = [(plain[k], corrected[k] == 1, label[k]) for k in range(classes)]
        before.append([dice(p, t) for p, _, t in pairs])
        after.append([dice(c, t) for _, c, t in pairs])
    return np.mean(after, axis=0) - np.mean(before, axis=0)


def gains_of_random_sets(output, probabilities, number, **options):
    found = {}
    for seed in range(number):
        rng = np.random.default_rng(seed)
        shape = (22, 18) if rng.random() < 0.7 else (9, 8, 10)
        spacing = tuple(rng.uniform(0.5, 3, len(shape))) if rng.random() < 0.5 else None
        predictions, labels = random_cases(rng, shape, int(rng.integers(1, 4)), output == "softmax")
        if probabilities:
            predictions = [softmax(p) if output == "softmax" else sigmoid(p) for p in predictions]
        gain = gains(predictions, labels, output, probabilities, spacing, **options)
        if gain is not None:
            found[seed] = gain
    assert len(found) > 0.8 * number
    return found


class TestCleanCases:
    @pytest.mark.parametrize("probabilities", [False, True], ids=["logits", "probabilities"])
    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_auto_hardly_ever_lowers_their_dice(self, output, probabilities):
        """In sets of up to six badly behaved cases, what held-out cases speak for may cost those that were seen."""
        found = gains_of_random_sets(output, probabilities, 20)
        lowest = np.array([gain.min() for gain in found.values()])
        assert np.mean(lowest < -0.01) < 0.1


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("representation", ["auto", "distance", "logit"])
def test_predictions_that_are_right_are_unchanged(output, representation):
    rng = np.random.default_rng(0)
    logits = [np.stack([smooth_noise(rng, (20, 24), 2) for _ in range(3)]) for _ in range(4)]
    corrector = SpatialCorrector(["a", "b"] if output == "softmax" else ["a", "b", "c"], output=output)
    labels = [p.argmax(axis=0)[None] if output == "softmax" else p >= 0 for p in logits]
    if output == "softmax":  # a class that has the largest probability has more than half of it
        logits = [4 * (np.arange(3)[:, None, None] == label) - 2.0 for label in labels]
    corrector = corrector.fit(logits, labels)
    assert corrector.bias.mean.tolist() == [0] * len(corrector.options.class_names)
    assert corrector.bias.verdict == ("unbiased",) * len(corrector.options.class_names)
    for prediction, label in zip(logits, labels, strict=True):
        assert np.array_equal(corrector.transform(prediction), label)


class TestShiftThatLeavesTooLittle:
    @pytest.mark.parametrize("thickness", [2, 3, 4])
    def test_thin_structure_stays_as_predicted_and_is_counted(self, thickness):
        corrector = SpatialCorrector(["any"], presence=False).fit(*off_by(3))
        label, found = corrector.correct(bar(thickness))
        assert np.array_equal(label, bar(thickness) >= 0)
        assert found.refused == [1]

    def test_thick_structure_is_moved_beside_a_thin_one(self):
        """Object by object: the thin bar stays, the thick one shrinks."""
        corrector = SpatialCorrector(["any"], presence=False).fit(*off_by(3))
        thin = np.where(np.arange(SIZE)[None, :, None] < 4, bar(3, 8)[:, :4].max(), -5.0) * np.ones((1, SIZE, SIZE))
        label, found = corrector.correct(np.maximum(bar(20), thin))
        assert found.refused == [1]
        assert label[0, :4].all()
        assert 12 < label[0, 8:].sum() / SIZE < 16


def blobs(shape, number, seed, classes=2):
    rng = np.random.default_rng(seed)
    fields = [np.stack([smooth_noise(rng, shape, 2.5) for _ in range(classes)]) for _ in range(number)]
    return [f - 0.2 for f in fields], [f - 0.6 >= 0 for f in fields]


@pytest.mark.parametrize(
    ("shape", "spacing"),
    [
        pytest.param((24, 31), None, id="2d"),
        pytest.param((24, 31), (0.7, 1.3), id="2d-anisotropic"),
        pytest.param((12, 15, 14), (1.5, 0.8, 1.0), id="3d-anisotropic"),
    ],
)
def test_flips_of_image_and_label_commute_with_fit_and_transform(shape, spacing):
    predictions, labels = blobs(shape, 4, seed=1)
    given = [shift_boundary(label, 1.0) for label in labels]

    def run(axis):
        def flip(arrays):
            return arrays if axis is None else [np.flip(a, axis) for a in arrays]

        corrector = SpatialCorrector(["a", "b"]).fit(flip(predictions), flip(labels), spacing=spacing)
        corrector = compare_given(corrector, flip(predictions), flip(given), spacing=spacing)
        with_given = [
            corrector.transform(p, given=g, spacing=spacing)
            for p, g in zip(flip(predictions), flip(given), strict=True)
        ]
        return corrector, flip([*(corrector.transform(p, spacing=spacing) for p in flip(predictions)), *with_given])

    plain, expected = run(None)
    assert any(c.representation != "none" for c in plain.corrections)
    for axis in range(1, len(shape) + 1):
        flipped, found = run(axis)
        np.testing.assert_allclose(flipped.bias.mean, plain.bias.mean, rtol=1e-6)
        assert [c.shift for c in flipped.corrections] == pytest.approx([c.shift for c in plain.corrections])
        for first, second in zip(found, expected, strict=True):
            assert (first != second).mean() < 2e-3  # a voxel at no distance at all may fall either way


class TestIgnoredVoxels:
    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    @pytest.mark.parametrize("way", ["value", "mask"])
    def test_they_have_no_influence_on_bias_and_choice(self, output, way):
        """Half of each label is wrong, and said to be unknown."""
        predictions, labels = [bar(20 + 6)] * 3, [(bar(20) >= 0).astype(np.int16)] * 3
        half = np.zeros((1, SIZE, SIZE), dtype=bool)
        half[:, :, SIZE // 2 :] = True
        wrong = [np.where(half, 255 if way == "value" else bar(50) >= 0, label) for label in labels]
        if output == "softmax":
            predictions = [np.concatenate([0 * p, 2 * p]) for p in predictions]
        options = {"output": output, "presence": False, "ignore_value": 255 if way == "value" else None}
        ignore = None if way == "value" else [half] * 3
        right = SpatialCorrector(["slab"], **options).fit(predictions, labels)
        corrector = SpatialCorrector(["slab"], **options).fit(predictions, wrong, ignore=ignore)
        assert corrector.bias.mean[0] == pytest.approx(right.bias.mean[0], abs=0.25)
        assert right.bias.mean[0] == pytest.approx(-3, abs=0.1)
        assert corrector.corrections[0].shift == pytest.approx(right.corrections[0].shift, abs=0.25)
        assert corrector.corrections[0].dice_after == pytest.approx(1, abs=0.01)
        if way == "mask":  # else the wrong half would have counted
            counted = SpatialCorrector(["slab"], **options).fit(predictions, wrong)
            assert abs(counted.bias.mean[0] - right.bias.mean[0]) > 1

    def test_object_that_is_wholly_ignored_is_absent(self):
        predictions, labels = off_by(0)
        ignore = [None, None, None, np.ones((1, SIZE, SIZE))]
        corrector = SpatialCorrector(["disc"]).fit(predictions, labels, ignore=ignore)
        assert (corrector.rates[0].num_present, corrector.rates[0].num_absent, corrector.rates[0].num_spurious) == (
            3,
            1,
            0,
        )
        assert corrector.bias.num_skipped.tolist() == [1]

    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_those_of_given_come_back(self, output):
        predictions, labels = off_by(3)
        if output == "softmax":
            predictions = [np.concatenate([0 * p, p]) for p in predictions]
        given = (distance_to(13) >= 0).astype(np.int16)
        given[:, 25:40, 10:30] = 255
        corrector = SpatialCorrector(["disc"], output=output, ignore_value=255).fit(predictions, labels)
        corrected = corrector.transform(predictions[1], given=given)
        assert corrected.dtype == np.int16
        assert np.array_equal(corrected == 255, given == 255)
        without = corrector.transform(predictions[1])
        assert np.array_equal(corrected[given != 255], without[given != 255])


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("channels", ["one", "all"])
def test_trusted_voxels_of_given_come_back(output, channels):
    predictions, labels = off_by(3)
    pairs = [np.concatenate([p, p - 4]) for p in predictions]
    if output == "softmax":
        pairs = [np.concatenate([0 * p[:1], p]) for p in pairs]
        labels = [label.astype(np.uint8) for label in labels]
    else:
        labels = [np.concatenate([m, m]) for m in labels]
    corrector = SpatialCorrector(["a", "b"], output=output, presence=False).fit(pairs, labels)
    given = labels[1].astype(np.uint8)
    trusted = np.zeros((1 if channels == "one" else len(given), SIZE, SIZE))
    trusted[0, 10:50, 20:40] = 1
    corrected = corrector.transform(pairs[0], given=given, trusted=trusted)
    kept = np.broadcast_to(trusted != 0, given.shape)
    assert np.array_equal(corrected[kept], given[kept])
    plain = corrector.transform(pairs[0], given=given)
    assert np.array_equal(corrected[~kept], plain[~kept])
    assert np.any(plain[kept] != given[kept])


def bands(edges, slope=2.0, width=16):
    """Return softmax logits of bands along the first axis: the background, and one class per band."""
    position = np.arange(SIZE)
    inner = [slope * np.minimum(position - low + 0.5, high - position - 0.5) for low, high in edges]
    outside = -slope * np.min([np.abs(position - e + 0.5) for band in edges for e in band], axis=0)
    covered = np.any([i >= 0 for i in inner], axis=0)
    logits = np.stack([np.where(covered, outside, -outside), *inner])
    return np.repeat(logits[:, :, None], width, axis=2)


class TestSoftmax:
    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
    def test_result_is_a_map_of_the_classes_in_the_dtype_of_given(self, dtype):
        predictions, labels = random_cases(np.random.default_rng(6), (22, 18), 3, True)
        corrector = SpatialCorrector(["a", "b", "c"], output="softmax").fit(predictions, labels)
        corrector = compare_given(corrector, predictions, labels)
        assert corrector.transform(predictions[0]).dtype == np.uint8
        for prediction, label in zip(predictions, labels, strict=True):
            corrected = corrector.transform(prediction, given=label.astype(dtype))
            assert corrected.dtype == dtype
            assert corrected.shape == label.shape
            assert set(np.unique(corrected)) <= {0, 1, 2, 3}

    def test_class_without_a_bias_stays_beside_one_that_is_too_large(self):
        predictions = [bands([(6 - 3, 18 + 3), (30, 45 + d)]) for d in range(4)]
        truth = [bands([(6, 18), (30, 45 + d)]).argmax(axis=0)[None] for d in range(4)]
        corrector = SpatialCorrector(["large", "right"], output="softmax").fit(predictions, truth)
        np.testing.assert_allclose(corrector.bias.mean, [-3, 0], atol=0.25)
        for prediction, label in zip(predictions, truth, strict=True):
            assert np.array_equal(corrector.transform(prediction), label)

    @pytest.mark.parametrize("probabilities", [False, True])
    def test_class_that_is_too_large_gives_back_what_it_took_from_another(self, probabilities):
        radii = (11, 12, 13, 14)
        predictions = [np.concatenate([EMPTY * 20, 2 * distance_to(r + 3), -2 * distance_to(r + 3)]) for r in radii]
        if probabilities:
            predictions = [softmax(p) for p in predictions]
        labels = [np.where(disc(r), 1, 2) for r in radii]
        corrector = SpatialCorrector(["disc", "around"], output="softmax", probabilities=probabilities)
        corrector = corrector.fit(predictions, labels)
        np.testing.assert_allclose(corrector.bias.mean, [-3, 3], atol=0.25)
        for prediction, label in zip(predictions, labels, strict=True):
            corrected = corrector.transform(prediction)
            assert set(np.unique(corrected)) == {1, 2}
            assert dice(corrected == 1, label == 1) > 0.96
            assert dice(prediction.argmax(axis=0)[None] == 1, label == 1) < 0.9

    def test_no_correction_is_the_largest_logit_also_where_no_class_has_half_of_the_probability(self):
        rng = np.random.default_rng(0)
        predictions = [np.stack([smooth_noise(rng, (20, 20), 2) for _ in range(5)]) for _ in range(3)]
        labels = [p.argmax(axis=0)[None] for p in predictions]
        assert np.mean([softmax(p).max(axis=0) < 0.5 for p in predictions]) > 0.3
        corrector = SpatialCorrector(list("abcd"), output="softmax").fit(predictions, labels)
        for prediction, label in zip(predictions, labels, strict=True):
            assert np.array_equal(corrector.transform(prediction), label)


class TestProbabilities:
    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_they_give_what_their_logits_give(self, output):
        rng = np.random.default_rng(3)
        predictions, labels = random_cases(rng, (22, 18), 2, output == "softmax")
        to_probabilities = softmax if output == "softmax" else sigmoid
        corrector = SpatialCorrector(["a", "b"], output=output).fit(predictions, labels)
        other = SpatialCorrector(["a", "b"], output=output, probabilities=True)
        other = other.fit([to_probabilities(p.astype(np.float64)) for p in predictions], labels)
        np.testing.assert_allclose(other.bias.mean, corrector.bias.mean, rtol=1e-6)
        for prediction in predictions:
            probabilities = to_probabilities(prediction.astype(np.float64))
            assert np.array_equal(other.transform(probabilities), corrector.transform(prediction))

    def test_half_is_foreground(self):
        prediction = np.where(disc(9), 0.5, 0.2)
        corrector = SpatialCorrector(["disc"], probabilities=True).fit([prediction], [disc(9)])
        assert np.array_equal(corrector.transform(prediction), disc(9))


@pytest.mark.parametrize("representation", ["auto", "distance"])
@pytest.mark.parametrize(("spacing", "cap"), [(None, 2.0), ((0.5, 0.5), 1.0)], ids=["voxels", "mm"])
@pytest.mark.parametrize("k", [-5, 5])
def test_max_shift_caps_the_shift(representation, spacing, cap, k):
    predictions, labels = [bar(t + 2 * k) for t in (20, 22, 24)], [bar(t) >= 0 for t in (20, 22, 24)]
    corrector = SpatialCorrector(["slab"], representation=representation, max_shift=cap)
    corrector = corrector.fit(predictions, labels, spacing=spacing)
    for t, prediction in zip((20, 22, 24), predictions, strict=True):
        expected = bar(t + 2 * k - 2 * int(2 * np.sign(k))) >= 0
        assert np.array_equal(corrector.transform(prediction, spacing=spacing), expected)


def test_report_says_what_is_moved_not_what_was_found():
    clean, given = [disc(r) for r in (9, 10, 11, 12)], [disc(r + 5) for r in (9, 10, 11, 12)]
    predictions = [np.where(label, 4.0, -4.0) for label in given]
    corrector = SpatialCorrector(["disc"], representation="distance", max_shift=1.0)
    corrector = corrector.fit(predictions, clean, given=given, spacing=(0.5, 0.5))
    told = corrector.report()["classes"]["disc"]
    assert told["correction"]["shift"] == told["move"]["shift"] == -1.0
    assert told["bias"] == pytest.approx(-2.5, abs=0.2)


def test_max_shift_of_0_moves_nothing():
    predictions, labels = off_by(3)
    corrector = SpatialCorrector(["disc"], max_shift=0).fit(predictions, labels)
    assert all(np.array_equal(corrector.transform(p), p >= 0) for p in predictions)


class TestGroups:
    def fitted(self, first, second):
        radii = (12, 13, 14, 15)
        predictions = [distance_to(r + k) for k in (first, second) for r in radii]
        labels = [disc(r) for r in radii] * 2
        groups = ["ann"] * 4 + ["ben"] * 4
        return SpatialCorrector(["disc"]).fit(predictions, labels, groups=groups), predictions, labels, groups

    @pytest.mark.parametrize(("first", "second"), [(5, 3), (5, 1), (-4, -2), (3, -3)])
    def test_each_gets_its_own_shift(self, first, second):
        corrector, predictions, labels, groups = self.fitted(first, second)
        for prediction, label, group in zip(predictions, labels, groups, strict=True):
            assert dice(corrector.transform(prediction, group=group) == 1, label) > 0.95

    def test_one_that_fit_did_not_see_gets_the_common_shift(self):
        corrector, predictions, _, _ = self.fitted(5, 3)
        common = corrector.transform(predictions[0])
        assert np.array_equal(corrector.transform(predictions[0], group="cleo"), common)
        assert not np.array_equal(corrector.transform(predictions[0], group="ann"), common)


def with_false_objects(number=8):
    """Return predictions that find each disc, and a weak small one in each case that has none, and their labels."""
    rng = np.random.default_rng(0)
    predictions, labels = [], []
    for index in range(number):
        if index % 2:
            radius = 4 + rng.uniform(0, 1)
            predictions.append(np.where(disc(radius), 0.3, -3.0))
            labels.append(disc(-1))
        else:
            radius = 11 + rng.uniform(0, 2)
            predictions.append(np.clip(2 * distance_to(radius), -6, 6))
            labels.append(disc(radius))
    return predictions, labels


class TestPresence:
    def test_class_is_dropped_where_it_is_absent_and_kept_where_it_is_present(self):
        predictions, labels = with_false_objects()
        corrector = SpatialCorrector(["disc"]).fit(predictions, labels)
        assert corrector.rules[0] is not None
        assert (corrector.rates[0].num_spurious, corrector.rates[0].num_absent) == (4, 4)
        assert (corrector.rates[0].num_missed, corrector.rates[0].num_present) == (0, 4)
        for prediction, label in zip(predictions, labels, strict=True):
            assert np.array_equal(corrector.transform(prediction), label)
        assert corrector.transform(np.where(disc(4.3), 0.3, -3.0)).sum() == 0
        assert np.array_equal(corrector.transform(2 * distance_to(12)), disc(12))

    def test_softmax_gives_the_place_of_a_dropped_class_to_the_next(self):
        predictions, labels = with_false_objects()
        exclusive = [np.concatenate([0 * p, p]) for p in predictions]
        corrector = SpatialCorrector(["disc"], output="softmax").fit(exclusive, [m.astype(int) for m in labels])
        assert corrector.rules[0] is not None
        for prediction, label in zip(exclusive, labels, strict=True):
            assert np.array_equal(corrector.transform(prediction), label)

    def test_what_was_drawn_is_not_dropped(self):
        predictions, labels = with_false_objects()
        corrector = compare_given(SpatialCorrector(["disc"]).fit(predictions, labels), predictions[::2], labels[::2])
        drawn = disc(5).astype(np.uint8)
        assert corrector.transform(predictions[1]).sum() == 0
        assert dice(corrector.transform(predictions[1], given=drawn) == 1, drawn == 1) > 0.8

    def test_no_rule_where_it_was_not_asked_for(self):
        predictions, labels = with_false_objects()
        corrector = SpatialCorrector(["disc"], presence=False).fit(predictions, labels)
        assert corrector.rules == [None]
        assert corrector.transform(predictions[1]).any()
        assert corrector.rates[0].num_spurious == 4


def bumped(radius):
    mask = disc(radius)
    mask[0, 10:24, 26:38] = True
    return mask


class TestGivenLabels:
    @pytest.mark.parametrize("weight", [0.5, 1.0])
    def test_shape_is_kept_that_the_prediction_lacks_and_the_offset_is_removed(self, weight):
        radii = (10, 11, 12, 13)
        predictions, labels = off_by(3, radii)  # of a network that has learnt dilated labels
        given = [shift_boundary(bumped(r), 3).astype(np.uint8) for r in radii]
        corrector = SpatialCorrector(["disc"], shape_weight=weight).fit(predictions, labels)
        corrector = compare_given(corrector, predictions, [shift_boundary(m, 3) for m in labels])
        assert corrector.shapes[0].offset == pytest.approx(-3, abs=0.5)
        for r, prediction, drawn in zip(radii, predictions, given, strict=True):
            truth, bump = bumped(r), bumped(r) & ~disc(r)
            corrected = corrector.transform(prediction, given=drawn) == 1
            alone = corrector.transform(prediction) == 1
            assert not (alone & bump).sum() > 0.2 * bump.sum()
            assert (corrected & bump).sum() > (0.8 if weight == 1 else 0.2) * bump.sum()
            assert dice(corrected, truth) > max(
                dice(alone, truth), dice(drawn == 1, truth), dice(prediction >= 0, truth)
            )
            assert (corrected & ~shift_boundary(truth, 1.5)).sum() == 0

    def test_error_of_the_prediction_is_not_taken_for_that_of_the_label(self):
        steps = [-2, -1, 0, 1, 2, -1, 1]
        radii = [12 + i / 2 for i in range(len(steps))]
        predictions, labels = [distance_to(r + s) for r, s in zip(radii, steps, strict=True)], [disc(r) for r in radii]
        corrector = compare_given(SpatialCorrector(["disc"]).fit(predictions, labels), predictions, labels)
        assert corrector.shapes[0].own < 0.2
        assert corrector.shapes[0].num_cases == len(steps)
        for prediction, label in zip(predictions, labels, strict=True):
            corrected = corrector.transform(prediction, given=label) == 1
            assert dice(corrected, label) >= dice(prediction >= 0, label)

    @pytest.mark.parametrize("k", [-3, 3])
    def test_missed_object_comes_back_as_the_given_one_moved_by_the_offset(self, k):
        predictions, labels = off_by(0)
        given = [disc(r + k) for r in (9, 10, 11, 12)]
        corrector = compare_given(
            SpatialCorrector(["disc"], presence=False).fit(predictions, labels), predictions, given
        )
        corrected = corrector.transform(EMPTY, given=given[1]) == 1
        assert dice(corrected, labels[1]) > 0.95 > dice(given[1], labels[1])

    @pytest.mark.parametrize("options", [{"shape_weight": 0}, {}], ids=["no-weight", "not-learnt"])
    def test_without_weight_or_what_was_learnt_the_prediction_alone_counts(self, options):
        predictions, labels = off_by(3)
        corrector = SpatialCorrector(["disc"], **options).fit(predictions, labels)
        if options:
            corrector = compare_given(corrector, predictions, [bumped(r) for r in (9, 10, 11, 12)])
        for prediction in predictions:
            assert np.array_equal(corrector.transform(prediction, given=bumped(14)), corrector.transform(prediction))


@functools.cache
def fully_fitted(output="sigmoid"):
    """Return a corrector that has learnt all that there is, its predictions, and given labels."""
    predictions, labels = with_false_objects(12)
    predictions = [np.concatenate([p, distance_to(12 + 3)]) for p in predictions]
    labels = [np.concatenate([m, disc(12)]) for m in labels]
    if output == "softmax":
        predictions = [np.concatenate([0 * p[:1], p]) for p in predictions]
        labels = [np.where(m[:1], 1, np.where(m[1:], 2, 0)) for m in labels]
    groups = ["ann"] * 6 + ["ben"] * 6
    corrector = SpatialCorrector(["sometimes", "always"], output=output).fit(predictions, labels, groups=groups)
    return compare_given(corrector, predictions, labels), predictions, labels


class TestStateAndReport:
    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_file_gives_back_what_was_fitted(self, output, tmp_path):
        corrector, predictions, labels = fully_fitted(output)
        corrector.save(tmp_path / "fitted.json")
        other = Fitted.load(tmp_path / "fitted.json")
        with pytest.raises(FileNotFoundError):
            Fitted.load(tmp_path / "other.json")
        for prediction, label in zip(predictions, labels, strict=True):
            for options in ({}, {"group": "ann"}, {"given": label}, {"given": label, "group": "ben"}):
                assert np.array_equal(
                    other.transform(prediction, **options), corrector.transform(prediction, **options)
                )
        assert other.report() == corrector.report()
        assert json.dumps(other.to_dict()) == json.dumps(corrector.to_dict())

    @pytest.mark.parametrize(
        "change",
        [
            lambda content: content.pop("unit"),
            lambda content: content["options"].update(colour="red"),
            lambda content: content["fits"][0].update(colour="red"),
            lambda content: content["fits"][0].update(network=3),
            lambda content: content["options"].update(gamma=7),
            lambda content: content.update(options=[]),
        ],
        ids=["key", "option", "fit", "type", "value", "list"],
    )
    def test_other_content_is_refused(self, change, tmp_path):
        fitted, *_ = fully_fitted()
        content = json.loads(json.dumps(fitted.to_dict()))
        change(content)
        with pytest.raises(ValueError, match=r"Fitted\.to_dict\(\) returned, got something else|^gamma must be in"):
            Fitted.from_dict(content)
        for text in (json.dumps(content), "[1]", "{"):
            (tmp_path / "fitted.json").write_text(text)
            with pytest.raises(ValueError, match=r"fitted\.json must hold a correction that Fitted\.save wrote: "):
                Fitted.load(tmp_path / "fitted.json")

    def test_nothing_changes_what_was_fitted(self):
        fitted, predictions, labels = fully_fitted()
        before = json.dumps(fitted.to_dict())
        fitted.correct(predictions[0], given=labels[0], group="ann")
        fitted.report()
        compare_given(fitted, predictions, labels)
        again = fitted.in_unit(0.5)
        assert json.dumps(fitted.to_dict()) == before
        with pytest.raises(FrozenInstanceError):
            fitted.unit = 2.0
        with pytest.raises(FrozenInstanceError):
            fitted.options.gamma = 0.5
        with pytest.raises(FrozenInstanceError):
            SpatialCorrector(["disc"]).max_shift = 1.0
        assert again.fits == fitted.fits

    def test_other_unit_tells_the_same_lengths(self):
        predictions, labels = off_by(3)
        fitted = SpatialCorrector(["disc"], max_shift=2.0, tolerance=1.0).fit(predictions, labels)
        again = fitted.in_unit(0.5).in_unit(4.0)
        assert (again.unit, again.options.max_shift, again.options.tolerance) == (2.0, 4.0, 2.0)
        assert again.corrections[0].shift == 2 * fitted.corrections[0].shift == -4.0
        np.testing.assert_array_equal(again.bias.mean, 2 * fitted.bias.mean)
        assert np.array_equal(again.transform(predictions[0], spacing=(2.0, 2.0)), fitted.transform(predictions[0]))

    def test_report_is_json_without_nan(self):
        corrector, *_ = fully_fitted()
        report = json.loads(json.dumps(corrector.report(), allow_nan=False))
        assert report["clean_cases"] == 12
        assert list(report["classes"]) == ["sometimes", "always"]
        always = report["classes"]["always"]
        assert always["bias"] == pytest.approx(-3, abs=0.25)
        assert always["verdict"] == "biased"
        assert (always["cases_used"], always["cases_skipped"]) == (12, 0)
        assert always["existence"]["spurious_interval"] == [None, None]
        assert report["classes"]["sometimes"]["existence"]["rule"] is not None
        assert report["classes"]["sometimes"]["existence"]["spurious"] == [6, 6]
        assert always["given_labels"]["num_cases"] == 12

    @pytest.mark.parametrize("number", [1, 2])
    def test_report_of_few_cases_and_of_a_class_that_is_never_there_is_json_without_nan(self, number):
        predictions, labels = off_by(3)
        corrector = SpatialCorrector(["disc", "never"]).fit(
            [np.concatenate([p, EMPTY]) for p in predictions[:number]],
            [np.concatenate([m, m & False]) for m in labels[:number]],
        )
        other = Fitted.from_dict(json.loads(json.dumps(corrector.to_dict(), allow_nan=False)))
        np.testing.assert_array_equal(other.bias.mean, corrector.bias.mean)
        for _ in range(2):
            report = json.loads(json.dumps(corrector.report(), allow_nan=False))
            assert report["classes"]["never"]["bias"] is None
            assert report["classes"]["never"]["verdict"] == "cannot tell"
            corrector = compare_given(
                corrector, [np.concatenate([predictions[0], EMPTY])], [np.concatenate([labels[0], labels[0]])]
            )


class TestKindsOfArray:
    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_any_kind_is_taken_and_not_written_to(self, as_kind, output):
        _, predictions, labels = fully_fitted(output)
        labels = [label.astype(np.uint8) for label in labels]
        given, trusted = labels[0], np.zeros((1, SIZE, SIZE), dtype=np.uint8)
        trusted[:, :20] = 1
        results = []
        for kind in (np.copy, as_kind):
            copies = [[kind(a) for a in arrays] for arrays in (predictions, labels, [given, trusted])]
            corrector = SpatialCorrector(["sometimes", "always"], output=output).fit(*copies[:2])
            corrector = compare_given(corrector, *copies[:2])
            results.append(corrector.transform(copies[0][0], given=copies[2][0], trusted=copies[2][1]))
            assert isinstance(results[-1], np.ndarray)
            for arrays, originals in zip(copies, (predictions, labels, [given, trusted]), strict=True):
                assert all(np.array_equal(np.asarray(a), o) for a, o in zip(arrays, originals, strict=True))
        assert np.array_equal(*results)
        assert results[0].dtype == np.uint8

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision_is_taken(self, dtype):
        predictions, labels = off_by(3)
        tensors = [torch.from_numpy(p).to(dtype) for p in predictions]
        corrector = SpatialCorrector(["disc"]).fit(tensors, labels)
        assert dice(corrector.transform(tensors[0]) == 1, labels[0]) > 0.94


ONE = ([distance_to(9)], [disc(9)])
TWO = tuple(column * 2 for column in ONE)
NAN = np.where(disc(2), math.nan, distance_to(9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": "disc"}, r"^class_names must be a list of at least one name, got 'disc'\.$"),
        ({"class_names": []}, r"^class_names must be a list of at least one name, got \[\]\.$"),
        ({"class_names": ["a", "a"]}, r"^class_names must differ from each other, got \['a', 'a'\]\.$"),
        ({"output": "tanh"}, r"^output must be one of 'sigmoid', 'softmax', got 'tanh'"),
        ({"representation": "best"}, r"^representation must be one of 'auto', 'distance', 'logit', got 'best'"),
        ({"metric": "l1"}, r"^metric must be one of 'euclidean', 'taxicab', got 'l1'"),
        ({"region": "rim"}, r"^region must be one of 'boundary', 'image', got 'rim'"),
        ({"gamma": 0}, r"^gamma must be in \(0, 1\], got 0\.$"),
        ({"gamma": 1.5}, r"^gamma must be in \(0, 1\], got 1.5\.$"),
        ({"shape_weight": -0.1}, r"^shape_weight must be in \[0, 1\], got -0.1\.$"),
        ({"shape_weight": 2}, r"^shape_weight must be in \[0, 1\], got 2\.$"),
        ({"max_shift": -1}, r"^max_shift must be at least 0 or None, got -1\.$"),
        ({"max_shift": math.nan}, r"^max_shift must be at least 0 .*, got nan"),
        ({"tolerance": -1}, r"^tolerance must be at least 0, got -1\.$"),
        ({"ignore_value": 1}, r"^ignore_value must not be the value of a class, got 1\.$"),
        (
            {"class_names": ["a", "b"], "ignore_value": 2, "output": "softmax"},
            r"^ignore_value must not be .*, got 2\.$",
        ),
    ],
    ids=str,
)
def test_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SpatialCorrector(**{"class_names": ["a"], **options})


@pytest.mark.parametrize(
    ("predictions", "labels", "options", "message"),
    [
        (iter(ONE[0]), ONE[1], {}, r"^predictions must be a list .*, got an iterator"),
        (ONE[0], (m for m in ONE[1]), {}, r"^labels must be a list .*, got an iterator"),
        ([], [], {}, r"^labels must hold at least one clean case, got none"),
        (ONE[0], TWO[1], {}, r"of the same cases, got more labels than predictions"),
        (TWO[0], ONE[1], {}, r"same cases, got more predictions than labels"),
        (
            [np.concatenate(TWO[0])],
            ONE[1],
            {},
            r"^A prediction must have 1 channels, one per class of \['disc'\], got 2",
        ),
        ([np.zeros(5)], ONE[1], {}, r"^A prediction must have the shape \(channels, \*spatial\), got"),
        (ONE[0], [ONE[1][0] * 2], {}, r"^label must hold the values 0 to 1 only, got 2;"),
        (ONE[0], [ONE[1][0] * 0.5], {}, r"^label must hold the values 0 to 1 only, got 0.5;"),
        (ONE[0], [np.concatenate(TWO[1])], {}, r"^label must have the shape \(1, \*spatial\)"),
        (ONE[0], [ONE[1][0][:, :-1]], {}, r"^prediction .* and label must have the same shape, got"),
        ([NAN], ONE[1], {}, r"^A prediction must be finite, got nan or infinite"),
        ([EMPTY], ONE[1], {}, r"at least one usable case, but in all 1 "),
        (*ONE, {"spacing": (1, 1, 1)}, r"^spacing must be 2 positive numbers"),
        (*ONE, {"groups": ["a", "b"]}, r"^predictions and groups must be of the same cases, got more groups"),
        (*TWO, {"spacing": [(1, 1)]}, r"spacing"),
        (*TWO, {"ignore": [None]}, r"ignore"),
        (*ONE, {"ignore": iter([None])}, r"ignore"),
        (*ONE, {"ignore": [np.ones((1, 2, 3))]}, r"^ignore must have the shape of the label"),
    ],
)
def test_clean_cases_that_do_not_fit_are_refused(predictions, labels, options, message):
    with pytest.raises(ValueError, match=message):
        SpatialCorrector(["disc"]).fit(predictions, labels, **options)


@pytest.mark.parametrize(
    ("own", "predictions", "options", "message"),
    [
        ({"output": "softmax"}, ONE[0], {}, r"must have 2 channels, the background and one per class .*, got 1\.$"),
        ({"probabilities": True}, [NAN], {}, r"^probabilities must be in \[0, 1\]"),
        ({"probabilities": True}, ONE[0], {}, r"^probabilities must be in \[0, 1\]"),
        ({"metric": "taxicab"}, ONE[0], {"spacing": (1, 2)}, r"^The taxicab metric needs voxels with"),
    ],
)
def test_clean_cases_that_do_not_fit_the_options_are_refused(own, predictions, options, message):
    with pytest.raises(ValueError, match=message):
        SpatialCorrector(["disc"], **own).fit(predictions, ONE[1], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trusted": ONE[1][0]}, r"^trusted needs given, whose voxels it protects"),
        (
            {"given": ONE[1][0], "trusted": ONE[1][0][:, 1:]},
            r"^trusted must have the shape of given, \(1, 64, 64\), or one channel of it, got \(1, 63, 64\)\.$",
        ),
        ({"given": ONE[1][0], "trusted": np.ones((2, SIZE, SIZE))}, r"^trusted must have the shape of given"),
        ({"given": ONE[1][0][:, 1:]}, r"^prediction and given must have the same shape, got .* and \(1, 63, 64\)\.$"),
        ({"given": ONE[1][0] * 3}, r"^given must hold the values 0 to 1 only, got 3;"),
        ({"given": np.ones((2, SIZE, SIZE))}, r"^given must have the shape \(1, \*spatial\)"),
        ({"spacing": (1,)}, r"^spacing must be 2 positive numbers"),
    ],
)
def test_case_that_does_not_fit_is_refused(options, message):
    fitted = SpatialCorrector(["disc"]).fit(*ONE)
    with pytest.raises(ValueError, match=message):
        fitted.transform(ONE[0][0], **options)


def test_scores_are_the_signed_distance_in_the_unit_of_the_spacing():
    predictions, labels = [bar(t + 6) for t in (20, 22, 24)], [bar(t) >= 0 for t in (20, 22, 24)]
    corrector = SpatialCorrector(["slab"]).fit(predictions, labels, spacing=(0.5, 2))
    scores = corrector.scores(predictions[0], spacing=(0.5, 2))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, (0.5 * bar(20)).clip(-5), atol=1e-4)  # ten voxels away it is no more than that
    diagonal = SIZE * math.hypot(0.5, 2)
    np.testing.assert_allclose(corrector.scores(EMPTY, spacing=(0.5, 2)), -diagonal, rtol=1e-6)
    np.testing.assert_allclose(corrector.scores(-EMPTY, spacing=(0.5, 2)), diagonal, rtol=1e-6)


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_labels_that_would_not_gain_stay(output):
    rng = np.random.default_rng(0)
    labels = [disc(12 + k) for k in range(4)]
    rough = [np.where(rng.random(label.shape) < 0.02, -1, 1) * np.where(label, 1.0, -1.0) for label in labels]
    if output == "softmax":
        rough = [np.concatenate([np.zeros_like(r), r]) for r in rough]
    corrector = compare_given(SpatialCorrector(["disc"], output=output).fit(rough, labels), rough, labels)
    assert corrector.fits[0].source == "keep"
    for prediction, label in zip(rough, labels, strict=True):
        given = np.roll(label, 1, axis=1)
        assert np.array_equal(corrector.transform(prediction, given=given) == 1, given == 1)
