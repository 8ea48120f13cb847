"""The labels that were given: how far they lie off on average, and what of their shape is worth keeping."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.functional.box import bounding_box
from monai_sc.functional.dice import dice
from monai_sc.functional.distance import has_boundary, signed_distance
from monai_sc.functional.surface import matched_structures, surface_displacement

if TYPE_CHECKING:
    from monai_sc.correction.corrector import SpatialCorrector

__all__ = ["GivenLearner", "GivenShape", "blend_shapes", "given_offset", "learn_given_shape"]

FAR = 10.0  # voxels; what is farther from a boundary than this is inside or outside, no more


@dataclass(frozen=True)
class GivenShape:
    r"""How the given labels of a class lie to the corrected predictions.

    Attributes:
        offset: mean displacement of given labels against corrected predictions: what remains of the bias of the labels
            themselves; negative where they are too large.
        spread: its standard deviation over cases.
        own: part of a case's deviation from ``offset`` that is the label's own error, in ``[0, 1]``; the rest is error
            of the prediction. It is :math:`1 - \tau^2 / s^2`, with the standard deviations :math:`\tau` of predictions
            against clean labels, and :math:`s` of given labels against predictions.
        num_cases: from which this was learnt.
        agreement: mean Dice of the uncorrected predictions with the labels that they learnt from.
    """

    offset: float
    spread: float
    own: float
    num_cases: int
    agreement: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> GivenShape:
        """Return what :py:meth:`as_dict` wrote."""
        return cls(**content)


def given_offset(given: np.ndarray, corrected: np.ndarray, spacing: Sequence[float] | None) -> float:
    """Return the displacement of a given mask against a corrected one ``(*spatial)``, ``nan`` if they do not meet."""
    masks = matched_structures(given, corrected)
    return surface_displacement(*masks, spacing=spacing) if masks[0].any() and masks[1].any() else float("nan")


def learn_given_shape(offsets: Sequence[float], agreement: Sequence[float], clean_spread: float) -> GivenShape:
    """Return what :py:func:`given_offset` and the Dice of some training cases say.

    Args:
        offsets: one per case; ``nan`` does not count.
        agreement: Dice of the prediction with the given label, one per case.
        clean_spread: standard deviation over the clean cases of predictions against clean labels.
    """
    values = np.asarray(offsets, dtype=np.float64)
    values = values[np.isfinite(values)]
    agreed = float(np.mean(agreement)) if len(agreement) else float("nan")
    if not len(values):
        return GivenShape(0.0, float("nan"), 0.0, 0, agreed)
    # The median: where a structure was missed or doubled, the offset is anything.
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    own = max(0.0, 1 - clean_spread**2 / spread**2) if spread > 0 and np.isfinite(clean_spread) else 0.0
    return GivenShape(float(np.median(values)), spread, own, len(values), agreed)


class GivenLearner:
    """Collects how given labels lie to corrected predictions, case by case.

    Args:
        corrector: that corrects the predictions.

    Raises:
        ValueError: when the corrector has not been fitted.
    """

    def __init__(self, corrector: SpatialCorrector) -> None:
        self.corrector = corrector
        self.clean_spread = corrector.check_fitted().spread
        self.offsets: list[list[float]] = []
        self.agreement: list[np.ndarray] = []

    def add(
        self,
        logits: np.ndarray,
        given: np.ndarray,
        left_out: np.ndarray | None,
        spacing: Sequence[float] | None,
        group: Hashable = None,
    ) -> None:
        """Add a case: logits and given masks ``(classes, *spatial)``."""
        scores = self.corrector.scores_of_logits(logits, spacing=spacing, group=group)
        self.add_scores(scores, logits >= 0, given, spacing, left_out)

    def add_scores(
        self,
        scores: np.ndarray,
        predicted: np.ndarray,
        given: np.ndarray,
        spacing: Sequence[float] | None,
        left_out: np.ndarray | None = None,
    ) -> None:
        """Add a case: corrected scores, predicted masks and given masks ``(classes, *spatial)``."""
        self.offsets.append([given_offset(g, s >= 0, spacing) for g, s in zip(given, scores, strict=True)])
        self.agreement.append(dice(predicted, given, left_out))

    def shapes(self) -> list[GivenShape]:
        """Return what the cases so far say, one per class."""
        return [
            learn_given_shape([case[k] for case in self.offsets], [float(a[k]) for a in self.agreement], float(spread))
            for k, spread in enumerate(self.clean_spread)
        ]


def blend_shapes(
    scores: np.ndarray,
    given: np.ndarray,
    shape: GivenShape,
    *,
    weight: float,
    unit: float = 1.0,
    spacing: Sequence[float] | None = None,
) -> np.ndarray:
    """Return the corrected label with the shape of the given one: the mean of two signed distances.

    The given label, without what the prediction does not touch, is moved to where the corrected prediction lies: by the
    offset that all labels have, and by that of this case as far as it is the label's own.

    Args:
        scores: ``(*spatial)``, signed distance to the corrected boundary, positive inside.
        given: boolean, same shape.
        shape: of the class.
        weight: of the given label, in ``[0, 1]``.
        unit: size of a voxel in the unit of the scores, to say what is far.
        spacing: to measure with.

    Returns:
        The label, boolean; empty where the given one is, and that of the scores alone where it is full. Where the two
        do not meet, the network has missed what was drawn, or found something else: then it is the given label, moved
        by ``offset``.
    """
    corrected = scores >= 0
    if weight == 0 or given.all():
        return corrected
    if not given.any():  # what nobody drew is not made from a network's prediction
        return given
    far = FAR * unit
    # Nothing changes farther away than the two boundaries may move.
    reach = far + abs(shape.offset)
    margin = [int(np.ceil(reach / size)) + 1 for size in spacing or (1.0,) * scores.ndim]
    box = bounding_box(given | corrected, margin) or ()
    label = np.zeros_like(given)
    label[box] = _blended(scores[box], given[box], shape, weight, far, spacing)
    return label


def _blended(
    scores: np.ndarray, given: np.ndarray, shape: GivenShape, weight: float, far: float, spacing: Sequence[float] | None
) -> np.ndarray:
    matched, corrected = matched_structures(given, scores >= 0)
    if not has_boundary(np.stack([matched, corrected])).all():
        if not has_boundary(given[None])[0]:
            return scores >= 0
        moved = shape.offset - np.asarray(signed_distance(given[None], spacing=spacing, origin="face"))[0]
        return np.asarray(moved >= 0) if (moved >= 0).any() else given
    offset = shape.offset
    if shape.own:
        offset += shape.own * (surface_displacement(matched, corrected, spacing=spacing) - offset)
    phi = np.asarray(signed_distance(matched[None], spacing=spacing, origin="face"))[0]
    return np.asarray((1 - weight) * np.clip(scores, -far, far) + weight * np.clip(offset - phi, -far, far) >= 0)
