"""Simulated annotation error: the Markov process on the boundary, flips, and dilation or erosion."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import binary_mask, check_choice, check_spacing, per_channel

__all__ = ["case_seed", "check_markov_parameters", "markov_label_noise", "shift_boundary"]

SMOOTHING = (None, "before_flips", "after_flips")


def case_seed(seed: int, case_id: str) -> int:
    """Return a seed that depends on ``seed`` and ``case_id`` alone: the same in every process and on every machine.

    Example:
        >>> case_seed(0, "case-1") == case_seed(0, "case-1"), case_seed(0, "case-1") == case_seed(1, "case-1")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{case_id}".encode(), digest_size=8).digest(), "big")


def check_markov_parameters(
    *,
    num_steps: int | Sequence[int],
    expansion_prob: float | Sequence[float],
    march_prob: float | Sequence[float],
    flip_prob: float | Sequence[float],
    smoothing: str | None,
    smooth_sigma: float,
    smooth_radius: int | None,
) -> None:
    """Refuse parameters outside the range that :py:func:`markov_label_noise` states.

    Raises:
        ValueError: naming the first parameter that is out of range.
    """
    if not all(t >= 0 and np.isfinite(t) and t == int(t) for t in np.ravel(num_steps)):
        raise ValueError(f"num_steps must be a whole number of at least 0, got {num_steps}.")
    probabilities = {"expansion_prob": expansion_prob, "march_prob": march_prob, "flip_prob": flip_prob}
    for name, value in probabilities.items():
        if not all(0 <= p <= 1 for p in np.ravel(value)):
            raise ValueError(f"{name} must be a probability in [0, 1], got {value}.")
    check_choice(smoothing, SMOOTHING, "smoothing")
    if not smooth_sigma > 0:
        raise ValueError(
            f"smooth_sigma must be more than 0 voxels, got {smooth_sigma}; smoothing=None switches it off."
        )
    if smooth_radius is not None and smooth_radius < 1:
        raise ValueError(f"smooth_radius must be at least 1 voxel or None, got {smooth_radius}.")


def markov_label_noise(
    label: NdarrayOrTensor,
    *,
    num_steps: int | Sequence[int],
    expansion_prob: float | Sequence[float],
    march_prob: float | Sequence[float],
    flip_prob: float | Sequence[float] = 0.0,
    smoothing: str | None = None,
    smooth_sigma: float = 1.0,
    smooth_radius: int | None = None,
    seed: int,
) -> NdarrayOrTensor:
    r"""Move the boundary of each channel of ``label`` ``(channels, *spatial)`` by a Markov process, then flip voxels.

    In each of :math:`T` steps the foreground expands with probability :math:`\theta_1`, else it shrinks: every
    background voxel with a foreground face neighbour becomes foreground (every foreground voxel with a background face
    neighbour becomes background) with probability :math:`\theta_2`, each on its own. Then every voxel where the noisy
    and the clean label agree flips with probability :math:`\theta_3`. (Yao et al., ICLR 2023, Definition 1.)
    There are 4 face neighbours in 2D and 6 in 3D; what lies outside the image is neither foreground nor background.

    Args:
        label: 0 and 1 only, any dtype. A channel that is empty or full has no boundary, so it gets flips only.
        num_steps: :math:`T`, at least 0; the boundary moves at most this many voxels.
        expansion_prob: :math:`\theta_1` in ``[0, 1]``; over 0.5 the label grows, under 0.5 it shrinks.
        march_prob: :math:`\theta_2` in ``[0, 1]``.
        flip_prob: :math:`\theta_3` in ``[0, 1]``.
        smoothing: ``None``, or a Gaussian filter with a threshold of 0.5, ``"before_flips"`` as the paper says, or
            ``"after_flips"`` as its released masks were made: then every voxel may flip, whether or not it agrees.
        smooth_sigma: standard deviation of the filter, in voxels.
        smooth_radius: where the filter is cut off, in voxels from its centre; ``None`` is four ``smooth_sigma``. The
            released masks were made with 2 and a ``smooth_sigma`` of 2.
        seed: of this call's own generator; a channel's draw depends on it and on the channel's number only.

    The first four parameters take one value, or one per channel.

    Returns:
        The noisy label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary or a parameter is out of range.

    Example:
        >>> import numpy as np
        >>> line = np.array([[0, 0, 0, 1, 0, 0, 0]])
        >>> markov_label_noise(line, num_steps=2, expansion_prob=1, march_prob=1, seed=0).tolist()
        [[0, 1, 1, 1, 1, 1, 0]]
    """
    check_markov_parameters(
        num_steps=num_steps,
        expansion_prob=expansion_prob,
        march_prob=march_prob,
        flip_prob=flip_prob,
        smoothing=smoothing,
        smooth_sigma=smooth_sigma,
        smooth_radius=smooth_radius,
    )
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}.")
    clean = binary_mask(label)
    channels = len(clean)
    parameters = zip(
        per_channel(num_steps, channels, "num_steps"),
        per_channel(expansion_prob, channels, "expansion_prob"),
        per_channel(march_prob, channels, "march_prob"),
        per_channel(flip_prob, channels, "flip_prob"),
        strict=True,
    )
    noisy = np.empty_like(clean)
    for channel, (steps, expansion, march, flip) in enumerate(parameters):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(channel,)))
        mask = _march(clean[channel], int(steps), expansion, march, rng)
        if smoothing == "before_flips":
            mask = _smooth(mask, smooth_sigma, smooth_radius)
        if flip > 0:
            flips = rng.random(mask.shape) < flip
            mask = mask ^ (flips if smoothing == "after_flips" else flips & (mask == clean[channel]))
        if smoothing == "after_flips":
            mask = _smooth(mask, smooth_sigma, smooth_radius)
        noisy[channel] = mask
    return convert_to_dst_type(noisy, label)[0]


