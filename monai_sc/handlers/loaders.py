"""What the loaders of a run must hold, so that nothing fails at the end of a round."""

from __future__ import annotations

import copy
import multiprocessing
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader, PersistentDataset, decollate_batch
from monai.transforms import Compose

from monai_sc.files.cases import file_keys, files_of
from monai_sc.files.grids import check_whole
from monai_sc.store.usable_cases import NAMES

CASES = 2  # of the training, whose labels are looked at


def check_loaders(
    training: Any, clean: DataLoader | None, relabel: DataLoader, group_key: str | None = None
) -> dict[str, Any]:
    """Return the first case of the relabel loader.

    Raises:
        TypeError: when a loader or its data set is of another kind than the trainer or the correction needs.
        ValueError: when a loader is empty, has persistent workers, loses metadata or resamples labels linearly, or a
            clean case is one of the training cases.
        KeyError: when a batch lacks a key.
    """
    if getattr(training, "persistent_workers", False):
        raise ValueError(
            "The trainer's data loader must have persistent_workers=False, got True: such workers never see the "
            "corrected labels."
        )
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
    for name, loader in (("clean_loader", clean), ("relabel_loader", relabel)):
        dataset: Any = getattr(loader, "dataset", None)
        if isinstance(dataset, PersistentDataset) and not getattr(dataset, "track_meta", True):
            raise ValueError(
                f"The PersistentDataset of {name} must have track_meta=True (and weights_only=False), got False: it "
                "loses the size of a voxel and the grid of the file."
            )
    _refuse_other_processes(relabel)
    group = () if group_key is None else (group_key,)
    for label in _first_labels(train):
        _refuse_resampled("the trainer's data loader", label)
    if clean is not None:
        _refuse_shared_cases(clean.dataset, train.data)
        _refuse_resampled("clean_loader", _first_batch("clean_loader", clean, ("image", "label", *group))["label"])
    cases: list[dict[str, Any]] = decollate_batch(_first_batch("relabel_loader", relabel, ("id", "image", *group)))
    return cases[0]


def _first_labels(dataset: Any) -> list[Any]:
    """Return labels of the first cases as the network is to see them, none where that cannot be told beforehand.

    The transforms are a copy, and the random states are as they were: a training is the same with this look at it.
    """
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        transform = copy.deepcopy(dataset.transform)
        found = [transform(dict(case)) for case in dataset.data[:CASES]]
        crops = [crop for case in found for crop in (case if isinstance(case, list) else [case])]
        return [crop["label"] for crop in crops]
    except Exception:  # which the training itself tells, if it meets it
        return []
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _refuse_resampled(name: str, label: Any) -> None:
    """Refuse a label that holds values between whole numbers beside these, as linear interpolation makes them.

    Labels that are smoothed on purpose hold no whole numbers.
    """
    if not isinstance(label, (torch.Tensor, np.ndarray)):
        return
    values = torch.as_tensor(label).detach().float()
    between = (values - values.round()).abs() > 1e-3
    if between.any() and not between.all():
        raise ValueError(
            f"The labels of {name} must hold whole numbers, got {float(values[between][0]):g}, as after linear "
            "resampling; give spatial transforms mode='nearest' for labels, and with lazy resampling Compose "
            "overrides={'label': {'mode': 'nearest'}}."
        )


def _refuse_other_processes(relabel: DataLoader) -> None:
    """Refuse workers that hold copies of the transforms, whose work cannot be inverted by those of this process."""
    if not relabel.num_workers:
        return
    context = relabel.multiprocessing_context
    method = multiprocessing.get_start_method() if context is None else context.get_start_method()
    if method != "fork":
        raise ValueError(
            f"relabel_loader must have num_workers=0, or workers that are forked (multiprocessing_context='fork'), got "
            f"the start method {method!r}: what the transforms of such a worker do cannot be inverted here."
        )


def damaged_file(loaders: Iterable[Any]) -> str:
    """Return what is wrong with the first damaged file of the cases of some loaders, nothing if all are whole."""
    files: dict[Path, str] = {}
    for loader in loaders:
        cases = getattr(getattr(loader, "dataset", None), "data", None) or ()
        with suppress(AttributeError, TypeError):  # of cases that were loaded before
            files |= {file: NAMES[key] for case in cases for key in file_keys(case) for file in files_of(case, key)}
    try:
        for file, name in files.items():
            check_whole(file, f"{name} {file}", to_end=True)
    except ValueError as error:
        return str(error)
    return ""


def _refuse_shared_cases(clean: Any, training: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a clean case that is also trained on, as far as case lists with ids and files tell."""
    images = {_image_of(case): case["id"] for case in training}
    for case in getattr(clean, "data", ()):
        image = _image_of(case) if isinstance(case, Mapping) else None
        if image is not None and image in images:
            raise ValueError(
                f"Clean cases must not be training cases, but {case.get('id', image[0])!r} has the image of "
                f"{images[image]!r}, {image[0]}: remove it from one list, or the bias is measured on training data."
            )


def _image_of(case: Mapping[str, Any]) -> tuple[str, ...] | None:
    files = case.get("image")
    try:
        return tuple(str(file.resolve()) for file in files_of(case, "image")) if files is not None else None
    except TypeError:  # an array, which was loaded before
        return None


def _first_batch(name: str, loader: DataLoader, keys: tuple[str, ...]) -> Any:
    batch = next(iter(loader), None)
    if batch is None:
        raise ValueError(f"{name} must hold at least one case, got none.")
    missing = [key for key in keys if key not in batch]
    if missing:
        raise KeyError(f"The batches of {name} must hold {keys}, but {missing[0]!r} is missing.")
    return batch
