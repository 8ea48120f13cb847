"""A comparison as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from monai_sc.comparison.summary import MEAN
from monai_sc.reports.charts import shown_name

COLUMNS = 3
OURS, OTHER, REFERENCE = "#D55E00", "#0072B2", "#666666"  # vermillion and blue of Okabe and Ito


def plot_comparison(summary: Mapping[str, Any], title: str) -> Figure:
    """Return a figure with one panel per noise: the total Dice of each method, its interval, its seeds.

    Args:
        summary: see :py:func:`monai_sc.comparison.summarise`.
        title: of the figure.
    """
    noises = summary["noises"]
    columns = 2 if len(noises) == 4 else min(COLUMNS, len(noises))
    rows = -(-len(noises) // columns)
    longest = max(len(methods) for methods in noises.values())
    figure = Figure(figsize=(1 + 4.2 * columns, 1.6 + rows * (0.9 + 0.36 * longest)), layout="constrained")
    figure.suptitle(shown_name(title), fontsize=12)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, (noise, methods) in zip(panels, noises.items(), strict=False):
        _draw_noise(axes, noise, methods, summary["against"])
    for axes in panels[len(noises) :]:
        axes.set_visible(False)
    handles = [
        Line2D([], [], color="0.3", marker="o", lw=1.6, label="mean, 95 % interval over test cases"),
        Line2D([], [], color="0.3", marker=".", ms=4, lw=0, label="each seed"),
        Line2D([], [], color="0.3", marker="D", mfc="none", lw=0, label="paper"),
    ]
    drawn = [row for methods in noises.values() for row in methods.values()]
    shown = [True, any(len(row["seeds"]) > 1 for row in drawn), any(row["paper"] is not None for row in drawn)]
    figure.legend(
        handles=[one for one, show in zip(handles, shown, strict=True) if show],
        loc="outside lower center",
        ncols=min(3, columns + 1),
        fontsize=9,
        frameon=False,
    )
    return figure


def _draw_noise(axes: Axes, noise: str, methods: Mapping[str, Mapping[str, Any]], against: str) -> None:
    labels = []
    for y, (method, row) in enumerate(methods.items()):
        colour = OURS if method == against else REFERENCE if method in ("noisy", "clean") else OTHER
        low, high = row["interval"]
        if np.isfinite(low):
            axes.plot([low, high], [y, y], color=colour, lw=1.6, zorder=2)
        if len(row["seeds"]) > 1:
            axes.plot(row["dice_by_seed"], [y + 0.28] * len(row["seeds"]), ".", color=colour, ms=4)
        axes.plot(row["dice"][MEAN], y, "o", color=colour, ms=6, zorder=3)
        if row["paper"] is not None:
            axes.plot(row["paper"], y, "D", mfc="none", color=colour, ms=7, zorder=3)
        differs = row["difference"] is not None and row["difference"]["significant"]
        labels.append(f"{shown_name(method)} {'*' if differs else ' '}")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_title(shown_name(noise), fontsize=11)
    axes.set_xlabel(f"Dice (* differs from {shown_name(against)})")
    axes.tick_params(labelbottom=True)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
