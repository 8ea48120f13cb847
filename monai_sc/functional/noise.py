"""The march of a boundary, at a cost that follows the boundary and the steps, not the image."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage
from typing_extensions import Required, Unpack

from monai_sc.functional.checks import binary_mask, check_choice, check_spacing, per_channel
from monai_sc.functional.compiled import compiled
from monai_sc.functional.masks import bounding_box

# The state of a voxel is one byte: its class, the two lists it may be on, and how many of its face neighbours are of
# the other class. A rim of one voxel that is outside of the image spares all tests for the edge.
FOREGROUND = np.uint8(0x01)
LISTED = np.uint8(0x02)  # on the list of the background; shifted by one, on that of the foreground
NEIGHBOUR = np.uint8(0x08)  # one neighbour of the other class
NEIGHBOURS = np.uint8(0x38)
OUTSIDE = np.uint8(0x80)
BLOCK = 2**14  # bytes that stay in a cache
WORD_OF_NEIGHBOURS = np.uint64(0x3838383838383838)


def march(mask: np.ndarray, expands: np.ndarray, march_prob: float, rng: np.random.Generator) -> np.ndarray:
    r"""Return a boolean ``mask`` ``(*spatial)``, at most 3-D, after one step of the Markov process per ``expands``.

    Two lists hold the voxels beside the boundary, one for each class, and change where voxels flip. A step visits only
    the voxels that move: on the list of the class that is to lose voxels, it skips as many as a geometric law says. A
    voxel on the list that is not beside the boundary any more is taken off when it is visited; the one that takes its
    place has not been drawn yet, so it gets a draw of its own. All voxels of a step are chosen before the first moves.
    """
    if march_prob == 0 or not len(expands):
        return mask.copy()
    inner = (slice(1, -1),) * mask.ndim
    rimmed = np.full([size + 2 for size in mask.shape], OUTSIDE)
    rimmed[inner] = mask
    state = np.zeros_like(rimmed)
    number = np.zeros(0, dtype=np.int32 if rimmed.size < 2**31 else np.int64)  # whose type the lists have
    steps = np.array(expands, dtype=bool, order="C")  # another kind of array is compiled for anew, which takes seconds
    offsets = np.ravel([(stride, -stride) for stride in rimmed.strides])  # of the face neighbours
    _march_list(rimmed.ravel(), state.ravel(), offsets, steps, float(march_prob), number, rng)
    return np.asarray((state[inner] & FOREGROUND).view(bool))


@compiled
def _march_list(rimmed, state, offsets, expands, march_prob, number, rng):  # type: ignore[no-untyped-def] # pragma: no cover
    # Loops over slices that start at 0 are the ones that become vector instructions. No slice is assigned an array: the
    # error for shapes that do not fit would take longer to compile than all the rest.
    size = len(state)
    rim = np.max(offsets)  # no voxel of the image lies closer to either end
    totals = np.zeros(2, dtype=np.int64)
    for first in range(rim, size - rim, BLOCK):
        last = min(first + BLOCK, size - rim)
        centre, counts = rimmed[first:last], state[first:last]
        for offset in offsets:
            neighbour = rimmed[first + offset : last + offset]
            for i in range(len(centre)):
                counts[i] += ((centre[i] ^ neighbour[i]) & ~(neighbour[i] >> 7) & 1) << 3
        for i in range(len(centre)):
            counts[i] = counts[i] * (1 - (centre[i] >> 7)) | centre[i]
            totals[counts[i] & 1] += (counts[i] & NEIGHBOURS) > 0
    state[:rim] = state[size - rim :] = OUTSIDE
    listed = np.zeros(2, dtype=np.int64)
    lists = np.empty((2, 64 + 3 * np.max(totals) // 2), dtype=number.dtype)
    words = state[: size // 8 * 8].view(np.uint64)
    for w in range(len(words) + 1):
        if w < len(words) and not words[w] & WORD_OF_NEIGHBOURS:
            continue
        for i in range(8 * w, min(8 * w + 8, size)):
            if state[i] & NEIGHBOURS:
                side = state[i] & 1
                lists[side, listed[side]] = i
                listed[side] += 1
                state[i] |= LISTED << side

    mean_skip = 0.0 if march_prob == 1 else -1 / np.log1p(-march_prob)
    moving = np.empty(64, dtype=number.dtype)
    limits = listed + listed // 2 + 64
    for step in range(len(expands)):
        side = 0 if expands[step] else 1  # the class that is to lose voxels
        flag, other_flag = LISTED << side, LISTED << (1 - side)
        count = listed[side]
        if count > limits[side]:  # visits of stale entries would cost more than a sweep
            kept = 0
            for i in range(count):
                v = lists[side, i]
                lists[side, kept] = v
                s = state[v]
                if s & 1 == side and s & NEIGHBOURS:
                    kept += 1
                else:
                    state[v] = s & ~flag
            count = kept
            limits[side] = count + count // 2 + 64

        if len(moving) < count:
            moving = np.empty(count + count // 2, dtype=number.dtype)
        movers = 0
        i = 0
        while True:
            skip = rng.standard_exponential() * mean_skip
            if skip >= count - i:
                break
            i += int(skip)
            v = lists[side, i]
            s = state[v]
            moves = s & 1 == side and s & NEIGHBOURS
            moving[movers] = v
            movers += 1 if moves else 0
            count -= 1
            lists[side, i] = lists[side, count]
            state[v] = s & ~flag

        needed = max(count, listed[1 - side]) + len(offsets) * movers + 1
        if needed > lists.shape[1]:
            longer = np.empty((2, needed + needed // 2), dtype=number.dtype)
            for row in range(2):
                for i in range(lists.shape[1]):
                    longer[row, i] = lists[row, i]
            lists = longer
        # Without branches, whose outcome no processor can guess here: what may not be appended is written all the same,
        # behind the end of the list.
        other_count = listed[1 - side]
        for k in range(movers):
            v = moving[k]
            opposite = np.int64(0)
            for offset in offsets:
                u = v + offset
                n = np.int64(state[u])
                if n & OUTSIDE:
                    continue
                left = (n ^ side ^ 1) & 1  # 1 where the neighbour stays in the class that v leaves
                opposite += left
                lists[side, count] = u
                count += left & ~(n >> (1 + side))
                state[u] = (n + (left << 4) - NEIGHBOUR) | (left << (1 + side))
            s = ((state[v] ^ FOREGROUND) & ~NEIGHBOURS) | (opposite << 3)
            lists[1 - side, other_count] = v
            if opposite and not s & other_flag:
                other_count += 1
                s |= other_flag
            state[v] = s
        listed[side], listed[1 - side] = count, other_count


SMOOTHING = (None, "before_flips", "after_flips")
MOST_STEPS_PER_SIDE = 64
SMALL = 2**15  # voxels: an image that costs less than the search for a box
PER_CHANNEL = ("num_steps", "expansion_prob", "march_prob", "flip_prob")


class MarkovRates(TypedDict, total=False):
    """The parameters of the Markov label noise but for the number of its steps."""

    expansion_prob: Required[float | Sequence[float]]
    march_prob: Required[float | Sequence[float]]
    flip_prob: float | Sequence[float]
    smoothing: str | None
    smooth_sigma: float
    smooth_radius: int | None
    step_size: float | None
    in_plane: bool
    slice_axis: int | None
    slice_correlation: float


class MarkovParameters(MarkovRates, total=False):
    """The parameters of the Markov label noise, which :py:func:`markov_label_noise` explains."""

    num_steps: Required[int | Sequence[int]]


def case_seed(seed: int, case_id: str) -> int:
    """Return a seed that depends on ``seed`` and ``case_id`` alone: the same in every process and on every machine.

    Example:
        >>> case_seed(0, "case-1") == case_seed(0, "case-1"), case_seed(0, "case-1") == case_seed(1, "case-1")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{case_id}".encode(), digest_size=8).digest(), "big")


