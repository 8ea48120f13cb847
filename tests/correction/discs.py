"""Signed distances to discs and balls, and the Dice of two masks."""

from __future__ import annotations

import numpy as np

SIZE = 64


def distance_to(radius, shape=(SIZE, SIZE), spacing=None, centre=None):
    """Return the signed distance to a disc or a ball, positive inside, one channel."""
    centre = centre or [(size - 1) / 2 for size in shape]
    axes = [(np.arange(size) - c) * s for size, c, s in zip(shape, centre, spacing or [1] * len(shape), strict=True)]
    return (radius - np.sqrt(sum(np.square(a) for a in np.meshgrid(*axes, indexing="ij"))))[None]


def disc(radius, **options):
    return distance_to(radius, **options) >= 0


def dice(first, second):
    total = first.sum() + second.sum()
    return 2 * (first & second).sum() / total if total else 1.0
