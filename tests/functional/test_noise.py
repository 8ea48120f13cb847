from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy import ndimage, stats

from monai_sc.functional import case_seed, markov_label_noise, shift_boundary
from monai_sc.functional import noise as boundary_list
from monai_sc.functional.noise import draw_steps

GROW = {"num_steps": 2, "expansion_prob": 1, "march_prob": 1}
NOISE = {"num_steps": 4, "expansion_prob": 0.6, "march_prob": 0.4, "flip_prob": 0.05}


def face_offsets(ndim):
    return [tuple(sign * (i == axis) for i in range(ndim)) for axis in range(ndim) for sign in (-1, 1)]


def slow_markov_noise(clean, num_steps, expansion_prob, march_prob, flip_prob, rng, offsets=None):
    """Definition 1 of Yao et al. (ICLR 2023) voxel by voxel, with its own random source."""
    offsets = offsets or face_offsets(clean.ndim)
    mask = {voxel: bool(clean[voxel]) for voxel in np.ndindex(clean.shape)}
    for _ in range(num_steps):
        expands = rng.random() < expansion_prob
        moving = []
        for voxel, value in mask.items():
            if value == expands:  # a step that expands changes background, one that shrinks changes foreground
                continue
            neighbours = (tuple(map(sum, zip(voxel, offset, strict=True))) for offset in offsets)
            if any(mask.get(n, value) != value for n in neighbours) and rng.random() < march_prob:
                moving.append(voxel)
        for voxel in moving:
            mask[voxel] = not mask[voxel]
    noisy = np.zeros(clean.shape, dtype=bool)
    for voxel, value in mask.items():
        noisy[voxel] = not value if value == clean[voxel] and rng.random() < flip_prob else value
    return noisy


def dice(first, second):
    return 2 * (first & second).sum() / (first.sum() + second.sum())


def ball(shape, centre, radius):
    grid = np.indices(shape) - np.reshape(centre, (-1, *[1] * len(shape)))
    return (grid**2).sum(axis=0) <= radius**2


LAWS = [
    pytest.param(ball((16, 14), (5, 3), 4), 5, 0.6, 0.4, 0.0, id="2d-mixed-and-cut-by-the-edge"),
    pytest.param(ball((16, 14), (8, 7), 4), 4, 0.9, 0.7, 0.05, id="2d-expanding-with-flips"),
    pytest.param(ball((16, 14), (8, 7), 5), 4, 0.2, 0.3, 0.02, id="2d-shrinking-with-flips"),
    pytest.param(ball((9, 8, 9), (4, 1, 4), 3), 3, 0.6, 0.5, 0.01, id="3d-mixed-and-cut-by-the-edge"),
]


@pytest.mark.parametrize(("clean", "steps", "expansion", "march", "flip"), LAWS)
def test_area_dice_and_place_are_distributed_as_in_the_definition(clean, steps, expansion, march, flip):
    runs = 300
    rng = random.Random(1)
    slow = np.stack([slow_markov_noise(clean, steps, expansion, march, flip, rng) for _ in range(runs)])
    parameters = {"num_steps": steps, "expansion_prob": expansion, "march_prob": march, "flip_prob": flip}
    fast = np.stack([markov_label_noise(clean[None], **parameters, seed=seed)[0] for seed in range(runs)])

    areas = [[mask.sum() for mask in masks] for masks in (slow, fast)]
    scores = [[dice(mask, clean) for mask in masks] for masks in (slow, fast)]
    assert stats.ks_2samp(*areas, method="asymp").pvalue > 0.01
    assert stats.ks_2samp(*scores, method="asymp").pvalue > 0.01
    frequency = (slow.mean(axis=0) + fast.mean(axis=0)) / 2
    standard_error = np.sqrt(2 * frequency * (1 - frequency) / runs)
    assert np.all(np.abs(slow.mean(axis=0) - fast.mean(axis=0)) <= 4.5 * standard_error)


def marched_by_dilation(clean, num_steps, expansion_prob, march_prob, rng):
    """Definition 1 once more, for long processes: every step dilates the whole image."""
    mask = clean.copy()
    for _ in range(num_steps):
        growing = mask if rng.random() < expansion_prob else ~mask
        ring = ndimage.binary_dilation(growing) & ~growing
        mask ^= ring & (rng.random(mask.shape) < march_prob)
    return mask


def displacement(masks, clean):
    """Return the mean distance of the voxels beside the boundary of each mask from the clean one, outward positive."""
    phi = ndimage.distance_transform_edt(~clean) - ndimage.distance_transform_edt(clean)
    edges = [mask & ndimage.binary_dilation(~mask) for mask in masks]
    return [phi[edge].sum() / max(edge.sum(), 1) for edge in edges]


