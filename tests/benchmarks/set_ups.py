"""Random set-ups: do labels of new cases ever get worse? ``python tests/benchmarks/set_ups.py --number 300``.

Each set-up draws one structure, a reader and a network: biased or not, the same for all cases or one way here and the
other there, rough or smooth, good or weak, memorised or not; 1 to 24 clean cases, with given labels or without, in 2D
or 3D. It prints in how many set-ups the labels of new cases get worse by more than 0.005 in the mean Dice, and by how
much they gain.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from monai_sc.correction import SpatialCorrector, compare_given

KINDS = ("biased", "unbiased", "mixed", "weak", "weak and biased", "memorised")
CLEAN = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
WORSE = 0.005

Case = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Logits of the network, clean label and given label, each ``(1, *spatial)``."""


@dataclass(frozen=True)
class SetUp:
    """A structure that a reader and a network draw."""

    kind: str
    bias: float  # of the given labels in voxels, negative where they are too large
    pairs: bool  # whether the clean cases have given labels
    clean: list[Case]
    training: list[Case]  # cases with a given label
    new: list[Case]  # cases that have no say


def smooth(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """Return smooth noise with a standard deviation of 1."""
    field: np.ndarray = ndimage.gaussian_filter(rng.normal(size=shape), sigma)
    return field / field.std()


def draw(seed: int) -> SetUp:
    """Return the set-up of a seed."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    solid = rng.random() < 0.25
    shape, scale = ((26,) * 3, 0.5) if solid else ((64,) * 2, 1.0)
    size = rng.uniform(0.16, 0.3) * shape[0]
    number, pairs = int(rng.choice(CLEAN)), bool(rng.random() < 0.5)
    either = rng.choice([-1.0, 1.0])
    bias = {"biased": either * rng.uniform(1.5, 4.5), "memorised": rng.choice([0.0, -2.5, 2.5])}.get(kind, 0.0) * scale
    if kind == "weak and biased":
        bias = either * rng.uniform(1.5, 4.5) * scale
    reader_spread, reader_noise = (rng.choice(values) * scale for values in ([0.0, 0.3, 0.8, 2.0], [0.3, 1.0, 2.0]))
    net_spread, net_noise = (rng.choice(values) * scale for values in ([0.2, 0.6, 1.5, 2.0], [0.3, 0.8, 1.5]))
    net_bias = bias + rng.normal(0, 0.5) * scale
    memory = 0.8 if kind == "memorised" else rng.choice([0.0, 0.0, 0.5])
    if kind.startswith("weak"):
        net_noise, net_spread, memory = rng.uniform(3, 6) * scale, rng.uniform(1, 3) * scale, 0.0
        net_bias = rng.normal(bias, 3) * scale
    grid = np.meshgrid(*[np.arange(n) - (n - 1) / 2 for n in shape], indexing="ij")

    def case() -> Case:
        place = [g - o for g, o in zip(grid, rng.uniform(-0.06, 0.06, len(shape)) * shape[0], strict=True)]
        angle = np.arctan2(place[0], place[1])
        waves = 0.12 * np.sin(2 * angle + rng.uniform(0, 6)) + 0.08 * np.sin(3 * angle + rng.uniform(0, 6))
        inside = size * rng.uniform(0.75, 1.25) * (1 + waves) - np.sqrt(sum(np.square(p) for p in place))
        one_way = rng.choice([-3.0, 3.0]) * scale if kind == "mixed" else 0.0
        reader = one_way - bias + rng.normal(0, reader_spread) + reader_noise * smooth(rng, shape, 2 if solid else 3)
        own = -net_bias + rng.normal(0, net_spread) + net_noise * smooth(rng, shape, 3 if solid else 5)
        logits = 1.5 * (inside + memory * reader + (1 - memory) * own)
        return logits[None].astype(np.float32), (inside >= 0)[None], (inside + reader >= 0)[None]

    cases = [case() for _ in range(number + 35)]
    return SetUp(kind, float(bias), pairs, cases[:number], cases[number : number + 20], cases[number + 20 :])


def dice(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Dice of two boolean masks."""
    return 2 * float((first & second).sum()) / float(first.sum() + second.sum())


def gains(setup: SetUp) -> tuple[float, float]:
    """Return by how much the mean Dice of labels of new cases rises, with the network and without."""
    logits, clean, given = (list(column) for column in zip(*setup.clean, strict=True))
    training = [[case[i] for case in setup.training] for i in (0, 2)]
    corrector = SpatialCorrector(["structure"]).fit(logits, clean, given=given if setup.pairs else None)
    corrector = compare_given(corrector, *training)
    mover = SpatialCorrector(["structure"]).fit(None, clean, given=given)
    before, after, moved = [], [], []
    for prediction, true, drawn in setup.new:
        before.append(dice(drawn, true))
        after.append(dice(corrector.transform(prediction, given=drawn) > 0, true))
        moved.append(dice(mover.transform(given=drawn) > 0, true))
    return float(np.mean(after) - np.mean(before)), float(np.mean(moved) - np.mean(before))


def main() -> None:
    """Print how often labels of new cases get worse, and what they gain."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=300)
    number = parser.parse_args().number
    setups = [draw(seed) for seed in range(number)]
    found = np.array([gains(setup) for setup in setups])
    kinds = np.array([setup.kind for setup in setups])
    biased = np.array([abs(setup.bias) > 0.5 for setup in setups])
    for column, name in enumerate(("with the network", "moved labels alone")):
        own = found[:, column]
        print(f"{name}: worse in {100 * (own < -WORSE).mean():.1f} %, mean gain {own.mean():.4f}, "
              f"where labels are biased {own[biased].mean():.4f}")  # fmt: skip
        for kind in KINDS:
            chosen = own[kinds == kind]
            print(f"  {kind}: worse in {(chosen < -WORSE).sum()} of {len(chosen)}, mean gain {chosen.mean():.4f}")


if __name__ == "__main__":
    main()
