"""Every compared method is one config file over the training of any bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import monai_sc
from tests.bundles.conftest import NUM_CASES, workflow

CONFIGS = Path(monai_sc.__file__).parent / "configs"
METHODS = sorted(file.stem for file in (CONFIGS / "methods").iterdir())
WITHOUT_CLEAN_CASES = ("clean", "sc")
EPOCHS = {"cle": 3}  # of each fold and of the training on what came of them; one of the others


def files_of(method):
    """Return what goes over the training of a bundle, without the suffix."""
    return [
        str(CONFIGS / "methods" / method),
        *([] if method in WITHOUT_CLEAN_CASES else [str(CONFIGS / "clean_cases")]),
    ]


def test_methods_are_the_seven_the_correction_and_two_to_compare_with():
    assert (
        METHODS == ["cdr", "cle", "ct_plus", "elr", "gce", "sc", "noisy", "clean", "qam", "sce"]
        or sorted(["cdr", "cle", "clean", "ct_plus", "elr", "gce", "noisy", "qam", "sc", "sce"]) == METHODS
    )


@pytest.mark.parametrize("method", METHODS)
def test_method_trains_and_writes_its_result(name, method, overrides):
    given = overrides(epochs_per_round=1, max_rounds=1)
    made = workflow(name, "train", *files_of(method), **given)
    made.initialize()
    assert made.check_properties() == []
    made.run()
    made.finalize()
    result = json.loads((Path(given["output_dir"]) / "result.json").read_text())
    assert len(result["cases"]) == NUM_CASES["test"]
    assert np.shape(result["dice"]) == (NUM_CASES["test"], len(result["classes"]))
    assert result["epochs"] == EPOCHS.get(method, 2 if method == "sc" else 1)
