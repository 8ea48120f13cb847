"""Trainers that label noise harms less than MONAI's ``SupervisedTrainer``."""

from __future__ import annotations

from monai_sc.engines.co_teaching import CoTeachingPlusTrainer
from monai_sc.engines.pick_and_learn import PickAndLearnTrainer

__all__ = ["CoTeachingPlusTrainer", "PickAndLearnTrainer"]
