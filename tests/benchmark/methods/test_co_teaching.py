from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from ignite.engine import Events
from monai.bundle import ConfigParser
from monai.data import DataLoader
from monai.engines import PrepareBatchExtraInput, SupervisedTrainer
from monai.handlers import CheckpointLoader, CheckpointSaver, MeanDice, StatsHandler, from_engine
from monai.inferers import SimpleInferer
from monai.transforms import AsDiscreted
from torch.nn.functional import binary_cross_entropy_with_logits

from monai_sc.benchmark.methods import CoTeachingPlusTrainer

CPU = torch.device("cpu")


def make_network(seed, channels=1, dims=2):
    torch.manual_seed(seed)
    conv = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims]
    return torch.nn.Sequential(conv(1, 4, 3, padding=1), torch.nn.ReLU(), conv(4, channels, 1))


def make_loader(number=4, channels=1, dims=2, batch_size=2, size=6):
    generator = torch.Generator().manual_seed(0)
    shape = [size] * dims
    images = torch.randn(number, 1, *shape, generator=generator)
    labels = (torch.rand(number, channels, *shape, generator=generator) < 0.4).float()
    cases = [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
    return DataLoader(cases, batch_size=batch_size)


def make_trainer(epochs=2, *, networks=None, loader=None, lr=0.1, **options):
    networks = networks or [make_network(0), make_network(1)]
    return CoTeachingPlusTrainer(
        CPU,
        epochs,
        make_loader() if loader is None else loader,
        networks,
        [torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9) for network in networks],
        **{"noise_rate": 0.3, "warmup_epochs": 1, **options},
    )


@pytest.mark.parametrize(
    ("epoch", "rate", "expected"),
    [
        pytest.param(0, 0.4, 1, id="before-the-run"),
        pytest.param(1, 0.4, 1, id="first-epoch-keeps-all"),
        pytest.param(2, 0.4, 0.9, id="a-quarter-of-the-way"),
        pytest.param(5, 0.4, 0.6, id="full-rate"),
        pytest.param(50, 0.4, 0.6, id="constant-from-then-on"),
        pytest.param(50, 0, 1, id="no-noise"),
        pytest.param(2, None, 1, id="unknown-rate-keeps-all-in-the-warm-up"),
    ],
)
def test_share_that_is_kept_falls_with_the_epochs(epoch, rate, expected):
    trainer = make_trainer(noise_rate=rate, num_gradual=4, warmup_epochs=2)
    trainer.state.epoch = epoch
    assert trainer.keep_fraction == pytest.approx(expected)


def logit(probability):
    return math.log(probability / (1 - probability))


# In each voxel the label is foreground; the rows are what the networks think of that, so the loss falls with it.
FIRST, SECOND = [0.9, 0.6, 0.3, 0.2], [0.1, 0.7, 0.8, 0.4]
CASES = [
    pytest.param(1, 0.0, 1, [0, 1, 2, 3], [0, 1, 2, 3], id="warm-up-keeps-all"),
    pytest.param(2, 0.5, 2, [1, 2], [0, 1], id="warm-up-trains-on-half-of-the-peer"),
    pytest.param(2, 0.0, 0, [0, 2], [0, 2], id="then-only-on-disagreement"),
    pytest.param(2, 0.5, 0, [2], [0], id="on-half-of-the-disagreement-of-the-peer"),
    pytest.param(1, 0.5, 0, [0, 2], [0, 2], id="no-warm-up"),
]


@pytest.mark.parametrize(("epoch", "rate", "warmup", "for_first", "for_second"), CASES)
def test_each_network_learns_what_the_other_selects(epoch, rate, warmup, for_first, for_second):
    trainer = make_trainer(noise_rate=rate, warmup_epochs=warmup, num_gradual=1)
    trainer.state.epoch = epoch
    first, second = (torch.tensor([[[logit(p) for p in row]]]) for row in (FIRST, SECOND))
    losses = trainer.losses(first, second, torch.ones(1, 1, 4))
    expected = [
        -sum(math.log(row[voxel]) for voxel in chosen) / len(chosen)
        for row, chosen in ((FIRST, for_first), (SECOND, for_second))
    ]
    assert [float(loss) for loss in losses] == pytest.approx(expected)


