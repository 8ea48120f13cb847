"""What is called with such inputs, and what a right result is."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch

from monai_sc import functional, losses
from monai_sc.__main__ import main
from monai_sc.data import LabelStore
from tests.transforms.test_label_noise import NOISES

from . import inputs

OTHER_LOSSES = {"CaseMapLoss", "EarlyLearningRegularizationLoss"}  # whose labels carry a map of the case

Call = tuple[list[Any], Callable[[], Any], Callable[[Any], bool]]
"""Inputs that must stay as they are, the call, and whether its result is right."""


def label_of(rng):
    return inputs.stored(rng, inputs.mask(rng, inputs.shape(rng, spatial=True)))


def as_numpy(values):
    return (
        values.float().numpy() if isinstance(values, torch.Tensor) and not values.is_complex() else np.asarray(values)
    )


def is_label_like(label):
    """Same shape, type and library; 0 and 1 only."""
    return lambda result: (
        type(result) is type(label)
        and result.dtype == label.dtype
        and tuple(result.shape) == tuple(label.shape)
        and bool(np.isin(as_numpy(result).real, (0, 1)).all())
    )


def is_finite_like(label):
    return lambda result: (
        tuple(result.shape) == tuple(label.shape)
        and bool(np.isfinite(as_numpy(result)).all())
        and type(result) is type(label)
    )


def has_distances(label):
    """A number for every voxel of a channel that has both, foreground and background."""
    mask = as_numpy(label).real == 1
    axes = tuple(range(1, mask.ndim))
    both = mask.any(axis=axes) & ~mask.all(axis=axes)
    return lambda result: (
        tuple(result.shape) == mask.shape
        and bool((np.isfinite(as_numpy(result)).all(axis=axes) == (both | (mask[0].size == 0))).all())
    )


def is_mask_like(label):
    """As transforms of MONAI give it, which make tensors of arrays."""
    return lambda r: tuple(r.shape) == tuple(label.shape) and bool(np.isin(as_numpy(r), (0, 1)).all())


def on_label(function: Callable[..., Any], check: Callable[[Any], Callable[[Any], bool]], options: Callable[..., dict]):
    def target(rng) -> Call:
        label = label_of(rng)
        given = options(rng, label.ndim - 1)
        return [label, given], lambda: function(label, **given), check(label)

    return target


def rate(rng):
    return float(rng.choice([0.0, 0.3, 1.0, 1.5, -0.1, np.nan], p=[0.2, 0.5, 0.2, 0.04, 0.03, 0.03]))


def displacement(rng) -> Call:
    label = label_of(rng)
    other = inputs.stored(rng, inputs.mask(rng, tuple(label.shape))) if rng.random() < 0.8 else label_of(rng)
    spacing = inputs.spacing(rng, label.ndim - 1)
    region = str(rng.choice(["boundary", "image"]))

    def is_right(result):
        again = functional.boundary_displacement(label, label, region=region, spacing=spacing)
        return result.shape == (label.shape[0],) and bool(np.all(np.isnan(again) | (np.abs(again) < 1e-6)))

    return (
        [label, other, spacing],
        lambda: functional.boundary_displacement(other, label, region=region, spacing=spacing),
        is_right,
    )


def corrected(rng) -> Call:
    logits = inputs.stored(rng, inputs.logits(rng, inputs.shape(rng, spatial=True)))
    bias = float(rng.choice([0.0, 1.5, -2.0, 1e9, -1e9, np.nan, np.inf], p=[0.2, 0.3, 0.3, 0.05, 0.05, 0.05, 0.05]))
    options = {
        "representation": str(rng.choice(["distance", "logit"])),
        "gamma": float(rng.choice([1.0, 0.5, 0.0, 2.0], p=[0.6, 0.3, 0.05, 0.05])),
        "spacing": inputs.spacing(rng, logits.ndim - 1),
    }
    return [logits, options], lambda: functional.correct_boundary(logits, bias, **options), is_finite_like(logits)


def exclusive(rng) -> Call:
    size = inputs.shape(rng, spatial=True)
    logits, scores = (inputs.stored(rng, inputs.logits(rng, size)) for _ in range(2))
    spacing = inputs.spacing(rng, len(size) - 1)
    return (
        [logits, scores, spacing],
        lambda: functional.exclusive_label(scores, logits, spacing=spacing),
        lambda r: r.shape == size[1:] and bool(np.all((r >= 0) & (r < size[0]))),
    )


def against_rest(rng) -> Call:
    logits = inputs.stored(rng, inputs.logits(rng, inputs.shape(rng, spatial=True)))
    return [logits], lambda: functional.one_against_rest(logits), lambda r: tuple(r.shape) == tuple(logits.shape)


def to_logits(rng) -> Call:
    chances = inputs.stored(
        rng, rng.choice([0, 1, 0.2, 1.2, np.nan], inputs.shape(rng, True), p=[0.3, 0.3, 0.36, 0.02, 0.02])
    )
    return (
        [chances],
        lambda: functional.probabilities_to_logits(chances),
        lambda r: bool(np.isfinite(as_numpy(r)).all()),
    )


def bias(rng) -> Call:
    moved = rng.normal(0, 2, inputs.shape(rng)) * rng.choice([1.0, np.nan, 1e30], p=[0.8, 0.1, 0.1])
    return (
        [moved],
        lambda: functional.boundary_bias(moved, num_resamples=20),
        lambda r: r.mean.shape == moved.shape[1:] and set(r.verdict) <= {"biased", "unbiased", "cannot tell"},
    )


def label_map(rng) -> Call:
    values = inputs.stored(rng, inputs.mask(rng, inputs.shape(rng, spatial=True)))
    classes = [int(c) for c in rng.choice([0, 1, 2, 7, 1], rng.integers(0, 4))]
    return (
        [values, classes],
        lambda: functional.split_label_map(values, classes),
        lambda r: r.shape == (len(classes), *values.shape[1:]) and r.dtype == bool,
    )


def transform_of(make: Callable[[], Callable[[Any], Any]]):
    def target(rng) -> Call:
        label, transform = label_of(rng), make()
        return [label], lambda: transform(label), is_mask_like(label)

    return target


def loss_of(make: Callable[[], torch.nn.Module]):
    def target(rng) -> Call:
        size = (int(rng.integers(0, 3)), *inputs.shape(rng, spatial=True))
        said = torch.from_numpy(inputs.logits(rng, size)).float()
        wanted = torch.from_numpy(np.nan_to_num(inputs.mask(rng, size), posinf=1, neginf=0)).float()
        if rng.random() < 0.2:
            wanted = wanted[..., :1]
        usable = bool(torch.isfinite(said).all()) and said.numel() > 0
        return [said, wanted], lambda: make()(said, wanted), lambda r: not usable or bool(torch.isfinite(r).all())

    return target


def nifti(rng, file: Path, values: np.ndarray, affine: np.ndarray) -> None:
    header = nib.Nifti1Header(endianness=str(rng.choice(["<", ">"])))
    dtype = np.dtype(rng.choice(["uint8", "int16", "float32", "float64"]))
    header.set_data_dtype(dtype)
    nib.save(
        nib.Nifti1Image(
            np.nan_to_num(values, posinf=3, neginf=-1).astype(np.int64).clip(0).astype(dtype), affine, header
        ),
        file,
    )


def volume(rng) -> tuple[np.ndarray, np.ndarray]:
    size = tuple(int(n) for n in rng.choice([1, 2, 5, 9], 3))
    affine = np.diag([*(float(s) for s in rng.choice([0.7, 1.0, 1000.0, -2.0], 3)), 1.0])
    return inputs.mask(rng, size), affine


def store(rng) -> Call:
    """A label of a file, written as a new round and read again."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            values, affine = volume(rng)
            file = Path(name) / "a.nii.gz"
            nifti(rng, file, values, affine)
            before = file.read_bytes()
            store = LabelStore(Path(name) / "store", [{"id": "a", "image": str(file), "label": str(file)}])
            label = ~store.read("a", 0)
            if rng.random() < 0.2:
                label = label[..., :1]
            with store.write_round(1, {}) as writer:
                writer.write("a", label)
            same = bool((store.read("a", 1) == label).all())
            written = nib.load(store.files(store.root / "round-001", store.cases[0])[0])
            return same and bool((written.affine == nib.load(file).affine).all()) and file.read_bytes() == before

    return [], run, bool


