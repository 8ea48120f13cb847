"""The Markov label noise of a whole batch at once, on the device where its labels are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from monai.utils import convert_to_dst_type, convert_to_tensor
from typing_extensions import Unpack

from monai_sc.functional.checks import binary_mask
from monai_sc.functional.noise import (
    MarkovParameters,
    channel_parameters,
    check_markov_parameters,
    draw_steps,
    step_geometry,
)

# The increment of splitmix64, and the factor after each shift of its mix, as signed numbers: torch knows no others.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
LAST_SHIFT = 31

SHRINK, EXPAND, OUTSIDE, REST = 0, 1, 2, 3  # a step is the class that it gives to voxels, or REST
BLOCK = 8  # steps between two looks for the voxels that can move; even, since a random word serves two steps
LARGEST_CHUNK = {"cpu": 2**18, "cuda": 2**24}  # voxels: what fits a cache, and what takes at most some 3 GB


class _Row(NamedTuple):
    """One channel of one item of the batch."""

    seed: int
    channel: int
    num_steps: int
    expansion_prob: float
    march_prob: float
    flip_prob: float


def markov_label_noise_batch(
    label: torch.Tensor,
    *,
    seeds: Sequence[int],
    spacing: Sequence[float] | None = None,
    **parameters: Unpack[MarkovParameters],
) -> torch.Tensor:
    r"""Move the boundaries in a batch of labels ``(batch, channels, *spatial)`` by a Markov process, then flip voxels.

    The law is that of :py:func:`monai_sc.functional.markov_label_noise`, so that results are equal in distribution.
    The draws of voxels are others, so that results are not equal for the same seed; whether each step expands is the
    same. All work is done by operations of torch on the device of ``label``. There a large batch is fast; for a single
    label, or without a GPU, the other function is faster.

    A voxel's draw is splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of the number of the voxel and a key for the seed,
    the channel and the step, of which 32 bits are compared with the probability. So the result for an item of the batch
    depends on its seed, its label and the parameters alone, and has the same bytes in every batch and on every device.

    Args:
        label: 0 and 1 only, any dtype. A channel that is empty or full has no boundary, so it gets flips only.
        seeds: one whole number of at least 0 for each item of the batch.
        spacing: size of a voxel along each spatial axis, in mm, of the whole batch.
        **parameters: as :py:func:`monai_sc.functional.markov_label_noise` explains them.

    Returns:
        The noisy labels, with the shape, dtype, device and metadata of ``label``, which is not changed.

    Raises:
        TypeError: when a parameter is missing, or there is none of such a name.
        ValueError: when ``label`` has no batch axis or is not binary, ``seeds`` do not fit it, a parameter is out of
            range, or ``in_plane`` is asked for where there are not three spatial axes, or neither ``spacing`` nor
            ``slice_axis`` says how slices lie.

    Example:
        >>> lines = torch.tensor([[[0, 0, 0, 1, 0, 0, 0]], [[0, 0, 0, 0, 0, 0, 1]]])
        >>> markov_label_noise_batch(lines, seeds=[0, 1], num_steps=2, expansion_prob=1, march_prob=1).tolist()
        [[[0, 1, 1, 1, 1, 1, 0]], [[0, 0, 0, 0, 1, 1, 1]]]
    """
    check_markov_parameters(**parameters)
    clean = _binary_batch(label)
    if len(seeds) != len(clean) or not all(seed >= 0 and seed == int(seed) for seed in seeds):
        raise ValueError(
            f"seeds must be a whole number of at least 0 for each of the {len(clean)} items of the batch, got {seeds}."
        )
    steps_per_side, axis = step_geometry(parameters, clean.ndim - 2, spacing)
    channels = channel_parameters(parameters, clean.shape[1])
    rows = [_Row(int(seed), channel, *own) for seed in seeds for channel, own in enumerate(channels)]
    # From here on, planes (rows, slices, *spatial) that do not touch each other: the slices of a volume, or one.
    if axis is None:
        planes = clean.flatten(0, 1).unsqueeze(1)
    else:
        planes = clean.flatten(0, 1).movedim(1 + axis, 1)
        steps_per_side = np.delete(steps_per_side, axis)
    noisy = torch.empty_like(planes)
    largest = LARGEST_CHUNK.get(clean.device.type, LARGEST_CHUNK["cuda"])
    at_once = max(1, largest // (planes[0].numel() * int(steps_per_side.prod())))
    for first in range(0, len(rows), at_once):
        chunk = slice(first, first + at_once)
        noisy[chunk] = _noise(planes[chunk], rows[chunk], steps_per_side, parameters)
    noisy = noisy.squeeze(1) if axis is None else noisy.movedim(1, 1 + axis)
    return convert_to_dst_type(noisy.reshape(clean.shape), label)[0]


def _binary_batch(label: torch.Tensor) -> torch.Tensor:
    """Return ``label`` as a boolean tensor of its own."""
    values: torch.Tensor = convert_to_tensor(label, track_meta=False)
    if values.ndim < 3 or not values.numel():
        raise ValueError(f"label must have the shape (batch, channels, *spatial), got {tuple(values.shape)}.")
    mask = values == 1
    if not bool(torch.all(mask | (values == 0))):
        binary_mask(values.flatten(0, 1))  # says which values are wrong
    return mask


def _noise(
    clean: torch.Tensor, rows: list[_Row], steps_per_side: np.ndarray, parameters: MarkovParameters
) -> torch.Tensor:
    smoothing, radius = parameters.get("smoothing"), parameters.get("smooth_radius")
    sigma = parameters.get("smooth_sigma", 1.0)
    fine = clean
    for axis, steps in enumerate(steps_per_side.tolist(), start=2):
        fine = fine if steps == 1 else fine.repeat_interleave(steps, dim=axis)
    fine = _march(fine, rows, parameters.get("slice_correlation", 0.9))
    mask = fine if fine.shape == clean.shape else _centres(fine, clean, steps_per_side)
    if smoothing == "before_flips":
        mask = _smooth(mask, sigma, radius, steps_per_side)
    flipping = [r for r, row in enumerate(rows) if row.flip_prob > 0]
    if flipping:
        keys = np.stack([_keys(rows[r], 1) for r in flipping])
        index = torch.arange(1, clean[0].numel() + 1, device=clean.device)
        draws = _splitmix64(_signed(keys, clean) + index * GOLDEN).view(torch.int32)[:, 1::2]
        limits = torch.from_numpy(_limits([rows[r].flip_prob for r in flipping])).to(clean.device)
        flips = (draws <= limits[:, None]).view(-1, *clean.shape[1:])
        before = mask[flipping]
        mask[flipping] = before ^ (flips if smoothing == "after_flips" else flips & (before == clean[flipping]))
    if smoothing == "after_flips":
        mask = _smooth(mask, sigma, radius, steps_per_side)
    return mask


def _march(clean: torch.Tensor, rows: list[_Row], slice_correlation: float) -> torch.Tensor:
    """Return planes ``(rows, slices, *spatial)`` after all of their steps.

    Only voxels near a boundary can move in the next few steps. They are looked for once for a :py:data:`BLOCK` of steps
    (their number must then come from the device, which keeps it waiting once in a block), drawn for all steps of the
    block, and moved step by step.
    """
    num_steps = [row.num_steps if row.march_prob > 0 else 0 for row in rows]
    most, slices, shape = max(num_steps), clean.shape[1], clean.shape[2:]
    if not most:
        return clean.clone()
    table = np.full((most, len(rows), slices), REST, dtype=np.uint8)
    words = np.zeros(((most + 1) // 2, len(rows)), dtype=np.uint64)
    for r, (row, count) in enumerate(zip(rows, num_steps, strict=True)):
        if count:
            rng = np.random.default_rng(np.random.SeedSequence(row.seed, spawn_key=(row.channel, 0)))
            table[:count, r] = draw_steps(count, row.expansion_prob, slices, slice_correlation, rng).T
            words[: (count + 1) // 2, r] = _keys(row, 1 + (count + 1) // 2)[1:]
    steps, keys = torch.from_numpy(table).to(clean.device), _signed(words, clean)
    limits = torch.from_numpy(_limits([row.march_prob for row in rows])).to(clean.device)

    # A rim of one voxel that is outside of the image spares all tests for the edge.
    state = clean.new_full((len(rows), slices, *(size + 2 for size in shape)), OUTSIDE, dtype=torch.uint8)
    near = torch.zeros_like(state, dtype=torch.bool)
    inner: tuple[Any, ...] = (..., *(slice(1, -1) for _ in shape))
    inside, near_inside = state[inner], near[inner]
    inside.copy_(clean)
    flat, plane_size, row_size = state.view(-1), state[0, 0].numel(), state[0].numel()
    offsets = torch.tensor([[sign * stride] for stride in state.stride()[2:] for sign in (-1, 1)], device=clean.device)
    for first in range(0, most, BLOCK):
        block = steps[first : first + BLOCK]
        marching = block[0].ne(REST).view(len(rows), slices, *(1 for _ in shape))
        near_inside.copy_(_within(_boundary(inside) & marching, len(block) - 1))
        voxels = near.view(-1).nonzero().squeeze(1)
        if not len(voxels):
            break
        owner = voxels // row_size
        draws = keys[first // 2 : (first + len(block) + 1) // 2].index_select(1, owner)
        draws += (voxels % row_size + 1) * GOLDEN
        draws = _splitmix64(draws).view(torch.int32).view(len(draws), -1, 2)
        limit = limits.index_select(0, owner)
        gives = block.view(len(block), -1).index_select(1, voxels // plane_size)
        neighbours = (voxels + offsets).view(-1)
        current = flat.index_select(0, voxels)
        for k, given in enumerate(gives):
            # A voxel that already has the class that the step gives keeps it, so that no test for that is needed.
            around = flat.index_select(0, neighbours).view(-1, len(voxels))
            moves = (around == given).any(0) & (draws[k // 2, :, k % 2] <= limit)
            current = torch.where(moves, given, current)
            flat.index_copy_(0, voxels, current)
    return inside.eq(1)


def _boundary(planes: torch.Tensor) -> torch.Tensor:
    """Return where a voxel has a face neighbour of the other class."""
    boundary = torch.zeros_like(planes, dtype=torch.bool)
    for axis in range(2, planes.ndim):
        rest = planes.shape[axis] - 1
        differ = planes.narrow(axis, 1, rest) != planes.narrow(axis, 0, rest)
        boundary.narrow(axis, 1, rest).logical_or_(differ)
        boundary.narrow(axis, 0, rest).logical_or_(differ)
    return boundary


def _within(planes: torch.Tensor, reach: int) -> torch.Tensor:
    """Return the voxels that are at most ``reach`` from one that is set, along every axis."""
    for axis in range(2, planes.ndim):
        reached = 0
        while reached < min(reach, planes.shape[axis] - 1):
            shift = min(2 * reached + 1, reach - reached, planes.shape[axis] - 1)  # leaves no gaps
            rest, grown = planes.shape[axis] - shift, planes.clone()
            grown.narrow(axis, shift, rest).logical_or_(planes.narrow(axis, 0, rest))
            grown.narrow(axis, 0, rest).logical_or_(planes.narrow(axis, shift, rest))
            planes, reached = grown, reached + shift
    return planes


def _centres(fine: torch.Tensor, clean: torch.Tensor, steps_per_side: np.ndarray) -> torch.Tensor:
    """Return the class at the centre of each voxel, where ``fine`` divides it; if its centre is a boundary, its own."""
    beside = [(slice((n - 1) // 2, None, n), slice(n // 2, None, n))[: 2 - n % 2] for n in steps_per_side.tolist()]
    some, every = torch.zeros_like(clean), torch.ones_like(clean)
    for place in itertools.product(*beside):
        where: tuple[Any, ...] = (..., *place)
        corner = fine[where]
        some, every = some | corner, every & corner
    return torch.where(clean, some, every)


def _smooth(mask: torch.Tensor, sigma: float, radius: int | None, steps_per_side: np.ndarray) -> torch.Tensor:
    """Filter as ``scipy.ndimage.gaussian_filter`` does, to the last bit: the order in which it rounds is kept."""
    values = mask.float()
    for axis, steps in enumerate(steps_per_side.tolist(), start=2):
        own = sigma / steps
        reach = int(4 * own + 0.5) if radius is None else max(1, round(radius / steps))
        density = np.exp(-0.5 / (own * own) * np.arange(-reach, reach + 1) ** 2)
        density = (density / density.sum())[: reach + 1]
        size = mask.shape[axis]
        mirrored = np.arange(-reach, size + reach) % (2 * size)
        mirrored = np.minimum(mirrored, 2 * size - 1 - mirrored)
        padded = values.double().index_select(axis, torch.from_numpy(mirrored).to(mask.device))
        total = padded.narrow(axis, reach, size) * density[reach]
        for k in range(reach):
            pair = padded.narrow(axis, k, size) + padded.narrow(axis, 2 * reach - k, size)
            total += pair.mul_(density[k])
        values = total.float()
    return values > 0.5


def _keys(row: _Row, count: int) -> np.ndarray:
    """Return the keys ``(count,)`` of a row: that of its flips, then one for every two steps."""
    return np.random.SeedSequence(row.seed, spawn_key=(row.channel, 2)).generate_state(count, np.uint64)


def _signed(keys: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(keys.view(np.int64)).to(like.device)


def _limits(probabilities: list[float]) -> np.ndarray:
    """Return the largest int32 with which a uniform one is at most as large with these probabilities, more than 0."""
    words = np.clip(np.rint(np.asarray(probabilities) * 2.0**32), 1, 2**32)
    return (words - 1 - 2**31).astype(np.int32)


def _splitmix64(state: torch.Tensor) -> torch.Tensor:
    """Turn int64 numbers of any pattern into random ones, in place."""
    for shift, factor in MIX:
        state ^= (state >> shift).bitwise_and_((1 << (64 - shift)) - 1)  # the mask drops the copies of the sign
        state *= factor
    state ^= (state >> LAST_SHIFT).bitwise_and_((1 << (64 - LAST_SHIFT)) - 1)
    return state
