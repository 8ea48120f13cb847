"""Pictures of a case as SVG: the image, and over it the outlines of its labels, which the page shows and hides."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from contourpy import contour_generator
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform
from PIL import Image

from monai_sc.reports.page.measures import PageCase

SCALE = 4  # units of a path per pixel of the picture
PLANES = ("sagittal", "coronal", "axial")


@dataclass(frozen=True)
class Detail:
    """How large the pictures of a case are.

    Attributes:
        side: the longer side of a picture, in pixels.
        slices: of a volume, at most.
    """

    side: int
    slices: int


TIERS = (Detail(384, 32), Detail(320, 24), Detail(256, 16), Detail(192, 12), Detail(160, 8), Detail(112, 5))
"""From the finest; a report uses the first that fits all cases."""


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        svg: an ``<svg>`` element.
        title: what it shows: ``"axial, slice 12 of 60"``.
    """

    svg: str
    title: str


def pictures_of(case: PageCase, detail: Detail) -> dict[str, Any]:
    """Return the pictures of a case.

    Returns:
        ``slices`` of a 3D case, in the plane of the largest spacing, from the first to the last slice with a structure;
        ``main``, the place among them of the one with the largest change; and ``planes``: one picture of a 2D case, and
        of a 3D one those across the slices, where most changed.
    """
    case = _as_displayed(case)
    masks = {name: getattr(case, name) for name in ("clean", "given", "corrected") if getattr(case, name) is not None}
    shape = case.given.shape[1:]
    image = np.full((1, *shape), 90, np.uint8) if case.image is None else _eight_bits(case.image)
    if len(shape) == 2:
        return {"planes": [Picture(_svg(image, masks, case.spacing, detail.side), "")], "slices": [], "main": 0}
    others = [mask for name, mask in masks.items() if name != "given"]
    changed = np.any(case.given ^ others[-1], axis=0) if others else np.zeros(shape, bool)
    anything = np.any([mask.any(axis=0) for mask in masks.values()], axis=0)
    focus = changed if changed.any() else anything
    centre = [int(np.argmax(focus.sum(axis=tuple(a for a in range(3) if a != axis)))) for axis in range(3)]
    names = PLANES if case.affine is not None else ("first axis", "second axis", "third axis")

    def plane(axis: int, index: int, side: int) -> Picture:
        at: tuple[Any, ...] = (slice(None), *(index if a == axis else slice(None) for a in range(3)))
        spacing = [s for a, s in enumerate(case.spacing) if a != axis]
        svg = _svg(image[at], {name: mask[at] for name, mask in masks.items()}, spacing, side)
        return Picture(svg, f"{names[axis]}, slice {index + 1} of {shape[axis]}")

    axis = int(np.argmax(np.array(case.spacing)[::-1]))
    axis = 2 - axis  # the last of those with the largest spacing
    hit = np.flatnonzero(anything.any(axis=tuple(a for a in range(3) if a != axis)))
    first, last = (int(hit[0]), int(hit[-1])) if len(hit) else (0, shape[axis] - 1)
    chosen = np.unique([*np.linspace(first, last, min(detail.slices, last - first + 1)).round().astype(int)])
    if centre[axis] not in chosen:  # it takes the place of its neighbour
        chosen[np.argmin(np.abs(chosen - centre[axis]))] = centre[axis]
    small = max(detail.side // 2, 96)
    return {
        "planes": [plane(a, centre[a], small) for a in (2, 1, 0) if a != axis],
        "slices": [plane(axis, int(index), detail.side * 2 // 3) for index in chosen],
        "main": int(np.flatnonzero(chosen == centre[axis])[0]),
    }


def _as_displayed(case: PageCase) -> PageCase:
    """Return a volume with its axes as radiologists look at them: right to left, front to back, head to foot."""
    if case.affine is None or case.given.ndim != 4:
        return case
    own, wanted = io_orientation(case.affine), axcodes2ornt("LPI")  # type: ignore[no-untyped-call]
    turn = ornt_transform(own, wanted)  # type: ignore[no-untyped-call]

    def turned(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        return np.stack([apply_orientation(channel, turn) for channel in array])  # type: ignore[no-untyped-call]

    return replace(
        case,
        image=turned(case.image),
        given=turned(case.given),
        corrected=turned(case.corrected),
        clean=turned(case.clean),
        spacing=tuple(case.spacing[int(axis)] for axis in np.argsort(turn[:, 0])),
    )


def _eight_bits(image: np.ndarray) -> np.ndarray:
    """Return an image ``(1 or 3, *spatial)`` of grey values or colours from 0 to 255."""
    if len(image) == 3 and image.ndim == 3 and image.min() >= 0 and 1 < image.max() <= 255:
        return np.asarray(image).astype(np.uint8)
    values = np.nan_to_num(np.asarray(image[:1], dtype=np.float32), posinf=0, neginf=0)
    low, high = np.percentile(values, (0.5, 99.5))
    if high <= low:
        low, high = float(values.min()), max(float(values.max()), float(values.min()) + 1)
    return np.asarray(((values - low) / (high - low) * 255).clip(0, 255).astype(np.uint8))


def _svg(image: np.ndarray, masks: Mapping[str, np.ndarray], spacing: Sequence[float], side: int) -> str:
    """Return a picture of an image ``(1 or 3, width, height)`` and masks ``(classes, width, height)``."""
    extent = np.array(image.shape[1:]) * np.asarray(spacing)
    width, height = (max(round(float(n)), 1) for n in extent * min(side, max(image.shape[1:])) / extent.max())
    grey = _resized(image.astype(np.float32), width, height).round().clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(grey[0].T) if len(grey) == 1 else Image.fromarray(grey.transpose(2, 1, 0))
    data = io.BytesIO()
    picture.save(data, "WEBP", quality=60, method=4)
    code = base64.b64encode(data.getvalue()).decode("ascii")
    paths = []
    for name, mask in masks.items():
        path = "".join(_path(_resized(channel[None].astype(np.float32), width, height)[0]) for channel in mask)
        if path:
            paths.append(f'<path class="{name}" d="{path}"/>')
    return (
        f'<svg viewBox="0 0 {width * SCALE} {height * SCALE}" aria-hidden="true">'
        f'<image width="{width * SCALE}" height="{height * SCALE}" href="data:image/webp;base64,{code}"/>'
        f"{''.join(paths)}</svg>"
    )


def _resized(values: np.ndarray, width: int, height: int) -> np.ndarray:
    if values.shape[1:] == (width, height):
        return values
    tensor = torch.from_numpy(np.ascontiguousarray(values))[None]
    resized = torch.nn.functional.interpolate(tensor, (width, height), mode="bilinear", antialias=True)
    return np.asarray(resized[0].numpy())


def _path(mask: np.ndarray) -> str:
    """Return the outlines of a mask ``(width, height)`` as the data of an SVG path, in quarters of a pixel."""
    lines = contour_generator(z=np.pad(mask.T, 1)).lines(0.5)
    parts = []
    for line in lines:
        points = np.rint((np.asarray(line) - 0.5) * SCALE).astype(int)  # a voxel reaches half a voxel around its centre
        steps = np.diff(points, axis=0)
        steps = steps[np.any(steps != 0, axis=1)]
        if not len(steps):
            continue
        # Steps in one direction become one.
        turns = np.flatnonzero(steps[1:, 0] * steps[:-1, 1] != steps[1:, 1] * steps[:-1, 0]) + 1
        steps = np.add.reduceat(steps, [0, *turns], axis=0)
        moves = "".join(f"{x}{y:+d}" if k == 0 else f"{x:+d}{y:+d}" for k, (x, y) in enumerate(steps.tolist()))
        parts.append(f"M{points[0, 0]} {points[0, 1]}l{moves}z")
    return "".join(parts)
