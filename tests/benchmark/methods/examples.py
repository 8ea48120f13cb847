"""What the tests of the losses share: random predictions and labels, and a loss voxel by voxel."""

from __future__ import annotations

import math

import torch


def example(spatial, *, soft=True, dtype=torch.float64):
    """Return random logits and one-hot labels, or soft ones, both ``(2, 3, *spatial)``."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 3, *spatial, generator=generator, dtype=dtype)
    target = torch.randn(2, 3, *spatial, generator=generator, dtype=dtype).mul(3).softmax(1)
    return logits, target if soft else (target == target.amax(1, keepdim=True)).to(dtype)


def by_definition(logits, target, output, of_pairs):
    """Return the loss of each voxel and group in plain Python.

    Args:
        logits: ``(batch, channels, *spatial)``.
        target: one-hot or soft labels, of the same shape.
        output: ``"sigmoid"`` or ``"softmax"``.
        of_pairs: the loss of a voxel, from a list of the label and the probability of each of its classes.
    """
    batch, channels, *spatial = logits.shape
    result = torch.zeros(batch, channels if output == "sigmoid" else 1, *spatial, dtype=torch.float64)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in result.shape)).tolist():
        b, g, *voxel = index
        if output == "sigmoid":
            p = 1 / (1 + math.exp(-logits[(b, g, *voxel)]))
            y = float(target[(b, g, *voxel)])
            pairs = [(y, p), (1 - y, 1 - p)]
        else:
            powers = [math.exp(logits[(b, c, *voxel)]) for c in range(channels)]
            pairs = [(float(target[(b, c, *voxel)]), powers[c] / sum(powers)) for c in range(channels)]
        result[tuple(index)] = of_pairs(pairs)
    return result
