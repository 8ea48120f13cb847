"""What the correction makes of labels with holes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from monai_sc.benchmark.ablations.ablation import ABLATION_CONFIGS, ROUNDS, Ablation, Setup, read_written, scores_of
from monai_sc.benchmark.ablations.figures import plot_holes
from monai_sc.benchmark.cells import GridCell
from monai_sc.functional.annotation_error import check_holes
from monai_sc.functional.checks import Range
from monai_sc.reports.run import TEST_DICE

MAX_ROUNDS = 2


def holes(setup: Setup, *, number: Range = (2, 5), radius: Range = (2.0, 4.0)) -> Ablation:
    """Return the illustration of labels with holes, which two rounds of the correction are to fill.

    Args:
        setup: of the trainings; its noise does not count.
        number: ``(low, high)`` of the holes in a structure.
        radius: ``(low, high)`` of their radius, in voxels of the label files.

    Raises:
        ValueError: when a range is not ``0 <= low <= high``, or ``number`` is not whole.
    """
    check_holes(number, radius)
    few, most, (low, high) = int(number[0]), int(number[1]), radius
    noise = f"$monai_sc.transforms.RandInnerHoles(1.0, number=({few}, {most}), radius=({low:g}, {high:g}))"
    changes = {"noises::holes": noise, "noise": "holes", "max_rounds": MAX_ROUNDS}
    cells = [
        setup.cell("sc", seed, "noise", "holes", changes=changes, configs=[ABLATION_CONFIGS / "holes.json"])
        for seed in setup.seeds
    ]
    settings = {"noise": "holes", "number": [few, most], "radius": [low, high]}
    return Ablation("holes", "noise", cells, _row, _table, partial(_draw, setup), settings=settings)


def _row(cell: GridCell) -> dict[str, Any]:
    row = scores_of(cell)
    rounds = read_written(cell.folder, ROUNDS)[0]
    history = json.loads((cell.folder / "results.json").read_text(encoding="utf-8"))["rounds"]
    tests = [[record["metrics"][f"{name}{TEST_DICE}"] for name in row["classes"]] for record in history]
    # One Dice of the labels that were given and one after each round, where row["label_dice"] is of the last.
    return row | {
        "round_dice": rounds["label_dice"],
        "round_test_dice": tests,
        "kept_round": rounds["kept_round"],
        "stop_reason": rounds["stop_reason"],
        "cases": rounds["cases"],
    }


def _draw(setup: Setup, rows: Sequence[Mapping[str, Any]]) -> Figure:
    return plot_holes(rows[0], read_written(setup.folder_of(rows[0]["cell"]), ROUNDS)[1])


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    classes = rows[0]["classes"]
    table = Table("seed", "labels", *(f"Dice of {name}" for name in classes), "test Dice of the network")
    table.title = "Labels with holes"
    for row in rows:
        for number, scores in enumerate(row["round_dice"]):
            tests = row["round_test_dice"]
            test = f"{np.mean(tests[number]):.3f}" if number < len(tests) else "not trained"
            name = f"round {number}" if number else "given"
            table.add_row(str(row["seed"]), name, *(f"{score:.3f}" for score in scores), test)
        table.caption = f"The last stopped since {row['stop_reason']}."
    return table
