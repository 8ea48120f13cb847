"""The pictures of the ablations, from what their trainings have measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from monai_sc.reports.figures import BOUNDARY_COLOURS, draw_boundaries, line_style, shown_name

Rows = Sequence[Mapping[str, Any]]
WINDOW = 24  # voxels around the one that is watched


def plot_noise_level(rows: Rows) -> Figure:
    """Return a figure of the test Dice, and of the Dice of the labels, against the level of the noise."""
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for k, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = [row for row in rows if row["method"] == method]
        for axes, key in ((left, "test_dice"), (right, "label_dice")):
            values = [(row["steps"], float(np.mean(row[key]))) for row in own if row[key]]
            _draw_band(axes, values, label=method, **line_style(k))
    for axes, title in (
        (left, "Networks: Dice on the test cases"),
        (right, "Their final training labels"),
    ):
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("steps T of the Markov noise (class with most)")
        axes.set_xticks(sorted({row["steps"] for row in rows}))
        axes.set_ylabel("Dice, mean over classes")
        axes.grid(axis="y", color="0.9")
        if axes.lines:
            axes.legend(fontsize=9)
    figure.suptitle(f"Noise level{_band_text(rows)}", fontsize=13)
    return figure


def plot_validation_size(rows: Rows) -> Figure:
    """Return a figure of the test Dice, and of the bias of each class with its interval, by number of clean cases."""
    classes = rows[0]["classes"]
    figure = Figure(figsize=(4.8 * (len(classes) + 1), 4.8), layout="constrained")
    panels = figure.subplots(1, len(classes) + 1)
    sizes = sorted({row["clean_cases"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    most = max(rows, key=lambda row: int(row["clean_cases"]))
    for k, name in enumerate(classes):
        shown, axes, style = shown_name(name), panels[k + 1], line_style(k)
        _draw_band(panels[0], [(row["clean_cases"], row["test_dice"][k]) for row in rows], label=shown, **style)
        if most["bias"][k] is not None:
            axes.axhspan(most["bias"][k] - 1, most["bias"][k] + 1, color="0.92")
            axes.text(
                *(0.99, 0.02, f"grey: within a voxel of that of {most['clean_cases']} cases"),
                **{"transform": axes.transAxes, "ha": "right", "fontsize": 8, "color": "0.4"},
            )
        for row in rows:
            if row["bias"][k] is None:
                continue
            low, high = (row["bias"][k] if end is None else end for end in row["interval"][k])
            shifted = row["clean_cases"] * 1.05 ** (seeds.index(row["seed"]) - (len(seeds) - 1) / 2)
            error = [[row["bias"][k] - low], [high - row["bias"][k]]]
            axes.errorbar([shifted], [row["bias"][k]], yerr=error, capsize=3, ls="", **style)
        axes.axhline(0, color="0.5", lw=0.8)
        needed = most["needed"][k]
        enough = "not known" if needed is None else f"{needed} clean cases"
        axes.set_title(f"{shown}: bias of the first network\nenough in the worst case: {enough}", fontsize=11)
        axes.set_ylabel("too large  ←  voxels  →  too small")
    panels[0].set_title("Dice on the test cases", fontsize=11)
    panels[0].legend(fontsize=9)
    panels[0].grid(axis="y", color="0.9")
    for axes in panels:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("clean cases")
    figure.suptitle(f"Number of clean cases{_band_text(rows)}", fontsize=13)
    return figure


def plot_confidence(rows: Rows, arrays: Mapping[str, np.ndarray]) -> Figure:
    """Return a figure of the probability of right and wrong labels over the epochs, and of one voxel."""
    first, classes = rows[0], rows[0]["classes"]
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    curves, single, picture = figure.subplots(1, 3, width_ratios=(1.15, 1, 0.85))
    for k, name in enumerate(classes):
        for kind, dashes in (("right", "-"), ("wrong", "--")):
            values = [
                (record["epoch"], record[kind][k])
                for row in rows
                for record in row["history"]
                if record[kind][k] is not None
            ]
            style = line_style(k) | {"marker": ""}
            _draw_band(curves, values, label=f"{shown_name(name)}, {kind} labels", **style, ls=dashes)
    curves.set_title(f"Within {first['band']:g} voxels of the clean boundary", fontsize=11)
    curves.set_ylabel("probability of the given label")
    _draw_history(single, first)
    single.set_ylabel("probability")
    for axes in (curves, single):
        axes.axhline(0.5, color="0.5", lw=0.8, ls=":")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=9)
    _draw_voxel(picture, first["voxel"]["index"], arrays)
    figure.suptitle(f"Over-confidence in wrong labels, training as usual{_band_text(rows)}", fontsize=13)
    return figure


def plot_holes(row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Figure:
    """Return a figure of labels with holes as they were given, after each round, and clean, with one case per class."""
    number = len(row["round_dice"])
    titles = ["label as given", *(f"after round {r}" for r in range(1, number)), "clean label"]
    for r in range(row["kept_round"] + 1, number):
        titles[r] += " (not kept)"
    figure = Figure(figsize=(3.3 * len(titles), 3.6 * len(row["classes"]) + 1), layout="constrained")
    grid = figure.subplots(len(row["classes"]), len(titles), squeeze=False)
    for k, (name, case, panels) in enumerate(zip(row["classes"], row["cases"], grid, strict=True)):
        for r, (axes, title) in enumerate(zip(panels, titles, strict=True)):
            kind = "given" if not r else "corrected" if r < number else "clean"
            mask = arrays[f"{name}/{'clean' if kind == 'clean' else f'round-{r}'}"]
            draw_boundaries(axes, arrays[f"{name}/image"], {kind: mask[None]}, width=1.6)
            scores = "" if kind == "clean" else f"\n{shown_name(name)} of all cases: Dice {row['round_dice'][r][k]:.3f}"
            axes.set_title(f"{title}{scores}", fontsize=11)
        text = {"rotation": 90, "ha": "right", "va": "center", "transform": panels[0].transAxes}
        panels[0].text(-0.04, 0.5, f"{shown_name(name)}, {shown_name(case)}", **text)
    figure.suptitle("Correction of labels with holes", fontsize=13)
    figure.supxlabel(f"Stopped: {row['stop_reason']}.", fontsize=10, color="0.3")
    return figure


def _band_text(rows: Rows) -> str:
    seeds = len({row["seed"] for row in rows})
    return f" (mean of {seeds} seeds, band: least to largest)" if seeds > 1 else ""


def _draw_band(axes: Axes, values: Sequence[tuple[float, float]], **style: Any) -> None:
    """Draw the means of the values at each place, and the band from the least to the largest."""
    places = sorted({place for place, _ in values})
    groups = [[value for at, value in values if at == place] for place in places]
    if groups:
        axes.plot(places, [float(np.mean(group)) for group in groups], **style)
        low, high = [min(group) for group in groups], [max(group) for group in groups]
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, lw=0)


def _draw_history(axes: Axes, row: Mapping[str, Any]) -> None:
    voxel = row["voxel"]
    sides = {kind: "inside" if voxel[kind] else "outside" for kind in ("given", "clean")}
    epochs = [record["epoch"] for record in row["history"]]
    values = np.array([record["voxel"] for record in row["history"]], dtype=np.float64)
    axes.plot(epochs, values, color=BOUNDARY_COLOURS["given"], lw=1.8, label=f"given label: {sides['given']}")
    if voxel["given"] != voxel["clean"]:
        label = f"clean label: {sides['clean']}"
        axes.plot(epochs, 1 - values, color=BOUNDARY_COLOURS["clean"], lw=1.8, label=label)
    place = ", ".join(map(str, voxel["index"]))
    what, where = shown_name(voxel["class_name"]), shown_name(voxel["case"])
    axes.set_title(f"One voxel: {what} at ({place}) of {where}", fontsize=11)


def _draw_voxel(axes: Axes, index: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
    starts = [max(min(i - WINDOW, n - 2 * WINDOW), 0) for i, n in zip(index[:2], arrays["image"].shape, strict=True)]
    window = tuple(slice(start, start + 2 * WINDOW) for start in starts)
    masks = {name: arrays[name][None][(slice(None), *window)] for name in ("clean", "given")}
    draw_boundaries(axes, arrays["image"][window], masks, width=2.0)
    axes.plot(index[0] - starts[0], index[1] - starts[1], "o", ms=9, mfc="none", mec="white", mew=2)
    axes.set_title("Where it is (circle)", fontsize=11)
    lines = [Line2D([], [], color=BOUNDARY_COLOURS[name], lw=3, label=f"{name} label") for name in masks]
    axes.legend(handles=lines, loc="lower right", fontsize=9, facecolor="#404040", labelcolor="white")
