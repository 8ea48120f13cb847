"""The cells of a grid of trainings: what each is, and what it has measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.benchmark.result import RESULT
from monai_sc.files.durable import sha256

MODULE = "monai.bundle"
RECORD, LOG = "cell.json", "log.txt"


@dataclass(frozen=True)
class GridCell:
    """One training of a grid, in a process and a folder of its own.

    Attributes:
        name: different for each cell, and what users read, such as ``"markov_expand/sc/seed-0"``.
        folder: where its process writes; ``result.json`` there, written last, says that the cell is done.
        labels: its place in the grid, by axis, such as ``{"noise": "markov_expand", "method": "sc", "seed": 0}``.
        command: a Python module and its arguments.
        record: what the result depends on, as JSON types: kept in ``cell.json``, so that a result of another config is
            not taken for one of this cell.
        resumes: whether the training goes on from what it finds in its folder; else a new start empties the folder.
    """

    name: str
    folder: Path
    labels: Mapping[str, str | int | float]
    command: tuple[str, ...]
    record: Mapping[str, Any]
    resumes: bool = False


@dataclass(frozen=True)
class CellResult:
    """What a cell has measured on the test cases.

    Attributes:
        classes: their names.
        cases: their names.
        dice: ``(cases, classes)``, in ``[0, 1]``, nan where it is undefined.
        epochs: of the training, in all; ``None`` if it is not known.
        seconds: of the training; 0 if it is not known.
        image_size: that the network worked on; empty if it is not known.
    """

    classes: tuple[str, ...]
    cases: tuple[str, ...]
    dice: np.ndarray
    epochs: int | None = None
    seconds: float = 0.0
    image_size: tuple[int, ...] = ()

    @property
    def with_mean(self) -> np.ndarray:
        """Dice ``(cases, classes + 1)``, the last column the mean over the classes of each case."""
        defined = np.isfinite(self.dice)
        mean = np.where(defined, self.dice, 0).sum(axis=1) / np.where(defined.any(axis=1), defined.sum(axis=1), np.nan)
        return np.column_stack([self.dice, mean])

    @property
    def mean(self) -> float:
        """Dice, the mean over classes, then over cases; nan if it is undefined for every case."""
        values = self.with_mean[:, -1]
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else np.nan


def read_result(folder: Path) -> CellResult | None:
    """Return what the cell of a folder has measured, or ``None`` if it is not done: no result, or one that is damaged.

    Example:
        >>> read_result(Path("not/there")) is None
        True
    """
    try:
        content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        result = CellResult(
            classes=tuple(map(str, content["classes"])),
            cases=tuple(map(str, content["cases"])),
            dice=np.array(content["dice"], dtype=np.float64),  # null becomes nan
            epochs=content.get("epochs"),
            seconds=float(content.get("seconds") or 0),
            image_size=tuple(content.get("image_size") or ()),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    sound = result.dice.shape == (len(result.cases), len(result.classes)) and result.dice.size > 0
    return result if sound and len(set(result.cases)) == len(result.cases) else None


def nothing_trained(folder: Path) -> bool:
    """Say whether the cells in a folder have left their records and logs, and nothing else.

    Example:
        >>> nothing_trained(Path("not/there"))
        True
    """
    return all(file.name in (RECORD, LOG) for file in folder.rglob("*") if not file.is_dir())


def override(name: str, value: Any) -> str:
    """Return the argument that gives an id of a bundle's config a value."""
    return f"--{name}={value}"


def cell_of_bundle(
    bundle: Path,
    folder: Path,
    *,
    name: str,
    labels: Mapping[str, str | int | float],
    configs: tuple[Path, ...],
    overrides: Mapping[str, Any],
    resumes: bool = False,
) -> GridCell:
    """Return the cell that runs a bundle: ``python -m monai.bundle run``."""
    folder, parts = folder.resolve(), [str(config.resolve()) for config in configs]
    arguments = {
        "config_file": parts,
        "meta_file": bundle.resolve() / "configs" / "metadata.json",
        "logging_file": bundle.resolve() / "configs" / "logging.conf",
        "bundle_root": bundle.resolve(),
        "output_dir": folder,
        "ckpt_dir": folder / "models",
        **overrides,
    }
    record = {
        "labels": dict(labels),
        "configs": [[config.name, sha256(config)] for config in configs],
        "overrides": {key: str(value) for key, value in overrides.items()},
    }
    command = (MODULE, "run", *(override(key, value) for key, value in arguments.items()))
    return GridCell(name, folder, dict(labels), command, record, resumes)
