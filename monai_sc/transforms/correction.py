"""The transform that moves predicted boundaries back by their bias."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from monai.config import KeysCollection, NdarrayOrTensor
from monai.transforms import MapTransform, Transform
from monai.utils import TransformBackends, convert_to_dst_type

from monai_sc.functional import correct_boundary
from monai_sc.functional.boundary import REPRESENTATIONS, check_correction
from monai_sc.functional.checks import check_choice
from monai_sc.transforms.tensors import as_tensor


class SpatialCorrection(Transform):
    r"""Move the boundary that logits ``(channels, *spatial)`` predict back by its bias :math:`\hat\Delta`.

    Negative bias: the predictions are too large, and shrink. Equations, source and edge cases are those of
    :py:func:`monai_sc.functional.correct_boundary`.

    Args:
        bias: :math:`\hat\Delta`, one value or one per channel, in voxels of ``spacing``'s unit.
        representation: ``"distance"`` or ``"logit"``.
        gamma: width of the ``"logit"`` correction, in ``(0, 1]``.
        metric: ``"euclidean"`` or ``"taxicab"``.
        spacing: size of a voxel along each spatial axis; ``None`` is 1 voxel.
        max_shift: no boundary moves farther than this, in the unit of ``bias``; ``None`` for no limit.
        as_label: return the corrected label, 0 and 1 in the dtype of the logits; else the scores, whose sign is the
            label, so that they can be resampled before the threshold (``Invertd``, then ``AsDiscreted(threshold=0)``).

    Raises:
        ValueError: when an option is out of range, or logits or ``bias`` is not finite.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[-1.5, -0.5, 0.5, 1.5, 0.5, -0.5]])
        >>> SpatialCorrection(-1.0)(logits).tolist()
        [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        bias: float | Sequence[float],
        *,
        representation: str = "distance",
        gamma: float = 1.0,
        metric: str = "euclidean",
        spacing: Sequence[float] | None = None,
        max_shift: float | None = None,
        as_label: bool = True,
    ) -> None:
        check_choice(representation, REPRESENTATIONS, "representation")
        check_correction(gamma, metric, max_shift)
        self.bias = bias
        self.representation = representation
        self.gamma = gamma
        self.metric = metric
        self.spacing = spacing
        self.max_shift = max_shift
        self.as_label = as_label

    def __call__(self, logits: NdarrayOrTensor) -> NdarrayOrTensor:
        logits = as_tensor(logits)
        scores = correct_boundary(
            logits,
            self.bias,
            representation=self.representation,
            gamma=self.gamma,
            metric=self.metric,
            spacing=self.spacing,
            max_shift=self.max_shift,
        )
        return convert_to_dst_type(scores >= 0, logits)[0] if self.as_label else scores


class SpatialCorrectiond(MapTransform):
    """Dictionary version of :py:class:`SpatialCorrection`, with its arguments; ``keys`` are of the logits."""

    backend = SpatialCorrection.backend

    def __init__(
        self,
        keys: KeysCollection,
        bias: float | Sequence[float],
        *,
        representation: str = "distance",
        gamma: float = 1.0,
        metric: str = "euclidean",
        spacing: Sequence[float] | None = None,
        max_shift: float | None = None,
        as_label: bool = True,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.correction = SpatialCorrection(
            bias,
            representation=representation,
            gamma=gamma,
            metric=metric,
            spacing=spacing,
            max_shift=max_shift,
            as_label=as_label,
        )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self.correction(d[key])
        return d


SpatialCorrectionD = SpatialCorrectionDict = SpatialCorrectiond
