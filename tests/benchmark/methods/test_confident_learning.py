import numpy as np
import pytest
import torch
from cleanlab.count import compute_confident_joint, estimate_joint, get_confident_thresholds
from cleanlab.filter import find_label_issues
from monai.data import MetaTensor

from monai_sc.benchmark.methods import ConfidentLearning


def two(foreground):
    """Return the probabilities of one group of two classes."""
    foreground = np.asarray(foreground, dtype=np.float64)
    return np.stack([1 - foreground, foreground])[None]


def learn(cases, *, prune="both"):
    cases = list(cases)
    learning = ConfidentLearning(*cases[0][0].shape[:2], prune=prune)
    for case in cases:
        learning.add(*case)
    for case in cases:
        learning.add_confident(*case)
    return learning


def voxels(seed, number, classes, noise=0.2):
    """Return probabilities ``(1, classes, number)`` around a true class, and a label that is often another one.

    No two voxels of a label have scores in one bin, if there are two classes.
    """
    state = np.random.RandomState(seed)
    true = state.randint(classes, size=number)
    label = np.where(state.rand(number) < noise, (true + state.randint(1, classes, size=number)) % classes, true)
    if classes == 2:
        # Distinct logits, a bin (1/256) and more apart, mostly with the sign of the true class.
        steps = np.sort(np.abs(state.normal(scale=3, size=number))) + np.arange(number) / 200
        sign = np.where(state.rand(number) < 0.95, 1, -1) * np.where(true, 1, -1)
        logits = sign * state.permutation(steps)
        return two(1 / (1 + np.exp(-logits))), label[None]
    logits = state.normal(size=(classes, number)) + 3 * np.eye(classes)[:, true]
    return (np.exp(logits) / np.exp(logits).sum(axis=0))[None], label[None]


def oracle(p, y, prune):
    """Confident learning of one group, voxel by voxel, as it is defined."""
    number, classes = p.shape[1], len(p)
    thresholds = [np.mean([p[j, i] for i in range(number) if y[i] == j]) for j in range(classes)]
    counts = np.zeros((classes, classes))
    for i in range(number):
        confident = [b for b in range(classes) if p[b, i] >= thresholds[b]]
        if confident:
            counts[y[i], max(confident, key=lambda b: p[b, i])] += 1
    expected = np.array([row / row.sum() * np.sum(y == a) for a, row in enumerate(counts)])
    by_class, by_rate = set(), set()
    for a in range(classes):
        own = [i for i in range(number) if y[i] == a]
        by_class |= set(sorted(own, key=lambda i: p[a, i])[: len(own) - round(expected[a, a])])
        for b in set(range(classes)) - {a}:
            by_rate |= set(sorted(own, key=lambda i: p[a, i] - p[b, i])[: round(expected[a, b])])
    chosen = {"both": by_class & by_rate, "class": by_class, "noise_rate": by_rate}[prune]
    flagged = [i in chosen and p[:, i].argmax() != y[i] for i in range(number)]
    return np.array(thresholds), counts, expected, np.array(flagged)


THREE = np.array(
    [
        [0.8, 0.6, 0.1, 0.4, 0.2, 0.1, 0.1, 0.3],
        [0.1, 0.3, 0.8, 0.3, 0.7, 0.8, 0.1, 0.1],
        [0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.8, 0.6],
    ]
)[None]
CASES = [
    # Three voxels of each label are confident of it, and one of the other class.
    pytest.param(
        two([0.1, 0.3, 0.4, 0.9, 0.8, 0.7, 0.6, 0.05]),
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0.575, 0.5375],
        [[3, 1], [1, 3]],
        [0, 0, 0, 1, 0, 0, 0, 1],
        id="one-voxel-of-each-class",
    ),
    pytest.param(
        two([0.1, 0.2, 0.2, 0.8, 0.9, 0.8]),
        [0, 0, 0, 1, 1, 1],
        [2.5 / 3, 2.5 / 3],
        [[1, 0], [0, 1]],
        [0] * 6,
        id="labels-that-are-right-stay",
    ),
    # All labels 0 but .9 have p_0 >= .5375, and .85 is the threshold of class 1.
    pytest.param(
        two([0.1, 0.4, 0.45, 0.9, 0.85, 0.85]),
        [0, 0, 0, 0, 1, 1],
        [0.5375, 0.85],
        [[3, 1], [0, 2]],
        [0, 0, 0, 1, 0, 0],
        id="threshold-is-reached-by-equal-probabilities",
    ),
    # Of the labels 0 the first two are confident 0, the third 1, and the fourth of nothing.
    pytest.param(
        THREE,
        [0, 0, 0, 0, 1, 1, 2, 2],
        [0.475, 0.75, 0.7],
        [[2, 1, 0], [0, 1, 0], [0, 0, 1]],
        [0, 0, 1, 0, 0, 0, 0, 0],
        id="three-classes",
    ),
    pytest.param(two([0.1, 0.2, 0.9]), [0, 0, 0], [0.6, np.inf], [[2, 0], [0, 0]], [0] * 3, id="class-without-a-label"),
]


