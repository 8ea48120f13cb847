"""Handlers for MONAI's engines."""

from __future__ import annotations

from monai_sc.handlers.clean_pretraining import CleanPretrainingHandler
from monai_sc.handlers.confidence import ConfidenceHandler, WatchedVoxel
from monai_sc.handlers.confident_learning import ConfidentLearningHandler
from monai_sc.handlers.critical_gradient import CriticalGradientHandler
from monai_sc.handlers.early_learning import EarlyLearningTargetHandler
from monai_sc.handlers.kept_voxels import KeptVoxelsHandler
from monai_sc.handlers.noise_rate import NoiseRateHandler
from monai_sc.handlers.resume import OtherRunError, ResumeHandler
from monai_sc.handlers.spatial_correction import RoundEvents, SpatialCorrectionHandler

__all__ = [
    "CleanPretrainingHandler",
    "ConfidenceHandler",
    "ConfidentLearningHandler",
    "CriticalGradientHandler",
    "EarlyLearningTargetHandler",
    "KeptVoxelsHandler",
    "NoiseRateHandler",
    "OtherRunError",
    "ResumeHandler",
    "RoundEvents",
    "SpatialCorrectionHandler",
    "WatchedVoxel",
]
