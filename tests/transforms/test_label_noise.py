from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from monai.data import MetaTensor, set_track_meta

from monai_sc import transforms
from monai_sc.functional import (
    NOISE_PRESETS,
    coarsen_contour,
    drop_components,
    markov_label_noise,
    merge_masks,
    punch_holes,
    split_label_map,
    translate_label,
)
from monai_sc.transforms import (
    MarkovLabelNoise,
    MarkovLabelNoised,
    RandCoarsenContour,
    RandDilateErodeLabel,
    RandDropComponents,
    RandDropComponentsd,
    RandInnerHoles,
    RandInnerHolesd,
    RandLabelNoise,
    RandMarkovLabelNoise,
    RandMarkovLabelNoised,
    RandTranslateLabel,
    noise_preset,
    with_steps,
)
from monai_sc.transforms.label_noise import RandLabelNoised, random_lengths

NOISE = {"num_steps": 5, "expansion_prob": 0.7, "march_prob": 0.5}
NOISES = {  # with options by which small labels change; what every noise must do is tested here, in test_noise and fuzz
    RandMarkovLabelNoise: NOISE,
    RandDilateErodeLabel: {"radius": (1, 3)},
    RandDropComponents: {"drop_prob": 0.5},
    RandCoarsenContour: {"vertex_distance": (4, 9), "slice_axis": 0},
    RandInnerHoles: {"number": (2, 4), "radius": (0, 0.9)},
    RandTranslateLabel: {"distance": (1.5, 4), "slice_axis": 0},
}
MAPS = [pytest.param(noise, options, id=noise.__name__) for noise, options in NOISES.items()]


def label_map(shape=(30, 32)):
    """Return a map with touching classes 2 and 5, a class 7 and background."""
    grid = np.indices(shape)
    values = np.zeros(shape, dtype=np.int16)
    values[(grid[-2] > 5) & (grid[-2] < 22) & (grid[-1] > 5) & (grid[-1] < 15)] = 2
    values[(grid[-2] > 5) & (grid[-2] < 22) & (grid[-1] >= 15) & (grid[-1] < 25)] = 5
    values[(grid[-2] > 26) & (grid[-1] > 20)] = 7
    return values[None]


def as_meta(array, spacing):
    return MetaTensor(torch.as_tensor(array), affine=np.diag([*spacing, 1.0]))


def test_every_noise_is_tested():
    exported = [getattr(transforms, name) for name in transforms.__all__]
    noises = {one for one in exported if isinstance(one, type) and issubclass(one, RandLabelNoise)}
    assert noises - {RandLabelNoise} == {*NOISES}


@pytest.mark.parametrize(("transform", "options"), MAPS)
@pytest.mark.parametrize("shape", [(30, 32), (4, 30, 32)], ids=["2d", "3d"])
@pytest.mark.parametrize("overlap", ["nearest", "priority"])
def test_every_noise_keeps_a_label_map_valid(transform, options, shape, overlap):
    values = label_map(shape)
    noise = transform(1.0, classes=[2, 5], overlap=overlap, **options).set_random_state(3)
    changed = False
    for _ in range(4):
        noisy = noise(values)
        assert noisy.dtype == torch.int16
        assert set(np.unique(noisy)) <= {0, 2, 5, 7}
        assert np.array_equal(noisy == 7, values == 7)
        changed |= bool(np.any(np.asarray(noisy) != values))
    assert changed


def test_parameters_are_per_class_and_the_masks_are_those_of_the_law():
    values = label_map()
    parameters = {**NOISE, "num_steps": (0, 6), "expansion_prob": (0.5, 1.0)}
    noise = RandMarkovLabelNoise(1.0, classes=[5, 2], overlap="priority", **parameters).set_random_state(0)
    noisy = noise(values)
    masks = markov_label_noise(split_label_map(values, [5, 2]), **parameters, seed=noise.seed)
    assert np.array_equal(noisy, merge_masks(masks, values, [5, 2], overlap="priority"))
    assert np.array_equal(noisy == 5, values == 5)  # no step, and the first in order of priority
    assert np.sum(np.asarray(noisy) == 2) > np.sum(values == 2)


