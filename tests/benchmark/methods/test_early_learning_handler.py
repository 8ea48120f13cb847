"""What early-learning regularization is for: labels of which many are wrong, and a network that can learn them all."""

from __future__ import annotations

import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedTrainer
from monai.transforms import Compose, RandFlipd

from monai_sc.benchmark.methods import (
    CaseMapLoss,
    CaseMemory,
    EarlyLearningRegularizationLoss,
    EarlyLearningTargetHandler,
    LoadCaseMapd,
)

CHANNELS, WRONG = 150, 0.4


def make_cases(generator, number):
    """Return cases whose truth shows in one channel of many, the others noise, and labels with voxels flipped."""
    cases = []
    for k in range(number):
        truth = (torch.rand(1, 8, 5, generator=generator) > 0.5).float()
        image = torch.randn(CHANNELS, 8, 5, generator=generator)
        image[0] += 5 * (truth[0] - 0.5)
        flipped = torch.rand(1, 8, 5, generator=generator) < WRONG
        label = torch.where(flipped, 1 - truth, truth)
        cases.append({"id": f"c{k}", "image": MetaTensor(image), "label": MetaTensor(label), "truth": truth})
    return cases


def accuracy(network, cases):
    """Return how many voxels are predicted as they truly are."""
    with torch.no_grad():
        found = [((network(c["image"].as_tensor()[None])[0] > 0) == (c["truth"] > 0)).float().mean() for c in cases]
    return float(torch.stack(found).mean())


def train(seed, regularized, epochs=60):
    """Return the accuracy on the training cases and on unseen ones."""
    generator = torch.Generator().manual_seed(seed)
    cases, unseen = make_cases(generator, 3), make_cases(generator, 20)
    torch.manual_seed(seed)
    network = torch.nn.Conv2d(CHANNELS, 1, 1)  # more weights than voxels: it can learn any labels by heart
    torch.nn.init.zeros_(network.weight)
    memory = CaseMemory()
    data = [{key: case[key] for key in ("id", "image", "label")} for case in cases]
    flip = RandFlipd(["image", "label"], prob=0.5, spatial_axis=0).set_random_state(seed)
    chain = Compose([flip, LoadCaseMapd("target", memory, channels=2)])
    loss, handlers = torch.nn.BCEWithLogitsLoss(), []
    if regularized:
        loss = CaseMapLoss(EarlyLearningRegularizationLoss(coefficient=7.0, momentum=0.8))
        handlers = [EarlyLearningTargetHandler(memory, loader=DataLoader(Dataset(data), batch_size=3), key="target")]
    SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=DataLoader(Dataset(data, chain), batch_size=3),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        loss_function=loss,
        train_handlers=handlers,
    ).run()
    return accuracy(network, cases), accuracy(network, unseen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_fewer_wrong_labels_are_learnt_by_heart(seed):
    plain, regularized = train(seed, False), train(seed, True)
    assert regularized[0] > plain[0] + 0.1  # on the training cases, whose labels are wrong
    assert regularized[1] > plain[1] + 0.1  # on unseen ones
