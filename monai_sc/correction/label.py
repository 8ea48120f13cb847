"""The corrected label of one class, and of exclusive classes; all distances are in voxels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from monai_sc.correction.boundaries import FAR, blend_shapes, box_around, distance, moved_by, voxel_volume
from monai_sc.correction.cases import Size
from monai_sc.correction.class_fit import ClassFit
from monai_sc.functional.boundary import exclusive_label
from monai_sc.functional.masks import dice
from monai_sc.functional.surface import matched_structures

HELD = 50.0  # logit of the class that holds a voxel of a label map
DIFFERS = "the network's label differs from the moved one by more than in any clean case; the moved label is used"
EMPTIED = "the correction would empty it; it stays as it was"
AGAINST = "moved against the bias of the labels"
FARTHER = "moved by another distance than the labels of clean cases are off"


@dataclass(frozen=True)
class Corrected:
    """A corrected label.

    Attributes:
        masks: booleans ``(classes, *spatial)``.
        refused: for each class the number of objects whose shift would have left too little.
        to_check: by class index, why a person should look at it.
    """

    masks: np.ndarray
    refused: list[int]
    to_check: dict[int, str] = field(default_factory=dict)


class ClassLabel(NamedTuple):
    """The label of a class that a source gives.

    Attributes:
        mask: boolean ``(*spatial)``.
        moved: the given label, moved as given labels are.
        refused: number of given objects that were not moved, since too little of them would be left.
    """

    mask: np.ndarray
    moved: np.ndarray
    refused: int


def class_label(
    fit: ClassFit,
    source: str,
    scores: np.ndarray | None,
    suspect: np.ndarray | None,
    given: np.ndarray,
    *,
    weight: float,
    metric: str,
    size: Size = None,
    group: Hashable = None,
) -> ClassLabel:
    """Return the label of a class that a source gives, before it is compared with the given one.

    Objects that were drawn and not predicted are moved as the given labels are, unless they are smaller than any
    object of the class. Objects that were predicted and not drawn are not added.

    Args:
        fit: of the class.
        source: ``"keep"``, ``"move"``, ``"blend"`` or ``"predict"``.
        scores: ``(*spatial)``, signed distance to the corrected boundary of the prediction, positive inside.
        suspect: the same of predicted objects that the filter takes for false ones, ``None`` where there are none.
        given: boolean, same shape.
        weight: of the given label in ``"blend"``.
        metric: of distances.
        size: of a voxel.
        group: of the case.
    """
    if source == "keep" or not given.any() or given.all():
        return ClassLabel(given, given, 0)
    shift, margin, covered = fit.move.shift_of(group), 0.0, given
    if source == "move":
        scores = None
    if scores is not None:
        covered = given | (scores >= 0)
        margin = FAR + (0.0 if fit.shape is None else abs(fit.shape.offset_of(group)))
    box = box_around(covered, max(shift, 0.0) + margin, size) or ()
    drawn = given[box]
    phi = distance(drawn, metric, size)
    label, refused = moved_by(drawn, phi, shift, floor=fit.move.floor, size=size, smallest=fit.smallest)
    moved = np.zeros_like(given)
    moved[box] = label
    if scores is None:
        return ClassLabel(moved, moved, refused)
    own = with_drawn_objects(scores[box], None if suspect is None else suspect[box], drawn, fit)
    mask = np.zeros_like(given)
    mask[box] = _network_label(fit, source, own, drawn, phi, label, weight, metric, size, group)
    return ClassLabel(mask, moved, refused)


def _network_label(
    fit: ClassFit,
    source: str,
    scores: np.ndarray,
    given: np.ndarray,
    phi: np.ndarray | None,
    moved: np.ndarray,
    weight: float,
    metric: str,
    size: Size,
    group: Hashable,
) -> np.ndarray:
    """Return the label that a network gives, of arrays ``(*spatial)``; ``phi`` is the signed distance of ``given``."""
    predicted = scores >= 0
    matched, seen = matched_structures(given, predicted)
    if not matched.any() or not seen.any():
        return moved
    own = scores
    if (seen != predicted).any():
        own = np.where(predicted & ~seen, -np.abs(scores) - 0.5, scores)  # not drawn
        own = np.where(seen & ~predicted, 0.5, own)  # holes in what was drawn
    if fit.shape is None or source == "predict":
        label = own >= 0
    else:
        same = phi if (matched == given).all() else None
        label = blend_shapes(own, matched, fit.shape, weight=weight, phi=same, metric=metric, size=size, group=group)
    if (given & ~matched).any():
        components, number = ndimage.label(given)
        missed = np.bincount(components.ravel(), minlength=number + 1) * voxel_volume(size) >= fit.smallest
        missed &= np.bincount(components[matched & given], minlength=number + 1) == 0
        missed[0] = False
        if missed.any():  # with its boundary where all of the given label was moved to
            mask, shift = missed[components], fit.move.shift_of(group)
            phi = distance(mask, metric, size) if shift else None
            label = label | moved_by(mask, phi, shift, floor=fit.move.floor, size=size)[0]
    return label


def with_drawn_objects(scores: np.ndarray, suspect: np.ndarray | None, given: np.ndarray, fit: ClassFit) -> np.ndarray:
    """Return scores with those suspect objects that were drawn, unless clean cases show that such ones are false.

    Args:
        scores: ``(*spatial)``, of the objects that the filter keeps.
        suspect: the same of the others; ``None`` where there are none.
        given: boolean, same shape.
        fit: of the class.
    """
    if suspect is None or (fit.rule is not None and fit.rule.drops_given):
        return scores
    components, number = ndimage.label(suspect >= 0)
    drawn = np.zeros(number + 1, dtype=bool)
    drawn[components[given]] = True
    drawn[0] = False
    return np.where(drawn[components], np.maximum(scores, suspect), scores) if drawn.any() else scores


def check_label(
    fit: ClassFit,
    source: str,
    found: ClassLabel,
    given: np.ndarray,
    *,
    tolerance: float,
    size: Size = None,
    group: Hashable = None,
) -> tuple[np.ndarray, str]:
    """Compare the label that a source gives with the given one, and return what is to be taken, and what to check.

    Args:
        fit: of the class.
        source: of the label.
        found: the label.
        given: boolean ``(*spatial)``.
        tolerance: a distance that does not matter.
        size: of a voxel.
        group: of the case.
    """
    label, note = found.mask, ""
    by_network = source in ("blend", "predict") and np.isfinite(fit.limit) and given.any()
    if by_network and 1 - float(dice(label[None], found.moved[None])[0]) > fit.limit:
        label, note = found.moved, DIFFERS
    if given.any() and not label.any():
        may_vanish = fit.rule is not None and fit.rule.drops_given
        return (label if may_vanish else given), "" if may_vanish else EMPTIED
    if note or label is given:
        return label, note
    bias, told = fit.labels.mean, fit.labels.verdict == "biased"
    if not told and fit.shape is not None and fit.move.representation != "none" and np.isnan(bias):
        bias, told = fit.shape.offset_of(group), True
    step = boundary_step(given, label, size)
    if told and np.isfinite(step):
        if step * bias < 0 and abs(step) > tolerance:
            note = AGAINST
        elif np.isfinite(fit.labels.spread) and abs(step - bias) > tolerance + 3 * fit.labels.spread:
            note = FARTHER
    return label, note


def boundary_step(first: np.ndarray, second: np.ndarray, size: Size) -> float:
    """Return about how far the boundary of ``first`` lies outside of that of ``second``, negative; positive: inside.

    It is the difference of the volumes by the mean of the surfaces.
    """
    sides = np.asarray(size or (1.0,) * first.ndim)
    surface = 0.0
    for axis in range(second.ndim):
        faces = (np.count_nonzero(np.diff(first, axis=axis)) + np.count_nonzero(np.diff(second, axis=axis))) / 2
        surface += faces * float(np.prod(np.delete(sides, axis)))
    surface *= {2: np.pi / 4, 3: 2 / 3}.get(second.ndim, 1.0)  # of a round surface, from that of its faces
    if not surface:
        return float("nan")
    return float((second.sum() - first.sum()) * np.prod(sides) / surface)


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
