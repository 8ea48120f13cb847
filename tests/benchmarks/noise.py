"""The Markov label noise beside slow versions of itself, and its cost against the size: a part of ``make benchmark``.

Every size runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table
from scipy import ndimage
from shapes import SHAPES, ball, seconds

from monai_sc.functional import markov_label_noise

TURNS = 15
LUNG = {"num_steps": 180, "expansion_prob": 0.8, "march_prob": 0.05}
TUMOUR = {"num_steps": 80, "expansion_prob": 0.7, "march_prob": 0.05}
SIZES = [(n, n) for n in (64, 128, 256, 512, 1024, 2048)], [(n, n, n) for n in (64, 96, 128, 192, 256, 384)]


def by_distance_maps(label, num_steps, expansion_prob, march_prob, seed):
    """Markov noise whose voxels beside the boundary are those at distance 1 in a new distance map of every step."""
    rng = np.random.default_rng(seed)
    mask = label[0].copy()
    for expands in rng.random(num_steps) < expansion_prob:
        front = np.nonzero(ndimage.distance_transform_edt(~mask if expands else mask) == 1)
        mask[front] ^= rng.random(len(front[0])) < march_prob
    return mask[None]


def by_dilation(label, num_steps, expansion_prob, march_prob, seed):
    """Markov noise whose voxels beside the boundary come from a dilation of the whole image in every step."""
    rng = np.random.default_rng(seed)
    mask = label[0].copy()
    for expands in rng.random(num_steps) < expansion_prob:
        growing = mask if expands else ~mask
        front = np.nonzero(ndimage.binary_dilation(growing) & ~growing)
        mask[front] ^= rng.random(len(front[0])) < march_prob
    return mask[None]


def compare():
    """Return a table of the function beside slower versions, in turns, the slowest ones in fewer turns."""
    table = Table(
        "label", "version", "ms", "times slower", title=f"markov_label_noise, one channel, medians of {TURNS}"
    )
    certain = {"num_steps": 9, "expansion_prob": 1, "march_prob": 1, "seed": 0}
    for name, label, parameters, slow_turns in (
        ("lungs 256x256, 180 steps", SHAPES["lung"], LUNG, 3),
        ("tumour 64x128x128, 80 steps", SHAPES["tumour"], TUMOUR, 1),
    ):
        versions = [
            ("a distance map in every step", by_distance_maps, slow_turns),
            ("a dilation in every step", by_dilation, slow_turns),
        ]
        ours = partial(markov_label_noise, label, **parameters, seed=0)
        ours()
        own = np.median([seconds(ours) for _ in range(TURNS)])
        table.add_row(name, "markov_label_noise", f"{1000 * own:.2f}", "")
        for version, slow, turns in versions:
            if not np.array_equal(markov_label_noise(label, **certain), slow(label, **certain)):
                raise RuntimeError(f"The version with {version} gives another result.")
            pairs = []
            for turn in range(turns):
                other = seconds(partial(slow, label, **parameters, seed=turn))
                pairs.append((other, np.median([seconds(ours) for _ in range(TURNS)])))
            ratio = np.median([other / ours_then for other, ours_then in pairs])
            table.add_row("", version, f"{1000 * np.median([other for other, _ in pairs]):.0f}", f"{ratio:.0f}")
    return table


def one_size(shape):
    """Print the time, and the memory beyond the label, of a ball in an image or volume of ``shape``."""
    parameters = LUNG if len(shape) == 2 else TUMOUR
    markov_label_noise(ball((8,) * len(shape), 3), **parameters, seed=0)  # compiled, and everything is loaded
    label = np.zeros((1, *shape), dtype=bool)
    for k in range(shape[0]):  # slice by slice, for temporary arrays must not be the peak
        plane = sum((g - n / 2) ** 2 for g, n in zip(np.ogrid[tuple(map(slice, shape[1:]))], shape[1:], strict=True))
        label[0, k] = plane + (k - shape[0] / 2) ** 2 <= (0.3 * shape[0]) ** 2
    before = resident_bytes()
    turns = TURNS if label.size < 1e7 else 3
    times = [seconds(partial(markov_label_noise, label, **parameters, seed=turn)) for turn in range(turns)]
    print(json.dumps({"seconds": float(np.median(times)), "bytes": peak_bytes() - before, "voxels": label.size}))


def resident_bytes():
    """Return how much memory this process has: at most its peak so far, so that the difference errs upwards."""
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])


def peak_bytes():
    """Return the largest resident size of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_a_new_process(*arguments):
    """Run this file with ``arguments``, and return what it prints."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def scaling():
    """Return a table of the cost against the size."""
    table = Table("size", "steps", "ms", "bytes a voxel beyond the label", title="Cost against the size")
    for shapes, parameters in zip(SIZES, (LUNG, TUMOUR), strict=True):
        found = [in_a_new_process(*shape) for shape in shapes]
        for shape, cost in zip(shapes, found, strict=True):
            # Of a small volume the peak says nothing, since loading the package took more.
            per_voxel = f"{cost['bytes'] / cost['voxels']:.1f}" if cost["voxels"] > 2**24 else ""
            size = "x".join(map(str, shape))
            table.add_row(size, str(parameters["num_steps"]), f"{1000 * cost['seconds']:.2f}", per_voxel)
        sides = np.log([shape[0] for shape in shapes])
        exponent = np.polyfit(sides, np.log([cost["seconds"] for cost in found]), 1)[0]
        large = np.polyfit(sides[-3:], np.log([cost["seconds"] for cost in found[-3:]]), 1)[0]
        table.add_row(f"time ~ side^{exponent:.2f}", "", f"side^{large:.2f} of the last three", "", end_section=True)
    return table


def tables():
    """Return every table of this benchmark."""
    return [compare(), scaling()]


if __name__ == "__main__":
    one_size(tuple(map(int, sys.argv[1:])))
