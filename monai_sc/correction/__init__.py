"""Fit a correction on a few clean cases, and correct labels and predictions with it."""

from __future__ import annotations

from monai_sc.correction.class_fit import ClassBias, ClassFit, Judgement
from monai_sc.correction.corrector import SpatialCorrector
from monai_sc.correction.fitted import CorrectionOptions, Fitted
from monai_sc.correction.given import compare_given
from monai_sc.correction.label import Corrected
from monai_sc.correction.presence import PresenceRates, PresenceRule
from monai_sc.correction.shifts import ClassCorrection

__all__ = [
    "ClassBias",
    "ClassCorrection",
    "ClassFit",
    "Corrected",
    "CorrectionOptions",
    "Fitted",
    "Judgement",
    "PresenceRates",
    "PresenceRule",
    "SpatialCorrector",
    "compare_given",
]
