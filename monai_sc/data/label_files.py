"""Writing a mask as a label file that looks like another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
from PIL import Image

__all__ = ["WRITABLE", "file_suffix", "write_label_like"]

NIFTI = (".nii", ".nii.gz")
PICTURES = (".png", ".bmp", ".tif", ".tiff")
VOLUMES = (".nrrd", ".nhdr", ".mha", ".mhd", ".hdr", ".img", ".gipl", ".vtk")
WRITABLE = NIFTI + PICTURES + VOLUMES
"""The suffixes of the label files that can be written without loss: by nibabel, PIL and ITK."""


def file_suffix(path: Path) -> str:
    """Return the suffix of a label file, ``.nii.gz`` counting as one."""
    return ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()


def write_label_like(mask: np.ndarray, path: Path, source: Path, foreground: float = 1) -> None:
    """Write a boolean ``mask`` as ``foreground`` and 0, with the file type, shape, dtype and geometry of ``source``.

    Args:
        mask: ``(*spatial)``, its axes as MONAI's ``LoadImage`` orders them.
        path: of the new file, with the suffix of ``source``; flushed to the disk before the function returns.
        source: a label file that is only read: NIfTI by nibabel, pictures by PIL, every other type by ITK.
        foreground: the value to write for the foreground.

    Raises:
        ValueError: when ``mask`` has another size than ``source``.
    """
    suffix = file_suffix(source)
    if suffix in NIFTI:
        template: Any = nib.load(source)
        slope, intercept = template.dataobj.slope, template.dataobj.inter
        raw = [(value - intercept) / slope for value in (foreground, 0)]
        values = _values_like(mask, template.shape, template.get_data_dtype(), source, *raw)
        image = type(template)(values, None, template.header)
        if (slope, intercept) != (1, 0):
            image.header.set_slope_inter(slope, intercept)  # which nibabel drops when it loads a file
        nib.save(image, path)
    elif suffix in PICTURES:
        with Image.open(source) as picture:
            like = np.asarray(picture)
            values = _values_like(mask.T, like.shape, like.dtype, source, foreground)
            written = Image.fromarray(values)
            if picture.mode == "P":
                written.putpalette(picture.getpalette() or [])
            written.save(path)
    else:
        image = itk.imread(os.fspath(source))
        like = itk.array_view_from_image(image)
        copy = itk.image_from_array(
            np.ascontiguousarray(_values_like(mask.T, like.shape, like.dtype, source, foreground))
        )
        copy.CopyInformation(image)
        copy.SetMetaDataDictionary(image.GetMetaDataDictionary())
        itk.imwrite(copy, os.fspath(path), compression=True)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _values_like(
    mask: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, source: Path, foreground: float, background: float = 0
) -> np.ndarray:
    if mask.size != np.prod(shape):
        raise ValueError(f"mask must have the shape of {source}, {tuple(shape)}, got {mask.shape}.")
    values = np.where(mask.reshape(shape), foreground, background)
    return np.asarray(values if np.issubdtype(dtype, np.floating) else np.rint(values), dtype=dtype)
