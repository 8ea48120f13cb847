"""Simulate annotation error in segmentation labels, and correct it: a MONAI plugin."""

from __future__ import annotations

from importlib.metadata import version

from monai_sc import comparison, data, engines, functional, handlers, losses, networks, reports, transforms

__all__ = [
    "__version__",
    "comparison",
    "data",
    "engines",
    "functional",
    "handlers",
    "losses",
    "networks",
    "reports",
    "transforms",
]

__version__ = version("monai-sc")
