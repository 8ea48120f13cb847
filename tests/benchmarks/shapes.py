"""Shapes of the size and roughly the form of what the data sets show, and a clock."""

from __future__ import annotations

import time

import numpy as np


def ball(size, radius):
    """Return a mask ``(1, *size)`` of a ball in the middle."""
    return ellipsoid(size, [n / 2 for n in size], [radius] * len(size))


def ellipsoid(size, centre, semi_axes, angle=0.0):
    """Return a mask ``(1, *size)`` of an ellipsoid, turned by ``angle`` (in degrees) in the plane of the last axes."""
    grid = np.indices(size) - np.reshape(centre, (-1, *[1] * len(size)))
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    grid = np.stack([*grid[:-2], c * grid[-2] + s * grid[-1], c * grid[-1] - s * grid[-2]])
    return (((grid / np.reshape(semi_axes, (-1, *[1] * len(size)))) ** 2).sum(axis=0) <= 1)[None]


CHEST = (256, 256)
SHAPES = {
    "lung": ellipsoid(CHEST, (120, 72), (85, 37), 8) | ellipsoid(CHEST, (120, 188), (85, 37), -8),
    "heart": ellipsoid(CHEST, (150, 138), (44, 41.5)),
    "clavicle": ellipsoid(CHEST, (45, 88), (5.5, 35), 25) | ellipsoid(CHEST, (45, 180), (5.5, 35), -25),
    "lesion": ellipsoid((256, 256), (128, 128), (70, 55), 30),
    "tumour": ellipsoid((64, 128, 128), (32, 64, 50), (10, 17, 17)),
}
"""The structures of the presets, on the grids of JSRT, ISIC 2017 (both 256x256) and BraTS 2020 (64x128x128)."""


def seconds(function):
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
