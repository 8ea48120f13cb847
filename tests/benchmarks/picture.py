"""The picture of docs/noise.md: what noises make of the same masks. ``python tests/benchmarks/picture.py``"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from shapes import SHAPES

from monai_sc.reports.figures import BOUNDARY_COLOURS, draw_boundaries
from monai_sc.transforms import RandCoarsenContour, RandTranslateLabel, noise_preset

OUT = Path(__file__).parents[2] / "docs" / "images" / "noise.png"


def turned(masks):
    """Return masks with the first axis to the right."""
    return np.swapaxes(masks, 1, 2)


def main():
    """Write the picture."""
    chest = np.concatenate([SHAPES[structure] for structure in ("lung", "heart", "clavicle")])
    noises = {
        "jsrt-expand": noise_preset("jsrt-expand"),
        "jsrt-shrink": noise_preset("jsrt-shrink"),
        "jsrt-mixed": noise_preset("jsrt-mixed"),
        "RandCoarsenContour, 35 pixels": RandCoarsenContour(1.0, vertex_distance=(35, 35)),
        "RandTranslateLabel, 8 pixels": RandTranslateLabel(1.0, distance=(8, 8)),
    }
    figure, axes = plt.subplots(1, len(noises), figsize=(15, 3.4), layout="constrained")
    for ax, (name, noise) in zip(axes, noises.items(), strict=True):
        noisy = np.asarray(noise.set_random_state(0)(chest))
        draw_boundaries(ax, np.zeros(chest.shape[1:]), {"clean": turned(chest), "given": turned(noisy)})
        ax.set_title(name, fontsize=10)
    names = {"clean": "clean", "given": "noisy"}
    lines = [Line2D([], [], color=BOUNDARY_COLOURS[kind], label=name) for kind, name in names.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(OUT, dpi=110)


if __name__ == "__main__":
    main()
