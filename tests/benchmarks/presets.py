"""What each noise preset does to a shape of its data set's size: the table of docs/noise.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from monai_sc.functional import NOISE_PRESETS, boundary_displacement
from monai_sc.functional.masks import dice
from monai_sc.transforms import noise_preset

sys.path.insert(0, str(Path(__file__).parent))
from shapes import SHAPES


def measure(name, structure, runs, **options):
    """Return Dice and displacement of each of ``runs`` draws; a mask that vanished has no displacement, but ``nan``."""
    noise, clean = noise_preset(name, structure=structure, **options), SHAPES[structure]
    noisy = [np.asarray(noise.set_random_state(seed)(clean)) for seed in range(runs)]
    return (
        np.array([dice(mask, clean).item() for mask in noisy]),
        np.array([boundary_displacement(mask, clean).item() for mask in noisy]),
    )


def cells(scores, moved):
    """Return two cells of the table."""
    there = moved[~np.isnan(moved)]
    lost = f", {np.mean(np.isnan(moved)):.0%} vanished".replace("%", " %") if len(there) < len(moved) else ""
    bias = f"{there.mean():+.1f}".replace("-", "−")  # noqa: RUF001 - a minus sign, as in the text
    return f"{scores.mean():.2f} ± {scores.std():.2f} | {bias} ± {there.std():.1f}{lost}"


def main():
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    print("| preset | structure | Dice | bias Δ | Dice without flips | Δ without flips |\n|---|---|---|---|---|---|")
    for name, preset in NOISE_PRESETS.items():
        for structure in preset.structures:
            alone = " | "
            if preset.of_structure(structure).parameters.get("flip_prob"):
                alone = cells(*measure(name, structure, runs, flip_prob=0.0))
            print(f"| `{name}` | {structure} | {cells(*measure(name, structure, runs))} | {alone} |", flush=True)


if __name__ == "__main__":
    main()
