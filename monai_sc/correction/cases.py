"""The cases that a corrector is fitted on, read one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.correction.format import LabelFormat
from monai_sc.functional.bias import ignored_voxels
from monai_sc.functional.checks import check_same_shape, check_spacing

CleanCase = tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[float, ...] | None]


class CleanCases:
    """The cases of one fit, checked and as logits and masks; each pass reads them anew, one at a time.

    A case is its logits and its masks ``(classes, *spatial)``, its voxels that do not count or ``None``, and the size
    of a voxel.

    Args:
        label_format: of predictions and labels.
        predictions: each ``(channels, *spatial)``.
        labels: in the same order.
        spacing: size of a voxel along each axis, for all cases or for each.
        ignore: for each case a mask ``(channels or 1, *spatial)`` of voxels that do not count, or ``None``.
    """

    def __init__(
        self,
        label_format: LabelFormat,
        predictions: Iterable[NdarrayOrTensor],
        labels: Iterable[NdarrayOrTensor],
        spacing: Sequence[float] | Iterable[Sequence[float] | None] | None = None,
        ignore: Iterable[NdarrayOrTensor | None] | None = None,
    ) -> None:
        for name, values in (("spacing", spacing), ("ignore", ignore)):
            if values is not None and iter(values) is values:
                raise ValueError(
                    f"{name} must be a list or another collection that can be read twice, got an iterator."
                )
        self.format = label_format
        self.predictions = predictions
        self.labels = labels
        self.spacing: Any = spacing
        self.ignore = ignore

    def __iter__(self) -> Iterator[CleanCase]:
        many = self.spacing is not None and not np.isscalar(next(iter(self.spacing), 0.0))
        sizes = iter(self.spacing) if many else None
        ignores = iter(self.ignore) if self.ignore is not None else None
        labels = iter(self.labels)
        end: Any = object()
        for prediction in self.predictions:
            label = next(labels, end)
            if label is end:
                raise ValueError("predictions and labels must be of the same cases, got more predictions than labels.")
            logits = self.format.logits(prediction)
            masks, left_out = self.format.masks(label)
            check_same_shape(logits, masks, ("prediction (without the background)", "label"))
            size = check_spacing(_next(sizes, "spacing") if sizes is not None else self.spacing, logits.ndim - 1)
            own = _next(ignores, "ignore") if ignores is not None else None
            voxels = ignored_voxels(own, masks.shape)
            if voxels is not None:
                left_out = voxels if left_out is None else left_out | voxels
            yield logits, masks, left_out, size
        if next(labels, end) is not end:
            raise ValueError("predictions and labels must be of the same cases, got more labels than predictions.")

    def raw(self, index: int) -> np.ndarray:
        """Return the logits of all channels of a case."""
        predictions: Any = self.predictions
        if hasattr(predictions, "__getitem__"):
            return self.format.raw(predictions[index])
        return self.format.raw(next(p for i, p in enumerate(predictions) if i == index))


def _next(values: Iterator[Any], name: str) -> Any:
    end: Any = object()
    value = next(values, end)
    if value is end:
        raise ValueError(f"{name} must have one entry per case, got fewer.")
    return value
