from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy import ndimage, stats

from monai_sc.functional import dense_noise, markov_label_noise
from monai_sc.functional.dense_noise import markov_label_noise_batch

GROW = {"num_steps": 2, "expansion_prob": 1, "march_prob": 1}
NOISE = {"num_steps": 11, "expansion_prob": 0.6, "march_prob": 0.4, "flip_prob": 0.05}


def ball(shape, centre, radius):
    grid = np.indices(shape) - np.reshape(centre, (-1, *[1] * len(shape)))
    return (grid**2).sum(axis=0) <= radius**2


def batch_noise(clean, seeds, **parameters):
    """Return as numpy the noise that each seed makes of one clean label ``(channels, *spatial)``."""
    batch = torch.from_numpy(np.asarray(clean)).expand(len(seeds), *np.shape(clean))
    return markov_label_noise_batch(batch, seeds=seeds, **parameters).numpy()


def slow_noise(clean, num_steps, expansion_prob, march_prob, flip_prob, rng):
    """Definition 1 of Yao et al. (ICLR 2023): every step looks at every voxel of the image."""
    mask = clean.copy()
    for _ in range(num_steps):
        growing = mask if rng.random() < expansion_prob else ~mask
        ring = ndimage.binary_dilation(growing) & ~growing
        mask ^= ring & (rng.random(mask.shape) < march_prob)
    return mask ^ ((mask == clean) & (rng.random(mask.shape) < flip_prob))


def measures(masks, clean):
    """Return the area, the Dice and the mean distance of the edge from the clean one (outward is positive) of masks."""
    phi = ndimage.distance_transform_edt(~clean) - ndimage.distance_transform_edt(clean)
    edges = [mask & ndimage.binary_dilation(~mask) for mask in masks]
    return {
        "area": [int(mask.sum()) for mask in masks],
        "Dice": [2 * (mask & clean).sum() / (mask.sum() + clean.sum()) for mask in masks],
        "displacement": [phi[edge].sum() / max(edge.sum(), 1) for edge in edges],
    }


def smallest_p_value(first, second, clean):
    pairs = zip(measures(first, clean).values(), measures(second, clean).values(), strict=True)
    return min(stats.ks_2samp(*pair, method="asymp").pvalue for pair in pairs)


LAWS = [
    pytest.param(ball((24, 22), (8, 6), 7), 7, 0.6, 0.4, 0.0, id="2d-mixed-and-cut-by-the-edge"),
    pytest.param(ball((24, 22), (12, 11), 6), 5, 0.9, 0.7, 0.05, id="2d-expanding-with-flips"),
    pytest.param(ball((40, 40), (20, 20), 14), 30, 0.2, 0.1, 0.01, id="2d-long-and-shrinking"),
    pytest.param(np.random.default_rng(0).random((24, 24)) < 0.4, 20, 0.5, 0.4, 0.0, id="2d-speckles"),
    pytest.param(ball((12, 11, 13), (6, 2, 6), 4), 9, 0.6, 0.2, 0.01, id="3d-mixed-and-cut-by-the-edge"),
    pytest.param(ball((16, 16, 16), (8, 8, 8), 4), 20, 0.7, 0.1, 0.0, id="3d-long-and-expanding"),
]


@pytest.mark.parametrize(("clean", "steps", "expansion", "march", "flip"), LAWS)
def test_result_is_distributed_as_in_the_definition_and_as_that_of_the_other_function(
    clean, steps, expansion, march, flip
):
    runs, rng = 400, np.random.default_rng(1)
    parameters = {"num_steps": steps, "expansion_prob": expansion, "march_prob": march, "flip_prob": flip}
    found = batch_noise(clean[None], range(500, 500 + runs), **parameters)[:, 0]
    slow = np.stack([slow_noise(clean, steps, expansion, march, flip, rng) for _ in range(runs)])
    # Other seeds: the two functions draw from equal seeds whether a step expands in the same way.
    others = np.stack([markov_label_noise(clean[None], **parameters, seed=9999 + s)[0] for s in range(runs)])
    for expected in (slow, others):
        assert smallest_p_value(found, expected, clean) > 0.01
        frequency = (found.mean(axis=0) + expected.mean(axis=0)) / 2
        standard_error = np.sqrt(2 * frequency * (1 - frequency) / runs)
        assert np.all(np.abs(found.mean(axis=0) - expected.mean(axis=0)) <= 4.5 * standard_error)


