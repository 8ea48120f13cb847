"""What the losses are for: labels of which many voxels have a random other class."""

from __future__ import annotations

import pytest
import torch

from monai_sc.benchmark.methods import GeneralizedCrossEntropyLoss

FEATURES, CLASSES, FLIPPED = 16, 4, 0.35


def voxels(number, seed):
    """Return an image ``(1, features, voxels)``, whose labels depend on the features only, and labels with flips."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    image = torch.randn(1, FEATURES, number, generator=generator)
    label = (truth @ image).argmax(1, keepdim=True)
    other = (label + torch.randint(1, CLASSES, label.shape, generator=generator)) % CLASSES
    return image, label, torch.where(torch.rand(label.shape, generator=generator) < FLIPPED, other, label)


def true_accuracy(loss, refresh=None, seed=0):
    """Return how many voxels of another image a network has right that could learn all labels by heart."""
    image, _, given = voxels(600, seed)
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Conv1d(FEATURES, 64, 1), torch.nn.ReLU(), torch.nn.Conv1d(64, CLASSES, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    weight = ()
    for step in range(150):
        if refresh is not None and step and step % refresh == 0:
            weight = (loss.kept(network(image), given),)
        optimizer.zero_grad()
        loss(network(image), given, *weight).backward()
        optimizer.step()
    image, label, _ = voxels(2000, seed + 1000)
    with torch.no_grad():
        return (network(image).argmax(1, keepdim=True) == label).float().mean().item()


@pytest.fixture(scope="session")
def gain_on_flips():
    """Return a function of a loss: how much more voxels than by cross-entropy are right after a training on flips."""
    plain = true_accuracy(GeneralizedCrossEntropyLoss(output="softmax", q=0))
    return lambda loss, refresh=None: true_accuracy(loss, refresh) - plain
