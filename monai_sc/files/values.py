"""What the values of a label file say of it: is it a mask, a label map, or neither?"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

File = TypeVar("File", bound=Hashable)

MAX_CLASSES = 255
FULL_SCALE = 64  # the least foreground of a mask that is not 0 and 1, such as 255
SAMPLE, SLABS = 2**17, 8  # voxels that are looked at, and in how many parts of a larger file
JUDGED = 8  # files of a folder
PART = 2**20  # voxels whose values are sorted at once
NEAR = 0.2  # of the foreground: how far JPEG throws values off
MOST = 0.9  # of the voxels
BETWEEN, ONLY_BETWEEN = 0.7, 0.95  # of the voxels of a value: those with a smaller and a larger value beside them
INSIDE = 0.05  # of the voxels of noise: those with no other value beside them
FEW = 30  # voxels say nothing
MANY = 9  # values: so many are seldom all of a resampled map


def values_in(array: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Return the different values of an array, sorted; where there are more than ``limit``, some of them, more than it.

    Part by part, since a sorted copy of a volume costs memory.
    """
    found = np.empty(0, dtype=array.dtype)
    for part in _parts(array):
        own = np.unique(part)
        found = np.union1d(found, own) if len(found) else own
        if limit is not None and len(found) > limit:
            break
    return found


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return an array in parts that lie together in memory."""
    if array.size <= PART:
        yield array
        return
    along = np.moveaxis(array, int(np.argmax(np.abs(array.strides))), 0)
    step = max(1, PART * len(along) // array.size)
    for start in range(0, len(along), step):
        yield along[start : start + step]


def why_no_label(values: np.ndarray, *, found: np.ndarray | None = None, ignore: float | None = None) -> str:
    """Return why the values of a file are not those of a mask or a label map; nothing if they are.

    A label has few values, and each of them fills regions. An image has many, which change from voxel to voxel. A mask
    that was saved as JPEG has some more close to 0 and to its maximum, one that was smoothed or resampled linearly some
    between them, and a label map that was resampled linearly has values that lie only between a smaller and a larger
    one. A mask of one value is always one.

    Args:
        values: ``(*spatial)``, of the file. Of a large file only some slices are looked at for more than their values.
        found: its different values, sorted, if they are known.
        ignore: value of unknown voxels, which is none of the others.

    Returns:
        One sentence without its full stop, about "it", with the way out.
    """
    found = values_in(values, MAX_CLASSES + 2) if found is None else found
    classes = found[(found != 0) & (found != ignore)]
    if len(classes) < 2:
        return ""
    if len(classes) > MAX_CLASSES:
        return f"it holds more than {MAX_CLASSES} values, as an image does; give the folder of the labels"
    counts, inside, between = _surroundings(values, found, ignore)
    seen = (counts > 0) & (found != ignore)
    found, counts, inside, between = found[seen], counts[seen], inside[seen], between[seen]
    if len(found) < 3:
        return ""
    own = found != 0
    halves = np.flatnonzero(found <= found[-1] / 2), np.flatnonzero(found > found[-1] / 2)
    solid = counts * (inside + 1e-6)
    main = [half[np.argmax(solid[half])] for half in halves if len(half)]
    minor, full = np.delete(np.arange(len(found)), main), float(found[main[-1]])
    near = (found <= NEAR * full) | (found >= (1 - NEAR) * full)
    is_mask = full >= FULL_SCALE and counts[near].sum() >= MOST * counts.sum()
    unlike = own & (between >= BETWEEN)
    is_thin = (inside * counts)[minor].sum() <= INSIDE * counts[minor].sum()
    if is_mask and is_thin and (len(minor) > 1 or unlike[minor].any() or found[minor] > full / 2):
        return (
            f"it holds {len(classes)} values near 0 and {full:g} or between them, as a mask that was saved as JPEG or "
            f"smoothed; set values over {full / 2:g} to {full:g} and all others to 0, and save it as PNG or NIfTI"
        )
    is_noise = len(classes) >= 3 * MANY and np.average(between[own], weights=counts[own]) >= 0.5
    if is_noise or (unlike.sum() >= 3 and unlike.sum() >= own.sum() / 2):
        return (
            f"{len(classes)} of its values look like an image's, most of them occurring only between others; give "
            "the folder of "
            "the labels, or resample them with nearest neighbours"
        )
    thin = np.flatnonzero(own & (between >= ONLY_BETWEEN) & (counts >= max(FEW, 0.02 * counts[own].sum())))
    if len(thin) and len(classes) < MANY:
        return (
            f"its value {found[thin[0]]:g} occurs only at edges, between smaller and larger ones, as in a label map "
            "that was resampled linearly; resample it with nearest neighbours"
        )
    return ""


class ValueJudge:
    """Judges the values of the files of a folder: the first few, then those with values that none of them had."""

    def __init__(self) -> None:
        self.known: set[float] = set()
        self.number = 0

    def why_no_label(self, values: np.ndarray, found: np.ndarray, ignore: float | None = None) -> str:
        """Return what :py:func:`why_no_label` says of a file, for the arguments see there."""
        own = set(found.tolist())
        if self.number >= JUDGED and own <= self.known:
            return ""
        reason = why_no_label(values, found=found, ignore=ignore)
        if not reason:
            self.known |= own
            self.number += 1
        return reason


def _surroundings(
    values: np.ndarray, found: np.ndarray, ignore: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many voxels of a sample hold each value, and which part of them has others beside them.

    Returns:
        The numbers; the parts that have no other value beside them; those that have a smaller and a larger one.
    """
    counts, inside, between = np.zeros((3, len(found)))
    for slab, kept in _slabs(values):
        codes = (np.searchsorted(found, slab) + 1).astype(np.uint16)
        low = high = codes
        if ignore is not None:
            unknown = slab == ignore
            low, high = np.where(unknown, len(found) + 1, codes), np.where(unknown, 0, codes)
        for axis in range(slab.ndim):
            low, high = _beside(low, axis, np.minimum), _beside(high, axis, np.maximum)
        codes, low, high = (array[..., kept] for array in (codes, low, high))
        is_one, is_between = (low == codes) & (high == codes), (low < codes) & (high > codes)
        for total, chosen in ((counts, codes.ravel()), (inside, codes[is_one]), (between, codes[is_between])):
            total += np.bincount(chosen, minlength=len(found) + 1)[1:]
    return counts, inside / np.maximum(counts, 1), between / np.maximum(counts, 1)


