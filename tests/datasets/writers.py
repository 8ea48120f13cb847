"""What writes the stand-in of each layout."""

from __future__ import annotations

from monai_sc.datasets.jsrt import write_jsrt_ready
from monai_sc.datasets.lidc_idri.stand_in import write_lidc_crops, write_lidc_slices
from monai_sc.datasets.stand_ins import STAND_INS

WRITERS = {
    **STAND_INS,
    "jsrt-ready": write_jsrt_ready,
    "lidc_idri-crops": write_lidc_crops,
    "lidc_idri-slices": write_lidc_slices,
}
