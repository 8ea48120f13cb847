"""What a correction did to the label of one case: sizes, distances, and what is worth a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from monai_sc.functional.bias import boundary_displacement
from monai_sc.functional.distance import has_boundary
from monai_sc.functional.masks import bounding_box, dice

WARNINGS = {
    "vanished": "a labelled structure is gone",
    "appeared": "a structure is new",
    "component lost": "one of several labelled objects is gone",
    "component appeared": "an object lies apart from all labelled ones; a network that has learnt little leaves specks",
    "large change": "more than half of the structure changed",
    "thin structure": "thinner than four voxels at its thickest, where a shift is coarse",
    "touches border": "it touches the border of the image, so its end is unknown",
}
"""Reasons to check a label, most serious first."""

LARGE_CHANGE = 0.5  # of the union of the labels before and after
SPECK = 0.02  # part of what is labelled, under which an object is none
THIN = 2.0  # voxels from the innermost voxel to the boundary


@dataclass(frozen=True)
class PageCase:
    """One case of a report.

    Attributes:
        id: of the case.
        image: ``(channels, *spatial)``, ``None`` where there is none.
        given: boolean ``(classes, *spatial)``.
        corrected: the same, ``None`` where nothing was corrected.
        clean: the same, ``None`` where it is not known.
        spacing: size of a voxel along each axis, in mm, or of 1 each.
        in_mm: whether ``spacing`` is known.
        source: what the corrected label is: ``"corrected"``, ``"given"`` or ``"clean"``.
        affine: from voxels to mm ``(4, 4)``, where a file says it: for the names of the planes.
    """

    id: str
    image: np.ndarray | None
    given: np.ndarray
    corrected: np.ndarray | None
    clean: np.ndarray | None
    spacing: tuple[float, ...]
    in_mm: bool
    source: str = "corrected"
    affine: np.ndarray | None = None


def size_unit(num_axes: int, in_mm: bool) -> tuple[str, float]:
    """Return the unit of sizes, and what a size in voxels times the voxel's size in mm is to be divided by."""
    if not in_mm:
        return ("voxels", 1.0) if num_axes == 3 else ("pixels", 1.0)
    return ("ml", 1000.0) if num_axes == 3 else ("cm²", 100.0)


def measure_case(case: PageCase, class_names: Sequence[str]) -> dict[str, Any]:
    """Return the measures of a case by class, as JSON types.

    Returns:
        ``id``, ``source``, ``changed`` (voxels that changed, in all classes, by those of the union of the labels before
        and after; 0 where both are empty), ``warnings`` (each with ``class``, ``what``, of :py:data:`WARNINGS`, and
        ``how``, how many or how large, may be empty; none where the label is a clean one), and ``classes``, by name:
        ``size_given``, ``size_corrected`` and ``size_clean`` (see :py:func:`size_unit`), ``voxels_changed``,
        ``changed``, ``displacement`` (signed, of the given label from the corrected one, or from the clean one if
        nothing was corrected; negative: it was too large), ``surface_distance`` (mean, of both ways) and
        ``hausdorff95`` between the same two, ``dice_given`` and ``dice_corrected`` to the clean label. Distances are in
        mm where the spacing is known, else in voxels; ``None`` where something is not defined or not known.
    """
    unit, divisor = size_unit(case.given.ndim - 1, case.in_mm)
    voxel = float(np.prod(case.spacing)) / divisor
    given, clean = case.given, case.clean
    after = case.corrected if case.corrected is not None else clean if clean is not None else given
    displacement = boundary_displacement(given, after, spacing=case.spacing)
    changed = (given ^ after).reshape(len(given), -1).sum(axis=1)
    union = (given | after).reshape(len(given), -1).sum(axis=1)
    sizes = [None if m is None else m.reshape(len(m), -1).sum(axis=1) for m in (given, case.corrected, clean)]
    scores = [None if m is None or clean is None else dice(m, clean) for m in (given, case.corrected)]
    classes, warnings = {}, []
    for k, name in enumerate(class_names):
        mean, hausdorff = _surface_distances(given[k], after[k], case.spacing)
        own: dict[str, Any] = {
            f"size_{key}": None if size is None else float(size[k] * voxel)
            for key, size in zip(("given", "corrected", "clean"), sizes, strict=True)
        }
        own["voxels_changed"] = int(changed[k])
        own["changed"] = float(changed[k] / union[k]) if union[k] else 0.0
        own["displacement"] = float(displacement[k]) if np.isfinite(displacement[k]) else None
        own["surface_distance"], own["hausdorff95"] = mean, hausdorff
        for key, score in zip(("given", "corrected"), scores, strict=True):
            own[f"dice_{key}"] = None if score is None else float(score[k])
        classes[name] = own
        if case.corrected is not None and case.source != "clean":  # an expert's label needs no check
            found = _warnings(given[k], case.corrected[k], own["changed"], lambda size: f"{size * voxel:.2g} {unit}")
            warnings += [{"class": name, "what": what, "how": found[what]} for what in WARNINGS if what in found]
    total = int(union.sum())
    return {
        "id": case.id,
        "source": case.source,
        "changed": float(changed.sum() / total) if total else 0.0,
        "warnings": warnings,
        "classes": classes,
    }


