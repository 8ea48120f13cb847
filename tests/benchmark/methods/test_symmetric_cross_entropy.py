from __future__ import annotations

import math

import pytest
import torch

from monai_sc.benchmark.methods import GeneralizedCrossEntropyLoss, SymmetricCrossEntropyLoss
from tests.benchmark.methods.examples import by_definition, example

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


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 2)], ids=["2D", "3D"])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("clip", [1e-4, 0.05])
def test_loss_is_that_of_the_definition(spatial, output, soft, clip):
    logits, target = example(spatial, soft=soft)

    def of_pairs(pairs):
        forward = -sum(y * math.log(p) for y, p in pairs)
        reverse = -sum(p * math.log(y if y > clip else clip) for y, p in pairs)
        return 0.7 * forward + 1.3 * reverse

    expected = by_definition(logits, target, output, of_pairs)
    options = {"output": output, "alpha": 0.7, "beta": 1.3, "label_clip": clip}
    for reduction, of in (("none", expected), ("mean", expected.mean()), ("sum", expected.sum())):
        torch.testing.assert_close(SymmetricCrossEntropyLoss(reduction=reduction, **options)(logits, target), of)


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_its_parts_on_hard_labels_are_the_limits_of_generalized_cross_entropy(output):
    logits, target = example((4, 5), soft=False)
    found = SymmetricCrossEntropyLoss(output=output)(logits, target)
    forward, absolute = (GeneralizedCrossEntropyLoss(output=output, q=q)(logits, target) for q in (0, 1))
    torch.testing.assert_close(found, forward + 0.5 * 4 * math.log(10) * absolute)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1}, r"^alpha must be at least 0, got -1\.$"),
        ({"beta": math.nan}, r"^beta must be at least 0, got nan\.$"),
        ({"label_clip": 0}, r"^label_clip must be in \(0, 1\), got 0\.$"),
        ({"label_clip": 1}, r"^label_clip must be in \(0, 1\), got 1\.$"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SymmetricCrossEntropyLoss(**options)


def test_flipped_labels_harm_less_than_with_cross_entropy(gain_on_flips):
    assert gain_on_flips(SymmetricCrossEntropyLoss(output="softmax", alpha=0.1, beta=1)) > 0.1
