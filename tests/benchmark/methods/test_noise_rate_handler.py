from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from ignite.engine import Events
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.handlers import CheckpointLoader, CheckpointSaver

from monai_sc.benchmark.methods import CoTeachingPlusTrainer, NoiseRateHandler

CPU = torch.device("cpu")
IMAGE = torch.tensor([[[3.0, 2.0, 1.0, -1.0, -2.0]]])  # the logits of a network that has learnt to predict three voxels


class Shifted(torch.nn.Module):
    """Gives the image as one logit or, against a background of 0, as that of class 1; class 2 is never predicted."""

    def __init__(self, shift=0.0, softmax=False):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.tensor(shift))
        self.softmax = softmax

    def forward(self, x):
        x = x + self.shift
        return torch.cat([0 * x, x, 0 * x - 9], dim=1) if self.softmax else x


def make_loader(*labels):
    return DataLoader([{"image": IMAGE, "label": torch.tensor(label).float()} for label in labels], batch_size=2)


CLEAN = make_loader([[[1, 1, 0, 0, 0]]], [[[1, 1, 1, 1, 0]]], [[[1, 1, 1, 0, 0]]])
CLEAN_RATE = 2 / 10  # one voxel of three is wrong, one of four, and none of three


def make_trainer(epochs=4, *, shift=0.0, handlers=(), softmax=False):
    networks = [Shifted(shift, softmax), Shifted(shift + 0.001, softmax)]
    return CoTeachingPlusTrainer(
        CPU,
        epochs,
        make_loader([[[1, 1, 1, 0, 0]]]),
        networks,
        [torch.optim.SGD(network.parameters(), lr=1e-6) for network in networks],
        noise_rate=None,
        warmup_epochs=2,
        num_gradual=2,
        output="softmax" if softmax else "sigmoid",
        train_handlers=handlers,
    )


def test_trainer_gets_the_rate_at_the_end_of_the_warm_up(caplog):
    trainer = make_trainer(handlers=[NoiseRateHandler(CLEAN, epoch=2)])
    rates = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: rates.append((e.noise_rate, e.keep_fraction)))
    with caplog.at_level(logging.INFO):
        trainer.run()
    assert rates[:2] == [(None, 1), (None, 1)]
    assert rates[2:] == [(pytest.approx(CLEAN_RATE), pytest.approx(1 - CLEAN_RATE))] * 2
    assert "Epoch 2: noise rate 0.200, estimated on the clean cases." in caplog.text
    assert trainer.network.training


@pytest.mark.parametrize(
    "label",
    [
        pytest.param([[[1, 1, 2, 0, 0]]], id="class-numbers"),
        pytest.param([[[0, 0, 0, 1, 1]], [[1, 1, 0, 0, 0]], [[0, 0, 1, 0, 0]]], id="one-hot"),
    ],
)
def test_background_of_a_softmax_does_not_count(label):
    trainer = make_trainer(2, softmax=True, handlers=[NoiseRateHandler(make_loader(label), epoch=1, output="softmax")])
    trainer.run()
    assert trainer.noise_rate == pytest.approx((1 / 3 + 1) / 2)  # class 1: one voxel of three; class 2: all are missed


def plain_trainer(epochs, handler):
    network = Shifted()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    loss = torch.nn.BCEWithLogitsLoss()
    return SupervisedTrainer(CPU, epochs, CLEAN, network, optimizer, loss, train_handlers=[handler])


def test_other_targets_get_the_rate():
    target = SimpleNamespace(noise_rate=0.5)
    trainer = plain_trainer(3, NoiseRateHandler(CLEAN, epoch=1, target=target))
    rates = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: rates.append(target.noise_rate))
    trainer.run()
    assert rates == [0.5, pytest.approx(CLEAN_RATE), pytest.approx(CLEAN_RATE)]


@pytest.mark.parametrize("target", [None, SimpleNamespace()], ids=["trainer", "other"])
def test_target_without_a_noise_rate_is_refused_at_the_start(target):
    trainer = plain_trainer(2, NoiseRateHandler(CLEAN, epoch=2, target=target))
    with pytest.raises(TypeError, match=r"target must have the attribute noise_rate, got \w+ without\.$"):
        trainer.run()
    assert trainer.state.iteration == 0


def test_resumed_run_knows_the_rate(tmp_path):
    first = NoiseRateHandler(CLEAN, epoch=2)
    trainer = make_trainer(3, handlers=[first])
    CheckpointSaver(str(tmp_path), {"trainer": trainer, "rate": first}, save_interval=1).attach(trainer)
    trainer.run()
    for epoch in (1, 3):
        handler = NoiseRateHandler(make_loader([[[1, 0, 0, 0, 0]]]) if epoch == 3 else CLEAN, epoch=2)
        again = make_trainer(5, handlers=[handler])
        file = str(tmp_path / f"checkpoint_epoch={epoch}.pt")
        CheckpointLoader(file, {"trainer": again, "rate": handler}).attach(again)
        again.add_event_handler(Events.STARTED, lambda e: setattr(e.state, "max_epochs", 5))
        again.run()
        assert again.state.epoch == 5
        assert again.noise_rate == handler.noise_rate == pytest.approx(CLEAN_RATE)


def test_network_that_predicts_nothing_is_refused():
    trainer = make_trainer(shift=-9.0, handlers=[NoiseRateHandler(CLEAN, epoch=1)])
    with pytest.raises(
        ValueError, match=r"some of what the clean labels show, got none after 1 epochs; .* after more\.$"
    ):
        trainer.run()


def test_clean_cases_without_foreground_are_refused():
    loader = make_loader([[[0, 0, 0, 0, 0]]])
    trainer = make_trainer(shift=-9.0, handlers=[NoiseRateHandler(loader, epoch=1)])
    with pytest.raises(ValueError, match=r"must have foreground in at least one mask, got none"):
        trainer.run()


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match=r"epoch must be at least 1, got 0\.$"):
        NoiseRateHandler(CLEAN, epoch=0)
    with pytest.raises(ValueError, match=r"output must be one of 'sigmoid', 'softmax', got 'relu'\.$"):
        NoiseRateHandler(CLEAN, epoch=1, output="relu")