def check_markov_parameters(**parameters: Unpack[MarkovParameters]) -> None:
    """Refuse parameters outside the range that :py:func:`markov_label_noise` states.

    Raises:
        TypeError: when a parameter is missing, or there is none of such a name.
        ValueError: naming the first parameter that is out of range.
    """
    for name in parameters.keys() - MarkovParameters.__annotations__.keys():
        raise TypeError(
            f"{name} is not a parameter of the Markov label noise, which has "
            f"{', '.join(MarkovParameters.__annotations__)}."
        )
    for name in PER_CHANNEL[:3]:
        if name not in parameters:
            raise TypeError(f"{name} must be given.")
    num_steps = parameters["num_steps"]
    if not all(t >= 0 and np.isfinite(t) and t == int(t) for t in np.ravel(num_steps)):
        raise ValueError(f"num_steps must be a whole number of at least 0, got {num_steps}.")
    probabilities = {
        "expansion_prob": parameters["expansion_prob"],
        "march_prob": parameters["march_prob"],
        "flip_prob": parameters.get("flip_prob", 0),
        "slice_correlation": parameters.get("slice_correlation", 0),
    }
    for name, value in probabilities.items():
        if not all(0 <= p <= 1 for p in np.ravel(value)) or (name == "slice_correlation" and np.ndim(value)):
            raise ValueError(f"{name} must be a probability in [0, 1], got {value}.")
    check_choice(parameters.get("smoothing"), SMOOTHING, "smoothing")
    sigma, radius = parameters.get("smooth_sigma", 1), parameters.get("smooth_radius")
    if not (sigma > 0 and np.isfinite(sigma)):
        raise ValueError(f"smooth_sigma must be more than 0 voxels, got {sigma}; smoothing=None switches it off.")
    if radius is not None and not (radius >= 1 and radius == radius // 1):
        raise ValueError(f"smooth_radius must be at least 1 voxel, a whole number, or None, got {radius}.")
    step_size, axis = parameters.get("step_size"), parameters.get("slice_axis")
    if step_size is not None and not step_size > 0:
        raise ValueError(f"step_size must be more than 0, or None for the smallest side of a voxel, got {step_size}.")
    if axis is not None and not (type(axis) in (int, np.int64) and axis in (0, 1, 2) and parameters.get("in_plane")):
        raise ValueError(f"slice_axis must be 0, 1 or 2, and goes with in_plane=True only, got {axis}.")


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
    step_size: float | None = None,
    in_plane: bool = False,
    slice_axis: int | None = None,
    slice_correlation: float = 0.9,
    spacing: Sequence[float] | None = None,
    seed: int,
) -> NdarrayOrTensor:
    r"""Move the boundary of each channel of ``label`` ``(channels, *spatial)`` by a Markov process, then flip voxels.

    In each of :math:`T` steps the foreground expands with probability :math:`\theta_1`, else it shrinks: every
    background voxel with a foreground face neighbour becomes foreground (every foreground voxel with a background face
    neighbour becomes background) with probability :math:`\theta_2`, each on its own. Then every voxel where the noisy
    and the clean label agree flips with probability :math:`\theta_3`. (Yao et al., ICLR 2023, Definition 1.)
    There are 4 face neighbours in 2D and 6 in 3D; what lies outside the image is neither foreground nor background.

    Two things go beyond the paper. With ``spacing`` a step is a distance :math:`h` in mm: the process runs on cubes of
    that side, into which each voxel is divided (each of its sides into the nearest whole number), and a voxel takes the
    class at its centre. So a boundary moves equally far along short and long sides of voxels, at most :math:`T h`; and
    one that is nearer than half of a voxel to where it was has not moved. With ``in_plane`` each slice is drawn on its
    own, as people annotate; whether a step expands is drawn for each slice, and is that of the slice before with
    probability ``slice_correlation``, which is then the correlation of neighbouring slices.

    Args:
        label: 0 and 1 only, any dtype, at most three spatial axes. A channel that is empty or full has no boundary, so
            it gets flips only.
        num_steps: :math:`T`, at least 0; the boundary moves at most this many voxels, or steps.
        expansion_prob: :math:`\theta_1` in ``[0, 1]``; over 0.5 the label grows, under 0.5 it shrinks.
        march_prob: :math:`\theta_2` in ``[0, 1]``.
        flip_prob: :math:`\theta_3` in ``[0, 1]``.
        smoothing: ``None``, or a Gaussian filter with a threshold of 0.5, ``"before_flips"`` as the paper says, or
            ``"after_flips"`` as its released masks were made: then every voxel may flip, whether or not it agrees.
        smooth_sigma: standard deviation of the filter, in voxels; with ``spacing``, in steps.
        smooth_radius: where the filter is cut off, in the unit of ``smooth_sigma`` from its centre; ``None`` is four
            ``smooth_sigma``. The released masks were made with 2 and a ``smooth_sigma`` of 2.
        step_size: :math:`h`, in the unit of ``spacing``, at most its smallest value, which ``None`` stands for.
        in_plane: draw the slices of a volume one by one.
        slice_axis: the spatial axis along which slices lie; ``None`` is the one of the largest spacing (the last of
            these).
        slice_correlation: of the steps of neighbouring slices, in ``[0, 1]``.
        spacing: size of a voxel along each spatial axis, in mm.
        seed: of this call's own generators; a channel's draw depends on it and on the channel's number only.

    The first four parameters take one value, or one per channel.

    Returns:
        The noisy label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, a parameter is out of range, or ``in_plane`` is asked for where there
            are not three spatial axes, or neither ``spacing`` nor ``slice_axis`` says how slices lie.

    Example:
        >>> import numpy as np
        >>> line = np.array([[0, 0, 0, 1, 0, 0, 0]])
        >>> markov_label_noise(line, num_steps=2, expansion_prob=1, march_prob=1, seed=0).tolist()
        [[0, 1, 1, 1, 1, 1, 0]]
    """
    parameters: MarkovParameters = {
        "num_steps": num_steps,
        "expansion_prob": expansion_prob,
        "march_prob": march_prob,
        "flip_prob": flip_prob,
        "smoothing": smoothing,
        "smooth_sigma": smooth_sigma,
        "smooth_radius": smooth_radius,
        "step_size": step_size,
        "in_plane": in_plane,
        "slice_axis": slice_axis,
        "slice_correlation": slice_correlation,
    }
    check_markov_parameters(**parameters)
    if not (seed >= 0 and seed == int(seed)):
        raise ValueError(f"seed must be a whole number of at least 0, got {seed}.")
    seed = int(seed)
    clean = binary_mask(label)
    if clean.ndim > 4:
        raise ValueError(f"label must have at most 3 spatial axes, got {clean.ndim - 1}.")
    steps_per_side, axis = step_geometry(parameters, clean.ndim - 1, spacing)
    noisy = np.empty_like(clean)
    for channel, (steps, expansion, march_p, flip) in enumerate(channel_parameters(parameters, len(clean))):
        # Steps and flips have generators of their own, so that a longer process begins as a shorter one does.
        step_rng, rng = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(channel, k))) for k in (0, 1))
        slices = 1 if axis is None else clean.shape[1 + axis]
        expands = draw_steps(steps, expansion, slices, slice_correlation, step_rng)
        if axis is None:
            mask = _march(clean[channel], expands[0], march_p, steps_per_side, rng)
        else:
            mask = np.empty_like(clean[channel])
            along, marched = np.moveaxis(clean[channel], axis, 0), np.moveaxis(mask, axis, 0)
            in_slice = np.delete(steps_per_side, axis)
            for k, own in enumerate(expands):
                marched[k] = _march(along[k], own, march_p, in_slice, rng)
        if smoothing == "before_flips":
            mask = smooth_mask(mask, smooth_sigma, smooth_radius, steps_per_side, axis)
        if flip > 0:
            flip_rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(channel, 2)))
            flips = flip_rng.random(mask.shape, dtype=np.float32) < flip
            mask = mask ^ (flips if smoothing == "after_flips" else flips & (mask == clean[channel]))
        if smoothing == "after_flips":
            mask = smooth_mask(mask, smooth_sigma, smooth_radius, steps_per_side, axis)
        noisy[channel] = mask
    return convert_to_dst_type(noisy, label)[0]


