"""Predictions of networks as files: NIfTI, and the probabilities that nnU-Net exports."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

__all__ = ["Prediction", "find_prediction", "load_prediction"]

SUFFIXES = (".npz", ".nii.gz", ".nii")
PROBABILITY_KEYS = ("probabilities", "softmax")  # nnU-Net v2 and v1


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
    found = [folder / f"{stem}{suffix}" for suffix in SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    # nnU-Net writes its label map beside the probabilities, under the same name.
    if len(found) > 1 and found[0].suffix == ".npz":
        found = found[:1]
    if not found:
        raise FileNotFoundError(f"{folder} holds no prediction of {name}: no {stem}{' or '.join(SUFFIXES)}.")
    if len(found) > 1:
        raise ValueError(f"{folder} holds several predictions of {name}: {', '.join(f.name for f in found)}.")
    return found[0]


def without_suffix(name: str) -> str:
    """Return a file name without its suffix, ``.nii.gz`` counting as one; folders stay."""
    return name[: -len(".nii.gz")] if name.lower().endswith(".nii.gz") else str(Path(name).with_suffix(""))


def load_prediction(path: Path, shape: tuple[int, ...], affine: np.ndarray | None) -> Prediction:
    """Return a prediction for a label of ``shape`` ``(*spatial)``.

    ``.nii`` and ``.nii.gz`` hold the channels on the last axis, or one channel without such an axis. ``.npz`` holds
    ``probabilities`` or ``softmax`` of nnU-Net: the channels first, then the spatial axes the other way round, with an
    axis of length 1 for pictures; or ``logits`` in the same order. The pickle file that nnU-Net puts beside it is not
    opened, since a pickle can run code: the label file has the geometry.

    Raises:
        ValueError: when the file cannot be read, or its shape or affine is not that of the label.
    """
    try:
        if path.suffix == ".npz":
            values, sure = _from_npz(path, len(shape))
        else:
            image = nib.load(path)
            values, sure = np.asarray(image.dataobj, dtype=np.float32), None  # type: ignore[attr-defined]
            found = np.asarray(image.affine)  # type: ignore[attr-defined]
            if values.ndim > len(shape) + 1 and values.shape[len(shape) : -1] == (1,) * (values.ndim - len(shape) - 1):
                values = values.reshape(*shape, values.shape[-1]) if values.shape[: len(shape)] == shape else values
            values = values[None] if values.ndim == len(shape) else np.moveaxis(values, -1, 0)
            if affine is not None and not np.allclose(found, affine, atol=1e-3):
                raise ValueError(
                    f"its affine must be that of the label, {affine.round(3).tolist()}, got {found.round(3).tolist()}; "
                    "export it in the geometry of the label"
                )
    except ValueError as error:
        raise ValueError(f"Prediction {path} cannot be used: {str(error).rstrip('.')}.") from error
    except Exception as error:  # each of the readers has its own
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"Prediction {path} cannot be read: {text.rstrip('.')}.") from error
    if values.shape[1:] != shape:
        raise ValueError(
            f"Prediction {path} must lie on the grid of its label, {shape}, got {values.shape[1:]}; export it in the "
            "geometry of the label."
        )
    if not np.isfinite(values).all():
        raise ValueError(f"Prediction {path} must be finite, got nan or infinite values.")
    return Prediction(values, sure)


def _from_npz(path: Path, ndim: int) -> tuple[np.ndarray, bool]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no npz file")
    with np.load(path, allow_pickle=False) as content:
        keys = [key for key in (*PROBABILITY_KEYS, "logits") if key in content.files]
        if not keys:
            raise ValueError(f"it must hold 'probabilities', 'softmax' or 'logits', got {content.files}")
        values = np.asarray(content[keys[0]], dtype=np.float32)
    if values.ndim == ndim + 2 and values.shape[1] == 1:
        values = values[:, 0]
    return np.moveaxis(values, range(1, values.ndim), range(values.ndim - 1, 0, -1)), keys[0] in PROBABILITY_KEYS
