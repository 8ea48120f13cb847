"""A real case of BraTS is read as it was downloaded."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from monai_sc.datasets.brats2020 import Brats2020Layout

pytestmark = pytest.mark.realdata


@pytest.mark.parametrize("modalities", [["flair"], ["flair", "t1", "t1ce", "t2"]], ids=len)
def test_real_case_is_read(brats, modalities):
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
    assert 0.001 < content.labels.mean() < 0.05


def test_folders_of_another_layout_are_refused(brats):
    with pytest.raises(ValueError, match="must hold folders of cases"):
        Brats2020Layout(brats / "deepmedic_brats2015").cases()
