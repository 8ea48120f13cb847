from types import SimpleNamespace

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedTrainer
from monai.inferers import SimpleInferer

from monai_sc.handlers import prediction
from monai_sc.handlers.prediction import ArraysOnDisk, predict, prepare_plain_batch


def test_arrays_are_read_from_the_disk_one_by_one(tmp_path):
    arrays = ArraysOnDisk(tmp_path)
    assert list(arrays) == []
    for k in range(3):
        arrays.append(np.full((k, 2), k))
    assert len(arrays) == 3
    assert [array.tolist() for array in arrays] == [[], [[1, 1]], [[2, 2], [2, 2]]]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.npy", "1.npy", "2.npy"]
    for index in (3, -1):
        with pytest.raises(IndexError, match=str(index)):
            arrays[index]


def trainer_of(cases, network, **options):
    loader = DataLoader(Dataset(cases), batch_size=2)
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=1,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1),
        loss_function=torch.nn.MSELoss(),
        **options,
    )
    return trainer, loader


class Times(torch.nn.Module):
    """Multiplies by a number in evaluation, by none in training."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x if self.training else x * self.factor


def test_each_case_has_the_logits_of_each_network():
    cases = [{"id": str(k), "image": MetaTensor(torch.full((1, 2), k, dtype=torch.float64))} for k in range(3)]
    networks = [Times(2).train(), Times(-1).train()]
    trainer, loader = trainer_of(cases, networks[0])
    found = list(predict(trainer, loader, networks))
    assert [case["id"] for case, _ in found] == ["0", "1", "2"]
    for k, (case, logits) in enumerate(found):
        assert case["image"].tolist() == [[k, k]]
        assert [type(one) for one in logits] == [torch.Tensor] * 2
        assert [one.dtype for one in logits] == [torch.float32] * 2
        assert [one.tolist() for one in logits] == [[[2 * k] * 2], [[-k] * 2]]
    assert all(network.training for network in networks)


def test_inferer_is_that_of_the_trainer_unless_one_is_given():
    class Counting(SimpleInferer):
        calls = 0

        def __call__(self, *args, **options):
            self.calls += 1
            return super().__call__(*args, **options)

    own, other = Counting(), Counting()
    cases = [{"image": torch.zeros(1, 2)}] * 3
    trainer, loader = trainer_of(cases, Times(1), inferer=own)
    assert len(list(predict(trainer, loader, [trainer.network]))) == 3
    assert (own.calls, other.calls) == (2, 0)
    list(predict(trainer, loader, [trainer.network], inferer=other))
    assert (own.calls, other.calls) == (2, 2)


@pytest.mark.parametrize(("progress", "terminal"), [(False, True), (True, True), (True, False)])
def test_progress_is_shown_on_a_terminal_if_it_is_wanted(monkeypatch, progress, terminal):
    trainer, loader = trainer_of([{"image": torch.zeros(1, 2)}], Times(1))
    shown = []
    monkeypatch.setattr(prediction, "Console", lambda: SimpleNamespace(is_terminal=terminal))
    monkeypatch.setattr(
        prediction, "track", lambda own, text, disable, **_: shown.extend([] if disable else [text]) or own
    )
    list(predict(trainer, loader, [trainer.network], description="the clean cases", progress=progress))
    assert shown == ["the clean cases"] * (progress and terminal)


@pytest.mark.parametrize(("case", "name"), [({"id": "a"}, "'a'"), ({}, "'?'")])
def test_output_that_is_not_finite_is_refused(case, name):
    trainer, loader = trainer_of([{**case, "image": torch.tensor([[1.0, 2.0]])}], Times(float("inf")))
    message = rf"must be finite, got nan or infinite values for case {name}: training has diverged\."
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        list(predict(trainer, loader, [Times(1.0), trainer.network]))


def test_plain_batch_is_that_of_monai_without_metadata():
    image, label = (MetaTensor(torch.full((2, 1, 4, 4), value)) for value in (1.0, 0.0))
    batch = {"image": image, "label": label}
    found = prepare_plain_batch(batch, torch.device("cpu"))
    assert [type(x) for x in found] == [torch.Tensor, torch.Tensor]
    assert all(torch.equal(x, given.as_tensor()) for x, given in zip(found, (image, label), strict=True))
    assert prepare_plain_batch({"image": image})[1] is None
    assert isinstance(batch["image"], MetaTensor)
