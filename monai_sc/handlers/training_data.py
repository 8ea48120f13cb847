"""The training data of a run, whatever caches them, with the labels of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from monai.data import SmartCacheDataset
from torch.utils.data import DistributedSampler

__all__ = ["use_cases"]


def use_cases(loader: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    """Give a loader's data set other cases, so that no label of the old ones is seen again.

    Every data set of MONAI with a cache of its own has ``set_data``; a plain one has none, and needs none.

    Args:
        loader: whose data set is one of MONAI, with a list of cases.
        cases: the new list; if it holds the same labels as the old one nothing is done, since to fill a cache takes
            time.

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
