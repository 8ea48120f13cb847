"""The correction in a MONAI training."""

from __future__ import annotations

from monai_sc.handlers.prediction import prepare_plain_batch
from monai_sc.handlers.progress import ProgressHandler
from monai_sc.handlers.resume import OtherRunError, ResumeHandler
from monai_sc.handlers.spatial_correction import RoundEvents, SpatialCorrectionHandler
from monai_sc.handlers.start import start_at_prior

__all__ = [
    "OtherRunError",
    "ProgressHandler",
    "ResumeHandler",
    "RoundEvents",
    "SpatialCorrectionHandler",
    "prepare_plain_batch",
    "start_at_prior",
]
