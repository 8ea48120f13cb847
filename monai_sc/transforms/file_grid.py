"""The grid of the file that an image came from: measuring in its voxels, and bringing predictions back to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from monai.data import MetaTensor
from monai.transforms import Compose, Invertd
from monai.utils import MetaKeys, TraceKeys

from monai_sc.files.grids import mm_per_unit_of
from monai_sc.transforms.distance import spacing_of, voxel_size

TINY = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class FileGrid:
    """How to measure on the grid of an image in voxels of its file: of their smallest side, where they are anisotropic.

    Attributes:
        spacing: to measure with; ``None`` for the taxicab metric, which counts voxels.
        unit: what a distance of 1, measured so, is in voxels of the file.
        voxel_mm: size of such a voxel in mm, ``nan`` if the file does not say it.
    """

    spacing: tuple[float, ...] | None
    unit: float
    voxel_mm: float


def file_grid(image: torch.Tensor, metric: str) -> FileGrid:
    """Return how to measure on the grid of ``image`` ``(channels, *spatial)``, whatever its transforms have done.

    A plain tensor, which knows nothing of its file, is taken for the file's own grid.
    """
    size = spacing_of(image)
    if size is None or not isinstance(image, MetaTensor):
        return FileGrid(None, 1.0, math.nan)
    affine = image.meta.get(MetaKeys.ORIGINAL_AFFINE)
    # A file without geometry, such as a PNG, had the identity for its affine when it was loaded.
    voxel = 1.0 if image.applied_operations else min(size)
    voxel_mm = math.nan
    if affine is not None:
        voxel = voxel_mm = min(voxel_size(affine, len(size))) * mm_per_unit_of(image.meta)
    if metric == "taxicab":
        return FileGrid(None, min(size) / voxel, voxel_mm)
    return FileGrid(tuple(s / voxel for s in size), 1.0, voxel_mm)


def unpadded_box(image: torch.Tensor) -> tuple[slice, ...]:
    """Return the part of ``image`` ``(channels, *spatial)`` that its last transforms have not added by padding.

    What was padded is not part of the scan: a structure does not end where it begins.
    """
    box = [slice(0, size) for size in image.shape[1:]]
    for operation in reversed(getattr(image, "applied_operations", [])):
        extra = operation[TraceKeys.EXTRA_INFO]
        widths = extra.get("pad_info", {}).get(TraceKeys.EXTRA_INFO, extra).get("padded")
        if widths is None:
            break
        box = [slice(s.start + before, s.stop - after) for s, (before, after) in zip(box, widths[1:], strict=True)]
        if "pad_info" in extra:  # it has cropped before
            break
    return tuple(box)


def invert_to_file(scores: torch.Tensor, image: torch.Tensor, transform: Compose) -> torch.Tensor:
    """Bring ``scores`` ``(classes, *spatial)`` from the grid of ``image`` back to that of the file it came from.

    Scores of at least 0 are inside of something: those of what the transform had cropped are negative.

    Raises:
        TypeError: when ``image`` has lost its metadata.
        ValueError: when an operation on the image is not one of ``transform``.
    """
    if not isinstance(image, MetaTensor):
        raise TypeError(
            "relabel_loader must give images as MetaTensor, got a plain tensor: without the metadata, labels cannot "
            "be mapped back to the grid of their files (track_meta=True keeps them)."
        )
    if not image.applied_operations:
        return scores
    invert = Invertd("pred", transform, orig_keys="image", nearest_interp=False)
    # The inverse of a crop pads with 0.
    scores = torch.where(scores == 0, TINY, scores)
    result: MetaTensor = invert({"image": image, "pred": MetaTensor(scores)})["pred"]
    if result.applied_operations:
        names = ", ".join(str(operation["class"]) for operation in result.applied_operations)
        raise ValueError(
            "Every spatial transform of relabel_loader must act on 'image' in its data set's own transform, "
            f"but these could not be inverted: {names}."
        )
    found = result.as_tensor()
    return torch.where(found == 0, -TINY, found)
