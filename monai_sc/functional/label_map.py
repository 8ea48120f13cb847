"""Integer label maps: into one mask per class, and back into a map where every voxel has one value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from numbers import Real

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import as_array, binary_mask, check_choice
from monai_sc.functional.distance import signed_distance
from monai_sc.functional.masks import bounding_box

OVERLAPS = ("nearest", "priority")
LIMIT = 2**53  # under which all whole numbers are different ones as floats, too


def check_classes(classes: Sequence[int], background: int) -> list[int]:
    """Return ``classes`` as a list, which must hold whole numbers under 2**53, each once, and not the background.

    Raises:
        ValueError: when it does not.
    """
    values = list(classes)
    is_sound = all(isinstance(v, Real) and abs(v) < LIMIT and v == int(v) for v in values)
    if not values or not is_sound or len(set(values)) != len(values):
        raise ValueError(
            f"classes must be the values of one or more classes, whole numbers under 2**53, each once, got {classes}."
        )
    if background in values:
        raise ValueError(f"classes must not hold the value of the background, {background}, got {classes}.")
    return [int(v) for v in values]


def split_label_map(label_map: NdarrayOrTensor, classes: Sequence[int], *, background: int = 0) -> np.ndarray:
    """Return the mask of each class of a label map as booleans ``(classes, *spatial)``.

    Args:
        label_map: ``(1, *spatial)``, whole numbers in any dtype.
        classes: the values, in the order of the masks. A class that the map lacks has an empty mask.
        background: the value of the background, which is not a class.

    Raises:
        ValueError: when the map has more than one channel or holds other than whole numbers, or ``classes`` repeats a
            value or holds the background.

    Example:
        >>> import numpy as np
        >>> split_label_map(np.array([[0, 4, 4, 1]]), [1, 4]).astype(int).tolist()
        [[0, 0, 0, 1], [0, 1, 1, 0]]
    """
    values = _map_values(label_map)
    return np.stack([values == c for c in check_classes(classes, background)])


def merge_masks(
    masks: NdarrayOrTensor,
    label_map: NdarrayOrTensor,
    classes: Sequence[int],
    *,
    overlap: str = "nearest",
    background: int = 0,
) -> NdarrayOrTensor:
    """Put changed masks of some classes back into the label map that they come from, so that each voxel has one value.

    A voxel of the background or of ``classes`` gets the class whose mask holds it. If several do, ``overlap`` decides.
    If none does, a voxel of the background stays. One that its class has left gets what lies on the other side, which
    is the value of the nearest voxel of ``label_map`` that is of the background or of another one of ``classes``; if
    that is a class, which has withdrawn as well, ``overlap`` decides between the two. Voxels of any other value stay as
    they are. So there is no value beside those of the map and ``classes``.

    Args:
        masks: ``(classes, *spatial)``, 0 and 1 only.
        label_map: ``(1, *spatial)``, the map as it was, whole numbers in any dtype.
        classes: the values of the masks.
        overlap: ``"nearest"`` gives a voxel to the mask in which it lies deepest, or to which it is nearest, so that
            two masks meet halfway; ``"priority"`` to the one that comes first in ``classes``, as does a tie.
        background: the value that classes may grow into, and which they leave behind; it need not occur.

    Returns:
        The new map, with the kind, shape and dtype of ``label_map``, which is not changed.

    Raises:
        ValueError: when ``masks`` do not fit the map and its classes, the dtype of the map cannot hold one of these, or
            ``overlap`` has no such value.

    Example:
        >>> import numpy as np
        >>> label_map = np.array([[1, 1, 1, 2, 2, 2, 0, 7]])
        >>> grown = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])
        >>> merge_masks(grown, label_map, [1, 2]).tolist()
        [[1, 1, 1, 1, 2, 2, 2, 7]]
        >>> merge_masks(grown, label_map, [1, 2], overlap="priority").tolist()
        [[1, 1, 1, 1, 1, 2, 2, 7]]
    """
    check_choice(overlap, OVERLAPS, "overlap")
    values = _map_values(label_map)
    classes = check_classes(classes, background)
    claims = binary_mask(masks, "masks")
    if claims.shape != (len(classes), *values.shape):
        raise ValueError(
            f"masks must have the shape of the map with one channel per class, {(len(classes), *values.shape)}, "
            f"got {claims.shape}."
        )
    dtype = as_array(label_map).dtype
    if (np.asarray(classes).astype(dtype) != classes).any():
        raise ValueError(f"classes must be values that the dtype of the map, {dtype}, can hold, got {classes}.")
    merged = values.copy()
    # Beyond a voxel around all classes there is background only, and nothing is nearer than what lies in this box.
    box = bounding_box((values != background) | claims.any(axis=0), 1)
    if box is not None:
        merged[box] = _merge(claims[(slice(None), *box)], values[box], classes, overlap, background)
    return convert_to_dst_type(merged[None], label_map)[0]


def _merge(claims: np.ndarray, values: np.ndarray, classes: list[int], overlap: str, background: int) -> np.ndarray:
    @cache
    def claim(k: int) -> np.ndarray:
        """Return how good a claim a class has to each voxel."""
        return _depth(claims[k]) if overlap == "nearest" else np.broadcast_to(float(-k), values.shape)

    movable = np.isin(values, [background, *classes])
    merged = values.copy()
    best = np.full(values.shape, -np.inf)
    contested = np.count_nonzero(claims, axis=0) > 1
    for k, (c, own) in enumerate(zip(classes, claims, strict=True)):
        wins = own & movable
        if (wins & contested).any():
            wins &= ~contested | (claim(k) > best)
            best[wins] = claim(k)[wins]
        merged[wins] = c
    for k, c in enumerate(classes):
        left, others = (values == c) & ~claims.any(axis=0), movable & (values != c)
        if left.any() and others.any():
            nearest = ndimage.distance_transform_edt(~others, return_distances=False, return_indices=True)
            other = values[tuple(nearest[:, left])]
            yields = other == background
            for rival in {classes.index(v) for v in np.unique(other) if v != background}:
                ours, theirs = claim(k)[left], claim(rival)[left]
                better = (theirs > ours) | ((theirs == ours) & (rival < k))
                yields |= better & (other == classes[rival])
            merged[left] = np.where(yields, other, c)
    return merged


def _map_values(label_map: NdarrayOrTensor) -> np.ndarray:
    array = as_array(label_map)
    if array.ndim < 2 or len(array) != 1:
        raise ValueError(f"A label map must have the shape (1, *spatial), got {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != bool:
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int64)
        if not np.array_equal(whole, array):
            found = array[whole != array]
            raise ValueError(f"A label map must hold whole numbers only, got {found[0]:g}.")
        return np.asarray(whole[0])
    return np.asarray(array[0])


def _depth(mask: np.ndarray) -> np.ndarray:
    """Return how deep each voxel lies in ``mask``, negative outside; infinite where there is no boundary."""
    if mask.all() or not mask.any():
        return np.full(mask.shape, np.inf if mask.all() else -np.inf)
    return np.asarray(-np.asarray(signed_distance(mask[None]))[0])
