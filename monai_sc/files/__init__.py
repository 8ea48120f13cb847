"""Label, prediction and image files: values, units, grids, names, durable writing, DICOM."""

from __future__ import annotations

from monai_sc.files.cases import Case, check_cases
from monai_sc.files.dicom import export_dicom_seg
from monai_sc.files.inference import check_images, check_weights, image_files

__all__ = ["Case", "check_cases", "check_images", "check_weights", "export_dicom_seg", "image_files"]
