"""The equations, as functions of plain arrays and tensors."""

from __future__ import annotations

from monai_sc.functional.annotation_error import shift_boundary
from monai_sc.functional.bias import BoundaryBias, boundary_bias, boundary_displacement
from monai_sc.functional.correction import correct_boundary
from monai_sc.functional.distance import signed_distance
from monai_sc.functional.noise import MarkovParameters, case_seed, markov_label_noise

__all__ = [
    "BoundaryBias",
    "MarkovParameters",
    "boundary_bias",
    "boundary_displacement",
    "case_seed",
    "correct_boundary",
    "markov_label_noise",
    "shift_boundary",
    "signed_distance",
]
