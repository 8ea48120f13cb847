from __future__ import annotations

import math

import pytest
import torch
from monai.data import MetaTensor

from monai_sc.benchmark.methods import GeneralizedCrossEntropyLoss
from tests.benchmark.methods.examples import by_definition, example

LN3 = math.log(3)  # its sigmoid is 3/4
CASES = [
    pytest.param([[LN3]], [[1]], {"q": 1.0}, [[0.25]], id="q-1-is-one-minus-p"),
    pytest.param([[LN3]], [[0]], {"q": 1.0}, [[0.75]], id="background-is-a-class"),
    pytest.param([[LN3]], [[1]], {"q": 0.5}, [[2 - 3**0.5]], id="q-one-half"),
    pytest.param([[LN3]], [[1]], {"q": 0}, [[math.log(4 / 3)]], id="q-0-is-cross-entropy"),
    pytest.param([[LN3]], [[0.5]], {"q": 1.0}, [[0.5]], id="soft-label"),
    pytest.param([[LN3]], [[1]], {"q": 1.0, "threshold": 0.5}, [[-0.25]], id="less-the-loss-at-the-threshold"),
    pytest.param([[0.0], [LN3]], [[1]], {"q": 1.0, "output": "softmax"}, [[0.25]], id="class-numbers"),
    pytest.param([[0.0], [LN3]], [[1], [0]], {"q": 1.0, "output": "softmax"}, [[0.75]], id="one-hot"),
    pytest.param(
        [[LN3, 0.0]], [[1, 1]], {"q": 1.0, "weight": [[[1, 0]]]}, [[0.25, 0.0]], id="voxels-of-weight-0-do-not-count"
    ),
]


@pytest.mark.parametrize(("logits", "target", "options", "expected"), CASES)
def test_cases_worked_out_by_hand(logits, target, options, expected):
    weight = torch.tensor(options.pop("weight")) if "weight" in options else None
    loss = GeneralizedCrossEntropyLoss(reduction="none", **options)
    found = loss(torch.tensor([logits]), torch.tensor([target]), weight)
    torch.testing.assert_close(found, torch.tensor([expected]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 2)], ids=["2D", "3D"])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("q", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_loss_is_that_of_the_definition(spatial, output, q, soft):
    logits, target = example(spatial, soft=soft)
    expected = by_definition(
        logits, target, output, lambda pairs: sum(y * (-math.log(p) if q == 0 else (1 - p**q) / q) for y, p in pairs)
    )
    for reduction, of in (("none", expected), ("mean", expected.mean()), ("sum", expected.sum())):
        found = GeneralizedCrossEntropyLoss(output=output, q=q, reduction=reduction)(logits, target)
        torch.testing.assert_close(found, of)


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_small_q_is_nearly_cross_entropy(output):
    logits, target = example((4, 5), dtype=torch.float32)
    near, limit = (GeneralizedCrossEntropyLoss(output=output, q=q)(logits, target) for q in (1e-6, 0))
    torch.testing.assert_close(near, limit, rtol=1e-5, atol=0)


@pytest.mark.parametrize("q", [0, 0.5, 0.7, 1])
@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_voxels_over_the_threshold_are_kept(q, threshold):
    p = torch.tensor([[[threshold - 0.01, threshold, threshold + 0.01]]])
    loss = GeneralizedCrossEntropyLoss(q=q, threshold=threshold)
    assert loss.kept(p.logit(), torch.ones(1, 1, 3)).tolist() == [[[False, False, True]]]
    assert loss.kept(-p.logit(), torch.zeros(1, 1, 3)).tolist() == [[[False, False, True]]]


@pytest.mark.parametrize(("output", "groups"), [("sigmoid", 3), ("softmax", 1)])
@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 2)], ids=["2D", "3D"])
def test_what_is_kept_is_a_weight_that_makes_the_loss_least(output, groups, spatial):
    logits, target = example(spatial)
    loss = GeneralizedCrossEntropyLoss(output=output, threshold=0.5, reduction="none")
    kept = loss.kept(logits, target)
    assert kept.shape == (2, groups, *spatial)
    assert kept.any()
    assert not kept.all()
    found = loss(logits, target, MetaTensor(kept))
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, loss(logits, target).clamp(max=0))


def test_mean_is_over_all_voxels_whatever_their_weight():
    logits, target = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    loss = GeneralizedCrossEntropyLoss(q=1)
    assert loss(logits, target, torch.tensor([[[1, 0, 0, 0]]])).item() == 0.125


def test_weight_of_0_everywhere_gives_no_loss_and_no_gradient():
    logits, target = example((3, 4))
    loss = GeneralizedCrossEntropyLoss(threshold=0.5)(logits.requires_grad_(), target, torch.zeros(2, 3, 3, 4))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q": 1.1}, r"^q must be in \[0, 1\], got 1\.1\.$"),
        ({"q": -0.1}, r"^q must be in \[0, 1\], got -0\.1\.$"),
        ({"q": math.nan}, r"^q must be in \[0, 1\], got nan\.$"),
        ({"threshold": 0}, r"^threshold must be in \(0, 1\) or None, got 0\.$"),
        ({"threshold": 1}, r"^threshold must be in \(0, 1\) or None, got 1\.$"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GeneralizedCrossEntropyLoss(**options)


def test_weight_of_another_shape_is_refused():
    logits, target = example((3, 4))
    message = (
        r"^weight must have the shape \(batch, groups, \*spatial\), \(2, 1, 3, 4\) with output='softmax', got \(2, 3"
    )
    with pytest.raises(ValueError, match=message):
        GeneralizedCrossEntropyLoss(output="softmax")(logits, target, torch.ones(2, 3, 3, 4))


def test_nothing_is_kept_without_a_threshold():
    with pytest.raises(ValueError, match=r"^threshold must be in \(0, 1\) to tell which voxels are kept, got None\.$"):
        GeneralizedCrossEntropyLoss().kept(*example((3, 4)))


@pytest.mark.parametrize(("threshold", "refresh"), [(None, None), (0.5, 20)], ids=["plain", "truncated"])
def test_flipped_labels_harm_less_than_with_cross_entropy(gain_on_flips, threshold, refresh):
    loss = GeneralizedCrossEntropyLoss(output="softmax", threshold=threshold)
    assert gain_on_flips(loss, refresh) > 0.1
