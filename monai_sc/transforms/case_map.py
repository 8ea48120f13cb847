"""The transform that brings what a training remembers of a case to where augmentation has moved the case."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from monai.data import MetaTensor
from monai.data.utils import to_affine_nd
from monai.transforms import RandomizableTrait, SpatialResample, Transform
from monai.utils import TransformBackends, convert_to_dst_type

if TYPE_CHECKING:  # the data sets and stores are built on the transforms
    from monai_sc.data import CaseMemory


class LoadCaseMapd(Transform, RandomizableTrait):
    r"""Add the map of the case from a memory, moved as augmentation has moved the label: the last transform of all.

    With the affines :math:`A_0` of the stored map and :math:`A` of the label, the voxel ``x`` of the label gets the
    map at :math:`A_0^{-1} A x`: linearly interpolated, or the nearest voxel of a mask. It works for whatever MONAI
    keeps track of in the affine of a ``MetaTensor``: flips, rotations, zooms, crops, padding, affine transforms, also
    several samples of one image. **It cannot follow elastic deformations** (``Rand2DElastic``, ``Rand3DElastic``,
    ``RandGridDistortion``), nor transforms that move voxels without telling, such as a lambda; the handlers refuse
    the ones of MONAI. Labels that are resized or zoomed should be so with ``mode="nearest-exact"``: PyTorch's
    ``"nearest"`` moves them by up to half a voxel against the image, and against the map.

    It draws nothing, but has the trait of random transforms, before the first of which MONAI's data sets cache: a map
    that comes from a cache would be that of the first epoch for ever.

    Args:
        key: of the map, a ``MetaTensor`` ``(channels, *spatial)`` of the type float32 with the grid of the label.
        memory: with the maps; a case is looked up by its ``"id"``.
        channels: of each map.
        like: key of the label, or whatever has its grid.
        default: the value of all voxels of a case without a map, and of those that lie outside of its map, where
            augmentation has padded.

    Raises:
        ValueError: when ``channels`` is under 1; at the call, when the label has not 2 or 3 spatial axes, or a map has
            another number of channels or axes.
        KeyError: at the call, when the id or the label is missing.
        TypeError: at the call, when the label has no affine.

    Example:
        >>> from monai_sc.data import CaseMemory
        >>> memory = CaseMemory()
        >>> memory.replace([("a", MetaTensor(torch.tensor([[[1.0, 2.0, 3.0]]]), affine=torch.eye(4)))])
        >>> flipped = MetaTensor(torch.zeros(1, 1, 3), affine=[[1, 0, 0, 0], [0, -1, 0, 2], [0, 0, 1, 0], [0, 0, 0, 1]])
        >>> LoadCaseMapd("map", memory, channels=1)({"id": "a", "label": flipped})["map"].tolist()
        [[[3.0, 2.0, 1.0]]]
    """

    backend = [TransformBackends.TORCH]

    def __init__(
        self, key: Hashable, memory: CaseMemory, *, channels: int, like: Hashable = "label", default: float = 0.0
    ) -> None:
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}.")
        self.key = key
        self.memory = memory
        self.channels = channels
        self.like = like
        self.default = default

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in ("id", self.like):
            if key not in d:
                raise KeyError(f"A case must hold 'id' and {self.like!r} for its map, but {key!r} is missing.")
        like = d[self.like]
        if not isinstance(like, MetaTensor):
            raise TypeError(
                f"{self.like!r} must be a MetaTensor, whose affine tells how it was moved, got {type(like).__name__}; "
                "load it with LoadImaged or LoadLabeld, and keep track_meta=True."
            )
        if like.ndim not in (3, 4):
            raise ValueError(f"{self.like!r} must have 2 or 3 spatial axes, got the shape {tuple(like.shape)}.")
        found = self.memory.read(d["id"])
        if found is None or not like.numel():
            moved = torch.full((self.channels, *like.shape[1:]), self.default, device=like.device)
        elif found.ndim != like.ndim or len(found) != self.channels:
            raise ValueError(
                f"The map of case {d['id']!r} must have {self.channels} channels and {like.ndim - 1} spatial axes, got "
                f"the shape {tuple(found.shape)}."
            )
        else:
            moved = self._moved(found, like)
        d[self.key] = convert_to_dst_type(moved, like, dtype=torch.float32)[0]
        return d

    def _moved(self, found: MetaTensor, like: MetaTensor) -> torch.Tensor:
        """Return the map on the grid of ``like``."""
        rank = found.ndim - 1
        # From voxels to voxels: in world coordinates the plane of an image in 2D may be any, and MONAI takes the first
        # two axes.
        ours, theirs = (to_affine_nd(3, one.affine.cpu().double()) for one in (found, like))
        voxels = to_affine_nd(rank, torch.linalg.solve(ours, theirs))
        resample = SpatialResample(mode="nearest" if found.dtype == torch.bool else "bilinear", padding_mode="zeros")
        # Padding is zero, so that of the difference from the default is the default.
        source = MetaTensor(found.as_tensor().float() - self.default, affine=torch.eye(rank + 1))
        moved: Any = resample(source, dst_affine=voxels, spatial_size=tuple(like.shape[1:]))
        result: torch.Tensor = moved.as_tensor() + self.default
        return result


LoadCaseMapD = LoadCaseMapDict = LoadCaseMapd
