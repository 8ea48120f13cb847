"""Every compared method is one config file over the training of any bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import monai_sc
from monai_sc import names
from tests.bundles.conftest import NUM_CASES, workflow

CONFIGS = Path(monai_sc.__file__).parent / "configs"
METHODS = sorted(file.stem for file in (CONFIGS / "methods").iterdir())
WITHOUT_CLEAN_CASES = ("clean", "sc")
# All in one bundle of pictures; those that change most of a training in that of volumes, whose network has several
# outputs in training; and one of them in each of the others. The correction is what the bundles themselves train.
TRAINED = [("phantom", method) for method in METHODS]
TRAINED += [("brats2020", method) for method in ("ct_plus", "elr", "qam")]
TRAINED += [(name, "ct_plus") for name in ("cityscapes", "isic2017", "jsrt")] + [("lidc_idri", "elr")]


def files_of(method):
    """Return what goes over the training of a bundle, without the suffix."""
    return [
        str(CONFIGS / "methods" / method),
        *([] if method in WITHOUT_CLEAN_CASES else [str(CONFIGS / "clean_cases")]),
    ]


def test_every_config_is_a_method_that_has_a_place_in_the_tables():
    assert sorted(names.METHODS) == METHODS


@pytest.mark.parametrize(
    ("name", "method"), [("brats2020", m) for m in METHODS if ("brats2020", m) not in TRAINED], indirect=["name"]
)
def test_method_keeps_the_properties_of_a_bundle_of_volumes(name, method, overrides):
    made = workflow(name, "train", *files_of(method), **overrides())
    made.initialize()
    assert made.check_properties() == []


@pytest.mark.parametrize(("name", "method"), TRAINED, indirect=["name"])
def test_method_keeps_the_properties_trains_and_writes_its_result(name, method, overrides):
    given = overrides(epochs_per_round=1, max_rounds=1)
    made = workflow(name, "train", *files_of(method), **given)
    made.initialize()
    assert made.check_properties() == []
    made.run()
    made.finalize()
    result = json.loads((Path(given["output_dir"]) / "result.json").read_text())
    assert len(result["cases"]) == NUM_CASES["test"]
    assert np.shape(result["dice"]) == (NUM_CASES["test"], len(result["classes"]))
    rounds = {"cle": {3}, "sc": {1, 2}}.get(method, {1})  # the correction stops when it is done
    assert result["epochs"] in rounds
