"""Charts of a correction: the bias and Dice of its rounds, and what it did to the cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

CLASS_COLOURS = ("#000000", "#0072B2", "#CC79A7", "#009E73", "#E69F00")
CLASS_MARKERS = ("o", "s", "^", "D", "v")
LONGEST_NAME = 40  # characters, beside which a chart still has room


def line_style(k: int) -> dict[str, Any]:
    """Return the style of the ``k``-th line of a chart, for ``plot``."""
    return {
        "color": CLASS_COLOURS[k % len(CLASS_COLOURS)],
        "marker": CLASS_MARKERS[k % len(CLASS_MARKERS)],
        "lw": 1.8,
    }


def shown_name(name: str) -> str:
    """Return the name of a class or a case as matplotlib shows it: not as a formula, and not too long for a chart."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    # what begins with an underscore is left out of a legend
    return (f" {short}" if short.startswith("_") else short).replace("$", r"\$")


def plot_rounds(history: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> Figure:
    """Return a figure with the bias and the Dice on the clean cases of every round.

    Args:
        history: the records of :py:class:`monai_sc.handlers.SpatialCorrectionHandler`.
        class_names: one per class.
    """
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    draw_bias(axes[0], history, class_names)
    draw_dice(axes[1], history, class_names)
    return figure


def plot_displacements(
    displacements: Mapping[str, Sequence[float | None]], *, unit: str = "mm", tolerance: float | None = None
) -> Figure:
    """Return a figure with how far the labels of every case lay off, by class.

    Args:
        displacements: of the given label from the corrected or clean one, by class, one per case; negative: it was too
            large. ``None`` and ``nan`` are left out.
        unit: of them.
        tolerance: up to which a bias does no harm, shaded.
    """
    figure = Figure(figsize=(9, 0.9 + 0.6 * len(displacements)), layout="constrained")
    axes = figure.subplots()
    if tolerance is not None:
        axes.axvspan(-tolerance, tolerance, color="0.5", alpha=0.2, lw=0)
    axes.axvline(0, color="0.5", lw=0.8)
    _draw_strips(axes, displacements)
    axes.set_xlabel(
        f"label was too large  ←  displacement of the boundary in {shown_name(unit)}  →  label was too small"
    )
    return figure


def plot_changes(changed: Mapping[str, Sequence[float]]) -> Figure:
    """Return a figure with the part of every structure that changed, by class.

    Args:
        changed: by class, one per case: voxels that changed by those of the label before and after together, in
            ``[0, 1]``.
    """
    figure = Figure(figsize=(9, 0.9 + 0.6 * len(changed)), layout="constrained")
    axes = figure.subplots()
    _draw_strips(axes, {name: [100 * value for value in values] for name, values in changed.items()})
    axes.set_xlim(left=-1)
    axes.set_xlabel("part of the structure that changed, in % of the label before and after together")
    return figure


def draw_bias(axes: Axes, history: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> None:
    """Draw the bias of every round, with its interval."""
    axes.axhspan(-1, 1, color="0.5", alpha=0.2, lw=0, label="under one voxel")
    axes.axhline(0, color="0.5", lw=0.8)
    rounds = [record["round"] for record in history]
    for k, name in enumerate(class_names):
        mean = np.array([record["bias"][k] for record in history], dtype=np.float64)
        interval = np.array([record["bias_interval"][k] for record in history], dtype=np.float64)
        error = np.nan_to_num(np.abs(interval - mean[:, None]).T)
        axes.errorbar(
            np.array(rounds) + 0.04 * (k - (len(class_names) - 1) / 2),
            mean,
            yerr=error,
            capsize=3,
            label=shown_name(name),
            **line_style(k),
        )
    axes.set_title("Boundary bias on the clean cases, in voxels", fontsize=11)
    axes.set_ylabel("too large  ←  bias  →  too small")
    _name_rounds(axes, rounds)


def draw_dice(axes: Axes, history: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> None:
    """Draw the Dice of the predictions on the clean cases in every round."""
    rounds = [record["round"] for record in history]
    for k, name in enumerate(class_names):
        axes.plot(rounds, [record["clean_dice"][k] for record in history], label=shown_name(name), **line_style(k))
    axes.set_title("Dice of the predictions on the clean cases", fontsize=11)
    axes.set_ylabel("Dice")
    axes.grid(axis="y", color="0.5", alpha=0.3)
    _name_rounds(axes, rounds)


def _name_rounds(axes: Axes, rounds: Sequence[int]) -> None:
    axes.set_xticks(rounds, [f"round {r}" for r in rounds])
    axes.set_xlim(rounds[0] - 0.3, rounds[-1] + 0.3)
    axes.legend(fontsize=9)


def _draw_strips(axes: Axes, values: Mapping[str, Sequence[float | None]]) -> None:
    """Draw a row of points and a box for each class, the first on top."""
    rng = np.random.default_rng(0)
    for k, row in enumerate(values.values()):
        found = np.array([np.nan if value is None else value for value in row], dtype=np.float64)
        found = found[np.isfinite(found)]
        axes.plot(found, k + rng.uniform(-0.2, 0.2, len(found)), "o", color="#3B8FD0", alpha=0.7, ms=4, mew=0)
        if len(found) > 3:
            low, median, high = np.percentile(found, (25, 50, 75))
            axes.plot([low, high], [k, k], "-", color="#D55E00", lw=2.5, solid_capstyle="butt")
            axes.plot([median], [k], "D", color="#D55E00", ms=6)
    axes.set_yticks(range(len(values)), [shown_name(name) for name in values])
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(9))
