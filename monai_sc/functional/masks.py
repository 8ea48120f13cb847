"""Binary masks: the part of an image that they need, and their Dice coefficient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage


def bounding_box(mask: np.ndarray, margin: int | Sequence[int] = 0) -> tuple[slice, ...] | None:
    """Return the box around the foreground of a boolean ``mask`` ``(*spatial)``, ``None`` if there is none.

    MONAI's ``generate_spatial_bounding_box`` does the same through copies of the image, several times slower.
    """
    box = []
    for axis, more in enumerate(np.broadcast_to(margin, mask.ndim)):
        hit = np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        if not len(hit):
            return None
        box.append(slice(max(int(hit[0] - more), 0), int(hit[-1] + more) + 1))
    return tuple(box)


def filled(values: np.ndarray, gaps: np.ndarray, spacing: Sequence[float] | None = None) -> np.ndarray:
    """Return ``values`` ``(*spatial)``, whose gaps have the value of the nearest voxel beside them; 0 if there is none.

    A structure that meets voxels which are not known has no boundary there.
    """
    if gaps.all():
        return np.zeros_like(values)
    nearest = ndimage.distance_transform_edt(gaps, sampling=spacing, return_distances=False, return_indices=True)
    return np.asarray(values[tuple(nearest)])


def dice(first: np.ndarray, second: np.ndarray, ignored: np.ndarray | None = None) -> np.ndarray:
    """Return the Dice of each channel of two boolean arrays ``(channels, *spatial)``, 1 where both are empty.

    Voxels that are ``ignored`` (same shape) do not count.
    """
    if ignored is not None:
        first, second = first & ~ignored, second & ~ignored
    axes = tuple(range(1, first.ndim))
    total = first.sum(axis=axes) + second.sum(axis=axes)
    return np.asarray(np.where(total == 0, 1.0, 2 * (first & second).sum(axis=axes) / np.maximum(total, 1)))
