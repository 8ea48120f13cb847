"""The training data of a run, whatever caches them, with the labels of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from monai.data import SmartCacheDataset
from torch.utils.data import DistributedSampler

from monai_sc.store.label_store import LabelStore


def fold_of(store: LabelStore, case_id: str, folds: int) -> int:
    """Return which fold a case of the store belongs to: neighbours in the list in different ones."""
    return store.position(case_id) % folds


class TrainingLabels:
    """Points the training data at the labels of a round; cases that are not in the store keep what they have."""

    def __init__(self, store: LabelStore, folds: int) -> None:
        self.store = store
        self.folds = folds
        self._cases: list[dict[str, Any]] = []

    def use(self, loader: Any, number: int, fold: int | None) -> None:
        """Give the loader's data set the labels of a round.

        Raises:
            ValueError: when no case is left, or the data set cannot have another number of cases.
        """
        if not self._cases:
            self._cases = list(loader.dataset.data)
        labels = {case["id"]: case["label"] for case in self.store.datalist(number)}
        cases = [
            {**case, "label": labels.get(case["id"], case["label"])}
            for case in self._cases
            if fold is None or case["id"] not in labels or fold_of(self.store, case["id"], self.folds) != fold
        ]
        if not cases:
            raise ValueError(f"folds must leave cases to train on, got {self.folds} for {len(labels)} cases.")
        use_cases(loader, cases)


def use_cases(loader: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    """Give a loader's data set other cases, so that no label of the old ones is seen again.

    Every data set of MONAI with a cache of its own has ``set_data``; a plain one has none, and needs none.

    Raises:
        ValueError: when the number of cases changes, and the data set cannot have that.
    """
    dataset: Any = loader.dataset
    own = {case["id"]: case["label"] for case in dataset.data}
    if own == {case["id"]: case["label"] for case in cases}:
        return
    if isinstance(loader.dataset, SmartCacheDataset):
        if len(cases) != len(dataset.data):
            raise ValueError(
                "folds must be 1 with a SmartCacheDataset, which always has one number of cases; use a CacheDataset."
            )
        dataset.shutdown()
        dataset.set_data(cases)
        # MONAI (1.6) says after a shutdown that the next cases are ready, and they are those of the old labels.
        dataset._replace_done = False
    elif hasattr(dataset, "set_data"):
        dataset.set_data(cases)
    else:
        dataset.data = list(cases)
    if isinstance(loader.sampler, DistributedSampler):  # which counts its cases once, when it is made
        loader.sampler.num_samples = math.ceil(len(dataset) / loader.sampler.num_replicas)
        loader.sampler.total_size = loader.sampler.num_samples * loader.sampler.num_replicas
