import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from monai_sc.handlers import run_options
from monai_sc.handlers.run_options import in_unit
from tests.handlers.correcting import options_of

OBLIQUE = np.array([[0.0, 0, 4.0, 1], [2.0, 0, 0, 2], [0, 3.0, 0, 3], [0, 0, 0, 1]])  # voxels of 2, 3 and 4 mm


def scan(shape=(1, 4, 5, 6)):
    return MetaTensor(torch.zeros(shape), affine=OBLIQUE, meta={"original_affine": OBLIQUE})


def test_a_checkpoint_holds_what_the_labels_depend_on():
    told = options_of(group_key="site").as_dict()
    assert told == {
        "class_names": ["liver", "lesion"],
        "representation": "auto",
        "gamma": 0.5,
        "metric": "euclidean",
        "region": "boundary",
        "output": "sigmoid",
        "shape_weight": 0.25,
        "probabilities": False,
        "presence": True,
        "max_shift": None,
        "tolerance": None,
        "ignore_value": None,
        "group_key": "site",
        "voxel_mm": None,
    }


def test_lengths_of_the_correction_are_told_in_voxels():
    options = options_of(output="softmax", max_shift=3.0, tolerance=1.0)
    assert options.in_voxels(2.0) == replace(options.correction, max_shift=1.5, tolerance=0.5)
    assert options_of().in_voxels(math.nan) == options_of().correction
    for name in ("max_shift", "tolerance"):
        message = rf"^{name} is in mm, and needs the size of a voxel, which the files do not say; give voxel_mm\.$"
        with pytest.raises(ValueError, match=message):
            options_of(**{name: 1.0}).in_voxels(math.nan)


def test_image_is_measured_in_voxels_of_its_file():
    assert options_of().grid(scan()) == ((1.0, 1.5, 2.0), 2.0)
    assert options_of(voxel_mm=5.0).grid(scan()) == ((1.0, 1.5, 2.0), 5.0)
    resampled = MetaTensor(torch.zeros(1, 4, 5), affine=np.eye(4), meta={"original_affine": np.diag([0.5, 1, 1, 1])})
    assert options_of().grid(resampled) == ((2.0, 2.0), 0.5)
    assert options_of(metric="taxicab").grid(resampled) == ((2.0, 2.0), 0.5)
    spacing, voxel_mm = options_of().grid(torch.zeros(1, 4, 5))
    assert spacing == (1.0, 1.0)
    assert math.isnan(voxel_mm)


def test_file_is_measured_in_its_smallest_side():
    assert options_of().file_spacing(scan()) == (1.0, 1.5, 2.0)
    assert options_of().file_spacing(scan((1, 4, 5))) == (1.0, 1.5)
    assert options_of(metric="taxicab").file_spacing(scan()) is None
    assert options_of().file_spacing(torch.zeros(1, 4, 5)) is None
    assert options_of().file_spacing(MetaTensor(torch.zeros(1, 4, 5))) is None


def test_group_of_a_case_is_text():
    assert options_of().group({"site": 3}) is None
    assert options_of(group_key="site").group({"site": 3}) == "3"


@pytest.mark.parametrize(
    ("voxel_mm", "unit_mm", "expected"),
    [(2.0, 1.0, (2.0, 6.0)), (1.0, 2.0, (0.5, 1.5)), (2.0, 2.0, (1.0, 3.0)), (math.nan, 1.0, (1.0, 3.0))],
)
def test_spacing_is_told_in_another_unit(voxel_mm, unit_mm, expected):
    assert in_unit((1.0, 3.0), voxel_mm, unit_mm) == expected
    assert in_unit((1.0, 3.0), 1.0, math.nan) == (1.0, 3.0)


def test_inferer_and_progress_are_those_of_the_options(monkeypatch):
    monkeypatch.setattr(run_options, "predict", lambda *args, **options: (args, options))
    for inferer, progress in ((None, True), ("sliding window", False)):
        found = options_of(inferer=inferer, progress=progress).predict("engine", "loader", ["network"], "Round 1")
        told = {"inferer": inferer, "description": "Round 1", "progress": progress}
        assert found == (("engine", "loader", ["network"]), told)
