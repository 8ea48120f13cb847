from __future__ import annotations

import math

import pytest
import torch
from monai.data import MetaTensor
from monai.losses import DiceLoss

from monai_sc.benchmark.methods import EarlyLearningRegularizationLoss
from monai_sc.benchmark.methods.early_learning import updated_target

LOG2 = math.log(2)
# One voxel, logit 0 (p = 1/2), label foreground: cross-entropy log 2, then lambda * log(1 - <t', p>), t' from t.
BY_HAND = [
    pytest.param(None, 1, 0.0, 0.0, id="first-epoch-target-is-the-prediction"),  # log 2 + log(1 - 1/2)
    pytest.param(None, 0, 0.8, LOG2, id="no-coefficient-is-cross-entropy"),
    pytest.param(None, 2, 0.5, LOG2 + 2 * math.log(0.75), id="half-of-the-prediction"),
    pytest.param((0, 0), 2, 0.5, LOG2 + 2 * math.log(0.75), id="zeros-are-no-target"),
    pytest.param((0.5, 0.5), 2, 0.5, LOG2 + 2 * math.log(0.5), id="full-target"),
    pytest.param((0.1, 0.3), 1, 0.5, LOG2 + math.log(1 - (0.05 + 0.15 + 0.5) / 2), id="weak-target"),
]


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("memory", "coefficient", "momentum", "expected"), BY_HAND)
def test_values_by_hand(memory, coefficient, momentum, expected, output):
    channels = 1 if output == "sigmoid" else 2
    target = torch.ones(1, 1, 1, 1)
    t = None if memory is None else torch.tensor(memory, dtype=torch.float32).reshape(1, 2, 1, 1)
    loss = EarlyLearningRegularizationLoss(output=output, coefficient=coefficient, momentum=momentum)
    assert loss(torch.zeros(1, channels, 1, 1), target, t).item() == pytest.approx(expected, abs=1e-6)


def oracle(logits, label, memory, output, coefficient, momentum):
    """Return the loss of each voxel, class by class, from the definition."""
    batch, channels, *_ = logits.shape
    flat, labels, targets = (x.double().flatten(2) for x in (logits, label, memory))
    groups = range(channels) if output == "sigmoid" else [None]
    found = torch.zeros(batch, len(groups), flat.shape[2], dtype=torch.float64)
    for b in range(batch):
        for v in range(flat.shape[2]):
            for k, g in enumerate(groups):
                if g is None:
                    z, y, t = flat[b, :, v], labels[b, :, v], targets[b, :, v]
                    p = z.exp() / z.exp().sum()
                else:
                    s = 1 / (1 + torch.exp(-flat[b, g, v]))
                    p, y = torch.stack([1 - s, s]), torch.stack([1 - labels[b, g, v], labels[b, g, v]])
                    t = targets[b, 2 * g : 2 * g + 2, v]
                q = p.clamp(1e-4, 1 - 1e-4)
                t = momentum * t + (1 - momentum) * q / q.sum()
                entropy = -sum(y[c] * math.log(p[c]) for c in range(len(p)) if y[c] > 0)
                agreement = sum(t[c] * p[c] for c in range(len(p)))
                found[b, k, v] = entropy + coefficient * math.log(max(1 - agreement, 1e-4))
    return found.reshape(batch, len(groups), *logits.shape[2:])


def random_batch(output, spatial, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 3, *spatial, generator=generator)
    numbers = torch.randint(0, 3, (2, *spatial), generator=generator)
    label = torch.stack([numbers == c for c in range(3)], dim=1).float()
    if output == "sigmoid":
        label[:, 0] = (numbers != 1).float()  # overlapping structures
        memory = torch.rand(2, 3, 2, *spatial, generator=generator)
        memory = (0.9 * memory / memory.sum(2, keepdim=True)).flatten(1, 2)
    else:
        memory = 0.9 * torch.rand(2, 3, *spatial, generator=generator).softmax(1)
    return logits, label, memory


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("spatial", [(4, 3), (3, 2, 2)], ids=["2D", "3D"])
def test_agrees_with_the_definition(output, spatial):
    logits, label, memory = random_batch(output, spatial)
    options = {"output": output, "coefficient": 3.0, "momentum": 0.7}
    expected = oracle(logits, label, memory, **options)
    for reduction, value in (("none", expected), ("sum", expected.sum()), ("mean", expected.mean())):
        found = EarlyLearningRegularizationLoss(**options, reduction=reduction)(logits, label, memory)
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-5)


def test_softmax_takes_class_numbers():
    logits, label, memory = random_batch("softmax", (4, 3))
    loss = EarlyLearningRegularizationLoss(output="softmax")
    assert torch.equal(loss(logits, label.argmax(1, keepdim=True), memory), loss(logits, label, memory))


