"""What the transforms that make labels noisy share: the draw, the label maps and the size of a voxel."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from monai.transforms import MapTransform, Randomizable, RandomizableTransform
from monai.utils import TransformBackends

from monai_sc.functional.checks import Range, check_choice, ranges_per_channel
from monai_sc.functional.label_map import OVERLAPS, check_classes, merge_masks, split_label_map
from monai_sc.functional.noise import acquisition_axis
from monai_sc.transforms.distance import spacing_in_mm, spacing_of
from monai_sc.transforms.tensors import as_tensor


class LabelNoiseOptions(TypedDict, total=False):
    """The options that every label noise takes, which :py:class:`RandLabelNoise` explains."""

    unit: str
    classes: Sequence[int] | None
    overlap: str
    background: int


class RandLabelNoise(RandomizableTransform):
    """Base of the transforms that make a label noisy by a new draw in every call.

    Without ``classes`` a label is ``(channels, *spatial)``, 0 and 1 only, and its channels may overlap. With them it is
    a label map ``(1, *spatial)`` of whole numbers: each of ``classes`` is made noisy as a channel would be, and a map
    is made of the result, where each voxel has one value and other values stay (see
    :py:func:`monai_sc.functional.merge_masks`). What is given per channel is then per class.

    A subclass has its parameters, and defines :py:meth:`noisy_masks`.

    Args:
        prob: probability of making the label noisy, in ``[0, 1]``.
        unit: of lengths: ``"voxel"``, or ``"mm"`` by the affine of a ``MetaTensor``.
        classes: the values of a label map that become noisy.
        overlap: ``"nearest"`` or ``"priority"``, of noisy classes.
        background: the value of a label map that is not a class.
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        prob: float,
        *,
        unit: str = "voxel",
        classes: Sequence[int] | None = None,
        overlap: str = "nearest",
        background: int = 0,
    ) -> None:
        super().__init__(prob)
        self.unit = check_choice(unit, ("voxel", "mm"), "unit")
        self.overlap = check_choice(overlap, OVERLAPS, "overlap")
        self.background = background
        self.classes = None if classes is None else check_classes(classes, background)
        self.seed = 0

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        """Return noisy ``masks`` ``(channels, *spatial)``; ``label`` has their affine, ``spacing`` is in mm or None."""
        raise NotImplementedError

    def randomize(self, data: Any = None) -> None:
        super().randomize(data)
        self.seed = int(self.R.randint(2**32, dtype=np.uint64))

    def __call__(self, label: NdarrayOrTensor, randomize: bool = True) -> NdarrayOrTensor:
        if randomize:
            self.randomize()
        if not self._do_transform:
            return as_tensor(label)
        return self.make_noisy(label, self.seed)

    def make_noisy(self, label: NdarrayOrTensor, seed: int) -> NdarrayOrTensor:
        """Make ``label`` noisy by the draw of ``seed``, whatever ``prob``."""
        spacing = spacing_in_mm(label) if self.unit == "mm" else None
        if isinstance(label, np.ndarray) and label.dtype == np.uint64 and label.size and label.max() >= 2**63:
            raise ValueError("label must not hold values over 2**63 - 1, which tensors cannot.")
        given = label  # whose affine is lost where MONAI does not track metadata
        label = as_tensor(label)
        if label.ndim < 2:
            raise ValueError(f"label must have the shape (channels, *spatial), got {tuple(label.shape)}.")
        if self.classes is None:
            return self.noisy_masks(label, given, spacing, seed)
        masks = split_label_map(label, self.classes, background=self.background)
        masks = np.asarray(self.noisy_masks(masks, given, spacing, seed))
        return merge_masks(masks, label, self.classes, overlap=self.overlap, background=self.background)


class RandLabelNoised(Randomizable, MapTransform):
    """Base of the dictionary versions: one draw for every key.

    Args:
        keys: of the labels.
        noise: the array version.
        allow_missing_keys: skip a key that is absent.
    """

    backend = RandLabelNoise.backend

    def __init__(self, keys: KeysCollection, noise: RandLabelNoise, *, allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.noise = noise

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> RandLabelNoised:
        super().set_random_state(seed, state)
        self.noise.set_random_state(state=self.R)
        return self

    def randomize(self, data: Any = None) -> None:
        self.noise.randomize(data)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        self.randomize()
        for key in self.key_iterator(d):
            d[key] = self.noise(d[key], randomize=False)
        return d


def slice_axis_of(label: NdarrayOrTensor) -> int:
    """Return the spatial axis along which the slices of a label lie, by its affine.

    Raises:
        ValueError: when the label has no affine.
    """
    spacing = spacing_of(label)
    if spacing is None:
        raise ValueError(
            "label must be a MetaTensor with an affine, to know along which axis its slices lie; give slice_axis."
        )
    return acquisition_axis(spacing)


def random_lengths(
    value: Range | Sequence[Range], channels: int, name: str, seed: int
) -> list[tuple[float, np.random.Generator]]:
    """Return for each channel a length that is drawn uniformly from its range, and the generator for more draws.

    Args:
        value: ``(low, high)``, or one such pair per channel.
        channels: number of them.
        name: of the argument, for messages.
        seed: of the draw; a channel's depends on it and on the channel's number only.

    Raises:
        ValueError: when there is not one pair per channel.
    """
    drawn = []
    for channel, (low, high) in enumerate(ranges_per_channel(value, channels, name)):
        rng = np.random.default_rng([seed, channel])
        drawn.append((rng.uniform(low, high), rng))
    return drawn
