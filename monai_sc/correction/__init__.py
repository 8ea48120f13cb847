"""Fit a correction on a few clean cases, and correct labels and predictions with it."""

from __future__ import annotations

from monai_sc.correction.corrector import SpatialCorrector
from monai_sc.correction.fitted import CorrectionOptions, Fitted
from monai_sc.correction.given import compare_given
from monai_sc.correction.presence import PresenceRates, PresenceRule

__all__ = ["CorrectionOptions", "Fitted", "PresenceRates", "PresenceRule", "SpatialCorrector", "compare_given"]
