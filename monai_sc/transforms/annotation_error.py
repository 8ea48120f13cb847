"""Transforms for annotation errors beside the Markov noise, each drawn anew in every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from typing_extensions import Unpack

from monai_sc.functional.annotation_error import (
    check_holes,
    coarsen_contour,
    drop_components,
    punch_holes,
    shift_boundary,
    translate_label,
)
from monai_sc.functional.checks import Range, check_choice, check_range
from monai_sc.transforms.label_noise import (
    LabelNoiseOptions,
    RandLabelNoise,
    RandLabelNoised,
    random_lengths,
    slice_axis_of,
)


class RandDilateErodeLabel(RandLabelNoise):
    """Dilate or erode, each with probability ½, every channel of a label by its own random radius.

    This is the paper's noise S_M (Yao et al., ICLR 2023, section 4). Each channel of ``(channels, *spatial)`` has its
    own draw; a channel without a boundary is returned unchanged, and erosion may empty one. The operation is
    :py:func:`monai_sc.functional.shift_boundary`.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        radius: ``(low, high)`` of the uniform radius, at least 0, or one such pair per channel.
        options: ``unit`` of ``radius``, and ``classes``, ``overlap`` and ``background`` of a label map: see
            :py:class:`monai_sc.transforms.RandLabelNoise`.

    Raises:
        ValueError: when ``radius`` is not ``0 <= low <= high``, or ``unit="mm"`` and the label has no affine.

    Example:
        >>> import numpy as np
        >>> noise = RandDilateErodeLabel(1.0, radius=(1, 1)).set_random_state(2)
        >>> noise(np.array([[0, 0, 1, 1, 1, 0]])).tolist()
        [[0, 0, 0, 1, 0, 0]]
    """

    def __init__(
        self, prob: float = 0.1, *, radius: Range | Sequence[Range], **options: Unpack[LabelNoiseOptions]
    ) -> None:
        super().__init__(prob, **options)
        check_range(radius, "radius")
        self.radius = radius

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        distances = [
            length * (1 if rng.random() < 0.5 else -1)
            for length, rng in random_lengths(self.radius, len(masks), "radius", seed)
        ]
        return shift_boundary(masks, distances, spacing=spacing)


class RandDropComponents(RandLabelNoise):
    """Remove each connected component of each channel of a label with a probability: objects that were overlooked.

    The operation is :py:func:`monai_sc.functional.drop_components`.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        drop_prob: probability for each component, in ``[0, 1]``, one value or one per channel.
        options: ``classes``, ``overlap`` and ``background`` of a label map: see
            :py:class:`monai_sc.transforms.RandLabelNoise`.

    Raises:
        ValueError: when ``drop_prob`` is not in ``[0, 1]``.

    Example:
        >>> import numpy as np
        >>> noise = RandDropComponents(1.0, drop_prob=0.5).set_random_state(0)
        >>> noise(np.array([[1, 0, 1, 1, 0, 1]])).tolist()
        [[0, 0, 1, 1, 0, 0]]
    """

    def __init__(
        self, prob: float = 0.1, *, drop_prob: float | Sequence[float], **options: Unpack[LabelNoiseOptions]
    ) -> None:
        super().__init__(prob, **options)
        if not all(0 <= p <= 1 for p in np.ravel(drop_prob)):
            raise ValueError(f"drop_prob must be a probability in [0, 1], got {drop_prob}.")
        self.drop_prob = drop_prob

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        return drop_components(masks, self.drop_prob, seed=seed)


class RandCoarsenContour(RandLabelNoise):
    """Draw the contours of each channel of a label again as polygons with few vertices, slice by slice in a volume.

    The operation is :py:func:`monai_sc.functional.coarsen_contour`.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        vertex_distance: ``(low, high)`` of the uniform distance of vertices along a contour, over 0, or one such pair
            per channel.
        slice_axis: the spatial axis along which the slices of a volume lie; ``None`` is that of the largest spacing in
            the affine.
        options: ``unit`` of ``vertex_distance``, and ``classes``, ``overlap`` and ``background`` of a label map: see
            :py:class:`monai_sc.transforms.RandLabelNoise`.

    Raises:
        ValueError: when ``vertex_distance`` is not ``0 < low <= high``, or the label lacks an affine that is needed.

    Example:
        >>> import numpy as np
        >>> disc = np.hypot(*np.indices((41, 41)) - 20)[None] < 15
        >>> coarse = RandCoarsenContour(1.0, vertex_distance=(15, 20)).set_random_state(0)(disc)
        >>> int(disc.sum()), int(coarse.sum())
        (697, 569)
    """

    def __init__(
        self,
        prob: float = 0.1,
        *,
        vertex_distance: Range | Sequence[Range],
        slice_axis: int | None = None,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(prob, **options)
        check_range(vertex_distance, "vertex_distance")
        if np.min(vertex_distance) == 0:
            raise ValueError(f"vertex_distance must be over 0, got {vertex_distance}.")
        self.vertex_distance = vertex_distance
        self.slice_axis = check_choice(slice_axis, (None, 0, 1, 2), "slice_axis")

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        axis = self.slice_axis
        if axis is None:
            axis = slice_axis_of(label) if masks.ndim == 4 else -1
        distances = [length for length, _ in random_lengths(self.vertex_distance, len(masks), "vertex_distance", seed)]
        return coarsen_contour(masks, distances, spacing=spacing, slice_axis=axis, seed=seed)


class RandTranslateLabel(RandLabelNoise):
    """Move each channel of a label as a whole, by a random distance in a random direction.

    In a volume the direction lies within the slices. The distance is rounded to whole voxels along each axis. The
    operation is :py:func:`monai_sc.functional.translate_label`.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        distance: ``(low, high)`` of the uniform distance, at least 0, or one such pair per channel.
        slice_axis: the spatial axis of a volume along which nothing moves; ``None`` is that of the largest spacing in
            the affine.
        options: ``unit`` of ``distance``, and ``classes``, ``overlap`` and ``background`` of a label map: see
            :py:class:`monai_sc.transforms.RandLabelNoise`.

    Raises:
        ValueError: when ``distance`` is not ``0 <= low <= high``, or the label lacks an affine that is needed.

    Example:
        >>> import numpy as np
        >>> noise = RandTranslateLabel(1.0, distance=(2, 2)).set_random_state(1)
        >>> noise(np.array([[0, 0, 0, 1, 1, 0, 0]])).tolist()
        [[0, 0, 0, 0, 0, 1, 1]]
    """

    def __init__(
        self,
        prob: float = 0.1,
        *,
        distance: Range | Sequence[Range],
        slice_axis: int | None = None,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(prob, **options)
        check_range(distance, "distance")
        self.distance = distance
        self.slice_axis = check_choice(slice_axis, (None, 0, 1, 2), "slice_axis")

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        ndim = masks.ndim - 1
        moving = np.ones(ndim)
        if ndim == 3:
            moving[slice_axis_of(label) if self.slice_axis is None else self.slice_axis] = 0
        shifts: list[Any] = []
        for length, rng in random_lengths(self.distance, len(masks), "distance", seed):
            direction = rng.normal(size=ndim) * moving  # of uniform direction, whatever the number of axes
            shifts.append(length * direction / np.linalg.norm(direction) / (1 if spacing is None else spacing))
        return translate_label(masks, shifts)


class RandDilateErodeLabeld(RandLabelNoised):
    """Dictionary version of :py:class:`RandDilateErodeLabel`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        radius: Range | Sequence[Range],
        allow_missing_keys: bool = False,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(
            keys, RandDilateErodeLabel(prob, radius=radius, **options), allow_missing_keys=allow_missing_keys
        )


