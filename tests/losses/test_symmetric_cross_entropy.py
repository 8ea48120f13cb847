from __future__ import annotations

import math

import pytest
import torch
from monai.data import MetaTensor
from monai.losses import DeepSupervisionLoss

from monai_sc.losses import GeneralizedCrossEntropyLoss, SymmetricCrossEntropyLoss

LN3 = math.log(3)  # its sigmoid is 3/4
ONLY_REVERSE = {"alpha": 0, "beta": 1, "label_clip": math.exp(-8)}
CASES = [
    pytest.param([[LN3]], [[1]], {"beta": 0}, math.log(4 / 3), id="cross-entropy"),
    pytest.param([[LN3]], [[0]], {"beta": 0}, math.log(4), id="cross-entropy-of-background"),
    pytest.param([[LN3]], [[1]], ONLY_REVERSE, 8 / 4, id="reverse-is-8-times-one-minus-p"),
    pytest.param([[LN3]], [[0]], ONLY_REVERSE, 8 * 3 / 4, id="reverse-of-background"),
    pytest.param([[LN3]], [[0.5]], ONLY_REVERSE, math.log(2), id="reverse-of-a-soft-label"),
    pytest.param([[LN3]], [[1]], {**ONLY_REVERSE, "alpha": 2, "beta": 3}, 2 * math.log(4 / 3) + 6, id="weighted-sum"),
    pytest.param([[0.0], [LN3]], [[1]], {**ONLY_REVERSE, "output": "softmax"}, 2, id="class-numbers"),
    pytest.param([[0.0], [LN3]], [[1], [0]], {**ONLY_REVERSE, "output": "softmax"}, 6, id="one-hot"),
]


@pytest.mark.parametrize(("logits", "target", "options", "expected"), CASES)
def test_cases_worked_out_by_hand(logits, target, options, expected):
    found = SymmetricCrossEntropyLoss(**options)(torch.tensor([logits]), torch.tensor([target]))
    assert found.item() == pytest.approx(expected, rel=1e-5)


def by_definition(logits, target, output, alpha, beta, clip):
    """Return the loss of each voxel and group in plain Python, from one-hot or soft labels."""
    batch, channels, *spatial = logits.shape
    result = torch.zeros(batch, channels if output == "sigmoid" else 1, *spatial, dtype=torch.float64)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in result.shape)).tolist():
        b, g, *voxel = index
        if output == "sigmoid":
            p = 1 / (1 + math.exp(-logits[(b, g, *voxel)]))
            y = float(target[(b, g, *voxel)])
            pairs = [(y, p), (1 - y, 1 - p)]
        else:
            powers = [math.exp(logits[(b, c, *voxel)]) for c in range(channels)]
            pairs = [(float(target[(b, c, *voxel)]), powers[c] / sum(powers)) for c in range(channels)]
        forward = -sum(y * math.log(p) for y, p in pairs)
        reverse = -sum(p * math.log(y if y > clip else clip) for y, p in pairs)
        result[tuple(index)] = alpha * forward + beta * reverse
    return result


def example(spatial, *, soft=True, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, 3, *spatial, generator=generator, dtype=dtype)
    target = torch.randn(2, 3, *spatial, generator=generator, dtype=dtype).mul(3).softmax(1)
    return logits, target if soft else (target == target.amax(1, keepdim=True)).to(dtype)


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 2)], ids=["2D", "3D"])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("clip", [1e-4, 0.05])
def test_loss_is_that_of_the_definition(spatial, output, soft, clip):
    logits, target = example(spatial, soft=soft)
    expected = by_definition(logits, target, output, 0.7, 1.3, clip)
    options = {"output": output, "alpha": 0.7, "beta": 1.3, "label_clip": clip}
    for reduction, of in (("none", expected), ("mean", expected.mean()), ("sum", expected.sum())):
        torch.testing.assert_close(SymmetricCrossEntropyLoss(reduction=reduction, **options)(logits, target), of)


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_its_parts_on_hard_labels_are_the_limits_of_generalized_cross_entropy(output):
    logits, target = example((4, 5), soft=False)
    found = SymmetricCrossEntropyLoss(output=output)(logits, target)
    forward, absolute = (GeneralizedCrossEntropyLoss(output=output, q=q)(logits, target) for q in (0, 1))
    torch.testing.assert_close(found, forward + 0.5 * 4 * math.log(10) * absolute)


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_gradient_is_that_of_the_loss(output, soft):
    logits, target = example((2, 3), soft=soft)
    loss = SymmetricCrossEntropyLoss(output=output)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_logits_have_finite_losses_and_gradients(output, dtype):
    logits = torch.tensor([[[6e4, -6e4, 0.0], [-6e4, 6e4, 0.0]]], dtype=dtype, requires_grad=True)
    for target in (torch.tensor([[[1, 1, 1], [0, 0, 0]]]), torch.tensor([[[0, 0, 0], [1, 1, 1]]])):
        loss = SymmetricCrossEntropyLoss(output=output)(logits, target)
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss)
        assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_half_precision_is_near_single_precision(output):
    logits, target = example((4, 5), dtype=torch.float32)
    loss = SymmetricCrossEntropyLoss(output=output)
    torch.testing.assert_close(loss(logits.half(), target.half()), loss(logits, target), rtol=1e-3, atol=0)


def test_metatensors_give_a_plain_tensor():
    logits, target = example((3, 4))
    loss = SymmetricCrossEntropyLoss()
    found = loss(MetaTensor(logits), MetaTensor(target))
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, loss(logits, target))


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_deep_supervision_sums_the_levels(output):
    logits, target = example((4, 4), dtype=torch.float32)
    loss = SymmetricCrossEntropyLoss(output=output)
    coarse = logits[..., ::2, ::2]
    found = DeepSupervisionLoss(loss)([logits, coarse], target)
    torch.testing.assert_close(found, loss(logits, target) + 0.5 * loss(coarse, target[..., 1::2, 1::2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1}, r"^alpha must be at least 0, got -1\.$"),
        ({"beta": math.nan}, r"^beta must be at least 0, got nan\.$"),
        ({"label_clip": 0}, r"^label_clip must be in \(0, 1\), got 0\.$"),
        ({"label_clip": 1}, r"^label_clip must be in \(0, 1\), got 1\.$"),
        ({"output": "relu"}, r"^output must be one of 'sigmoid', 'softmax', got 'relu'\.$"),
        ({"reduction": "median"}, r"'median' is not a valid LossReduction"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SymmetricCrossEntropyLoss(**options)


def test_flipped_labels_harm_less_than_with_cross_entropy(gain_on_flips):
    assert gain_on_flips(SymmetricCrossEntropyLoss(output="softmax", alpha=0.1, beta=1)) > 0.1
