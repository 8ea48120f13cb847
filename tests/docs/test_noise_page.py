"""The table of presets in docs/noise.md says what they do now."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from monai_sc.functional import NOISE_PRESETS

ROOT = Path(__file__).parents[2]
NUM_DRAWS = 6


def stated():
    """Return for each preset and structure the cells of its row: Dice, Δ, and both without flips."""
    rows = [
        line.strip("| \n").split(" | ")
        for line in (ROOT / "docs" / "noise.md").read_text(encoding="utf-8").splitlines()
    ]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].startswith("`") and len(row) >= 4]
    return {(row[0].strip("`"), row[1]): row[2:] for row in rows if row[0].strip("`") in NOISE_PRESETS}


def test_the_table_has_every_preset_and_structure():
    expected = {(name, structure) for name, preset in NOISE_PRESETS.items() for structure in preset.structures}
    assert stated().keys() == expected


@pytest.fixture(scope="module")
def measure():
    """Return the function that measured the table."""
    spec = importlib.util.spec_from_file_location("presets", ROOT / "tests" / "benchmarks" / "presets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure


@pytest.mark.parametrize(("name", "structure"), stated())
def test_a_row_is_what_is_measured(name, structure, measure):
    cells = stated()[name, structure]
    if structure == "tumour" and NOISE_PRESETS[name].parameters.get("flip_prob"):
        pytest.skip("a volume of stray voxels takes seconds to measure")
    found = np.array(measure(name, structure, NUM_DRAWS))
    for values, cell in zip(found, cells, strict=False):
        mean, deviation = (float(part.split(",")[0]) for part in cell.replace("−", "-").split(" ± "))  # noqa: RUF001
        assert np.nanmean(values) == pytest.approx(mean, abs=4.5 * deviation / math.sqrt(NUM_DRAWS) + 0.06)
