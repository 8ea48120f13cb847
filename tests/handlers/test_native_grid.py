"""Labels that are corrected on the grid of training, in 3D, come back to the grid of their files.

An image holds how deep each voxel lies in a ball, in mm, and so it tells the boundary on any grid: what is wrong with a
corrected label comes from the grids alone.
"""

from __future__ import annotations

import itk
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.transforms import (
    Compose,
    CropForegroundd,
    DivisiblePadd,
    EnsureChannelFirstd,
    Flipd,
    LoadImaged,
    Orientationd,
    Rotate90d,
    ScaleIntensityRanged,
    SelectItemsd,
    Spacingd,
    SpatialPadd,
)
from scipy.spatial import KDTree
from scipy.spatial.transform import Rotation

from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld
from tests.handlers.correcting import handler_of, trainer_of

BIAS = 3.0  # mm; the given labels are too large by it, and so is what the network has learnt from them
RADIUS = 14.0  # mm
TRAINING = 2.0  # mm; size of a voxel
# A mask says where its boundary is to half a voxel along an axis, or sqrt(3) of that along a diagonal; a ball that is
# half a voxel too large or too small has a Dice of 0.89. A shift is chosen in steps of a quarter of a voxel.
STEP = TRAINING / 4
WORST, DICE, CENTRE = 0.5 * 3**0.5 * TRAINING + STEP / 2, 0.93, 0.2 * TRAINING
PIR = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])  # columns: where the axes of the array point to, in RAS
OBLIQUE = Rotation.from_euler("xy", [20, 20], degrees=True).as_matrix()
VOLUMES = {  # axes, spacing in mm, shape
    "RAS, 1 mm": (np.eye(3), (1.0, 1.0, 1.0), (56, 54, 52)),
    "LPS, thick slices": (np.diag([-1.0, -1.0, 1.0]), (0.7, 0.7, 5.0), (78, 74, 12)),
    "PIR, anisotropic": (PIR, (6.0, 0.5, 2.0), (10, 104, 28)),
    "oblique": (OBLIQUE, (1.0, 1.3, 2.5), (54, 42, 22)),
    "oblique PIR, anisotropic": (OBLIQUE @ PIR, (0.6, 4.0, 1.1), (88, 14, 50)),
    "cut through the ball": (np.eye(3), (1.0, 1.0, 1.0), (56, 54, 20)),
    "2 slices": (OBLIQUE, (1.0, 1.0, 6.0), (56, 56, 2)),
}


class Dilated(torch.nn.Module):
    """Knows the depth in mm from the scaled image, and has learnt labels that are too large."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x * 100 - 50 + BIAS + 0 * self.unused


def depth_of(affine, shape, centre):
    """Return how deep in the ball the voxels of a grid lie, in mm; negative outside."""
    points = nib.affines.apply_affine(affine, np.moveaxis(np.indices(shape), 0, -1))
    return RADIUS - np.linalg.norm(points - centre, axis=-1)


def write(path, array, affine):
    if path.name.endswith(".nii.gz"):
        nib.save(nib.Nifti1Image(array, affine), path)
        return
    image = itk.image_from_array(np.ascontiguousarray(array.T))
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    image.SetDirection(itk.matrix_from_array(lps[:3, :3] / spacing))
    itk.imwrite(image, str(path))


def make_cases(folder, volume, number, prefix, *, bias, image_type=".nii.gz", label_type=".nii.gz"):
    """Write balls somewhere in the middle of volumes; the cases tell where in ``centre`` and ``affine``."""
    axes, spacing, shape = VOLUMES[volume]
    random = np.random.RandomState(len(prefix))
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for k in range(number):
        affine = nib.affines.from_matvec(axes * spacing, random.uniform(-100, 100, 3))
        centre = nib.affines.apply_affine(affine, (np.array(shape) - 1) / 2) + random.uniform(-2, 2, 3)
        depth = depth_of(affine, shape, centre)
        case = {"id": f"{prefix}{k}", "centre": centre, "affine": affine, "depth": depth}
        for key, array, suffix in (
            ("image", depth.astype(np.float32), image_type),
            ("label", (depth >= -bias).astype(np.uint8), label_type),
        ):
            path = folder / f"{prefix}{k}_{key}{suffix}"
            write(path, array, affine)
            case[key] = str(path)
        cases.append(case)
    return cases


def load_image(**options):
    return [LoadImaged("image", **options), EnsureChannelFirstd("image")]


def by_itk():
    return load_image(reader="ITKReader")


def scale():
    return ScaleIntensityRanged("image", a_min=-50, a_max=50, b_min=0, b_max=1)


def modes(keys):
    return ["bilinear" if key == "image" else "nearest" for key in keys]


def preprocessing(keys, *, pixdim=(TRAINING, TRAINING, TRAINING)):
    """Everything that a pipeline does to a grid."""
    return [
        Orientationd(keys, axcodes="RAS", labels=None),
        Spacingd(keys, pixdim=pixdim, mode=modes(keys)),
        CropForegroundd(keys, source_key="image", select_fn=lambda x: x > 0.42, allow_smaller=True),
        Flipd(keys, spatial_axis=[0, 2]),
        Rotate90d(keys, k=1, spatial_axes=(1, 2)),
        SpatialPadd(keys, spatial_size=(20, 24, 20)),
        DivisiblePadd(keys, k=8),
    ]


def spacing_only(keys):
    return [Spacingd(keys, pixdim=(TRAINING, TRAINING, TRAINING), mode=modes(keys))]


def run(
    tmp_path,
    volume,
    *,
    spatial=preprocessing,
    inferer=None,
    image_loading=load_image,
    clean_volume=None,
    image_type=".nii.gz",
    label_type=".nii.gz",
    **options,
):
    """Correct the labels of three cases once, and return them and the store."""
    types = {"image_type": image_type, "label_type": label_type}
    cases = make_cases(tmp_path / "data", volume, 3, "case", bias=BIAS, **types)
    clean = make_cases(tmp_path / "data", clean_volume or volume, 3, "clean", bias=0, **types)
    store = LabelStore(tmp_path / "labels", [{key: case[key] for key in ("id", "image", "label")} for case in cases])
    both, image = ["image", "label"], ["image"]
    chain = Compose([*image_loading(), scale(), LoadLabeld("label"), *spatial(both), SelectItemsd(["id", *both])])
    relabel = Compose([*image_loading(), scale(), *spatial(image), SelectItemsd(["id", "image"])])
    handler = handler_of(
        store,
        clean_loader=DataLoader(Dataset(clean, chain), batch_size=1),
        relabel_loader=DataLoader(Dataset(store.cases, relabel), batch_size=1),
        epochs_per_round=1,
        inferer=inferer or SlidingWindowInferer(roi_size=(16, 16, 16), sw_batch_size=4, overlap=0.25),
        progress=False,
        **{"shape_weight": 0.0, **options},
    )
    train = DataLoader(Dataset(store.datalist(), chain), batch_size=1)
    trainer_of(Dilated(), train, handler, max_epochs=2).run()
    return cases, store, handler.history


def score(case, mask):
    """Return of a label the Dice with the ball on the grid of the file, how far the worst voxel and the centre are off.

    A voxel is off by the distance between its centre and the true boundary; all in mm.
    """
    truth = case["depth"] >= 0
    wrong = mask != truth
    worst = np.abs(case["depth"][wrong]).max() if wrong.any() else 0.0
    middle = [nib.affines.apply_affine(case["affine"], np.argwhere(m).mean(axis=0)) for m in (mask, truth)]
    return 2 * (mask & truth).sum() / (mask.sum() + truth.sum()), worst, np.linalg.norm(middle[0] - middle[1])


@pytest.mark.parametrize(
    ("volume", "clean_volume"), [("LPS, thick slices", "RAS, 1 mm"), ("oblique", "PIR, anisotropic")]
)
def test_clean_cases_may_have_voxels_of_another_size(tmp_path, volume, clean_volume):
    check(*run(tmp_path, volume, clean_volume=clean_volume))


def foreground_points(path, reader):
    """Return where the foreground voxels of a file lie, in mm of RAS."""
    if reader == "nibabel":
        image = nib.load(path)
        return nib.affines.apply_affine(image.affine, np.argwhere(np.asarray(image.dataobj)))
    image = itk.imread(path)
    matrix = itk.array_from_matrix(image.GetDirection()) * image.GetSpacing()
    inside = np.argwhere(itk.array_from_image(image).T)
    return (inside @ matrix.T + image.GetOrigin()) * [-1, -1, 1]


def assert_same_points(found, expected):
    assert len(found) == len(expected)
    assert KDTree(found).query(expected)[0].max() < 1e-3


def check(cases, store, history, *, label_type=".nii.gz"):
    """Say whether the labels of round 1 are the balls, on the grid of their files, whoever reads them."""
    assert history[0]["bias_mm"][0] == pytest.approx(-BIAS, abs=0.25)
    assert store.current == 1
    for case, now in zip(cases, store.datalist(), strict=True):
        mask = store.read(case["id"])[0]
        overlap, worst, centre = score(case, mask)
        assert worst < WORST
        assert overlap > DICE
        assert centre < CENTRE
        expected = nib.affines.apply_affine(case["affine"], np.argwhere(mask))
        readers = ["itk", "nibabel"] if label_type == ".nii.gz" else ["itk"]
        for reader in readers:
            assert_same_points(foreground_points(now["label"], reader), expected)


@pytest.mark.parametrize("volume", VOLUMES)
def test_labels_come_back_from_everything_that_a_pipeline_does(tmp_path, volume):
    check(*run(tmp_path, volume))


@pytest.mark.parametrize("volume", ["PIR, anisotropic", "2 slices"])
def test_labels_come_back_from_another_spacing(tmp_path, volume):
    check(*run(tmp_path, volume, spatial=spacing_only))


def test_labels_come_back_from_a_spacing_that_does_not_fit_the_volume(tmp_path):
    check(*run(tmp_path, "oblique", spatial=lambda keys: preprocessing(keys, pixdim=(1.7, 2.3, 1.9))))


@pytest.mark.parametrize(
    "inferer",
    [
        SlidingWindowInferer(roi_size=(16, 16, 16), overlap=0.5, mode="gaussian"),
        SlidingWindowInferer(roi_size=(64, 64, 64)),
    ],
    ids=["overlap", "window-larger-than-the-volume"],
)
def test_windows_leave_no_trace(tmp_path, inferer):
    _, one, _ = run(tmp_path / "one", "oblique", inferer=SimpleInferer())
    cases, other, history = run(tmp_path / "other", "oblique", inferer=inferer)
    check(cases, other, history)
    for case in cases:
        np.testing.assert_array_equal(one.read(case["id"]), other.read(case["id"]))


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"image_loading": by_itk}, id="nifti-read-by-itk"),
        pytest.param({"image_type": ".mha", "label_type": ".nrrd"}, id="metaimage-and-nrrd-label"),
    ],
)
def test_labels_come_back_whatever_the_type_of_file(tmp_path, files):
    cases, store, history = run(tmp_path, "oblique PIR, anisotropic", **files)
    check(cases, store, history, label_type=files.get("label_type", ".nii.gz"))


def cut(keys):
    """Crop to where the ball is deeper than 2 mm: its caps are lost."""
    return [*spacing_only(keys), CropForegroundd(keys, source_key="image", select_fn=lambda x: x > 0.52)]


def outside_of_crop(case):
    """Return where voxels of the file lie outside of what :py:func:`cut` leaves, by a voxel of training at least."""
    rest = np.argwhere(case["depth"] > 2)
    outside = np.ones(case["depth"].shape, dtype=bool)
    outside[tuple(slice(low - 2, high + 3) for low, high in zip(rest.min(axis=0), rest.max(axis=0), strict=True))] = 0
    return outside


def test_nothing_is_predicted_outside_of_a_crop(tmp_path):
    cases, store, _ = run(tmp_path, "RAS, 1 mm", spatial=cut, representation="distance")
    for case in cases:
        given, corrected = (store.read(case["id"], number)[0] for number in (0, 1))
        assert (outside_of_crop(case) & given).any()
        assert not (outside_of_crop(case) & corrected).any()
        assert corrected[case["depth"] > 5].all()


def test_given_label_goes_on_outside_of_a_crop(tmp_path):
    cases, store, _ = run(tmp_path, "oblique", spatial=cut, shape_weight=0.5)
    for case in cases:
        overlap, _, centre = score(case, store.read(case["id"])[0])
        assert overlap > 0.88  # that of the given labels is .72
        assert centre < CENTRE
