"""What tests ask of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def contents(folder):
    """Return the content of every file below a folder, by its path in there."""
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


def picture(file, mode=None):
    """Return the pixels of a picture, rows first, converted to a mode of Pillow if one is given."""
    with Image.open(file) as opened:
        return np.asarray(opened if mode is None else opened.convert(mode))