def test_fixed_and_dictionary_versions_know_label_maps():
    values = label_map()
    options = {**NOISE, "classes": [2, 5], "overlap": "priority", "background": 0}
    fixed = MarkovLabelNoise(**options, seed=3)(values, "a")
    assert np.array_equal(MarkovLabelNoised("label", **options, seed=3)({"label": values, "id": "a"})["label"], fixed)
    assert np.any(np.asarray(fixed) != values)
    array, dictionary = RandMarkovLabelNoise(1.0, **options), RandMarkovLabelNoised("label", 1.0, **options)
    array.set_random_state(1)
    dictionary.set_random_state(1)
    assert np.array_equal(array(values), dictionary({"label": values})["label"])


def test_classes_with_a_background_that_is_not_zero():
    values = np.where(label_map() == 0, 255, label_map())
    noisy = RandMarkovLabelNoise(1.0, classes=[2, 5], background=255, **NOISE).set_random_state(0)(values)
    assert set(np.unique(noisy)) == {2, 5, 7, 255}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"classes": [1, 1]}, r"classes must be the values of one or more classes", id="twice"),
        pytest.param({"classes": [0]}, r"classes must not hold the value of the background", id="background"),
        pytest.param({"overlap": "allow"}, r"overlap must be one of 'nearest', 'priority', got 'allow'", id="overlap"),
        pytest.param({"unit": "cm"}, r"unit must be one of 'voxel', 'mm', got 'cm'", id="unit"),
    ],
)
@pytest.mark.parametrize(("transform", "own"), MAPS)
def test_options_out_of_range_are_refused(transform, own, options, message):
    with pytest.raises(ValueError, match=message):
        transform(1.0, **own, **options)


@pytest.mark.parametrize("transform", [RandMarkovLabelNoise, MarkovLabelNoise])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"num_steps": 3}, "expansion_prob must be given", id="missing"),
        pytest.param(
            {**NOISE, "theta": 3}, "theta is not a parameter of the Markov label noise, which has ", id="unknown"
        ),
    ],
)
def test_missing_and_unknown_parameters_are_refused(transform, parameters, message):
    with pytest.raises(TypeError, match=message):
        transform(**parameters)


