"""Reading image and label files: what a viewer shows, or one sentence that says why not."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from functools import cached_property

import itk
from monai.config import PathLike
from monai.data import MetaTensor
from monai.transforms import LoadImage
from PIL import Image


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
            "its pages are bits, have a palette, or use white for 0, which readers display differently; convert it to "
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
