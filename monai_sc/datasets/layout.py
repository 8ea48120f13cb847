"""What a data set looks like as it is downloaded: the cases that a folder holds, and the content of one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from monai_sc.files.read import unreadable, why_turned

SPLITS = TRAIN, CLEAN, TEST = ("train", "clean", "test")


@dataclass(frozen=True)
class SourceCase:
    """One case of a data set as it was downloaded.

    Attributes:
        id: of the case, which names its files.
        files: of the case by what they are, such as ``"image"``; what one of them is depends on the data set.
        group: of cases that belong together, such as the slices of a patient: a group goes into one split.
        split: that the data set itself gives the case to; ``None``: the preparation draws it.
    """

    id: str
    files: dict[str, Path]
    group: str
    split: str | None = None


@dataclass
class Content:
    """What the files of a case hold; the axes are those of MONAI's readers, the first is from left to right.

    Attributes:
        image: ``(channels, *spatial)``; of a picture, grey or RGB values in ``[0, 255]``.
        labels: masks ``(classes, *spatial)``, bool; the shape may differ from that of the image where the data set
            has masks of another resolution.
        noisy: masks like ``labels`` that carry annotation error, where the data set has such.
        affine: ``(4, 4)``, of voxels to mm in RAS; ``None``: a picture, written as PNG.
    """

    image: np.ndarray
    labels: np.ndarray
    noisy: np.ndarray | None = None
    affine: np.ndarray | None = None


class Layout(ABC):
    """The official folder layout of a data set, and others that it is passed on in.

    A class for each data set; an object looks at one folder, which it only reads.

    Attributes:
        name: of the data set, as of its bundle.
        classes: of the masks, in the order of their channels.
        default_size: spatial size of the prepared files, by default.
        split_sizes: number of cases of each split when none is missing; the splits of a part are in proportion.
    """

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    default_size: ClassVar[tuple[int, ...]]
    split_sizes: ClassVar[dict[str, int]]

    def __init__(self, source: Path) -> None:
        self.source = source

    @abstractmethod
    def cases(self) -> list[SourceCase]:
        """Return the cases, ordered by their id, without reading their files.

        Raises:
            ValueError: in one sentence with the file or folder, when the folder does not have this layout, or a case
                lacks a file.
        """

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        """Return what the official data set has and the folder lacks, one phrase for each."""
        return []

    @abstractmethod
    def read(self, case: SourceCase) -> Content:
        """Return what the files of one case hold.

        Raises:
            ValueError: in one sentence with the file, when one cannot be used.
        """

    def options(self) -> dict[str, Any]:
        """Return the choices that the prepared files depend on, besides those of every data set."""
        return {}


def visible_files(folder: Path | Iterable[Path], suffixes: Iterable[str]) -> dict[str, Path]:
    """Return the files of a folder, or of several, with one of these suffixes, in any case, by their name without it.

    Hidden files do not count, among them the ``._`` files that macOS leaves on other disks.

    Raises:
        ValueError: when a folder does not exist, or two files differ in folder, case or suffix only.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    for place in folders:
        if not place.is_dir():
            raise ValueError(f"Folder {place} does not exist; unpack the whole data set, with its own folder names.")
    wanted = tuple(suffix.lower() for suffix in suffixes)
    found: dict[str, Path] = {}
    for file in (file for place in folders for file in sorted(place.iterdir())):
        suffix = next((s for s in wanted if file.name.lower().endswith(s)), None)
        if suffix is None or file.name.startswith(".") or not file.is_file():
            continue
        name = file.name[: -len(suffix)]
        if name in found:
            raise ValueError(f"{found[name]} and {file} must be one file, not two; delete one of them.")
        found[name] = file
    return found


def folders_below(folder: Path) -> list[Path]:
    """Return a folder and all below it, sorted, those behind links too, each once; hidden ones do not count.

    Raises:
        OSError: when one may not be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    seen: set[Path] = set()
    found = []
    for root, names, _ in os.walk(folder, onerror=refuse, followlinks=True):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if (real := Path(root).resolve()) in seen:
            names.clear()  # a link that leads back would never end
            continue
        seen.add(real)
        found.append(Path(root))
    return sorted(found)


def open_picture(file: Path, modes: Sequence[str]) -> np.ndarray:
    """Return a picture ``(width, height)`` or ``(width, height, channels)`` as its file holds it; a palette as grey.

    Raises:
        ValueError: when it cannot be read, viewers turn it, or it has another mode.
    """
    try:
        with Image.open(file) as picture:
            mode, content = picture.mode, np.asarray(picture.convert("L") if picture.mode == "P" else picture)
    except Exception as error:  # Pillow has many
        raise unreadable(f"Picture {file}", error) from error
    if turned := why_turned(file):
        raise ValueError(f"Picture {file} cannot be used: {turned}.")
    if mode not in modes:
        raise ValueError(f"Picture {file} must be of mode {' or '.join(modes)} of Pillow, got {mode}; convert it.")
    return content.swapaxes(0, 1)


def refuse_unpaired(images: Mapping[str, Path], masks: Mapping[str, Path], folders: tuple[Path, Path]) -> None:
    """Refuse an image without its mask, and a mask without its image.

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


def check_new_folder(out: Path) -> None:
    """Make a folder; refuse one that holds files.

    Raises:
        ValueError: when it holds files, or is one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a folder that is empty or does not exist, got {out}.")
    out.mkdir(parents=True, exist_ok=True)
