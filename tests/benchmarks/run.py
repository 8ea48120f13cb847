"""Times of the functions beside straightforward versions of the same, on one thread: ``make benchmark``.

Pairs that do the same are first checked to give the same result. Each pair is timed in turns, so that a busy machine
slows both; the ratio is the median over the turns, and says more than the times.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from noise import tables
from rich.console import Console
from rich.table import Table
from scipy import ndimage
from shapes import ball, seconds

from monai_sc.functional import boundary_displacement, correct_boundary, signed_distance

TURNS = 7
RINGS, SCIPY = "ring by ring", "scipy's euclidean distance"


def distance_by_rings(label):
    """Taxicab signed distance, by growing the mask and its complement one ring of voxels at a time."""
    mask = label[0]
    phi = np.zeros(mask.shape, dtype=np.float32)
    for source, sign in ((mask, 1), (~mask, -1)):
        reached, ring = source, 0
        while not reached.all():
            grown = ndimage.binary_dilation(reached)
            ring += 1
            phi[grown & ~reached] = sign * ring
            reached = grown
    return phi[None]


def distance_by_scipy(label):
    """Euclidean signed distance, from scipy alone."""
    mask = label[0]
    return (ndimage.distance_transform_edt(~mask) - ndimage.distance_transform_edt(mask))[None].astype(np.float32)


def displacement_by_rings(prediction, label):
    """Mean difference of the distances on both sides of the boundary, from the face between the classes."""
    phi_prediction, phi = (d - 0.5 * np.sign(d) for d in map(distance_by_rings, (prediction, label)))
    return np.array([np.mean((phi_prediction - phi)[np.abs(phi) == 0.5])])


def correction_by_rings(logits, bias):
    """Scores that are at least 0 where the distance, from the face between the classes, is at most the bias."""
    phi = distance_by_rings(logits >= 0)
    return (bias - (phi - 0.5 * np.sign(phi))).astype(np.float32)


def main():
    """Print the table."""
    torch.set_num_threads(1)
    image, volume = (256, 256), (64, 128, 128)
    label, prediction, large = ball(image, 60), ball(image, 66), ball(volume, 25)
    logits = (66 - np.linalg.norm(np.indices(image) - 128, axis=0))[None].astype(np.float32)
    taxicab = {"metric": "taxicab"}
    distance, moved = partial(signed_distance, large), partial(boundary_displacement, prediction, label)
    corrected = partial(correct_boundary, logits, -6.0)
    moved_by_rings = partial(displacement_by_rings, prediction, label)
    corrected_by_rings = partial(correction_by_rings, logits, -6.0)
    by_scipy = partial(distance_by_scipy, label)
    # The last is whether both do the same; a distance is a part of the last two.
    pairs = [
        ("signed_distance, euclidean", distance, SCIPY, partial(distance_by_scipy, large), True),
        ("signed_distance, taxicab", partial(distance, **taxicab), RINGS, partial(distance_by_rings, large), True),
        ("boundary_displacement, taxicab", partial(moved, **taxicab), RINGS, moved_by_rings, True),
        ("correct_boundary, taxicab", partial(corrected, **taxicab), RINGS, corrected_by_rings, True),
        ("boundary_displacement, euclidean", moved, SCIPY, by_scipy, False),
        ("correct_boundary, euclidean", corrected, SCIPY, by_scipy, False),
    ]
    table = Table("function", "ms", "beside", "ms", "times faster", title=f"Medians of {TURNS} turns, one channel")
    for name, ours, other_name, other, is_same in pairs:
        if is_same and not np.allclose(ours(), other()):
            raise RuntimeError(f"{name}: the version {other_name} gives another result.")
        times = np.array([(seconds(ours), seconds(other)) for _ in range(TURNS)])
        ms = 1000 * np.median(times, axis=0)
        ratio = np.median(times[:, 1] / times[:, 0])
        table.add_row(name, f"{ms[0]:.1f}", other_name, f"{ms[1]:.1f}", f"{ratio:.2f}")
    console = Console(width=None if Console().is_terminal else 120)
    for result in (table, *tables()):
        console.print(result)


if __name__ == "__main__":
    main()
