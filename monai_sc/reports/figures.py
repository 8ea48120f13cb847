"""Figures: boundaries over images, the course of a correction, and how well a fitted noise resembles real errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from scipy.ndimage import uniform_filter

from monai_sc.functional.fit import MarkovFit

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


REAL: dict[str, Any] = {"color": "#0072B2", "label": "real"}
SIMULATED: dict[str, Any] = {"color": "#D55E00", "label": "simulated", "ls": "--"}

PARAMETERS = {
    "num_steps": ("steps $T$", "{:.0f}"),
    "step_spread": ("spread of $\\log T$", "{:.2f}"),
    "expansion_prob": ("expansion $\\theta_1$", "{:.3f}"),
    "march_prob": ("march $\\theta_2$", "{:.3g}"),
    "flip_prob": ("flips $\\theta_3$", "{:.1e}"),
    "smooth_sigma": ("smoothing $\\sigma$ (0: none)", "{:.2f}"),
}
STATISTICS = {
    "displacement": ("displacement, mean", "{:+.2f}"),
    "magnitude": ("  magnitude", "{:.2f}"),
    "spread_between": ("  SD between pairs", "{:.2f}"),
    "spread_within": ("  SD within pairs", "{:.2f}"),
    "correlation_length": ("correlation length", "{:.2f}"),
    "stray_rate": ("stray voxels, per million", "{:.0f}"),
    "dice": ("Dice, mean", "{:.3f}"),
    "dice_spread": ("  SD", "{:.3f}"),
}


def plot_noise_fit(fit: MarkovFit, *, unit: str = "voxels") -> Figure:
    """Return a figure of real and simulated errors side by side, and tables of parameters and statistics.

    Args:
        fit: from :py:func:`~monai_sc.functional.fit_markov_noise`.
        unit: of its lengths: ``"mm"`` where it was given a spacing in mm.
    """
    figure = Figure(figsize=(13, 7.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.1, 1))
    _draw_displacement(figure.add_subplot(grid[0, 0]), fit, unit)
    _draw_correlation(figure.add_subplot(grid[0, 1]), fit, unit)
    _draw_dice(figure.add_subplot(grid[0, 2]), fit)
    below = grid[1, :].subgridspec(1, 2, width_ratios=(1, 1.25))
    _write_parameters(figure.add_subplot(below[0]), fit)
    _write_statistics(figure.add_subplot(below[1]), fit, unit)
    figure.suptitle(
        f"Markov noise fitted to {fit.num_used} pairs of masks from {fit.num_groups} groups "
        f"({fit.num_skipped} empty or full pairs skipped)",
        fontsize=13,
    )
    return figure


def _draw_displacement(axes: Axes, fit: MarkovFit, unit: str) -> None:
    for statistics, style in ((fit.real, REAL), (fit.simulated, SIMULATED)):
        axes.stairs(statistics.histogram, statistics.histogram_edges, lw=1.8, **style)
    axes.axvline(0, color="0.7", lw=0.8, zorder=0)
    axes.set_title("Displacement of the boundary", fontsize=11)
    axes.set_xlabel(f"too large  ←  {unit}  →  too small")
    axes.set_ylabel("density")
    axes.legend(fontsize=9)


def _draw_correlation(axes: Axes, fit: MarkovFit, unit: str) -> None:
    for statistics, style in ((fit.real, REAL), (fit.simulated, SIMULATED)):
        axes.plot(np.r_[0, statistics.lags], np.r_[1, statistics.correlation], lw=1.8, **style)
    lengths = [s.correlation_length for s in (fit.real, fit.simulated) if np.isfinite(s.correlation_length)]
    known = np.flatnonzero(np.isfinite(fit.real.correlation))
    width = fit.real.lags[0]
    most = fit.real.lags[known[-1]] if len(known) else width
    axes.set_xlim(0, min(max(4 * max(lengths, default=most), 8 * width), most))
    axes.axhline(1 / np.e, color="0.5", lw=0.8, ls=":")
    axes.text(0.985, 1 / np.e, "1/e", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color="0.4")
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.set_title("Correlation along the boundary", fontsize=11)
    axes.set_xlabel(f"distance of two positions, {unit}")
    axes.set_ylabel("correlation")
    axes.legend(fontsize=9)


def _draw_dice(axes: Axes, fit: MarkovFit) -> None:
    low = min(np.quantile(s.dices, 0.005) for s in (fit.real, fit.simulated))
    edges = np.linspace(min(max(low - 0.02, 0), 0.95), 1, 31)
    for statistics, style in ((fit.real, REAL), (fit.simulated, SIMULATED)):
        counts = np.histogram(statistics.dices, edges)[0]
        axes.stairs(100 * counts / len(statistics.dices), edges, lw=1.8, **style)
        axes.axvline(statistics.dice, color=style["color"], ls=style.get("ls", "-"), lw=1, alpha=0.6)
    axes.set_title("Dice (thin lines: means)", fontsize=11)
    axes.set_xlabel("Dice")
    axes.set_ylabel("% of pairs")
    axes.legend(fontsize=9, loc="upper left")


def _write_parameters(axes: Axes, fit: MarkovFit) -> None:
    values = {**fit.parameters, "step_spread": fit.step_spread}
    values["smooth_sigma"] = fit.parameters.get("smooth_sigma", 0.0)
    rows = []
    for name, (text, style) in PARAMETERS.items():
        if name in fit.intervals:
            low, high = fit.intervals[name]
            rows.append([text, style.format(values[name]), f"{style.format(low)} to {style.format(high)}"])
    _write_table(axes, "Parameters", ["", "fit", "95 % interval"], rows, (0.46, 0.2, 0.34))


def _write_statistics(axes: Axes, fit: MarkovFit, unit: str) -> None:
    rows = []
    for name, (text, style) in STATISTICS.items():
        factor = 1e6 if name == "stray_rate" else 1
        real, simulated = factor * getattr(fit.real, name), factor * getattr(fit.simulated, name)
        error = style.replace("+", "").format(factor * fit.standard_errors[name])
        rows.append([text, style.format(real), error, style.format(simulated)])
    verdict = f"distance {fit.distance:.1f}, p = {fit.p_value:.3f}" if fit.p_value >= 0.001 else "p < 0.001"
    title = f"Statistics (lengths in {unit}; {verdict})"
    _write_table(axes, title, ["", "real", "standard error", "simulated"], rows, (0.4, 0.18, 0.24, 0.18))


def _write_table(axes: Axes, title: str, head: list[str], rows: list[list[str]], widths: Sequence[float]) -> None:
    axes.set_axis_off()
    axes.set_title(title, fontsize=11, loc="left")
    table = axes.table(
        [head, *rows],
        colWidths=widths,
        cellLoc="right",
        bbox=Bbox.from_bounds(0, 1 - 0.105 * (len(rows) + 1), 1, 0.105 * (len(rows) + 1)),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(10)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("0.8")
        cell.visible_edges = "B"
        cell.set_text_props(ha="left" if column == 0 else "right", weight="bold" if row == 0 else "normal")