# Long enough for every voxel to be listed, to become stale and to be taken off its list many times.
LONG = [
    pytest.param(ball((60, 56), (30, 28), 12), 120, 0.5, 0.1, id="2d-to-and-fro"),
    pytest.param(ball((60, 56), (20, 8), 12), 90, 0.8, 0.05, id="2d-expanding-at-the-edge"),
    pytest.param(ball((60, 56), (30, 28), 24), 40, 0.2, 0.1, id="2d-shrinking"),
    pytest.param(np.random.default_rng(0).random((40, 40)) < 0.4, 25, 0.5, 0.4, id="2d-speckles"),
    pytest.param(ball((22, 24, 20), (11, 12, 10), 6), 40, 0.5, 0.15, id="3d-to-and-fro"),
]


@pytest.mark.parametrize(("clean", "steps", "expansion", "march"), LONG)
def test_a_long_process_is_distributed_as_one_that_dilates_the_whole_image(clean, steps, expansion, march):
    runs, rng = 400, np.random.default_rng(2)
    slow = [marched_by_dilation(clean, steps, expansion, march, rng) for _ in range(runs)]
    parameters = {"num_steps": steps, "expansion_prob": expansion, "march_prob": march}
    fast = [markov_label_noise(clean[None], **parameters, seed=seed)[0] for seed in range(runs)]
    measures = [
        lambda masks: [mask.sum() for mask in masks],
        lambda masks: [dice(mask, clean) for mask in masks],
        lambda masks: displacement(masks, clean),
        lambda masks: [(mask & ndimage.binary_dilation(~mask)).sum() for mask in masks],  # how rough it is
    ]
    for measure in measures:
        assert stats.ks_2samp(measure(slow), measure(fast), method="asymp").pvalue > 0.01


@pytest.mark.parametrize("steps", [1, 7, 30])
def test_a_longer_process_begins_as_a_shorter_one(label, steps):
    parameters = {"expansion_prob": 0.5, "march_prob": 1, "seed": 4}
    short = markov_label_noise(label, num_steps=steps, **parameters)
    longer = markov_label_noise(label, num_steps=steps + 1, **parameters)
    grown = markov_label_noise(short, num_steps=1, expansion_prob=1, march_prob=1, seed=0)
    shrunk = markov_label_noise(short, num_steps=1, expansion_prob=0, march_prob=1, seed=0)
    for channel in range(len(label)):
        assert any(np.array_equal(longer[channel], moved[channel]) for moved in (grown, shrunk))


def mean_change(before, after, axis):
    """Return by how many voxels a slab that fills the image across ``axis`` has grown along it."""
    return np.mean(after.sum(axis=axis, dtype=int) - before.sum(axis=axis, dtype=int))


