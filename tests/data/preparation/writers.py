"""What writes the stand-in of each layout."""

from __future__ import annotations

from monai_sc.data.stand_ins import STAND_INS
from monai_sc.data.stand_ins.jsrt import write_jsrt_ready
from monai_sc.data.stand_ins.lidc_idri import write_lidc_crops, write_lidc_slices

WRITERS = {
    **STAND_INS,
    "jsrt-ready": write_jsrt_ready,
    "lidc_idri-crops": write_lidc_crops,
    "lidc_idri-slices": write_lidc_slices,
}
