"""Noise of presets and of fits has the size of real errors."""

from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional import boundary_displacement, case_seed, fit_markov_noise, markov_label_noise
from monai_sc.functional.masks import dice
from monai_sc.functional.pair_statistics import CleanMask, pair_statistics
from monai_sc.transforms import noise_preset
from tests.contents import picture

pytestmark = pytest.mark.realdata

RELEASED = {"lung": "lung_180_0.8_0.05_0.2", "heart": "heart_180_0.8_0.05_0.2", "clavicle": "clavicle_100_0.8_0.02_0.2"}


def mask_of(file):
    return (picture(file) > 0)[None]


@pytest.mark.parametrize("structure", RELEASED)
def test_simulated_masks_have_the_dice_and_the_bias_of_the_released_ones(jsrt, structure):
    noise = noise_preset("jsrt-expand", structure=structure)
    names = sorted(file.name for file in (jsrt / f"{structure}_gts_train").iterdir())
    assert len(names) == 148
    measured = []
    for name in names:
        clean = mask_of(jsrt / f"{structure}_gts_train" / name)
        simulated = np.asarray(noise.make_noisy(clean, case_seed(0, name)))
        pair = [simulated, mask_of(jsrt / RELEASED[structure] / name)]
        measured.append([(dice(one, clean)[0], boundary_displacement(one, clean)[0]) for one in pair])
    (ours, theirs), n = np.moveaxis(measured, 1, 0), len(names)
    error = np.hypot(ours.std(axis=0), theirs.std(axis=0)) / np.sqrt(n)
    print(structure, "simulated and released, Dice and bias:", ours.mean(axis=0), theirs.mean(axis=0))
    assert np.all(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) <= 4.5 * error)
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0))[0] < 0.01


# The law cannot meet all statistics of people; what counts here is the size of their errors.
WEIGHTS = {"dice": 4.0, "spread_between": 4.0, "spread_within": 4.0} | dict.fromkeys(
    ("correlation_length", "dice_spread", "stray_rate"), 0.0
)


def pairs(patients):
    """Return the patient, the mask that at least two annotators drew, and that of one of them, where both have any."""
    found = []
    for patient in patients:
        for first in sorted(patient.glob("*/mask-0/*.png")):
            files = [first.parents[1] / f"mask-{k}" / first.name for k in range(4)]
            masks = np.concatenate([mask_of(file) for file in files])
            majority = masks.sum(axis=0) >= 2
            found += [(patient.name, majority, mask) for mask in masks if majority.any() and mask.any()]
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_dice_and_spread_are_those_of_patients_that_were_not_fitted(lidc):
    patients = sorted(folder for folder in lidc.iterdir() if folder.is_dir())
    assert len(patients) == 146
    order = np.random.default_rng(0).permutation(len(patients))
    fitted, held = (pairs([patients[k] for k in half]) for half in (order[:73], order[73:]))
    fit = fit_markov_noise(
        [majority[None] for _, majority, _ in fitted],
        [mask[None] for *_, mask in fitted],
        groups=[patient for patient, *_ in fitted],
        vary_steps=True,
        weights=WEIGHTS,
        budget=40_000,
    )
    real, simulated = [], []
    for k, (_, majority, mask) in enumerate(held):
        clean = CleanMask(majority)
        noisy = markov_label_noise(majority[None], **fit.parameters_of(str(k), seed=1), seed=k)[0]
        real.append(clean.compare(mask))
        if noisy.any():
            simulated.append(clean.compare(noisy))
    expected, found = pair_statistics(real), pair_statistics(simulated)
    print(f"Dice {expected.dice:.4f} and {found.dice:.4f}, spread {expected.spread:.3f} and {found.spread:.3f}")
    assert found.dice == pytest.approx(expected.dice, abs=0.02)
    assert found.spread == pytest.approx(expected.spread, rel=0.15)
    assert found.displacement == pytest.approx(expected.displacement, abs=0.15)
