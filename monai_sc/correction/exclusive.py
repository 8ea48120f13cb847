"""Classes that exclude each other: one class per voxel."""

from __future__ import annotations

import numpy as np

from monai_sc.correction.cases import Size
from monai_sc.functional.correction import exclusive_label

HELD = 50.0  # logit of the class that holds a voxel of a label map


def exclusive_map(masks: np.ndarray, scores: np.ndarray, logits: np.ndarray, size: Size = None) -> np.ndarray:
    """Return a map ``(*spatial)`` with one class per voxel, 0 for the background.

    Args:
        masks: ``(classes, *spatial)``; they may overlap, and leave voxels to none.
        scores: corrected signed distances, same shape; a mask may differ from them.
        logits: of all channels, for voxels that no class claims.
        size: of a voxel.
    """
    # A mask that differs from its scores has no score of its own: its distance from the boundary serves, as everywhere.
    claims = np.where(masks == (scores >= 0), scores, np.where(masks, 0.0, -1.0))
    return exclusive_label(np.concatenate([np.zeros_like(claims[:1]), claims]), logits, spacing=size)


def logits_of_map(given: np.ndarray) -> np.ndarray:
    """Return logits of all channels that say what a given label says; beside a class, other classes come first.

    Where a class gives up a voxel, the class on the other side of the boundary gets it, if there is one.

    Args:
        given: exclusive booleans ``(classes, *spatial)``.
    """
    background = ~given.any(axis=0)
    return np.concatenate([np.where(background, HELD, -1.0)[None], np.where(given, HELD, 0.0)]).astype(np.float32)
