from __future__ import annotations

import copy
import math

import pytest
import torch
from ignite.engine import Events
from monai.data import DataLoader, Dataset
from monai.engines import IterationEvents, SupervisedTrainer
from monai.networks.nets import UNet

from monai_sc.benchmark.methods import CriticalGradientHandler


def trainer_of(network, data, handlers=(), *, batch_size=1, epochs=1, lr=0.1, options=None, **more):
    """Return a trainer by SGD whose loss is the mean of output times label, unless another one is given."""
    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=DataLoader(Dataset(data), batch_size=batch_size),
        network=network,
        optimizer=torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=lr, **(options or {})),
        train_handlers=list(handlers),
        **{"loss_function": lambda predicted, label: (predicted * label).mean(), **more},
    )


def recorded(gradients):
    """Return a handler that appends the gradients of a backward pass by name of the parameter."""

    class Recorder:
        def attach(self, engine):
            engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self)

        def __call__(self, engine):
            parameters = engine.network.named_parameters()
            gradients.append({name: None if p.grad is None else p.grad.clone() for name, p in parameters})

    return Recorder()


def linear(weights, bias=0.0):
    network = torch.nn.Linear(len(weights), 1)
    network.weight.data = torch.tensor([weights])
    network.bias.data = torch.tensor([bias])
    return network


CASES = [  # weights, inputs (which are their gradients), noise rate, gradients left
    pytest.param([1.0, 1, 1, 1], [4.0, -3, 2, 1], 0.5, [2, -1.5, 0, 0], id="half-of-four-by-gradient"),
    pytest.param([-4.0, 3, 2, 1], [1.0, 1, 1, 1], 0.5, [0.5, 0.5, 0, 0], id="by-weight"),
    pytest.param([1.0, 2, 3, 4], [9.0, 3, 1, 1], 0.75, [2.25, 0, 0, 0], id="by-the-product"),
    pytest.param([1.0, 0, 1, 1], [1.0, 9, 2, 3], 0.25, [0.75, 0, 1.5, 2.25], id="weight-of-0-is-not-critical"),
    pytest.param([1.0, 1, 1, 1], [1.0, 1, 1, 1], 0.5, [0.5, 0.5, 0.5, 0.5], id="all-alike-are-all-critical"),
    pytest.param([1.0, 1, 1], [1.0, 2, 3], 0.9, [0, 0, 0.3], id="one-is-critical-at-least"),
    pytest.param([1.0, 1, 1], [1.0, 2, 3], 0, [1, 2, 3], id="noise-rate-0"),
]


@pytest.mark.parametrize(("weights", "inputs", "noise_rate", "expected"), CASES)
def test_cases_worked_out_by_hand(weights, inputs, noise_rate, expected):
    gradients = []
    data = [{"image": torch.tensor(inputs), "label": torch.ones(1)}]
    trainer_of(linear(weights), data, [CriticalGradientHandler(noise_rate), recorded(gradients)]).run()
    torch.testing.assert_close(gradients[0]["weight"], torch.tensor([expected], dtype=torch.float32))
    assert gradients[0]["bias"].tolist() == [1]


def example(dim, number=4):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = UNet(dim, 1, 1, (4, 8), (2,), num_res_units=1, norm="instance")
    shape = (1, *(8,) * dim)
    data = [{key: torch.randn(shape, generator=generator) for key in ("image", "label")} for _ in range(number)]
    return network, data


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("noise_rate", [0.2, 0.5, 0.9])
def test_the_weights_of_the_largest_products_in_the_network_are_left(dim, noise_rate):
    network, data = example(dim, 1)
    before, after = [], []
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}
    trainer_of(network, data, [recorded(before), CriticalGradientHandler(noise_rate), recorded(after)]).run()
    products = [
        (abs(w * g), name, k)
        for name in weights
        if weights[name].ndim in (2, 3, 4, 5)
        for k, (w, g) in enumerate(
            zip(weights[name].flatten().tolist(), before[0][name].flatten().tolist(), strict=True)
        )
    ]
    assert any(weights[name].ndim == dim + 2 for _, name, _ in products)
    products.sort(reverse=True)
    critical = {(name, k) for _, name, k in products[: round((1 - noise_rate) * len(products))]}
    for name, gradient in before[0].items():
        expected = gradient.clone()
        if weights[name].ndim > 1:
            for k in range(expected.numel()):
                expected.view(-1)[k] *= 1 - noise_rate if (name, k) in critical else 0
        torch.testing.assert_close(after[0][name], expected)


