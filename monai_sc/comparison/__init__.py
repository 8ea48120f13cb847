"""The compared methods side by side: one training for each, and what came of them."""

from __future__ import annotations

from monai_sc.comparison import ablations
from monai_sc.comparison.cells import CellResult, GridCell, cell_of_bundle, read_result
from monai_sc.comparison.comparison import compare
from monai_sc.comparison.grid import ComparedBundle, find_method, grid_cells
from monai_sc.comparison.picture import plot_comparison
from monai_sc.comparison.processes import FailedCell
from monai_sc.comparison.progress import GridProgress
from monai_sc.comparison.result import write_result
from monai_sc.comparison.runner import CellsFailedError, run_cells
from monai_sc.comparison.settings import settle
from monai_sc.comparison.significance import Difference, holm, paired_difference
from monai_sc.comparison.summary import Run, summarise
from monai_sc.comparison.tables import write_tables

__all__ = [
    "CellResult",
    "CellsFailedError",
    "ComparedBundle",
    "Difference",
    "FailedCell",
    "GridCell",
    "GridProgress",
    "Run",
    "ablations",
    "cell_of_bundle",
    "compare",
    "find_method",
    "grid_cells",
    "holm",
    "paired_difference",
    "plot_comparison",
    "read_result",
    "run_cells",
    "settle",
    "summarise",
    "write_result",
    "write_tables",
]
