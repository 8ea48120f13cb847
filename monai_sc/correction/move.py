"""Boundaries that are moved: of predictions, and of labels that were given. All distances are in voxels."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from scipy import ndimage

from monai_sc.correction.cases import Size
from monai_sc.correction.presence import PresenceRule, find_objects
from monai_sc.correction.shifts import EPS, ClassCorrection
from monai_sc.functional.boundary import correct_boundary
from monai_sc.functional.distance import has_boundary, signed_distance
from monai_sc.functional.masks import bounding_box

FAR = 10.0  # voxels; what is farther from a boundary than this is inside or outside, no more


def measure(size: Size, metric: str) -> tuple[Size, float]:
    """Return the spacing to measure with, and the length of a unit of what is measured.

    Raises:
        ValueError: when the metric does not fit the voxels.
    """
    if size is None or metric == "euclidean":
        return size, 1.0
    if max(size) - min(size) > 1e-3 * min(size):
        raise ValueError(
            f"The taxicab metric needs voxels with equal sides, got {tuple(round(s, 4) for s in size)}; use "
            "'euclidean'."
        )
    return None, size[0]


def voxel_volume(size: Size) -> float:
    """Return the volume of a voxel."""
    return float(np.prod(size)) if size is not None else 1.0


def box_around(mask: np.ndarray, reach: float, size: Size) -> tuple[slice, ...] | None:
    """Return the box around a mask ``(*spatial)``, larger by ``reach`` voxels of the unit; ``None`` if it is empty."""
    return bounding_box(mask, [int(np.ceil(reach / side)) + 2 for side in size or (1.0,) * mask.ndim])


def distance(mask: np.ndarray, metric: str, size: Size) -> np.ndarray | None:
    """Return the signed distance of a mask ``(*spatial)``, negative inside; ``None`` where it has no boundary."""
    if not has_boundary(mask[None])[0]:
        return None
    sides, length = measure(size, metric)
    phi = np.asarray(signed_distance(mask[None], metric=metric, spacing=sides, origin="face"))[0]
    return np.asarray(phi if length == 1 else phi * np.float32(length))


def moved_mask(
    mask: np.ndarray, shift: float, *, floor: float, metric: str, size: Size, smallest: float = 0.0
) -> tuple[np.ndarray, int]:
    """Return a mask ``(*spatial)`` with its boundary moved, and how many objects were not moved.

    Args:
        mask: boolean.
        shift: negative shrinks.
        floor: an object of which less than this would be left is not moved.
        metric: of the distance.
        size: of a voxel.
        smallest: an object that is smaller may vanish.
    """
    box = box_around(mask, max(shift, 0.0), size)
    if box is None or shift == 0:
        return mask, 0
    part = mask[box]
    moved, refused = moved_by(part, distance(part, metric, size), shift, floor=floor, size=size, smallest=smallest)
    result = np.zeros_like(mask)
    result[box] = moved
    return result, refused


def moved_by(
    mask: np.ndarray, phi: np.ndarray | None, shift: float, *, floor: float, size: Size, smallest: float = 0.0
) -> tuple[np.ndarray, int]:
    """Return what :py:func:`moved_mask` does, of a mask whose signed distance ``phi`` is known."""
    if phi is None or shift == 0:
        return mask, 0
    moved = phi <= shift + EPS
    if shift > 0:
        return moved, 0
    components, number = ndimage.label(mask)
    whole = np.bincount(components.ravel(), minlength=number + 1)
    left = np.bincount(components[moved], minlength=number + 1)
    lost = (left < floor * whole) & (whole * voxel_volume(size) >= smallest)
    lost[0] = False
    return moved | lost[components], int(lost.sum())


def corrected_scores(
    logit: np.ndarray, correction: ClassCorrection, group: Hashable, *, size: Size, metric: str
) -> tuple[np.ndarray, int]:
    """Return the signed distance of a class to its corrected boundary, and how many objects were not corrected.

    Args:
        logit: ``(*spatial)``, of the class against the rest.
        correction: of the class.
        group: of the case.
        size: of a voxel along each axis.
        metric: of the distance.

    Returns:
        float32 ``(*spatial)``, positive inside; minus or plus the size of the image where the class is nowhere or
        everywhere. Farther than ``FAR`` outside it is minus that.
    """
    extent = np.linalg.norm(np.array(logit.shape) * (1.0 if size is None else np.array(size)))
    predicted = logit >= 0
    if not has_boundary(predicted[None])[0]:
        return np.full(logit.shape, extent if predicted.all() else -extent, dtype=np.float32), 0
    shift = correction.shift_of(group)
    margin = FAR + max(shift, 0.0)
    box = box_around(predicted, margin, size) or ()
    scores = np.full(logit.shape, -FAR, dtype=np.float32)
    own, refused = _scores_in_box(logit[box], correction, shift, size, metric)
    scores[box] = np.maximum(own, -FAR)
    return scores, refused


def _scores_in_box(
    logit: np.ndarray, correction: ClassCorrection, shift: float, size: Size, metric: str
) -> tuple[np.ndarray, int]:
    mask = logit >= 0
    if correction.representation == "logit" and shift:
        sides, length = measure(size, metric)
        options: dict[str, Any] = {"metric": metric, "spacing": sides, "gamma": correction.gamma}
        moved = np.asarray(correct_boundary(logit[None], shift / length, representation="logit", **options))[0] >= 0
        lost, refused = _lost_objects(mask, moved, correction.floor)
        mask = moved | lost
        phi = distance(mask, metric, size)
        return np.asarray(-phi if phi is not None else np.where(mask, FAR, -FAR), dtype=np.float32), refused
    phi = distance(mask, metric, size)
    if phi is None:
        return np.full(mask.shape, FAR, dtype=np.float32), 0
    scores = np.asarray(shift + EPS - phi, dtype=np.float32)
    if shift >= 0:
        return scores, 0
    lost, refused = _lost_objects(mask, scores >= 0, correction.floor)
    return np.where(lost, np.maximum(scores, -phi), scores), refused


def _lost_objects(mask: np.ndarray, moved: np.ndarray, floor: float) -> tuple[np.ndarray, int]:
    """Return the objects of a mask of which too little is left when it is moved, and their number."""
    components, number = ndimage.label(mask)
    whole = np.bincount(components.ravel(), minlength=number + 1)
    lost = np.bincount(components[moved], minlength=number + 1) < floor * whole
    lost[0] = False
    return lost[components], int(lost.sum())


def object_scores(
    logit: np.ndarray,
    correction: ClassCorrection,
    rule: PresenceRule | None,
    group: Hashable = None,
    *,
    size: Size,
    metric: str,
) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Return :py:func:`corrected_scores` of the objects that a rule keeps, those of the others, and how many stay.

    Args:
        logit: ``(*spatial)``, of the class against the rest.
        correction: of the class.
        rule: for objects that are not there; ``None`` keeps all.
        group: of the case.
        size: of a voxel.
        metric: of the distance.

    Returns:
        The scores, those of the objects that the rule takes for false ones or ``None`` where it takes none, and the
        number of objects of which a shift would leave too little.
    """
    kept, suspect = logit, None
    if rule is not None:
        components, features = find_objects(logit, voxel=voxel_volume(size))
        false = np.concatenate([[False], ~rule.keeps(features)])[components]
        if false.any():
            off = -np.abs(logit) - np.float32(1e-3)
            kept, suspect = np.where(false, off, logit), np.where(false, logit, off)
    scores, refused = corrected_scores(kept, correction, group, size=size, metric=metric)
    others = None
    if suspect is not None:
        others, _ = corrected_scores(suspect, correction, group, size=size, metric=metric)
    return scores, others, refused
