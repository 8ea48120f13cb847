"""Comparisons and ablations, and the methods that are compared."""

from __future__ import annotations

from monai_sc.benchmark.cells import GridCell
from monai_sc.benchmark.comparison import compare
from monai_sc.benchmark.grid import ComparedBundle
from monai_sc.benchmark.result import write_result
from monai_sc.benchmark.runner import CellsFailedError, FailedCell

__all__ = ["CellsFailedError", "ComparedBundle", "FailedCell", "GridCell", "compare", "write_result"]
