from __future__ import annotations

import math

import numpy as np
import pytest

from monai_sc.functional import required_validation_size


def test_size_without_failures_is_that_of_bernsteins_inequality():
    # ln(2 / .05) * (2 * 3^2 + 4 / 3 * 3 * 1.5) / 1.5^2
    assert required_validation_size(1.5, 3, 0, (64, 64, 64), 0.05) == math.ceil(math.log(40) * 24 / 2.25)


def test_longest_way_through_an_image_is_the_sum_of_its_sides():
    assert required_validation_size(2, 2, 0.001, (511, 1), 0.05) == required_validation_size(2, 2, 0.001, 512, 0.05)


@pytest.mark.parametrize("part", [0.0, 0.01])
def test_so_many_cases_are_off_by_more_no_oftener_than_alpha(part):
    spread, length, alpha = 2.0, 20, 0.1
    epsilon = 1.0 + 2 * part * length
    number = required_validation_size(epsilon, spread, part, length, alpha)
    rng = np.random.default_rng(0)
    fails = rng.random((2000, number)) < part
    # the worst that is allowed: all good cases at the ends of their range, all bad ones at one end of theirs
    values = np.where(fails, length, spread * rng.choice([-1, 1], size=fails.shape))
    assert np.mean(np.abs(values.mean(axis=1)) > epsilon) <= alpha


def test_more_is_needed_for_a_smaller_error_a_wider_law_more_failures_and_more_certainty():
    base = required_validation_size(2, 2, 0.001, (100, 100), 0.05)
    assert required_validation_size(1.5, 2, 0.001, (100, 100), 0.05) > base
    assert required_validation_size(2, 3, 0.001, (100, 100), 0.05) > base
    assert required_validation_size(2, 2, 0.002, (100, 100), 0.05) > base
    assert required_validation_size(2, 2, 0.001, (100, 100), 0.01) > base
    assert required_validation_size(2, 2, 0.001, 200, 0.05) == base


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((0, 1, 0, 10, 0.05), r"^epsilon must be over 0 voxels and finite, got 0\.$", id="epsilon"),
        pytest.param((1, -1, 0, 10, 0.05), r"^epsilon0 must be at least 0 voxels and .*, got -1\.$", id="epsilon0"),
        pytest.param((1, math.inf, 0, 10, 0.05), r"^epsilon0 must be at least 0 voxels and finite, got inf", id="inf"),
        pytest.param((1, 1, 0, (math.nan,), 0.05), r"^image_size must be sides of at least 1 voxel, got", id="nan"),
        pytest.param((1e-200, 1, 0, 9, 0.05), r"^epsilon must be larger, got 1e-200: no number of cases", id="tiny"),
        pytest.param((1, 1, 1, 10, 0.05), r"^epsilon1 must be in \[0, 1\), got 1\.$", id="epsilon1"),
        pytest.param((1, 1, 0, (0, 3), 0.05), r"^image_size must be sides of at least 1 voxel, got", id="size"),
        pytest.param((1, 1, 0, 10, 5), r"^alpha must be in \(0, 1\), got 5\.$", id="alpha"),
        pytest.param(
            (1, 1, 0.1, 10, 0.05), r"^epsilon must be over 2 \* epsilon1 \* 10 = 2 voxels, got 1: ", id="never"
        ),
    ],
)
def test_wrong_argument_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        required_validation_size(*arguments)