def channel_parameters(parameters: MarkovParameters, channels: int) -> list[tuple[int, float, float, float]]:
    r"""Return :math:`T, \theta_1, \theta_2, \theta_3` of each channel."""
    values = [per_channel(parameters.get(name, 0.0), channels, name) for name in PER_CHANNEL]
    return [(int(steps), *map(float, rest)) for steps, *rest in zip(*values, strict=True)]  # type: ignore[misc] # three


def step_geometry(
    parameters: MarkovParameters, ndim: int, spacing: Sequence[float] | None
) -> tuple[np.ndarray, int | None]:
    """Return how many steps each of ``ndim`` sides of a voxel is long, and the axis of the slices if ``in_plane``.

    Raises:
        ValueError: when ``spacing`` does not fit the label, or a parameter needs one that it lacks.
    """
    spacing = check_spacing(spacing, ndim)
    axis, step_size = parameters.get("slice_axis"), parameters.get("step_size")
    if parameters.get("in_plane"):
        if ndim != 3:
            raise ValueError(f"in_plane needs a label with 3 spatial axes, got {ndim}.")
        if axis is None:
            if spacing is None:
                raise ValueError("in_plane needs spacing or slice_axis, to know along which axis the slices lie.")
            axis = acquisition_axis(spacing)
    if spacing is None:
        if step_size is not None:
            raise ValueError(f"step_size needs spacing, got {step_size} without one.")
        return np.ones(ndim, dtype=int), axis
    marched = [s for a, s in enumerate(spacing) if a != axis]
    step = min(marched) if step_size is None else step_size
    if step > min(marched) * (1 + 1e-6):
        raise ValueError(
            f"step_size must be at most the smallest side of a voxel, {min(marched):g}, got {step:g}: "
            "a boundary cannot skip voxels; use more, smaller steps."
        )
    if max(marched) > MOST_STEPS_PER_SIDE * step:
        raise ValueError(
            f"No side of a voxel may be longer than {MOST_STEPS_PER_SIDE} steps of {step:g}, got spacing {spacing}; "
            "take a larger step_size" + (" or in_plane=True." if ndim == 3 and axis is None else ".")
        )
    return np.array([1 if a == axis else int(s / step + 0.5) for a, s in enumerate(spacing)]), axis


