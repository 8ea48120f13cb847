"""The equations, as functions of plain arrays and tensors."""

from __future__ import annotations

from monai_sc.functional.annotation_error import (
    coarsen_contour,
    drop_components,
    punch_holes,
    shift_boundary,
    translate_label,
)
from monai_sc.functional.bias import (
    BoundaryBias,
    boundary_bias,
    boundary_displacement,
    grouped_bias,
    required_validation_size,
)
from monai_sc.functional.boundary import correct_boundary, exclusive_label, one_against_rest, probabilities_to_logits
from monai_sc.functional.calibration import Calibration, calibrate_num_steps
from monai_sc.functional.distance import signed_distance
from monai_sc.functional.fit import MarkovFit, fit_markov_noise
from monai_sc.functional.label_map import merge_masks, split_label_map
from monai_sc.functional.noise import MarkovParameters, MarkovRates, case_seed, markov_label_noise
from monai_sc.functional.noise_presets import NOISE_PRESETS, NoisePreset

__all__ = [
    "NOISE_PRESETS",
    "BoundaryBias",
    "Calibration",
    "MarkovFit",
    "MarkovParameters",
    "MarkovRates",
    "NoisePreset",
    "boundary_bias",
    "boundary_displacement",
    "calibrate_num_steps",
    "case_seed",
    "coarsen_contour",
    "correct_boundary",
    "drop_components",
    "exclusive_label",
    "fit_markov_noise",
    "grouped_bias",
    "markov_label_noise",
    "merge_masks",
    "one_against_rest",
    "probabilities_to_logits",
    "punch_holes",
    "required_validation_size",
    "shift_boundary",
    "signed_distance",
    "split_label_map",
    "translate_label",
]
