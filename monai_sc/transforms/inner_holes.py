"""The transform that punches holes into labels, drawn anew in every call."""

from __future__ import annotations

from collections.abc import Sequence

from monai.config import KeysCollection, NdarrayOrTensor
from typing_extensions import Unpack

from monai_sc.functional.annotation_error import check_holes, punch_holes
from monai_sc.functional.checks import Range
from monai_sc.transforms.label_noise import LabelNoiseOptions, RandLabelNoise, RandLabelNoised


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