def audit(rng) -> Call:
    """The command, on files of which some do not fit each other."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            for folder in ("labels", "clean"):
                (Path(name) / folder).mkdir()
            for k in range(rng.integers(1, 3)):
                values, affine = volume(rng)
                nifti(rng, Path(name) / "labels" / f"{k}.nii.gz", values, affine)
                if rng.random() < 0.2:
                    values, affine = volume(rng)
                nifti(rng, Path(name) / "clean" / f"{k}.nii.gz", np.roll(values, 1, axis=0), affine)
            out, told = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
                status = main(["audit", "--labels", f"{name}/labels", "--clean", f"{name}/clean", "--json", "--quiet"])
            if status == 2:
                line = told.getvalue().strip()
                assert line.startswith("Error: "), line
                assert "\n" not in line, line
                raise ValueError(line)
            assert status == 0, told.getvalue()
            return out.getvalue().startswith("{")

    return [], run, bool


def spaced(rng, ndim):
    return {"spacing": inputs.spacing(rng, ndim)}


TARGETS: dict[str, Callable[[np.random.Generator], Call]] = {
    "signed_distance": on_label(
        functional.signed_distance,
        has_distances,
        lambda rng, n: {"metric": str(rng.choice(["euclidean", "taxicab"])), **spaced(rng, n)},
    ),
    "boundary_displacement": displacement,
    "boundary_bias": bias,
    "correct_boundary": corrected,
    "exclusive_label": exclusive,
    "one_against_rest": against_rest,
    "probabilities_to_logits": to_logits,
    "split_label_map": label_map,
    "shift_boundary": on_label(
        functional.shift_boundary, is_label_like, lambda rng, n: {"distance": float(rng.normal(0, 3)), **spaced(rng, n)}
    ),
    "markov_label_noise": on_label(
        functional.markov_label_noise,
        is_label_like,
        lambda rng, n: {
            "num_steps": int(rng.integers(-1, 6)),
            "expansion_prob": rate(rng),
            "march_prob": rate(rng),
            "flip_prob": rate(rng),
            "smoothing": [None, "before_flips", "after_flips"][rng.integers(3)],
            "seed": int(rng.integers(100)),
            **spaced(rng, n),
        },
    ),
    "coarsen_contour": on_label(
        functional.coarsen_contour,
        is_label_like,
        lambda rng, n: {"vertex_distance": float(rng.choice([0.0, 1.0, 4.0, 1e6, -1.0])), "seed": 0, **spaced(rng, n)},
    ),
    "drop_components": on_label(
        functional.drop_components, is_label_like, lambda rng, n: {"drop_prob": rate(rng), "seed": 1}
    ),
    "punch_holes": on_label(
        functional.punch_holes,
        is_label_like,
        lambda rng, n: {"number": (0, 2), "radius": (1, float(rng.integers(0, 4))), "seed": 2, **spaced(rng, n)},
    ),
    "translate_label": on_label(
        functional.translate_label,
        is_label_like,
        lambda rng, n: {"shift": [float(s) for s in rng.normal(0, 4, max(n, 0) if rng.random() < 0.9 else 5)]},
    ),
    **{noise.__name__: transform_of(partial(noise, 1.0, **options)) for noise, options in NOISES.items()},
    **{name: loss_of(getattr(losses, name)) for name in losses.__all__ if name not in OTHER_LOSSES},
    "LabelStore": store,
    "audit": audit,
}
