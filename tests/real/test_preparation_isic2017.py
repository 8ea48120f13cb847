"""The official files of ISIC 2017 are read as they are."""

import numpy as np
import pytest
from PIL import Image

from monai_sc.datasets.isic2017 import Isic2017Layout
from tests.real.conftest import data_set

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def isic2017():
    """Return the folder with 49 cases of the training part of ISIC 2017."""
    return data_set("isic2017")


def test_sample_of_the_training_part_is_read(isic2017):
    layout = Isic2017Layout(isic2017)
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
        mask_file = isic2017 / "ISIC-2017_Training_Part1_GroundTruth" / f"{case.id}_segmentation.png"
        with (
            Image.open(isic2017 / "ISIC-2017_Training_Data" / f"{case.id}.jpg") as image,
            Image.open(mask_file) as mask,
        ):
            assert content.image.shape == (3, *image.size)
            assert np.array_equal(content.image[:, ::97, ::89], np.asarray(image)[::89, ::97].transpose(2, 1, 0))
            assert np.array_equal(content.labels[0], np.asarray(mask).T > 127)
        assert 0 < content.labels.mean() < 1