class TestSteps:
    """In mm, and slice by slice."""

    @pytest.mark.parametrize(
        ("spacing", "steps", "moved"),
        [
            pytest.param((3, 1), 1, 0, id="a-third-of-a-voxel-is-none"),
            pytest.param((3, 1), 2, 1, id="two-thirds-are-one"),
            pytest.param((3, 1), 4, 1, id="four-thirds-are-one"),
            pytest.param((3, 1), 5, 2, id="five-thirds-are-two"),
            pytest.param((2, 1), 1, 0, id="half-a-voxel-is-none"),
            pytest.param((2, 1), 2, 1, id="a-whole-voxel"),
            pytest.param((1, 3), 4, 4, id="along-the-short-side"),
        ],
    )
    @pytest.mark.parametrize("expands", [1, 0])
    def test_certain_steps_move_a_face_by_their_length_in_mm(self, spacing, steps, moved, expands):
        slab = np.zeros((1, 20, 6), dtype=bool)
        slab[:, :10] = True
        noisy = markov_label_noise(slab, num_steps=steps, expansion_prob=expands, march_prob=1, spacing=spacing, seed=0)
        assert np.array_equal(noisy[0].sum(axis=0), np.full(6, 10 + (moved if expands else -moved)))

    def test_step_size_divides_every_voxel(self):
        slab = np.zeros((1, 20, 6), dtype=bool)
        slab[:, :10] = True
        parameters = {"num_steps": 7, "expansion_prob": 1, "march_prob": 1, "spacing": (1, 2), "seed": 0}
        assert markov_label_noise(slab, **parameters, step_size=0.5)[0].sum() == 6 * 13  # 3.5 mm, to the centre

    @pytest.mark.parametrize(("long", "expansion"), [(3, 1.0), (4, 1.0), (3, 0.0), (5, 0.8)])
    def test_both_faces_move_equally_far_in_mm(self, long, expansion):
        parameters = {"num_steps": 120, "expansion_prob": expansion, "march_prob": 0.1}
        thick = np.zeros((1, 120 // long + 10, 30, 30), dtype=bool)
        thick[:, : 60 // long + 5] = True
        thin = np.zeros((1, 12, 120, 30), dtype=bool)
        thin[:, :, :60] = True
        runs = 12
        moved = np.array(
            [
                [
                    mean_change(label, markov_label_noise(label, **parameters, spacing=(long, 1, 1), seed=seed), axis)
                    for label, axis in ((thick, 1), (thin, 2))
                ]
                for seed in range(runs)
            ]
        ) * (long, 1)
        thick_mm, thin_mm = moved.mean(axis=0)
        assert abs(thin_mm) > 8
        # A cube-wide front is rougher than one that a voxel's centre decides, hence the tolerance beyond the error.
        assert thick_mm == pytest.approx(thin_mm, abs=0.5 + 3 * np.hypot(*moved.std(axis=0)) / math.sqrt(runs))

    @pytest.mark.parametrize("spacing", [(3.0, 1.0), (2.0, 1.1)])
    def test_centres_are_those_of_the_process_on_cubes(self, spacing):
        clean = ball((15, 24), (7, 12), 5)
        parameters = {"num_steps": 9, "expansion_prob": 0.7, "march_prob": 0.5}
        noisy = markov_label_noise(clean[None], **parameters, spacing=spacing, seed=5)[0]
        n = round(spacing[0] / spacing[1])
        fine = markov_label_noise(np.repeat(clean, n, axis=0)[None], **parameters, seed=5)[0].reshape(15, n, 24)
        middle = fine[:, (n - 1) // 2 : n // 2 + 1]
        expected = [
            [m.all() if m.all() or not m.any() else c for m, c in zip(row.T, own, strict=True)]
            for row, own in zip(middle, clean, strict=True)
        ]
        assert np.array_equal(noisy, expected)
        assert not np.array_equal(noisy, clean)

    def test_equal_spacing_is_no_spacing(self, label):
        with_spacing = markov_label_noise(label, **NOISE, spacing=(0.7,) * (label.ndim - 1), seed=3)
        assert np.array_equal(with_spacing, markov_label_noise(label, **NOISE, seed=3))

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_in_plane_slices_stay_apart(self, axis):
        clean = np.zeros((1, 9, 10, 11), dtype=bool)
        middle = [slice(None)] * 3
        middle[axis] = 4
        clean[0][tuple(middle)][2:7, 2:7] = True
        parameters = {"num_steps": 3, "expansion_prob": 1, "march_prob": 1, "seed": 0}
        noisy = markov_label_noise(clean, **parameters, in_plane=True, slice_axis=axis)[0]
        expected = np.zeros_like(clean[0])
        expected[tuple(middle)] = ndimage.binary_dilation(clean[0][tuple(middle)], iterations=3)
        assert np.array_equal(noisy, expected)

    @pytest.mark.parametrize("spacing", [(5, 1, 1), (1, 5, 1), (1, 1, 5), (1, 1, 1)])
    def test_slices_lie_along_the_largest_spacing(self, spacing):
        clean = ball((12, 12, 12), (6, 6, 6), 4)[None]
        parameters = {"num_steps": 3, "expansion_prob": 0.8, "march_prob": 0.5, "in_plane": True, "seed": 0}
        found = markov_label_noise(clean, **parameters, spacing=spacing)
        axis = max(range(3), key=lambda a: (spacing[a], a))
        assert np.array_equal(found, markov_label_noise(clean, **parameters, spacing=spacing, slice_axis=axis))

    def test_in_plane_smoothing_stays_in_the_plane(self):
        clean = np.zeros((1, 5, 9, 9), dtype=bool)
        clean[0, 2, 2:7, 2:7] = True
        smooth = {"smoothing": "before_flips", "smooth_sigma": 1.0}
        parameters = {"num_steps": 0, "expansion_prob": 0, "march_prob": 0, **smooth, "seed": 0}
        noisy = markov_label_noise(clean, **parameters, in_plane=True, slice_axis=0)[0]
        assert np.array_equal(noisy[2], markov_label_noise(clean[:, 2], **parameters)[0])
        assert noisy.sum() == noisy[2].sum() > 0
        assert not markov_label_noise(clean, **parameters).any()  # a single slice is thinner than the filter

    @pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
    def test_slices_share_their_steps_with_the_given_correlation(self, correlation):
        steps = draw_steps(20000, 0.7, 4, correlation, np.random.default_rng(0))
        assert steps.shape == (4, 20000)
        assert np.abs(steps.mean(axis=1) - 0.7).max() < 4.5 * math.sqrt(0.21 / 20000)
        found = np.corrcoef(steps)
        for lag in (1, 2, 3):
            assert np.diagonal(found, lag) == pytest.approx(correlation**lag, abs=4.5 / math.sqrt(20000))

    def test_each_slice_has_the_law_of_an_image(self):
        disc, runs = ball((24, 24), (12, 12), 7), 100
        parameters = {"num_steps": 30, "expansion_prob": 0.6, "march_prob": 0.1}
        volume = np.repeat(disc[None], 5, axis=0)[None]
        options = {"in_plane": True, "slice_axis": 0, "slice_correlation": 0.5}
        slices = [markov_label_noise(volume, **parameters, **options, seed=s)[0].sum(axis=(1, 2)) for s in range(runs)]
        images = [markov_label_noise(disc[None], **parameters, seed=s).sum() for s in range(5 * runs)]
        for k in range(5):
            assert stats.ks_2samp([areas[k] for areas in slices], images).pvalue > 0.005

    REFUSED = [
        pytest.param({"in_plane": True}, "in_plane needs spacing or slice_axis", id="which-axis"),
        pytest.param({"slice_axis": 0}, "slice_axis must be 0, 1 or 2, and goes with in_plane=True", id="axis-alone"),
        pytest.param({"in_plane": True, "slice_axis": 3}, "slice_axis must be 0, 1 or 2", id="no-such-axis"),
        pytest.param({"step_size": 1.0}, "step_size needs spacing, got 1.0", id="step-without-spacing"),
        pytest.param(
            {"step_size": 3, "spacing": (2, 2, 4)}, "at most the smallest side of a voxel, 2, got 3", id="step"
        ),
        pytest.param({"step_size": 0}, "step_size must be more than 0", id="no-step"),
        pytest.param({"in_plane": True, "slice_axis": True}, "slice_axis must be 0, 1 or 2", id="axis-as-a-bool"),
        pytest.param({"slice_correlation": [0.1, 0.2]}, "slice_correlation must be a probability", id="correlations"),
        pytest.param(
            {"smooth_radius": math.inf}, "smooth_radius must be at least 1 voxel, a whole number", id="radius"
        ),
        pytest.param({"slice_correlation": 1.5}, "slice_correlation must be a probability", id="correlation"),
        pytest.param({"spacing": (1, 1, 70)}, "No side of a voxel may be longer than 64 steps of 1, got", id="needle"),
        pytest.param({"spacing": (1, 1)}, "spacing must be 3 positive numbers", id="spacing"),
    ]

    @pytest.mark.parametrize(("options", "message"), REFUSED)
    def test_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            markov_label_noise(np.zeros((1, 4, 4, 4)), **NOISE, **options, seed=0)

    def test_four_spatial_axes_and_half_a_seed_are_refused(self):
        with pytest.raises(ValueError, match=r"label must have at most 3 spatial axes, got 4\.$"):
            markov_label_noise(np.zeros((1, 3, 3, 3, 3)), **NOISE, seed=0)
        with pytest.raises(ValueError, match=r"seed must be a whole number of at least 0, got 1\.5\.$"):
            markov_label_noise(np.zeros((1, 3, 3)), **NOISE, seed=1.5)

    def test_slices_need_a_volume(self):
        with pytest.raises(ValueError, match=r"in_plane needs a label with 3 spatial axes, got 2\.$"):
            markov_label_noise(np.zeros((1, 4, 4)), **NOISE, in_plane=True, slice_axis=0, seed=0)


def test_the_comparison_of_distributions_notices_diagonal_neighbours():
    clean, runs, rng = ball((16, 14), (8, 7), 4), 150, random.Random(1)
    diagonal = [offset for offset in itertools.product((-1, 0, 1), repeat=2) if any(offset)]
    slow = [slow_markov_noise(clean, 4, 0.9, 0.7, 0.05, rng, diagonal).sum() for _ in range(runs)]
    parameters = {"num_steps": 4, "expansion_prob": 0.9, "march_prob": 0.7, "flip_prob": 0.05}
    fast = [markov_label_noise(clean[None], **parameters, seed=seed).sum() for seed in range(runs)]
    assert stats.ks_2samp(slow, fast, method="asymp").pvalue < 1e-6


@pytest.mark.parametrize(
    "clean",
    [
        pytest.param(ball((11, 10), (5, 4), 3), id="2d"),
        pytest.param(ball((7, 7, 6), (3, 3, 0), 2), id="3d-at-the-edge"),
    ],
)
@pytest.mark.parametrize(("theta1", "theta2"), [(0.5, 0.5), (0.8, 0.3), (0.1, 0.9)])
def test_one_step_moves_the_rings_with_their_exact_probability(clean, theta1, theta2):
    runs = 2000
    parameters = {"num_steps": 1, "expansion_prob": theta1, "march_prob": theta2}
    frequency = np.mean([markov_label_noise(clean[None], **parameters, seed=s)[0] for s in range(runs)], axis=0)
    outer, inner = np.zeros_like(clean), np.zeros_like(clean)
    for voxel in np.ndindex(clean.shape):
        for offset in face_offsets(clean.ndim):
            n = tuple(map(sum, zip(voxel, offset, strict=True)))
            if all(0 <= i < size for i, size in zip(n, clean.shape, strict=True)) and clean[n] != clean[voxel]:
                (inner if clean[voxel] else outer)[voxel] = True
    for ring, p in ((outer, theta1 * theta2), (inner, 1 - theta2 + theta1 * theta2)):
        assert np.abs(frequency[ring] - p).max() <= 4 * math.sqrt(p * (1 - p) / runs)
    rest = ~(outer | inner)
    assert np.array_equal(frequency[rest], clean[rest])


@pytest.mark.parametrize("shape", [(40, 40), (12, 12, 12)], ids=["2d", "3d"])
@pytest.mark.parametrize("expansion_prob", [1, 0.7])
def test_compiled_march_is_that_of_python_which_checks_each_index(shape, expansion_prob, monkeypatch):
    masks = np.random.default_rng(1).random((20, *shape)) < 0.01  # around single voxels the lists grow most
    parameters = {"num_steps": 40, "expansion_prob": expansion_prob, "march_prob": 0.05, "seed": 1}
    with monkeypatch.context() as patch:
        patch.setattr(boundary_list, "_march_list", boundary_list._march_list.__wrapped__)
        expected = markov_label_noise(masks, **parameters)
    assert np.array_equal(markov_label_noise(masks, **parameters), expected)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("shape", [(20, 18), (9, 10, 8)], ids=["2d", "3d"])
def test_boundary_moves_at_most_one_voxel_per_step(shape, steps):
    clean = np.random.default_rng(steps).random((6, *shape)) < 0.03
    clean |= np.indices(shape)[0] < 5
    noisy = markov_label_noise(clean, num_steps=steps, expansion_prob=0.5, march_prob=1, seed=steps)
    cross = ndimage.generate_binary_structure(len(shape), 1)
    for before, after in zip(clean, noisy, strict=True):
        reach = {"structure": cross, "iterations": steps}
        most = ndimage.binary_dilation(before, **reach) if steps else before
        least = ndimage.binary_erosion(before, **reach, border_value=1) if steps else before
        assert np.all(least <= after)
        assert np.all(after <= most)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_certain_march_is_morphology_and_the_outside_of_the_image_counts_for_nothing(label, steps):
    cross = ndimage.generate_binary_structure(label.ndim - 1, 1)
    parameters = {"num_steps": steps, "march_prob": 1, "seed": 0}
    grown = markov_label_noise(label, expansion_prob=1, **parameters)
    shrunk = markov_label_noise(label, expansion_prob=0, **parameters)
    for channel, mask in enumerate(label):
        dilated = ndimage.binary_dilation(mask, cross, iterations=steps)
        eroded = ndimage.binary_erosion(mask, cross, iterations=steps, border_value=1)
        assert np.array_equal(grown[channel], dilated)
        assert np.array_equal(shrunk[channel], eroded)


@pytest.mark.parametrize("seed", range(3))
def test_certain_expansion_only_grows_and_certain_shrinking_only_shrinks(label, seed):
    parameters = {"num_steps": 3, "march_prob": 0.5, "seed": seed}
    grown = markov_label_noise(label, expansion_prob=1, **parameters)
    shrunk = markov_label_noise(label, expansion_prob=0, **parameters)
    assert np.all(grown >= label)
    assert np.all(shrunk <= label)
    assert grown.sum() > label.sum() > shrunk.sum()


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"num_steps": 0, "expansion_prob": 0.5, "march_prob": 1}, id="no-steps"),
        pytest.param({"num_steps": 5, "expansion_prob": 0.5, "march_prob": 0}, id="no-march"),
    ],
)
def test_nothing_to_do_returns_the_label(label, parameters):
    assert np.array_equal(markov_label_noise(label, **parameters, seed=0), label)


