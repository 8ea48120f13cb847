"""The tables and the figure of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from monai_sc.benchmark.summary import MEAN, SIGNIFICANT, Run, run_rows, size_text
from monai_sc.correction.state import plain
from monai_sc.files.durable import replace_synced, replacing
from monai_sc.reports.figures import shown_name
from monai_sc.reports.spreadsheet import csv_text

_JSRT = "JSRT chest X-ray segmentation with spatial correction"
_ISIC = "ISIC 2017 skin lesion segmentation with spatial correction"
_BRATS = "BraTS 2020 brain tumour segmentation with spatial correction"
_CITYSCAPES = "Cityscapes car segmentation with spatial correction"
_LIDC = "LIDC-IDRI lung nodule segmentation with spatial correction"

PAPER_TOTALS: dict[str, dict[str, dict[str, float]]] = {
    _JSRT: {
        "markov_expand": {"sc": 0.8604, "elr": 0.7951},
        "markov_shrink": {"sc": 0.8741, "gce": 0.8356},
        "dilate_erode": {"sc": 0.8355, "elr": 0.8276},
    },
    _ISIC: {
        "markov_expand": {"sc": 0.8064, "sce": 0.7406},
        "markov_shrink": {"sc": 0.7597, "ct_plus": 0.6755},
        "dilate_erode": {"sc": 0.7944, "cdr": 0.7916},
    },
    _BRATS: {
        "markov_expand": {"sc": 0.7778, "ct_plus": 0.7069},
        "markov_shrink": {"sc": 0.7271, "ct_plus": 0.7169},
        "dilate_erode": {"sc": 0.7289, "cle": 0.7503},
    },
    _CITYSCAPES: {"files": {"sc": 0.8230, "sce": 0.7635}},
    _LIDC: {"files": {"sc": 0.5372, "sce": 0.5040}},
}
"""Dice over all classes, by bundle, noise and method: of SC and of the best other method, each the mean of 5 networks
(Yao et al. 2023, the tables of results)."""

PAPER_SIZES: dict[str, tuple[int, ...]] = {_JSRT: (256, 256), _CITYSCAPES: (512, 256), _LIDC: (128, 128)}
"""Of the images, where the paper gives it."""

PAPER_ITERATIONS = 1500
"""Of the training (Yao et al. 2023)."""


COLUMNS = 3
OURS, OTHER, REFERENCE = "#D55E00", "#0072B2", "#666666"  # vermillion and blue of Okabe and Ito


def plot_comparison(summary: Mapping[str, Any], title: str) -> Figure:
    """Return a figure with one panel per noise: the total Dice of each method, its interval, its seeds."""
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


def write_tables(
    out: Path,
    runs: Sequence[Run],
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    paper_size: Sequence[int] = (),
) -> None:
    """Write ``results.csv``, ``results.json``, ``results.md`` and ``results.png``, each whole or not at all.

    Args:
        out: folder.
        runs: of the comparison.
        summary: of them, from ``summarise``.
        settings: of the comparison; ``bundle`` is its title.
        paper_size: of the paper's images, if it is known.
    """
    rows = run_rows(runs)
    if not rows:
        return
    replace_synced(out / "results.csv", csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
    content = {"settings": dict(settings), **summary, "runs": rows}
    replace_synced(out / "results.json", json.dumps(plain(content, nan=False), indent=2) + "\n")
    replace_synced(out / "results.md", markdown(summary, str(settings["bundle"]), paper_size=paper_size))
    with replacing(out / "results.png") as picture:
        plot_comparison(summary, str(settings["bundle"])).savefig(picture, dpi=120, format="png")


def markdown(summary: Mapping[str, Any], title: str, *, paper_size: Sequence[int] = ()) -> str:
    """Return a Markdown table for each noise, the best value of a column in bold; no noise is no competitor."""
    against = summary["against"]
    names = [*summary["classes"], MEAN]
    lines = [
        f"# {title}",
        "",
        "Dice on the test cases: the mean over cases, then over seeds, ± the standard deviation over seeds. In bold "
        f"the best of those trained on noisy labels. The difference from `{against}` is that of the mean, with its "
        f"95 % interval over test cases (paired bootstrap); \\* p < {SIGNIFICANT}, adjusted for the number of methods "
        "(Holm).",
    ]
    for noise, methods in summary["noises"].items():
        with_paper = any(row["paper"] is not None for row in methods.values())
        head = ["method", "seeds", *names, f"difference from {against}", *(["paper"] if with_paper else [])]
        lines += ["", f"## {noise}", "", _line(head), _line(["---"] * len(head))]
        best = {n: max((_rounded(r, n) for m, r in methods.items() if m != "clean"), default=None) for n in names}
        for method, row in methods.items():
            cells = [
                f"**{dice_text(row, n)}**" if method != "clean" and _rounded(row, n) == best[n] else dice_text(row, n)
                for n in names
            ]
            paper = [""] if row["paper"] is None else [f"{row['paper']:.3f}"]
            values = [
                method,
                str(len(row["seeds"])),
                *cells,
                difference_text(row).replace("*", r"\*"),
                *(paper if with_paper else []),
            ]
            lines.append(_line(values))
        lines += _note(methods, paper_size) if with_paper else []
    return "\n".join(lines) + "\n"


def dice_text(row: Mapping[str, Any], name: str) -> str:
    """Return the Dice of a class, with its standard deviation if there are several seeds."""
    if row["dice"][name] != row["dice"][name]:
        return "undefined"
    std = row["std"][name]
    return f"{row['dice'][name]:.3f}" + ("" if std != std else f" ± {std:.3f}")


def difference_text(row: Mapping[str, Any]) -> str:
    """Return the difference from the method of reference, marked if it is significant."""
    difference = row["difference"]
    if difference is None:
        return ""
    text = f"{difference['mean']:+.3f}"
    low, high = difference["interval"]
    if low == low:
        text += f" [{low:+.3f}, {high:+.3f}]"
    return text + ("*" if difference["significant"] else "")


def _rounded(row: Mapping[str, Any], name: str) -> float:
    """Return Dice as it is shown, so that equals look equal; an undefined one is the worst."""
    value = row["dice"][name]
    return -1.0 if value != value else round(value, 3)


def _note(methods: Mapping[str, Mapping[str, Any]], paper_size: Sequence[int]) -> list[str]:
    """Return how these trainings differ from those of the paper."""
    known = size_text(paper_size)
    ours: dict[tuple[str, str], list[str]] = {}
    for method, row in methods.items():
        size = ", ".join(filter(None, row["image_size"])) or "an unknown size"
        epochs = ", ".join(map(str, row["epochs"])) or "unknown"
        ours.setdefault((size, epochs), []).append(method)
    parts = [f"{size} and {epochs} epochs ({', '.join(names)})" for (size, epochs), names in ours.items()]
    paper = f"{PAPER_ITERATIONS} iterations{f' on images of {known}' if known else ''}"
    return [
        "",
        f"Paper: the mean of five networks after {paper} (Yao et al., ICLR 2023), with another "
        f"training than here; compare methods, not values. Here: {'; '.join(parts)}.",
    ]


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
