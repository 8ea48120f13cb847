"""Move boundaries of predictions and of given labels, and blend the two. All distances are in voxels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import ndimage

from monai_sc.correction.cases import Size
from monai_sc.correction.presence import PresenceRule, find_objects
from monai_sc.correction.shifts import EPS, ClassCorrection
from monai_sc.functional.bias import group_means
from monai_sc.functional.boundary import correct_boundary
from monai_sc.functional.distance import has_boundary, signed_distance
from monai_sc.functional.masks import bounding_box
from monai_sc.functional.surface import matched_structures, surface_displacement

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


def moved_by(
    mask: np.ndarray, phi: np.ndarray | None, shift: float, *, floor: float, size: Size, smallest: float = 0.0
) -> tuple[np.ndarray, int]:
    """Return a mask ``(*spatial)`` with its boundary moved, and how many objects were not moved."""
    if phi is None or shift == 0:
        return mask, 0
    moved = phi <= shift + EPS
    if shift > 0:
        return moved, 0
    lost, number = lost_objects(mask, moved, floor, voxel_volume(size), smallest)
    return moved | lost, number


def lost_objects(
    mask: np.ndarray, moved: np.ndarray, floor: float, volume: float = 1.0, smallest: float = 0.0
) -> tuple[np.ndarray, int]:
    """Return the objects of a mask of which too little is left when it is moved, and their number."""
    components, number = ndimage.label(mask)
    whole = np.bincount(components.ravel(), minlength=number + 1)
    left = np.bincount(components[moved], minlength=number + 1)
    lost = (left < floor * whole) & (whole * volume >= smallest)
    lost[0] = False
    return lost[components], int(lost.sum())


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
    predicted = logit >= 0
    if not has_boundary(predicted[None])[0]:
        extent = np.linalg.norm(np.array(logit.shape) * (1.0 if size is None else np.array(size)))
        return np.full(logit.shape, extent if predicted.all() else -extent, dtype=np.float32), 0
    shift = correction.shift_of(group)
    box = box_around(predicted, FAR + max(shift, 0.0), size) or ()
    mask, refused = predicted[box], 0
    if correction.representation == "logit" and shift:
        sides, length = measure(size, metric)
        options: dict[str, Any] = {"metric": metric, "spacing": sides, "gamma": correction.gamma}
        moved = np.asarray(correct_boundary(logit[box][None], shift / length, representation="logit", **options))[0]
        lost, refused = lost_objects(mask, moved >= 0, correction.floor)
        mask = (moved >= 0) | lost
        phi = distance(mask, metric, size)
        own = np.asarray(-phi if phi is not None else np.where(mask, FAR, -FAR), dtype=np.float32)
    elif (phi := distance(mask, metric, size)) is None:
        own = np.full(mask.shape, FAR, dtype=np.float32)
    else:
        own = np.asarray(shift + EPS - phi, dtype=np.float32)
        if shift < 0:
            lost, refused = lost_objects(mask, own >= 0, correction.floor)
            own = np.where(lost, np.maximum(own, -phi), own)
    scores = np.full(logit.shape, -FAR, dtype=np.float32)
    scores[box] = np.maximum(own, -FAR)
    return scores, refused


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


@dataclass(frozen=True)
class GivenShape:
    r"""How the given labels of a class lie to the corrected predictions.

    Attributes:
        offset: mean displacement of given labels against corrected predictions: what remains of the bias of the labels
            themselves; negative where they are too large. In the unit of the spacing.
        spread: its standard deviation over cases, within groups.
        own: part of a case's deviation from ``offset`` that is the label's own error, in ``[0, 1]``; the rest is error
            of the prediction. It is :math:`1 - \tau^2 / s^2`, with the standard deviations :math:`\tau` of predictions
            against clean labels, and :math:`s` of given labels against predictions.
        num_cases: from which this was learnt.
        agreement: mean Dice of the uncorrected predictions with the given labels.
        group_offsets: of the groups that have an offset of their own.
    """

    offset: float
    spread: float
    own: float
    num_cases: int
    agreement: float
    group_offsets: dict[str, float] = field(default_factory=dict)

    def offset_of(self, group: Hashable = None) -> float:
        """Return the offset of a group, or the common one."""
        return self.group_offsets.get(str(group), self.offset)

    def scaled(self, factor: float) -> GivenShape:
        """Return it in another unit."""
        groups = {group: offset * factor for group, offset in self.group_offsets.items()}
        return GivenShape(self.offset * factor, self.spread * factor, self.own, self.num_cases, self.agreement, groups)


def given_offset(given: np.ndarray, corrected: np.ndarray, size: Size) -> float:
    """Return the displacement of a given mask against a corrected one ``(*spatial)``, ``nan`` if they do not meet."""
    box = box_around(given | corrected, 1.0, size) or ()
    masks = matched_structures(given[box], corrected[box])
    return surface_displacement(*masks, spacing=size) if masks[0].any() and masks[1].any() else float("nan")


def learn_given_shape(
    offsets: Sequence[float],
    agreement: Sequence[float],
    clean_spread: float,
    groups: Sequence[Hashable] | None = None,
) -> GivenShape:
    """Return what :py:func:`given_offset` and the Dice of some training cases say."""
    values = np.asarray(offsets, dtype=np.float64)
    usable = np.isfinite(values)
    agreed = float(np.mean(agreement)) if len(agreement) else float("nan")
    if not usable.any():
        return GivenShape(0.0, float("nan"), 0.0, 0, agreed)
    own_offsets: dict[str, float] = {}
    deviations = values[usable]
    # The median: where a structure was missed or doubled, the offset is anything.
    offset = float(np.median(deviations))
    if groups is not None:
        names = [str(group) for group in groups]
        means = group_means(values[:, None], names)
        own_offsets = {str(name): float(mean[0]) for name, mean in means.items() if np.isfinite(mean[0])}
        deviations = np.array([values[i] - own_offsets.get(names[i], offset) for i in np.flatnonzero(usable)])
    spread = float(deviations.std(ddof=1)) if len(deviations) > 1 else 0.0
    own = max(0.0, 1 - clean_spread**2 / spread**2) if spread > 0 and np.isfinite(clean_spread) else 0.0
    return GivenShape(offset, spread, own, int(usable.sum()), agreed, own_offsets)


def blend_shapes(
    scores: np.ndarray,
    given: np.ndarray,
    shape: GivenShape,
    *,
    weight: float,
    phi: np.ndarray | None = None,
    metric: str = "euclidean",
    size: Size = None,
    group: Hashable = None,
) -> np.ndarray:
    """Return the corrected label with the shape of the given one: the mean of two signed distances.

    The given label is moved to where the corrected prediction lies: by the offset that all labels have, and by that of
    this case as far as it is the label's own. What is farther than 10 voxels from a boundary is inside or outside.

    Args:
        scores: ``(*spatial)``, signed distance to the corrected boundary, positive inside.
        given: boolean, same shape, of the same structures: not empty, and neither is ``scores >= 0``.
        shape: of the class.
        weight: of the given label, in ``[0, 1]``; 0 is the prediction alone.
        phi: signed distance of ``given``, where it is known.
        metric: of the distance.
        size: of a voxel.
        group: of the case.

    Returns:
        The label, boolean.
    """
    corrected = scores >= 0
    if weight == 0:
        return corrected
    offset = shape.offset_of(group)
    if phi is None:
        phi = distance(given, metric, size)
    if phi is None:
        return corrected
    if shape.own:
        own = surface_displacement(given, corrected, spacing=size)
        offset += shape.own * (own - offset) if np.isfinite(own) else 0.0
    mean = (1 - weight) * np.clip(scores, -FAR, FAR) + weight * np.clip(offset - phi, -FAR, FAR)
    return np.asarray(mean >= 0)
