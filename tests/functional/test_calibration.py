from __future__ import annotations

import numpy as np
import pytest
import torch

from monai_sc.functional import boundary_displacement, case_seed, markov_label_noise
from monai_sc.functional.calibration import calibrate_num_steps


def disc(size, radius, ndim=2):
    grid = np.indices((size,) * ndim) - (size - 1) / 2
    return ((grid**2).sum(axis=0) <= radius**2)[None]


DISCS = [disc(64, radius) for radius in (9, 12, 15, 18)]
SQUARE = np.pad(np.ones((1, 20, 20)), ((0, 0), (20, 20), (20, 20)))
GROW = {"expansion_prob": 1, "march_prob": 1}
SHRINK = {"expansion_prob": 0, "march_prob": 1}


def curve_of(labels, measure, most, spacing=None, seed=0, **parameters):
    """Return the mean Dice or displacement of every number of steps up to ``most``, with code of its own."""
    means = []
    for steps in range(most + 1):
        values = []
        for k, label in enumerate(labels):
            noise = {**parameters, "num_steps": steps, "seed": case_seed(seed, str(k)), "spacing": spacing}
            noisy = np.asarray(markov_label_noise(label, **noise))
            if measure == "displacement":
                values.extend(boundary_displacement(noisy, label, spacing=spacing))
            else:
                values.extend(
                    2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in zip(noisy > 0, label > 0, strict=True)
                )
        means.append(np.nanmean(values))
    return np.array(means)


@pytest.mark.parametrize(
    ("target", "parameters", "expected"),
    [
        pytest.param({"target_displacement": -3}, GROW, 3, id="grow-by-3-voxels"),
        pytest.param({"target_displacement": -3.4}, GROW, 3, id="the-nearest-is-below"),
        pytest.param({"target_displacement": -3.6}, GROW, 4, id="the-nearest-is-above"),
        pytest.param({"target_displacement": -3.5}, GROW, 3, id="of-two-alike-the-smaller"),
        pytest.param({"target_displacement": -7, "spacing": (2, 2)}, GROW, 3, id="mm-of-2-mm-voxels"),
        pytest.param({"target_displacement": 5}, SHRINK, 5, id="shrink-by-5-voxels"),
        pytest.param({"target_displacement": 0}, GROW, 0, id="not-at-all"),
        pytest.param({"target_dice": 1}, SHRINK, 0, id="dice-of-1"),
        # A square of 20 that loses 2 on every side: 2 * 256 / (400 + 256).
        pytest.param({"target_dice": 0.78}, SHRINK, 2, id="dice-of-a-smaller-square"),
        # After 10 steps nothing is left of it, and no step makes it worse.
        pytest.param({"target_dice": 0.001}, SHRINK, 10, id="dice-of-nothing"),
    ],
)
def test_number_of_steps_of_a_square_is_known(target, parameters, expected):
    displacement = target.get("target_displacement")
    # The corners of a square grown over face neighbours lag behind; a bar across the image has none.
    label = SQUARE if "target_dice" in target else np.pad(np.ones((1, 20, 9)), ((0, 0), (20, 20), (0, 0)))
    result = calibrate_num_steps([label], **target, **parameters)
    assert result.num_steps == expected
    if displacement is not None:
        unit = target.get("spacing", (1,))[0]
        assert result.displacement == pytest.approx(np.sign(displacement) * unit * expected, abs=1e-5)


@pytest.mark.parametrize(
    ("measure", "target", "parameters"),
    [
        pytest.param("dice", 0.85, {"expansion_prob": 1, "march_prob": 0.3}, id="dice-growing"),
        pytest.param("dice", 0.7, {"expansion_prob": 0, "march_prob": 0.2}, id="dice-shrinking"),
        pytest.param("dice", 0.999, {"expansion_prob": 1, "march_prob": 0.002}, id="dice-with-steps-of-no-effect"),
        # 20 to 25 steps give 0.99625.
        pytest.param("dice", 0.9962, {"expansion_prob": 1, "march_prob": 0.002}, id="dice-with-several-nearest"),
        pytest.param("displacement", -3, {"expansion_prob": 1, "march_prob": 0.3}, id="displacement-growing"),
        pytest.param("displacement", 2, {"expansion_prob": 0, "march_prob": 0.1}, id="displacement-shrinking"),
    ],
)
def test_it_is_the_smallest_of_all_numbers_that_are_nearest(measure, target, parameters):
    curve = curve_of(DISCS, measure, 60, **parameters)
    result = calibrate_num_steps(DISCS, **{f"target_{measure}": target}, **parameters)
    assert result.num_steps == np.argmin(np.abs(curve - target))
    assert getattr(result, measure) == pytest.approx(curve[result.num_steps], abs=1e-6)