@pytest.mark.parametrize(("probabilities", "label", "thresholds", "counts", "flagged"), CASES)
def test_voxels_are_flagged_as_worked_out_by_hand(probabilities, label, thresholds, counts, flagged):
    label = np.array([label])
    learning = learn([(probabilities, label)])
    np.testing.assert_allclose(learning.thresholds, [thresholds], atol=1e-8)
    assert learning.confident_counts.tolist() == [counts]
    assert learning.flagged(probabilities, label).tolist() == [[bool(f) for f in flagged]]


def test_rows_of_the_joint_are_scaled_to_the_labels():
    label = np.array([[0, 0, 0, 0, 1, 1, 2, 2]])
    learning = learn([(THREE, label)])
    np.testing.assert_allclose(learning.expected[0], [[8 / 3, 4 / 3, 0], [0, 2, 0], [0, 0, 2]])
    np.testing.assert_allclose(learning.joint[0], learning.expected[0] / 8)


def test_confident_class_is_the_most_probable_of_those_that_reach_their_threshold():
    # The most probable class of the last voxel, 0, does not reach its threshold; cleanlab counts it so.
    p = np.array([[0.9, 0.1, 0.1, 0.38], [0.05, 0.32, 0.6, 0.32], [0.05, 0.58, 0.3, 0.3]])[None]
    label = np.array([[0, 1, 2, 1]])
    learning = learn([(p, label)])
    np.testing.assert_allclose(learning.thresholds, [[0.9, 0.32, 0.3]])
    assert learning.confident_counts.tolist() == [[[1, 0, 0], [0, 1, 1], [0, 1, 0]]]
    assert compute_confident_joint(label[0], p[0].T, calibrate=False)[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("prune", ["both", "class", "noise_rate"])
@pytest.mark.parametrize("seed", range(3))
def test_two_classes_are_those_of_the_definition_and_of_cleanlab(prune, seed):
    p, label = voxels(seed, 600, 2)
    learning = learn([(p, label)], prune=prune)
    thresholds, counts, expected, flagged = oracle(p[0], label[0], prune)
    np.testing.assert_allclose(learning.thresholds[0], thresholds, atol=1e-8)
    np.testing.assert_array_equal(learning.confident_counts[0], counts)
    np.testing.assert_allclose(learning.expected[0], expected)
    np.testing.assert_array_equal(learning.flagged(p, label)[0], flagged)
    assert flagged.sum() > 30
    name = {"both": "both", "class": "prune_by_class", "noise_rate": "prune_by_noise_rate"}[prune]
    np.testing.assert_array_equal(flagged, find_label_issues(label[0], p[0].T, filter_by=name, n_jobs=1))


@pytest.mark.parametrize("prune", ["both", "class", "noise_rate"])
@pytest.mark.parametrize("classes", [3, 5])
def test_more_classes_are_those_of_the_definition_up_to_a_bin(prune, classes):
    p, label = voxels(classes, 1500, classes)
    learning = learn([(p, label)], prune=prune)
    thresholds, counts, expected, flagged = oracle(p[0], label[0], prune)
    np.testing.assert_allclose(learning.thresholds[0], thresholds, atol=1e-8)
    np.testing.assert_array_equal(learning.confident_counts[0], counts)
    np.testing.assert_allclose(learning.expected[0], expected)
    own = learning.flagged(p, label)[0]
    assert not (flagged & ~own).any()
    assert flagged.sum() > 100
    # Each cell ends in one bin, in which further voxels may lie.
    assert (own & ~flagged).sum() <= classes**2
    # cleanlab rounds the numbers of a row so that their sum stays, ours each to the nearest.
    name = {"both": "both", "class": "prune_by_class", "noise_rate": "prune_by_noise_rate"}[prune]
    issues = find_label_issues(label[0], p[0].T, filter_by=name, n_jobs=1)
    assert (issues != own).sum() <= 2 * classes**2


@pytest.mark.parametrize("classes", [2, 3])
def test_thresholds_and_joint_are_those_of_cleanlab(classes):
    p, label = voxels(7, 3000, classes)
    learning = learn([(p, label)])
    np.testing.assert_allclose(learning.thresholds[0], get_confident_thresholds(label[0], p[0].T), atol=1e-8)
    # cleanlab rounds the joint to whole voxels.
    np.testing.assert_allclose(learning.joint[0], estimate_joint(label[0], p[0].T), atol=1 / 3000)


@pytest.mark.parametrize("parts", [1, 2, 7, 400])
@pytest.mark.parametrize("classes", [2, 4])
def test_parts_and_order_of_the_voxels_make_no_difference(classes, parts):
    p, label = voxels(1, 400, classes)
    whole = learn([(p, label)])
    order = np.array_split(np.random.RandomState(0).permutation(400), parts)
    split = learn([(p[..., own], label[..., own]) for own in order])
    np.testing.assert_array_equal(split.thresholds, whole.thresholds)
    np.testing.assert_array_equal(split.joint, whole.joint)
    flags = np.zeros((1, 400), dtype=bool)
    for own in order:
        flags[..., own] = split.flagged(p[..., own], label[..., own])
    np.testing.assert_array_equal(flags, whole.flagged(p, label))


def test_processes_share_their_counts():
    p, label = voxels(2, 500, 3)
    whole = learn([(p, label)])
    halves = [(p[..., :200], label[..., :200]), (p[..., 200:], label[..., 200:])]
    processes = [ConfidentLearning(1, 3) for _ in halves]

    def share(confident):
        given = [[], []]
        for process, own in zip(processes, given, strict=True):
            process.share(lambda value, own=own: own.append(value) or [value], confident=confident)
        for process in processes:
            values = iter(zip(*given, strict=True))
            process.share(lambda _, values=values: list(next(values)), confident=confident)

    for process, half in zip(processes, halves, strict=True):
        process.add(*half)
    share(False)
    for process, half in zip(processes, halves, strict=True):
        process.add_confident(*half)
    share(True)
    for process in processes:
        np.testing.assert_array_equal(process.joint, whole.joint)
        np.testing.assert_array_equal(process.flagged(p, label), whole.flagged(p, label))


@pytest.mark.parametrize("shape", [(20, 15), (10, 6, 5)], ids=["2d", "3d"])
@pytest.mark.parametrize("kind", [np.copy, torch.from_numpy, lambda a: MetaTensor(torch.from_numpy(a))])
def test_groups_are_independent_and_shapes_are_free(shape, kind):
    first, second = voxels(3, 300, 2), voxels(4, 300, 2, noise=0.05)
    p = np.concatenate([first[0], second[0]]).reshape(2, 2, *shape)
    label = np.concatenate([first[1], second[1]]).reshape(2, *shape)
    before = p.copy(), label.copy()
    learning = learn([(kind(p), kind(label))])
    flags = learning.flagged(kind(p), kind(label))
    for g, own in enumerate((first, second)):
        alone = learn([own])
        np.testing.assert_array_equal(learning.joint[g], alone.joint[0])
        np.testing.assert_array_equal(flags[g].ravel(), alone.flagged(*own)[0])
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(label, before[1])


def test_saturated_probabilities_stay_apart():
    # In single precision 1 - p is 0 for half of them; the least probable label is found all the same.
    logits = torch.cat([torch.linspace(-30, -20, 50), torch.linspace(18, 28, 10)])
    p = torch.stack([-logits, logits]).double().sigmoid().float()[None]
    label = torch.zeros(1, 60, dtype=torch.long)
    learning = ConfidentLearning(1, 2)
    learning.add(p, label)
    learning.confident_counts[0] = [[57, 3], [0, 1]]
    assert np.flatnonzero(learning.flagged(p, label)[0]).tolist() == [57, 58, 59]


def test_half_precision_is_enough_for_probabilities_of_0_and_1():
    p = np.array([[[1, 1, 0, 1], [0, 0, 1, 0]]], dtype=np.float16)
    label = np.array([[0, 0, 0, 1]])
    learning = learn([(p, label)])
    assert learning.flagged(p, label).tolist() == learn([(p.astype(np.float64), label)]).flagged(p, label).tolist()


def test_noise_rate_and_wrong_labels_are_found():
    p, label = voxels(5, 20000, 3, noise=0.0)
    p = p**4 / (p**4).sum(axis=1, keepdims=True)  # a network that is mostly right, and sure
    state = np.random.RandomState(0)
    noisy = label.copy()
    wrong = (label == 1) & (state.rand(*label.shape) < 0.3)
    noisy[wrong] = 2
    learning = learn([(p, noisy)])
    assert learning.joint[0, 2, 1] == pytest.approx(wrong.mean(), abs=0.015)
    assert learning.joint[0, 1, 2] < 0.02
    flagged = learning.flagged(p, noisy)
    assert flagged[wrong].mean() > 0.9
    assert wrong[flagged].mean() > 0.75


P, Y = voxels(0, 10, 2)
ERRORS = [
    pytest.param(lambda: ConfidentLearning(0, 2), r"num_groups must be at least 1, .* got 0 and 2\.$", id="groups"),
    pytest.param(lambda: ConfidentLearning(1, 1), r"num_classes at least 2 .* got 1 and 1\.$", id="classes"),
    pytest.param(
        lambda: ConfidentLearning(1, 2, prune="all"),
        r"^prune must be one of 'both', 'class', 'noise_rate', got 'all'\.$",
        id="prune",
    ),
    pytest.param(
        lambda: ConfidentLearning(2, 2).add(P, Y), r"with 2 groups and 2 classes, got \(1, 2, 10\)", id="form"
    ),
    pytest.param(lambda: ConfidentLearning(1, 2).add(P, Y[:, :9]), r"got \(1, 2, 10\) and \(1, 9\)\.$", id="shape"),
    pytest.param(lambda: ConfidentLearning(1, 2).add(P * 3, Y), r"in \[0, 1\], got others; apply a", id="logits"),
    pytest.param(lambda: ConfidentLearning(1, 2).add(P * np.nan, Y), r"must be in \[0, 1\]", id="nan"),
    pytest.param(lambda: ConfidentLearning(1, 2).add(P, Y + 1), r"from 0 to 1 only, got \[1 2\]\.$", id="label"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