def losses_one_by_one(logits, label, softmax, fraction, is_plus, min_voxels):
    """Return the losses of both networks from the definition, voxel by voxel."""
    totals = [[], []]
    for image in range(len(label)):
        for group in range(1 if softmax else label.shape[1]):
            voxels = list(range(label[image, 0].numel()))
            entropy, predicted = [{}, {}], [{}, {}]
            for k, own in enumerate(logits):
                for v in voxels:
                    z = [float(channel.flatten()[v]) for channel in own[image]] if softmax else None
                    z = z or [0.0, float(own[image, group].flatten()[v])]  # a sigmoid is a softmax of (0, z)
                    true = int(label[image, 0 if softmax else group].flatten()[v])
                    entropy[k][v] = math.log(sum(math.exp(one) for one in z)) - z[true]
                    predicted[k][v] = z.index(max(z))
            differing = [v for v in voxels if predicted[0][v] != predicted[1][v]]
            candidates = differing if is_plus and len(differing) >= min_voxels else voxels
            number = max(1, round(fraction * len(candidates)))
            for k in range(2):
                chosen = sorted(candidates, key=lambda v, k=k: entropy[1 - k][v])[:number]
                totals[k].append(sum(entropy[k][v] for v in chosen) / number)
    return [sum(total) / len(total) for total in totals]


@pytest.mark.parametrize("epoch", [2, 4], ids=["warm-up", "plus"])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("spatial", [(5, 4), (2, 3, 4)], ids=["2d", "3d"])
@pytest.mark.parametrize("min_voxels", [1, 11])
def test_losses_are_those_of_the_definition(epoch, output, spatial, min_voxels):
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(3, 3, *spatial, generator=generator) for _ in range(2)]
    logits[1][0] = logits[0][0] + 0.01 * torch.sign(logits[0][0])  # an image without disagreement in the sigmoid's
    label = torch.randint(3 if output == "softmax" else 2, (3, 1, *spatial), generator=generator)
    label = label if output == "softmax" else label.repeat(1, 3, *[1] * len(spatial))
    trainer = make_trainer(noise_rate=0.4, warmup_epochs=2, num_gradual=4, output=output, min_voxels=min_voxels)
    trainer.state.epoch = epoch
    expected = losses_one_by_one(logits, label, output == "softmax", trainer.keep_fraction, epoch > 2, min_voxels)
    found = trainer.losses(*logits, label)
    assert [float(loss) for loss in found] == pytest.approx(expected, rel=1e-5)


def test_gradients_stay_in_their_own_network():
    trainer = make_trainer(warmup_epochs=0)
    trainer.state.epoch = 5
    logits = [torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(k)).requires_grad_() for k in range(2)]
    losses = trainer.losses(*logits, torch.ones(2, 1, 6, 6))
    for k in range(2):
        gradients = torch.autograd.grad(losses[k], logits, allow_unused=True, retain_graph=True)
        assert torch.isfinite(gradients[k]).all()
        assert (gradients[k] != 0).any()
        assert gradients[1 - k] is None


