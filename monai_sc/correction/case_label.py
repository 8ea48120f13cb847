"""The corrected label of a case: of each class, and of classes that exclude each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from monai_sc.correction.cases import Size
from monai_sc.correction.class_fit import ClassFit
from monai_sc.correction.exclusive import exclusive_map, logits_of_map
from monai_sc.correction.label import EMPTIED, Corrected, check_label, class_label

if TYPE_CHECKING:
    from monai_sc.correction.corrector import Fields, SpatialCorrector

BY_NETWORK = ("blend", "predict")


def case_label(
    corrector: SpatialCorrector,
    fields: Fields | None,
    given: np.ndarray,
    *,
    size: Size,
    group: Hashable | None,
    fits: Sequence[ClassFit],
    source: str | None,
) -> Corrected:
    """Return the corrected label of a case, as ``SpatialCorrector.corrected`` says."""
    if fields is not None and corrector.shape_weight == 0 and corrector.representation != "auto":
        return _as_published(corrector, fields, given, size, fits)
    masks, refused, to_check = given.copy(), [], {}
    sources = [fit.source if source is None else source for fit in fits]
    for k, (fit, name) in enumerate(zip(fits, sources, strict=True)):
        own = replace(fit, move=corrector.capped(fit.move))
        found = class_label(
            own,
            name,
            None if fields is None else fields.scores[k],
            None if fields is None or fields.suspect is None else fields.suspect[k],
            given[k],
            weight=corrector.shape_weight,
            metric=corrector.metric,
            size=size,
            group=group,
        )
        masks[k] = found.mask
        refused.append(fields.refused[k] if fields is not None and name in BY_NETWORK else found.refused)
        if source is None:
            tolerance = corrector.options.tolerance
            masks[k], note = check_label(own, name, found, given[k], tolerance=tolerance, size=size, group=group)
            if note:
                to_check[k] = note
    if corrector.output == "softmax":
        still = [fit.move.representation == "none" for fit in fits]
        stay = [name == "keep" or (name == "move" and s) for name, s in zip(sources, still, strict=True)]
        masks = _exclusive(corrector, masks, fields, given, sources, stay, size)
        for k in np.flatnonzero(_gone(given, masks)).tolist() if source is None else ():
            rule = fits[k].rule
            if rule is None or not rule.drops_given:  # another class has taken all of it
                masks[:, given[k]] = False
                masks[k] = given[k]
                to_check[k] = EMPTIED
    return Corrected(masks, refused, to_check)


def _as_published(
    corrector: SpatialCorrector, fields: Fields, given: np.ndarray, size: Size, fits: Sequence[ClassFit]
) -> Corrected:
    """Return a label in which predictions take the place of what was given; no class becomes empty by it."""
    masks = corrector.predicted(fields, size)
    stays = np.array([fit.source == "keep" for fit in fits])
    gone = _gone(given, masks) & ~stays
    back = gone | stays
    masks[back] = given[back]
    if corrector.output == "softmax" and back.any():
        masks[~back] &= ~given[back].any(axis=0)
    return Corrected(masks, list(fields.refused), dict.fromkeys(np.flatnonzero(gone).tolist(), EMPTIED))


def _gone(given: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Say of each class whether nothing of it is left."""
    axes = tuple(range(1, given.ndim))
    return np.asarray(given.any(axis=axes) & ~masks.any(axis=axes))


def _exclusive(
    corrector: SpatialCorrector,
    masks: np.ndarray,
    fields: Fields | None,
    given: np.ndarray,
    sources: Sequence[str],
    stay: Sequence[bool],
    size: Size,
) -> np.ndarray:
    """Return masks of which each voxel is in one at most.

    Of a class that stays, voxels neither come nor go: its boundaries with other classes stay as well.
    """
    if fields is not None and fields.raw is not None and any(name in BY_NETWORK for name in sources):
        scores, raw = fields.scores, fields.raw
    else:
        raw = logits_of_map(given)
        scores = np.where(given, 0.5, -0.5).astype(np.float32)
    masks = corrector.format.exclusive(exclusive_map(masks, scores, raw, size))
    stays = np.array(stay)
    if stays.any():
        masks = np.where(given[stays].any(axis=0) | masks[stays].any(axis=0), given, masks)
    return masks
