import json
import threading

import numpy as np
import pytest
import torch
from monai.data import CacheDataset, DataLoader, Dataset, DistributedSampler

from monai_sc import parallel
from monai_sc.correction import SpatialCorrector


@pytest.fixture
def of_three(monkeypatch):
    """Let this process think that it is one of three, and return a function that says which."""
    monkeypatch.setattr(parallel, "world_size", lambda: 3)
    return lambda rank: monkeypatch.setattr(parallel, "rank", lambda: rank)


def test_one_process_is_the_main_one_and_hears_itself_only():
    assert (parallel.rank(), parallel.world_size(), parallel.is_main()) == (0, 1, True)
    assert parallel.gather("a") == ["a"]
    assert parallel.gather_items(["b", "a", "c"], [1, 0, 2]) == ["a", "b", "c"]
    with parallel.fail_together():
        pass
    with pytest.raises(KeyError), parallel.fail_together():
        raise KeyError
    assert not parallel.is_lost(RuntimeError("Connection reset by peer"))


@pytest.mark.parametrize("indices", [None, [1, 2, 3, 5, 8, 13, 16]], ids=["all", "some"])
@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_processes_share_the_batches_of_one(of_three, size, indices):
    data = Dataset([{"x": torch.tensor(k)} for k in range(17)])
    loader = DataLoader(data, batch_size=size, num_workers=0)
    chosen = list(range(17)) if indices is None else indices
    whole = [chosen[i : i + size] for i in range(0, len(chosen), size)]
    found = {}
    for rank in range(3):
        of_three(rank)
        part, positions = parallel.own_part(loader, indices)
        batches = [batch["x"].tolist() for batch in part]
        assert [x for batch in batches for x in batch] == positions
        found |= {rank + 3 * number: batch for number, batch in enumerate(batches)}
    assert [found[number] for number in sorted(found)] == whole


def test_one_process_keeps_its_loader():
    loader = DataLoader(Dataset([{"x": 1}] * 5), batch_size=2, shuffle=True)
    part, positions = parallel.own_part(loader)
    assert part is loader
    assert positions == [0, 1, 2, 3, 4]


def test_loaders_that_cannot_be_shared_are_refused(of_three):
    of_three(1)
    data = CacheDataset([{"x": 1}] * 4, progress=False)
    with pytest.raises(ValueError, match=r"must load batches in the order of their data sets, so without shuffling\."):
        parallel.own_part(DataLoader(data, batch_size=2, shuffle=True))
    sampler = DistributedSampler(data, num_replicas=3, rank=1)
    with pytest.raises(ValueError, match=r"must hold all cases in every process, got one with a DistributedSampler"):
        parallel.own_part(DataLoader(data, batch_size=2, sampler=sampler))


def test_making_a_part_leaves_the_random_numbers_alone(of_three):
    of_three(0)
    loader = DataLoader(Dataset([{"x": 1}] * 5), batch_size=2)
    state = torch.random.get_rng_state()
    parallel.own_part(loader)
    assert torch.equal(state, torch.random.get_rng_state())


class Exchange:
    """Threads that stand for processes: each gives the entries of its cases, and gets those of all in order."""

    def __init__(self, positions):
        self.positions = positions
        self.barrier = threading.Barrier(len(positions))
        self.given = [[] for _ in positions]

    def of(self, rank):
        def exchange(items):
            self.given[rank] = list(zip(self.positions[rank], items, strict=False))
            self.barrier.wait(60)
            everything = sorted((pair for own in self.given for pair in own), key=lambda pair: pair[0])
            self.barrier.wait(60)
            return [item for _, item in everything]

        return exchange


def soft_discs(number, output):
    y, x = np.mgrid[:40, :40]
    rng = np.random.default_rng(0)
    predictions, labels = [], []
    for k in range(number):
        distance = 7 + k % 4 - np.hypot(y - 20 - k % 3, x - 19)
        wobble = rng.normal(scale=0.7, size=distance.shape)
        inner = distance - 4
        if output == "softmax":
            predictions.append(np.stack([-distance - 2, distance + 2 + wobble, distance + inner + 3.5]))
            labels.append(((distance >= 0).astype(int) + (inner >= 0))[None])
        else:
            predictions.append(np.stack([distance + 2 + wobble, inner + 1.5]))
            labels.append(np.stack([distance >= 0, (inner >= 0) & (k != 2)]))
    return predictions, labels


@pytest.mark.parametrize("positions", [[[0, 1, 4, 5], [2, 3, 6]], [[0, 3], [1, 4, 6], [2, 5]], [list(range(7)), []]])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("representation", ["auto", "logit"])
def test_corrector_fitted_in_parts_is_the_one_fitted_at_once(positions, output, representation):
    predictions, labels = soft_discs(7, output)
    groups = ["a", "b", "a", "a", "b", "b", "a"]
    sizes = [(0.5 + 0.25 * k, 0.5 + 0.25 * k) for k in range(7)]  # the reach follows from the first one

    def fit(chosen, **options):
        corrector = SpatialCorrector(["outer", "inner"], output=output, representation=representation)
        fitted = corrector.fit(
            [predictions[i] for i in chosen],
            [labels[i] for i in chosen],
            spacing=[sizes[i] for i in chosen],
            groups=[groups[i] for i in chosen],
            **options,
        )
        return json.dumps(fitted.to_dict())  # in which nan is equal to itself

    whole = fit(range(7))
    exchange, parts = Exchange(positions), {}
    threads = [
        threading.Thread(target=lambda r=r: parts.update({r: fit(positions[r], exchange=exchange.of(r))}))
        for r in range(len(positions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(parts) == len(positions)
    for part in parts.values():
        assert part == whole
