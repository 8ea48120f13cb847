from __future__ import annotations

import pytest
import torch

from monai_sc.benchmark.methods import CaseMapLoss


def weighted(input, target, weight):  # noqa: A002
    return (weight * (input - target).abs()).sum()


def test_maps_reach_the_loss():
    loss = CaseMapLoss(weighted)
    for weight, expected in (([1.0, 0.0], 3.0), ([0.0, 2.0], 10.0)):
        loss.put(torch.tensor(weight))
        assert loss(torch.tensor([4.0, 5.0]), torch.tensor([1.0, 0.0])).item() == expected


def test_maps_serve_for_one_call():
    loss = CaseMapLoss(weighted)
    with pytest.raises(ValueError, match="must get the maps of a batch before each call, got none; attach the handler"):
        loss(torch.zeros(2), torch.zeros(2))
    loss.put(torch.ones(2))
    loss(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="must get the maps of a batch before each call"):
        loss(torch.zeros(2), torch.zeros(2))


def test_parameters_of_the_loss_are_its_own():
    assert len(list(CaseMapLoss(torch.nn.PReLU()).parameters())) == 1