def test_voxels_that_the_march_moved_do_not_flip_and_the_others_do_with_their_probability(label):
    marched = markov_label_noise(label, **GROW, seed=0)
    moved = marched != label
    runs, p = 600, 0.3
    noisy = np.stack([markov_label_noise(label, **GROW, flip_prob=p, seed=seed) for seed in range(runs)])
    flipped = (noisy != marched).mean(axis=0)
    assert not flipped[moved].any()
    assert np.abs(flipped[~moved] - p).max() <= 4.5 * math.sqrt(p * (1 - p) / runs)


def test_certain_flips_give_the_complement_because_moved_voxels_do_not_flip_back(label):
    noisy = markov_label_noise(label, **{**NOISE, "flip_prob": 1}, seed=3)
    assert np.array_equal(noisy, 1 - label)


def slow_smooth(mask, sigma, radius):
    """Filter with the normal density at whole voxels, normalised, on an image that is mirrored at its edges."""
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    values = mask.astype(np.float64)
    for axis, size in enumerate(mask.shape):
        padded = np.pad(values, [(radius * (a == axis),) * 2 for a in range(mask.ndim)], mode="symmetric")
        values = sum(w * np.take(padded, range(i, i + size), axis=axis) for i, w in enumerate(weights))
    return values > 0.5


