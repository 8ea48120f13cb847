"""Labels of real volumes, corrected on the grid of training, lie on the grid of their files."""

from __future__ import annotations

import shutil

import itk
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.inferers import SlidingWindowInferer
from monai.transforms import Compose, CropForegroundd, LoadImaged, Orientationd, SelectItemsd, Spacingd, SpatialPadd
from monai.utils import convert_to_tensor
from scipy.ndimage import distance_transform_edt

from monai_sc.files.write import write_label_like
from monai_sc.functional.masks import bounding_box, dice
from monai_sc.handlers import SpatialCorrectionHandler
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld
from tests.contents import contents

pytestmark = [pytest.mark.realdata, pytest.mark.slow]
FAR = 20.0  # mm


class Dilated(torch.nn.Module):
    """Has learnt labels that are too large: the second channel tells how deep a voxel lies in the structure, in mm."""

    def __init__(self, bias):
        super().__init__()
        self.bias = bias  # in mm, and voxels: all these files have voxels of 1 mm
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x[:, 1:] + self.bias + 0 * self.unused


def brats_files(folder):
    """Return scan, segmentation, and the file whose form the label is to have, of each case."""
    adult, deepmedic = folder / "BraTS2021_00006", folder / "deepmedic_brats2015"
    first, second = (deepmedic / f"brats_2013_pat000{number}_1" for number in (4, 6))
    names = ("Flair_subtrMeanDivStd.nii.gz", "OTMultiClass.nii.gz", "brainmask.nii.gz")
    return {
        "uint8": (adult / f"{adult.name}_flair.nii.gz", adult / f"{adult.name}_seg.nii.gz", None),
        "float32": (*(first / name for name in names[:2]), None),
        # integers with a scale, by which a 1 reads 0.99999997
        "scaled": tuple(second / name for name in names),
    }


def ms_lesion_files(folder):
    (scan,) = folder.glob("*/FLAIR_*.nii.gz")
    (lesions,) = folder.glob("*/GOLD_STANDARD_*.nii.gz")
    return {"qform": (scan, lesions, None)}


def depth_of(mask):
    """Return how deep voxels of 1 mm lie in a mask; negative outside; no farther than ``FAR``."""
    depth = np.full(mask.shape, -FAR, dtype=np.float32)
    box = bounding_box(mask, int(FAR) + 1)
    inside, outside = (distance_transform_edt(part) for part in (mask[box], ~mask[box]))
    depth[box] = np.clip(np.where(mask[box], inside - 0.5, 0.5 - outside), -FAR, FAR)
    return depth


def make_case(folder, name, scan, segmentation, like, bias):
    """Write the label, the label as an expert would have drawn it, and the depth."""
    like = like or segmentation
    true = np.asarray(nib.load(segmentation).dataobj) > 0
    depth = depth_of(true)
    case = {"id": name, "scan": scan, "source": like, "true": true}
    for key, mask in (("label", depth >= -bias), ("clean", true)):
        case[key] = folder / f"{name}_{key}.nii.gz"
        write_label_like(mask, case[key], like)
        np.testing.assert_array_equal(np.asarray(nib.load(case[key]).dataobj) > 0.5, mask)
    image = nib.Nifti1Image(depth, None, nib.load(scan).header)
    image.set_data_dtype(np.float32)
    nib.save(image, folder / f"{name}_depth.nii")
    return case | {"image": [str(scan), str(folder / f"{name}_depth.nii")]}


def differs_from_the_corner(scan):
    """Return where the head is, whatever value the air has been given."""
    return (scan - scan[:, :1, :1, :1]).abs() > 0.01


def preprocessing(keys):
    modes = ["bilinear" if key == "image" else "nearest" for key in keys]
    return [
        Orientationd(keys, axcodes="RAS", labels=None),
        Spacingd(keys, pixdim=(2.0, 2.0, 2.0), mode=modes),
        CropForegroundd(keys, "image", select_fn=differs_from_the_corner, channel_indices=[0], allow_smaller=True),
        SpatialPadd(keys, spatial_size=(64, 64, 64), mode="edge"),
    ]