def acquisition_axis(spacing: Sequence[float]) -> int:
    """Return the spatial axis along which the slices of an acquisition lie: that of the largest spacing.

    Where several are within 1 % of the largest, it is the last of these.

    Example:
        >>> acquisition_axis((5.0, 0.7, 0.7)), acquisition_axis((1.0, 1.0, 1.0))
        (0, 2)
    """
    sizes = np.asarray(check_spacing(spacing, len(spacing)))
    largest = np.flatnonzero(sizes > 0.99 * sizes.max())
    return int(largest[-1])


def draw_steps(
    num_steps: int, expansion_prob: float, slices: int, correlation: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw for each slice and step ``(slices, num_steps)`` whether it expands.

    A step of a slice is that of the slice before with probability ``correlation``, else it has a draw of its own.
    """
    if slices == 1:
        return np.asarray(rng.random(num_steps) < expansion_prob)[None]
    draws = rng.random((num_steps, 2, slices))  # step by step, so that more steps leave the first ones alone
    steps = draws[:, 0] < expansion_prob
    copied = draws[:, 1] < correlation
    copied[:, :1] = False
    origin = np.maximum.accumulate(np.where(copied, 0, np.arange(slices)), axis=1)
    return np.asarray(np.take_along_axis(steps, origin, axis=1).T)


def smooth_mask(
    mask: np.ndarray, sigma: float, radius: int | None, steps_per_side: np.ndarray, slice_axis: int | None
) -> np.ndarray:
    """Return a boolean ``mask`` ``(*spatial)`` after a Gaussian filter and a threshold of 0.5."""
    axes = [axis for axis in range(mask.ndim) if axis != slice_axis]
    values = mask.astype(np.float32)
    sigmas = [sigma / steps_per_side[axis] for axis in axes]
    radii = None if radius is None else [max(1, round(radius / steps_per_side[axis])) for axis in axes]
    ndimage.gaussian_filter(values, sigmas, axes=axes, radius=radii, output=values)  # in place, for large volumes
    return np.asarray(values > 0.5)


def centres(fine: np.ndarray, clean: np.ndarray, steps_per_side: np.ndarray) -> np.ndarray:
    """Return the class at the centre of each voxel, where ``fine`` divides it; if its centre is a boundary, its own."""
    places = [(n // 2,) if n % 2 else (n // 2 - 1, n // 2) for n in steps_per_side]
    corners = [
        fine[tuple(slice(p, None, n) for p, n in zip(place, steps_per_side, strict=True))]
        for place in itertools.product(*places)
    ]
    return np.asarray(np.where(clean, np.logical_or.reduce(corners), np.logical_and.reduce(corners)))


def _march(
    mask: np.ndarray, expands: np.ndarray, march_prob: float, steps_per_side: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """March in the box that the foreground can reach, since a large volume may hold a small structure."""
    if mask.size < SMALL and steps_per_side.max() == 1:
        return march(mask, expands, march_prob, rng)
    reach = int(np.count_nonzero(expands)) + 1
    box = bounding_box(mask, [-(-reach // int(steps)) for steps in steps_per_side])
    if box is None:
        return mask.copy()
    near = mask[box]
    fine = near
    for axis, steps in enumerate(steps_per_side):
        fine = fine if steps == 1 else np.repeat(fine, steps, axis=axis)
    fine = march(fine, expands, march_prob, rng)
    marched = mask.copy()
    marched[box] = fine if fine.shape == near.shape else centres(fine, near, steps_per_side)
    return marched
