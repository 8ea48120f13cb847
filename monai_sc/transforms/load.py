"""The transform that loads label files, and refuses those that are not what the case list says."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import itk
import numpy as np
import torch
from monai.config import KeysCollection, PathLike
from monai.data import MetaTensor
from monai.transforms import LoadImage, MapTransform, Transform
from monai.utils import TransformBackends, convert_to_dst_type, convert_to_tensor
from PIL import Image

from monai_sc.functional.label_values import values_in, why_no_label


class _Images(threading.local):
    """What reads all images of a thread; MONAI's readers keep the names of the files of the image that they read."""

    @cached_property
    def load(self) -> LoadImage:
        """Made once, since that takes as long as to read a small image."""
        return LoadImage(image_only=True, ensure_channel_first=True)

    @cached_property
    def load_picture(self) -> LoadImage:
        """The same by PIL."""
        return LoadImage("PILReader", image_only=True, ensure_channel_first=True)


_IMAGES = _Images()
TOLERANCE = 1e-3  # for files whose scale makes a 1 read 0.99999997
TURNABLE = (".jpg", ".jpeg", ".png", ".tif", ".tiff")
ORIENTATION = 274  # the tag of EXIF and TIFF
MIN_IS_WHITE, PALETTE = 0, 3  # of a TIFF file's photometric interpretation


def is_picture_tiff(path: PathLike) -> bool:
    """Say whether a file is a TIFF picture whose values are not what it shows: white is 0, a bit each, or a palette.

    ITK reads such files otherwise than viewers show them, PIL as they do.

    Raises:
        ValueError: when it has several pages.
    """
    if not os.fspath(path).lower().endswith((".tif", ".tiff")):
        return False
    try:
        with Image.open(path) as picture:
            shown = getattr(picture, "tag_v2", {}).get(262)
            unlike = shown in (MIN_IS_WHITE, PALETTE) or picture.mode in ("1", "P")
            pages = getattr(picture, "n_frames", 1)
    except Exception:  # which its reader tells
        return False
    if unlike and pages > 1:
        raise ValueError(
            "its pages are bits, have a palette, or white for 0, which readers show in different ways; convert it to "
            "grey values, such as with ImageJ, or to .nii.gz"
        )
    return unlike


LAYERS = "it holds several values in each voxel, such as colours or layers; export it as one map of classes"


def has_layers(path: PathLike) -> bool:
    """Say whether a file that ITK reads has several values in each voxel, by its header.

    ITK itself looks through all its modules, for half a minute, before it says that it cannot read such a file.
    """
    if not os.fspath(path).lower().endswith((".nrrd", ".nhdr", ".mha", ".mhd")):
        return False
    try:
        header = itk.ImageIOFactory.CreateImageIO(os.fspath(path), itk.CommonEnums.IOFileMode_ReadMode)
        header.SetFileName(os.fspath(path))
        header.ReadImageInformation()
        return bool(header.GetNumberOfComponents() > 1)
    except Exception:  # which its reader tells
        return False


def why_turned(path: PathLike) -> str:
    """Return what to say of a picture that viewers turn when they show it, as its EXIF orientation says; else nothing.

    MONAI reads such a picture as it is stored, while a mask is drawn on what a viewer shows.
    """
    name = os.fspath(path).lower()
    if not name.endswith(TURNABLE):
        return ""
    try:
        with open(path, "rb") as file:
            if not name.endswith((".tif", ".tiff")) and not re.search(rb"Exif|eXIf", file.read(1 << 16)):
                return ""
        with Image.open(path) as picture:
            turn = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # which its reader tells
        return ""
    if turn in (0, 1):
        return ""
    return (
        f"it must be upright, but its EXIF orientation, {turn}, turns it in viewers, which MONAI ignores; save a copy "
        "of it upright, such as with `mogrify -auto-orient` of ImageMagick"
    )


def read_image(files: PathLike | Sequence[PathLike], name: str) -> MetaTensor:
    """Return an image ``(channels, *spatial)`` as MONAI reads it, of one file, or of several with a channel each.

    Args:
        files: of the image.
        name: what an error calls them.

    Raises:
        ValueError: when it cannot be read, or viewers turn it.
    """
    for file in [files] if isinstance(files, (str, os.PathLike)) else files:
        if turned := why_turned(file):
            raise ValueError(f"{name} cannot be used: {turned}.")
    try:
        picture = isinstance(files, (str, os.PathLike)) and is_picture_tiff(files)
        image: MetaTensor = (_IMAGES.load_picture if picture else _IMAGES.load)(files)
    except Exception as error:  # each of MONAI's readers has its own
        raise unreadable(name, error) from error
    return image


def unreadable(name: str, error: BaseException) -> ValueError:
    """Return what to raise where a reader could not read a file."""
    return ValueError(
        f"{name} cannot be read: {reason_of(error)}; copy it again from its source, or convert it to a type that "
        "MONAI reads."
    )


def reason_of(error: BaseException) -> str:
    """Return what a reader says, in one line, without a full stop; that of ITK begins with a place in its own code."""
    if "is not wrapped for" in str(error):  # ITK, for values that are no numbers
        return LAYERS
    text = re.sub(r"^.*\(0x[0-9a-f]+\): ", "", " ".join(str(error).split()))
    return text.rstrip(".") or type(error).__name__


