"""Inputs of all kinds that users have, good and bad ones, from a seeded generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from scipy import ndimage

SIZES = (0, 1, 2, 3, 5, 8, 13)
DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int64",
    "uint16",
    ">i2",
    ">f4",
    "float16",
    "float32",
    "float64",
    "complex64",
)
SPACINGS = (None, 1.0, 0.7, 1000.0, 0.001, 0.0, -1.0, np.nan, np.inf)


def shape(rng: np.random.Generator, spatial: bool = False) -> tuple[int, ...]:
    """Return a shape of 0 to 4 axes; with ``spatial`` mostly one that an image has."""
    if spatial and rng.random() < 0.8:
        return (int(rng.integers(1, 4)), *(int(rng.choice(SIZES[1:])) for _ in range(rng.integers(2, 4))))
    return tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(0, 5)))


def mask(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Return what a label may hold, mostly 0 and 1: nothing, all, one voxel, the border, blobs, noise, other values."""
    kind = rng.integers(9)
    values = np.zeros(size)
    if kind == 0 or not values.size:
        return values
    if kind == 1:
        return np.ones(size)
    if kind == 2:
        values.flat[rng.integers(values.size)] = 1
    elif kind == 3 and values.ndim:
        values[..., :1] = 1
    elif kind in (4, 5):
        smooth = ndimage.gaussian_filter(rng.normal(size=size), 1.5)
        values = (smooth > np.median(smooth)).astype(float)
    elif kind == 6:
        values = rng.integers(0, 2, size).astype(float)
    elif kind == 7:
        values = rng.choice([0.0, 1.0, 2.0, 7.0, 255.0], size)
    else:
        values = rng.choice([0.0, 1.0, 0.5, np.nan, np.inf, -1.0], size, p=[0.4, 0.4, 0.05, 0.05, 0.05, 0.05])
    return values


def logits(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Return what a network may say, from reasonable to diverged."""
    kind = rng.integers(6)
    values = rng.normal(0, 5, size) if kind else np.zeros(size)
    if kind == 1 and len(size) > 1:
        values = 4 * ndimage.gaussian_filter(values, [0, *[1.5] * (len(size) - 1)])
    elif kind == 2:
        values = values * 1e30
    elif kind == 3 and values.size:
        values.flat[rng.integers(values.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return values


def stored(rng: np.random.Generator, values: np.ndarray) -> Any:
    """Return values as some array: of any type, layout in memory, byte order and library; what is cut off is cut."""
    with np.errstate(all="ignore"):
        values = np.nan_to_num(values) if rng.random() < 0.5 else values
        dtype = np.dtype(rng.choice(DTYPES))
        if dtype.kind in "biu":
            values = np.nan_to_num(values, posinf=2, neginf=0)
        array = values.astype(dtype) if dtype.kind not in "iu" else values.clip(0, 100).astype(dtype)
    layout = rng.integers(5)
    if layout == 1:
        array = np.asfortranarray(array)
    elif layout == 2 and array.ndim:
        array = array[::-1].copy()[::-1]
    elif layout == 3 and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    if rng.random() < 0.3:
        array.setflags(write=False)
    library = rng.integers(5)
    if library > 1 or array.dtype.byteorder == ">" or array.dtype == np.uint16:
        return array
    tensor = torch.from_numpy(np.array(array))
    if rng.random() < 0.2 and tensor.is_floating_point():
        tensor = tensor.to(torch.bfloat16)
    return MetaTensor(tensor) if library else tensor


def spacing(rng: np.random.Generator, ndim: int) -> tuple[float, ...] | None:
    """Return the size of a voxel, sometimes one that cannot be."""
    if rng.random() < 0.4:
        return None
    if rng.random() < 0.2:
        ndim = int(rng.integers(0, 5))
    likely = [float(s) for s in rng.choice([0.7, 1.0, 2.5, 1000.0], max(ndim, 0))]
    if rng.random() < 0.2 and likely:
        likely[0] = float(rng.choice([0.0, -1.0, np.nan, np.inf, 1e-3]))
    return tuple(likely)


def fingerprint(values: Any) -> Any:
    """Return what must be as it was after a call."""
    if isinstance(values, torch.Tensor):
        real = torch.view_as_real(values) if values.is_complex() else values
        return (values.dtype, tuple(values.shape), real.to(torch.float64).numpy().tobytes())
    if isinstance(values, np.ndarray):
        return (values.dtype, values.shape, values.strides, values.flags.writeable, values.tobytes())
    return repr(values)
