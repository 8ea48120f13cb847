"""Handlers for MONAI's engines."""

from __future__ import annotations

from monai_sc.handlers.resume import ResumeHandler
from monai_sc.handlers.spatial_correction import RoundEvents, SpatialCorrectionHandler

__all__ = ["ResumeHandler", "RoundEvents", "SpatialCorrectionHandler"]
