"""How methods bear more and more noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from monai.bundle import ConfigParser
from rich.table import Table

from monai_sc.benchmark.ablations.ablation import Ablation, Setup, scores_of
from monai_sc.benchmark.ablations.figures import plot_noise_level
from monai_sc.transforms import RandMarkovLabelNoise

FACTORS = (1.0, 4 / 3, 16 / 9, 20 / 9)
"""By which the steps of the bundle's noise are multiplied: 180, 240, 320 and 400 for JSRT, as in the paper."""


def noise_level(
    setup: Setup,
    *,
    steps: Sequence[int] | None = None,
    methods: Sequence[str] = ("noisy", "sc"),
    with_clean: bool = False,
) -> Ablation:
    """Return the ablation of the noise level: the steps of the Markov noise rise, and methods are trained at each.

    Args:
        setup: its noise must be a Markov noise.
        steps: of the class with most of them, the others in proportion; by default ``FACTORS`` times the bundle's own.
        methods: names of methods, or paths of their configs.
        with_clean: the compared methods learn from the clean cases first, as in the paper.

    Raises:
        ValueError: when there is no level or method, a level is under 0, or the noise has no steps.
    """
    own = steps_of(setup)
    levels = [round(factor * own) for factor in FACTORS] if steps is None else list(dict.fromkeys(steps))
    if not levels or not methods or min(levels) < 0:
        raise ValueError(f"noise-level needs steps of at least 0 and a method, got {levels} and {list(methods)}.")
    cells = [
        setup.cell(
            method,
            seed,
            "steps",
            level,
            changes={"noise_model": f"$monai_sc.transforms.with_steps(@noises[@noise], {level})"},
            with_clean=with_clean,
        )
        for seed in setup.seeds
        for level in levels
        for method in dict.fromkeys(methods)
    ]
    return Ablation(
        "noise-level", "steps", cells, scores_of, _table, plot_noise_level, settings={"with_clean": with_clean}
    )


def steps_of(setup: Setup) -> int:
    """Return how many steps the noise of a bundle has, in the class with most of them."""
    parser = ConfigParser()
    parser.read_config(setup.bundle.train_file)
    noise = parser.get_parsed_content(f"noises::{setup.noise}")
    if not isinstance(noise, RandMarkovLabelNoise):
        raise ValueError(f"--noise must be a Markov noise of the bundle, which has steps; {setup.noise!r} is none.")
    return int(np.max(noise.parameters["num_steps"]))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("steps", "method", "seeds", "test Dice", "Dice of the labels", title="Noise level")
    for steps in sorted({row["steps"] for row in rows}):
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if (row["steps"], row["method"]) == (steps, method)]
            if own:
                labels = [np.mean(row["label_dice"]) for row in own if row["label_dice"]]
                test = np.mean([np.mean(row["test_dice"]) for row in own])
                table.add_row(
                    *(str(steps), method, str(len(own)), f"{test:.3f}"), f"{np.mean(labels):.3f}" if labels else "-"
                )
    return table
