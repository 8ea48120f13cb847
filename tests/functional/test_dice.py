from __future__ import annotations

import numpy as np

from monai_sc.functional.masks import dice

FIRST = np.array([[[1, 1], [1, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 1], [0, 0]]], dtype=bool)
SECOND = np.array([[[1, 0], [0, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [0, 0]]], dtype=bool)


def test_dice_of_each_channel_is_1_where_both_are_empty():
    assert dice(FIRST, SECOND).tolist() == [2 * 1 / (3 + 1), 1, 1, 0]


def test_ignored_voxels_do_not_count():
    ignored = np.zeros_like(FIRST)
    ignored[0, 1] = True
    ignored[2:, 0] = True
    before = FIRST.copy(), SECOND.copy()
    assert dice(FIRST, SECOND, ignored).tolist() == [2 * 1 / (2 + 1), 1, 1, 1]
    assert np.array_equal(FIRST, before[0])
    assert np.array_equal(SECOND, before[1])
