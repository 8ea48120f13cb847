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

STORE = "labels of round n:\nfiles that never change\n(round 0: as given,\nor made noisy once)"
FIXED = "load, resample, crop,\nnormalise;\nMarkovLabelNoised,\nif noise is not in the store"
RANDOM = "flips, rotations, ...;\nRandMarkovLabelNoised\nwould be augmentation here"
CHECK = "predict them: bias of\neach class, in voxels\nand mm; a correction"
STOP = "not if it is under one voxel,\nno bias is left in the\nlabels, it gets worse, or\nthe epochs are over"
RELABEL = "predict each training case,\nmove its boundary back,\nblend with the shape\nof the label it has"
BACK = "inverse of the\ndeterministic transforms,\nthen the threshold"
ANEW = "round n + 1: a new folder, whole or not\nat all; caches are filled anew; network,\n"
ANEW += "optimizer and schedule start again"

BOXES = [  # left edge, width, title, text and colour
    (1, 20, "Label store", STORE, BLUE),
    (28, 27, "Deterministic transforms", FIXED, YELLOW),
    (62, 25, "Random transforms", RANDOM, RED),
    (94, 22, "Network", "learns the labels,\ntheir bias included", GREY),
    (94, 22, "1  Clean cases", CHECK, GREEN),
    (64, 24, "2  Go on?", STOP, GREEN),
    (33, 25, "3  Relabel", RELABEL, GREEN),
    (1, 26, "4  Back to the file", BACK, GREEN),
]
ARROWS = [((left, 59.5), (right, 59.5)) for left, right in ((21, 28), (55, 62), (87, 94))]
ARROWS += [((right, 30), (left, 30)) for right, left in ((94, 88), (64, 58), (33, 27))]
ARROWS += [((105, 52), (105, 38)), ((76, 22), (76, 12)), ((11, 38), (11, 52))]


def main():
    figure, axes = plt.subplots(figsize=(11.7, 6.6))
    axes.set(xlim=(0, 117), ylim=(8, 74))
    axes.axis("off")
    for number, (x, width, title, text, colour) in enumerate(BOXES):
        y, height = (52, 15) if number < 4 else (22, 16)
        style = "round,pad=0,rounding_size=1.2"
        axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="#555"))
        axes.text(x + width / 2, y + height - 1.4, title, ha="center", va="top", fontsize=10, weight="bold")
        axes.text(x + width / 2, y + (height - 4) / 2, text, ha="center", va="center", fontsize=8.5, linespacing=1.35)
    for ends in ARROWS:
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=13, linewidth=1.5, color="#333"))
    axes.text(1, 72.5, "Training: once per epoch and case", fontsize=11, weight="bold", color="#222", va="center")
    axes.plot([58.5, 58.5], [50, 69], linestyle="--", color="#b8860b", linewidth=1.6)
    axes.text(57.5, 70.2, "cached up to here", ha="right", fontsize=8.5, color="#8a6508")
    axes.text(59.5, 70.2, "drawn anew in every epoch", ha="left", fontsize=8.5, color="#a03030")
    axes.text(64, 42.5, "At the end of a round", fontsize=11, weight="bold", color="#222", va="center")
    axes.text(61, 32, "yes", ha="center", fontsize=8.5)
    axes.text(76, 9.5, "no: the labels and the network of the best round", ha="center", fontsize=8.5)
    axes.text(13, 45, ANEW, ha="left", va="center", fontsize=8.5)
    figure.savefig(TARGET, dpi=110, bbox_inches="tight", pad_inches=0.15)


if __name__ == "__main__":
    main()
