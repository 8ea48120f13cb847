"""Figures: boundaries over images, and the course of a correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.ndimage import uniform_filter

from monai_sc.reports.charts import draw_bias, draw_dice, shown_name

__all__ = ["BOUNDARY_COLOURS", "draw_boundaries", "plot_correction"]

BOUNDARY_COLOURS = {"clean": "#56B4E9", "given": "#D55E00", "corrected": "#F0E442"}
"""Sky blue, vermillion and yellow of the Okabe-Ito palette, which every kind of colour vision tells apart on grey."""


def draw_boundaries(axes: Axes, image: np.ndarray, masks: Mapping[str, np.ndarray], *, width: float = 1.2) -> None:
    """Draw an image with the boundaries of masks over it.

    Args:
        axes: to draw into.
        image: ``(width, height)``, first axis to the right, as MONAI loads pictures.
        masks: by name (``"clean"``, ``"given"``, ``"corrected"``), each ``(classes, width, height)``, booleans; drawn
            in this order, the last on top.
        width: of the lines, in points.
    """
    axes.imshow(image.T, cmap="gray", interpolation="nearest")
    for name, mask in masks.items():
        for channel in mask:
            if channel.any() and not channel.all() and min(channel.shape) > 1:
                axes.contour(
                    channel.T.astype(np.float32), levels=[0.5], colors=BOUNDARY_COLOURS[name], linewidths=width
                )
    axes.set_axis_off()


def plot_correction(
    cases: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]], class_names: Sequence[str]
) -> Figure:
    """Return a figure with cases in rows, and bias and Dice of every round beside them.

    Args:
        cases: each with ``id``, ``image`` ``(*spatial)`` in 2D or 3D, and boolean masks ``(classes, *spatial)``
            ``given`` and, unless ``None``, ``corrected`` and ``clean``. Of a volume the slice with the most change is
            shown.
        history: the records of :py:class:`monai_sc.handlers.SpatialCorrectionHandler`.
        class_names: one per class.
    """
    rows = max(len(cases), 2)
    figure = Figure(figsize=(12, 3.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 3, width_ratios=(1, 1, 1.15))
    shown: set[str] = set()
    for row, case in enumerate(cases):
        image, masks = _as_slice(case)
        shown |= set(masks)
        whole = figure.add_subplot(grid[row, 0])
        draw_boundaries(whole, image, masks, width=1.0)
        whole.set_title(shown_name(str(case["id"])), fontsize=10)
        window = _window_of(masks["given"] ^ masks.get("corrected", np.zeros_like(masks["given"])))
        detail = figure.add_subplot(grid[row, 1])
        draw_boundaries(
            detail, image[window], {name: mask[(slice(None), *window)] for name, mask in masks.items()}, width=2.0
        )
        detail.set_title("where it changed most" if "corrected" in masks else "detail", fontsize=10)
    names = {"clean": "clean label", "given": "label as given", "corrected": "corrected label"}
    lines = [Line2D([], [], color=BOUNDARY_COLOURS[n], lw=3, label=text) for n, text in names.items() if n in shown]
    figure.legend(handles=lines, loc="outside upper left", ncols=3, facecolor="#404040", labelcolor="white")
    charts = grid[:, 2].subgridspec(2, 1)
    draw_bias(figure.add_subplot(charts[0]), history, class_names)
    draw_dice(figure.add_subplot(charts[1]), history, class_names)
    return figure


def _as_slice(case: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    image = case["image"]
    masks = {name: case[name] for name in BOUNDARY_COLOURS if case.get(name) is not None}
    if image.ndim == 3:
        change = (masks["given"] ^ masks.get("corrected", masks["given"])).sum(axis=(0, 1, 2))
        best = int(np.argmax(change if change.any() else masks["given"].sum(axis=(0, 1, 2))))
        image, masks = image[..., best], {name: mask[..., best] for name, mask in masks.items()}
    return image, masks


def _window_of(mask: np.ndarray) -> tuple[slice, slice]:
    """Return a window of a third of the image where ``mask`` is densest."""
    change = mask.any(axis=0).astype(np.float32)
    size = [min(max(n // 3, 8), n) for n in change.shape]
    centre = np.unravel_index(int(np.argmax(uniform_filter(change, size, mode="constant"))), change.shape)
    starts = [int(np.clip(c - s // 2, 0, n - s)) for c, s, n in zip(centre, size, change.shape, strict=True)]
    return slice(starts[0], starts[0] + size[0]), slice(starts[1], starts[1] + size[1])
