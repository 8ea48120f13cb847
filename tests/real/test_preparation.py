"""Real files are read as they are, and prepared without loss."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from monai_sc.datasets import prepare, prepared_cases
from monai_sc.datasets.brats2020 import Brats2020Layout
from monai_sc.datasets.isic2017 import Isic2017Layout
from monai_sc.datasets.jsrt import CHEST, NOISY_FOLDERS
from monai_sc.datasets.lidc_idri.layout import LidcIdriLayout
from monai_sc.store import usable_cases
from tests.contents import picture
from tests.real.conftest import data_set

pytestmark = pytest.mark.realdata


@pytest.mark.parametrize("modalities", [["flair"], ["flair", "t1", "t1ce", "t2"]], ids=len)
def test_case_of_brats_is_read_as_it_was_downloaded(brats, modalities):
    layout = Brats2020Layout(brats, modalities=modalities)
    (case,) = layout.cases()  # the folders beside it are those of another layout
    assert case.id == "BraTS2021_00006"
    content = layout.read(case)
    files = [brats / case.id / f"{case.id}_{name}.nii.gz" for name in [*modalities, "seg"]]
    *scans, mask = (nib.load(file) for file in files)
    np.testing.assert_array_equal(content.image, [np.asarray(scan.dataobj) for scan in scans])
    np.testing.assert_array_equal(content.labels, [np.asarray(mask.dataobj) != 0])
    np.testing.assert_array_equal(content.affine, mask.affine)
    assert content.image.dtype == np.float32
    with pytest.raises(ValueError, match="must hold folders of cases"):
        Brats2020Layout(brats / "deepmedic_brats2015").cases()


def test_sample_of_isic_2017_is_read():
    folder = data_set("isic2017")
    layout = Isic2017Layout(folder)
    cases = layout.cases()
    assert len(cases) == 49
    assert {case.split for case in cases} == {None}
    assert layout.missing(cases) == [
        "1951 of the 2000 images of ISIC-2017_Training_Data",
        "150 of the 150 images of ISIC-2017_Validation_Data",
        "600 of the 600 images of ISIC-2017_Test_v2_Data",
    ]
    for case in cases:
        content = layout.read(case)
        image = picture(folder / "ISIC-2017_Training_Data" / f"{case.id}.jpg")
        mask = picture(folder / "ISIC-2017_Training_Part1_GroundTruth" / f"{case.id}_segmentation.png")
        np.testing.assert_array_equal(content.image, image.transpose(2, 1, 0))
        np.testing.assert_array_equal(content.labels[0], mask.T > 127)


def test_pictures_of_jsrt_are_prepared_without_loss(jsrt, tmp_path):
    done = prepare("jsrt", jsrt, tmp_path / "out", partial=True, progress=False)
    assert done.counts == {"train": 148, "clean": 24, "test": 38}
    assert done.missing == ["37 of the 75 images of the test cases"]
    assert done.left_out == {}
    for split, folder in {"train": "train", "clean": "val", "test": "test"}.items():
        cases = usable_cases(prepared_cases(done.out, split, noisy=split == "train"), progress=False)
        names = sorted(file.stem for file in (jsrt / f"images_{folder}").glob("[!.]*.png"))
        assert [case["id"] for case in cases] == names
        for case in cases:
            file = f"{case['id']}.png"
            made = [case["image"], *case.get("reference_label", case["label"])]
            given = [f"images_{folder}", *(f"{name}_gts_{folder}" for name in CHEST)]
            if split == "train":
                made += case["label"]
                given += NOISY_FOLDERS
            for one, name in zip(made, given, strict=True):
                np.testing.assert_array_equal(picture(one), picture(jsrt / name / file))


def test_every_slice_of_lidc_is_read_and_the_readers_often_disagree(lidc):
    layout = LidcIdriLayout(lidc)
    cases = layout.cases()
    assert len({case.group for case in cases}) == 146
    assert len(cases) == 2844
    sizes = []
    for case in cases:
        content = layout.read(case)
        assert content.image.shape == content.labels.shape == content.noisy.shape == (1, 128, 128)
        assert not (content.labels & ~content.noisy).any()
        sizes.append((content.labels.sum(), content.noisy.sum()))
    assert (np.array(sizes) == 0).sum(axis=0).tolist() == [1471, 12]  # counted apart, from the files
    half = LidcIdriLayout(lidc, agreement=2)
    strict = np.array([size for size, _ in sizes[::7]])
    larger = np.array([half.read(case).labels.sum() for case in cases[::7]])
    assert (strict <= larger).all()
    assert (strict == 0).sum() > (larger == 0).sum() > 0
