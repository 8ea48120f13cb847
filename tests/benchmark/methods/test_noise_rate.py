from __future__ import annotations

import numpy as np
import pytest

from monai_sc.benchmark.methods import estimate_noise_rate
from monai_sc.functional import shift_boundary

EMPTY, HALF, FULL = [0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]
CASES = [
    pytest.param([([HALF], [HALF])], 0, id="equal"),
    pytest.param([([FULL], [HALF])], 1 / 2, id="too-much"),
    pytest.param([([HALF], [FULL])], 1 / 2, id="too-little"),
    pytest.param([([[1, 1, 0, 0]], [HALF])], 1, id="nothing-in-common"),
    pytest.param([([EMPTY], [HALF])], 1, id="nothing-predicted"),
    pytest.param([([EMPTY], [[0, 0, 0, 1]])], 1, id="a-single-voxel"),
    pytest.param([([HALF], [EMPTY])], 1, id="nothing-there"),
    pytest.param([([FULL], [HALF]), ([HALF], [HALF])], 2 / 6, id="cases-are-summed"),
    pytest.param([([FULL], [HALF]), ([EMPTY], [EMPTY])], 1 / 2, id="empty-case-adds-nothing"),
    pytest.param([([FULL, HALF], [HALF, HALF])], 1 / 4, id="mean-of-channels"),
    pytest.param([([FULL, EMPTY], [HALF, EMPTY])], 1 / 2, id="empty-channel-does-not-count"),
]


@pytest.mark.parametrize(("pairs", "expected"), CASES)
def test_rate_is_the_share_of_wrong_voxels(as_kind, pairs, expected):
    masks = [tuple(as_kind(np.array(mask, dtype=np.uint8)[..., None]) for mask in pair) for pair in pairs]
    assert estimate_noise_rate(iter(masks)) == pytest.approx(expected)


def test_background_does_not_matter(label):
    moved = shift_boundary(label, 1)
    padding = [(0, 0)] + [(5, 5)] * (label.ndim - 1)
    rate = estimate_noise_rate([(moved, label)])
    assert 0 < rate < 1
    assert estimate_noise_rate([(np.pad(moved, padding), np.pad(label, padding))]) == rate
    assert estimate_noise_rate([(label, moved)]) == rate


@pytest.mark.parametrize("pairs", [[], [(np.zeros((2, 3)), np.zeros((2, 3)))]], ids=["no-case", "empty-cases"])
def test_clean_cases_without_foreground_are_refused(pairs):
    with pytest.raises(
        ValueError, match=r"foreground in at least one mask, got none; give clean cases that show some\.$"
    ):
        estimate_noise_rate(pairs)


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"prediction and label must have the same shape, got \(1, 4\) and \(2, 4\)"):
        estimate_noise_rate([(np.array([HALF]), np.array([HALF, HALF]))])
    with pytest.raises(ValueError, match=r"^All masks must have the same channels, got 1 and 2\.$"):
        estimate_noise_rate([(np.array([HALF] * n), np.array([HALF] * n)) for n in (1, 2)])
    with pytest.raises(ValueError, match=r"prediction must be binary.*got 0\.5"):
        estimate_noise_rate([(np.array([[0.5, 1]]), np.array([[0, 1]]))])
    with pytest.raises(ValueError, match=r"label must be binary.*got 2"):
        estimate_noise_rate([(np.array([[0, 1]]), np.array([[0, 2]]))])