def test_the_comparison_of_distributions_notices_a_tenth_more_march():
    clean = ball((40, 40), (20, 20), 10)
    parameters = {"num_steps": 30, "expansion_prob": 0.8}
    first = batch_noise(clean[None], range(400), **parameters, march_prob=0.10)[:, 0]
    second = batch_noise(clean[None], range(400, 800), **parameters, march_prob=0.11)[:, 0]
    assert smallest_p_value(first, second, clean) < 1e-5


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
    noisy = batch_noise(clean[None], range(runs), num_steps=1, expansion_prob=theta1, march_prob=theta2)[:, 0]
    frequency = noisy.mean(axis=0)
    outer = ndimage.binary_dilation(clean) & ~clean
    inner = ndimage.binary_dilation(~clean) & clean
    for ring, p in ((outer, theta1 * theta2), (inner, 1 - theta2 + theta1 * theta2)):
        assert np.abs(frequency[ring] - p).max() <= 4 * math.sqrt(p * (1 - p) / runs)
    rest = ~(outer | inner)
    assert np.array_equal(frequency[rest], clean[rest])


def test_draws_of_steps_voxels_channels_and_seeds_are_independent():
    # Each empty voxel of a chequerboard stays with (1 - p)^k, and never comes back.
    p, board = 0.3, np.indices((64, 64)).sum(axis=0) % 2 == 0
    label = np.stack([board, board])
    left = {
        k: 1.0 - batch_noise(label, range(20), num_steps=k, expansion_prob=1, march_prob=p)[..., ~board]
        for k in range(1, 10)
    }
    for k, still in left.items():
        expected = (1 - p) ** k
        assert abs(still.mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / still.size)
    moved = left[1].reshape(20, 2, 64, 32) - left[1].mean()
    variance, n = p * (1 - p), moved.size
    neighbours = [
        (moved[1:], moved[:-1]),
        (moved[:, 1], moved[:, 0]),
        (moved[:, :, 1:], moved[:, :, :-1]),
        (moved[..., 1:], moved[..., :-1]),
    ]
    for a, b in neighbours:
        assert abs((a * b).mean()) / variance < 4.5 / math.sqrt(n / 2)


