"""What several test files share: the kinds of array that MONAI passes around, and small labels in 2D and 3D."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

SPACING = (2.0, 0.5, 3.0)


def _meta_tensor(array):
    spacing = [*SPACING[: array.ndim - 1], 1.0, 1.0, 1.0]
    affine = np.diag([*spacing[:3], 1.0])
    return MetaTensor(torch.from_numpy(array.copy()), affine=affine, meta={"filename_or_obj": "case-1.nii.gz"})


@pytest.fixture(
    params=[
        pytest.param(np.copy, id="numpy"),
        pytest.param(lambda array: torch.from_numpy(array.copy()), id="tensor"),
        pytest.param(_meta_tensor, id="metatensor"),
    ]
)
def as_kind(request):
    """Return a function that copies a numpy array into one kind of array; the ``MetaTensor`` has an affine."""
    return request.param


@pytest.fixture
def as_meta():
    """Return a function that copies a numpy array into a ``MetaTensor`` with voxels of 2, 0.5 and, in 3D, 3 mm."""
    return _meta_tensor


@pytest.fixture(params=[pytest.param((14, 12), id="2d"), pytest.param((9, 8, 7), id="3d")])
def label(request):
    """Return a uint8 label ``(2, *spatial)``: a ball, and a box that touches the edge of the image."""
    grid = np.indices(request.param)
    centre = np.array(request.param).reshape(-1, *[1] * len(request.param)) // 2
    ball = ((grid - centre) ** 2).sum(axis=0) <= 3**2
    box = (grid < 4).all(axis=0)
    return np.stack([ball, box]).astype(np.uint8)