class LoadLabel(Transform):
    """Load a label ``(channels, *spatial)``, 0 and 1 as uint8, from one binary file per channel or from one label map.

    The files are read by MONAI's ``LoadImage``, whose axes and metadata they keep (of the first file). A value within
    0.001 of the one that it should be counts, for files whose scale makes a 1 read 0.99999997.

    Args:
        foreground: the value of the foreground in the files, by default the one value over 0 that a file holds, such as
            1 or 255; the background is 0.
        values: the label is one file, a label map: channel ``k`` is where it holds ``values[k]``, the background is 0.

    Raises:
        ValueError: when ``foreground`` is not over 0, ``values`` are not distinct whole numbers under 2**24 other than
            0, or both are given; at the call, when a file cannot be read, holds another value or more than one
            channel, the files differ in shape, or several are given with ``values``.
        FileNotFoundError: at the call, when a file does not exist.
    """

    backend = [TransformBackends.NUMPY]

    def __init__(self, *, foreground: float | None = None, values: Sequence[int] | None = None) -> None:
        if foreground is not None and (not isinstance(foreground, (int, float, np.number)) or not foreground > 0):
            raise ValueError(
                f"foreground must be the value of the foreground in the files, over 0, got {foreground!r}."
            )
        if values is not None:
            _check_values(values)
            if foreground not in (None, 1):
                raise ValueError(
                    f"foreground must be left out where values give the classes of a label map, got {foreground!r}."
                )
        self.foreground = None if foreground is None else float(foreground)
        self.values = None if values is None else [int(value) for value in values]

    def __call__(self, files: PathLike | Sequence[PathLike]) -> MetaTensor:
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        if not paths:
            raise ValueError("A label must have at least one file, got none.")
        if self.values is not None and len(paths) > 1:
            files_given = ", ".join(map(str, paths))
            raise ValueError(f"With values a label must be one file, a label map, got {len(paths)}: {files_given}.")
        channels: list[Any] = [self._load(Path(path)) for path in paths]
        if len({tuple(c.shape) for c in channels}) != 1:
            shapes = ", ".join(f"{path} {tuple(c.shape[1:])}" for path, c in zip(paths, channels, strict=True))
            raise ValueError(f"The label files of a case must have one shape, got {shapes}.")
        label: MetaTensor = convert_to_dst_type(
            torch.cat([convert_to_tensor(c, track_meta=False) for c in channels]), channels[0]
        )[0]
        return label

    def _load(self, path: Path) -> MetaTensor:
        """Return the channels of one file."""
        if not path.is_file():
            raise FileNotFoundError(f"Label file {path} does not exist.")
        if has_layers(path):
            raise ValueError(f"Label file {path} cannot be used: {LAYERS}.")
        image = read_image(path, f"Label file {path}")
        if len(image) != 1:
            raise ValueError(f"Label file {path} must hold one channel, got {len(image)}.")
        content = image.numpy()[0]
        low, top = float(content.min(initial=0)), float(content.max(initial=0))  # either is nan if anything is
        if not np.isfinite([low, top]).all():
            raise ValueError(f"Label file {path} must hold numbers, got nan or infinity.")
        wanted: Sequence[float] = self.values or [self.foreground or (top if top > TOLERANCE else 1.0)]
        masks = np.stack([np.abs(content - value) < TOLERANCE for value in wanted])
        stray = ~masks.any(axis=0) & ~(np.abs(content) < TOLERANCE)
        if stray.any():
            raise ValueError(self._refusal(path, content, content[stray]))
        return convert_to_dst_type(masks, image, dtype=torch.uint8)[0]

    def _refusal(self, path: Path, content: np.ndarray, stray: np.ndarray) -> str:
        """Return what to say of a file with other values than it should hold."""
        few = [float(value) for value in values_in(stray, limit=4)[:4]]
        if self.values is not None:
            *first, last = map(str, [0, *self.values])
            wanted, way_out = f"{', '.join(first)} and {last} only", "values must list every class of the file"
        elif self.foreground is not None:
            wanted, way_out = f"0 and {self.foreground:g} only", "'foreground' of its case must be that value"
        else:
            few = [*few, float(content.max())]
            wanted = "0 and one other value"
            way_out = "state 'foreground' in its case, or values for the classes of a label map"
        if self.values is None:
            way_out = why_no_label(content) or way_out
        return f"Label file {path} must hold {wanted}, got {', '.join(f'{value:g}' for value in few)}; {way_out}."


def _check_values(values: Sequence[int]) -> None:
    whole = isinstance(values, (Sequence, np.ndarray)) and all(isinstance(v, (int, np.integer)) for v in values)
    # LoadImage gives float32, in which larger numbers may be equal
    if not whole or not len(values) or len({0, *values}) <= len(values) or max(map(abs, values)) >= 2**24:
        raise ValueError(
            f"values must be distinct whole numbers under 2**24, one per class, none of them 0, got {values!r}."
        )


class LoadLabeld(MapTransform):
    """Dictionary version of :py:class:`LoadLabel`: each key holds the file of a label, or one file per channel.

    Args:
        keys: of the labels.
        foreground_key: of the foreground's value in the files; without it, it is the one value that a file holds.
        values: of the classes, where the files are label maps; the same in all cases.
        allow_missing_keys: skip a key that is absent.
    """

    backend = LoadLabel.backend

    def __init__(
        self,
        keys: KeysCollection,
        *,
        foreground_key: str = "foreground",
        values: Sequence[int] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.foreground_key = foreground_key
        self.values = LoadLabel(values=values).values

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        load = LoadLabel(foreground=d.get(self.foreground_key), values=self.values)
        for key in self.key_iterator(d):
            d[key] = load(d[key])
        return d


LoadLabelD = LoadLabelDict = LoadLabeld
