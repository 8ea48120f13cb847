"""Transforms that make labels noisy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from monai.data import get_track_meta
from monai.transforms import MapTransform, Randomizable, RandomizableTransform, Transform
from monai.utils import TransformBackends, convert_to_tensor

from monai_sc.functional import case_seed, markov_label_noise, shift_boundary
from monai_sc.functional.checks import check_choice, per_channel
from monai_sc.functional.noise import check_markov_parameters
from monai_sc.transforms.distance import spacing_in_mm

__all__ = [
    "MarkovLabelNoise",
    "MarkovLabelNoised",
    "RandDilateErodeLabel",
    "RandDilateErodeLabeld",
    "RandMarkovLabelNoise",
    "RandMarkovLabelNoised",
]


class MarkovLabelNoise(Transform):
    """Give a label ``(channels, *spatial)`` the Markov noise of its case: always the same draw for the same case.

    Annotation error is a property of a case, not an augmentation: a label that is drawn anew in every epoch teaches a
    network the clean label. The draw depends on ``seed``, the case id and the channel only, not on the epoch, the
    worker, the rank or the order of the cases; so the transform may be cached. The law, its source and its edge cases
    are those of :py:func:`monai_sc.functional.markov_label_noise`.

    Args:
        num_steps: steps of the process, at least 0.
        expansion_prob: probability that a step expands, in ``[0, 1]``.
        march_prob: probability that a voxel beside the boundary moves in a step, in ``[0, 1]``.
        flip_prob: probability of a flip, in ``[0, 1]``.
        smoothing: ``None``, ``"before_flips"`` or ``"after_flips"``.
        smooth_sigma: of the smoothing, in voxels.
        smooth_radius: half-width of the smoothing kernel, in voxels; ``None`` is four ``smooth_sigma``.
        seed: of the whole data set.

    The first four take one value, or one per channel.

    Raises:
        ValueError: when a parameter is out of range.

    Example:
        >>> import numpy as np
        >>> noise = MarkovLabelNoise(num_steps=1, expansion_prob=1, march_prob=1)
        >>> noise(np.array([[0, 0, 1, 0, 0]]), case_id="case-1").tolist()
        [[0, 1, 1, 1, 0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        *,
        num_steps: int | Sequence[int],
        expansion_prob: float | Sequence[float],
        march_prob: float | Sequence[float],
        flip_prob: float | Sequence[float] = 0.0,
        smoothing: str | None = None,
        smooth_sigma: float = 1.0,
        smooth_radius: int | None = None,
        seed: int = 0,
    ) -> None:
        self.parameters: dict[str, Any] = {
            "num_steps": num_steps,
            "expansion_prob": expansion_prob,
            "march_prob": march_prob,
            "flip_prob": flip_prob,
            "smoothing": smoothing,
            "smooth_sigma": smooth_sigma,
            "smooth_radius": smooth_radius,
        }
        check_markov_parameters(**self.parameters)
        self.seed = seed

    def __call__(self, label: NdarrayOrTensor, case_id: str) -> NdarrayOrTensor:  # type: ignore[override] # a case, too
        label = convert_to_tensor(label, track_meta=get_track_meta())
        return markov_label_noise(label, **self.parameters, seed=case_seed(self.seed, case_id))


class MarkovLabelNoised(MapTransform):
    """Dictionary version of :py:class:`MarkovLabelNoise`: the draw of a case is the same for every key.

    Args:
        keys: of the labels.
        id_key: of the case id, a string.
        allow_missing_keys: skip a key that is absent.

    The other arguments are those of :py:class:`MarkovLabelNoise`.
    """

    backend = MarkovLabelNoise.backend

    def __init__(
        self,
        keys: KeysCollection,
        *,
        num_steps: int | Sequence[int],
        expansion_prob: float | Sequence[float],
        march_prob: float | Sequence[float],
        flip_prob: float | Sequence[float] = 0.0,
        smoothing: str | None = None,
        smooth_sigma: float = 1.0,
        smooth_radius: int | None = None,
        seed: int = 0,
        id_key: str = "id",
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.id_key = id_key
        self.noise = MarkovLabelNoise(
            num_steps=num_steps,
            expansion_prob=expansion_prob,
            march_prob=march_prob,
            flip_prob=flip_prob,
            smoothing=smoothing,
            smooth_sigma=smooth_sigma,
            smooth_radius=smooth_radius,
            seed=seed,
        )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        if self.id_key not in d:
            raise KeyError(f"MarkovLabelNoised needs the case id under {self.id_key!r}, got the keys {list(d)}.")
        for key in self.key_iterator(d):
            d[key] = self.noise(d[key], case_id=d[self.id_key])
        return d


class RandMarkovLabelNoise(RandomizableTransform):
    """Give a label ``(channels, *spatial)`` Markov noise that is drawn anew in every call.

    This is an augmentation: over epochs a network averages it away. For annotation error use
    :py:class:`MarkovLabelNoise`. The law, its source and its edge cases are those of
    :py:func:`monai_sc.functional.markov_label_noise`.

    Args:
        prob: probability of making the label noisy, in ``[0, 1]``.

    The other arguments are those of :py:class:`MarkovLabelNoise`.

    Raises:
        ValueError: when a parameter is out of range.

    Example:
        >>> import numpy as np
        >>> noise = RandMarkovLabelNoise(1.0, num_steps=1, expansion_prob=1, march_prob=1)
        >>> noise(np.array([[0, 0, 1, 0, 0]])).tolist()
        [[0, 1, 1, 1, 0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        prob: float = 0.1,
        *,
        num_steps: int | Sequence[int],
        expansion_prob: float | Sequence[float],
        march_prob: float | Sequence[float],
        flip_prob: float | Sequence[float] = 0.0,
        smoothing: str | None = None,
        smooth_sigma: float = 1.0,
        smooth_radius: int | None = None,
    ) -> None:
        super().__init__(prob)
        self.parameters: dict[str, Any] = {
            "num_steps": num_steps,
            "expansion_prob": expansion_prob,
            "march_prob": march_prob,
            "flip_prob": flip_prob,
            "smoothing": smoothing,
            "smooth_sigma": smooth_sigma,
            "smooth_radius": smooth_radius,
        }
        check_markov_parameters(**self.parameters)
        self.seed = 0

    def randomize(self, data: Any = None) -> None:
        super().randomize(data)
        self.seed = int(self.R.randint(2**32, dtype=np.uint64))

    def __call__(self, label: NdarrayOrTensor, randomize: bool = True) -> NdarrayOrTensor:
        label = convert_to_tensor(label, track_meta=get_track_meta())
        if randomize:
            self.randomize()
        if not self._do_transform:
            return label
        return markov_label_noise(label, **self.parameters, seed=self.seed)


class RandMarkovLabelNoised(Randomizable, MapTransform):
    """Dictionary version of :py:class:`RandMarkovLabelNoise`: one draw for every key.

    Args:
        keys: of the labels.
        prob: probability of making the labels noisy, in ``[0, 1]``.
        allow_missing_keys: skip a key that is absent.

    The other arguments are those of :py:class:`RandMarkovLabelNoise`.
    """

    backend = RandMarkovLabelNoise.backend

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        num_steps: int | Sequence[int],
        expansion_prob: float | Sequence[float],
        march_prob: float | Sequence[float],
        flip_prob: float | Sequence[float] = 0.0,
        smoothing: str | None = None,
        smooth_sigma: float = 1.0,
        smooth_radius: int | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.noise = RandMarkovLabelNoise(
            prob,
            num_steps=num_steps,
            expansion_prob=expansion_prob,
            march_prob=march_prob,
            flip_prob=flip_prob,
            smoothing=smoothing,
            smooth_sigma=smooth_sigma,
            smooth_radius=smooth_radius,
        )

    def set_random_state(
        self, seed: int | None = None, state: np.random.RandomState | None = None
    ) -> RandMarkovLabelNoised:
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


class RandDilateErodeLabel(RandomizableTransform):
    """Dilate or erode, each with probability ½, every channel of a label by its own random radius.

    This is the paper's noise S_M (Yao et al., ICLR 2023, section 4). Each channel of ``(channels, *spatial)`` has its
    own draw; a channel without a boundary is returned unchanged, and erosion may empty one. The operation is
    :py:func:`monai_sc.functional.shift_boundary`.

    Args:
        prob: probability of changing the label, in ``[0, 1]``.
        radius: ``(low, high)`` of the uniform radius, at least 0, or one such pair per channel.
        unit: of ``radius``: ``"voxel"``, or ``"mm"`` by the affine of a ``MetaTensor``.

    Raises:
        ValueError: when ``radius`` is not ``0 <= low <= high``, or ``unit="mm"`` and the label has no affine.

    Example:
        >>> import numpy as np
        >>> noise = RandDilateErodeLabel(1.0, radius=(1, 1)).set_random_state(2)
        >>> noise(np.array([[0, 0, 1, 1, 1, 0]])).tolist()
        [[0, 0, 0, 1, 0, 0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(
        self,
        prob: float = 0.1,
        *,
        radius: tuple[float, float] | Sequence[tuple[float, float]],
        unit: str = "voxel",
    ) -> None:
        super().__init__(prob)
        check_choice(unit, ("voxel", "mm"), "unit")
        try:
            pairs = np.asarray(radius, dtype=np.float64)
        except ValueError:  # pairs of different lengths
            pairs = np.zeros(0)
        if (
            pairs.shape[-1:] != (2,)
            or pairs.ndim > 2
            or not np.all(np.isfinite(pairs[..., 1]) & (pairs[..., 0] >= 0) & (pairs[..., 0] <= pairs[..., 1]))
        ):
            raise ValueError(
                f"radius must be (low, high) with 0 <= low <= high, or one pair per channel, got {radius}."
            )
        self.radius = radius
        self.unit = unit
        self.seed = 0

    def randomize(self, data: Any = None) -> None:
        super().randomize(data)
        self.seed = int(self.R.randint(2**32, dtype=np.uint64))

    def __call__(self, label: NdarrayOrTensor, randomize: bool = True) -> NdarrayOrTensor:
        spacing = spacing_in_mm(label) if self.unit == "mm" else None
        label = convert_to_tensor(label, track_meta=get_track_meta())
        if randomize:
            self.randomize()
        if not self._do_transform:
            return label
        pairs = [self.radius] * len(label) if np.ndim(self.radius[0]) == 0 else self.radius
        distances = []
        for channel, (low, high) in enumerate(per_channel(pairs, len(label), "radius")):
            rng = np.random.default_rng([self.seed, channel])
            distances.append(rng.uniform(low, high) * (1 if rng.random() < 0.5 else -1))
        return shift_boundary(label, distances, spacing=spacing)


class RandDilateErodeLabeld(Randomizable, MapTransform):
    """Dictionary version of :py:class:`RandDilateErodeLabel`: one draw for every key.

    Args:
        keys: of the labels.
        prob: probability of changing the labels, in ``[0, 1]``.
        radius: ``(low, high)`` of the uniform radius, at least 0, or one such pair per channel.
        unit: of ``radius``, ``"voxel"`` or ``"mm"``.
        allow_missing_keys: skip a key that is absent.
    """

    backend = RandDilateErodeLabel.backend

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        radius: tuple[float, float] | Sequence[tuple[float, float]],
        unit: str = "voxel",
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.noise = RandDilateErodeLabel(prob, radius=radius, unit=unit)

    def set_random_state(
        self, seed: int | None = None, state: np.random.RandomState | None = None
    ) -> RandDilateErodeLabeld:
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


MarkovLabelNoiseD = MarkovLabelNoiseDict = MarkovLabelNoised
RandMarkovLabelNoiseD = RandMarkovLabelNoiseDict = RandMarkovLabelNoised
RandDilateErodeLabelD = RandDilateErodeLabelDict = RandDilateErodeLabeld
