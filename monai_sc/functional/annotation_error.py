"""Annotation errors beside the Markov noise: moved boundaries, missed objects, coarse contours, holes, shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import contourpy
import numpy as np
from matplotlib.path import Path as Polygon
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import Range, binary_mask, check_range, check_spacing, per_channel, ranges_per_channel


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


def drop_components(label: NdarrayOrTensor, drop_prob: float | Sequence[float], *, seed: int) -> NdarrayOrTensor:
    """Remove each connected component of each channel of ``label`` ``(channels, *spatial)`` with a probability.

    This is the object that a reader overlooks. Voxels that touch by a face, an edge or a corner are connected.

    Args:
        label: 0 and 1 only, any dtype.
        drop_prob: probability for each component, in ``[0, 1]``, one value or one per channel.
        seed: of this call's own generator; a channel's draw depends on it and on the channel's number only.

    Returns:
        What is left, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, or a value is out of range.

    Example:
        >>> import numpy as np
        >>> drop_components(np.array([[1, 0, 1, 1, 0, 1]]), 0.5, seed=0).tolist()
        [[1, 0, 0, 0, 0, 1]]
    """
    mask = binary_mask(label)
    if not all(0 <= p <= 1 for p in np.ravel(drop_prob)):
        raise ValueError(f"drop_prob must be a probability in [0, 1], got {drop_prob}.")
    left = np.empty_like(mask)
    for channel, prob in enumerate(per_channel(drop_prob, len(mask), "drop_prob")):
        components, number = ndimage.label(mask[channel], np.ones((3,) * (mask.ndim - 1)))
        kept = np.append(False, _rng(seed, channel).random(number) >= prob)  # 0 is the background
        left[channel] = kept[components]
    return convert_to_dst_type(left, label)[0]


def check_holes(number: Range | Sequence[Range], radius: Range | Sequence[Range]) -> None:
    """Refuse what :py:func:`punch_holes` does not take.

    Raises:
        ValueError: when a range is not ``0 <= low <= high``, or ``number`` is not whole.
    """
    check_range(number, "number")
    check_range(radius, "radius")
    if not np.array_equal(number, np.rint(number)):
        raise ValueError(f"number must be whole numbers, got {number}.")


def punch_holes(
    label: NdarrayOrTensor,
    number: Range | Sequence[Range],
    radius: Range | Sequence[Range],
    *,
    spacing: Sequence[float] | None = None,
    seed: int,
) -> NdarrayOrTensor:
    r"""Punch random holes into each channel of ``label`` ``(channels, *spatial)``, none of which touches its boundary.

    A hole is a ball :math:`\{x : d(x, c) \le r\}` whose voxels, and all their neighbours by a face, an edge or a
    corner, are foreground of ``label``, so that it is enclosed. Its centre :math:`c` is uniform among the voxels where
    that is so; a hole that fits nowhere is left out. Holes may overlap each other, and channels do not mix.

    Args:
        label: 0 and 1 only, any dtype.
        number: ``(low, high)`` of the number of holes, uniform among whole numbers of at least 0; or one pair per
            channel.
        radius: ``(low, high)`` of the uniform radius :math:`r` of each hole, at least 0, in voxels, or in the unit of
            ``spacing``; or one pair per channel.
        spacing: size of a voxel along each spatial axis, in mm.
        seed: of this call's own generator; a channel's draw depends on it and on the channel's number only.

    Returns:
        The label with holes, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, or a value is out of range.

    Example:
        >>> import numpy as np
        >>> punch_holes(np.array([[0, 1, 1, 1, 1, 1, 0]]), (1, 1), (1, 1), seed=0).tolist()
        [[0, 1, 0, 0, 0, 1, 0]]
    """
    mask = binary_mask(label)
    ndim = mask.ndim - 1
    check_holes(number, radius)
    sides = np.ones(ndim) if spacing is None else np.asarray(check_spacing(spacing, ndim))
    grid = np.meshgrid(
        *(side * np.arange(n) for side, n in zip(sides, mask.shape[1:], strict=True)), indexing="ij", sparse=True
    )
    numbers, radii = ranges_per_channel(number, len(mask), "number"), ranges_per_channel(radius, len(mask), "radius")
    punched = mask.copy()
    for channel, ((fewest, most), (low, high)) in enumerate(zip(numbers, radii, strict=True)):
        rng = _rng(seed, channel)
        enclosed = ndimage.binary_erosion(mask[channel], np.ones((3,) * ndim))  # never at the edge of the image
        room = ndimage.distance_transform_edt(enclosed, sampling=sides)
        count = int(rng.integers(int(fewest), int(most), endpoint=True))
        for r in rng.uniform(low, high, count):
            centres = np.argwhere(room > r)
            if len(centres):
                centre = sides * centres[rng.integers(len(centres))]
                distance = np.sqrt(sum((x - c) ** 2 for x, c in zip(grid, centre, strict=True)))
                punched[channel] &= distance > r
    return convert_to_dst_type(punched, label)[0]


def translate_label(label: NdarrayOrTensor, shift: Sequence[float] | Sequence[Sequence[float]]) -> NdarrayOrTensor:
    """Move each channel of ``label`` ``(channels, *spatial)`` as a whole, by the nearest whole number of voxels.

    What leaves the image is lost, and background comes in.

    Args:
        label: 0 and 1 only, any dtype.
        shift: of each spatial axis, in voxels; or one such sequence per channel.

    Returns:
        The moved label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary, or ``shift`` has not one number per spatial axis.

    Example:
        >>> import numpy as np
        >>> translate_label(np.array([[0, 1, 1, 0, 1]]), [1.2]).tolist()
        [[0, 0, 1, 1, 0]]
    """
    mask = binary_mask(label)
    shifts = np.asarray(shift, dtype=np.float64)
    if shifts.ndim == 1:
        shifts = np.tile(shifts, (len(mask), 1))
    if shifts.shape != (len(mask), mask.ndim - 1) or not np.isfinite(shifts).all():
        raise ValueError(
            f"shift must be {mask.ndim - 1} numbers, one per spatial axis, or that for each of {len(mask)} channels, "
            f"got {shift}."
        )
    moved = np.zeros_like(mask)
    farthest = max(mask.shape)  # all that is moved so far is gone
    for channel, steps in enumerate(np.rint(np.clip(shifts, -farthest, farthest)).astype(int)):
        target = tuple(slice(max(s, 0), max(n + min(s, 0), 0)) for s, n in zip(steps, mask.shape[1:], strict=True))
        source = tuple(slice(max(-s, 0), max(n - max(s, 0), 0)) for s, n in zip(steps, mask.shape[1:], strict=True))
        moved[channel][target] = mask[channel][source]
    return convert_to_dst_type(moved, label)[0]


def coarsen_contour(
    label: NdarrayOrTensor,
    vertex_distance: float | Sequence[float],
    *,
    spacing: Sequence[float] | None = None,
    slice_axis: int = -1,
    seed: int,
) -> NdarrayOrTensor:
    """Draw the contours of each channel of ``label`` ``(channels, *spatial)`` again, as polygons with few vertices.

    This is the reader who clicks around a structure. The vertices lie on the contour, equally far from one another
    along it, at least four of them; the first is drawn at random. A volume is redrawn slice by slice. Holes have
    polygons of their own. A contour whose polygon would hold no voxel stays as it is, and so does the edge of the image
    where it cuts a structure off.

    Args:
        label: 0 and 1 only, any dtype; 2D or 3D.
        vertex_distance: along the contour, over 0, in voxels, or in the unit of ``spacing``; one value or one per
            channel.
        spacing: size of a voxel along each spatial axis, in mm.
        slice_axis: the spatial axis along which the slices of a volume lie.
        seed: of this call's own generator; a channel's draw depends on it and on the channel's number only.

    Returns:
        The redrawn label, with the kind, shape and dtype of ``label``, which is not changed.

    Raises:
        ValueError: when ``label`` is not binary or has not two or three spatial axes, or a value is out of range.

    Example:
        >>> import numpy as np
        >>> disc = np.hypot(*np.indices((41, 41)) - 20)[None] < 15
        >>> coarse = coarsen_contour(disc, 20, seed=0)
        >>> int(disc.sum()), int(coarse.sum())
        (697, 529)
    """
    mask = binary_mask(label)
    ndim = mask.ndim - 1
    if ndim not in (2, 3):
        raise ValueError(f"label must have 2 or 3 spatial axes, got {ndim}.")
    if not -ndim <= slice_axis < ndim:
        raise ValueError(f"slice_axis must be one of {ndim} spatial axes, got {slice_axis}.")
    if not all(d > 0 and np.isfinite(d) for d in np.ravel(vertex_distance)):
        raise ValueError(f"vertex_distance must be over 0, got {vertex_distance}.")
    sides = np.ones(ndim) if spacing is None else np.asarray(check_spacing(spacing, ndim))
    coarse = np.zeros_like(mask)
    for channel, distance in enumerate(per_channel(vertex_distance, len(mask), "vertex_distance")):
        rng = _rng(seed, channel)
        if ndim == 2:
            coarse[channel] = _redrawn(mask[channel], distance, sides, rng)
            continue
        slices, redrawn = (np.moveaxis(masks[channel], slice_axis, 0) for masks in (mask, coarse))
        for own, target in zip(slices, redrawn, strict=True):
            target[...] = _redrawn(own, distance, np.delete(sides, slice_axis), rng)
    return convert_to_dst_type(coarse, label)[0]


def _rng(seed: int, channel: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}.")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(channel,)))


def _redrawn(mask: np.ndarray, distance: float, sides: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if not mask.any():
        return mask
    # A structure that the image cuts off is drawn as if it went on, so that no corner at the edge is cut.
    beyond = min(max(mask.shape), math.ceil(distance / min(sides)))
    extended = np.pad(np.pad(mask, beyond, mode="edge"), 1)
    redrawn = np.zeros_like(extended)
    contours = contourpy.contour_generator(z=extended.astype(np.float64)).lines(0.5)
    for points in contours:
        line = np.asarray(points)[:, ::-1]  # from x, y to the order of the axes
        along = np.append(0, np.cumsum(np.linalg.norm(np.diff(line, axis=0) * sides, axis=1)))
        number = max(4, round(along[-1] / distance))
        places = (np.arange(number) + rng.random()) * along[-1] / number
        vertices = np.stack([np.interp(places, along, line[:, axis]) for axis in (0, 1)], axis=1)
        low, high = np.floor(line.min(axis=0)).astype(int), np.ceil(line.max(axis=0)).astype(int) + 1
        voxels = np.stack(np.meshgrid(*map(np.arange, low, high), indexing="ij"), axis=-1).reshape(-1, 2)
        inside = Polygon(vertices).contains_points(voxels)
        if not inside.any():
            inside = Polygon(line).contains_points(voxels)
        redrawn[tuple(map(slice, low, high))] ^= inside.reshape(high - low)  # a hole lies within another contour
    inner = tuple(slice(beyond + 1, beyond + 1 + size) for size in mask.shape)
    return redrawn[inner]
