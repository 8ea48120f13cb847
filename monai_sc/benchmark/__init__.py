"""Comparisons and ablations, and the methods that are compared."""

from __future__ import annotations

from monai_sc.benchmark.cells import CellResult, GridCell, cell_of_bundle, read_result
from monai_sc.benchmark.comparison import compare
from monai_sc.benchmark.grid import ComparedBundle, find_method, grid_cells
from monai_sc.benchmark.progress import GridProgress
from monai_sc.benchmark.result import write_result
from monai_sc.benchmark.runner import CellsFailedError, FailedCell, run_cells, settle
from monai_sc.benchmark.summary import Difference, Run, holm, paired_difference, summarise
from monai_sc.benchmark.tables import plot_comparison, write_tables

__all__ = [
    "CellResult",
    "CellsFailedError",
    "ComparedBundle",
    "Difference",
    "FailedCell",
    "GridCell",
    "GridProgress",
    "Run",
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
