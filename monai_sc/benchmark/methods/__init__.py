"""The compared methods, a module each: its loss, handler, trainer and network."""

from __future__ import annotations

from monai_sc.benchmark.methods.case_map import CaseMapLoss, CaseMemory, LoadCaseMapD, LoadCaseMapd, LoadCaseMapDict
from monai_sc.benchmark.methods.clean_pretraining import CleanPretrainingHandler
from monai_sc.benchmark.methods.co_teaching import CoTeachingPlusTrainer, select_small_loss
from monai_sc.benchmark.methods.confidence import ConfidenceHandler, WatchedVoxel
from monai_sc.benchmark.methods.confident_learning import ConfidentLearning, ConfidentLearningHandler
from monai_sc.benchmark.methods.critical_gradient import CriticalGradientHandler
from monai_sc.benchmark.methods.early_learning import EarlyLearningRegularizationLoss, EarlyLearningTargetHandler
from monai_sc.benchmark.methods.generalized_cross_entropy import GeneralizedCrossEntropyLoss, KeptVoxelsHandler
from monai_sc.benchmark.methods.noise_rate import NoiseRateHandler, estimate_noise_rate
from monai_sc.benchmark.methods.pick_and_learn import PickAndLearnNet, PickAndLearnTrainer, QualityAwarenessModule
from monai_sc.benchmark.methods.symmetric_cross_entropy import SymmetricCrossEntropyLoss

__all__ = [
    "CaseMapLoss",
    "CaseMemory",
    "CleanPretrainingHandler",
    "CoTeachingPlusTrainer",
    "ConfidenceHandler",
    "ConfidentLearning",
    "ConfidentLearningHandler",
    "CriticalGradientHandler",
    "EarlyLearningRegularizationLoss",
    "EarlyLearningTargetHandler",
    "GeneralizedCrossEntropyLoss",
    "KeptVoxelsHandler",
    "LoadCaseMapD",
    "LoadCaseMapDict",
    "LoadCaseMapd",
    "NoiseRateHandler",
    "PickAndLearnNet",
    "PickAndLearnTrainer",
    "QualityAwarenessModule",
    "SymmetricCrossEntropyLoss",
    "WatchedVoxel",
    "estimate_noise_rate",
    "select_small_loss",
]
