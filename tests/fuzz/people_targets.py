"""Folders of labels as people have them, in any file type: a right bias, a right copy, or one sentence."""

from __future__ import annotations

import io
import os
import tempfile
import unicodedata
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
from PIL import Image
from scipy import ndimage

from .command_targets import command
from .files import damage
from .inputs import Draw

SUFFIXES = (".png", ".tif", ".bmp", ".nii.gz", ".nii", ".nrrd", ".mha")
PICTURES = (".png", ".tif", ".bmp")
TIFF = ("grey", "bits", "white-is-0", "palette")
UNITS = {"mm": 1.0, "micron": 1e-3, "meter": 1e3, "unknown": 1.0}
TOO_WIDE = 2  # voxels


class People:
    """How somebody saves the labels of one folder.

    Args:
        draw: what they do.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.suffix = draw.one(SUFFIXES)
        self.ndim = 2 if self.suffix in PICTURES else 3
        self.mode = draw.one(TIFF) if self.suffix == ".tif" else "grey"
        self.value = 1 if self.mode == "bits" else draw.one((1, 1, 255, 7))
        self.unit = draw.one(tuple(UNITS)) if self.suffix.startswith(".nii") else "mm"
        self.size = float(draw.one((1.0, 0.5, 3.0)))
        self.flaw = ""
        for flaw, ways in {
            "values": ("jpeg", "smooth", "resampled", "image", "conventions", "negative", "parts"),
            "shape": ("turned", "moved", "exchanged"),
            "type": ("colours", "damaged"),
            "spacing": ("unit",),
        }.items():
            if draw.is_wrong(flaw):
                self.flaw = draw.one(ways)
        if self.flaw in ("moved", "unit", "negative", "parts") and self.ndim == 2:
            self.flaw = ""
        if self.flaw == "unit" and not self.suffix.startswith(".nii"):
            self.flaw = ""
        if self.flaw in ("jpeg", "smooth", "image", "conventions", "colours", "negative", "parts", "resampled"):
            self.mode, self.value = "grey", self.value if self.value != 7 else 1

    def structure(self, k: int, wider: float) -> np.ndarray:
        """Return an object that no turn maps to itself, somewhere on one side; in 3D the same in some slices."""
        x, y = np.indices((36, 36)) - np.array([12 + k % 3, 16]).reshape(2, 1, 1)
        mask = ((x / (8 + wider)) ** 2 + (y / (7 + wider)) ** 2 <= 1) | (np.hypot(x - 7, y + 8) <= 4 + wider)
        return mask if self.ndim == 2 else np.repeat(mask[..., None], 5, axis=2)

    def values(self, mask: np.ndarray, k: int, folder: str) -> np.ndarray:
        """Return what is saved of a mask."""
        values = mask.astype(np.uint8) * self.value
        if self.flaw == "conventions" and k == 1 and folder == "labels":
            return mask.astype(np.uint8) * (255 if self.value == 1 else 1)
        if self.flaw in ("turned", "exchanged") and folder == "clean":
            turned = np.swapaxes(values, 0, 1) if self.flaw == "exchanged" else values[::-1]
            return np.ascontiguousarray(turned[:, :30] if self.flaw == "exchanged" else turned)
        if self.flaw == "exchanged":
            return np.ascontiguousarray(values[:30])
        if folder == "clean" and self.flaw not in ("jpeg", "smooth"):
            return values
        if self.flaw == "jpeg":
            return _slices(mask, _through_jpeg)
        if self.flaw == "smooth":
            return np.rint(ndimage.uniform_filter(mask * 255.0, 3)).astype(np.uint8)
        if self.flaw == "resampled":
            return np.rint(ndimage.uniform_filter(mask * 2.0, 2)).astype(np.uint8)
        if self.flaw == "image":
            return (60 + 90 * mask + self.draw.rng.normal(0, 10, mask.shape)).clip(0, 255).astype(np.uint8)
        if self.flaw == "negative":
            return mask.astype(np.int16) - 1
        if self.flaw == "parts":
            return mask.astype(np.float32) * 0.9 + 0.05
        return values

    def save(self, path: Path, values: np.ndarray, folder: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        moved = self.draw.one((0.0, 0.03)) if folder == "clean" else 0.0
        moved = 1.0 if self.flaw == "moved" and folder == "clean" else moved
        if self.suffix.startswith(".nii"):
            affine = np.diag([self.size] * 3 + [1.0])
            affine[0, 3] = moved * self.size
            image = nib.Nifti1Image(values, affine)
            image.header.set_xyzt_units(self.unit)
            if self.flaw == "unit":
                image.header["xyzt_units"] = 5
            nib.save(image, path)
        elif self.ndim == 3:
            image = itk.image_from_array(np.ascontiguousarray(values.T))
            image.SetSpacing([self.size] * 3)
            image.SetOrigin([moved * self.size, 0, 0])
            itk.imwrite(image, os.fspath(path))
        else:
            self._save_picture(path, np.ascontiguousarray(values.T))

    def _save_picture(self, path: Path, values: np.ndarray) -> None:
        if self.flaw == "colours":
            image = Image.fromarray(np.stack([values, 0 * values, values], axis=-1))
        elif self.mode == "bits":
            image = Image.fromarray(values > 0)
        elif self.mode == "palette":
            image = Image.fromarray(values)
            image.putpalette([0, 0, 0] + [200, 0, 0] * 255)
        else:
            image = Image.fromarray(values)
        image.save(path, **({"tiffinfo": {262: 0}} if self.mode == "white-is-0" else {}))

    def write(self, folder: Path) -> None:
        """Write five labels that are too wide, of which an expert has drawn four again."""
        accents = self.draw.happens(0.3)
        linked = self.draw.happens(0.2)
        for k in range(5):
            for part, wider in (("labels", TOO_WIDE), ("clean", 0)):
                if part == "clean" and k == 4:
                    continue
                name = f"Zoé {k}{self.suffix}" if accents else f"{k}{self.suffix}"
                name = unicodedata.normalize("NFC" if part == "labels" else "NFD", name)
                file = folder / ("kept" if linked else "") / part / name
                self.save(file, self.values(self.structure(k, wider), k, part), part)
                if linked:
                    (folder / part).mkdir(exist_ok=True)
                    (folder / part / name).symlink_to(file)
        if self.flaw == "damaged":
            damage(self.draw, sorted((folder / "kept" / "clean" if linked else folder / "clean").iterdir())[0])


def _slices(mask: np.ndarray, change: Any) -> np.ndarray:
    if mask.ndim == 2:
        return np.array(change(mask))
    return np.stack([change(mask[..., k]) for k in range(mask.shape[-1])], axis=-1)


def _through_jpeg(mask: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * 255).save(file, "JPEG", quality=80)
    return np.asarray(Image.open(file))


@cache
def _load_itk() -> None:
    """Load what ITK loads when it is needed, which ends Python where warnings are errors."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for suffix in (".nrrd", ".mha", ".tif", ".nii"):
            file = f"{name}/a{suffix}"
            itk.imwrite(itk.image_from_array(np.zeros((3, 3, 3) if suffix != ".tif" else (3, 3), np.uint8)), file)
            itk.imread(file)


