from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer

from monai_sc.benchmark.methods import CleanPretrainingHandler


def loader(value, number=4):
    cases = [{"image": torch.ones(1, 2, 2), "label": torch.full((1, 2, 2), value)} for _ in range(number)]
    return DataLoader(Dataset(cases), batch_size=2)


def mean_squared(pred, label):
    return ((pred - label) ** 2).mean()


def make_trainer(pretraining, epochs=1, seed=0):
    torch.manual_seed(seed)
    network = torch.nn.Conv2d(1, 1, 1)
    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=loader(-1.0),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        loss_function=mean_squared,
        train_handlers=[pretraining],
    )


def output_of(network):
    return network(torch.ones(1, 1, 1, 1)).item()


@pytest.mark.parametrize("epochs", [1, 5])
def test_network_begins_with_what_clean_cases_taught_it(epochs):
    handler = CleanPretrainingHandler(loader(3.0), loss_function=mean_squared, epochs=epochs)
    trainer = make_trainer(handler)
    expected = deepcopy(trainer.network)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2 * epochs):  # two batches in each
        optimizer.zero_grad()
        mean_squared(expected(torch.ones(2, 1, 2, 2)), torch.full((2, 1, 2, 2), 3.0)).backward()
        optimizer.step()
    seen = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: seen.append(output_of(trainer.network)))
    momentum = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: momentum.append(dict(trainer.optimizer.state)))
    trainer.run()
    assert seen[0] == pytest.approx(output_of(expected))
    assert momentum[0] == {}
    assert trainer.optimizer.param_groups[0]["params"] == list(trainer.network.parameters())


def test_network_is_pretrained_once():
    calls = []

    def counted(pred, label):
        calls.append(label)
        return mean_squared(pred, label)

    make_trainer(CleanPretrainingHandler(loader(3.0), loss_function=counted, epochs=2), epochs=3).run()
    assert len(calls) == 4


def test_training_that_goes_on_is_not_pretrained():
    handler = CleanPretrainingHandler(loader(3.0), loss_function=None, epochs=2)  # calling it would fail
    trainer = make_trainer(handler, epochs=4)
    trainer.add_event_handler(
        Events.STARTED, lambda: trainer.load_state_dict({"epoch": 2, "max_epochs": 4, "epoch_length": 2})
    )
    trainer.run()
    assert trainer.state.epoch == 4


def test_each_of_two_networks_is_pretrained():
    handler = CleanPretrainingHandler(loader(3.0), loss_function=mean_squared, epochs=40)
    trainer = make_trainer(handler)
    trainer.networks = [trainer.network, torch.nn.Conv2d(1, 1, 1)]
    trainer.optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in trainer.networks]
    seen = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: seen.extend(map(output_of, trainer.networks)))
    trainer.run()
    assert seen == [pytest.approx(3.0, abs=0.05)] * 2


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"^epochs must be at least 1 epoch, got 0\.$"):
        CleanPretrainingHandler(loader(3.0), loss_function=mean_squared, epochs=0)
    handler = CleanPretrainingHandler(loader(3.0), loss_function=mean_squared, epochs=1)
    with pytest.raises(TypeError, match=r"^engine must be a monai\.engines\.Trainer, got Engine\.$"):
        handler.attach(Engine(lambda engine, batch: None))
