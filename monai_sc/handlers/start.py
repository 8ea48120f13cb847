"""How a network starts."""

from __future__ import annotations

import math

import torch


def start_at_prior(network: torch.nn.Module, prior: float) -> torch.nn.Module:
    """Set the bias of the last convolution, so that the network begins with few voxels as foreground; return it.

    A network that begins with half of all voxels as foreground has to unlearn that first; where objects are small and
    many images have none, it can end with predicting nothing at all (Lin et al., Focal Loss for Dense Object Detection,
    ICCV 2017, section 3.3, which starts at a prior of 0.01).

    Args:
        network: whose last convolution gives the logits.
        prior: probability of foreground that the bias stands for, in ``(0, 1)``.

    Raises:
        ValueError: when ``prior`` is out of range, or the network has no convolution with a bias.

    Example:
        >>> network = start_at_prior(torch.nn.Conv2d(1, 1, 3), 0.5)
        >>> network.bias.item()
        0.0
    """
    if not 0 < prior < 1:
        raise ValueError(f"prior must be a probability over 0 and under 1, got {prior}.")
    kinds = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    biases = [module.bias for module in network.modules() if isinstance(module, kinds) and module.bias is not None]
    if not biases:
        raise ValueError(f"network must have a convolution with a bias, got {type(network).__name__} without.")
    torch.nn.init.constant_(biases[-1], math.log(prior / (1 - prior)))
    return network