def test_the_generator_is_splitmix64():
    # The first numbers for the seed 0 of the authors' implementation, https://prng.di.unimi.it/splitmix64.c
    found = dense_noise._splitmix64(torch.arange(1, 4) * dense_noise.GOLDEN)
    assert [v % 2**64 for v in found.tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("steps", [1, 2, 4, 9, 17])
def test_certain_march_is_morphology_and_the_outside_of_the_image_counts_for_nothing(label, steps):
    cross = ndimage.generate_binary_structure(label.ndim - 1, 1)
    grown = batch_noise(label, [0], num_steps=steps, expansion_prob=1, march_prob=1)[0]
    shrunk = batch_noise(label, [0], num_steps=steps, expansion_prob=0, march_prob=1)[0]
    for channel, mask in enumerate(label):
        assert np.array_equal(grown[channel], ndimage.binary_dilation(mask, cross, iterations=steps))
        assert np.array_equal(shrunk[channel], ndimage.binary_erosion(mask, cross, iterations=steps, border_value=1))


CERTAIN = [
    pytest.param({}, id="plain"),
    pytest.param({"num_steps": (3, 12)}, id="steps-per-channel"),
    pytest.param({"expansion_prob": (0.2, 0.9), "flip_prob": (0, 1)}, id="parameters-per-channel"),
    pytest.param({"march_prob": (1, 0)}, id="one-channel-does-not-march"),
    pytest.param({"smoothing": "before_flips"}, id="smooth"),
    pytest.param({"smoothing": "before_flips", "flip_prob": 1}, id="smooth-then-flipped"),
    pytest.param({"smoothing": "after_flips", "flip_prob": 1}, id="flipped-then-smooth"),
    pytest.param({"smoothing": "after_flips", "smooth_sigma": 2.0, "smooth_radius": 2}, id="as-the-released-masks"),
    pytest.param({"smoothing": "before_flips", "smooth_sigma": 6.3}, id="filter-larger-than-the-image"),
    pytest.param({"spacing": (3.0, 1.0, 1.4)}, id="thick-first-axis"),
    pytest.param({"spacing": (1.0, 2.0, 4.0)}, id="centres-on-boundaries"),
    pytest.param({"spacing": (1.0, 1.0, 1.0), "step_size": 0.5}, id="half-steps"),
    pytest.param({"spacing": (3.0, 1.0, 1.0), "smoothing": "before_flips", "smooth_sigma": 2.0}, id="smooth-in-steps"),
    pytest.param({"spacing": (2.0, 1.0, 4.0), "smoothing": "after_flips", "smooth_radius": 3}, id="radius-in-steps"),
]
IN_PLANE = [
    pytest.param({"slice_axis": 0}, id="slices-along-the-first-axis"),
    pytest.param({"slice_axis": 1, "slice_correlation": 0.3}, id="along-the-second"),
    pytest.param({"slice_axis": 2, "smoothing": "before_flips"}, id="along-the-third-smooth"),
    pytest.param({"spacing": (1.0, 5.0, 2.0), "smoothing": "after_flips", "smooth_sigma": 2.0}, id="thickest"),
]


@pytest.mark.parametrize("options", CERTAIN)
def test_where_every_draw_is_certain_the_bytes_are_those_of_the_other_function(label, options):
    options = dict(options)
    if "spacing" in options:
        options["spacing"] = options["spacing"][: label.ndim - 1]
    parameters = {"num_steps": 9, "expansion_prob": 0.5, "march_prob": 1, **options}
    seeds = [5, 2**40, 0]
    expected = np.stack([markov_label_noise(label, **parameters, seed=seed) for seed in seeds])
    assert np.array_equal(batch_noise(label, seeds, **parameters), expected)


@pytest.mark.parametrize("options", IN_PLANE)
def test_in_plane_bytes_are_those_of_the_other_function_where_every_draw_is_certain(options):
    label = np.stack([ball((9, 12, 10), (4, 6, 5), 4), ball((9, 12, 10), (0, 6, 9), 6)])
    parameters = {"num_steps": 10, "expansion_prob": 0.5, "march_prob": 1, "in_plane": True, **options}
    seeds = [5, 2**40, 0]
    expected = np.stack([markov_label_noise(label, **parameters, seed=seed) for seed in seeds])
    assert np.array_equal(batch_noise(label, seeds, **parameters), expected)


VOLUME = ball((10, 16, 16), (5, 8, 8), 4)
OPTIONS = [
    pytest.param(ball((12, 30), (6, 15), 5), {"spacing": (3.0, 1.0)}, id="2d-in-mm"),
    pytest.param(VOLUME, {"spacing": (2.0, 1.0, 1.0), "smoothing": "before_flips"}, id="3d-in-mm-smooth"),
    pytest.param(ball((24, 24), (12, 12), 7), {"smoothing": "after_flips", "flip_prob": 0.2}, id="2d-smooth-flips"),
    pytest.param(VOLUME, {"in_plane": True, "slice_axis": 0, "slice_correlation": 0.6}, id="3d-in-plane"),
    pytest.param(VOLUME, {"in_plane": True, "spacing": (3.0, 1.0, 1.5), "flip_prob": 0.01}, id="3d-in-plane-in-mm"),
]


@pytest.mark.parametrize(("clean", "options"), OPTIONS)
def test_with_every_option_the_distribution_is_that_of_the_other_function(clean, options):
    parameters = {"num_steps": 14, "expansion_prob": 0.7, "march_prob": 0.3, **options}
    found = batch_noise(clean[None], range(300), **parameters)[:, 0]
    others = np.stack([markov_label_noise(clean[None], **parameters, seed=9999 + s)[0] for s in range(300)])
    assert smallest_p_value(found, others, clean) > 0.01


@pytest.mark.parametrize(
    ("spacing", "steps", "moved"),
    [
        pytest.param((3, 1), 1, 0, id="a-third-of-a-voxel-is-none"),
        pytest.param((3, 1), 2, 1, id="two-thirds-are-one"),
        pytest.param((2, 1), 1, 0, id="half-a-voxel-is-none"),
        pytest.param((2, 1), 2, 1, id="a-whole-voxel"),
        pytest.param((1, 3), 4, 4, id="along-the-short-side"),
    ],
)
@pytest.mark.parametrize("expands", [1, 0])
def test_certain_steps_move_a_face_by_their_length_in_mm(spacing, steps, moved, expands):
    slab = np.zeros((1, 20, 6), dtype=bool)
    slab[:, :10] = True
    noisy = batch_noise(slab, [0], num_steps=steps, expansion_prob=expands, march_prob=1, spacing=spacing)
    assert np.array_equal(noisy[0, 0].sum(axis=0), np.full(6, 10 + (moved if expands else -moved)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_in_plane_slices_stay_apart(axis):
    clean = np.zeros((1, 9, 10, 11), dtype=bool)
    middle = [slice(None)] * 3
    middle[axis] = 4
    clean[0][tuple(middle)][2:7, 2:7] = True
    noisy = batch_noise(clean, [0], num_steps=3, expansion_prob=1, march_prob=1, in_plane=True, slice_axis=axis)
    expected = np.zeros_like(clean[0])
    expected[tuple(middle)] = ndimage.binary_dilation(clean[0][tuple(middle)], iterations=3)
    assert np.array_equal(noisy[0, 0], expected)


@pytest.mark.parametrize("correlation", [0.0, 1.0])
def test_neighbouring_slices_share_their_steps_but_not_the_draws_of_their_voxels(correlation):
    volume = np.repeat(ball((12, 12), (6, 6), 3)[None], 4, axis=0)[None]
    parameters = {"num_steps": 1, "expansion_prob": 0.5, "march_prob": 0.5}
    noisy = batch_noise(volume, range(400), **parameters, in_plane=True, slice_axis=0, slice_correlation=correlation)[
        :, 0
    ]
    expands = noisy.sum(axis=(2, 3)) > volume[0, 0].sum()  # a ring has so many voxels that some of them move
    assert expands.mean() == pytest.approx(0.5, abs=0.12)
    agree = (expands[:, 1:] == expands[:, :-1]).mean()
    assert agree == pytest.approx(1 if correlation else 0.5, abs=0 if correlation else 0.08)
    assert (noisy[:, 1:] == noisy[:, :-1]).all(axis=(2, 3)).sum() == 0


def test_voxels_that_the_march_moved_do_not_flip_and_the_others_do_with_their_probability(label):
    marched = batch_noise(label, [0], **GROW)[0]
    moved = marched != label
    runs, p = 600, 0.3
    flipped = (batch_noise(label, range(runs), **GROW, flip_prob=p) != marched).mean(axis=0)
    assert not flipped[moved].any()
    assert np.abs(flipped[~moved] - p).max() <= 4.5 * math.sqrt(p * (1 - p) / runs)


@pytest.mark.parametrize(
    ("sigma", "radius"), [pytest.param(1.4, None, id="four-sigma"), pytest.param(2.0, 2, id="as-the-released-masks")]
)
def test_smoothing_is_the_filter_of_scipy_to_the_last_bit(sigma, radius):
    label = np.random.default_rng(0).random((3, 200, 190)) < 0.5
    options = {"smoothing": "before_flips", "smooth_sigma": sigma, "smooth_radius": radius}
    smooth = batch_noise(label, [0], num_steps=0, expansion_prob=0, march_prob=0, **options)[0]
    expected = [ndimage.gaussian_filter(mask.astype(np.float32), sigma, radius=radius) > 0.5 for mask in label]
    assert np.array_equal(smooth, expected)
    assert not np.array_equal(smooth, label)


@pytest.mark.parametrize("name", ["num_steps", "expansion_prob", "march_prob", "flip_prob"])
def test_a_parameter_per_channel_acts_on_its_channel_alone(label, name):
    low, high = (0, 13) if name == "num_steps" else (0, 1)
    both = batch_noise(label, [5], **{**NOISE, name: (low, high)})[0]
    assert np.array_equal(both[0], batch_noise(label, [5], **{**NOISE, name: low})[0, 0])
    assert np.array_equal(both[1], batch_noise(label, [5], **{**NOISE, name: high})[0, 1])
    assert np.any(both != batch_noise(label, [5], **{**NOISE, name: (high, low)})[0])


@pytest.mark.parametrize("chunk", [1, 2000, 2**24])
def test_an_item_depends_neither_on_its_batch_nor_on_its_place_in_it(label, chunk, monkeypatch):
    monkeypatch.setitem(dense_noise.LARGEST_CHUNK, "cpu", chunk)
    labels = torch.from_numpy(np.stack([label, label[::-1], 1 - label, label * 0]))
    seeds = [3, 3, 2**70, 8]
    together = markov_label_noise_batch(labels, seeds=seeds, **NOISE)
    for k, seed in enumerate(seeds):
        assert torch.equal(markov_label_noise_batch(labels[k : k + 1], seeds=[seed], **NOISE)[0], together[k])
    order = [2, 0, 3, 1]
    assert torch.equal(
        markov_label_noise_batch(labels[order], seeds=[seeds[k] for k in order], **NOISE), together[order]
    )


def test_equal_channels_and_equal_labels_with_other_seeds_get_different_noise(label):
    twins = np.stack([label[0]] * 3)
    seeds = [0, 1, 2**32, 2**32 + 1]
    noisy = batch_noise(twins, seeds, **NOISE).reshape(len(seeds) * 3, -1)
    assert len(np.unique(noisy, axis=0)) == len(noisy)


def test_same_seed_gives_the_same_bytes_and_global_random_states_are_neither_read_nor_set(label):
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    first = batch_noise(label, [11, 12], **NOISE)
    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()) == before
    torch.manual_seed(2)
    assert batch_noise(label, np.array([11, 12]), **NOISE).tobytes() == first.tobytes()


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 20])
def test_a_longer_process_begins_as_a_shorter_one(label, steps):
    parameters = {"expansion_prob": 1, "march_prob": 0.3}
    short = batch_noise(label, [4, 5], num_steps=steps, **parameters)
    longer = batch_noise(label, [4, 5], num_steps=steps + 1, **parameters)
    most = batch_noise(short[0], [0], num_steps=1, expansion_prob=1, march_prob=1)[0]
    assert np.all(short <= longer)
    assert np.all(longer[0] <= most)


