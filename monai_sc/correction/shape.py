"""The shape of the labels that were given: where a prediction says how far a boundary lies, they say how it runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from monai_sc.correction.cases import Size
from monai_sc.correction.move import FAR, box_around, distance
from monai_sc.functional.bias import group_means
from monai_sc.functional.surface import matched_structures, surface_displacement

__all__ = ["GivenShape", "blend_shapes", "given_offset", "learn_given_shape"]


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

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> GivenShape:
        """Return what :py:meth:`as_dict` wrote."""
        return cls(**content)


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
    """Return what :py:func:`given_offset` and the Dice of some training cases say.

    Args:
        offsets: one per case; ``nan`` does not count.
        agreement: Dice of the prediction with the given label, one per case.
        clean_spread: standard deviation over the clean cases of predictions against clean labels.
        groups: of the cases; each gets an offset of its own, drawn toward the common one.
    """
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
