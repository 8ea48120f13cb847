"""What a few clean cases say of labels and predictions, and what is done with it."""

from __future__ import annotations

from monai_sc.correction.corrector import SpatialCorrector
from monai_sc.correction.presence import PresenceRates, PresenceRule

__all__ = ["PresenceRates", "PresenceRule", "SpatialCorrector"]
