"""JSRT as 256 x 256 PNG files is prepared without any loss."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from monai_sc.datasets import prepare, prepared_cases
from monai_sc.datasets.jsrt import CHEST, NOISY_FOLDERS
from monai_sc.store import usable_cases

pytestmark = pytest.mark.realdata

FOLDERS = {"train": "train", "clean": "val", "test": "test"}


def pixels(file):
    with Image.open(file) as picture:
        return np.asarray(picture)


def test_ready_layout_is_prepared_without_loss(jsrt, tmp_path):
    done = prepare("jsrt", jsrt, tmp_path / "out", partial=True, progress=False)
    assert done.counts == {"train": 148, "clean": 24, "test": 38}
    assert done.missing == ["37 of the 75 images of the test cases"]
    assert done.left_out == {}
    compared = Counter()
    for split, folder in FOLDERS.items():
        cases = usable_cases(prepared_cases(done.out, split, noisy=split == "train"), progress=False)
        names = sorted(file.stem for file in (jsrt / f"images_{folder}").glob("[!.]*.png"))
        assert [case["id"] for case in cases] == names
        for case in cases:
            file = f"{case['id']}.png"
            pairs = [(case["image"], jsrt / f"images_{folder}" / file)]
            masks = [jsrt / f"{name}_gts_{folder}" / file for name in CHEST]
            if split == "train":
                pairs += zip(case["label"], (jsrt / name / file for name in NOISY_FOLDERS), strict=True)
            pairs += zip(case.get("reference_label", case["label"]), masks, strict=True)
            for made, given in pairs:
                np.testing.assert_array_equal(pixels(made), pixels(given))
                compared[split] += 1
    assert compared == {"train": 148 * 7, "clean": 24 * 4, "test": 38 * 4}
