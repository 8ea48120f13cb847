import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai_sc.handlers.correction_options import CorrectionOptions, in_unit

from monai_sc.correction.shifts import ClassCorrection
from monai_sc.handlers import correction_options

OBLIQUE = np.array([[0.0, 0, 4.0, 1], [2.0, 0, 0, 2], [0, 3.0, 0, 3], [0, 0, 0, 1]])  # voxels of 2, 3 and 4 mm


def options_of(**changes):
    options = {
        "class_names": ("liver", "lesion"),
        "inferer": None,
        "representation": "auto",
        "gamma": 0.5,
        "metric": "euclidean",
        "region": "boundary",
        "output": "sigmoid",
        "shape_weight": 0.25,
        "presence": True,
        "max_shift": None,
        "group_key": None,
        "voxel_mm": None,
        "keep_converged": False,
        "progress": True,
    }
    return CorrectionOptions(**{**options, **changes})


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
        "presence": True,
        "max_shift": None,
        "group_key": "site",
        "voxel_mm": None,
        "keep_converged": False,
    }


def test_corrector_has_the_options():
    changes = {"output": "softmax", "representation": "logit", "metric": "taxicab", "region": "image"}
    corrector = options_of(**changes, max_shift=3.0).corrector(2.0)
    assert {name: getattr(corrector, name) for name in changes} == changes
    assert (corrector.class_names, corrector.gamma, corrector.shape_weight) == (["liver", "lesion"], 0.5, 0.25)
    assert corrector.max_shift == 1.5
    assert not corrector.presence  # as published there is none
    assert options_of().corrector(math.nan).max_shift is None
    assert options_of().corrector(1.0).presence
    assert not options_of(presence=False).corrector(1.0).presence


def test_corrector_goes_on_from_a_state():
    options = options_of()
    corrector = options.corrector(1.0).without_bias(3)
    corrector.fits = [
        replace(fit, correction=ClassCorrection("distance", shift))
        for fit, shift in zip(corrector.fits, (1.5, -2.0), strict=True)
    ]
    again = options.corrector(1.0, corrector.state_dict())
    assert [(own.representation, own.shift) for own in again.corrections] == [("distance", 1.5), ("distance", -2.0)]
    assert again.num_clean == 3
    with pytest.raises(ValueError, match=r"^state_dict must be of a corrector with gamma=1\.0, got one with 0\.5\.$"):
        options_of(gamma=1.0).corrector(1.0, corrector.state_dict())


@pytest.mark.parametrize("key", ["gamma", "shape_weight", "max_shift"])
def test_limits_of_a_range_belong_to_it(key):
    for value in {"gamma": (1e-6, 1), "shape_weight": (0, 1), "max_shift": (0, 1e6)}[key]:
        assert getattr(options_of(**{key: value}), key) == value


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
    monkeypatch.setattr(correction_options, "predict", lambda *args, **options: (args, options))
    for inferer, progress in ((None, True), ("sliding window", False)):
        found = options_of(inferer=inferer, progress=progress).predict("engine", "loader", ["network"], "Round 1")
        told = {"inferer": inferer, "description": "Round 1", "progress": progress}
        assert found == (("engine", "loader", ["network"]), told)