class TestUnitsAndSlices:
    def volume(self):
        values = np.zeros((1, 10, 24, 24), dtype=np.uint8)
        values[:, 3:7, 8:16, 8:16] = 1
        return values

    def test_steps_in_mm_follow_the_affine(self):
        given = as_meta(self.volume(), (3.0, 1.0, 1.0))
        noise = RandMarkovLabelNoise(1.0, unit="mm", **NOISE).set_random_state(0)
        noisy = noise(given)
        expected = markov_label_noise(self.volume(), **NOISE, spacing=(3.0, 1.0, 1.0), seed=noise.seed)
        assert np.array_equal(noisy, expected)
        assert not np.array_equal(expected, markov_label_noise(self.volume(), **NOISE, seed=noise.seed))

    @pytest.mark.parametrize("spacing", [(4.0, 1.0, 1.0), (1.0, 1.0, 4.0)])
    def test_slices_lie_as_the_affine_says(self, spacing):
        given = as_meta(self.volume(), spacing)
        noise = RandMarkovLabelNoise(1.0, in_plane=True, **NOISE).set_random_state(0)
        noisy = noise(given)
        axis = spacing.index(4.0)
        expected = markov_label_noise(self.volume(), **NOISE, in_plane=True, slice_axis=axis, seed=noise.seed)
        assert np.array_equal(noisy, expected)

    @pytest.mark.parametrize(
        "noise",
        [
            pytest.param(RandMarkovLabelNoise(1.0, in_plane=True, **NOISE), id="markov"),
            pytest.param(RandCoarsenContour(1.0, vertex_distance=(3, 4)), id="coarsen"),
            pytest.param(RandTranslateLabel(1.0, distance=(3, 4)), id="translate"),
        ],
    )
    def test_a_volume_without_an_affine_has_no_slices(self, noise):
        with pytest.raises(ValueError, match=r"label must be a MetaTensor with an affine, .* give slice_axis\.$"):
            noise(self.volume())

    def test_translation_stays_in_the_plane_and_has_its_length_in_mm(self):
        values = np.zeros((1, 9, 61, 121), dtype=np.uint8)
        values[0, 4, 30, 60] = 1
        noise = RandTranslateLabel(1.0, distance=(10, 10), unit="mm").set_random_state(0)
        moved = np.array([np.argwhere(noise(as_meta(values, (5.0, 1.0, 0.5))))[0].tolist() for _ in range(300)])
        shifts = (moved[:, 1:] - (4, 30, 60)) * (5.0, 1.0, 0.5)
        assert not shifts[:, 0].any()
        assert np.abs(np.linalg.norm(shifts, axis=1) - 10).max() < 0.6
        assert np.abs(shifts.mean(axis=0)).max() < 4.5 * 10 / math.sqrt(2 * 300)
        assert np.ptp(np.arctan2(shifts[:, 1], shifts[:, 2])) > 6

    def test_translation_is_the_shift_of_each_channel(self):
        values = np.zeros((2, 20, 20), dtype=np.uint8)
        values[:, 8:12, 8:12] = 1
        noise = RandTranslateLabel(1.0, distance=((0, 0), (3, 3))).set_random_state(0)
        moved = np.asarray(noise(values))
        assert np.array_equal(moved[0], values[0])
        allowed = {
            translate_label(values[1:], (3 * math.sin(a), 3 * math.cos(a))).tobytes() for a in np.linspace(0, 7, 999)
        }
        assert moved[1:].tobytes() in allowed

    def test_vertices_in_mm_follow_the_affine(self):
        disc = (np.hypot(*np.indices((40, 40)) - 20) < 15).astype(np.uint8)[None]
        noise = RandCoarsenContour(1.0, vertex_distance=(20, 20), unit="mm").set_random_state(0)
        noisy = noise(as_meta(disc, (2.0, 2.0, 1.0)))
        assert np.array_equal(noisy, coarsen_contour(disc, 10, seed=noise.seed))


def test_dropped_components_are_those_of_the_function():
    label = np.zeros((2, 12, 12), dtype=np.uint8)
    label[:, ::3, ::3] = 1
    noise = RandDropComponents(1.0, drop_prob=(0.2, 0.9)).set_random_state(0)
    noisy = noise(label)
    assert np.array_equal(noisy, drop_components(label, (0.2, 0.9), seed=noise.seed))
    dictionary = RandDropComponentsd("label", 1.0, drop_prob=(0.2, 0.9)).set_random_state(0)
    assert np.array_equal(dictionary({"label": label})["label"], noisy)


