"""The transform that corrects the output of a network."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor, PathLike
from monai.transforms import MapTransform, Transform
from monai.utils import TransformBackends, convert_to_dst_type

from monai_sc.correction import Fitted
from monai_sc.functional import correct_boundary
from monai_sc.functional.boundary import REPRESENTATIONS, check_correction
from monai_sc.functional.checks import check_choice
from monai_sc.transforms.distance import spacing_of
from monai_sc.transforms.tensors import as_tensor


class SpatialCorrection(Transform):
    r"""Correct the output of a network ``(channels, *spatial)``: move its boundary back by its bias.

    Give one of two: a ``corrector`` that was fitted on clean cases, which moves the boundary of each class as they
    show, drops false objects, and keeps exclusive classes exclusive; or a ``bias`` :math:`\hat\Delta`, by which all
    boundaries are moved. Negative bias: predictions are too large, and shrink. Equations, source and edge cases are
    those of :py:func:`monai_sc.functional.correct_boundary`.

    Args:
        bias: one value or one per channel, in voxels of ``spacing``'s unit.
        corrector: a :py:class:`~monai_sc.correction.Fitted`, or the file that its ``save`` wrote. ``representation``,
            ``gamma``, ``metric`` and ``max_shift`` are then its own.
        representation: ``"distance"`` or ``"logit"``.
        gamma: width of the ``"logit"`` correction, in ``(0, 1]``.
        metric: ``"euclidean"`` or ``"taxicab"``.
        spacing: size of a voxel along each spatial axis. ``None``: with ``bias`` 1 voxel; with ``corrector`` that
            of the ``MetaTensor``, in mm, if the corrector was fitted with a spacing.
        max_shift: largest shift of a boundary than this, in the unit of ``bias``; ``None`` for no limit.
        as_label: return the corrected label in the dtype of the output, 0 and 1, or with exclusive classes one map;
            else the scores of each class, positive inside, so that they can be resampled before the threshold
            (``Invertd``, then ``AsDiscreted(threshold=0)``).

    Raises:
        ValueError: when an option is out of range, both or none of ``bias`` and ``corrector`` are given, output or
            ``bias`` is not finite, or the size of a voxel is needed and not known.
        FileNotFoundError: when ``corrector`` names no file.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[-1.5, -0.5, 0.5, 1.5, 0.5, -0.5]])
        >>> SpatialCorrection(-1.0)(logits).tolist()
        [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        bias: float | Sequence[float] | None = None,
        *,
        corrector: Fitted | PathLike | None = None,
        representation: str = "distance",
        gamma: float = 1.0,
        metric: str = "euclidean",
        spacing: Sequence[float] | None = None,
        max_shift: float | None = None,
        as_label: bool = True,
    ) -> None:
        if (bias is None) == (corrector is None):
            raise ValueError(f"bias or corrector must be given, got {'neither' if bias is None else 'both'}.")
        check_choice(representation, REPRESENTATIONS, "representation")
        check_correction(gamma, metric, max_shift)
        self.bias = bias
        self.corrector = Fitted.load(corrector) if isinstance(corrector, (str, os.PathLike)) else corrector
        self.representation = representation
        self.gamma = gamma
        self.metric = metric
        self.spacing = spacing
        self.max_shift = max_shift
        self.as_label = as_label

    def __call__(self, logits: NdarrayOrTensor, group: Hashable | None = None) -> NdarrayOrTensor:
        """Correct the output of a network.

        Args:
            logits: ``(channels, *spatial)``; probabilities, if the corrector was fitted on them.
            group: annotator, site or scanner of the case, where the corrector was fitted with groups.
        """
        if self.corrector is not None:
            corrected = self._corrected(self.corrector, logits, group)
            return convert_to_dst_type(corrected, as_tensor(logits))[0]
        logits = as_tensor(logits)
        scores = correct_boundary(
            logits,
            [] if self.bias is None else self.bias,
            representation=self.representation,
            gamma=self.gamma,
            metric=self.metric,
            spacing=self.spacing,
            max_shift=self.max_shift,
        )
        return convert_to_dst_type(scores >= 0, logits)[0] if self.as_label else scores

    def _corrected(self, corrector: Fitted, logits: NdarrayOrTensor, group: Hashable | None) -> np.ndarray:
        spacing = self.spacing
        if spacing is None and corrector.unit is not None:
            spacing = spacing_of(logits)
            if spacing is None:
                raise ValueError(
                    "spacing must be given for an array without an affine, since the corrector was fitted with one."
                )
        correct = corrector.transform if self.as_label else corrector.scores
        return correct(logits, spacing=spacing, group=group)


class SpatialCorrectiond(MapTransform):
    """Dictionary version of :py:class:`SpatialCorrection`, with its arguments; ``keys`` are of a network's outputs.

    ``group_key`` is that of the annotator, site or scanner of the case, for a corrector that was fitted with groups.
    """

    backend = SpatialCorrection.backend

    def __init__(
        self,
        keys: KeysCollection,
        bias: float | Sequence[float] | None = None,
        *,
        corrector: Fitted | PathLike | None = None,
        representation: str = "distance",
        gamma: float = 1.0,
        metric: str = "euclidean",
        spacing: Sequence[float] | None = None,
        max_shift: float | None = None,
        as_label: bool = True,
        group_key: Hashable | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.correction = SpatialCorrection(
            bias,
            corrector=corrector,
            representation=representation,
            gamma=gamma,
            metric=metric,
            spacing=spacing,
            max_shift=max_shift,
            as_label=as_label,
        )
        self.group_key = group_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        group = None if self.group_key is None else d[self.group_key]
        for key in self.key_iterator(d):
            d[key] = self.correction(d[key], group)
        return d


SpatialCorrectionD = SpatialCorrectionDict = SpatialCorrectiond
