"""Label files of all kinds, and what can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image

from .inputs import Draw

TYPES = ("uint8", "int16", "float32", "float64")


def volume(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask ``(*spatial)`` of 2D or 3D and an affine."""
    size = draw.shape((2, 3), sizes=(1, 5, 8, 13))[1:] or (1, 1)
    affine = np.diag([*(draw.one((0.7, 1.0, 2.5, 1000.0, -2.0)) for _ in range(3)), 1.0])
    if draw.is_wrong("spacing"):
        affine[0, 0] = 0
    return draw.structure((1, *size))[0], affine


def nifti(draw: Draw, file: Path, values: np.ndarray, affine: np.ndarray) -> None:
    """Write a mask as a file of any type and byte order."""
    dtype = np.dtype(draw.option(TYPES, ("complex64",)))
    values = np.nan_to_num(values, posinf=3, neginf=0).clip(0) if dtype.kind in "iu" else values
    save_nifti(file, values.astype(dtype), affine, endianness=draw.one(("<", ">")))


def save_nifti(file: Path, values: np.ndarray, affine: np.ndarray, endianness: str = "<") -> None:
    """Write a file, also with an affine that has no inverse."""
    header = nib.Nifti1Header(endianness=endianness)
    header.set_data_dtype(values.dtype)
    header["pixdim"][1:4] = np.linalg.norm(affine[:3, :3], axis=0)
    header["sform_code"], header["srow_x"], header["srow_y"], header["srow_z"] = 1, *affine[:3]
    file.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, affine, header), file)


def picture(draw: Draw, file: Path, values: np.ndarray) -> None:
    """Write a 2D mask as a picture."""
    content = np.nan_to_num(values, posinf=3, neginf=0).clip(0, 255).astype(np.uint8).T
    content = np.stack([content] * 3, axis=-1) if draw.is_wrong("shape") else content
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(content).save(file)


def damage(draw: Draw, file: Path) -> None:
    """Do to a file what disks, copies and people do."""
    content = file.read_bytes()
    way = draw.one(("truncated", "flipped", "empty", "text", "gone"))
    if way == "gone":
        file.unlink()
        return
    if way == "flipped" and content:
        at = draw.whole(0, len(content) - 1)
        content = content[:at] + bytes([content[at] ^ (1 << draw.whole(0, 7))]) + content[at + 1 :]
    file.write_bytes(
        {"truncated": content[: draw.whole(0, len(content))], "empty": b"", "text": b"not an image\n"}.get(way, content)
    )


def edit_json(draw: Draw, file: Path) -> None:
    """Change one value of a file of JSON, or of one with a line of JSON for each case, or drop it."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    chosen = draw.whole(0, len(lines) - 1)
    content = [json.loads(lines[chosen])]
    place: Any = content
    key: Any = 0
    while isinstance(place[key], (dict, list)) and place[key] and draw.happens(0.8):
        place = place[key]
        key = draw.one(list(place) if isinstance(place, dict) else range(len(place)))
    if draw.happens(0.3) and place is not content:
        del place[key]
    else:
        place[key] = draw.one((None, True, -1, 10**30, 1.5, "", "../x", "a\0b", [], [[]], {}, {"a": 1}))
    lines[chosen] = json.dumps(content[0], indent=None if file.suffix == ".jsonl" else 1)
    file.write_text("\n".join(lines) + "\n")


def contents(*folders: Path) -> dict[Path, bytes]:
    """Return what all files in folders hold."""
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    return {file: file.read_bytes() for file in files}
