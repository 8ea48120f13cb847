import numpy as np
import pytest

from monai_sc.functional.checks import check_image_size


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
