"""Inputs of all kinds, from a seeded generator: mostly such as users mean, often with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from monai.data import MetaTensor
from scipy import ndimage

SIZES = (1, 2, 3, 5, 8, 13)
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
)
KINDS = ("empty", "full", "voxel", "border", "blobs", "blobs", "blobs", "noise", "noise")
FLAWS = ("shape", "values", "type", "spacing", "option")
LARGE = ((1, 1024, 1024), (1, 200, 200, 60), (2, 300_000), (1, 2, 2, 3000), (1, 12, 12, 12, 12))
"""Shapes ``(channels, *spatial)`` of which ``make fuzz`` tries each once with every target that takes images."""


class Call(NamedTuple):
    """What a target does with what was drawn."""

    given: list[Any]
    """Inputs, which must stay as they are."""
    run: Callable[[], Any]
    is_right: Callable[[Any], bool]
    """Whether the result is right."""


class Draw:
    """One input of a target: in half of the draws all is well, else one thing is wrong, rarely several.

    Args:
        rng: the generator.
        size: of a large input ``(channels, *spatial)``, with which all is well.
    """

    def __init__(self, rng: np.random.Generator, size: tuple[int, ...] | None = None) -> None:
        self.rng, self.size = rng, size
        number = 0 if size is not None else int(rng.choice([0, 1, len(FLAWS)], p=[0.55, 0.4, 0.05]))
        self.flaws = {str(flaw) for flaw in rng.permutation(FLAWS)[:number]}

    def is_wrong(self, what: str) -> bool:
        """Say whether this is wrong here; of several things, each in every other place."""
        return what in self.flaws and (len(self.flaws) == 1 or self.happens(0.5))

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``."""
        return int(self.rng.integers(low, high, endpoint=True))

    def one(self, values: Sequence[Any]) -> Any:
        return values[self.rng.integers(len(values))]

    def option(self, good: Sequence[Any], bad: Sequence[Any]) -> Any:
        """Return the value of an option; of several options of a call, only some are wrong."""
        return self.one(bad if self.is_wrong("option") and self.happens(0.6) else good)

    def rate(self) -> float:
        """Return a probability."""
        return float(self.option((0.0, 0.3, 0.3, 0.7, 1.0), (1.5, -0.1, np.nan, np.inf)))

    def spacing(self, ndim: int) -> tuple[float, ...] | None:
        """Return the size of a voxel, or none."""
        if self.is_wrong("spacing"):
            if self.happens(0.4):
                return (1.0,) * self.whole(0, 5)
            sizes = [1.0] * max(ndim, 1)
            sizes[self.whole(0, len(sizes) - 1)] = float(self.one((0.0, -1.0, np.nan, np.inf)))
            return tuple(sizes)
        sizes = [float(self.one((0.7, 1.0, 1.0, 2.5, 1000.0))) for _ in range(ndim)]
        return None if self.happens(0.4) else tuple(sizes)

    def shape(
        self, ndims: Sequence[int] = (1, 2, 3), channels: Sequence[int] = (1, 2, 3), sizes: Sequence[int] = SIZES
    ) -> tuple[int, ...]:
        """Return ``(channels, *spatial)``; a wrong one has 0 to 4 axes, of which some may have no voxel."""
        if self.size is not None:
            return (int(channels[0]), *self.size[1:])
        if self.is_wrong("shape"):
            return tuple(self.whole(0, 2) for _ in range(self.whole(0, 4)))
        return (int(self.one(channels)), *(self.one(sizes) for _ in range(self.one(ndims))))

    def structure(self, size: tuple[int, ...]) -> np.ndarray:
        """Return a mask, mostly of something that has a boundary."""
        return self.mask(size, ("blobs",) if self.happens(0.8) else KINDS)

    def mask(self, size: tuple[int, ...], kinds: Sequence[str] = KINDS) -> np.ndarray:
        """Return a mask of 0 and 1; a wrong one has other values."""
        values = np.zeros(size)
        kind = self.one(kinds)
        if not values.size or kind == "empty":
            return values
        if kind == "full":
            values[...] = 1
        elif kind == "voxel":
            values.flat[self.rng.integers(values.size)] = 1
        elif kind == "border" and values.ndim:
            values[..., :1] = 1
        elif kind == "noise" and self.size is None:
            values = self.rng.integers(0, 2, size)
        else:
            values = self._smooth(size) > 0
        if self.is_wrong("values"):
            stray = self.one((0.5, 2.0, 255.0, np.nan, np.inf, -1.0))
            values = np.where(self.rng.random(size) < 0.2, stray, values)
        return np.asarray(values, dtype=float)

    def label_map(self, size: tuple[int, ...], classes: Sequence[int]) -> np.ndarray:
        """Return a map of 0, the classes and a value that is none of them."""
        smooth = self._smooth(size)
        steps = np.digitize(smooth, np.linspace(-1.5, 1.5, len(classes) + 2))
        values = np.array([0.0, *classes, 9.0, 0.0])[steps % (len(classes) + 3)]
        if self.is_wrong("values"):
            values = np.where(self.rng.random(size) < 0.2, self.one((0.5, np.nan, np.inf, 1e20, -1e20)), values)
        return np.asarray(values)

    def logits(self, size: tuple[int, ...]) -> np.ndarray:
        """Return what a network says, reasonable or not; a wrong one has diverged."""
        scale = float(self.one((1.0, 5.0, 5.0, 5.0, 1e4, 1e30)))
        values = scale * (self._smooth(size) if self.happens(0.7) else self.rng.normal(size=size))
        values = np.array(values)
        if self.is_wrong("values") and values.size:
            values.flat[self.rng.integers(values.size)] = self.one((np.nan, np.inf, -np.inf))
        return values

    def _smooth(self, size: tuple[int, ...]) -> np.ndarray:
        """Return a smooth field ``(channels, *spatial)`` with a standard deviation of about one."""
        field = self.rng.normal(size=size)
        if field.ndim > 1 and field.size:
            field = ndimage.gaussian_filter(field, [0, *[1.5 if self.size is None else 4.0] * (field.ndim - 1)])
            field = field / max(float(field.std()), 1e-9)
        return np.asarray(field)

    def array(self, values: np.ndarray, dtypes: Sequence[str] = DTYPES) -> Any:
        """Return values as some array: of any type, layout in memory, byte order and library; what is cut off is cut.

        A wrong one holds complex numbers. A ``MetaTensor`` has an affine.
        """
        dtype = np.dtype("complex64" if self.is_wrong("type") else self.one(dtypes))
        with np.errstate(all="ignore"):
            if dtype.kind in "biu":
                values = np.nan_to_num(values, posinf=2, neginf=0)
            values = values.clip(0, 100) if dtype.kind in "iu" else values
            values = values.clip(-6e4, 6e4) if dtype == np.float16 and not self.is_wrong("values") else values
            array = np.asarray(values).astype(dtype)
        layout = self.whole(0, 4)
        if layout == 1:
            array = np.asfortranarray(array)
        elif layout == 2 and array.ndim:
            array = array[::-1].copy()[::-1]
        elif layout == 3 and array.ndim:
            array = np.repeat(array, 2, axis=-1)[..., ::2]
        library = self.one(("tensor", "metatensor", "numpy", "numpy", "numpy"))
        if library == "numpy" or array.dtype.byteorder == ">" or array.dtype == np.uint16:
            array.setflags(write=self.happens(0.7))
            return array
        tensor = torch.from_numpy(np.array(array))
        if self.happens(0.2) and tensor.is_floating_point():
            tensor = tensor.to(torch.bfloat16)
        if library == "tensor":
            return tensor
        return MetaTensor(tensor, affine=np.diag([*(self.one((0.7, 1.0, 2.5)) for _ in range(3)), 1.0]))

    def label(self, ndims: Sequence[int] = (1, 2, 3)) -> Any:
        """Return a label ``(channels, *spatial)``."""
        return self.array(self.mask(self.shape(ndims)))


def fingerprint(values: Any) -> Any:
    """Return what must be as it was after a call."""
    if isinstance(values, torch.Tensor):
        values = values.detach()
        real = torch.view_as_real(values) if values.is_complex() else values
        affine = values.affine.numpy().tobytes() if isinstance(values, MetaTensor) else None
        return (values.dtype, tuple(values.shape), real.to(torch.float64).numpy().tobytes(), affine)
    if isinstance(values, np.ndarray):
        return (values.dtype, values.shape, values.strides, values.flags.writeable, values.tobytes())
    if isinstance(values, Mapping):
        return {key: fingerprint(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [fingerprint(value) for value in values]
    return repr(values)


def as_numpy(values: Any) -> np.ndarray:
    is_real_tensor = isinstance(values, torch.Tensor) and not values.is_complex()
    return values.detach().float().numpy() if is_real_tensor else np.asarray(values)