@pytest.mark.parametrize(
    ("measure", "target", "parameters"),
    [
        pytest.param("dice", 0.8, {"expansion_prob": 0.6, "march_prob": 0.5}, id="dice"),
        pytest.param("dice", 0.7, {"expansion_prob": 0.5, "march_prob": 0.4}, id="dice-without-drift"),
        pytest.param("dice", 0.7, {"expansion_prob": 0.7, "march_prob": 0.4, "flip_prob": 0.03}, id="dice-with-flips"),
        pytest.param("displacement", -2, {"expansion_prob": 0.7, "march_prob": 0.4}, id="displacement"),
        pytest.param(
            "displacement",
            -2,
            {"expansion_prob": 0.7, "march_prob": 0.4, "smoothing": "before_flips"},
            id="displacement-smoothed",
        ),
    ],
)
def test_where_the_mean_goes_up_and_down_it_is_one_of_the_crossings(measure, target, parameters):
    curve = curve_of(DISCS, measure, 60, **parameters)
    steps = calibrate_num_steps(DISCS, **{f"target_{measure}": target}, **parameters).num_steps
    around = curve[max(steps - 1, 0) : steps + 2]
    assert around.min() <= target <= around.max()
    assert abs(curve[steps] - target) <= np.abs(np.diff(around)).max()


@pytest.mark.parametrize("known", [3, 17, 100])
@pytest.mark.parametrize("measure", ["dice", "displacement"])
def test_known_number_of_steps_is_recovered_from_other_draws(known, measure):
    labels = [disc(96, radius) for radius in np.linspace(12, 24, 20)]
    parameters = {"expansion_prob": 0.8, "march_prob": 0.1}
    noisy = [
        markov_label_noise(label, num_steps=known, **parameters, seed=case_seed(7, str(k)))
        for k, label in enumerate(labels)
    ]
    if measure == "dice":
        value = np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in zip(noisy, labels, strict=True)])
    else:
        value = np.mean([boundary_displacement(a, b)[0] for a, b in zip(noisy, labels, strict=True)])
    result = calibrate_num_steps(labels, **{f"target_{measure}": value}, **parameters)
    # Each case is a walk of its own, with a standard deviation of 0.8 sqrt(T) steps and a drift of 0.6 T.
    assert result.num_steps == pytest.approx(known, abs=1 + 4 * np.sqrt(2 / 20) * 0.8 / 0.6 * np.sqrt(known))


def test_numbers_of_3d_labels_in_mm_and_with_one_spacing_per_label():
    labels = [disc(24, 6, ndim=3), disc(24, 8, ndim=3)]
    parameters = {"expansion_prob": 0.9, "march_prob": 0.4}
    one = calibrate_num_steps(labels, target_displacement=-2, spacing=(1, 0.5, 0.5), **parameters)
    curve = curve_of(labels, "displacement", 40, spacing=(1, 0.5, 0.5), **parameters)
    assert abs(one.displacement + 2) <= np.abs(np.diff(curve)).max()
    assert one.displacement == pytest.approx(curve[one.num_steps], abs=1e-5)
    each = calibrate_num_steps(labels, target_displacement=-2, spacing=[(1, 0.5, 0.5)] * 2, **parameters)
    assert each == one
    other = calibrate_num_steps(labels, target_displacement=-2, spacing=[(1, 0.5, 0.5), (1, 1, 1)], **parameters)
    assert other != one


def test_displacement_of_the_result_is_that_of_whole_images_with_flips():
    parameters = {"expansion_prob": 0.8, "march_prob": 0.4, "flip_prob": 0.002}
    result = calibrate_num_steps(DISCS, target_dice=0.8, **parameters)
    curve = curve_of(DISCS, "displacement", result.num_steps, **parameters)
    assert result.displacement == pytest.approx(curve[-1], abs=1e-6)


def test_channels_have_parameters_of_their_own_and_empty_ones_do_not_count():
    label = np.concatenate([DISCS[0], DISCS[3], np.zeros_like(DISCS[0])])
    result = calibrate_num_steps([label, label], target_dice=0.8, expansion_prob=1, march_prob=[0.2, 0.4, 1])
    curve = curve_of([label[:2]] * 2, "dice", 40, expansion_prob=1, march_prob=[0.2, 0.4])
    assert result.num_used == 4
    assert result.num_steps == np.argmin(np.abs(curve - 0.8))


def test_tensors_and_integer_labels_give_the_same():
    parameters = {"target_dice": 0.8, "expansion_prob": 0.8, "march_prob": 0.3}
    expected = calibrate_num_steps(DISCS, **parameters)
    assert calibrate_num_steps([torch.from_numpy(label.astype(np.uint8)) for label in DISCS], **parameters) == expected


def test_curve_holds_what_was_tried_in_rising_order():
    result = calibrate_num_steps(DISCS, target_dice=0.8, expansion_prob=1, march_prob=0.3)
    steps = [point[0] for point in result.curve]
    assert steps == sorted(set(steps))
    assert dict(result.curve)[result.num_steps] == result.dice
    values = [point[1] for point in result.curve]
    assert values == sorted(values, reverse=True)


