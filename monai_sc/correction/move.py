"""The correction of one class in one case: its boundary is moved, or it is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from monai_sc.correction.choice import ClassCorrection
from monai_sc.correction.presence import PresenceRule, presence_features
from monai_sc.functional.correction import correct_boundary
from monai_sc.functional.distance import has_boundary, signed_distance

Size = tuple[float, ...] | None


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
    """Return the volume of a voxel, 1 where its size is not known."""
    return float(np.prod(size)) if size is not None else 1.0


def corrected_scores(
    logit: np.ndarray, correction: ClassCorrection, shift: float, rule: PresenceRule | None, *, size: Size, metric: str
) -> tuple[np.ndarray, bool]:
    """Return the corrected signed distance of a class, and whether its correction was refused.

    Args:
        logit: ``(*spatial)``, of the class against the rest.
        correction: of the class.
        shift: by which the boundary is moved back.
        rule: of the class, if it has one.
        size: of a voxel along each axis.
        metric: of the distance.

    Returns:
        float32 ``(*spatial)``, positive inside; minus or plus the size of the image where the class is nowhere or
        everywhere. Refused is a correction that leaves too little of the class: it stays where it was predicted.
    """
    far = np.linalg.norm(np.array(logit.shape) * (1.0 if size is None else np.array(size)))
    predicted = logit >= 0
    if rule is not None and predicted.any() and not rule.keeps(presence_features(logit, voxel=voxel_volume(size))):
        return np.full(logit.shape, -far, dtype=np.float32), False
    if not has_boundary(predicted[None])[0]:
        return np.full(logit.shape, far if predicted.all() else -far, dtype=np.float32), False
    scores = _moved(logit, correction, shift, size, metric)
    refused = bool((scores >= 0).sum() < correction.floor * predicted.sum())
    return (_moved(logit, ClassCorrection(), 0.0, size, metric) if refused else scores), refused


def _moved(logit: np.ndarray, correction: ClassCorrection, shift: float, size: Size, metric: str) -> np.ndarray:
    """Return minus the signed distance of a class to its boundary after the correction."""
    sides, length = measure(size, metric)
    options: dict[str, Any] = {"metric": metric, "spacing": sides}
    mask = logit >= 0
    if correction.representation == "logit":
        moved = correct_boundary(logit[None], shift / length, representation="logit", gamma=correction.gamma, **options)
        mask, shift = np.asarray(moved)[0] >= 0, 0.0
        if not has_boundary(mask[None])[0]:
            return np.where(mask, np.float32(length), np.float32(-length))
    scores = shift - length * np.asarray(signed_distance(mask[None], origin="face", **options))[0]
    return np.asarray(scores, dtype=np.float32)