@pytest.mark.parametrize("dim", [2, 3])
def test_noise_rate_0_changes_nothing_to_the_last_bit(dim):
    network, data = example(dim)
    other = copy.deepcopy(network)
    options = {"momentum": 0.9, "weight_decay": 1e-3}
    trainer_of(network, data, epochs=2, options=options).run()
    trainer_of(other, data, [CriticalGradientHandler(0)], epochs=2, options=options).run()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_weight_decay_still_moves_the_other_weights():
    network = linear([1.0, 1.0])
    data = [{"image": torch.tensor([2.0, 1.0]), "label": torch.ones(1)}]
    trainer_of(network, data, [CriticalGradientHandler(0.5)], options={"weight_decay": 0.5}).run()
    torch.testing.assert_close(network.weight.data, torch.tensor([[1 - 0.1 * (0.5 * 2 + 0.5), 1 - 0.1 * 0.5]]))


def test_parameters_that_do_not_learn_are_left_alone():
    class Partly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused, self.frozen = linear([1.0, 1.0]), linear([9.0, 9.0]), linear([9.0, 9.0])
            self.frozen.requires_grad_(False)
            self.frozen.weight.grad = torch.full((1, 2), 7.0)  # left from before it was frozen

        def forward(self, x):
            return self.used(x) + self.frozen(x)

    gradients = []
    data = [{"image": torch.tensor([2.0, 1.0]), "label": torch.ones(1)}]
    handlers = [CriticalGradientHandler(0.5), recorded(gradients)]
    network = Partly()
    trainer_of(network, data, handlers).run()
    assert gradients[0]["used.weight"].tolist() == [[1, 0]]
    assert gradients[0]["unused.weight"] is None
    assert gradients[0]["frozen.weight"].tolist() == [[7, 7]]


def test_network_without_weights_is_left_alone():
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.shift

    network = Shift()
    trainer_of(network, [{"image": torch.ones(1), "label": torch.ones(1)}], [CriticalGradientHandler(0.9)]).run()
    torch.testing.assert_close(network.shift.data, torch.tensor([-0.1]))


@pytest.mark.parametrize("number", [4, 5], ids=["whole-groups", "a-rest-at-the-end-of-the-epoch"])
def test_accumulated_gradients_give_the_result_of_larger_batches(number):
    network, data = example(2, number)
    other = copy.deepcopy(network)
    trainer_of(network, data[:4], [CriticalGradientHandler(0.5)], batch_size=2).run()
    trainer_of(other, data[:4], [CriticalGradientHandler(0.5)], accumulation_steps=2).run()
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    if number == 5:
        gradients = []
        trainer = trainer_of(
            other, data, [CriticalGradientHandler(0.5), recorded(gradients)], accumulation_steps=2, epochs=2
        )
        trainer.run()
        zeros = [sum((g == 0).sum().item() for g in step.values()) for step in gradients]
        assert [n > 100 for n in zeros] == [False, True, False, True, True] * 2


class ScaledLoss(SupervisedTrainer):
    """Trains as MONAI's trainer does with ``amp=True``, but on the CPU too."""

    def _iteration(self, engine, batchdata):
        engine.optimizer.zero_grad()
        output = engine.network(batchdata["image"])
        engine.scaler.scale((output * batchdata["label"]).mean()).backward()
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)
        engine.scaler.step(engine.optimizer)
        engine.scaler.update()
        return {"loss": output}


