"""The transform to a signed distance map, and the voxel size of an array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from monai.data import MetaTensor
from monai.transforms import MapTransform, Transform
from monai.utils import TransformBackends

from monai_sc.files.grids import mm_per_unit_of
from monai_sc.functional import signed_distance
from monai_sc.functional.checks import check_choice
from monai_sc.functional.distance import METRICS, ORIGINS
from monai_sc.transforms.tensors import as_tensor


def spacing_of(x: NdarrayOrTensor) -> tuple[float, ...] | None:
    """Return the size of a voxel along each spatial axis of ``x`` ``(channels, *spatial)``; ``None`` without an affine.

    The unit is mm. A file without geometry, such as a PNG, is given the identity by MONAI, scaled by what was resampled
    since: then the unit is a voxel of the file.
    """
    if not isinstance(x, MetaTensor):
        return None
    length = mm_per_unit_of(x.meta)
    return tuple(side * length for side in voxel_size(x.affine, x.ndim - 1))


def voxel_size(affine: NdarrayOrTensor, ndim: int) -> tuple[float, ...]:
    """Return the lengths of the first ``ndim`` columns of an affine matrix.

    MONAI's ``affine_to_spacing`` leaves out the rows beyond ``ndim``, which is wrong for a slice that is not axial.
    """
    matrix = np.asarray(affine, dtype=np.float64)
    return tuple(float(s) for s in np.linalg.norm(matrix[:-1, :ndim], axis=0))


def spacing_in_mm(label: NdarrayOrTensor) -> tuple[float, ...]:
    """Return :py:func:`spacing_of` a label that a transform is to measure in mm.

    Raises:
        ValueError: when the label has no affine.
    """
    spacing = spacing_of(label)
    if spacing is None:
        raise ValueError("label must be a MetaTensor with an affine for unit='mm', got none; use unit='voxel'.")
    return spacing


class SignedDistance(Transform):
    """Turn a label ``(channels, *spatial)`` into its signed distance: negative inside, positive outside.

    The definition, its source and its edge cases are those of :py:func:`monai_sc.functional.signed_distance`: an empty
    or full channel has no boundary, and all of it becomes ``nan``.

    Args:
        metric: ``"euclidean"`` or ``"taxicab"``.
        unit: ``"voxel"``, or ``"mm"`` by the affine of a ``MetaTensor`` (``"euclidean"`` only).
        origin: ``"voxel"`` or ``"face"``.

    Raises:
        ValueError: when an option has no such value, or ``unit="mm"`` and the label has no affine.

    Example:
        >>> import numpy as np
        >>> SignedDistance()(np.array([[0, 0, 1, 1, 1, 0]])).tolist()
        [[2.0, 1.0, -1.0, -2.0, -1.0, 1.0]]
    """

    backend = [TransformBackends.NUMPY]

    def __init__(self, *, metric: str = "euclidean", unit: str = "voxel", origin: str = "voxel") -> None:
        check_choice(metric, METRICS, "metric")
        check_choice(unit, ("voxel", "mm"), "unit")
        check_choice(origin, ORIGINS, "origin")
        if unit == "mm" and metric != "euclidean":
            raise ValueError(f"unit must be 'voxel' with metric {metric!r}, which counts voxels, got 'mm'.")
        self.metric = metric
        self.unit = unit
        self.origin = origin

    def __call__(self, label: NdarrayOrTensor) -> NdarrayOrTensor:
        spacing = spacing_in_mm(label) if self.unit == "mm" else None
        return signed_distance(as_tensor(label), metric=self.metric, spacing=spacing, origin=self.origin)


class SignedDistanced(MapTransform):
    """Dictionary version of :py:class:`SignedDistance`, with its arguments."""

    backend = SignedDistance.backend

    def __init__(
        self,
        keys: KeysCollection,
        *,
        metric: str = "euclidean",
        unit: str = "voxel",
        origin: str = "voxel",
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.distance = SignedDistance(metric=metric, unit=unit, origin=origin)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self.distance(d[key])
        return d


SignedDistanceD = SignedDistanceDict = SignedDistanced