def test_warm_up_without_noise_is_plain_training():
    together = make_trainer(3, noise_rate=0, warmup_epochs=3)
    alone = []
    for seed in range(2):
        network = make_network(seed)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        loss = torch.nn.BCEWithLogitsLoss()
        SupervisedTrainer(CPU, 3, make_loader(), network, optimizer, loss).run()
        alone.append(network)
    together.run()
    for one, other in zip(together.networks, alone, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dims", [2, 3])
def test_output_is_that_of_the_first_network(dims):
    networks = [make_network(seed, dims=dims) for seed in range(2)]
    loader = make_loader(dims=dims)
    trainer = make_trainer(1, networks=networks, loader=loader, noise_rate=0, warmup_epochs=1, decollate=False)
    first, seen = deepcopy(networks[0]), []

    @trainer.on(Events.ITERATION_COMPLETED(once=1))
    def remember(engine):
        seen.append(engine.state.output)

    trainer.run()
    batch = next(iter(loader))
    assert set(seen[0]) == {"image", "label", "pred", "loss"}
    assert torch.equal(seen[0]["image"], batch["image"])
    assert torch.equal(seen[0]["label"], batch["label"])
    assert torch.equal(seen[0]["pred"], first(batch["image"]))
    torch.testing.assert_close(seen[0]["loss"], binary_cross_entropy_with_logits(first(batch["image"]), batch["label"]))
    assert trainer.network is networks[0]
    assert trainer.optimizer is trainer.optimizers[0]


class Scaled(torch.nn.Module):
    """A network with an argument beside the image, which needs ``eval`` to be right."""

    def __init__(self, seed):
        super().__init__()
        self.network = make_network(seed)

    def forward(self, x, scale):
        assert self.training
        return self.network(x) * scale.reshape(-1, 1, 1, 1)


def test_options_of_the_supervised_trainer_work():
    cases = [{**case, "scale": torch.tensor(2.0)} for case in make_loader().dataset]
    losses, calls = [], []
    from_loss = from_engine(["loss"], first=True)

    class CountingInferer(SimpleInferer):
        def __call__(self, inputs, network, *args, **kwargs):
            calls.append(network)
            return super().__call__(inputs, network, *args, **kwargs)

    trainer = make_trainer(
        2,
        networks=[Scaled(0), Scaled(1)],
        loader=DataLoader(cases, batch_size=2),
        prepare_batch=PrepareBatchExtraInput({"scale": "scale"}),
        inferer=CountingInferer(),
        postprocessing=AsDiscreted("pred", threshold=0.0),
        key_train_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
        train_handlers=[StatsHandler(output_transform=lambda out: losses.append(from_loss(out)) or losses[-1])],
        optim_set_to_none=True,
    )
    trainer.run()
    assert calls == list(trainer.networks) * 4
    assert trainer.state.best_metric_epoch > 0
    assert 0 < trainer.state.metrics["dice"] < 1
    assert all(loss > 0 for loss in losses)
    assert losses
    assert set(trainer.state.output[0]["pred"].unique().tolist()) <= {0, 1}  # of the postprocessing


@pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning")
def test_half_precision_where_there_is_none_changes_nothing():
    plain, half = make_trainer(), make_trainer(amp=True)
    plain.run()
    half.run()
    assert half.scaler is not None
    for a, b in zip(plain.networks[1].parameters(), half.networks[1].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning")
@pytest.mark.parametrize("amp", [False, True], ids=["single", "half"])
def test_training_on_a_gpu(amp):
    networks = [make_network(seed).cuda() for seed in range(2)]
    before = deepcopy(networks)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]
    device = torch.device("cuda")
    CoTeachingPlusTrainer(
        device, 3, make_loader(), networks, optimizers, noise_rate=0.3, warmup_epochs=1, amp=amp
    ).run()
    for old, new in zip(before, networks, strict=True):
        assert all(torch.isfinite(p).all() for p in new.parameters())
        assert not all(map(torch.equal, old.parameters(), new.parameters()))


def test_resumed_training_ends_like_an_uninterrupted_one(tmp_path):
    def parts(trainer):
        (first, second), (optimizer, peer) = trainer.networks, trainer.optimizers
        return {"model": first, "peer": second, "optimizer": optimizer, "peer_optimizer": peer, "trainer": trainer}

    whole = make_trainer(6, warmup_epochs=2, num_gradual=4)
    whole.run()
    cut = make_trainer(3, warmup_epochs=2, num_gradual=4)
    CheckpointSaver(str(tmp_path), parts(cut), save_final=True, final_filename="last.pt").attach(cut)
    cut.run()
    again = make_trainer(6, networks=[make_network(7), make_network(8)], warmup_epochs=2, num_gradual=4)
    CheckpointLoader(str(tmp_path / "last.pt"), parts(again)).attach(again)
    again.add_event_handler(Events.STARTED, lambda e: setattr(e.state, "max_epochs", 6))
    again.run()
    assert again.state.iteration == whole.state.iteration
    for one, other in zip(whole.networks, again.networks, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


def test_bundle_config_makes_the_trainer():
    network = {"_target_": "torch.nn.Conv2d", "in_channels": 1, "out_channels": 1, "kernel_size": 1}
    parser = ConfigParser(
        {
            "imports": ["$import torch"],
            "network": network,
            "peer": network,
            "data": [{"image": torch.rand(1, 4, 4), "label": torch.ones(1, 4, 4)}] * 2,
            "loader": {"_target_": "DataLoader", "dataset": "@data", "batch_size": 2},
            "optimizers": "$[torch.optim.SGD(one.parameters(), lr=0.1) for one in (@network, @peer)]",
            "validator": {
                "_target_": "SupervisedEvaluator",
                "device": "cpu",
                "val_data_loader": "@loader",
                "network": "@network",
            },
            "schedules": "$[torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in @optimizers]",
            "trainer": {
                "_target_": "monai_sc.benchmark.methods.CoTeachingPlusTrainer",
                "device": "cpu",
                "max_epochs": 2,
                "train_data_loader": "@loader",
                "networks": ["@network", "@peer"],
                "optimizers": "@optimizers",
                "noise_rate": 0.2,
                "warmup_epochs": 1,
                "train_handlers": [
                    {"_target_": "LrScheduleHandler", "lr_scheduler": "$@schedules[0]", "print_lr": False},
                    {"_target_": "LrScheduleHandler", "lr_scheduler": "$@schedules[1]", "print_lr": False},
                    {"_target_": "ValidationHandler", "validator": "@validator", "interval": 1},
                ],
            },
        }
    )
    trainer = parser.get_parsed_content("trainer")
    trainer.run()
    validator = parser.get_parsed_content("validator")
    assert validator.network is trainer.network
    assert validator.state.epoch == 2
    assert [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers] == [0.025, 0.025]


def noisy_images(seed, number, noise):
    """Return images of 16 channels, a rule of three of them, and that rule with random voxels of it wrong."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(number, 16, 16, 16, generator=generator)
    clean = images[:, :3].sum(dim=1, keepdim=True) > 1
    return images, clean, clean ^ (torch.rand(clean.shape, generator=generator) < noise)


def test_random_errors_of_labels_are_not_learnt_by_heart():
    images, _, labels = noisy_images(0, 4, noise=0.35)
    test_images, test_labels, _ = noisy_images(1, 8, noise=0)
    loader = DataLoader([{"image": i, "label": n.float()} for i, n in zip(images, labels, strict=True)], batch_size=1)

    def network(seed):
        torch.manual_seed(seed)
        sizes = [16, 64, 64, 1]
        layers = [torch.nn.Conv2d(a, b, 1) for a, b in pairwise(sizes)]
        return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])

    def test_dice(one):
        predicted = one(test_images) > 0
        return float(2 * (predicted & test_labels).sum() / (predicted.sum() + test_labels.sum()))

    plain, pair = network(0), [network(0), network(1)]
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.005) for one in (plain, *pair)]
    SupervisedTrainer(CPU, 30, loader, plain, optimizers[0], torch.nn.BCEWithLogitsLoss()).run()
    options = {"noise_rate": 0.35, "warmup_epochs": 5}
    CoTeachingPlusTrainer(CPU, 30, loader, pair, optimizers[1:], **options).run()
    assert test_dice(pair[0]) > test_dice(plain) + 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_rate": 1}, r"noise_rate must be at least 0 and under 1, or None, got 1\.$"),
        ({"noise_rate": -0.1}, r"noise_rate must be at least 0 and under 1, or None, got -0\.1\.$"),
        ({"warmup_epochs": -1}, r"warmup_epochs must be at least 0, got -1\.$"),
        ({"num_gradual": 0}, r"num_gradual must be at least 1, got 0\.$"),
        ({"min_voxels": 0}, r"min_voxels must be at least 1, got 0\.$"),
        ({"output": "relu"}, r"output must be one of 'sigmoid', 'softmax', got 'relu'\.$"),
        ({"networks": [make_network(0)]}, r"networks must be two, got 1\.$"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(**options)


@pytest.mark.parametrize("order", [(1, 0), (0, 0)], ids=["swapped", "one-network"])
def test_optimizers_of_other_networks_are_refused(order):
    networks = [make_network(0), make_network(1)]
    optimizers = [torch.optim.SGD(networks[k].parameters(), lr=0.1) for k in order]
    with pytest.raises(ValueError, match=r"optimizers must be in the order of networks.*number \d has others\.$"):
        CoTeachingPlusTrainer(CPU, 1, make_loader(), networks, optimizers, noise_rate=0, warmup_epochs=0)


def test_networks_with_the_same_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"networks must have different weights at the start, got the same"):
        make_trainer(networks=[make_network(0), make_network(0)]).run()
    trainer = make_trainer()
    torch.save({"model": trainer.network.state_dict(), "peer": trainer.network.state_dict()}, tmp_path / "both.pt")
    load = {"model": trainer.networks[0], "peer": trainer.networks[1]}
    CheckpointLoader(str(tmp_path / "both.pt"), load).attach(trainer)
    with pytest.raises(ValueError, match=r"initialise the second one with another seed\.$"):
        trainer.run()
    network = make_network(0)
    with pytest.raises(ValueError, match=r"networks must be two different ones, got one twice\.$"):
        make_trainer(networks=[network, network])


def test_networks_of_two_kinds_are_accepted():
    wider = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    trainer = make_trainer(networks=[make_network(0), wider])
    trainer.run()
    assert trainer.state.epoch == 2


def test_noise_rate_that_nobody_sets_is_refused():
    trainer = make_trainer(3, noise_rate=None, warmup_epochs=2)
    with pytest.raises(ValueError, match=r"known after 2 epochs of warm-up, got None; .*NoiseRateHandler with epoch=2"):
        trainer.run()
    assert trainer.state.epoch == 3


def test_batch_of_nothing_is_refused():
    trainer = make_trainer()
    with pytest.raises(ValueError, match=r"^Must provide batch data for current iteration\.$"):
        trainer._iteration(trainer, None)
