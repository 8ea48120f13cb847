"""The picture that says how well a fitted noise resembles real annotation error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from monai_sc.functional.fit import MarkovFit

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
