"""LIDC-IDRI in the three forms that it is passed on in."""

from __future__ import annotations

from monai_sc.data.preparation.lidc_idri.layout import LidcIdriLayout

__all__ = ["LAYOUT", "LidcIdriLayout"]

LAYOUT = LidcIdriLayout
