import pytest
import torch
from monai.networks.nets import UNet

from monai_sc.handlers import start_at_prior


def unet(dims=2, classes=1):
    torch.manual_seed(0)
    return UNet(dims, 1, classes, channels=(8, 16, 32), strides=(2, 2), num_res_units=2, norm="batch")


@pytest.mark.parametrize("dims", [2, 3])
def test_network_begins_with_few_voxels_as_foreground(dims):
    image = torch.rand(4, 1, *[32] * dims)
    shares = [
        (torch.sigmoid(net(image)) > 0.5).float().mean() for net in (unet(dims), start_at_prior(unet(dims), 0.02))
    ]
    assert shares[0] > 0.2
    assert shares[1] < 0.02


def test_only_the_last_bias_changes():
    before, after = unet(classes=2).state_dict(), start_at_prior(unet(classes=2), 0.1).state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == 1
    torch.testing.assert_close(torch.sigmoid(after[changed[0]]), torch.full((2,), 0.1))


@pytest.mark.parametrize("prior", [0, 1, -0.1, 2])
def test_prior_out_of_range_is_refused(prior):
    with pytest.raises(ValueError, match=r"prior must be a probability over 0 and under 1, got "):
        start_at_prior(unet(), prior)


def test_network_without_a_convolution_is_refused():
    with pytest.raises(ValueError, match=r"must have a convolution with a bias, got Linear without\.$"):
        start_at_prior(torch.nn.Linear(1, 1), 0.1)
