"""Case lists, the label store, and folders of labels: audited, corrected, made noisy."""

from __future__ import annotations

from monai_sc.data.audit import audit_folder
from monai_sc.data.cases import Case, check_cases
from monai_sc.data.correct import correct_folder
from monai_sc.data.jsrt import JSRT_CLASSES, JSRT_PIXEL_MM, jsrt_cases
from monai_sc.data.label_store import LabelStore
from monai_sc.data.parts import Part
from monai_sc.data.phantom import PHANTOM_CLASSES, phantom_cases, phantom_image
from monai_sc.data.round_writer import RoundWriter
from monai_sc.data.simulation import NoiseChoice, SimulationError, simulate_folder, summary
from monai_sc.data.usable_cases import UsableCases, usable_cases

__all__ = [
    "JSRT_CLASSES",
    "JSRT_PIXEL_MM",
    "PHANTOM_CLASSES",
    "Case",
    "LabelStore",
    "NoiseChoice",
    "Part",
    "RoundWriter",
    "SimulationError",
    "UsableCases",
    "audit_folder",
    "check_cases",
    "correct_folder",
    "jsrt_cases",
    "phantom_cases",
    "phantom_image",
    "simulate_folder",
    "summary",
    "usable_cases",
]
