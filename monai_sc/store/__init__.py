"""The label store: rounds of labels beside the originals, and their export."""

from __future__ import annotations

from monai_sc.store.export import export_datalist, export_folder, export_monai_label, export_nnunet
from monai_sc.store.label_store import LabelStore
from monai_sc.store.rounds import RoundWriter
from monai_sc.store.usable_cases import UsableCases, usable_cases

__all__ = [
    "LabelStore",
    "RoundWriter",
    "UsableCases",
    "export_datalist",
    "export_folder",
    "export_monai_label",
    "export_nnunet",
    "usable_cases",
]
