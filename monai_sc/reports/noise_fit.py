"""The picture of how well a fitted label noise resembles real annotation error."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from monai_sc.functional import MarkovFit

__all__ = ["plot_noise_fit"]

REAL, SIMULATED = "#0072B2", "#D55E00"  # blue and vermillion of the Okabe-Ito palette
STATISTICS = {
    "displacement": "displacement (negative: too large)",
    "magnitude": "magnitude of the displacement",
    "spread": "its spread, in all",
    "spread_between": "its spread between cases",
    "spread_within": "its spread along a boundary",
    "correlation_length": "correlation length",
    "stray_rate": "rate of stray voxels",
    "dice": "Dice",
    "dice_spread": "spread of the Dice",
}


def plot_noise_fit(fit: MarkovFit, *, unit: str = "voxels") -> Figure:
    """Return a figure of a fitted noise beside the real errors: distributions, correlation, and tables.

    Args:
        fit: from :py:func:`monai_sc.functional.fit_markov_noise`.
        unit: of lengths, for the labels: ``"voxels"``, or ``"mm"`` if the fit had a spacing.
    """
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.1, 1))
    histogram, correlation, dice = (figure.add_subplot(grid[0, k]) for k in range(3))
    styles = ((fit.real, REAL, "real", "-"), (fit.simulated, SIMULATED, "simulated", "--"))
    for statistics, colour, name, style in styles:
        histogram.stairs(
            statistics.histogram, statistics.histogram_edges, color=colour, label=name, linestyle=style, linewidth=1.5
        )
        correlation.plot(statistics.lags, statistics.correlation, color=colour, label=name, linestyle=style)
        ordered = np.sort(statistics.dices)
        dice.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=colour, label=name, linestyle=style)
    histogram.set(xlabel=f"displacement in {unit} (negative: too large)", ylabel="density", title="Boundary positions")
    correlation.axhline(1 / np.e, color="0.6", linewidth=0.8)
    correlation.set(xlabel=f"distance in {unit}", ylabel="correlation", title="Along a boundary", ylim=(-0.6, 1.05))
    dice.set(xlabel="Dice", ylabel="share of pairs up to it", title="Pairs", xlim=(0, 1))
    histogram.legend(frameon=False)

    both = fit.real, fit.simulated
    rows = [[text, *(f"{getattr(own, name):.3g}" for own in both)] for name, text in STATISTICS.items()]
    _table(figure.add_subplot(grid[1, :2]), ["statistic", "real", "simulated"], rows, (0.55, 0.2, 0.2))
    values = {**fit.parameters, "step_spread": fit.step_spread}
    rows = [
        [name, f"{values.get(name, 0):.3g}", f"{low:.2g} to {high:.2g}"] for name, (low, high) in fit.intervals.items()
    ]
    _table(figure.add_subplot(grid[1, 2]), ["parameter", "best", "95 % interval"], rows, (0.36, 0.2, 0.48))
    figure.suptitle(
        f"{fit.num_used} pairs of {fit.num_groups} groups ({fit.num_skipped} skipped), distance {fit.distance:.1f}, "
        f"p = {fit.p_value:.2g}"
    )
    return figure


def _table(axes, header, rows, widths):  # type: ignore[no-untyped-def]
    axes.set_axis_off()
    table = axes.table(rows, colLabels=header, colWidths=widths, loc="center", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.35)
