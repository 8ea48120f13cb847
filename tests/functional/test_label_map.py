from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from monai_sc.functional import markov_label_noise, merge_masks, split_label_map

NOISE = {"num_steps": 6, "expansion_prob": 0.6, "march_prob": 0.4, "flip_prob": 0.01}
NEAREST, PRIORITY = "nearest", "priority"
# the map before, the classes, the mask of each, the map after with each rule
CASES = [
    pytest.param("0011100", [1], ["0111110"], "0111110", "0111110", id="grows-into-the-background"),
    pytest.param("0011100", [1], ["0001000"], "0001000", "0001000", id="leaves-background-behind"),
    pytest.param("0077100", [1], ["0111110"], "0177110", "0177110", id="other-values-are-walls"),
    pytest.param("7711177", [1], ["0001000"], "7711177", "7711177", id="nothing-to-leave-behind"),
    pytest.param("11112222", [1, 2], ["11000000", "00001111"], "11122222", "11112222", id="withdraws-from-a-class"),
    pytest.param(
        "11112222", [2, 1], ["00001111", "11000000"], "11122222", "11222222", id="withdraws-from-a-first-class"
    ),
    pytest.param("11112222", [1, 2], ["11000000", "00000011"], "11112222", "11111122", id="both-withdraw"),
    pytest.param("11112222", [1, 2], ["11111110", "00001111"], "11111122", "11111112", id="grows-into-a-class"),
    pytest.param("11112222", [1, 2], ["11111100", "00111111"], "11112222", "11111122", id="both-grow"),
    pytest.param("11112222", [1, 2], ["00000000", "00001111"], "22222222", "11112222", id="one-vanishes"),
    pytest.param("11110222", [1, 2], ["11111000", "00001222"], "11111222", "11111222", id="meet-in-the-background"),
    pytest.param("11110222", [2, 1], ["00001111", "11111000"], "11112222", "11112222", id="a-tie-goes-to-the-first"),
    pytest.param("00111000", [1, 5], ["01111100", "00000000"], "01111100", "01111100", id="a-class-that-is-absent"),
    pytest.param("0101", [1], ["1111"], "1111", "1111", id="full"),
    pytest.param("1122", [1, 2], ["1111", "0011"], "1111", "1111", id="one-is-everywhere"),
    pytest.param(
        "0011112222", [1, 2], ["0001000000", "0000002222"], "0001122222", "0001112222", id="withdraws-on-both-sides"
    ),
]


def row(text):
    return np.array([[int(c) for c in text]])


@pytest.mark.parametrize(("before", "classes", "masks", "nearest", "priority"), CASES)
def test_one_value_for_each_voxel(before, classes, masks, nearest, priority):
    stacked = np.concatenate([row(mask) > 0 for mask in masks])
    assert merge_masks(stacked, row(before), classes).tolist() == row(nearest).tolist()
    assert merge_masks(stacked, row(before), classes, overlap=PRIORITY).tolist() == row(priority).tolist()


@pytest.fixture(params=[(30, 26), (12, 11, 10)], ids=["2d", "3d"])
def label_map(request):
    """Return a map ``(1, *spatial)`` with the values 0, 3, 4, 9 and 200, some of which touch."""
    grid = np.indices(request.param)
    centre = np.array(request.param).reshape(-1, *[1] * len(request.param)) / 2
    label_map = np.where(np.linalg.norm(grid - centre, axis=0) < min(request.param) / 2.5, 3, 0)
    label_map[(label_map == 3) & (grid[0] > centre[0, 0])] = 4
    label_map[(label_map == 3) & (grid[1] < centre[1].item() - 3)] = 9
    label_map[(grid < 3).all(axis=0)] = 200
    return label_map[None].astype(np.int32)


@pytest.mark.parametrize("overlap", [NEAREST, PRIORITY])
@pytest.mark.parametrize("seed", range(5))
def test_noise_keeps_a_map_valid(label_map, overlap, seed):
    classes = [9, 3]
    masks = split_label_map(label_map, classes)
    noisy = markov_label_noise(masks, **NOISE, seed=seed)
    merged = merge_masks(noisy, label_map, classes, overlap=overlap)
    assert set(np.unique(merged)) <= set(np.unique(label_map))
    fixed = np.isin(label_map, [4, 200])
    assert np.array_equal(merged[fixed], label_map[fixed])
    assert not np.isin(merged[~fixed], [4, 200]).any()
    for c, mask in zip(classes, noisy, strict=True):  # what one class alone claims is its own
        alone = mask & (noisy.sum(axis=0) == 1) & ~fixed[0]
        assert alone.any()
        assert (merged[0][alone] == c).all()
    nobody = ~noisy.any(axis=0) & (label_map[0] == 0)
    assert (merged[0][nobody] == 0).all()
    if overlap == PRIORITY:
        assert (merged[0][noisy[0] & ~fixed[0]] == 9).all()


