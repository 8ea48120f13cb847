"""Case lists, the label store, and folders of noisy masks."""

from __future__ import annotations

from monai_sc.data.cases import Case, check_cases
from monai_sc.data.jsrt import JSRT_CLASSES, JSRT_PIXEL_MM, jsrt_cases
from monai_sc.data.label_store import LabelStore, RoundWriter
from monai_sc.data.phantom import PHANTOM_CLASSES, phantom_cases, phantom_image
from monai_sc.data.simulation import NoiseChoice, SimulationError, simulate_folder, summary

__all__ = [
    "JSRT_CLASSES",
    "JSRT_PIXEL_MM",
    "PHANTOM_CLASSES",
    "Case",
    "LabelStore",
    "NoiseChoice",
    "RoundWriter",
    "SimulationError",
    "check_cases",
    "jsrt_cases",
    "phantom_cases",
    "phantom_image",
    "simulate_folder",
    "summary",
]
