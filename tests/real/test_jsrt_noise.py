"""The preset of the released expansion masks makes masks like them of the same clean masks."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from monai_sc.functional import boundary_displacement, case_seed
from monai_sc.functional.masks import dice
from monai_sc.transforms import noise_preset

RELEASED = {"lung": "lung_180_0.8_0.05_0.2", "heart": "heart_180_0.8_0.05_0.2", "clavicle": "clavicle_100_0.8_0.02_0.2"}

pytestmark = pytest.mark.realdata


def load(file):
    return (np.asarray(Image.open(file)) > 0)[None]


@pytest.mark.parametrize("structure", RELEASED)
def test_simulated_masks_have_the_dice_and_the_bias_of_the_released_ones(jsrt, structure):
    noise = noise_preset("jsrt-expand", structure=structure)
    names = sorted(file.name for file in (jsrt / f"{structure}_gts_train").iterdir())
    assert len(names) == 148
    measured = []
    for name in names:
        clean = load(jsrt / f"{structure}_gts_train" / name)
        simulated = np.asarray(noise.make_noisy(clean, case_seed(0, name)))
        pair = [simulated, load(jsrt / RELEASED[structure] / name)]
        measured.append([(dice(mask, clean)[0], boundary_displacement(mask, clean)[0]) for mask in pair])
    (ours, theirs), n = np.moveaxis(measured, 1, 0), len(names)
    error = np.hypot(ours.std(axis=0), theirs.std(axis=0)) / np.sqrt(n)
    print(structure, "simulated and released, Dice and bias:", ours.mean(axis=0), theirs.mean(axis=0))
    assert np.all(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) <= 4.5 * error)
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0))[0] < 0.01