def _slabs(values: np.ndarray) -> Iterator[tuple[np.ndarray, slice]]:
    """Return parts of an array along its last axis that hold something, and what of each is not for its edges only."""
    if values.size <= SAMPLE:
        yield values, slice(None)
        return
    length = values.shape[-1]
    width = max(1, SAMPLE // (values.size // length) // SLABS)
    filled = np.flatnonzero(values.any(axis=tuple(range(values.ndim - 1))))
    for start in np.unique(np.linspace(filled[0], max(filled[0], filled[-1] + 1 - width), SLABS).round().astype(int)):
        first, last = max(start - 1, 0), min(start + width + 1, length)
        yield values[..., first:last], slice(start - first, start - first + width)


def _beside(array: np.ndarray, axis: int, choose: np.ufunc) -> np.ndarray:
    """Return the smallest or largest of each voxel and the two beside it along an axis."""
    result = array.copy()
    along, back = np.moveaxis(array, axis, 0), np.moveaxis(result, axis, 0)
    choose(back[1:], along[:-1], out=back[1:])
    choose(back[:-1], along[1:], out=back[:-1])
    return result


def masks_apart(found: Mapping[File, Sequence[float]]) -> tuple[File, File] | None:
    """Return two files whose foreground has different values, such as 1 and 255, if that is how all files differ.

    Where no file holds more than one value, and one of these is the 255 of a mask, the values are no classes.
    """
    files = {own[0]: file for file, own in found.items() if len(own) == 1}
    if len(files) < 2 or max(files) < FULL_SCALE or any(len(own) > 1 for own in found.values()):
        return None
    values = sorted(files)
    return files[values[0]], files[values[-1]]
