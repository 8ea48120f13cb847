"""How a network starts, and networks that judge the labels they learn from."""

from __future__ import annotations

from monai_sc.networks.pick_and_learn import PickAndLearnNet, QualityAwarenessModule
from monai_sc.networks.start import start_at_prior

__all__ = ["PickAndLearnNet", "QualityAwarenessModule", "start_at_prior"]
