from __future__ import annotations

import pytest
import torch

from monai_sc.benchmark.methods.distributions import label_distributions, log_distributions


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 4)], ids=["2D", "3D"])
def test_sigmoid_has_a_group_of_two_classes_per_channel(spatial):
    logits = torch.randn(2, 3, *spatial, generator=torch.Generator().manual_seed(0))
    found = log_distributions(logits, "sigmoid").exp()
    assert found.shape == (2, 3, 2, *spatial)
    torch.testing.assert_close(found[:, :, 1], logits.sigmoid())
    torch.testing.assert_close(found.sum(2), torch.ones(2, 3, *spatial))


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 4)], ids=["2D", "3D"])
def test_softmax_has_one_group_of_all_channels(spatial):
    logits = torch.randn(2, 3, *spatial, generator=torch.Generator().manual_seed(0))
    found = log_distributions(logits, "softmax").exp()
    torch.testing.assert_close(found[:, 0], logits.softmax(1))


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extreme_logits_stay_finite(output, dtype):
    logits = torch.tensor([[[6e4, -6e4]], [[-6e4, 6e4]]], dtype=dtype).repeat(1, 2, 1)
    found = log_distributions(logits, output)
    assert torch.isfinite(found).all()
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_labels_in_the_form_of_predictions():
    logits = torch.zeros(1, 3, 2)
    numbers = torch.tensor([[[2, 0]]])
    one_hot = torch.tensor([[[0, 1], [0, 0], [1, 0]]])
    assert label_distributions(numbers, logits, "softmax").tolist() == [[[[0, 1], [0, 0], [1, 0]]]]
    assert torch.equal(label_distributions(one_hot, logits, "softmax"), label_distributions(numbers, logits, "softmax"))
    masks = torch.tensor([[[1.0, 0.25], [0, 0], [1, 1]]])
    assert label_distributions(masks, logits, "sigmoid")[0, 0].tolist() == [[0, 0.75], [1, 0.25]]


@pytest.mark.parametrize(
    ("target", "output", "message"),
    [
        (torch.zeros(1, 2, 4), "sigmoid", r"same shape, got \(1, 2, 4\) and \(1, 3, 4\)\.$"),
        (torch.zeros(1, 1, 5), "softmax", r"same size, got \(1, 1, 5\) and \(1, 3, 4\)\.$"),
        (torch.full((1, 1, 4), 3), "softmax", r"class numbers from 0 to 2, one per channel of input, got 3 to 3\.$"),
        (torch.full((1, 1, 4), -1), "softmax", r"from 0 to 2.*got -1 to -1\.$"),
    ],
)
def test_labels_that_do_not_fit_are_refused(target, output, message):
    with pytest.raises(ValueError, match=message):
        label_distributions(target, torch.zeros(1, 3, 4), output)


def test_logits_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"output must be one of 'sigmoid', 'softmax', got 'relu'\.$"):
        log_distributions(torch.zeros(1, 3, 4), "relu")
    with pytest.raises(ValueError, match=r"shape \(batch, channels, \*spatial\), got \(1, 3\)\.$"):
        log_distributions(torch.zeros(1, 3), "sigmoid")
    with pytest.raises(ValueError, match=r"two channels or more .* use output='sigmoid'\.$"):
        log_distributions(torch.zeros(1, 1, 4), "softmax")