@pytest.mark.parametrize(
    ("sigma", "radius", "effective_radius"),
    [pytest.param(1.0, None, 4, id="sigma-1"), pytest.param(2.0, 2, 2, id="as-the-released-masks")],
)
class TestSmoothing:
    def test_before_flips_is_the_filter_of_the_march(self, label, sigma, radius, effective_radius):
        noisy = markov_label_noise(
            label, **GROW, smoothing="before_flips", smooth_sigma=sigma, smooth_radius=radius, seed=0
        )
        marched = markov_label_noise(label, **GROW, seed=0).astype(bool)
        assert np.array_equal(noisy, [slow_smooth(mask, sigma, effective_radius) for mask in marched])

    def test_before_flips_spares_the_voxels_where_the_smooth_march_disagrees(
        self, label, sigma, radius, effective_radius
    ):
        smoothing = {"smoothing": "before_flips", "smooth_sigma": sigma, "smooth_radius": radius}
        noisy = markov_label_noise(label, **GROW, flip_prob=0.5, **smoothing, seed=0)
        smooth = markov_label_noise(label, **GROW, **smoothing, seed=0)
        disagrees = smooth != label
        assert disagrees.any()
        assert np.array_equal(noisy[disagrees], smooth[disagrees])
        assert np.any(noisy[~disagrees] != smooth[~disagrees])

    def test_after_flips_is_the_filter_of_flips_everywhere(self, label, sigma, radius, effective_radius):
        smoothing = {"smoothing": "after_flips", "smooth_sigma": sigma, "smooth_radius": radius}
        noisy = markov_label_noise(label, **GROW, flip_prob=1, **smoothing, seed=0)
        marched = markov_label_noise(label, **GROW, seed=0).astype(bool)
        assert np.array_equal(noisy, [slow_smooth(~mask, sigma, effective_radius) for mask in marched])


