"""What the loaders of a run must hold, so that nothing fails at the end of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai.data import DataLoader, decollate_batch
from monai.transforms import Compose

__all__ = ["check_loaders"]


def check_loaders(training: Any, clean: DataLoader, relabel: DataLoader) -> dict[str, Any]:
    """Return the first case of the relabel loader.

    Raises:
        TypeError: when a loader or its data set is of another kind than the trainer or the correction needs.
        ValueError: when a loader is empty.
        KeyError: when a batch lacks a key.
    """
    train: Any = getattr(training, "dataset", None)
    if not isinstance(getattr(train, "data", None), Sequence) or not all(
        isinstance(case, Mapping) and "id" in case and "label" in case for case in train.data
    ):
        raise TypeError(
            "The trainer must have a DataLoader over a MONAI data set whose data is a list of dictionaries with "
            f"'id' and 'label', got {type(train).__name__}."
        )
    if not isinstance(getattr(getattr(relabel, "dataset", None), "transform", None), Compose):
        raise TypeError("relabel_loader must be a DataLoader over a MONAI data set with a transform.")
    _first_batch("clean_loader", clean, ("image", "label"))
    cases: list[dict[str, Any]] = decollate_batch(_first_batch("relabel_loader", relabel, ("id", "image")))
    return cases[0]


def _first_batch(name: str, loader: DataLoader, keys: tuple[str, ...]) -> Any:
    batch = next(iter(loader), None)
    if batch is None:
        raise ValueError(f"{name} must hold at least one case, got none.")
    missing = [key for key in keys if key not in batch]
    if missing:
        raise KeyError(f"The batches of {name} must hold {keys}, but {missing[0]!r} is missing.")
    return batch
