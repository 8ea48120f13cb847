"""BraTS 2020 and 2021 as they are downloaded: brain scans of four kinds, and masks of the parts of the tumour."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data import NibabelReader
from scipy import ndimage

from monai_sc.datasets.layout import CLEAN, TEST, TRAIN, Content, Layout, SourceCase, check_new_folder, visible_files
from monai_sc.files.grids import Grid, check_same_grid, check_whole
from monai_sc.functional import case_seed

MODALITIES = ("flair", "t1", "t1ce", "t2")
MASK = "seg"
ODD_MASK = "W39_1998.09.19_Segm"  # of BraTS20_Training_355, in the official download
VALUES = (0, 1, 2, 4)  # background; necrosis, oedema and enhancing tumour
SUFFIXES = (".nii.gz", ".nii")
NUM_CASES = {"BraTS20_Training": 369, "BraTS2021": 1251}
CASE_FOLDER = re.compile(r"(BraTS20_Training|BraTS2021)_\d+")


class Brats2020Layout(Layout):
    """The training data of BraTS 2020, or of BraTS 2021, in a folder for each case; the class is the whole tumour.

    The folders of the cases, such as ``BraTS20_Training_001``, may lie at any depth. In it ``{case}_flair.nii.gz`` and
    so on are the scans, ``{case}_seg.nii.gz`` is the mask; ``.nii`` does as well. Other folders and files are left out.

    Raises:
        ValueError: when ``modalities`` are none, repeated, or others.
    """

    name = "brats2020"
    classes = ("tumour",)
    default_size = (128, 128, 64)
    split_sizes = {TRAIN: 200, CLEAN: 19, TEST: 150}

    def __init__(self, source: Path, *, modalities: Sequence[str] = ("flair",)) -> None:
        super().__init__(source)
        given = [modalities] if isinstance(modalities, str) else list(modalities)
        if not given or len(set(given)) < len(given) or not set(given) <= set(MODALITIES):
            raise ValueError(f"modalities must be one or more of {', '.join(MODALITIES)}, each once, got {given}.")
        self.modalities = given

    def cases(self) -> list[SourceCase]:
        visible_files(self.source, ())  # which refuses a folder that does not exist
        folders: dict[str, Path] = {}
        for folder in self._case_folders():
            if folder.name in folders:
                raise ValueError(
                    f"{folders[folder.name]} and {folder} must be one folder, not two; delete one of them."
                )
            folders[folder.name] = folder
        years = {_year(name): folder for name, folder in sorted(folders.items())}
        if not years:
            raise ValueError(
                f"Folder {self.source} must hold folders of cases, named as BraTS20_Training_001 or BraTS2021_00000, "
                "got none; name the folder of the unpacked training data."
            )
        if len(years) > 1:
            first, second = years.values()
            raise ValueError(
                f"Folder {self.source} must hold one year of BraTS, since they share patients, got {first} and "
                f"{second}; name the folder of one year."
            )
        return [self._case(folder) for _, folder in sorted(folders.items())]

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        if not cases:
            return []
        year = _year(cases[0].id)
        count = NUM_CASES[year] - len(cases)
        if count <= 0:
            return []
        phrase = f"{count} of the {NUM_CASES[year]} cases of {year}"
        if year == "BraTS2021":  # whose numbers have gaps
            return [phrase]
        present = {case.id for case in cases}
        absent = [name for k in range(NUM_CASES[year]) if (name := f"{year}_{k + 1:03d}") not in present]
        more = ["..."] if len(absent) > 3 else []
        return [f"{phrase}: {', '.join([*absent[:3], *more])}"]

    def read(self, case: SourceCase) -> Content:
        mask, grid = self._volume(case.files[MASK], "Label file")
        stray = np.setdiff1d(mask, VALUES)
        if stray.size:
            raise ValueError(
                f"{grid.name} must hold 0, 1, 2 and 4 only, got {stray[0]:g}; take the masks of BraTS 2020 or 2021, "
                "later years have other values."
            )
        channels = []
        for modality in self.modalities:
            scan, own_grid = self._volume(case.files[modality], "Image file")
            check_same_grid(own_grid, grid)
            channels.append(scan)
        return Content(np.stack(channels), (mask > 0)[None], affine=grid.affine)

    def options(self) -> dict[str, Any]:
        return {"modalities": self.modalities}

    def _case_folders(self) -> Iterator[Path]:
        """Return the folders of cases, at any depth; the folder itself may be one."""
        if CASE_FOLDER.fullmatch(self.source.name):
            yield self.source
            return
        for root, folders, _ in os.walk(self.source):
            found = [name for name in folders if CASE_FOLDER.fullmatch(name)]
            folders[:] = sorted(name for name in folders if name not in found and not name.startswith("."))
            yield from (Path(root, name) for name in found)

    def _case(self, folder: Path) -> SourceCase:
        """Return the case of a folder.

        Raises:
            ValueError: when it lacks a scan or the mask, or holds one twice.
        """
        present = visible_files(folder, SUFFIXES)
        files = {}
        for kind in (*self.modalities, MASK):
            name = f"{folder.name}_{kind}"
            if kind == MASK and name not in present and ODD_MASK in present:
                name = ODD_MASK
            if name not in present:
                raise ValueError(
                    f"Folder {folder} must hold {name}.nii.gz or {name}.nii, got "
                    f"{', '.join(file.name for file in present.values()) or 'neither'}; copy it again from its source."
                )
            files[kind] = present[name]
        return SourceCase(folder.name, files, group=folder.name)

    def _volume(self, path: Path, kind: str) -> tuple[np.ndarray, Grid]:
        """Return the values of a file ``(x, y, z)``, float32, and its grid.

        Raises:
            ValueError: when it is not whole, or not one volume of finite numbers.
        """
        name = f"{kind} {path}"
        check_whole(path, name, to_end=True)
        image: Any = NibabelReader().read(path)
        values = np.asarray(image.dataobj, np.float32)
        if values.ndim != 3:
            raise ValueError(
                f"{name} must hold one volume of three axes, got shape {values.shape}; copy it again from its source."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must hold finite numbers, got nan or infinity; copy it again from its source.")
        return values, Grid(name, values.shape, np.asarray(image.affine))


LAYOUT = Brats2020Layout


def _year(case_id: str) -> str:
    """Return the part of a case's id that the cases of a year share."""
    return case_id.rpartition("_")[0]


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
