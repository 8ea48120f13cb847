"""Losses that label noise harms less than cross-entropy."""

from __future__ import annotations

from monai_sc.losses.case_map import CaseMapLoss
from monai_sc.losses.early_learning import EarlyLearningRegularizationLoss
from monai_sc.losses.generalized_cross_entropy import GeneralizedCrossEntropyLoss
from monai_sc.losses.symmetric_cross_entropy import SymmetricCrossEntropyLoss

__all__ = [
    "CaseMapLoss",
    "EarlyLearningRegularizationLoss",
    "GeneralizedCrossEntropyLoss",
    "SymmetricCrossEntropyLoss",
]