def test_sigmoid_of_one_channel_is_softmax_of_two():
    logits, label, memory = random_batch("sigmoid", (4, 3))
    logits, label, memory = logits[:, :1], label[:, :1], memory[:, :2]
    both = torch.cat([torch.zeros_like(logits), logits], dim=1)
    found = EarlyLearningRegularizationLoss(output="sigmoid")(logits, label, memory)
    torch.testing.assert_close(found, EarlyLearningRegularizationLoss(output="softmax")(both, label, memory))


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_gradient_draws_towards_the_target(output):
    """Where the label is wrong a firm target turns the gradient round, as it is meant to."""
    logits = torch.full((1, 1 if output == "sigmoid" else 2, 1, 1), 0.0)
    logits[:, -1] = -2.0
    memory = torch.tensor([0.98, 0.02]).reshape(1, 2, 1, 1)  # it was background in earlier epochs
    slopes = []
    for t in (None, memory):
        z = logits.clone().requires_grad_()
        EarlyLearningRegularizationLoss(output=output)(z, torch.ones(1, 1, 1, 1), t).backward()
        slopes.append(z.grad[0, -1].item())
    assert slopes[0] < 0 < slopes[1]


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradient_is_finite_at_the_limits(output, dtype):
    logits = torch.tensor([[[6e4, -6e4, 80.0]], [[-6e4, 6e4, 0.0]]], dtype=dtype).repeat(1, 2, 1).requires_grad_()
    label = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).repeat(2, 1, 1)
    memory = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]).repeat(2, 2 if output == "sigmoid" else 1, 1)
    found = EarlyLearningRegularizationLoss(output=output)(logits, label, memory)
    found.backward()
    assert torch.isfinite(found)
    assert torch.isfinite(logits.grad).all()


def test_other_supervised_loss_takes_the_place_of_the_cross_entropy():
    logits, label, memory = random_batch("sigmoid", (4, 3))
    plain = EarlyLearningRegularizationLoss()(logits, label, memory)
    entropy = torch.nn.BCEWithLogitsLoss()
    torch.testing.assert_close(EarlyLearningRegularizationLoss(loss=entropy)(logits, label, memory), plain)
    dice = DiceLoss(sigmoid=True)
    found = EarlyLearningRegularizationLoss(loss=dice)(logits, label, memory)
    torch.testing.assert_close(found, plain - entropy(logits, label) + dice(logits, label))


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_input_is_untouched_and_metadata_does_not_matter(output):
    logits, label, memory = random_batch(output, (4, 3))
    before = [x.clone() for x in (logits, label, memory)]
    loss = EarlyLearningRegularizationLoss(output=output)
    found = loss(*(MetaTensor(x) for x in (logits, label, memory)))
    assert type(found) is torch.Tensor
    assert torch.equal(found, loss(logits, label, memory))
    assert all(torch.equal(x, y) for x, y in zip((logits, label, memory), before, strict=True))


def test_target_after_n_epochs_sums_to_one_minus_beta_to_the_n():
    target = torch.zeros(1, 1, 2, 1, 1)
    steady = torch.tensor([0.25, 0.75]).reshape(1, 1, 2, 1, 1)
    for n in range(1, 6):
        target = updated_target(target, steady.clone().requires_grad_(), 0.8)
        assert not target.requires_grad
        torch.testing.assert_close(target, (1 - 0.8**n) * steady)


def test_certain_prediction_leaves_something_to_the_other_classes():
    certain = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 1, 3, 1, 1)
    found = updated_target(torch.zeros_like(certain), certain, 0.0).flatten()
    torch.testing.assert_close(found, torch.tensor([0.9999, 1e-4, 1e-4]) / 1.0001)


@pytest.mark.parametrize(
    ("options", "wording"),
    [
        ({"coefficient": -1}, r"coefficient must be at least 0, got -1\."),
        ({"coefficient": math.nan}, "coefficient must be at least 0, got nan"),
        ({"momentum": 1}, "momentum must be at least 0 and under 1, got 1"),
    ],
    ids=["coefficient", "nan", "momentum"],
)
def test_unfit_option_is_refused(options, wording):
    with pytest.raises(ValueError, match=wording):
        EarlyLearningRegularizationLoss(**options)


def test_memory_of_another_shape_is_refused():
    logits, label, memory = random_batch("sigmoid", (4, 3))
    with pytest.raises(ValueError, match=r"must have the shape \(2, 6, 4, 3\), .* 3 groups, got \(2, 3, 4, 3\)"):
        EarlyLearningRegularizationLoss()(logits, label, memory[:, :3])
