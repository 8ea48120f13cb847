"""The picture of docs/workflow.md: where noise goes, what is cached, what a round does.

``python tests/benchmarks/workflow_picture.py``
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, YELLOW, GREEN, RED, GREY = "#dbe8f6", "#fdf0cd", "#dcefdc", "#f8dcda", "#eeeeee"
TARGET = Path(__file__).parents[2] / "docs" / "images" / "workflow.png"


def box(axes, x, y, width, height, title, text, colour):
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=1.2", facecolor=colour, edgecolor="#555"
        )
    )
    axes.text(x + width / 2, y + height - 1.4, title, ha="center", va="top", fontsize=10, weight="bold")
    axes.text(x + width / 2, y + (height - 4) / 2, text, ha="center", va="center", fontsize=8.5, linespacing=1.35)


def arrow(axes, start, end):
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, linewidth=1.5, color="#333"))


def draw():
    figure, axes = plt.subplots(figsize=(11.7, 6.6))
    axes.set_xlim(0, 117)
    axes.set_ylim(8, 74)
    axes.axis("off")

    axes.text(1, 72.5, "Training: once per epoch and case", fontsize=11, weight="bold", color="#222", va="center")
    box(
        axes,
        1,
        52,
        20,
        15,
        "Label store",
        "labels of round n:\nfiles that never change\n(round 0: as given,\nor made noisy once)",
        BLUE,
    )
    box(
        axes,
        28,
        52,
        27,
        15,
        "Deterministic transforms",
        "load, resample, crop,\nnormalise;\nMarkovLabelNoised,\nif noise is not in the store",
        YELLOW,
    )
    box(
        axes,
        62,
        52,
        25,
        15,
        "Random transforms",
        "flips, rotations, ...;\nRandMarkovLabelNoised\nwould be augmentation here",
        RED,
    )
    box(axes, 94, 52, 22, 15, "Network", "learns the labels,\ntheir bias included", GREY)
    for left, right in ((21, 28), (55, 62), (87, 94)):
        arrow(axes, (left, 59.5), (right, 59.5))
    axes.plot([58.5, 58.5], [50, 69], linestyle="--", color="#b8860b", linewidth=1.6)
    axes.text(57.5, 70.2, "cached up to here", ha="right", fontsize=8.5, color="#8a6508")
    axes.text(59.5, 70.2, "drawn anew in every epoch", ha="left", fontsize=8.5, color="#a03030")

    axes.text(64, 42.5, "At the end of a round", fontsize=11, weight="bold", color="#222", va="center")
    box(
        axes,
        94,
        22,
        22,
        16,
        "1  Clean cases",
        "predict them: bias of\neach class, in voxels\nand mm; a correction",
        GREEN,
    )
    box(
        axes, 64, 22, 24, 16, "2  Go on?",
        "not if it is under one voxel,\nnothing speaks against the\nlabels, it gets worse, or\nthe epochs are over",
        GREEN,
    )  # fmt: skip
    box(
        axes, 33, 22, 25, 16, "3  Relabel",
        "predict each training case,\nmove its boundary back,\nblend with the shape\nof the label it has", GREEN,
    )  # fmt: skip
    box(
        axes,
        1,
        22,
        26,
        16,
        "4  Back to the file",
        "inverse of the\ndeterministic transforms,\nthen the threshold",
        GREEN,
    )
    arrow(axes, (105, 52), (105, 38))
    for right, left in ((94, 88), (64, 58), (33, 27)):
        arrow(axes, (right, 30), (left, 30))
    axes.text(61, 32, "yes", ha="center", fontsize=8.5)
    arrow(axes, (76, 22), (76, 12))
    axes.text(76, 9.5, "no: the labels and the network of the best round", ha="center", fontsize=8.5)
    arrow(axes, (11, 38), (11, 52))
    axes.text(
        13, 45, "round n + 1: a new folder, whole or not\nat all; caches are filled anew; network,\n"
        "optimizer and schedule start again", ha="left", va="center", fontsize=8.5,
    )  # fmt: skip
    figure.savefig(TARGET, dpi=110, bbox_inches="tight", pad_inches=0.15)


if __name__ == "__main__":
    draw()
