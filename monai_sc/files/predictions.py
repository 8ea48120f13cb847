"""Predictions of networks as files: NIfTI, and the probabilities that nnU-Net exports."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.utils import to_affine_nd

from monai_sc.files.axes import Axes, turned
from monai_sc.files.grids import APART, in_mm, mm_per_unit, voxels_apart
from monai_sc.files.names import find_in
from monai_sc.files.write import name_suffix, without_suffix

__all__ = ["Prediction", "find_prediction", "load_prediction"]

SUFFIXES = (".npz", ".nii.gz", ".nii")
PROBABILITY_KEYS = ("probabilities", "softmax")  # nnU-Net v2 and v1
MAX_CHANNELS = 1024  # of a prediction: far above any, far below what a file of a few bytes can tell


@dataclass(frozen=True)
class Prediction:
    """One prediction.

    Attributes:
        values: ``(channels, *spatial)``, axes as in the label file.
        are_probabilities: whether the file says that they are; ``None`` where it says nothing.
    """

    values: np.ndarray
    are_probabilities: bool | None


def find_prediction(folder: Path, name: str) -> Path:
    """Return the file with the prediction for the label file ``name``: the same name, up to the suffix.

    Raises:
        FileNotFoundError: when there is none.
        ValueError: when there are several.
    """
    stem = without_suffix(name)
    stems = [stem, f"{stem}.seg"] if name_suffix(Path(name)) == ".seg.nrrd" else [stem]
    found = [file for own in stems for suffix in SUFFIXES if (file := find_in(folder, f"{own}{suffix}")).is_file()]
    # nnU-Net writes its label map beside the probabilities, under the same name.
    if len(found) > 1 and found[0].suffix == ".npz":
        found = found[:1]
    if not found:
        raise FileNotFoundError(f"{folder} holds no prediction of {name}: no {stem}{' or '.join(SUFFIXES)}.")
    if len(found) > 1:
        raise ValueError(f"{folder} holds several predictions of {name}: {', '.join(f.name for f in found)}.")
    return found[0]


def load_prediction(
    path: Path, shape: tuple[int, ...], affine: np.ndarray | None, axes: str | None = None
) -> Prediction:
    """Return a prediction for a label of ``shape`` ``(*spatial)``.

    ``.nii`` and ``.nii.gz`` hold the channels on the last axis, or one channel without such an axis. ``.npz`` holds
    ``probabilities`` or ``softmax`` of nnU-Net: the channels first, then the spatial axes the other way round, with an
    axis of length 1 for pictures; or ``logits`` in the same order. The pickle file that nnU-Net puts beside it is not
    opened, since a pickle can run code: the label file has the geometry.

    Args:
        path: of the file.
        shape: of its label ``(*spatial)``.
        affine: of its label; ``None`` where that has no geometry.
        axes: how those of the file lie, if not as those of the label: an orientation or numbers, as for
            :py:func:`~monai_sc.folders.correct_folder`.

    No voxel is read before the header of the file has told that its shape fits, whatever it would unpack to.

    Raises:
        ValueError: when the file cannot be read, or its shape or affine is not that of the label.
    """
    order = None if axes is None else Axes(axes).of(len(shape), affine)
    if order is not None:
        shape = tuple(shape[[abs(axis) for axis in order].index(k + 1)] for k in range(len(shape)))
    try:
        if path.suffix == ".npz":
            values, sure = _from_npz(path, shape)
        else:
            image: Any = nib.load(path)
            told = image.shape
            if len(told) > len(shape) + 1 and told[len(shape) : -1] == (1,) * (len(told) - len(shape) - 1):
                told = (*told[: len(shape)], told[-1])  # with an axis of time, of length 1
            _check_shape(path, (1, *told) if len(told) == len(shape) else (told[-1], *told[:-1]), shape)
            values, sure = np.asarray(image.dataobj, dtype=np.float32).reshape(told), None
            values = values[None] if values.ndim == len(shape) else np.moveaxis(values, -1, 0)
            found = in_mm(np.asarray(image.affine), mm_per_unit(path))
            apart = 0.0 if affine is None or order is not None else voxels_apart(found, to_affine_nd(3, affine), shape)
            if not apart <= APART:
                raise ValueError(
                    f"it must lie where its label lies, but their corners are up to {apart:.3g} voxels apart; export "
                    "it in the geometry of the label"
                )
    except _OtherGridError:
        raise
    except ValueError as error:
        raise ValueError(f"Prediction {path} cannot be used: {str(error).rstrip('.')}.") from error
    except Exception as error:  # each of the readers has its own
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"Prediction {path} cannot be read: {text.rstrip('.')}.") from error
    if not np.isfinite(values).all():
        raise ValueError(f"Prediction {path} must be finite, got nan or infinite values.")
    if order is not None:
        values = np.stack([turned(channel, order) for channel in values])
    return Prediction(values, sure)


class _OtherGridError(ValueError):
    """A prediction has another shape than its label."""


def _check_shape(path: Path, told: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse a shape ``(channels, *spatial)`` that a file tells, if a prediction for ``shape`` cannot have it."""
    if told[1:] != shape:
        exchanged = ", or say with --axes how its axes lie" if sorted(told[1:]) == sorted(shape) else ""
        raise _OtherGridError(
            f"Prediction {path} must lie on the grid of its label, {shape}, got {told[1:]}; export it in the geometry "
            f"of the label{exchanged}."
        )
    if not 0 < told[0] <= MAX_CHANNELS:
        raise ValueError(f"it must hold 1 to {MAX_CHANNELS} channels, got {told[0]}")


def _from_npz(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an npz file")
    with np.load(path, allow_pickle=False) as content:
        keys = [key for key in (*PROBABILITY_KEYS, "logits") if key in content.files]
        if not keys:
            raise ValueError(f"it must hold 'probabilities', 'softmax' or 'logits', got {content.files}")
        told, dtype = _header(content.zip, keys[0])
        if dtype.kind not in "biuf":
            raise ValueError(f"it must hold numbers, got {dtype}")
        if len(told) == len(shape) + 2 and told[1] == 1:
            told = (told[0], *told[2:])
        _check_shape(path, (*told[:1], *told[:0:-1]), shape)
        values = np.asarray(content[keys[0]], dtype=np.float32).reshape(told)
    return np.moveaxis(values, range(1, values.ndim), range(values.ndim - 1, 0, -1)), keys[0] in PROBABILITY_KEYS


def _header(archive: zipfile.ZipFile, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return what the header of an array in an npz file tells: its shape and its type."""
    with archive.open(key if key in archive.namelist() else f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype
