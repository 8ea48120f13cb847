import math

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    BorderPad,
    CenterSpatialCropd,
    Compose,
    CropForeground,
    DivisiblePad,
    Flip,
    LoadImaged,
    Resized,
    ResizeWithPadOrCrop,
    Rotate90d,
    Spacingd,
    SpatialPad,
    SpatialPadd,
)
from PIL import Image

from monai_sc.transforms.distance import voxel_size
from monai_sc.transforms.file_grid import FileGrid, file_grid, invert_to_file, unpadded_box

AFFINE = np.diag([-0.5, 0.5, 2.0, 1.0])


@pytest.fixture
def nifti(tmp_path):
    file = tmp_path / "image.nii.gz"
    nib.save(nib.Nifti1Image(np.random.RandomState(0).rand(12, 10, 6).astype(np.float32), AFFINE), file)
    return str(file)


def load(file, *transforms):
    chain = Compose([LoadImaged("image", image_only=True, ensure_channel_first=True), *transforms])
    return chain({"image": file})["image"], chain


def test_volume_is_measured_in_its_smallest_side(nifti):
    image, _ = load(nifti)
    assert file_grid(image, "euclidean") == FileGrid((1.0, 1.0, 4.0), 1.0, 0.5)


def test_resampled_volume_is_measured_in_voxels_of_its_file(nifti):
    image, _ = load(nifti, Spacingd("image", pixdim=(1.0, 1.0, 1.0)))
    assert file_grid(image, "euclidean") == FileGrid((2.0, 2.0, 2.0), 1.0, 0.5)
    assert file_grid(image, "taxicab") == FileGrid(None, 2.0, 0.5)


def test_resized_picture_is_measured_in_its_pixels(tmp_path):
    Image.fromarray(np.zeros((16, 24), np.uint8)).save(tmp_path / "a.png")
    image, _ = load(tmp_path / "a.png", Resized("image", spatial_size=(12, 8)))
    grid = file_grid(image, "euclidean")
    assert (grid.spacing, grid.unit) == ((2.0, 2.0), 1.0)
    assert math.isnan(grid.voxel_mm)


def test_plain_tensor_is_its_own_grid():
    grid = file_grid(torch.zeros(1, 4, 4), "euclidean")
    assert (grid.spacing, grid.unit, math.isnan(grid.voxel_mm)) == (None, 1.0, True)


def test_scores_come_back_voxel_by_voxel(nifti):
    original, _ = load(nifti)
    image, chain = load(nifti, Rotate90d("image"), SpatialPadd("image", (16, 16, 16)))
    back = invert_to_file(image.as_tensor().repeat(2, 1, 1, 1), image, chain)
    assert type(back) is torch.Tensor
    for channel in back:
        np.testing.assert_array_equal(channel.numpy(), original.numpy()[0])


def test_what_was_cropped_is_outside_and_a_score_of_0_is_inside(nifti):
    image, chain = load(nifti, CenterSpatialCropd("image", roi_size=(6, 6, 4)))
    (back,) = invert_to_file(torch.zeros(1, 6, 6, 4), image, chain)
    expected = torch.zeros(12, 10, 6, dtype=torch.bool)
    expected[3:9, 2:8, 1:5] = True
    assert torch.equal(back >= 0, expected)


def test_scores_without_spatial_transform_are_left_alone(nifti):
    image, chain = load(nifti)
    scores = torch.rand(2, 12, 10, 6)
    assert invert_to_file(scores, image, chain) is scores


def test_image_without_metadata_is_refused(nifti):
    image, chain = load(nifti)
    with pytest.raises(TypeError, match=r"relabel_loader must give images as MetaTensor, got a plain tensor"):
        invert_to_file(image.as_tensor(), image.as_tensor(), chain)


@pytest.mark.filterwarnings("ignore:inverse has been called")  # MONAI says a part of it itself
def test_operation_outside_the_transform_is_refused(nifti):
    image, chain = load(nifti)
    cropped = CropForeground(select_fn=lambda x: x > 0.5)(image)
    with pytest.raises(ValueError, match=r"must act on 'image' .*, but these could not be inverted: CropForeground\."):
        invert_to_file(cropped.as_tensor(), cropped, chain)


def test_slice_that_is_not_axial_has_the_size_of_its_pixels():
    affine = np.array([[0.5, 0, 0, 0], [0, 0, 2, 0], [0, 0.8, 0, 0], [0, 0, 0, 1.0]])
    assert voxel_size(affine, 2) == (0.5, 0.8)


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ([], [(0, 10), (0, 12)]),
        ([SpatialPad((16, 13))], [(3, 13), (0, 12)]),
        ([SpatialPad((16, 13)), DivisiblePad(8)], [(3, 13), (1, 13)]),
        ([BorderPad(2), Flip(0)], [(0, 14), (0, 16)]),  # padded before: taken for a part of the scan
        ([Flip(0), BorderPad(2)], [(2, 12), (2, 14)]),
        ([ResizeWithPadOrCrop((16, 8))], [(3, 13), (0, 8)]),
        ([SpatialPad((4, 4))], [(0, 10), (0, 12)]),
    ],
    ids=["none", "one", "two", "before-a-flip", "after-a-flip", "and-crop", "needless"],
)
def test_what_was_padded_last_is_no_part_of_the_scan(transforms, expected):
    image = MetaTensor(torch.rand(1, 10, 12) + 1)
    padded = Compose(transforms)(image)
    box = unpadded_box(padded)
    assert [(part.start, part.stop) for part in box] == expected
    if expected != [(0, 14), (0, 16)]:
        assert (padded[(..., *box)] > 0).all()
    assert unpadded_box(torch.zeros(1, 3, 4)) == (slice(0, 3), slice(0, 4))


def test_image_without_a_file_is_measured_in_its_own_voxels():
    image = MetaTensor(torch.zeros(1, 4, 4), affine=np.diag([2.0, 4.0, 1.0, 1.0]))
    for metric, spacing in (("euclidean", (1.0, 2.0)), ("taxicab", None)):
        grid = file_grid(image, metric)
        assert (grid.spacing, grid.unit, math.isnan(grid.voxel_mm)) == (spacing, 1.0, True)


def test_scores_that_were_resampled_are_interpolated_linearly(nifti):
    image, chain = load(nifti, Spacingd("image", pixdim=(1.0, 1.0, 2.0)))
    grids = (image.affine.numpy(), image.shape[1:]), (AFFINE, (12, 10, 6))
    x = [nib.affines.apply_affine(affine, np.moveaxis(np.indices(shape), 0, -1))[..., 0] for affine, shape in grids]
    (back,) = invert_to_file(torch.from_numpy(x[0])[None], image, chain)
    np.testing.assert_allclose(back[1:-1], x[1][1:-1], atol=1e-4)