@pytest.mark.parametrize("name", ["num_steps", "expansion_prob", "march_prob", "flip_prob"])
def test_a_parameter_per_channel_acts_on_its_channel_alone(label, name):
    low, high = (0, 6) if name == "num_steps" else (0, 1)
    both = markov_label_noise(label, **{**NOISE, name: (low, high)}, seed=5)
    assert np.array_equal(both[0], markov_label_noise(label, **{**NOISE, name: low}, seed=5)[0])
    assert np.array_equal(both[1], markov_label_noise(label, **{**NOISE, name: high}, seed=5)[1])
    assert np.any(both != markov_label_noise(label, **{**NOISE, name: (high, low)}, seed=5))


def test_a_channel_depends_only_on_the_seed_and_its_number(label):
    noisy = markov_label_noise(label, **NOISE, seed=5)
    other = np.stack([label[1], label[1], label[0]])
    assert np.array_equal(markov_label_noise(other, **NOISE, seed=5)[1], noisy[1])
    assert np.array_equal(markov_label_noise(label[:1], **NOISE, seed=5)[0], noisy[0])


def test_equal_channels_get_different_noise(label):
    noisy = markov_label_noise(np.repeat(label[:1], 2, axis=0), **NOISE, seed=5)
    assert np.any(noisy[0] != noisy[1])


@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_seeds_that_differ_above_32_bits_do_not_share_the_draw_of_a_channel(label, seed):
    twins = np.repeat(label[:1], 3, axis=0)
    noisy = markov_label_noise(twins, **NOISE, seed=seed)
    shifted = markov_label_noise(twins, **NOISE, seed=seed + 2**32)
    assert all(np.any(a != b) for a, b in itertools.product(noisy, shifted))


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(label):
    first, again, other = (markov_label_noise(label, **NOISE, seed=seed) for seed in (11, 11, 12))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_global_random_states_are_neither_read_nor_set(label):
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    first = markov_label_noise(label, **NOISE, seed=0)
    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()) == before
    np.random.seed(2)
    assert np.array_equal(markov_label_noise(label, **NOISE, seed=0), first)


@pytest.mark.parametrize("change", ["noise", "shift"])
def test_kind_dtype_and_metadata_are_kept_and_the_input_is_not_written_to(label, as_kind, change):
    for dtype in (bool, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64):
        given = as_kind(label.astype(dtype))
        if change == "noise":
            out, expected = (markov_label_noise(x, **NOISE, seed=1) for x in (given, label))
        else:
            out, expected = (shift_boundary(x, 1.5) for x in (given, label))
        assert type(out) is type(given)
        assert out.dtype == given.dtype
        assert np.array_equal(np.asarray(out), expected.astype(dtype))
        assert np.array_equal(np.asarray(given), label.astype(dtype))
        assert not np.shares_memory(np.asarray(out), np.asarray(given))
        if isinstance(given, MetaTensor):
            assert torch.equal(out.affine, given.affine)
            assert out.meta["filename_or_obj"] == "case-1.nii.gz"


@pytest.mark.parametrize("change", ["noise", "shift"])
def test_bfloat16_label_stays_bfloat16(label, change):
    given = torch.from_numpy(label).to(torch.bfloat16)
    out = markov_label_noise(given, **NOISE, seed=1) if change == "noise" else shift_boundary(given, 1.5)
    expected = markov_label_noise(label, **NOISE, seed=1) if change == "noise" else shift_boundary(label, 1.5)
    assert out.dtype == torch.bfloat16
    assert out.tolist() == expected.tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_label_on_a_gpu_stays_there(label):
    given = torch.from_numpy(label).cuda()
    noisy = markov_label_noise(given, **NOISE, seed=1)
    assert noisy.device == given.device
    assert np.array_equal(noisy.cpu().numpy(), markov_label_noise(label, **NOISE, seed=1))


