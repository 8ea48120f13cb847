import math

import pytest
from monai.data import CacheDataset, DataLoader, Dataset, DistributedSampler, SmartCacheDataset
from monai.transforms import Lambda

from monai_sc.handlers.training_data import use_cases


def cases(label, number=6):
    return [{"id": str(k), "label": f"{label}{k}"} for k in range(number)]


def labels_of(dataset):
    return {item["label"] for item in dataset}


def test_smart_cache_offers_nothing_of_the_old_labels():
    dataset = SmartCacheDataset(cases("old"), cache_num=4, replace_rate=0.5, progress=False)
    dataset.start()
    dataset.update_cache()
    use_cases(DataLoader(dataset), cases("new"))
    assert not dataset._try_update_cache()  # nothing waits to be swapped in
    seen = labels_of(dataset)
    for _ in range(4):
        dataset.update_cache()
        seen |= labels_of(dataset)
    dataset.shutdown()
    assert seen == {f"new{k}" for k in range(6)}


@pytest.mark.parametrize("kind", [Dataset, CacheDataset])
@pytest.mark.parametrize("ranks", [2, 4])
def test_sampler_of_a_process_follows_the_number_of_cases(kind, ranks):
    dataset = kind(cases("old")) if kind is Dataset else kind(cases("old"), progress=False)
    seen, counts = [], []
    for rank in range(ranks):
        sampler = DistributedSampler(dataset, num_replicas=ranks, rank=rank, shuffle=True)
        loader = DataLoader(dataset, batch_size=1, sampler=sampler)
        use_cases(loader, cases("new", 9))
        own = [batch["label"][0] for batch in loader]
        seen += own
        counts.append(len(own))
        use_cases(loader, cases("old"))
    assert set(seen) == {f"new{k}" for k in range(9)}
    assert set(counts) == {math.ceil(9 / ranks)}  # as many in every process, else one would wait for the other


def test_same_labels_leave_a_cache_as_it_is():
    loaded = []
    dataset = CacheDataset(cases("old"), Lambda(lambda case: loaded.append(1) or case), progress=False)
    use_cases(DataLoader(dataset), cases("old"))
    assert len(loaded) == 6
    use_cases(DataLoader(dataset), cases("new"))
    assert len(loaded) == 12