class RandDropComponentsd(RandLabelNoised):
    """Dictionary version of :py:class:`RandDropComponents`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        drop_prob: float | Sequence[float],
        allow_missing_keys: bool = False,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(
            keys, RandDropComponents(prob, drop_prob=drop_prob, **options), allow_missing_keys=allow_missing_keys
        )


class RandCoarsenContourd(RandLabelNoised):
    """Dictionary version of :py:class:`RandCoarsenContour`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        vertex_distance: Range | Sequence[Range],
        slice_axis: int | None = None,
        allow_missing_keys: bool = False,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(
            keys,
            RandCoarsenContour(prob, vertex_distance=vertex_distance, slice_axis=slice_axis, **options),
            allow_missing_keys=allow_missing_keys,
        )


class RandTranslateLabeld(RandLabelNoised):
    """Dictionary version of :py:class:`RandTranslateLabel`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        distance: Range | Sequence[Range],
        slice_axis: int | None = None,
        allow_missing_keys: bool = False,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(
            keys,
            RandTranslateLabel(prob, distance=distance, slice_axis=slice_axis, **options),
            allow_missing_keys=allow_missing_keys,
        )


RandCoarsenContourD = RandCoarsenContourDict = RandCoarsenContourd
RandDilateErodeLabelD = RandDilateErodeLabelDict = RandDilateErodeLabeld
RandDropComponentsD = RandDropComponentsDict = RandDropComponentsd
RandTranslateLabelD = RandTranslateLabelDict = RandTranslateLabeld


class RandInnerHoles(RandLabelNoise):
    """Punch random holes into each channel of a label, none of which touches its boundary.

    This is a structure that was not filled where it looks unlike itself, such as a dark core. The operation is
    :py:func:`monai_sc.functional.punch_holes`. In a label map a hole becomes background.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        number: ``(low, high)`` of the number of holes, uniform among whole numbers, or one such pair per channel.
        radius: ``(low, high)`` of the uniform radius of each hole, at least 0, or one such pair per channel.
        options: ``unit`` of ``radius``, and ``classes``, ``overlap`` and ``background`` of a label map: see
            :py:class:`monai_sc.transforms.RandLabelNoise`.

    Raises:
        ValueError: when a range is not ``0 <= low <= high``, or ``unit="mm"`` and the label has no affine.

    Example:
        >>> import numpy as np
        >>> noise = RandInnerHoles(1.0, number=(1, 1), radius=(1, 1))
        >>> noise(np.array([[0, 1, 1, 1, 1, 1, 0]])).tolist()
        [[0, 1, 0, 0, 0, 1, 0]]
    """

    def __init__(
        self,
        prob: float = 0.1,
        *,
        number: Range | Sequence[Range],
        radius: Range | Sequence[Range],
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(prob, **options)
        check_holes(number, radius)
        self.number = number
        self.radius = radius

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        return punch_holes(masks, self.number, self.radius, spacing=spacing, seed=seed)


class RandInnerHolesd(RandLabelNoised):
    """Dictionary version of :py:class:`RandInnerHoles`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        number: Range | Sequence[Range],
        radius: Range | Sequence[Range],
        allow_missing_keys: bool = False,
        **options: Unpack[LabelNoiseOptions],
    ) -> None:
        super().__init__(
            keys, RandInnerHoles(prob, number=number, radius=radius, **options), allow_missing_keys=allow_missing_keys
        )


RandInnerHolesD = RandInnerHolesDict = RandInnerHolesd
