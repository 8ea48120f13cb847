"""Public data sets, a module each: the official layout, and a synthetic stand-in."""

from __future__ import annotations

from monai_sc.datasets.phantom import PHANTOM_CLASSES, phantom_cases, phantom_image
from monai_sc.datasets.prepare import Preparation, PreparationError, prepare
from monai_sc.datasets.prepared import prepared_cases

__all__ = [
    "PHANTOM_CLASSES",
    "Preparation",
    "PreparationError",
    "phantom_cases",
    "phantom_image",
    "prepare",
    "prepared_cases",
]