@pytest.mark.parametrize("overlap", [NEAREST, PRIORITY])
def test_masks_that_did_not_change_give_the_map_back(label_map, overlap):
    for classes in ([3], [3, 4, 9, 200], [200, 9]):
        masks = split_label_map(label_map, classes)
        assert np.array_equal(merge_masks(masks, label_map, classes, overlap=overlap), label_map)


@pytest.mark.parametrize("overlap", [NEAREST, PRIORITY])
def test_a_map_with_one_class_is_a_mask(overlap):
    mask = (np.hypot(*np.indices((30, 30)) - 15) < 8)[None]
    noisy = markov_label_noise(mask, **NOISE, seed=2)
    assert np.array_equal(merge_masks(noisy, 6 * mask.astype(np.uint8), [6], overlap=overlap), 6 * noisy)


def test_classes_that_overlap_meet_halfway_whatever_their_order(label_map):
    classes = [3, 4, 9]
    masks = markov_label_noise(split_label_map(label_map, classes), **{**NOISE, "expansion_prob": 0.9}, seed=1)
    merged = merge_masks(masks, label_map, classes)
    turned = merge_masks(masks[::-1], label_map, classes[::-1])
    assert np.mean(merged == turned) > 0.85  # all but the ties
    assert np.any(masks.sum(axis=0) > 1)


@pytest.mark.parametrize("kind", [np.copy, torch.as_tensor, lambda x: MetaTensor(torch.as_tensor(x))])
def test_kind_and_dtype_are_kept_and_the_map_is_not_written_to(label_map, kind):
    for dtype in (np.uint8, np.int16, np.int64, np.float32, np.float64):
        given = kind(label_map.astype(dtype))
        masks = ~split_label_map(given, [3, 4])
        merged = merge_masks(masks, given, [3, 4])
        assert type(merged) is type(given)
        assert merged.dtype == given.dtype
        assert np.array_equal(np.asarray(given), label_map)
        assert not np.array_equal(np.asarray(merged), label_map)


def test_another_background(label_map):
    turned = np.where(label_map == 0, 77, label_map)
    masks = markov_label_noise(split_label_map(turned, [3], background=77), **NOISE, seed=0)
    merged = merge_masks(masks, turned, [3], background=77)
    assert np.array_equal(merged, np.where((plain := merge_masks(masks, label_map, [3])) == 0, 77, plain))


REFUSED = [
    pytest.param(row("012"), [1, 1], {}, r"classes must be the values of .*, each once", id="twice"),
    pytest.param(row("012"), [], {}, r"classes must be the values of one or more classes", id="no-class"),
    pytest.param(row("012"), [2**53], {}, r"whole numbers under 2\*\*53, each once, got", id="too-large-a-class"),
    pytest.param(row("012"), [1.5], {}, r"classes must be the values of one or more classes", id="half-a-class"),
    pytest.param(row("012"), [np.nan], {}, r"classes must be the values of one or more classes", id="nan-class"),
    pytest.param(row("012"), [0, 1], {}, r"classes must not hold the value of the background, 0", id="background"),
    pytest.param(row("012") / 2, [1], {}, r"must hold whole numbers only, got 0\.5\.$", id="fractions"),
    pytest.param(row("012") * np.nan, [1], {}, r"must hold whole numbers only, got nan\.$", id="nan"),
    pytest.param(np.zeros((2, 3)), [1], {}, r"must have the shape \(1, \*spatial\), got \(2, 3\)\.$", id="channels"),
    pytest.param(np.zeros(3), [1], {}, r"must have the shape \(1, \*spatial\), got \(3,\)\.$", id="no-channel"),
]


@pytest.mark.parametrize(("label_map", "classes", "options", "message"), REFUSED)
def test_refused(label_map, classes, options, message):
    with pytest.raises(ValueError, match=message):
        split_label_map(label_map, classes, **options)


def test_masks_that_do_not_fit_and_an_unknown_rule_are_refused():
    with pytest.raises(ValueError, match=r"one channel per class, \(2, 3\), got \(1, 3\)\.$"):
        merge_masks(row("010"), row("012"), [1, 2])
    with pytest.raises(ValueError, match=r"overlap must be one of 'nearest', 'priority', got 'allow'\.$"):
        merge_masks(row("010"), row("011"), [1], overlap="allow")
    with pytest.raises(ValueError, match=r"^masks must be binary, .*, got 2;"):
        merge_masks(row("020"), row("011"), [1])


def test_a_class_that_the_dtype_of_the_map_cannot_hold_is_refused():
    for dtype, c in ((np.uint8, 300), (bool, 2)):
        with pytest.raises(ValueError, match=rf"classes must be values that the dtype of the map, .*, got \[{c}\]\.$"):
            merge_masks(row("010"), row("011").astype(dtype), [c])
