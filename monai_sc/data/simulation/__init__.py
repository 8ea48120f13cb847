"""Noisy copies of a folder of masks."""

from __future__ import annotations

from monai_sc.data.simulation.case import SimulationError
from monai_sc.data.simulation.choice import NoiseChoice
from monai_sc.data.simulation.simulate import simulate_folder, summarise_simulation

__all__ = ["NoiseChoice", "SimulationError", "simulate_folder", "summarise_simulation"]
