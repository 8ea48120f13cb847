"""One mask of a folder: loaded, made noisy, written like its source, and compared with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Randomizable

from monai_sc.files.durable import sha256
from monai_sc.files.values import MAX_CLASSES, values_in, why_no_label
from monai_sc.files.write import file_suffix, write_values_like
from monai_sc.folders.labels import load_values
from monai_sc.functional import boundary_displacement, case_seed
from monai_sc.functional.masks import dice
from monai_sc.transforms.distance import voxel_size

MakeNoise = Callable[..., Randomizable]
"""Makes the noise transform: called with the list of classes of a label map, or with ``None`` for a binary mask."""

MEASURES = ("dice", "displacement_voxels", "displacement_mm", "voxels_changed")
TOLERANCE = 1e-3  # as in LoadLabel, for files whose scale makes a 1 read 0.99999997


class SimulationError(RuntimeError):
    """A mask that cannot be simulated, or a disk that cannot take it; the message is one sentence with the file."""


@dataclass(frozen=True)
class CaseJob:
    """What a process needs to know of one case.

    Attributes:
        name: of the file, relative to both folders, with slashes.
        source: the clean mask.
        staging: the folder for the finished file, until it gets its place.
        make_noise: called with the classes of this case.
        foreground: the only value beside 0 that the file may hold; ``None`` takes what it holds.
        classes: of every file; ``None`` is a class for each value of this file.
        empty_foreground: the foreground of a file that holds 0 only; ``None`` leaves it as it is.
        seed: of the data set.
    """

    name: str
    source: Path
    staging: Path
    make_noise: MakeNoise
    foreground: float | None
    classes: Sequence[int] | None
    empty_foreground: float | None
    seed: int


@dataclass(frozen=True)
class CaseLabel:
    """The clean label of a case.

    Attributes:
        values: of the file ``(*spatial)``.
        label: as a transform takes it ``(1, *spatial)``: 0 and 1 for a binary mask, else whole numbers.
        classes: the values of the classes; for a binary mask that of its foreground, or none if it has no value.
        is_map: whether the label is a map, and not a binary mask.
        affine: of the file; ``None`` where it has no geometry.
    """

    values: np.ndarray
    label: np.ndarray
    classes: list[float]
    is_map: bool
    affine: np.ndarray | None

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """The size of a voxel in mm, ``None`` without geometry."""
        return None if self.affine is None else voxel_size(self.affine, self.values.ndim)

    def tensor(self) -> torch.Tensor:
        """Return a copy of the label; without geometry it has no affine, so that noise in mm is refused."""
        copy = torch.from_numpy(self.label.copy())
        return copy if self.affine is None else MetaTensor(copy, affine=torch.as_tensor(self.affine))


def label_of(values: np.ndarray, job: CaseJob) -> tuple[np.ndarray, list[float], bool]:
    """Return the label of a file as a transform takes it, ``(1, *spatial)``, its classes, and whether it is a map.

    The label is 0 and 1 for a binary mask, whose only class is the value of its foreground, else whole numbers.

    Raises:
        ValueError: when the values are not those of a mask or a label map.
    """
    found = values_in(values, None if job.classes else MAX_CLASSES + 2)
    if not np.all(np.isfinite(found)):
        raise ValueError("it must hold numbers, got nan or infinity")
    if len(found) and max(abs(int(found[0])), abs(int(found[-1]))) >= 2**53:
        raise ValueError("it must hold values under 2**53")
    others = found[np.abs(found) > TOLERANCE]
    if job.foreground is not None:
        stray = others[np.abs(others - job.foreground) > TOLERANCE]
        if len(stray):
            raise ValueError(f"it must hold 0 and {job.foreground:g} only, got {stray[0]:g}")
        others = np.asarray([job.foreground])
    if job.classes is None and len(others) < 2:
        value = float(others[0]) if len(others) else job.empty_foreground
        return (np.abs(values) > TOLERANCE)[None].astype(np.uint8), [] if value is None else [value], False
    whole = np.rint(found)
    if not np.all(np.abs(found - whole) <= TOLERANCE):
        raise ValueError("it must hold 0 and one other value, or whole numbers: its values do not form a label map")
    label = values if np.issubdtype(values.dtype, np.integer) else np.rint(values).astype(np.int64)
    if job.classes is None and (reason := why_no_label(label, found=np.unique(whole))):
        raise ValueError(f"{reason}; if these are classes, name them")
    classes = [int(v) for v in job.classes or np.unique(whole[whole != 0])]
    return label[None], [float(c) for c in classes], True


def read_case(job: CaseJob) -> CaseLabel:
    """Load the clean label of a case.

    Raises:
        SimulationError: naming the file, when it is not that of a mask or a label map.
    """
    try:
        values, affine = load_values(job.source)
        label, classes, is_map = label_of(values, job)
    except (OSError, ValueError) as error:
        raise _unfit(job, error) from error
    return CaseLabel(values, label, classes, is_map, affine)


def simulate_case(job: CaseJob) -> tuple[dict[str, Any], Path]:
    """Write the noisy version of a case into the staging folder, and return its line of the manifest and the file.

    Raises:
        SimulationError: naming the file.
    """
    try:
        return _simulate_case(job)
    except SimulationError:
        raise
    except OSError as error:
        reason = error.strerror or _one_line(error)
        raise SimulationError(f"{job.name} could not be simulated: {reason}.") from error
    except Exception as error:  # from a reader, the noise or a writer
        raise _unfit(job, error) from error


def _simulate_case(job: CaseJob) -> tuple[dict[str, Any], Path]:
    clean = read_case(job)
    label, classes, is_map = clean.label, clean.classes, clean.is_map
    seed = case_seed(job.seed, job.name) % 2**32
    noisy = label
    if classes:
        noise: Any = job.make_noise([int(c) for c in classes] if is_map else None)
        noise.set_random_state(seed=seed)
        noisy = np.asarray(noise(clean.tensor())).astype(label.dtype)
    moved = noisy[0] if is_map or not classes else np.where(noisy[0] > 0, classes[0], 0)
    written = np.where(noisy[0] == label[0], clean.values, moved)  # a value that stays is not even rounded
    # with the process in its name: that of a killed run may be in its last moments
    staged = job.staging / f"{os.getpid()}-{hashlib.sha256(job.name.encode()).hexdigest()}{file_suffix(job.source)}"
    write_values_like(written, staged, job.source)
    try:
        reloaded = load_values(staged)[0]
    except ValueError as error:
        raise SimulationError(f"{job.name} could not be written whole; is the disk full?") from error
    exact = np.issubdtype(reloaded.dtype, np.integer)
    if reloaded.shape != written.shape or not np.allclose(reloaded, written, rtol=0, atol=0 if exact else TOLERANCE):
        raise ValueError("its file type does not preserve the written values")
    spacing = clean.spacing
    labels = [int(c) for c in classes] if is_map else [1] * len(classes)
    compared = [_differences(label[0] == value, noisy[0] == value, spacing) for value in labels]
    entry: dict[str, Any] = {
        "case": job.name,
        "source_sha256": sha256(job.source),
        "sha256": sha256(staged),
        "seed": seed,
        "label_map": is_map,
        "classes": [round(c) if abs(c - round(c)) < TOLERANCE else c for c in classes],
        **{key: [result[key] for result in compared] for key in MEASURES},
    }
    return entry, staged


def _differences(clean: np.ndarray, noisy: np.ndarray, spacing: Sequence[float] | None) -> Mapping[str, Any]:
    """Return Dice, the mean displacement of the boundary and the number of voxels that differ, of two boolean masks.

    Dice is ``None`` where both are empty, a displacement where one has no boundary, that in mm without ``spacing``.
    """
    changed = int(np.count_nonzero(clean != noisy))
    if not (clean.any() or noisy.any()):
        return dict(zip(MEASURES, (None, None, None, changed), strict=True))
    pair = noisy[None], clean[None]
    voxels = float(boundary_displacement(*pair)[0])
    if spacing is None:
        mm = np.nan
    elif np.ptp(spacing) < 1e-6 * max(spacing):
        mm = voxels * spacing[0]
    else:
        mm = float(boundary_displacement(*pair, spacing=spacing)[0])
    moved = (None if np.isnan(value) else round(value, 6) for value in (voxels, mm))
    return dict(zip(MEASURES, (round(float(dice(*pair)[0]), 6), *moved, changed), strict=True))


def _unfit(job: CaseJob, error: Exception) -> SimulationError:
    return SimulationError(f"{job.source} cannot be simulated: {_one_line(error).rstrip('.')}.")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
