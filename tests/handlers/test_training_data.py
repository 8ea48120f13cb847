import math
from types import SimpleNamespace

import pytest
from monai.data import CacheDataset, DataLoader, Dataset, DistributedSampler, SmartCacheDataset
from monai.transforms import Lambda

from monai_sc.handlers.training_data import TrainingLabels, fold_of, use_cases


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


def store_of(names):
    """Return what stands for a label store: the label of a case in a round is its name and the number."""
    return SimpleNamespace(
        datalist=lambda number: [{"id": name, "label": f"{name}{number}"} for name in names], position=names.index
    )


def test_neighbours_are_in_different_folds():
    store = store_of("abcdef")
    assert [fold_of(store, name, 3) for name in "abcdef"] == [0, 1, 2, 0, 1, 2]
    assert [fold_of(store, name, 1) for name in "abc"] == [0, 0, 0]


def test_training_data_get_the_labels_of_a_round_without_those_of_a_fold():
    given = [{"id": name, "label": name, "weight": k} for k, name in enumerate("xdcba")]
    loader = DataLoader(Dataset(given))
    labels = TrainingLabels(store_of("abcde"), 2)
    labels.use(loader, 1, None)
    assert [case["label"] for case in loader.dataset.data] == ["x", "d1", "c1", "b1", "a1"]
    assert [case["weight"] for case in loader.dataset.data] == [0, 1, 2, 3, 4]
    labels.use(loader, 1, 0)
    assert [case["label"] for case in loader.dataset.data] == ["x", "d1", "b1"]
    labels.use(loader, 2, 1)  # all cases come back
    assert [case["label"] for case in loader.dataset.data] == ["x", "c2", "a2"]
    assert [case["label"] for case in given] == [*"xdcba"]


def test_fold_that_holds_all_cases_is_refused():
    loader = DataLoader(Dataset([{"id": "a", "label": "a"}]))
    with pytest.raises(ValueError, match=r"^folds must leave cases to train on, got 2 for 3 cases\.$"):
        TrainingLabels(store_of("abc"), 2).use(loader, 0, 0)
    TrainingLabels(store_of("abc"), 2).use(loader, 0, 1)


def test_smart_cache_keeps_its_number_of_cases():
    dataset = SmartCacheDataset(cases("old"), cache_num=4, progress=False)
    loader = DataLoader(dataset)
    with pytest.raises(ValueError, match=r"^folds must be 1 with a SmartCacheDataset, .*; use a CacheDataset\.$"):
        use_cases(loader, cases("new", 5))
    assert len(labels_of(dataset)) == 4
    assert all(label.startswith("old") for label in labels_of(dataset))


def test_plain_data_set_gets_a_list_of_its_own():
    new = cases("new")
    loader = DataLoader(Dataset(cases("old")))
    use_cases(loader, new)
    assert loader.dataset.data == new
    assert loader.dataset.data is not new
