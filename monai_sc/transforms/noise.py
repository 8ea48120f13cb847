"""Transforms that give labels the Markov noise, anew in every call or once for each case; and its presets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from monai.transforms import MapTransform, Transform
from typing_extensions import Unpack

from monai_sc.functional import NOISE_PRESETS, MarkovParameters, case_seed, markov_label_noise
from monai_sc.functional.checks import check_choice
from monai_sc.functional.noise import check_markov_parameters
from monai_sc.transforms.annotation_error import RandDilateErodeLabel
from monai_sc.transforms.label_noise import LabelNoiseOptions, RandLabelNoise, RandLabelNoised, slice_axis_of


class MarkovNoiseOptions(LabelNoiseOptions, MarkovParameters, total=False):
    """The options that every Markov noise takes, which :py:class:`RandMarkovLabelNoise` explains."""


class RandMarkovLabelNoise(RandLabelNoise):
    """Give a label ``(channels, *spatial)`` Markov noise that is drawn anew in every call.

    This is an augmentation: over epochs a network averages it away. For annotation error use
    :py:class:`MarkovLabelNoise`. The law, its source, its edge cases and its parameters are those of
    :py:func:`monai_sc.functional.markov_label_noise`; label maps are explained at
    :py:class:`monai_sc.transforms.RandLabelNoise`.

    Args:
        prob: probability of making the label noisy, in ``[0, 1]``.
        unit: ``"voxel"``: every step moves voxels alike; ``"mm"``: a step is a distance in mm, by the affine of a
            ``MetaTensor``.
        classes: the values of a label map that become noisy, ``None`` for binary channels.
        overlap: ``"nearest"`` or ``"priority"``, of noisy classes.
        background: the value of a label map that is not a class.
        parameters: ``num_steps``, ``expansion_prob``, ``march_prob`` and ``flip_prob`` (one value, or one per channel);
            ``smoothing``, ``smooth_sigma`` and ``smooth_radius``; ``step_size``, in mm; ``in_plane``, ``slice_axis``
            (by default that of the largest spacing in the affine) and ``slice_correlation``.

    Raises:
        TypeError: when one of the first three parameters is missing, or one is unknown.
        ValueError: when a parameter is out of range, or a label without an affine is to be drawn in mm or in slices.

    Example:
        >>> import numpy as np
        >>> noise = RandMarkovLabelNoise(1.0, num_steps=1, expansion_prob=1, march_prob=1)
        >>> noise(np.array([[0, 0, 1, 0, 0]])).tolist()
        [[0, 1, 1, 1, 0]]
        >>> noise = RandMarkovLabelNoise(1.0, classes=[4, 9], num_steps=1, expansion_prob=1, march_prob=1)
        >>> noise(np.array([[0, 0, 4, 0, 9, 9, 2]])).tolist()
        [[0, 4, 4, 4, 9, 9, 2]]
    """

    def __init__(
        self,
        prob: float = 0.1,
        *,
        unit: str = "voxel",
        classes: Sequence[int] | None = None,
        overlap: str = "nearest",
        background: int = 0,
        **parameters: Unpack[MarkovParameters],
    ) -> None:
        super().__init__(prob, unit=unit, classes=classes, overlap=overlap, background=background)
        check_markov_parameters(**parameters)
        self.parameters = parameters

    def noisy_masks(
        self, masks: NdarrayOrTensor, label: NdarrayOrTensor, spacing: tuple[float, ...] | None, seed: int
    ) -> NdarrayOrTensor:
        parameters = self.parameters
        if parameters.get("in_plane") and parameters.get("slice_axis") is None:
            parameters = {**parameters, "slice_axis": slice_axis_of(label)}
        return markov_label_noise(masks, **parameters, spacing=spacing, seed=seed)


class RandMarkovLabelNoised(RandLabelNoised):
    """Dictionary version of :py:class:`RandMarkovLabelNoise`, with its arguments: one draw for every key."""

    def __init__(
        self,
        keys: KeysCollection,
        prob: float = 0.1,
        *,
        allow_missing_keys: bool = False,
        **options: Unpack[MarkovNoiseOptions],
    ) -> None:
        super().__init__(keys, RandMarkovLabelNoise(prob, **options), allow_missing_keys=allow_missing_keys)


class MarkovLabelNoise(Transform):
    """Give a label ``(channels, *spatial)`` the Markov noise of its case: always the same draw for the same case.

    Annotation error is a property of a case, not an augmentation: a label that is drawn anew in every epoch teaches a
    network the clean label. The draw depends on ``seed``, the case id and the channel only, not on the epoch, the
    worker, the rank or the order of the cases; so the transform may be cached.

    Args:
        seed: of the whole data set.
        options: those of :py:class:`RandMarkovLabelNoise` but for ``prob``.

    Raises:
        TypeError: when a parameter of the noise is missing, or one is unknown.
        ValueError: when a parameter is out of range, or a label without an affine is to be drawn in mm or in slices.

    Example:
        >>> import numpy as np
        >>> noise = MarkovLabelNoise(num_steps=1, expansion_prob=1, march_prob=1)
        >>> noise(np.array([[0, 0, 1, 0, 0]]), case_id="case-1").tolist()
        [[0, 1, 1, 1, 0]]
    """

    backend = RandLabelNoise.backend

    def __init__(self, *, seed: int = 0, **options: Unpack[MarkovNoiseOptions]) -> None:
        self.seed = seed
        self.noise = RandMarkovLabelNoise(1.0, **options)

    def __call__(self, label: NdarrayOrTensor, case_id: str) -> NdarrayOrTensor:  # type: ignore[override] # a case, too
        return self.noise.make_noisy(label, case_seed(self.seed, case_id))


class MarkovLabelNoised(MapTransform):
    """Dictionary version of :py:class:`MarkovLabelNoise`, with its arguments: one draw per case for every key.

    Args:
        keys: of the labels.
        seed: of the whole data set.
        id_key: of the case id, a string.
        allow_missing_keys: skip a key that is absent.
        options: those of :py:class:`MarkovLabelNoise`.
    """

    backend = MarkovLabelNoise.backend

    def __init__(
        self,
        keys: KeysCollection,
        *,
        seed: int = 0,
        id_key: str = "id",
        allow_missing_keys: bool = False,
        **options: Unpack[MarkovNoiseOptions],
    ) -> None:
        super().__init__(keys, allow_missing_keys=allow_missing_keys)
        self.id_key = id_key
        self.noise = MarkovLabelNoise(seed=seed, **options)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        if self.id_key not in d:
            raise KeyError(f"MarkovLabelNoised needs the case id under {self.id_key!r}, got the keys {list(d)}.")
        for key in self.key_iterator(d):
            d[key] = self.noise(d[key], case_id=d[self.id_key])
        return d


def noise_preset(name: str, prob: float = 1.0, *, structure: str | None = None, **options: Any) -> RandLabelNoise:
    """Return the transform of one of :py:data:`~monai_sc.functional.noise_presets.NOISE_PRESETS`.

    Args:
        name: of the preset, such as ``"jsrt-expand"``.
        prob: probability of making the label noisy, in ``[0, 1]``.
        structure: one structure of a preset for several, for labels with one channel.
        options: of the transform: ``unit``, ``classes`` and so on, or a parameter that is to differ from the preset.

    Raises:
        ValueError: when there is no such preset or structure.

    Example:
        >>> noise_preset("jsrt-expand", structure="clavicle").parameters["num_steps"]
        100
    """
    preset = NOISE_PRESETS[check_choice(name, list(NOISE_PRESETS), "name")]
    if structure is not None:
        preset = preset.of_structure(structure)
    kind = {"markov": RandMarkovLabelNoise, "dilate_erode": RandDilateErodeLabel}[preset.kind]
    transform: RandLabelNoise = kind(prob, **{**preset.parameters, **options})
    return transform


def with_steps(noise: RandMarkovLabelNoise, num_steps: int) -> RandMarkovLabelNoise:
    """Return a Markov noise that is stronger or weaker: with another number of steps.

    Args:
        noise: which stays as it is.
        num_steps: of the channel with most of them, at least 0; those of the others change in proportion.

    Raises:
        TypeError: when ``noise`` is another noise, which has no steps.
        ValueError: when ``num_steps`` is under 0, or ``noise`` has no step.

    Example:
        >>> with_steps(noise_preset("jsrt-expand"), 240).parameters["num_steps"]
        [240, 240, 133]
    """
    if not isinstance(noise, RandMarkovLabelNoise):
        raise TypeError(f"noise must be a RandMarkovLabelNoise, got {type(noise).__name__}, which has no steps.")
    own = noise.parameters["num_steps"]
    most = int(np.max(own))
    if num_steps < 0 or not most:
        raise ValueError(f"num_steps must be at least 0, and the noise must have steps, got {num_steps} and {own}.")
    scaled = np.rint(np.multiply(own, num_steps / most)).astype(int).tolist()
    changed = deepcopy(noise)
    changed.parameters = {**noise.parameters, "num_steps": scaled}
    return changed


MarkovLabelNoiseD = MarkovLabelNoiseDict = MarkovLabelNoised
RandMarkovLabelNoiseD = RandMarkovLabelNoiseDict = RandMarkovLabelNoised
