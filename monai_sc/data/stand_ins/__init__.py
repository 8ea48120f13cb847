"""Small generated data sets in the layouts of the official ones, to try everything without a download."""

from __future__ import annotations

from monai_sc.data.stand_ins.brats2020 import write_brats2020
from monai_sc.data.stand_ins.cityscapes import write_cityscapes
from monai_sc.data.stand_ins.isic2017 import write_isic2017
from monai_sc.data.stand_ins.jsrt import write_jsrt
from monai_sc.data.stand_ins.lidc_idri import write_lidc_idri

__all__ = ["STAND_INS"]

STAND_INS = {
    "brats2020": write_brats2020,
    "cityscapes": write_cityscapes,
    "isic2017": write_isic2017,
    "jsrt": write_jsrt,
    "lidc_idri": write_lidc_idri,
}
"""What writes the stand-in of a data set, by its name."""
