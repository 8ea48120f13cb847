"""The ablations of the paper: trainings of one bundle that differ in one thing."""

from __future__ import annotations

from monai_sc.benchmark.ablations.ablation import Ablation, Setup, run_ablation, write_confidence, write_rounds
from monai_sc.benchmark.ablations.confidence import confidence
from monai_sc.benchmark.ablations.holes import holes
from monai_sc.benchmark.ablations.noise_level import noise_level
from monai_sc.benchmark.ablations.validation_size import draw_cases, validation_size

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