def _written(draw: Draw, folder: Path) -> None:
    _load_itk()
    people = People(draw)
    people.write(folder)
    (folder / "what.txt").write_text(f"{people.flaw},{UNITS[people.unit] * people.size if people.ndim == 3 else 1}")


def _what(folder: Path) -> tuple[str, float]:
    flaw, voxel = (folder / "what.txt").read_text().split(",")
    return flaw, float(voxel)


def audit(draw: Draw, folder: Path) -> list[str]:
    _written(draw, folder)
    return ["audit", f"--labels={folder}/labels", f"--clean={folder}/clean"]


def was_audited(folder: Path, result: dict[str, Any]) -> bool:
    flaw, voxel = _what(folder)
    (row,) = result["classes"].values()
    right = abs(row["bias"] + TOO_WIDE * voxel) < 0.4 * voxel and row["verdict"] == "biased"
    return right and flaw in ("", "damaged", "colours")  # a file of which one bit has changed may be read


def correct(draw: Draw, folder: Path) -> list[str]:
    _written(draw, folder)
    return ["correct", "--no-report", *(f"--{part}={folder}/{part}" for part in ("labels", "clean", "out"))]


def was_corrected(folder: Path, result: dict[str, Any]) -> bool:
    flaw, voxel = _what(folder)
    (row,) = result["classes"].values()
    return abs(row["bias"] + TOO_WIDE * voxel) < 0.4 * voxel and flaw in ("", "damaged", "colours")


def simulate(draw: Draw, folder: Path) -> list[str]:
    _written(draw, folder)
    options = ["--num-steps=3", "--expansion-prob=1", "--march-prob=0.5"]
    return ["simulate", f"{folder}/labels", f"{folder}/out", *options]


def was_simulated(folder: Path, result: dict[str, Any]) -> bool:
    flaw, _ = _what(folder)
    grown = all(row["displacement_voxels"] < -0.3 for row in result["classes"])
    return grown and flaw not in ("jpeg", "smooth", "resampled", "image", "unit")


TARGETS = {
    "audit, any file": command(audit, was_audited, statuses=(1, 2)),
    "correct, any file": command(correct, was_corrected, statuses=(1, 2)),
    "simulate, any file": command(simulate, was_simulated, statuses=(1, 2)),
}
