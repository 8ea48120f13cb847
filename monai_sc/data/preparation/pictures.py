"""Images and their masks, in two folders with the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from monai_sc.data.preparation.layout import open_picture


def refuse_unpaired(images: Mapping[str, Path], masks: Mapping[str, Path], folders: tuple[Path, Path]) -> None:
    """Refuse an image without its mask, and a mask without its image.

    Args:
        images: files by their id.
        masks: files by their id.
        folders: of the images, and of the masks.

    Raises:
        ValueError: naming the first of them, or the folder of the images when it holds none.
    """
    if not images:
        raise ValueError(f"Folder {folders[0]} must hold images with their official names, got none; unpack it again.")
    for name in sorted(images.keys() ^ masks.keys()):
        if name in images:
            raise ValueError(
                f"Image {images[name]} must have a mask in {folders[1]}, got none; unpack the masks again, or delete "
                "the image."
            )
        raise ValueError(
            f"Mask {masks[name]} must have an image in {folders[0]}, got none; unpack the images again, or delete the "
            "mask."
        )


def open_rgb(file: Path) -> np.ndarray:
    """Return an RGB picture ``(3, width, height)``, uint8.

    Raises:
        ValueError: when it cannot be read, or has another mode.
    """
    return np.moveaxis(open_picture(file, ["RGB"]), -1, 0)


def open_label(file: Path, values: Sequence[int], modes: Sequence[str]) -> np.ndarray:
    """Return a picture of labels ``(width, height)``, uint8; one of 1 bit as 0 and 255.

    Args:
        file: PNG or another type that Pillow reads.
        values: that it may hold.
        modes: of Pillow that are allowed.

    Raises:
        ValueError: when it cannot be read, or has another mode or another value.
    """
    label = open_picture(file, modes)
    label = label * np.uint8(255) if label.dtype == bool else label
    stray = np.setdiff1d(label, values)
    if len(stray):
        allowed = " and ".join(map(str, values)) if len(values) < 3 else f"{values[0]} to {values[-1]}"
        raise ValueError(f"Mask {file} must hold the values {allowed} only, got {stray[0]}; unpack it again.")
    return label


def check_size(label: np.ndarray, image: np.ndarray, file: Path) -> None:
    """Refuse a label ``(width, height)`` that has another size than its image ``(channels, width, height)``.

    Raises:
        ValueError: naming the file of the label.
    """
    if label.shape != image.shape[1:]:
        wanted, given = (" x ".join(map(str, shape)) for shape in (image.shape[1:], label.shape))
        raise ValueError(f"Mask {file} must have the size of its image, {wanted}, got {given}; unpack both again.")
