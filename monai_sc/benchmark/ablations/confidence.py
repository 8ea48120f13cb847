"""How a network becomes as sure of wrong labels as of right ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from monai_sc.benchmark.ablations.ablation import ABLATION_CONFIGS, CONFIDENCE, Ablation, Setup, read_written, scores_of
from monai_sc.benchmark.ablations.figures import plot_confidence
from monai_sc.benchmark.cells import GridCell


def confidence(setup: Setup, *, epochs: int | None = None) -> Ablation:
    """Return the illustration of over-confidence: plain training, with the probability of the labels in every epoch.

    Args:
        setup: of the trainings.
        epochs: of the training; by default those of a round of the bundle. Labels are learnt by heart late.

    Raises:
        ValueError: when ``epochs`` is under 1.
    """
    if epochs is not None and epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {epochs}.")
    changes = {} if epochs is None else {"epochs_per_round": epochs}
    cells = [
        setup.cell(
            *("noisy", seed, "noise", setup.noise), changes=changes, configs=[ABLATION_CONFIGS / "confidence.json"]
        )
        for seed in setup.seeds
    ]
    return Ablation(CONFIDENCE, "noise", cells, _row, _table, partial(_draw, setup), settings={"epochs": epochs})


def _row(cell: GridCell) -> dict[str, Any]:
    return scores_of(cell) | read_written(cell.folder, CONFIDENCE)[0]


def _draw(setup: Setup, rows: Sequence[Mapping[str, Any]]) -> Figure:
    return plot_confidence(rows, read_written(setup.folder_of(rows[0]["cell"]), CONFIDENCE)[1])


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("class", "right labels", "wrong labels, least", "wrong labels, last")
    table.title = f"Probability of the given labels within {rows[0]['band']:g} voxels of the clean boundary"
    for k, name in enumerate(rows[0]["classes"]):
        right, wrong = (
            np.array([[record[kind][k] for record in row["history"]] for row in rows], dtype=np.float64).mean(axis=0)
            for kind in ("right", "wrong")
        )
        least = int(np.argmin(np.nan_to_num(wrong, nan=2)))
        table.add_row(name, f"{right[-1]:.3f}", f"{wrong[least]:.3f} (epoch {least + 1})", f"{wrong[-1]:.3f}")
    return table
