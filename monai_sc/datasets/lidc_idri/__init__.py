"""LIDC-IDRI in the three forms that it is distributed in."""

from __future__ import annotations

from monai_sc.datasets.lidc_idri.layout import LidcIdriLayout
from monai_sc.datasets.lidc_idri.stand_in import write_lidc_crops, write_lidc_idri, write_lidc_slices

__all__ = ["LAYOUT", "LidcIdriLayout", "write_lidc_crops", "write_lidc_idri", "write_lidc_slices"]

LAYOUT = LidcIdriLayout
