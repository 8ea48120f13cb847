"""Audit, correct and simulate folders of labels."""

from __future__ import annotations

from monai_sc.folders.audit import audit_folder
from monai_sc.folders.correct import correct_folder
from monai_sc.folders.noise_choice import NoiseChoice
from monai_sc.folders.simulate import simulate_folder, summarise_simulation
from monai_sc.folders.simulated_case import SimulationError

__all__ = [
    "NoiseChoice",
    "SimulationError",
    "audit_folder",
    "correct_folder",
    "simulate_folder",
    "summarise_simulation",
]
