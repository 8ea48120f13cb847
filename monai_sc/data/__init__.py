"""Case lists and the label store."""

from __future__ import annotations

from monai_sc.data.cases import Case, check_cases
from monai_sc.data.jsrt import JSRT_CLASSES, JSRT_PIXEL_MM, jsrt_cases
from monai_sc.data.label_store import LabelStore, RoundWriter
from monai_sc.data.phantom import PHANTOM_CLASSES, phantom_cases, phantom_image

__all__ = [
    "JSRT_CLASSES",
    "JSRT_PIXEL_MM",
    "PHANTOM_CLASSES",
    "Case",
    "LabelStore",
    "RoundWriter",
    "check_cases",
    "jsrt_cases",
    "phantom_cases",
    "phantom_image",
]
