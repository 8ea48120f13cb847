"""The checks that every function here makes of its arrays, each with one wording."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from monai.config import NdarrayOrTensor
from monai.utils import convert_data_type

OUTPUTS = ("sigmoid", "softmax")
"""What a network gives: channels that may overlap, or exclusive ones of which the first is the background."""

T = TypeVar("T")
Range = tuple[float, float]


def as_array(x: NdarrayOrTensor) -> np.ndarray:
    """Return ``x`` as a numpy array; it may share memory with ``x``, so it must not be written to.

    Raises:
        TypeError: when it does not hold real numbers.
    """
    if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16:
        x = x.float()  # numpy has no bfloat16
    if isinstance(x, torch.Tensor) and x.is_complex():  # which MONAI converts with a warning
        raise TypeError(f"An array must hold real numbers, got {x.dtype}.")
    array = np.asarray(convert_data_type(x, np.ndarray)[0])
    if array.dtype.kind not in "biuf":
        raise TypeError(f"An array must hold real numbers, got {array.dtype}.")
    return array


def binary_mask(label: NdarrayOrTensor, name: str = "label") -> np.ndarray:
    """Return ``label`` ``(channels, *spatial)`` as a boolean array.

    Raises:
        ValueError: when there is no channel or no spatial axis, or a value is neither 0 nor 1.
    """
    array = as_array(label)
    if array.ndim < 2 or not len(array):
        raise ValueError(f"{name} must have the shape (channels, *spatial), got {array.shape}.")
    if array.dtype == bool:
        return array
    mask = np.asarray(array == 1)
    if not np.all(mask | (array == 0)):
        values = ", ".join(f"{v:g}" for v in np.unique(array[~mask & (array != 0)])[:4])
        raise ValueError(
            f"{name} must be binary, only 0 and 1 in every channel, got {values}; "
            "map its values first (0/255 masks: label == 255; integer maps: one channel per class)."
        )
    return mask


def check_same_shape(first: Any, second: Any, names: tuple[str, str]) -> None:
    """Refuse two arrays that do not lie on the same grid.

    Raises:
        ValueError: when the shapes differ.
    """
    if tuple(first.shape) != tuple(second.shape):
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same shape, got {tuple(first.shape)} and {tuple(second.shape)}."
        )


def check_choice(value: T, choices: Collection[object], name: str) -> T:
    """Return ``value`` if it is one of ``choices``.

    Raises:
        ValueError: when it is not.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def check_image_size(size: int | Sequence[int], ndim: int, divisor: int = 16) -> list[int]:
    """Return the size of an image that a network works on, as one number per spatial axis.

    Raises:
        ValueError: when there are more or fewer sizes, or one is not a multiple of ``divisor`` over 0.
    """
    sizes = [size] * ndim if isinstance(size, (int, np.integer)) else list(size)
    if len(sizes) != ndim or not all(isinstance(n, (int, np.integer)) and n > 0 and n % divisor == 0 for n in sizes):
        example = ",".join(["128"] * ndim)
        raise ValueError(
            f"image_size must be one number or {ndim}, such as [{example}], each a multiple of {divisor} over 0, got "
            f"{size!r}."
        )
    return [int(n) for n in sizes]


def check_range(value: Range | Sequence[Range], name: str) -> None:
    """Refuse what is neither one range of numbers of at least 0, nor one for each channel.

    Raises:
        ValueError: when a range is not ``0 <= low <= high``.
    """
    try:
        pairs = np.asarray(value, dtype=np.float64)
    except ValueError:  # pairs of different lengths
        pairs = np.zeros(0)
    if (
        pairs.shape[-1:] != (2,)
        or pairs.ndim > 2
        or not np.all(np.isfinite(pairs[..., 1]) & (pairs[..., 0] >= 0) & (pairs[..., 0] <= pairs[..., 1]))
    ):
        raise ValueError(f"{name} must be (low, high) with 0 <= low <= high, or one pair per channel, got {value}.")


def check_spacing(spacing: Sequence[float] | None, ndim: int) -> tuple[float, ...] | None:
    """Return ``spacing`` as one positive number per spatial axis, or ``None``.

    Raises:
        ValueError: when the number of values is not ``ndim``, or one is not positive and finite.
    """
    if spacing is None:
        return None
    values = tuple(float(s) for s in spacing)
    if len(values) != ndim or not all(np.isfinite(s) and s > 0 for s in values):
        raise ValueError(f"spacing must be {ndim} positive numbers, one per spatial axis, got {values}.")
    return values


def per_channel(value: Any, num_channels: int, name: str) -> list[Any]:
    """Return ``value`` for every channel: a scalar is repeated, a sequence must have one entry per channel.

    Raises:
        ValueError: when a sequence has another length.
    """
    if np.ndim(value) == 0:
        return [value] * num_channels
    values = list(value)
    if len(values) != num_channels:
        raise ValueError(f"{name} must be one value or one per channel ({num_channels}), got {len(values)}.")
    return values


def ranges_per_channel(value: Range | Sequence[Range], num_channels: int, name: str) -> list[Range]:
    """Return a range for every channel: one is repeated, a sequence must have one per channel.

    Raises:
        ValueError: when a sequence has another length.
    """
    return per_channel([value] * num_channels if np.ndim(value) == 1 else value, num_channels, name)