def _surface_distances(
    first: np.ndarray, second: np.ndarray, spacing: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return mean and 95th percentile of the distances between two surfaces, ``None`` where a mask has none."""
    if not (has_boundary(first[None]).all() and has_boundary(second[None]).all()):
        return None, None
    # Along an axis of one voxel, as of a picture that is saved as a volume, every voxel would be at the surface.
    spacing = [side for side, size in zip(spacing, first.shape, strict=True) if size > 1]
    first, second = first.squeeze(), second.squeeze()
    # As MONAI's metrics define them, which would build the edges twice, with a warning (MONAI 1.6).
    box = bounding_box(first | second, 1) or ()
    edges = [mask[box] & ~ndimage.binary_erosion(mask[box]) for mask in (first, second)]
    ways = [ndimage.distance_transform_edt(~other, sampling=spacing)[own] for own, other in (edges, edges[::-1])]
    return float(np.concatenate(ways).mean()), float(max(np.percentile(way, 95) for way in ways))


def _warnings(given: np.ndarray, corrected: np.ndarray, changed: float, sized: Callable[[int], str]) -> dict[str, str]:
    """Return each warning with how many or how large; ``sized`` names a number of voxels."""
    found = {}
    if given.any() and not corrected.any():
        return {"vanished": ""}
    if corrected.any() and not given.any():
        found["appeared"] = ""
    if not corrected.any():
        return found
    if given.any() and changed > LARGE_CHANGE:
        found["large change"] = f"{100 * changed:.0f} %"
    components, _ = ndimage.label(given)
    sizes = np.bincount(components[given])
    left = np.bincount(components[corrected & given], minlength=len(sizes))
    if (lost := sizes[(left == 0) & (sizes > SPECK * sizes.sum())]).size:
        found["component lost"] = f"{len(lost)}, together {sized(lost.sum())}"
    box = bounding_box(corrected, 1) or ()
    objects, number = ndimage.label(corrected)
    sizes = np.bincount(objects[corrected], minlength=number + 1)
    sizes[np.unique(objects[corrected & given])] = 0
    if given.any() and sizes.any():
        found["component appeared"] = f"{np.count_nonzero(sizes)}, together {sized(sizes.sum())}"
    # A structure that ends with the image is as thick as what is seen of it.
    depth = ndimage.distance_transform_edt(np.pad(corrected[box], 1, mode="edge"))
    if depth.max() < THIN:
        found["thin structure"] = ""
    if any(corrected.take(end, axis).any() for axis, size in enumerate(corrected.shape) if size > 1 for end in (0, -1)):
        found["touches border"] = ""
    return found