def test_holes_are_those_of_the_function_and_background_in_a_map():
    label = np.zeros((2, 30, 30), dtype=np.uint8)
    label[:, 4:26, 4:26] = 1
    options = {"number": ((1, 3), (5, 5)), "radius": ((2, 4), (1, 2))}
    noise = RandInnerHoles(1.0, **options).set_random_state(0)
    noisy = noise(label)
    assert np.array_equal(noisy, punch_holes(label, **options, seed=noise.seed))
    dictionary = RandInnerHolesd("label", 1.0, **options).set_random_state(0)
    assert np.array_equal(dictionary({"label": label})["label"], noisy)
    in_mm = RandInnerHoles(1.0, number=(1, 1), radius=(6, 6), unit="mm").set_random_state(0)
    hole = np.argwhere(np.asarray(in_mm(as_meta(label[:1], (2.0, 1.0)))) != label[:1])[:, 1:]
    assert np.ptp(hole, axis=0).tolist() == [6, 12]
    values = np.where(label_map((60, 60)) == 0, 9, label_map((60, 60)))
    noisy = np.asarray(
        RandInnerHoles(1.0, number=(2, 2), radius=(1, 2), classes=[2], background=9).set_random_state(0)(values)
    )
    assert set(values[noisy != values]) == {2}
    assert set(noisy[noisy != values]) == {9}


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        pytest.param(RandInnerHoles, {"number": 3, "radius": (1, 2)}, r"number must be \(low, high\)", id="number"),
        pytest.param(
            RandDropComponents, {"drop_prob": 2}, r"drop_prob must be a probability in \[0, 1\], got 2", id="p"
        ),
        pytest.param(
            RandCoarsenContour, {"vertex_distance": (0, 2)}, "vertex_distance must be over 0", id="no-distance"
        ),
        pytest.param(RandCoarsenContour, {"vertex_distance": (3, 2)}, r"must be \(low, high\)", id="order"),
        pytest.param(RandTranslateLabel, {"distance": 3}, r"distance must be \(low, high\)", id="one-number"),
        pytest.param(RandTranslateLabel, {"distance": (1, 2), "slice_axis": 7}, "slice_axis must be one of", id="axis"),
    ],
)
def test_own_options_out_of_range_are_refused(transform, options, message):
    with pytest.raises(ValueError, match=message):
        transform(1.0, **options)


class TestPresets:
    @pytest.mark.parametrize("name", NOISE_PRESETS)
    def test_each_makes_a_transform_that_changes_a_label(self, name):
        preset = NOISE_PRESETS[name]
        shape = (20, 40, 40) if name.startswith("brats") else (80, 80)
        grid = np.indices(shape) - np.reshape(shape, (-1, *[1] * len(shape))) / 2
        label = np.repeat((np.linalg.norm(grid, axis=0) < 9)[None], len(preset.structures), axis=0)
        noise = noise_preset(name).set_random_state(0)
        changed = np.asarray(noise(label)) != label
        assert changed.reshape(len(label), -1).any(axis=1).all()
        for structure in preset.structures:
            assert np.any(np.asarray(noise_preset(name, structure=structure)(label[:1])) != label[:1])

    def test_one_structure_has_its_own_values(self):
        noise = noise_preset("jsrt-shrink-paper", structure="clavicle", flip_prob=0.0)
        assert (noise.parameters["num_steps"], noise.parameters["march_prob"]) == (120, 0.05)
        assert noise.parameters["flip_prob"] == 0
        assert noise_preset("jsrt-mixed", structure="clavicle").radius == (3, 5)

    def test_options_reach_the_transform(self):
        noise = noise_preset("isic-mixed", 0.3, unit="mm", classes=[4])
        assert (noise.prob, noise.unit, noise.classes) == (0.3, "mm", [4])

    def test_presets_cannot_be_changed(self):
        with pytest.raises(TypeError, match="does not support item assignment"):
            NOISE_PRESETS["jsrt-expand"] = None
        NOISE_PRESETS["jsrt-expand"].parameters["num_steps"] = 1
        assert noise_preset("jsrt-expand").parameters["num_steps"] == (180, 180, 100)
        assert pickle.loads(pickle.dumps(NOISE_PRESETS["jsrt-expand"])) == NOISE_PRESETS["jsrt-expand"]

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(ValueError, match=r"^name must be one of 'jsrt-expand', .*, got 'jsrt'\.$"):
            noise_preset("jsrt")
        with pytest.raises(ValueError, match=r"^structure must be one of lung, heart, clavicle, got 'liver'\.$"):
            noise_preset("jsrt-expand", structure="liver")