@pytest.mark.parametrize("value", [0, 1], ids=["empty", "full"])
@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3), (1, 1), (1, 7)], ids=["2d", "3d", "one-voxel", "one-row"])
@pytest.mark.parametrize("smoothing", [None, "before_flips", "after_flips"])
def test_channel_without_a_boundary_gets_flips_only(value, shape, smoothing):
    label = np.full((1, *shape), value)
    march = {"num_steps": 5, "expansion_prob": 0.5, "march_prob": 1, "smoothing": smoothing}
    assert np.array_equal(batch_noise(label, [0], **march)[0], label)
    assert np.array_equal(batch_noise(label, [0], **march, flip_prob=1)[0], 1 - label)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float32, "bfloat16"])
@pytest.mark.parametrize("meta", [False, True], ids=["tensor", "metatensor"])
def test_kind_dtype_and_metadata_are_kept_and_the_input_is_not_written_to(label, dtype, meta):
    batch = torch.from_numpy(np.stack([label, label]))
    given = batch.to(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(batch.numpy().astype(dtype))
    if meta:
        given = MetaTensor(given, affine=np.diag([2.0, 0.5, 3.0, 1.0]), meta={"filename_or_obj": "case-1.nii.gz"})
    noisy = markov_label_noise_batch(given, seeds=[1, 2], **NOISE)
    assert type(noisy) is type(given)
    assert noisy.dtype == given.dtype
    assert noisy.device == given.device
    assert noisy.tolist() == markov_label_noise_batch(batch, seeds=[1, 2], **NOISE).to(given.dtype).tolist()
    assert given.tolist() == batch.to(given.dtype).tolist()
    assert noisy.data_ptr() != given.data_ptr()
    if meta:
        assert torch.equal(noisy.affine, given.affine)
        assert noisy.meta["filename_or_obj"] == "case-1.nii.gz"


@pytest.mark.parametrize("num_steps", [0, 3])
def test_label_is_not_written_to_where_there_is_nothing_to_do(num_steps):
    label = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    noisy = markov_label_noise_batch(label, seeds=[0], num_steps=num_steps, expansion_prob=1, march_prob=1)
    noisy[:] = True
    assert not label.any()


VIEWS = [
    pytest.param(lambda x: x[..., ::2], id="every-second-voxel"),
    pytest.param(lambda x: x.transpose(2, 3), id="transposed"),
    pytest.param(lambda x: x.permute(*range(1, x.ndim), 0).contiguous().permute(-1, *range(x.ndim - 1)), id="strides"),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("in_plane", [False, True], ids=["whole", "in-plane"])
def test_labels_that_are_not_contiguous_are_read_as_they_are(label, view, in_plane):
    options = {"in_plane": True, "slice_axis": 1} if in_plane and label.ndim == 4 else {}
    given = view(torch.from_numpy(np.stack([label, label])))
    plain = given.clone(memory_format=torch.contiguous_format)
    assert not given.is_contiguous()
    first, second = (markov_label_noise_batch(x, seeds=[1, 2], **NOISE, **options) for x in (given, plain))
    assert torch.equal(first, second)


LINES = torch.tensor([[[0, 0, 1, 1, 0]], [[0, 1, 0, 0, 0]]])
REFUSED = [
    pytest.param({"num_steps": -1}, r"^num_steps must be a whole number of at least 0, got -1\.$", id="steps"),
    pytest.param({"march_prob": 1.1}, r"^march_prob must be a probability in \[0, 1\], got 1.1\.$", id="march"),
    pytest.param({"flip_prob": (0, 0)}, r"^flip_prob must be one value or one per channel \(1\), got 2", id="channels"),
    pytest.param({"smoothing": "yes"}, r"^smoothing must be one of None, 'before_flips'", id="smoothing"),
    pytest.param({"spacing": (1, 1)}, r"^spacing must be 1 positive numbers, one per spatial axis, got", id="spacing"),
    pytest.param({"step_size": 1.0}, r"^step_size needs spacing, got 1.0 without one", id="step-size"),
    pytest.param({"in_plane": True}, r"^in_plane needs a label with 3 spatial axes, got 1\.$", id="in-plane"),
    pytest.param(
        {"seeds": [1]},
        r"^seeds must be a whole number of at least 0 for each of the 2 items of the batch, got \[1\]\.$",
        id="too-few-seeds",
    ),
    pytest.param({"seeds": [1, -1]}, r"^seeds must be .* got \[1, -1\]\.$", id="negative-seed"),
    pytest.param({"seeds": [1, 0.5]}, r"^seeds must be .* got \[1, 0.5\]\.$", id="half-a-seed"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_parameter_out_of_range_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        markov_label_noise_batch(LINES, **{**GROW, "seeds": [0, 1], **parameters})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"theta": 1}, r"^theta is no parameter of the Markov label noise", id="name"),
        pytest.param({}, r"^num_steps must be given\.$", id="missing"),
    ],
)
def test_parameter_that_is_missing_or_has_another_name_is_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        markov_label_noise_batch(LINES, seeds=[0, 1], **parameters)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        pytest.param(LINES * 255, r"^label must be binary, .* got 255; .*label == 255", id="0-255"),
        pytest.param(LINES + 1.5, r"^label must be binary, .* got 1.5, 2.5;", id="other-values"),
        pytest.param(LINES * torch.nan, r"got nan;", id="nan"),
        pytest.param(
            LINES[0], r"^label must have the shape \(batch, channels, \*spatial\), got \(1, 5\)\.$", id="no-batch-axis"
        ),
        pytest.param(LINES[:0], r"^label must have the shape .*, got \(0, 1, 5\)\.$", id="empty-batch"),
    ],
)
def test_label_that_is_no_batch_of_binary_channels_is_refused(label, message):
    with pytest.raises(ValueError, match=message):
        markov_label_noise_batch(label, seeds=range(len(label)), **GROW)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("smoothing", [None, "before_flips", "after_flips"])
def test_bytes_on_a_gpu_are_those_on_a_cpu(label, smoothing):
    batch = torch.from_numpy(np.stack([label, 1 - label, label[::-1]]))
    options = {"smoothing": smoothing, "spacing": (2.0, 1.0, 1.0)[: label.ndim - 1]}
    on_gpu = markov_label_noise_batch(batch.cuda(), seeds=[1, 2, 3], **NOISE, **options)
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), markov_label_noise_batch(batch, seeds=[1, 2, 3], **NOISE, **options))
