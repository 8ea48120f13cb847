"""The format of predictions and labels: to logits and masks of classes, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.box import filled
from monai_sc.functional.checks import OUTPUTS, as_array, check_choice
from monai_sc.functional.correction import one_against_rest, probabilities_to_logits


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
