"""Small generated data sets in the layouts of the official ones, to try everything without a download."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from monai_sc.names import DATA_SETS

__all__ = ["STAND_INS"]

STAND_INS: dict[str, Callable[..., None]] = {
    name: getattr(import_module(f"monai_sc.datasets.{name}"), f"write_{name}") for name in DATA_SETS
}
"""What writes the stand-in of a data set, by its name.

A writer takes ``out``, a folder that is empty or does not exist (else there is a ``ValueError``), and the keywords
``num_cases``, by split, and ``seed``; the same writes the same files.
"""
