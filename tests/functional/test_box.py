from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional.masks import bounding_box, filled

MASK = np.zeros((6, 8), dtype=bool)
MASK[2, 3] = MASK[3, 5] = True


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        pytest.param((), (slice(2, 4), slice(3, 6)), id="none-by-default"),
        pytest.param((1,), (slice(1, 5), slice(2, 7)), id="one-for-all"),
        pytest.param(([0, 2],), (slice(2, 4), slice(1, 8)), id="one-per-axis"),
        pytest.param((3,), (slice(0, 7), slice(0, 9)), id="not-before-the-image"),
    ],
)
def test_box_holds_the_foreground_and_the_margin(margin, expected):
    assert bounding_box(MASK, *margin) == expected


def test_a_mask_without_foreground_has_no_box():
    assert bounding_box(np.zeros((3, 4), dtype=bool), 1) is None


@pytest.mark.parametrize("spacing", [None, (1.0, 3.0)])
@pytest.mark.parametrize("seed", range(5))
def test_gaps_have_the_value_of_a_nearest_voxel(seed, spacing):
    random = np.random.RandomState(seed)
    values, gaps = random.randint(0, 50, (7, 9)), random.rand(7, 9) < 0.6
    found = filled(values, gaps, spacing)
    np.testing.assert_array_equal(found[~gaps], values[~gaps])
    known = np.argwhere(~gaps)
    for place in np.argwhere(gaps):
        far = (((known - place) * (spacing or (1, 1))) ** 2).sum(axis=1)
        assert found[tuple(place)] in values[~gaps][far == far.min()]


def test_nothing_known_is_0():
    assert not filled(np.ones((2, 3)), np.ones((2, 3), dtype=bool)).any()
