"""What every loss must do, whatever it is."""

from __future__ import annotations

import pytest
import torch
from monai.data import MetaTensor
from monai.losses import DeepSupervisionLoss

from monai_sc.benchmark import methods
from monai_sc.benchmark.methods import EarlyLearningRegularizationLoss, GeneralizedCrossEntropyLoss
from tests.benchmark.methods.examples import example

LOSSES = [getattr(methods, name) for name in methods.__all__ if name.endswith("Loss") and name != "CaseMapLoss"]
OPTIONS = {GeneralizedCrossEntropyLoss: [{"q": 0}, {"q": 0.1}, {}, {"q": 1}, {"threshold": 0.5}]}  # beside the defaults
CASES = [
    pytest.param(one, options, id=f"{one.__name__}-{options}") for one in LOSSES for options in OPTIONS.get(one, [{}])
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
every_output = pytest.mark.parametrize("output", ["sigmoid", "softmax"])
hard_and_soft = pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])


@pytest.mark.parametrize(("loss", "options"), CASES)
@every_output
@hard_and_soft
def test_gradient_is_that_of_the_loss(loss, options, output, soft):
    if loss is EarlyLearningRegularizationLoss:
        pytest.skip("its target has no gradient, though it is made of the prediction")
    logits, target = example((2, 3), soft=soft)
    assert torch.autograd.gradcheck(lambda x: loss(output=output, **options)(x, target), logits.requires_grad_())


@pytest.mark.parametrize(("loss", "options"), CASES)
@every_output
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_logits_have_finite_losses_and_gradients(loss, options, output, dtype):
    logits = torch.tensor([[[6e4, -6e4, 0.0], [-6e4, 6e4, 0.0]]], dtype=dtype, requires_grad=True)
    for target in (torch.tensor([[[1, 1, 1], [0, 0, 0]]]), torch.tensor([[[0, 0, 0], [1, 1, 1]]])):
        found = loss(output=output, **options)(logits, target)
        assert found.dtype == torch.float32
        assert torch.isfinite(found)
        assert torch.isfinite(torch.autograd.grad(found, logits)[0]).all()


@every_loss
@every_output
def test_half_precision_is_near_single_precision(loss, output):
    logits, target = example((4, 5), dtype=torch.float32)
    one = loss(output=output)
    torch.testing.assert_close(one(logits.half(), target.half()), one(logits, target), rtol=1e-3, atol=0)


@every_loss
@every_output
def test_metatensors_give_a_plain_tensor(loss, output):
    logits, target = example((3, 4))
    found = loss(output=output)(MetaTensor(logits), MetaTensor(target))
    assert type(found) is torch.Tensor
    assert torch.equal(found, loss(output=output)(logits, target))


@every_loss
@every_output
@hard_and_soft
def test_deep_supervision_sums_the_levels(loss, output, soft):
    logits, target = example((4, 4), dtype=torch.float32, soft=soft)
    one, coarse = loss(output=output), logits[..., ::2, ::2]
    found = DeepSupervisionLoss(one)([logits, coarse], target)
    torch.testing.assert_close(found, one(logits, target) + 0.5 * one(coarse, target[..., 1::2, 1::2]))


@every_loss
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "relu"}, r"^output must be one of 'sigmoid', 'softmax', got 'relu'\.$"),
        ({"reduction": "median"}, r"^reduction must be one of .*, got 'median'\.$"),
    ],
)
def test_options_that_all_have_are_checked(loss, options, message):
    with pytest.raises(ValueError, match=message):
        loss(**options)