def _march(
    mask: np.ndarray, num_steps: int, expansion_prob: float, march_prob: float, rng: np.random.Generator
) -> np.ndarray:
    mask = mask.copy()
    faces = ndimage.generate_binary_structure(mask.ndim, 1)
    for expands in rng.random(num_steps) < expansion_prob:
        growing = mask if expands else ~mask
        front = np.nonzero(ndimage.binary_dilation(growing, faces) & ~growing)
        mask[front] ^= rng.random(len(front[0])) < march_prob
    return mask


def _smooth(mask: np.ndarray, sigma: float, radius: int | None) -> np.ndarray:
    return np.asarray(ndimage.gaussian_filter(mask.astype(np.float32), sigma, radius=radius) > 0.5)


def shift_boundary(
    label: NdarrayOrTensor, distance: float | Sequence[float], *, spacing: Sequence[float] | None = None
) -> NdarrayOrTensor:
    r"""Dilate or erode each channel of ``label`` ``(channels, *spatial)`` by a real distance ``s``.

    The result is :math:`\{x : d(x, F) \le s\}` for :math:`s \ge 0`, else :math:`\{x : d(x, B) > |s|\}`, with euclidean
    distances between the centres of voxels. Channels do not mix, and what lies outside the image is neither foreground
    nor background.

    Args:
        label: 0 and 1 only, any dtype. A channel without a boundary is returned unchanged.
        distance: ``s``, one value or one per channel, in voxels, or in the unit of ``spacing``; positive dilates.
        spacing: size of a voxel along each spatial axis, in mm.

    Returns:
        The moved label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, or ``spacing`` does not fit it.

    Example:
        >>> import numpy as np
        >>> shift_boundary(np.array([[0, 0, 1, 1, 1, 0]]), -1).tolist()
        [[0, 0, 0, 1, 0, 0]]
    """
    mask = binary_mask(label)
    spacing = check_spacing(spacing, mask.ndim - 1)
    if np.isnan(np.asarray(distance, dtype=np.float64)).any():
        raise ValueError(f"distance must be a number, or one per channel, got {distance}.")
    moved = mask.copy()
    for channel, s in enumerate(per_channel(distance, len(mask), "distance")):
        if mask[channel].any() and not mask[channel].all():
            source = ~mask[channel] if s >= 0 else mask[channel]
            d = ndimage.distance_transform_edt(source, sampling=spacing)
            moved[channel] = d <= s if s >= 0 else d > -s
    return convert_to_dst_type(moved, label)[0]
