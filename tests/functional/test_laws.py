"""What must hold whatever the shapes are: laws, each on random blobs."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import ndimage

from monai_sc.functional import (
    boundary_bias,
    boundary_displacement,
    correct_boundary,
    exclusive_label,
    markov_label_noise,
    one_against_rest,
    signed_distance,
)


def blobs(size, seed, classes=1):
    """Return random masks ``(classes, *size)`` with a margin of 6 voxels, and logits of somewhat larger ones."""
    rng = np.random.default_rng(seed)
    fields = [ndimage.gaussian_filter(rng.normal(size=size), 3) for _ in range(classes)]
    fields = np.stack([field / field.std() for field in fields])
    inner = tuple(slice(6, -6) for _ in size)
    margin = np.full(size, True)
    margin[inner] = False
    fields[:, margin] = -3
    return fields > 0.5, (4 * (fields - 0.2)).astype(np.float32)


SIZES = [(48, 40), (30, 28, 26)]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_cut_off_far_from_the_object_changes_nothing(size):
    mask, logits = blobs(size, 1)
    cut = (slice(None), *(slice(3, -2) for _ in size))
    np.testing.assert_allclose(signed_distance(mask[cut]), signed_distance(mask)[cut], atol=1e-5)
    predicted = logits > 0
    np.testing.assert_allclose(
        boundary_displacement(predicted[cut], mask[cut]), boundary_displacement(predicted, mask), atol=1e-6
    )
    whole = np.asarray(correct_boundary(logits, -1.0))
    np.testing.assert_allclose(np.asarray(correct_boundary(logits[cut], -1.0)), whole[cut], atol=1e-4)


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_results_in_mm_grow_with_the_voxel(factor):
    mask, logits = blobs((30, 28, 26), 2)
    spacing = np.array([0.8, 1.0, 2.5])
    own, larger = ([tuple(spacing * f)] for f in (1.0, factor))
    np.testing.assert_allclose(
        signed_distance(mask, spacing=larger[0]), factor * np.asarray(signed_distance(mask, spacing=own[0])), rtol=1e-5
    )
    moved = [boundary_displacement(logits > 0, mask, spacing=s[0]) for s in (own, larger)]
    np.testing.assert_allclose(moved[1], factor * moved[0], rtol=1e-5)
    labels = [
        np.asarray(correct_boundary(logits, bias * f, spacing=s[0])) >= 0
        for bias, f, s in ((-1.3, 1.0, own), (-1.3, factor, larger))
    ]
    assert (labels[0] == labels[1]).all()


def test_classes_in_another_order_give_results_in_that_order():
    masks, logits = blobs((48, 40), 3, classes=3)
    moved = boundary_displacement(logits > 0, masks)
    corrected = np.asarray(correct_boundary(logits, [-1.0, 0.5, -2.0]))
    rest = np.asarray(one_against_rest(np.concatenate([np.zeros_like(logits[:1]), logits])))
    scores = np.concatenate([np.zeros_like(logits[:1]), corrected])
    label = exclusive_label(scores, np.concatenate([np.zeros_like(logits[:1]), logits]))
    for order in permutations(range(3)):
        index = list(order)
        np.testing.assert_array_equal(boundary_displacement(logits[index] > 0, masks[index]), moved[index])
        bias = np.array([-1.0, 0.5, -2.0])[index].tolist()
        np.testing.assert_array_equal(np.asarray(correct_boundary(logits[index], bias)), corrected[index])
        channels = [0, *(k + 1 for k in index)]
        given = np.concatenate([np.zeros_like(logits[:1]), logits])[channels]
        np.testing.assert_allclose(np.asarray(one_against_rest(given)), rest[channels], atol=1e-5)
        assert (np.array(channels)[exclusive_label(scores[channels], given)] == label).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("edge", [1, 3])
def test_a_far_specimen_in_one_mask_only_does_not_count_at_the_boundary(size, edge):
    """It is no part of either boundary, since the other mask has nothing there."""
    mask, logits = blobs(size, 4)
    predicted = logits > 0
    lone = predicted.copy()
    lone[(0, *(slice(1, 1 + edge) for _ in size))] = True
    assert not (lone & ~predicted & mask).any()
    np.testing.assert_allclose(boundary_displacement(lone, mask), boundary_displacement(predicted, mask), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_every_precision_give_one_label(dtype):
    """But for voxels whose distance differs since rounding moved the boundary, by a part of the slope of the logits."""
    _, logits = blobs((48, 40), 5)
    exact = torch.from_numpy(logits)
    rounding = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    own = correct_boundary(exact.to(dtype), -1.0).to(torch.float32)
    expected = correct_boundary(exact, -1.0)
    # The distance of a voxel moves with the zero crossing: at most by its relative error times the neighbouring logits.
    assert (own - expected).abs().max() <= 64 * rounding + 1e-4
    assert ((own >= 0) != (expected >= 0)).float().mean() <= 8 * rounding


@pytest.mark.parametrize("turn", [lambda m: m[:, ::-1], lambda m: m[:, :, ::-1], lambda m: m.swapaxes(1, 2)])
def test_noise_of_a_turned_mask_is_distributed_as_noise_that_was_turned(turn):
    """Means over draws: their standard error, from both samples, bounds the difference."""
    mask, _ = blobs((40, 40), 6)
    options = {"num_steps": 12, "expansion_prob": 0.7, "march_prob": 0.2}
    draws = 60
    plain, turned = (
        np.array([np.asarray(markov_label_noise(m, seed=s + first, **options)) for s in range(draws)], dtype=float)
        for m, first in ((mask, 0), (np.ascontiguousarray(turn(mask)), 1000))
    )
    for measure in (
        lambda m: m.sum(axis=(1, 2, 3)),
        lambda m: (m * np.arange(40)).sum(axis=(1, 2, 3)) / m.sum(axis=(1, 2, 3)),
    ):
        one = measure(np.array([turn(draw) for draw in plain]))
        other = measure(turned)
        error = np.sqrt((one.var() + other.var()) / draws)
        assert abs(one.mean() - other.mean()) <= 4.5 * error


def test_bias_of_mirrored_displacements_is_mirrored():
    displacements = np.random.default_rng(7).normal(-1, 1, (9, 2))
    one, other = boundary_bias(displacements), boundary_bias(-displacements)
    np.testing.assert_allclose(one.mean, -other.mean)
    np.testing.assert_allclose(one.interval, -other.interval[:, ::-1], atol=0.1)
    assert one.verdict == other.verdict
