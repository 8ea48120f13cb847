"""The format of predictions and labels: to logits and masks of classes, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.bias import ignored_voxels
from monai_sc.functional.boundary import one_against_rest, probabilities_to_logits
from monai_sc.functional.checks import OUTPUTS, as_array, check_choice, check_same_shape, check_spacing
from monai_sc.functional.masks import filled


class LabelFormat:
    """How predictions and labels hold their classes.

    Args:
        class_names: one per channel; with ``"softmax"`` one per channel but the first, which is the background.
        output: ``"sigmoid"``: labels ``(classes, *spatial)`` of 0 and 1; ``"softmax"``: labels ``(1, *spatial)`` of 0
            (background) and ``1, 2, ...`` (``class_names``).
        probabilities: predictions are probabilities, not logits.
        ignore_value: voxels of a label with this value are unknown.

    Raises:
        ValueError: when an option is out of range.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        output: str = "sigmoid",
        probabilities: bool = False,
        ignore_value: int | None = None,
    ) -> None:
        if isinstance(class_names, str) or not len(class_names):
            raise ValueError(f"class_names must be a list of at least one name, got {class_names!r}.")
        if len(set(class_names)) < len(class_names):
            raise ValueError(f"class_names must differ from each other, got {list(class_names)}.")
        check_choice(output, OUTPUTS, "output")
        self.class_names = list(class_names)
        self.softmax = output == "softmax"
        self.probabilities = probabilities
        self.ignore_value = ignore_value
        self.highest = len(self.class_names) if self.softmax else 1  # value in a label
        if ignore_value is not None and 0 <= ignore_value <= self.highest:
            raise ValueError(f"ignore_value must not be the value of a class, got {ignore_value}.")

    def raw(self, prediction: NdarrayOrTensor) -> np.ndarray:
        """Return a prediction as logits of all its channels."""
        array = as_array(prediction)
        array = array.astype(np.float32) if array.dtype != np.float64 else array
        if not self.probabilities:
            return array
        return np.asarray(probabilities_to_logits(array, exclusive=self.softmax))

    def logits(self, prediction: NdarrayOrTensor) -> np.ndarray:
        """Return a prediction as one logit against the rest per class ``(classes, *spatial)``."""
        array = as_array(prediction)
        if array.ndim < 2:
            raise ValueError(f"A prediction must have the shape (channels, *spatial), got {array.shape}.")
        channels = len(self.class_names) + self.softmax
        if len(array) != channels:
            raise ValueError(
                f"A prediction must have {channels} channels, {'the background and ' if self.softmax else ''}"
                f"one per class of {self.class_names}, got {len(array)}."
            )
        array = self.raw(array)
        if not np.isfinite(array).all():
            raise ValueError("A prediction must be finite, got nan or infinite values; the network has diverged.")
        return np.asarray(one_against_rest(array))[1:] if self.softmax else array

    def predicted(self, raw: np.ndarray) -> np.ndarray:
        """Return the masks ``(classes, *spatial)`` that the logits of all channels say, uncorrected."""
        return self.exclusive(raw.argmax(axis=0)) if self.softmax else raw >= 0

    def exclusive(self, values: np.ndarray) -> np.ndarray:
        """Return a map ``(*spatial)`` of the classes as masks ``(classes, *spatial)``."""
        return np.stack([values == k + 1 for k in range(len(self.class_names))])

    def masks(self, label: NdarrayOrTensor, name: str = "label") -> tuple[np.ndarray, np.ndarray | None]:
        """Return a label as booleans ``(classes, *spatial)``, and its ignored voxels or ``None``.

        An ignored voxel gets the value of the nearest known one, so that where a class meets them it has no boundary.
        """
        array = as_array(label)
        channels = 1 if self.softmax else len(self.class_names)
        if array.ndim < 2 or len(array) != channels:
            raise ValueError(
                f"{name} must have the shape ({channels}, *spatial), "
                f"{'one map of the classes' if self.softmax else 'one channel per class'}, got {array.shape}."
            )
        ignored = np.asarray(array == self.ignore_value) if self.ignore_value is not None else None
        known = array == 0
        for value in range(1, self.highest + 1):
            known |= array == value
        if ignored is not None:
            known |= ignored
        if not known.all():
            values = ", ".join(f"{v:g}" for v in np.unique(array[~known])[:4])
            raise ValueError(
                f"{name} must hold the values 0 to {self.highest} only, got {values}; give ignore_value, or map them "
                "first."
            )
        unknown = ignored is not None and bool(ignored.any())
        if ignored is not None and unknown:
            array = np.stack([filled(own, gap) for own, gap in zip(array, ignored, strict=True)])
        masks = self.exclusive(array[0]) if self.softmax else np.asarray(array == 1)
        if ignored is None or not unknown:
            return masks, None
        return masks, np.repeat(ignored, len(masks), axis=0) if self.softmax else ignored

    def trusted(self, trusted: NdarrayOrTensor, given: NdarrayOrTensor, spatial: tuple[int, ...]) -> np.ndarray:
        """Return which voxels ``(classes, *spatial)`` of a given label must stay: where ``trusted`` is not 0."""
        mask = np.asarray(as_array(trusted) != 0)
        shape = as_array(given).shape
        if mask.shape[1:] != spatial or len(mask) not in (1, shape[0]):
            raise ValueError(
                f"trusted must have the shape of given, {tuple(shape)}, or one channel of it, got {mask.shape}."
            )
        return np.broadcast_to(mask, (len(self.class_names), *spatial))

    def as_label(
        self, masks: np.ndarray, given: NdarrayOrTensor | None = None, kept: np.ndarray | None = None
    ) -> np.ndarray:
        """Return masks ``(classes, *spatial)`` as a label like ``given``, whose voxels ``kept`` stay."""
        label = masks
        if self.softmax:
            label = (masks * np.arange(1, len(masks) + 1).reshape(-1, *[1] * (masks.ndim - 1))).sum(axis=0)[None]
            kept = None if kept is None else np.asarray(kept.any(axis=0))[None]
        source = None if given is None else as_array(given)
        label = label.astype(np.uint8 if source is None else source.dtype)
        return label if source is None or kept is None else np.where(kept, source, label)


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