def correct(folder, cases, bias):
    """Correct the labels of the cases once, with one of them as the clean case."""
    store = LabelStore(folder, [{key: case[key] for key in ("id", "image", "label")} for case in cases])
    load, both = LoadImaged("image", ensure_channel_first=True), ["image", "label"]
    chain = Compose([load, LoadLabeld("label"), *preprocessing(both), SelectItemsd(both)])
    relabel = Compose([load, *preprocessing(["image"]), SelectItemsd(["id", "image"])])
    scan, depth = cases[0]["image"]
    clean = [{"image": [scan, shutil.copy(depth, folder.with_name("clean_depth.nii"))], "label": cases[0]["clean"]}]
    network = Dilated(bias)
    handler = SpatialCorrectionHandler(
        store,
        clean_loader=DataLoader(Dataset(clean, chain)),
        relabel_loader=DataLoader(Dataset(store.cases, relabel)),
        epochs_per_round=1,
        inferer=SlidingWindowInferer(roi_size=(48, 48, 48), overlap=0.25),
        progress=False,
    )
    SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=DataLoader(Dataset(store.datalist()[:1], chain)),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        loss_function=lambda p, y: (convert_to_tensor(p, track_meta=False) * 0).sum(),
        train_handlers=[handler],
    ).run()
    return store, handler.history


def assert_same_form(path, source):
    """Compare geometry, type and header of two files, as nibabel and ITK read them."""
    written, given = nib.load(path), nib.load(source)
    assert (written.shape, written.header) == (given.shape, given.header)
    assert nib.aff2axcodes(written.affine) == nib.aff2axcodes(given.affine)
    np.testing.assert_array_equal(written.affine, given.affine)
    scales = [(image.dataobj.slope, image.dataobj.inter, image.dataobj.dtype) for image in (written, given)]
    assert scales[0] == scales[1]
    by_itk = [itk.imread(str(file)) for file in (path, source)]
    assert type(by_itk[0]) is type(by_itk[1])
    for name in ("GetSpacing", "GetOrigin", "GetDirection"):
        np.testing.assert_array_equal(*(np.asarray(getattr(image, name)()) for image in by_itk))


@pytest.mark.parametrize(
    ("data", "find", "bias", "lowest"),
    [
        pytest.param("brats", brats_files, 3.0, 0.95, id="whole-tumour", marks=pytest.mark.long),
        pytest.param("ms_lesion", ms_lesion_files, 1.5, 0.78, id="lesions-of-a-few-voxels"),
    ],
)
def test_real_volumes_are_corrected_on_their_own_grid(data, find, bias, lowest, tmp_path, request):
    folder = request.getfixturevalue(data)
    before, sources = contents(folder), find(folder)
    cases = [make_case(tmp_path, name, *files, bias) for name, files in sources.items()]
    given = contents(tmp_path)
    store, history = correct(tmp_path / "labels", cases, bias)
    assert store.current == 1
    assert history[0]["bias_mm"][0] == pytest.approx(-bias, abs=0.6)
    for case, now in zip(cases, store.datalist(), strict=True):
        assert_same_form(now["label"], case["source"])
        labels = [store.read(case["id"], number) for number in (0, 1)]
        scores = [dice(label, case["true"][None]).item() for label in labels]
        assert scores[1] > scores[0] + 0.1
        assert scores[1] > lowest
        # As ITK reads them, the voxels lie where those of the true segmentation do.
        by_itk, true = (itk.imread(str(file), itk.F) for file in (now["label"], case["clean"]))
        np.testing.assert_array_equal(itk.array_view_from_image(by_itk).T > 0.5, labels[1][0])
        np.testing.assert_array_equal(itk.array_view_from_image(true).T > 0.5, case["true"])
    assert contents(folder) == before
    assert given.items() <= contents(tmp_path).items()
