"""The ablations of the paper, and its illustrations: trainings of one bundle that differ in one thing."""

from __future__ import annotations

from monai_sc.comparison.ablations.ablation import Ablation, Setup, run_ablation
from monai_sc.comparison.ablations.confidence import confidence
from monai_sc.comparison.ablations.holes import holes
from monai_sc.comparison.ablations.noise_level import noise_level
from monai_sc.comparison.ablations.validation_size import draw_cases, validation_size
from monai_sc.comparison.ablations.written import write_confidence, write_rounds

__all__ = [
    "Ablation",
    "Setup",
    "confidence",
    "draw_cases",
    "holes",
    "noise_level",
    "run_ablation",
    "validation_size",
    "write_confidence",
    "write_rounds",
]
