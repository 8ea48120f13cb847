"""The compared methods side by side: one training for each, and what came of them."""

from __future__ import annotations

from monai_sc.comparison.cells import Cell, CellResult, cell_of_bundle, read_result
from monai_sc.comparison.grid import ComparedBundle, find_method, grid_cells
from monai_sc.comparison.result import write_result
from monai_sc.comparison.runner import CellsFailedError, FailedCell, run_cells
from monai_sc.comparison.settings import settle

__all__ = [
    "Cell",
    "CellResult",
    "CellsFailedError",
    "ComparedBundle",
    "FailedCell",
    "cell_of_bundle",
    "find_method",
    "grid_cells",
    "read_result",
    "run_cells",
    "settle",
    "write_result",
]
