import math

import pytest
import torch
from monai.data import MetaTensor
from monai.networks.nets import UNet

from monai_sc.benchmark.methods import PickAndLearnNet, QualityAwarenessModule

SIZES = [pytest.param((16, 12), id="2d"), pytest.param((8, 6, 10), id="3d")]


class GivenScores(torch.nn.Module):
    """Score each sample by the first value of its label."""

    def forward(self, image, label):
        return label.flatten(1)[:, 0]


def sample(spatial, label_channels=2, batch=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(batch, 1, *spatial, generator=generator)
    return image, torch.randint(2, (batch, label_channels, *spatial), generator=generator)


def module(dims, label_channels=2, channels=(8, 16)):
    torch.manual_seed(0)
    return QualityAwarenessModule(dims, 1, label_channels, channels=channels)


def weights_of(scores, limit):
    label = torch.tensor(scores, dtype=torch.float32).reshape(-1, 1, 1, 1)
    return PickAndLearnNet(torch.nn.Identity(), GivenScores(), limit=limit).weights(label, label)


FAR = 1e6  # tanh is 1
CASES = [
    pytest.param([0.3, 0.3, 0.3, 0.3], 2, [0.25] * 4, id="equal-scores-weigh-the-same"),
    pytest.param([math.atanh(0.5), 0], 2 * math.log(3), [3 / 4, 1 / 4], id="3-times-the-weight"),
    pytest.param([0, math.atanh(-0.5), math.atanh(0.5)], math.log(4), [2 / 7, 1 / 7, 4 / 7], id="three-samples"),
    pytest.param([FAR, -FAR], math.log(3), [9 / 10, 1 / 10], id="best-is-e-to-2-lambda-times-the-worst"),
    pytest.param([-FAR], 2, [1], id="one-sample-has-weight-1"),
]


@pytest.mark.parametrize(("scores", "limit", "expected"), CASES)
def test_weights_by_hand(scores, limit, expected):
    torch.testing.assert_close(weights_of(scores, limit), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("limit", [0.1, 1.0, 2.0, 5.0])
def test_no_weight_is_more_than_the_limit_allows(limit):
    for seed in range(5):
        scores = torch.randn(9, generator=torch.Generator().manual_seed(seed)) * 10**seed
        weights = weights_of(scores.tolist(), limit)
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
        assert weights.max() / weights.min() <= math.exp(2 * limit) * (1 + 1e-5)
        assert (weights[scores.argsort()].diff() >= 0).all()


@pytest.mark.parametrize("spatial", SIZES)
def test_score_of_a_sample_does_not_depend_on_its_batch(spatial):
    image, label = sample(spatial)
    net = module(len(spatial))
    scores = net(image, label)
    assert scores.shape == (4,)
    assert len(scores.unique()) == 4
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(net(image[order], label[order]), scores[order])
    torch.testing.assert_close(torch.cat([net(image[b : b + 1], label[b : b + 1]) for b in range(4)]), scores)


@pytest.mark.parametrize("spatial", SIZES)
def test_score_sees_image_and_label(spatial):
    image, label = sample(spatial)
    net = module(len(spatial))
    assert (net(image, label) != net(image, 1 - label)).all()
    assert (net(image, label) != net(image.flip(2), label)).all()


@pytest.mark.parametrize("spatial", SIZES)
def test_class_numbers_and_one_hot_channels_give_the_same_score(spatial):
    numbers = torch.randint(3, (4, 1, *spatial), generator=torch.Generator().manual_seed(0))
    one_hot = torch.cat([numbers == k for k in range(3)], dim=1)
    net = module(len(spatial), label_channels=3)
    image, _ = sample(spatial)
    assert torch.equal(net(image, numbers), net(image, one_hot))


@pytest.mark.parametrize("spatial", [(1, 1), (3, 1), (5, 7), (1, 1, 1), (2, 3, 1)], ids=str)
def test_images_smaller_than_the_pooling_have_a_score(spatial):
    net = module(len(spatial), channels=(8, 8, 8, 8, 8))
    assert torch.isfinite(net(*sample(spatial, batch=1))).all()


def test_weights_have_full_precision_under_autocast():
    image, label = sample((8, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, weights = PickAndLearnNet(torch.nn.Identity(), module(2))(image, label)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))


def test_metadata_makes_no_difference():
    image, label = sample((8, 8))
    scores = module(2)(MetaTensor(image), MetaTensor(label))
    assert type(scores) is torch.Tensor
    assert torch.equal(scores, module(2)(image, label))


@pytest.mark.parametrize("spatial", SIZES)
def test_without_a_label_it_is_the_segmentation_network(spatial):
    image, label = sample(spatial)
    torch.manual_seed(0)
    network = UNet(len(spatial), 1, 2, channels=(8, 16), strides=(2,), num_res_units=0, norm="instance")
    net = PickAndLearnNet(network, module(len(spatial)))
    assert torch.equal(net(image), network(image))
    logits, weights = net(image, label)
    assert torch.equal(logits, network(image))
    assert torch.equal(weights, net.weights(image, label))


def test_state_of_both_parts_is_saved():
    image, label = sample((8, 8))
    net = PickAndLearnNet(torch.nn.Conv2d(1, 2, 3, padding=1), module(2))
    torch.manual_seed(1)
    other = PickAndLearnNet(torch.nn.Conv2d(1, 2, 3, padding=1), QualityAwarenessModule(2, 1, 2, channels=(8, 16)))
    assert not torch.equal(other.weights(image, label), net.weights(image, label))
    other.load_state_dict(net.state_dict())
    for a, b in zip(other(image, label), net(image, label), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            torch.zeros(4, 3, 8, 8),
            r"label must have the shape \(4, 2, 8, 8\), as the image does, got \(4, 3, 8, 8\)\.$",
        ),
        (torch.zeros(4, 2, 8, 9), r"label must have the shape \(4, 2, 8, 8\).*got \(4, 2, 8, 9\)\.$"),
        (torch.zeros(4, 1, 8, 9), r"must have the same size, got \(4, 1, 8, 9\) and \(4, 2, 8, 8\)\.$"),
        (torch.full((4, 1, 8, 8), 2), r"must hold class numbers from 0 to 1.*got 2 to 2\.$"),
    ],
    ids=["channels", "size", "size-of-class-numbers", "class-number"],
)
def test_labels_that_do_not_fit_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        module(2)(torch.zeros(4, 1, 8, 8), label)


@pytest.mark.parametrize("channels", [(), (8, 6), (8, 4)], ids=str)
def test_widths_that_do_not_fit_the_groups_are_refused(channels):
    with pytest.raises(ValueError, match=r"multiples of num_groups=4, at least twice as many, got \("):
        QualityAwarenessModule(2, 1, 1, channels=channels)


@pytest.mark.parametrize("limit", [0, -1, math.inf, math.nan])
def test_limit_out_of_range_is_refused(limit):
    with pytest.raises(ValueError, match=r"limit must be over 0 and finite, got "):
        PickAndLearnNet(torch.nn.Identity(), GivenScores(), limit=limit)


@pytest.mark.parametrize("num_groups", [0, -1])
def test_number_of_groups_out_of_range_is_refused(num_groups):
    with pytest.raises(ValueError, match=rf"^num_groups must be at least 1, got {num_groups}\.$"):
        QualityAwarenessModule(2, 1, 1, num_groups=num_groups)