def test_masks_that_vanish_have_a_dice_and_no_displacement():
    labels = [disc(64, 3), disc(64, 25)]
    result = calibrate_num_steps(labels, target_displacement=8, **SHRINK)
    assert (result.num_used, result.num_lost) == (2, 1)
    curve = curve_of(labels[1:], "displacement", result.num_steps, **SHRINK)
    assert result.displacement == pytest.approx(curve[-1], abs=1e-6)
    assert result.dice < 0.5


def test_same_seed_gives_the_same_and_another_seed_another_curve():
    parameters = {"target_dice": 0.8, "expansion_prob": 0.7, "march_prob": 0.3}
    first, again, other = (calibrate_num_steps(DISCS, **parameters, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.curve != other.curve


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        pytest.param(DISCS, GROW, r"^Exactly one of target_dice and .* got none of them\.$", id="no-target"),
        pytest.param(
            DISCS, {**GROW, "target_dice": 0.8, "target_displacement": 1}, r"got both of them\.$", id="two-targets"
        ),
        pytest.param(DISCS, {**GROW, "target_dice": 0}, r"^target_dice must be in \(0, 1\], got 0\.$", id="dice-0"),
        pytest.param(DISCS, {**GROW, "target_dice": 80}, r"^target_dice must be .* got 80\.$", id="dice-in-percent"),
        pytest.param(
            DISCS, {**GROW, "target_displacement": np.nan}, r"^target_displacement must be a finite", id="displacement"
        ),
        pytest.param(
            DISCS,
            {**SHRINK, "target_displacement": -2},
            r"^target_displacement of -2 cannot .* outwards only with expansion_prob over 0.5, got 0\.$",
            id="wrong-way",
        ),
        pytest.param(
            DISCS,
            {"expansion_prob": 0.5, "march_prob": 1, "target_displacement": 2},
            r"inwards only with expansion_prob under 0.5, got 0.5\.$",
            id="no-drift",
        ),
        pytest.param(
            DISCS,
            {**GROW, "flip_prob": 0.2, "target_dice": 0.95},
            r"^target_dice of 0.95 cannot be reached: without any step, flips and smoothing alone .* Dice of 0.509\.$",
            id="flips-cost-more",
        ),
        pytest.param(
            DISCS,
            {"expansion_prob": 1, "march_prob": 0, "target_dice": 0.9, "max_steps": 8},
            r"the nearest mean Dice was 1, with 0 steps; march_prob is 0, so that no boundary moves\.$",
            id="no-march",
        ),
        pytest.param(
            DISCS,
            {**SHRINK, "target_displacement": 30},
            r"^target_displacement of 30 .* with 1\d steps; with \d+ steps 4 of 4 masks have vanished or fill",
            id="vanished",
        ),
        pytest.param(
            DISCS,
            {**GROW, "target_dice": 0.01},
            r"the nearest mean Dice was 0.2\d*, with \d+ steps; with 4096 steps 4 of 4 masks .* fill the image\.$",
            id="full",
        ),
        pytest.param(
            DISCS,
            {**GROW, "target_displacement": -10, "max_steps": 4},
            r"was -[34].*, with 4 steps; more than max_steps=4, or a larger march_prob, would go further\.$",
            id="more-steps",
        ),
        pytest.param(
            [DISCS[0] * 0, DISCS[0] | True],
            {**GROW, "target_dice": 0.9},
            r"^labels must have a mask with a boundary, but all 2 are empty or full\.$",
            id="no-boundary",
        ),
        pytest.param([], {**GROW, "target_dice": 0.9}, r"^labels must have a mask with a boundary", id="no-label"),
        pytest.param([DISCS[0] * 3], {**GROW, "target_dice": 0.9}, r"^label must be binary", id="label-of-3"),
        pytest.param(DISCS, {**GROW, "target_dice": 0.9, "max_steps": 0}, r"^max_steps must be .* got 0", id="max"),
        pytest.param(
            DISCS, {**GROW, "target_dice": 0.9, "spacing": [(1, 1)] * 3}, r"^spacing .* \(4\), got 3", id="spacings"
        ),
        pytest.param(
            DISCS, {"expansion_prob": 1, "march_prob": 2, "target_dice": 0.9}, r"^march_prob must be", id="parameter"
        ),
    ],
)
def test_target_or_option_that_makes_no_sense_is_refused(labels, options, message):
    with pytest.raises(ValueError, match=message):
        calibrate_num_steps(labels, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({**GROW, "num_steps": 3}, r"^num_steps must not be given", id="steps"),
        pytest.param({"expansion_prob": 1}, r"^march_prob must be given", id="missing"),
        pytest.param({**GROW, "theta": 3}, r"^theta is not a parameter", id="unknown"),
    ],
)
def test_parameter_of_another_kind_is_refused(options, message):
    with pytest.raises(TypeError, match=message):
        calibrate_num_steps(DISCS, target_dice=0.8, **options)
