"""The boundary of a mask as points between voxels, and what of two masks belongs to the same structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

from monai_sc.functional.masks import bounding_box

SMOOTHING = 0.7  # voxels; it turns the steps of a slanted boundary into a slope, whose middle is the boundary


def matched_structures(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two boolean masks ``(*spatial)`` without what is in one of them only.

    A component (by face neighbours) that overlaps nothing of the other mask is taken away, and a hole that lies in the
    foreground of the other mask is filled: such specks are objects that are there or not, and not a boundary that has
    moved. Both results are empty where the masks do not overlap.
    """
    without_strays = _overlapping(first, second), _overlapping(second, first)
    return tuple(  # type: ignore[return-value]
        ~_overlapping(~own, ~other) for own, other in (without_strays, without_strays[::-1])
    )


def _overlapping(mask: np.ndarray, other: np.ndarray) -> np.ndarray:
    components, number = ndimage.label(mask)
    kept = np.zeros(number + 1, dtype=bool)
    kept[components[other]] = True
    kept[0] = False
    return np.asarray(kept[components])


def surface_displacement(
    prediction: np.ndarray,
    label: np.ndarray,
    *,
    spacing: Sequence[float] | None = None,
    ignored: np.ndarray | None = None,
) -> float:
    """Return the mean distance from the boundary of one mask to that of the other; negative: ``prediction`` is larger.

    Each face between a voxel of the foreground and one of the background gives one point: where on the line between
    the two centres the smoothed mask is one half, or the middle of the line where it is nowhere. For each of the two
    boundaries, this gives the mean signed distance of its points to the nearest point of the other. The one that is
    nearer to 0 counts, since the other one holds what has vanished: a thin part that an erosion has deleted is far from
    all that is left, and has no boundary that moved. Exchanging the masks changes the sign and nothing else.

    Args:
        prediction: boolean ``(*spatial)``.
        label: the same.
        spacing: size of a voxel along each axis.
        ignored: boolean ``(*spatial)``; a point beside an ignored voxel does not count.

    Returns:
        The displacement in voxels, or in the unit of ``spacing``; ``nan`` where no point of a boundary counts.
    """
    scale = np.asarray(spacing if spacing is not None else (1.0,) * label.ndim)
    box = bounding_box(prediction | label, 4) or (slice(None),) * label.ndim
    masks = (label[box], prediction[box])
    fields = [_smoothed(mask) for mask in masks]
    points, counted = zip(
        *(
            _points(mask, field, None if ignored is None else ignored[box])
            for mask, field in zip(masks, fields, strict=True)
        ),
        strict=True,
    )
    means = np.full(2, np.nan)
    if not len(points[0]) or not len(points[1]):
        return float("nan")
    for own, other, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        at = points[own][counted[own]]
        if len(at):
            distance, _ = cKDTree(points[other] * scale).query(at * scale)
            inside = ndimage.map_coordinates(fields[other], at.T, order=1, mode="nearest") > 0
            means[own] = sign * float(np.mean(np.where(inside, -distance, distance)))
    return float("nan") if np.isnan(means).all() else float(means[np.nanargmin(np.abs(means))])


def _smoothed(mask: np.ndarray) -> np.ndarray:
    field: np.ndarray = ndimage.gaussian_filter(mask.astype(np.float32), SMOOTHING, mode="nearest", truncate=3)
    return field - np.float32(0.5)


def _points(mask: np.ndarray, field: np.ndarray, ignored: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the boundary in voxels ``(points, axes)``, and which of them count."""
    points, counted = [], []
    for axis in range(mask.ndim):
        low: Any = [slice(None)] * mask.ndim
        high: Any = low.copy()
        low[axis], high[axis] = slice(None, -1), slice(1, None)
        low, high = tuple(low), tuple(high)
        faces = np.nonzero(mask[low] != mask[high])
        before, behind = field[low][faces], field[high][faces]
        crosses = (before > 0) != (behind > 0)
        steps = np.where(crosses, before - behind, 1)
        at = np.stack(faces, axis=1).astype(np.float64)
        at[:, axis] += np.where(crosses, before / steps, 0.5)
        points.append(at)
        if ignored is None:
            counted.append(np.ones(len(at), dtype=bool))
        else:
            counted.append(~(ignored[low][faces] | ignored[high][faces]))
    return np.concatenate(points), np.concatenate(counted)
