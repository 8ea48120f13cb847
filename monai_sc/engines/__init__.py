"""Trainers that label noise harms less than MONAI's ``SupervisedTrainer``."""

from __future__ import annotations

from monai_sc.engines.pick_and_learn import PickAndLearnTrainer

__all__ = ["PickAndLearnTrainer"]
"""Engines that train against label noise."""

from __future__ import annotations

from monai_sc.engines.co_teaching import CoTeachingPlusTrainer

__all__ = ["CoTeachingPlusTrainer"]