VIEWS = [
    pytest.param(lambda x: x[..., ::2], id="every-second-voxel"),
    pytest.param(lambda x: x[..., ::-1], id="reversed"),
    pytest.param(lambda x: np.swapaxes(x, 1, 2), id="transposed"),
    pytest.param(np.asfortranarray, id="fortran-order"),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_read_only_and_non_contiguous_arrays_are_read_as_they_are(label, view, dtype):
    given = view(label.astype(dtype))
    given.setflags(write=False)
    plain = np.ascontiguousarray(given)
    assert np.array_equal(markov_label_noise(given, **NOISE, seed=1), markov_label_noise(plain, **NOISE, seed=1))
    assert np.array_equal(shift_boundary(given, -1), shift_boundary(plain, -1))


@pytest.mark.parametrize("value", [0, 1], ids=["empty", "full"])
@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3)], ids=["2d", "3d"])
@pytest.mark.parametrize("smoothing", [None, "before_flips", "after_flips"])
def test_channel_without_a_boundary_gets_flips_only(value, shape, smoothing):
    label = np.full((1, *shape), value)
    march = {"num_steps": 5, "expansion_prob": 0.5, "march_prob": 1, "smoothing": smoothing}
    assert np.array_equal(markov_label_noise(label, **march, seed=0), label)
    assert np.array_equal(markov_label_noise(label, **march, flip_prob=1, seed=0), 1 - label)


LINE = np.array([[0, 0, 1, 1, 0]])
REFUSED = [
    pytest.param({"num_steps": -1}, r"^num_steps must be a whole number of at least 0, got -1\.$", id="negative-steps"),
    pytest.param(
        {"num_steps": (1.5,)}, r"^num_steps must be a whole number of at least 0, got \(1.5,\)", id="half-step"
    ),
    pytest.param({"num_steps": math.nan}, r"^num_steps must be a whole number of at least 0, got nan", id="nan-steps"),
    pytest.param({"num_steps": math.inf}, r"^num_steps must be a whole number of at least 0, got inf", id="inf-steps"),
    pytest.param(
        {"expansion_prob": 1.1}, r"^expansion_prob must be a probability in \[0, 1\], got 1.1\.$", id="expansion"
    ),
    pytest.param({"march_prob": -0.1}, r"^march_prob must be a probability in \[0, 1\], got -0.1\.$", id="march"),
    pytest.param({"flip_prob": (2,)}, r"^flip_prob must be a probability in \[0, 1\], got \(2,\)\.$", id="flip"),
    pytest.param({"march_prob": math.nan}, r"^march_prob must be a probability in \[0, 1\], got nan\.$", id="nan"),
    pytest.param(
        {"num_steps": (1, 2)}, r"^num_steps must be one value or one per channel \(1\), got 2\.$", id="channels"
    ),
    pytest.param({"flip_prob": (0, 0)}, r"^flip_prob must be one value or one per channel \(1\), got 2\.$", id="flips"),
    pytest.param(
        {"smoothing": "yes"}, r"^smoothing must be one of None, 'before_flips', 'after_flips', got 'yes'", id="mode"
    ),
    pytest.param({"smooth_sigma": 0}, r"^smooth_sigma must be more than 0 voxels, got 0; smoothing=None", id="sigma"),
    pytest.param(
        {"smooth_radius": 0}, r"^smooth_radius must be at least 1 voxel, a whole number, or None, got 0\.$", id="radius"
    ),
    pytest.param({"seed": -1}, r"^seed must be .*, got -1", id="negative-seed"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_parameter_out_of_range_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        markov_label_noise(LINE, **{**GROW, "seed": 0, **parameters})


NOT_BINARY = [
    pytest.param(
        LINE * 255, r"^label must be binary, only 0 and 1 in every channel, got 255; .*label == 255", id="0-255"
    ),
    pytest.param(np.array([[0, 1, 2, 3]]), r"got 2, 3; .*one channel per class", id="integer-map"),
    pytest.param(np.array([[0, 0.5, 1]]), r"got 0.5;", id="soft-label"),
    pytest.param(np.array([[0, np.nan, 1]]), r"got nan;", id="nan"),
    pytest.param(
        np.array([0, 1, 1]), r"^label must have the shape \(channels, \*spatial\), got \(3,\)\.$", id="no-axes"
    ),
]


@pytest.mark.parametrize(("label", "message"), NOT_BINARY)
def test_label_that_is_not_binary_is_refused(label, message):
    with pytest.raises(ValueError, match=message):
        markov_label_noise(label, **GROW, seed=0)
    with pytest.raises(ValueError, match=message):
        shift_boundary(label, 1)


def slow_shift(mask, distance, spacing):
    """Compare every voxel with every voxel of the class that the definition names."""
    source = np.argwhere(mask if distance >= 0 else ~mask)
    moved = np.zeros(mask.shape, dtype=bool)
    for voxel in np.ndindex(mask.shape):
        nearest = min(math.hypot(*((np.array(voxel) - other) * spacing)) for other in source)
        moved[voxel] = nearest <= distance if distance >= 0 else nearest > -distance
    return moved


SHIFTS = [
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], 1, None, [[0, 1, 1, 1, 1, 1, 0]], id="dilate-by-one-voxel"),
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], -1, None, [[0, 0, 0, 1, 0, 0, 0]], id="erode-by-one-voxel"),
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], 0.9, None, [[0, 0, 1, 1, 1, 0, 0]], id="under-one-voxel-changes-nothing"),
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], 0, None, [[0, 0, 1, 1, 1, 0, 0]], id="zero-changes-nothing"),
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], 1, [2], [[0, 0, 1, 1, 1, 0, 0]], id="1-mm-is-half-a-voxel"),
    pytest.param([[0, 0, 1, 1, 1, 0, 0]], 1, [0.5], [[1] * 7], id="1-mm-is-two-voxels"),
    pytest.param([[1, 1, 1, 1, 0, 0]], -2, None, [[1, 1, 0, 0, 0, 0]], id="edge-of-the-image-does-not-erode"),
    pytest.param([[0, 1, 1, 0]], -5, None, [[0, 0, 0, 0]], id="erosion-may-empty-a-channel"),
    pytest.param([[0, 0, 0]], 2, None, [[0, 0, 0]], id="empty-is-unchanged"),
    pytest.param([[1, 1, 1]], -2, None, [[1, 1, 1]], id="full-is-unchanged"),
    pytest.param(
        [[0, 0, 1, 0, 0]] * 2, (1, -1), None, [[0, 1, 1, 1, 0], [0, 0, 0, 0, 0]], id="one-distance-per-channel"
    ),
    pytest.param([[0, 0, 0], [1, 0, 0]], 1, None, [[0, 0, 0], [1, 1, 0]], id="channels-do-not-mix"),
]


