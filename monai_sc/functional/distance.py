"""The signed distance to the boundary of a mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import binary_mask, check_choice, check_spacing
from monai_sc.functional.compiled import compiled
from monai_sc.functional.masks import bounding_box

METRICS = ("euclidean", "taxicab")
ORIGINS = ("voxel", "face")


def has_boundary(mask: np.ndarray) -> np.ndarray:
    """Say for each channel of a boolean ``mask`` ``(channels, *spatial)`` whether it is neither empty nor full."""
    flat = mask.reshape(len(mask), -1)
    return np.asarray(flat.any(axis=1) & ~flat.all(axis=1))


def signed_distance(
    label: NdarrayOrTensor,
    *,
    metric: str = "euclidean",
    spacing: Sequence[float] | None = None,
    origin: str = "voxel",
) -> NdarrayOrTensor:
    r"""Return the signed distance :math:`\phi` of each channel of ``label`` ``(channels, *spatial)`` to its boundary.

    :math:`\phi(x) = +d` in the background and :math:`-d` in the foreground, where :math:`d` is the distance to the
    nearest voxel of the other class, so that :math:`|\phi| \ge 1` voxel (Yao et al., ICLR 2023, Definition 2, which has
    the taxicab metric only).

    Args:
        label: 0 and 1 only, any dtype. A channel that is empty or full has no boundary, so all of it becomes ``nan``.
        metric: ``"euclidean"``, or ``"taxicab"``: the length of the shortest path over face neighbours.
        spacing: size of a voxel along each spatial axis, in mm; for ``"euclidean"`` only. Without it the unit is a
            voxel.
        origin: ``"voxel"`` measures from the centre of the nearest voxel of the other class, as the definition does.
            ``"face"`` measures from the face between the two classes: the mean of the distances to the nearest voxel
            behind and before it. It is the origin that is symmetric: a boundary that moves by ``k`` voxels changes the
            distance at the old boundary by ``k`` both ways, where the definition gives ``k`` or ``k + 1``.

    Returns:
        The distance as float32, with the kind, shape, device and metadata of ``label``.

    Raises:
        ValueError: when ``label`` is not binary, or an option has no such value.

    Example:
        >>> import numpy as np
        >>> line = np.array([[0, 0, 1, 1, 1, 0]])
        >>> signed_distance(line).tolist()
        [[2.0, 1.0, -1.0, -2.0, -1.0, 1.0]]
        >>> signed_distance(line, origin="face").tolist()
        [[1.5, 0.5, -0.5, -1.5, -0.5, 0.5]]
    """
    check_choice(metric, METRICS, "metric")
    check_choice(origin, ORIGINS, "origin")
    mask = binary_mask(label)
    spacing = check_spacing(spacing, mask.ndim - 1)
    if spacing is not None and metric != "euclidean":
        raise ValueError(f"spacing must be None with metric {metric!r}, which counts voxels, got {spacing}.")
    phi = np.full(mask.shape, np.nan, dtype=np.float32)
    for channel in np.flatnonzero(has_boundary(mask)):
        inside = _depth(mask[channel], metric, spacing, origin)
        outside = _depth(~mask[channel], metric, spacing, origin)
        phi[channel] = outside - inside
    return convert_to_dst_type(phi, label, dtype=np.float32)[0]


def _depth(mask: np.ndarray, metric: str, spacing: tuple[float, ...] | None, origin: str) -> np.ndarray:
    """Return for each voxel of ``mask`` the distance out of it, and 0 elsewhere."""
    if metric == "taxicab":
        depth = ndimage.distance_transform_cdt(mask, metric="taxicab").astype(np.float32)
        return np.asarray(depth - 0.5 * mask if origin == "face" else depth)
    box = bounding_box(mask, 1) or ()  # no voxel beyond is the nearest
    part = mask[box]
    own = _nearest(part, spacing)
    if origin == "face":
        # The voxels beside the boundary; for each voxel behind them, half of the way differs by half of a voxel in the
        # direction of the boundary, which an offset of half a voxel would miss where voxels are anisotropic.
        own = np.where(part, (own + _nearest(~_beside_boundary(part), spacing)) / 2, 0)
    depth = np.zeros(mask.shape)
    depth[box] = own
    return depth


def _beside_boundary(mask: np.ndarray) -> np.ndarray:
    """Return the voxels of a mask that have a face neighbour out of it."""
    found = np.zeros_like(mask)
    for axis in range(mask.ndim):
        lines, own = np.moveaxis(mask, axis, 0), np.moveaxis(found, axis, 0)
        faces = lines[1:] != lines[:-1]
        own[1:] |= faces
        own[:-1] |= faces
    return np.asarray(found & mask)


def _nearest(mask: np.ndarray, spacing: tuple[float, ...] | None) -> np.ndarray:
    """Return for each voxel the distance to the nearest voxel that is not in ``mask``, several times as fast as scipy.

    The squares of the distances are found axis by axis: the first by counting, the others as the lower envelope of one
    parabola per voxel of a line (Felzenszwalb and Huttenlocher, Theory of Computing 2012).
    """
    sizes = spacing or (1.0,) * mask.ndim
    squares = np.empty(mask.shape)
    _count_steps(np.ascontiguousarray(mask).reshape(len(mask), -1), sizes[0], squares.reshape(len(mask), -1))
    for axis, size in enumerate(sizes[1:], start=1):
        outer, inner = int(np.prod(mask.shape[:axis])), int(np.prod(mask.shape[axis + 1 :]))
        _lower_envelopes(squares.reshape(outer, mask.shape[axis], inner), size)
    return np.sqrt(squares, out=squares)


@compiled
def _count_steps(mask: np.ndarray, size: float, squares: np.ndarray) -> None:  # pragma: no cover
    """Write for each voxel of the columns of ``mask`` the squared distance to the nearest one that is not in it."""
    length, columns = mask.shape
    for k in range(length):
        for j in range(columns):
            if not mask[k, j]:
                squares[k, j] = 0.0
            else:
                squares[k, j] = squares[k - 1, j] + 1 if k > 0 else np.inf
    for k in range(length - 2, -1, -1):
        for j in range(columns):
            squares[k, j] = min(squares[k, j], squares[k + 1, j] + 1)
    for k in range(length):
        for j in range(columns):
            squares[k, j] = (squares[k, j] * size) ** 2


@compiled
def _lower_envelopes(squares: np.ndarray, size: float) -> None:  # pragma: no cover
    """Replace each line ``squares[i, :, j]`` by the least sum of a value and the squared distance to its voxel."""
    length = squares.shape[1]
    line = np.empty(length)
    apex = np.empty(length, dtype=np.int64)  # of the parabolas of the envelope
    start = np.empty(length + 1)  # where each becomes the lowest
    for i in range(squares.shape[0]):
        for j in range(squares.shape[2]):
            count = 0
            for k in range(length):
                line[k] = squares[i, k, j]
            for k in range(length):
                if line[k] == np.inf:
                    continue
                at = -np.inf
                while count > 0:
                    last = apex[count - 1]
                    at = (line[k] - line[last]) / (2 * size * size * (k - last)) + 0.5 * (k + last)
                    if at > start[count - 1]:
                        break
                    count -= 1
                start[count] = at
                apex[count] = k
                count += 1
            if count == 0:
                continue
            start[count] = np.inf
            which = 0
            for k in range(length):
                while start[which + 1] < k:
                    which += 1
                step = (k - apex[which]) * size
                squares[i, k, j] = line[apex[which]] + step * step
