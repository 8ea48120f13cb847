import numpy as np
import pytest

from monai_sc.functional.checks import (
    OUTPUTS,
    binary_mask,
    check_choice,
    check_image_size,
    check_range,
    ranges_per_channel,
)


@pytest.mark.parametrize(
    ("size", "ndim", "expected"),
    [
        pytest.param(64, 2, [64, 64], id="one-number"),
        pytest.param([64, 32], 2, [64, 32], id="list"),
        pytest.param((np.int64(16), 32, 48), 3, [16, 32, 48], id="numpy"),
    ],
)
def test_image_size_has_a_number_for_each_axis(size, ndim, expected):
    assert check_image_size(size, ndim) == expected


@pytest.mark.parametrize("size", [100, 0, [64], [64, 64, 64], [64, 31], [64.0, 64]], ids=str)
def test_image_size_that_does_not_fit_is_refused(size):
    with pytest.raises(ValueError, match=r"one number or 2, such as \[128,128\], each a multiple of 16 over 0, got "):
        check_image_size(size, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param((1, 2), [(1, 2), (1, 2)], id="one-for-all"),
        pytest.param([(0, 0), (1, 3)], [(0, 0), (1, 3)], id="one-each"),
    ],
)
def test_a_range_is_one_or_one_for_each_channel(value, expected):
    check_range(value, "radius")
    assert ranges_per_channel(value, 2, "radius") == expected


@pytest.mark.parametrize("value", [3, (2, 1), (-1, 2), (0, np.inf), (np.nan, 1), [(1, 2), (1,)], [[(1, 2)]]], ids=str)
def test_what_is_no_range_is_refused(value):
    with pytest.raises(ValueError, match=r"^radius must be \(low, high\) with 0 <= low <= high, or one pair"):
        check_range(value, "radius")


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_an_output_is_of_one_class_or_of_several(output):
    assert check_choice(output, OUTPUTS, "output") == output


def test_ranges_must_be_one_per_channel():
    with pytest.raises(ValueError, match=r"radius must be one value or one per channel \(2\), got 3"):
        ranges_per_channel([(1, 2)] * 3, 2, "radius")


def test_the_first_four_values_that_a_mask_must_not_have_are_named():
    with pytest.raises(ValueError, match=r"^label must be binary, only 0 and 1 in every channel, got 2, 3, 4, 5; map"):
        binary_mask(np.arange(8)[None])
