"""A fit to half of the patients of LIDC-IDRI makes errors of the size that annotators make in the other half."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from monai_sc.functional import fit_markov_noise, markov_label_noise
from monai_sc.functional.pair_statistics import CleanMask, pair_statistics

pytestmark = [pytest.mark.realdata, pytest.mark.long]


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
            masks = np.stack([np.asarray(Image.open(file)) > 0 for file in files])
            majority = masks.sum(axis=0) >= 2
            found += [(patient.name, majority, mask) for mask in masks if majority.any() and mask.any()]
    return found


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