def scaled_trainer(network, data, handlers):
    trainer = ScaledLoss(
        device=torch.device("cpu"),
        max_epochs=1,
        train_data_loader=DataLoader(Dataset(data), batch_size=1),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=torch.nn.MSELoss(),
        train_handlers=handlers,
        decollate=False,
    )
    trainer.add_event_handler(Events.STARTED, lambda engine: setattr(engine, "scaler", torch.amp.GradScaler("cpu")))
    return trainer


def test_the_scale_of_the_loss_makes_no_difference():
    network, data = example(2)
    other = copy.deepcopy(network)
    trainer_of(network, data, [CriticalGradientHandler(0.5)]).run()
    scaled_trainer(other, data, [CriticalGradientHandler(0.5)]).run()
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_the_scaler_skips_the_step_of_gradients_that_overflowed(value):
    network = linear([1.0, 1.0, 1.0, 0.0])
    data = [{"image": torch.tensor([1.0, 2.0, 3.0, value]), "label": torch.ones(1)}]
    network.bias.requires_grad_(False)  # the only other gradient that the scaler could see
    trainer = scaled_trainer(network, data, [CriticalGradientHandler(0.5)])
    trainer.run()
    assert network.weight.tolist() == [[1, 1, 1, 0]]
    assert trainer.scaler.get_scale() == 2**15


def test_a_second_run_goes_on_from_the_first():
    network, data = example(2)
    other = copy.deepcopy(network)
    trainer_of(network, data, [CriticalGradientHandler(0.5)], epochs=4).run()
    for _ in range(2):
        trainer_of(other, data, [CriticalGradientHandler(0.5)], epochs=2).run()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("noise_rate", [-0.1, 1, math.nan])
def test_noise_rate_out_of_range_is_refused(noise_rate):
    with pytest.raises(ValueError, match=rf"^noise_rate must be in \[0, 1\), got {noise_rate}\.$"):
        CriticalGradientHandler(noise_rate)


def noisy_images(number, size, seed, classes=4, flipped=0.4):
    """Return images whose labels depend on their 16 channels, voxel by voxel, and labels with random other classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(classes, 16, generator=torch.Generator().manual_seed(99))
    image = torch.randn(number, 16, size, size, generator=generator)
    label = torch.einsum("kc,bcxy->bkxy", truth, image).argmax(1, keepdim=True)
    other = (label + torch.randint(1, classes, label.shape, generator=generator)) % classes
    return image, label, torch.where(torch.rand(label.shape, generator=generator) < flipped, other, label)


def memorised_and_right(handlers, seed=0, lr=0.3, weight_decay=0.01):
    """Train a large network on four small images, and return which part of the wrong labels it gives back, and how
    much it has right on other images.
    """
    image, label, given = noisy_images(4, 10, seed)
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Conv2d(16, 128, 1), torch.nn.ReLU(), torch.nn.Conv2d(128, 4, 1))
    trainer_of(
        network,
        [{"image": x, "label": y} for x, y in zip(image, given, strict=True)],
        handlers,
        batch_size=4,
        epochs=150,
        lr=lr,
        loss_function=lambda predicted, y: torch.nn.functional.cross_entropy(predicted, y[:, 0]),
        decollate=False,
        options={"momentum": 0.9, "weight_decay": weight_decay},
    ).run()
    wrong = given != label
    test_image, test_label, _ = noisy_images(4, 20, seed + 1000)
    with torch.no_grad():
        memorised = (network(image).argmax(1, keepdim=True) == given)[wrong]
        right = network(test_image).argmax(1, keepdim=True) == test_label
    return memorised.float().mean().item(), right.float().mean().item()


def test_fewer_wrong_labels_are_memorised():
    memorised, right = memorised_and_right([CriticalGradientHandler(0.4)])
    plainly_memorised, plainly_right = memorised_and_right([])
    assert memorised < plainly_memorised - 0.15
    assert right > plainly_right + 0.03
