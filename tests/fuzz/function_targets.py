"""The functions of ``monai_sc.functional`` that measure, and those of label maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from monai_sc import functional
from monai_sc.benchmark import methods

from .checks import has_distances, is_same_kind, on_label
from .inputs import Call, Draw, as_numpy

CLASSES = ((1,), (1, 2), (2, 7), (7, 2, 1))
WRONG_CLASSES = ((), (1, 1), (0, 2), (0.5,), (np.nan,), (300,))


def distance_options(draw, ndim):
    metric = draw.option(("euclidean", "euclidean", "taxicab"), ("manhattan",))
    in_mm = metric == "euclidean" or draw.is_wrong("spacing")
    return {
        "metric": metric,
        "origin": draw.option(("voxel", "face"), ("edge",)),
        "spacing": draw.spacing(ndim) if in_mm else None,
    }


def pair_of_labels(draw: Draw, channels: Sequence[int] = (1, 2, 3)) -> tuple[Any, Any]:
    """Return two labels on one grid, of which the second is often the first, moved by a voxel."""
    size = draw.shape(channels=channels)
    values = draw.mask(size)
    moved = np.roll(values, 1, axis=-1) if values.ndim and draw.happens(0.6) else draw.mask(size)
    moved = moved[..., :1] if draw.is_wrong("shape") and moved.ndim else moved
    return draw.array(values), draw.array(moved)


def displacement(draw: Draw) -> Call:
    label, other = pair_of_labels(draw)
    given = {
        "region": draw.option(("boundary", "image"), ("edge",)),
        "metric": draw.option(("euclidean", "euclidean", "taxicab"), ("manhattan",)),
    }
    given["spacing"] = draw.spacing(max(label.ndim - 1, 0)) if given["metric"] == "euclidean" else None
    if draw.happens(0.3):
        ignore = draw.mask(tuple(label.shape))
        given["ignore"] = draw.array(ignore[:1] if ignore.ndim and draw.happens(0.5) else ignore)

    def is_right(result):
        same = functional.boundary_displacement(label, label, **given)
        return result.shape == (label.shape[0],) and bool(np.all(np.isnan(same) | (np.abs(same) < 1e-6)))

    return Call([label, other, given], lambda: functional.boundary_displacement(other, label, **given), is_right)


def displacements_of_cases(draw: Draw) -> np.ndarray:
    """Return displacements ``(cases, classes)``, some of which are not defined."""
    size = draw.shape() if draw.is_wrong("shape") else (draw.one((1, 2, 3, 8, 30)), draw.whole(1, 3))
    size = (100_000, 2) if draw.size is not None else size
    values = draw.rng.normal(0, 2, size)
    if draw.happens(0.4):
        values = np.where(draw.rng.random(size) < 0.3, np.nan, values)
    if draw.is_wrong("values"):
        values = values * draw.one((np.nan, np.inf, 1e100))
    with np.errstate(over="ignore"):
        return values if draw.happens(0.8) else values.astype(draw.one((">f8", "float32", "complex64")))


def bias_options(draw: Draw) -> dict[str, Any]:
    return {
        "confidence": draw.option((0.95, 0.5), (0.0, 1.0, np.nan)),
        "tolerance": draw.option((1.0, 0.0, np.inf), (-1.0, np.nan)),
    }


def is_bias_of(classes: int) -> Callable[[Any], bool]:
    return lambda bias: (
        bias.mean.shape == (classes,)
        and bias.interval.shape == (classes, 2)
        and set(bias.verdict) <= {"biased", "unbiased", "cannot tell"}
        and not bool(np.any(bias.interval[:, 0] > bias.interval[:, 1]))
    )


def bias(draw: Draw) -> Call:
    moved, given = displacements_of_cases(draw), bias_options(draw)
    return Call(
        [moved, given], lambda: functional.boundary_bias(moved, **given), lambda r: is_bias_of(moved.shape[1])(r)
    )


def biases_of_groups(draw: Draw) -> Call:
    moved, given = displacements_of_cases(draw), bias_options(draw)
    number = len(moved) if moved.ndim else 1
    groups = [draw.one(("ann", "ben", "cem", 4, None)) for _ in range(draw.option((number,), (0, number + 1)))]
    if draw.is_wrong("option") and groups:
        groups[0] = float("nan")
    return Call(
        [moved, groups, given],
        lambda: functional.grouped_bias(moved, groups, **given),
        lambda r: set(r) == set(groups) and all(is_bias_of(moved.shape[1])(one) for one in r.values()),
    )


def split(draw: Draw) -> Call:
    classes = list(draw.option(CLASSES, WRONG_CLASSES))
    values = draw.array(draw.label_map(draw.shape(channels=(1,)), classes))
    background = draw.option((0, 0, 255), (classes[0] if classes else 0,))

    def is_right(masks):
        content = as_numpy(values)
        found = np.stack([content[0] == c for c in classes])
        return masks.dtype == bool and masks.shape == found.shape and bool((masks == found).all())

    return Call([values, classes], lambda: functional.split_label_map(values, classes, background=background), is_right)


def merge(draw: Draw) -> Call:
    classes = list(draw.option(CLASSES, WRONG_CLASSES))
    content = draw.label_map(draw.shape(channels=(1,)), classes)
    values = draw.array(content)
    held = [as_numpy(values).real[0] == c for c in classes] if content.ndim and len(content) else []
    moved = [np.roll(mask, draw.whole(-1, 1), axis=-1) if mask.ndim else mask for mask in held]
    masks = draw.array(np.stack(moved).astype(float) if moved else np.zeros((1, 2, 2)))
    given = {
        "overlap": draw.option(("nearest", "priority"), ("largest",)),
        "background": draw.option((0, 0, 9), (1, 7)),
    }

    def is_right(merged):
        before, after = as_numpy(values), as_numpy(merged)
        movable = np.isin(before, [given["background"], *classes])
        return (
            is_same_kind(merged, values)
            and set(np.unique(after)) <= {*np.unique(before), *classes}
            and bool((after == before)[~movable].all())
        )

    return Call([masks, values], lambda: functional.merge_masks(masks, values, classes, **given), is_right)


def confident(draw: Draw) -> Call:
    groups, classes = draw.whole(1, 2), draw.whole(2, 3)
    spatial = draw.shape()[1:]
    wrong = draw.logits((groups, classes, *spatial))
    chances = np.exp(wrong - wrong.max(axis=1, keepdims=True)) if np.isfinite(wrong).all() and wrong.size else wrong
    chances = chances / chances.sum(axis=1, keepdims=True) if np.isfinite(wrong).all() else wrong
    numbers = draw.rng.integers(0, classes, (groups, *spatial)).astype(float)
    if draw.is_wrong("values"):
        numbers = np.where(draw.rng.random(numbers.shape) < 0.2, draw.one((9.0, -1.0, 0.5, np.nan)), numbers)
    if draw.is_wrong("shape") and numbers.ndim > 1:
        numbers = numbers[..., :1]
    floats = ("float16", "float32", "float64", ">f4")
    chances, label = draw.array(chances, floats), draw.array(numbers, ("uint8", "int64", *floats))
    prune = draw.option(("both", "class", "noise_rate"), ("none",))

    def run():
        learning = methods.ConfidentLearning(groups, classes, prune=prune)
        learning.add(chances, label)
        learning.add_confident(chances, label)
        return learning, learning.flagged(chances, label)

    def is_right(result):
        learning, flagged = result
        total = learning.joint.sum(axis=(1, 2))
        return flagged.shape == tuple(label.shape) and bool(np.all((total == 0) | (np.abs(total - 1) < 1e-6)))

    return Call([chances, label], run, is_right)


def noise_rate(draw: Draw) -> Call:
    channels = draw.option(((1,), (2,)), ((1, 2, 3),))
    pairs = [pair_of_labels(draw, channels) for _ in range(draw.option((1, 2, 3), (0, 3)))]
    return Call([pairs], lambda: methods.estimate_noise_rate(pairs), lambda r: 0 <= r <= 1)


def small_loss(draw: Draw) -> Call:
    size = (draw.whole(1, 2), *draw.shape())
    size = draw.shape() if draw.is_wrong("shape") else size
    dtype = draw.option((torch.float32, torch.float64, torch.float16), (torch.int64, torch.uint8))
    loss = torch.as_tensor(draw.logits(size)).abs().to(dtype)
    candidates = torch.as_tensor(draw.mask(size[:-1] if draw.is_wrong("shape") else size) == 1)
    candidates = candidates.to(draw.option((torch.bool,), (torch.uint8, torch.float32)))
    fraction = draw.rate()

    def is_right(kept):
        count, number = (x.flatten(2).sum(dim=-1) for x in (kept, candidates))
        expected = np.minimum(np.maximum(np.round(number.numpy() * fraction), 1), number.numpy())
        return (
            kept.dtype == torch.bool
            and not bool((kept & ~candidates).any())
            and bool((count.numpy() == expected).all())
        )

    return Call([loss, candidates], lambda: methods.select_small_loss(loss, candidates, fraction), is_right)


def validation_size(draw: Draw) -> Call:
    given = {
        "epsilon": draw.option((1.0, 3.0, np.int64(2)), (0.0, np.nan, np.inf, 1e-200)),
        "epsilon0": draw.option((2.0, 0.0, 10), (-1.0, np.nan, np.inf, 1e300)),
        "epsilon1": draw.option((0.0, 0.0, 1e-4), (1.0, -0.1, np.nan, 0.5)),
        "image_size": draw.option(
            ((256, 256), 64, np.array([8, 9]), np.int64(64)), ((), (0, 3), (np.nan,), (np.inf, 3), -1)
        ),
        "alpha": draw.option((0.05, 0.5), (0.0, 1.0, np.nan)),
    }
    return Call([given], lambda: functional.required_validation_size(**given), lambda r: isinstance(r, int) and r >= 0)


TARGETS = {
    "signed_distance": on_label(functional.signed_distance, has_distances, distance_options, (1, 2, 3, 4)),
    "boundary_displacement": displacement,
    "boundary_bias": bias,
    "grouped_bias": biases_of_groups,
    "split_label_map": split,
    "merge_masks": merge,
    "ConfidentLearning": confident,
    "estimate_noise_rate": noise_rate,
    "select_small_loss": small_loss,
    "required_validation_size": validation_size,
}
