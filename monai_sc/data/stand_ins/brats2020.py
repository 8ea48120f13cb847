"""A stand-in for BraTS 2020: generated brains with tumours, in the folders and files of the official download."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from monai_sc.data.stand_ins.folder import check_new_folder
from monai_sc.functional import case_seed

SHAPE = (48, 48, 32)
AFFINE = np.array([[-1.0, 0, 0, 0], [0, -1, 0, 239], [0, 0, 1, 0], [0, 0, 0, 1]])
BRAIN = (20.0, 22.0, 14.0)  # half axes of the ellipsoid, in voxels
# brain, necrosis (1), oedema (2) and enhancing tumour (4), as bright as in the scans of each kind
INTENSITY = {
    "flair": (300, 350, 550, 500),
    "t1": (450, 250, 350, 400),
    "t1ce": (450, 250, 350, 750),
    "t2": (350, 600, 550, 450),
}
NAME_MAPPING = (
    "Grade", "BraTS_2017_subject_ID", "BraTS_2018_subject_ID", "TCGA_TCIA_subject_ID", "BraTS_2019_subject_ID",
    "BraTS_2020_subject_ID",
)  # fmt: skip
SURVIVAL = ("Brats20ID", "Age", "Survival_days", "Extent_of_Resection")


def write_brats2020(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write small generated scans and masks as the training data of BraTS 2020 lie after unpacking.

    Of ``num_cases`` only the sum counts, since the official data have no splits.
    """
    check_new_folder(out)
    data = out / "MICCAI_BraTS2020_TrainingData"
    names = [f"BraTS20_Training_{k + 1:03d}" for k in range(sum(num_cases.values()))]
    for name in names:
        folder = data / name
        folder.mkdir(parents=True)
        for kind, array in _volumes(case_seed(seed, name)).items():
            nib.save(nib.Nifti1Image(array, AFFINE), folder / f"{name}_{kind}.nii.gz")  # type: ignore[no-untyped-call]
    _write_csv(data / "name_mapping.csv", NAME_MAPPING, [["HGG", *["NA"] * 4, name] for name in names])
    _write_csv(data / "survival_info.csv", SURVIVAL, [[name, "60", "400", "GTR"] for name in names])


def _volumes(seed: int) -> dict[str, np.ndarray]:
    """Return the scans of a case, by kind, and its mask ``"seg"``, all int16."""
    state = np.random.RandomState(seed % 2**32)
    grid = np.indices(SHAPE)
    middle = np.array(SHAPE) / 2
    brain = _ellipsoid(grid, middle, np.array(BRAIN)) < 1
    texture = ndimage.gaussian_filter(state.normal(size=SHAPE), 3)
    center = middle + state.uniform(-0.4, 0.4, 3) * BRAIN
    depth = _ellipsoid(grid, center, state.uniform(7, 10, 3)) + texture / texture.std() * 0.08
    mask = np.zeros(SHAPE, np.int16)
    for value, edge in ((2, 1.0), (4, 0.6), (1, 0.35)):
        mask[brain & (depth < edge)] = value
    volumes = {}
    for kind, (tissue, *tumour) in INTENSITY.items():
        image = np.full(SHAPE, tissue, float)
        for value, intensity in zip((1, 2, 4), tumour, strict=True):
            image[mask == value] = intensity
        image = ndimage.gaussian_filter(image, 0.7) + state.normal(scale=25, size=SHAPE)
        volumes[kind] = np.where(brain, image.clip(1), 0).astype(np.int16)
    return {**volumes, "seg": mask}


def _ellipsoid(grid: np.ndarray, center: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return how far each voxel lies from the center, in half axes: an ellipsoid is where this is under 1."""
    distance: np.ndarray = np.sqrt((((grid.T - center) / axes) ** 2).sum(axis=-1)).T
    return distance


def _write_csv(file: Path, header: tuple[str, ...], rows: list[list[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as table:
        csv.writer(table).writerows([header, *rows])
