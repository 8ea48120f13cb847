"""The cases that a corrector is fitted on, read as they are asked for, with distances in voxels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.correction.format import LabelFormat
from monai_sc.functional.bias import ignored_voxels
from monai_sc.functional.checks import check_same_shape, check_spacing

Size = tuple[float, ...] | None
"""Size of a voxel along each axis, in the unit of the corrector; ``None`` where all sides are 1."""


class Case(NamedTuple):
    """A case: arrays ``(classes, *spatial)``.

    Attributes:
        logits: of the prediction, one against the rest; ``None`` where nothing was predicted.
        raw: logits of all channels, where they are those of a softmax.
        label: booleans, the clean label; in a training case the given one.
        given: booleans, the label that the case was given, ``None`` where it has only the clean one.
        left_out: voxels that do not count, ``None`` where all do.
        size: of a voxel.
        group: annotator, site or scanner.
    """

    logits: np.ndarray | None
    raw: np.ndarray | None
    label: np.ndarray
    given: np.ndarray | None
    left_out: np.ndarray | None
    size: Size
    group: Hashable

    def predicted_logits(self) -> np.ndarray:
        """Return the logits.

        Raises:
            ValueError: when nothing was predicted.
        """
        if self.logits is None:
            raise ValueError("predictions must be there for every case.")
        return self.logits


def in_voxels(spacing: Sequence[float] | None, unit: float | None, ndim: int) -> Size:
    """Return a spacing in voxels of ``unit``.

    The ratio is rounded, so that the same voxels in mm and in micron are the same to the last bit.

    Raises:
        ValueError: when the spacing does not fit, or only one of the two is known.
    """
    size = check_spacing(spacing, ndim)
    if (size is None) != (unit is None):
        raise ValueError(
            f"spacing must be given {'always or never' if unit is None else 'here as it was for fit'}, got {spacing}."
        )
    if size is None or unit is None:
        return None
    sides = tuple(float(f"{side / unit:.5g}") for side in size)
    return None if all(side == 1 for side in sides) else sides


def unit_of(spacings: Sequence[Sequence[float] | None]) -> float | None:
    """Return the length of a voxel for all cases: the median of their smallest sides, ``None`` where none is known.

    Raises:
        ValueError: when only some are known.
    """
    known = [min(float(side) for side in spacing) for spacing in spacings if spacing is not None]
    if known and len(known) < len(spacings):
        raise ValueError(
            f"spacing must be known of all cases or of none, got it for {len(known)} of {len(spacings)} cases."
        )
    return float(np.median(known)) if known else None


class Cases:
    """The cases of one fit, checked, as logits and masks; each pass reads them anew, one after the other.

    Args:
        label_format: of predictions and labels.
        predictions: each ``(channels, *spatial)``; ``None`` where there are none.
        labels: in the same order.
        given: the labels that the cases were given, ``None`` for a case that has none.
        spacing: size of a voxel along each axis, for all cases or for each.
        ignore: for each case a mask ``(channels or 1, *spatial)`` of voxels that do not count, or ``None``.
        groups: of the cases.

    Raises:
        ValueError: when a collection can be read only once, or the number of cases differs.
    """

    def __init__(
        self,
        label_format: LabelFormat,
        predictions: Iterable[NdarrayOrTensor] | None,
        labels: Iterable[NdarrayOrTensor],
        *,
        given: Iterable[NdarrayOrTensor | None] | None = None,
        spacing: Sequence[float] | Iterable[Sequence[float] | None] | None = None,
        ignore: Iterable[NdarrayOrTensor | None] | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.format = label_format
        self.columns: dict[str, Any] = {
            "predictions": predictions,
            "labels": labels,
            "given": given,
            "ignore": ignore,
            "groups": groups,
        }
        one: Any = spacing
        many = spacing is not None and not np.isscalar(next(iter(spacing), None))
        for name, values in {**self.columns, "spacing": spacing}.items():
            if values is not None and iter(values) is values:
                raise ValueError(
                    f"{name} must be a list or another collection that can be read twice, got an iterator."
                )
        self.spacings: list[Any] | None = list(spacing) if many and spacing is not None else None
        self.spacing: Any = None if many else one
        self.unit: float | None = unit_of([self.spacing])

    def sizes(self) -> list[Any]:
        """Return the spacings of the cases as they were given, one for all or one for each."""
        return [self.spacing] if self.spacings is None else self.spacings

    def __iter__(self) -> Iterator[Case]:
        columns = {name: iter(values) for name, values in self.columns.items() if values is not None}
        if self.spacings is not None:
            columns["spacing"] = iter(self.spacings)
        end: Any = object()
        while True:
            row = {name: next(values, end) for name, values in columns.items()}
            ended = [name for name, value in row.items() if value is end]
            if len(ended) == len(row):
                return
            if ended:
                others = [name for name in row if name not in ended]
                raise ValueError(
                    f"{ended[0]} and {others[0]} must be of the same cases, got more {others[0]} than {ended[0]}."
                )
            yield self._case(row)

    def _case(self, row: dict[str, Any]) -> Case:
        masks, left_out = self.format.masks(row["labels"])
        logits = raw = given = None
        if row.get("predictions") is not None:
            logits = self.format.logits(row["predictions"])
            check_same_shape(logits, masks, ("prediction (without the background)", "label"))
            raw = self.format.raw(row["predictions"]) if self.format.softmax else None
        if row.get("given") is not None:
            given, unknown = self.format.masks(row["given"], "given")
            check_same_shape(given, masks, ("given", "label"))
            left_out = _either(left_out, unknown)
        size = in_voxels(row.get("spacing", self.spacing), self.unit, masks.ndim - 1)
        left_out = _either(left_out, ignored_voxels(row.get("ignore"), masks.shape))
        return Case(logits, raw, masks, given, left_out, size, row.get("groups"))


def _either(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return second if first is None else first if second is None else first | second