def test_values_that_a_tensor_cannot_hold_are_refused():
    values = np.array([[0, 2**63 + 9, 7, 0]], dtype=np.uint64)
    with pytest.raises(ValueError, match=r"label must not hold values over 2\*\*63 - 1"):
        RandMarkovLabelNoise(1.0, classes=[7], **NOISE)(values)


@pytest.mark.parametrize("spacing", [(np.nan, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_an_affine_without_sizes_is_refused(spacing):
    volume = np.zeros((1, 4, 5, 6), dtype=np.uint8)
    with pytest.raises(ValueError, match="spacing must be 3 positive numbers"):
        RandMarkovLabelNoise(1.0, in_plane=True, **NOISE)(as_meta(volume, spacing))


class TestSteps:
    @pytest.mark.parametrize(
        ("steps", "most", "expected"),
        [
            pytest.param(70, 35, 35, id="one-number"),
            pytest.param((180, 180, 100), 240, [240, 240, 133], id="in-proportion"),
            pytest.param((70, 40), 70, [70, 40], id="as-it-was"),
            pytest.param((70, 40), 0, [0, 0], id="none"),
        ],
    )
    def test_the_longest_has_that_many_and_the_others_follow(self, steps, most, expected):
        noise = RandMarkovLabelNoise(0.5, num_steps=steps, expansion_prob=0.8, march_prob=0.1, unit="mm")
        changed = with_steps(noise, most)
        assert changed.parameters == {"num_steps": expected, "expansion_prob": 0.8, "march_prob": 0.1}
        assert (changed.prob, changed.unit) == (0.5, "mm")
        assert noise.parameters["num_steps"] == steps

    def test_more_steps_change_more_voxels(self):
        label = np.zeros((1, 60, 60), dtype=np.uint8)
        label[0, 20:40, 20:40] = 1
        noise = RandMarkovLabelNoise(1.0, num_steps=10, expansion_prob=0.8, march_prob=0.2)
        changed = [
            np.sum(np.asarray(with_steps(noise, steps).set_random_state(0)(label)) != label) for steps in (0, 10, 30)
        ]
        assert changed[0] == 0 < changed[1] < changed[2]

    def test_what_has_no_steps_is_refused(self):
        with pytest.raises(
            TypeError, match="noise must be a RandMarkovLabelNoise, got RandDilateErodeLabel, which has"
        ):
            with_steps(RandDilateErodeLabel(1.0, radius=(1, 2)), 10)
        with pytest.raises(ValueError, match="num_steps must be at least 0, and the noise must have steps, got -1"):
            with_steps(noise_preset("jsrt-expand"), -1)
        none = RandMarkovLabelNoise(1.0, num_steps=0, expansion_prob=0.8, march_prob=0.2)
        with pytest.raises(ValueError, match="and the noise must have steps, got 5 and 0"):
            with_steps(none, 5)


@pytest.mark.parametrize(("transform", "options"), MAPS)
def test_one_seed_is_drawn_after_the_draw_of_prob(transform, options):
    noise = transform(1.0, **options).set_random_state(3)
    state = np.random.RandomState(3)
    for _ in range(3):
        noise.randomize()
        state.rand()
        assert noise.seed == state.randint(2**32, dtype=np.uint64)


def test_without_a_draw_it_is_that_of_seed_0():
    noise = RandMarkovLabelNoise(1.0, **NOISE, classes=[2, 5])
    assert np.array_equal(noise(label_map(), randomize=False), noise.make_noisy(label_map(), 0))


@pytest.mark.parametrize(
    "convert",
    [lambda a: a.astype(">i2"), lambda a: a[:, ::-1], np.asfortranarray],
    ids=["big-endian", "negative-stride", "fortran"],
)
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_arrays_that_tensors_cannot_be_are_copied(convert, prob):
    values = convert(label_map())
    values.flags.writeable = False
    noise = RandMarkovLabelNoise(prob, **NOISE, classes=[2, 5]).set_random_state(0)
    plain = np.ascontiguousarray(values).astype(np.int16)
    noisy = noise(values)
    assert np.array_equal(noisy, noise.make_noisy(plain, noise.seed) if prob else plain)


def test_largest_values_of_a_tensor_are_kept():
    values = np.array([[0, 2**63 - 1, 7, 0, 0]], dtype=np.uint64)
    noisy = RandMarkovLabelNoise(1.0, classes=[7], num_steps=1, expansion_prob=1, march_prob=1)(values)
    assert noisy.tolist() == [[0, 2**63 - 1, 7, 7, 0]]
    with pytest.raises(ValueError, match=r"label must not hold values over 2\*\*63 - 1"):
        RandMarkovLabelNoise(1.0, classes=[7], **NOISE)(values + np.uint64(1))


@pytest.mark.parametrize(("transform", "options"), MAPS)
def test_label_without_a_spatial_axis_is_refused(transform, options):
    with pytest.raises(ValueError, match=r"^label must have the shape \(channels, \*spatial\), got \(3,\)\.$"):
        transform(1.0, **options)(np.zeros(3))


def test_mm_follow_the_affine_where_monai_tracks_none():
    given = as_meta(label_map() == 2, (2.0, 1.0))
    noise = RandDilateErodeLabel(1.0, radius=(3, 3), unit="mm").set_random_state(0)
    expected = np.asarray(noise(given))
    set_track_meta(False)
    try:
        found = noise(given, randomize=False)
    finally:
        set_track_meta(True)
    assert type(found) is torch.Tensor
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_lie_along_the_axis_that_is_given(axis):
    ball = (np.linalg.norm(np.indices((24, 24, 24)) - 12, axis=0) < 9).astype(np.uint8)[None]
    coarsen = RandCoarsenContour(1.0, vertex_distance=(8, 8), slice_axis=axis).set_random_state(0)
    noisy = coarsen(ball)
    assert np.array_equal(noisy, coarsen_contour(ball, 8, slice_axis=axis, seed=coarsen.seed))
    move = RandTranslateLabel(1.0, distance=(4, 4), slice_axis=axis).set_random_state(0)
    moved = [np.argwhere(move(ball))[:, 1:].mean(axis=0) - 12 for _ in range(5)]
    assert not np.any(np.transpose(moved)[axis])
    assert np.any(moved, axis=0).sum() == 2


def test_shortest_distance_of_vertices_is_over_zero():
    assert RandCoarsenContour(vertex_distance=((1, 2), (0.5, 1))).vertex_distance == ((1, 2), (0.5, 1))
    with pytest.raises(ValueError, match="vertex_distance must be over 0"):
        RandCoarsenContour(vertex_distance=((1, 2), (0, 1)))


@pytest.mark.parametrize("drop_prob", [0, 1, (0, 1), 0.5])
def test_limits_of_a_probability_belong_to_it(drop_prob):
    assert RandDropComponents(drop_prob=drop_prob).drop_prob == drop_prob


def test_lengths_of_channels_depend_on_their_number_and_the_seed():
    drawn = random_lengths((2.0, 3.0), 3, "radius", 7)
    for channel, (length, rng) in enumerate(drawn):
        expected = np.random.default_rng([7, channel])
        assert length == expected.uniform(2.0, 3.0)
        assert rng.random() == expected.random()
    assert len({length for length, _ in drawn}) == 3
    assert [length for length, _ in random_lengths(((2, 3), (1, 1)), 2, "radius", 7)] == [drawn[0][0], 1.0]
    with pytest.raises(ValueError, match=r"^radius must be one value or one per channel \(3\), got 2\.$"):
        random_lengths(((2, 3), (1, 1)), 3, "radius", 7)


def test_what_it_is_drawn_for_reaches_the_noise():
    class Noted(RandLabelNoise):
        def randomize(self, data=None):
            self.data = data

    noise = RandLabelNoised("label", Noted(1.0))
    noise.randomize("a label")
    assert noise.noise.data == "a label"
