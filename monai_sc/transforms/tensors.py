"""What the transforms do with an array before all else."""

from __future__ import annotations

import numpy as np
from monai.config import NdarrayOrTensor
from monai.data import get_track_meta
from monai.utils import convert_to_tensor


def as_tensor(array: NdarrayOrTensor) -> NdarrayOrTensor:
    """Return an array as a tensor, as MONAI's transforms do, whatever its layout in memory."""
    if isinstance(array, np.ndarray):  # which may be read-only, flipped or big-endian, as tensors cannot
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    tensor: NdarrayOrTensor = convert_to_tensor(array, track_meta=get_track_meta())
    return tensor
