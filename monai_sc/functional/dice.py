"""The Dice coefficient of masks."""

from __future__ import annotations

import numpy as np


def dice(first: np.ndarray, second: np.ndarray, ignored: np.ndarray | None = None) -> np.ndarray:
    """Return the Dice of each channel of two boolean arrays ``(channels, *spatial)``, 1 where both are empty.

    Voxels that are ``ignored`` (same shape) do not count.
    """
    if ignored is not None:
        first, second = first & ~ignored, second & ~ignored
    axes = tuple(range(1, first.ndim))
    total = first.sum(axis=axes) + second.sum(axis=axes)
    return np.asarray(np.where(total == 0, 1.0, 2 * (first & second).sum(axis=axes) / np.maximum(total, 1)))
