"""Data sets as they are downloaded, made into the folders that the bundles read."""

from __future__ import annotations

from monai_sc.data.preparation.prepare import Preparation, prepare
from monai_sc.data.preparation.prepared import prepared_cases
from monai_sc.data.preparation.workplace import PreparationError

__all__ = ["Preparation", "PreparationError", "prepare", "prepared_cases"]
