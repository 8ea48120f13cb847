"""How few clean cases the correction can do with."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats

from monai_sc.benchmark.ablations.ablation import Ablation, Setup, scores_of
from monai_sc.benchmark.ablations.figures import plot_validation_size
from monai_sc.benchmark.cells import GridCell
from monai_sc.files.cases import Case
from monai_sc.functional import required_validation_size

SIZES = (24, 12, 6, 3, 1)
SPREADS = 3  # standard deviations from the mean within which nearly every case lies


def draw_cases(cases: Sequence[Case], number: int, *, seed: int) -> list[Case]:
    """Return some of the cases, drawn at random: with one seed, fewer are a part of more.

    Args:
        cases: to draw from.
        number: of cases, at least 1.
        seed: of the draw.

    Raises:
        ValueError: when there are fewer cases.

    Example:
        >>> cases = [{"id": name} for name in "abcd"]
        >>> [case["id"] for case in draw_cases(cases, 2, seed=0)]
        ['c', 'a']
    """
    if not 1 <= number <= len(cases):
        raise ValueError(f"number must be one of 1 to {len(cases)} clean cases that there are, got {number}.")
    order = list(cases)
    random.Random(seed).shuffle(order)
    return order[:number]


def needed_cases(spread: float, image_size: Sequence[int]) -> int:
    """Return how many clean cases suffice to know the bias to within a voxel at 95 %, in the worst case.

    It is :py:func:`monai_sc.functional.required_validation_size` where every prediction lies within three ``spread`` of
    the bias.
    """
    return required_validation_size(1.0, SPREADS * spread, 0.0, image_size, alpha=0.05)


def validation_size(setup: Setup, *, sizes: Sequence[int] = SIZES) -> Ablation:
    """Return the ablation of the number of clean cases: it falls, and the correction is trained with what is left.

    Args:
        setup: of the ablation; each seed draws clean cases of its own.
        sizes: numbers of clean cases, at least 1.

    Raises:
        ValueError: when there is no size, one is under 1, or the bundle has no list of clean cases.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"--sizes must be numbers of at least 1, got {list(sizes)}.")
    if "clean_cases" not in setup.bundle.train:
        raise ValueError(f"{setup.bundle.train_file} must have the id 'clean_cases', of which fewer are to be taken.")
    # The bundle's own list, which stays checked, and what was set for it.
    others = dict(setup.overrides)
    own = str(others.pop("clean_cases", setup.bundle.train["clean_cases"])).removeprefix("$")
    setup = replace(setup, overrides=others)
    cells = [
        setup.cell(
            "sc",
            seed,
            "clean_cases",
            size,
            changes={"clean_cases": f"$monai_sc.benchmark.ablations.draw_cases({own}, {size}, seed=@seed)"},
        )
        for seed in setup.seeds
        for size in sorted(set(sizes), reverse=True)
    ]
    return Ablation("validation-size", "clean_cases", cells, _row, _table, plot_validation_size)


def _row(cell: GridCell) -> dict[str, Any]:
    """Return the scores of a cell, and what its clean cases said of the first network."""
    first = json.loads((cell.folder / "results.json").read_text(encoding="utf-8"))["rounds"][0]
    scores = scores_of(cell)
    image_size = json.loads((cell.folder / "result.json").read_text(encoding="utf-8"))["image_size"]
    needed = []
    for name in scores["classes"]:
        own = first["correction"][name]["network"]
        n, widths = own["cases_used"], own["half_width_by_cases"]
        spread = widths[str(n)] * math.sqrt(n) / stats.t.ppf(0.975, n - 1) if n > 1 else None
        needed.append(None if spread is None else needed_cases(spread, image_size))
    return {**scores, "bias": first["bias"], "interval": first["bias_interval"], "needed": needed}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    classes = rows[0]["classes"]
    table = Table(
        *("clean cases", "seed", "test Dice", *(f"bias of {name}" for name in classes)),
        title="Clean cases: bias of the first network in voxels, with its interval",
    )
    for row in sorted(rows, key=lambda row: (-row["clean_cases"], row["seed"])):
        biases = []
        for bias, (low, high) in zip(row["bias"], row["interval"], strict=True):
            interval = "" if low is None else rf" \[{low:+.2f}, {high:+.2f}]"
            biases.append("undefined" if bias is None else f"{bias:+.2f}{interval}")
        table.add_row(str(row["clean_cases"]), str(row["seed"]), f"{np.mean(row['test_dice']):.3f}", *biases)
    most = max(rows, key=lambda row: int(row["clean_cases"]))
    needed = ", ".join(f"{name} {n}" for name, n in zip(classes, most["needed"], strict=True) if n is not None)
    table.caption = f"Enough for a bias to within a voxel, in the worst case: {needed or 'unknown, of one case'}."
    return table
