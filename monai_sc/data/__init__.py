"""Case lists, the label store, and folders of labels: audited, corrected, made noisy."""

from __future__ import annotations

from monai_sc.data.audit import audit_folder
from monai_sc.data.case_memory import CaseMemory
from monai_sc.data.cases import Case, check_cases
from monai_sc.data.correct import correct_folder
from monai_sc.data.dicom_seg import export_dicom_seg
from monai_sc.data.inference import check_images, check_weights, image_files
from monai_sc.data.label_store import LabelStore
from monai_sc.data.parts import Part
from monai_sc.data.phantom import PHANTOM_CLASSES, phantom_cases, phantom_image
from monai_sc.data.preparation import Preparation, PreparationError, prepare, prepared_cases
from monai_sc.data.round_writer import RoundWriter
from monai_sc.data.simulation import NoiseChoice, SimulationError, simulate_folder, summarise_simulation
from monai_sc.data.usable_cases import UsableCases, usable_cases

__all__ = [
    "PHANTOM_CLASSES",
    "Case",
    "CaseMemory",
    "LabelStore",
    "NoiseChoice",
    "Part",
    "Preparation",
    "PreparationError",
    "RoundWriter",
    "SimulationError",
    "UsableCases",
    "audit_folder",
    "check_cases",
    "check_images",
    "check_weights",
    "correct_folder",
    "export_dicom_seg",
    "image_files",
    "phantom_cases",
    "phantom_image",
    "prepare",
    "prepared_cases",
    "simulate_folder",
    "summarise_simulation",
    "usable_cases",
]
