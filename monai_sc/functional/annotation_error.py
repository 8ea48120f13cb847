"""Annotation errors beside the Markov noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import binary_mask, check_spacing, per_channel

__all__ = ["shift_boundary"]


def shift_boundary(
    label: NdarrayOrTensor, distance: float | Sequence[float], *, spacing: Sequence[float] | None = None
) -> NdarrayOrTensor:
    r"""Dilate or erode each channel of ``label`` ``(channels, *spatial)`` by a real distance ``s``.

    The result is :math:`\{x : d(x, F) \le s\}` for :math:`s \ge 0`, else :math:`\{x : d(x, B) > |s|\}`, with euclidean
    distances between the centres of voxels. Channels do not mix, and what lies outside the image is neither foreground
    nor background.

    Args:
        label: 0 and 1 only, any dtype. A channel without a boundary is returned unchanged.
        distance: ``s``, one value or one per channel, in voxels, or in the unit of ``spacing``; positive dilates.
        spacing: size of a voxel along each spatial axis, in mm.

    Returns:
        The moved label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, or ``spacing`` does not fit it.

    Example:
        >>> import numpy as np
        >>> shift_boundary(np.array([[0, 0, 1, 1, 1, 0]]), -1).tolist()
        [[0, 0, 0, 1, 0, 0]]
    """
    mask = binary_mask(label)
    spacing = check_spacing(spacing, mask.ndim - 1)
    if np.isnan(np.asarray(distance, dtype=np.float64)).any():
        raise ValueError(f"distance must be a number, or one per channel, got {distance}.")
    moved = mask.copy()
    for channel, s in enumerate(per_channel(distance, len(mask), "distance")):
        if mask[channel].any() and not mask[channel].all():
            source = ~mask[channel] if s >= 0 else mask[channel]
            d = ndimage.distance_transform_edt(source, sampling=spacing)
            moved[channel] = d <= s if s >= 0 else d > -s
    return convert_to_dst_type(moved, label)[0]