@pytest.mark.parametrize(("label", "distance", "spacing", "expected"), SHIFTS)
def test_boundary_moves_by_the_distance(label, distance, spacing, expected):
    assert shift_boundary(np.array(label), distance, spacing=spacing).tolist() == expected


@pytest.mark.parametrize("distance", [-2.3, -1, 0, 1, 1.5, 2.3])
@pytest.mark.parametrize(
    ("shape", "spacing"),
    [
        pytest.param((9, 8), None, id="2d"),
        pytest.param((9, 8), (0.7, 1.9), id="2d-anisotropic"),
        pytest.param((6, 5, 4), None, id="3d"),
        pytest.param((6, 5, 4), (1.1, 0.4, 2.5), id="3d-anisotropic"),
    ],
)
def test_shift_is_the_brute_force_comparison_of_distances(shape, spacing, distance):
    rng = np.random.default_rng(0)
    label = np.stack([rng.random(shape) < p for p in (0.1, 0.8)])
    moved = shift_boundary(label, distance, spacing=spacing)
    expected = [slow_shift(mask, distance, spacing or [1] * len(shape)) for mask in label]
    assert np.array_equal(moved, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"spacing": (1, 1)}, r"^spacing must be 1 positive numbers, one per spatial axis, got", id="axes"),
        pytest.param({"spacing": (0,)}, r"^spacing must be 1 positive numbers", id="zero-spacing"),
        pytest.param({"spacing": (math.inf,)}, r"^spacing must be 1 positive numbers", id="infinite-spacing"),
        pytest.param(
            {"distance": (1, 2)}, r"^distance must be one value or one per channel \(1\), got 2", id="channels"
        ),
        pytest.param({"distance": math.nan}, r"^distance must be .*, got .*nan", id="nan-distance"),
    ],
)
def test_shift_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        shift_boundary(LINE, **{"distance": 1, **options})


@pytest.mark.parametrize(
    ("seed", "case_id", "expected"),
    [
        pytest.param(0, "case-1", 16582742383818057294, id="ascii"),
        pytest.param(7, "é", 16892779245060347908, id="other-letters"),
    ],
)
def test_case_seed_is_the_same_number_for_ever(seed, case_id, expected):
    assert case_seed(seed, case_id) == expected


def test_case_seeds_are_64_bit_and_differ_between_seeds_and_cases():
    pairs = [(seed, f"case-{i}") for seed in range(20) for i in range(200)] + [(1, "1"), (11, ""), (1, ":1"), (-1, "1")]
    seeds = {case_seed(*pair) for pair in pairs}
    assert len(seeds) == len(pairs)
    assert all(0 <= seed < 2**64 for seed in seeds)
