"""Generated images and masks: the data set that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import nibabel as nib
import numpy as np
from monai.config import PathLike
from monai.data import create_test_image_2d, create_test_image_3d
from monai.transforms import GaussianSmooth, RandBiasField
from scipy import ndimage

from monai_sc.files.cases import Case, check_name
from monai_sc.functional import case_seed

__all__ = ["PHANTOM_CLASSES", "phantom_cases", "phantom_image"]

VOXEL_MM = 0.8
PHANTOM_CLASSES = ("large", "small")
"""The classes of the generated images, in the order of their masks."""


def phantom_image(size: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image ``(*size)``, float32, and its masks ``(2, *size)``: large and small discs or balls that overlap.

    The discs are MONAI's ``create_test_image_2d`` and ``_3d``. They are drawn at a low contrast, blurred over their
    boundary, and laid under a bias field and noise, so that a network has to learn where annotators put the boundary.

    Args:
        size: of the image, 2 or 3 axes of at least 48 voxels.
        seed: of this image.

    Raises:
        ValueError: when ``size`` has another number of axes, or an axis is too short.
    """
    if len(size) not in (2, 3) or min(size) < 48:
        raise ValueError(f"size must be 2 or 3 axes of at least 48 voxels, got {tuple(size)}.")
    state = np.random.RandomState(seed % 2**32)
    create: Any = create_test_image_2d if len(size) == 2 else create_test_image_3d
    unit = min(size)
    large, small = (
        create(*size, num_objs=count, rad_min=low, rad_max=high, noise_max=0.0, random_state=state)[1] > 0
        for count, low, high in ((3, unit // 8, unit // 5), (5, unit // 20, unit // 11))
    )
    image = np.asarray(GaussianSmooth(sigma=1.5)(np.where(small, 0.8, 0.4 * large)[None].astype(np.float32)))
    bias_field = RandBiasField(prob=1.0, degree=3, coeff_range=(0.0, 0.1))
    bias_field.set_random_state(state=state)
    image = np.asarray(bias_field(image + 0.3))[0] - 0.3
    texture = ndimage.gaussian_filter(state.normal(size=image.shape), 1.5)
    image = image + 0.1 * texture / texture.std() + state.normal(scale=0.1, size=image.shape)
    return image.astype(np.float32), np.stack([large, small])


def phantom_cases(
    dataset_dir: PathLike,
    split: str,
    num_cases: int,
    *,
    size: Sequence[int] = (96, 96),
    seed: int = 0,
) -> list[Case]:
    """Return ``num_cases`` generated cases, written under ``dataset_dir`` as NIfTI files if they are not there yet.

    Args:
        dataset_dir: is made if it does not exist; files that are there already are used as they are.
        split: begins the name of a folder, and goes into the seed, so that splits differ.
        num_cases: at least 1.
        size: of the images, 2 or 3 axes; a voxel has 0.8 mm.
        seed: of the data set.

    Raises:
        ValueError: when ``num_cases`` is under 1, ``split`` cannot name a folder, or ``size`` is not fit for
            :py:func:`phantom_image`.
    """
    check_name(split, "split")
    if num_cases < 1:
        raise ValueError(f"num_cases must be at least 1, got {num_cases}.")
    shape = "x".join(str(n) for n in size)
    folder = Path(dataset_dir) / f"{split}_{shape}_seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    affine = np.diag([-VOXEL_MM, -VOXEL_MM, VOXEL_MM, 1.0])
    cases: list[Case] = []
    for number in range(num_cases):
        case_id = f"{split}_{number:03d}"
        files = {name: folder / f"{case_id}_{name}.nii.gz" for name in ("image", *PHANTOM_CLASSES)}
        if not all(file.is_file() for file in files.values()):
            image, masks = phantom_image(size, case_seed(seed, case_id))
            arrays = (image, *masks.astype(np.uint8))
            for file, array in zip(files.values(), arrays, strict=True):
                if file.is_file():
                    continue
                # Processes of one training make the same files at the same time.
                partial = file.with_name(f".{uuid4().hex}-{file.name}")
                nib.save(nib.Nifti1Image(array, affine), partial)  # type: ignore[no-untyped-call]
                partial.replace(file)
        cases.append(
            {"id": case_id, "image": str(files["image"]), "label": [str(files[name]) for name in PHANTOM_CLASSES]}
        )
    return cases
