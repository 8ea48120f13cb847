"""What is called with such inputs, by the name of what it is."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    command_targets,
    correction_targets,
    file_targets,
    function_targets,
    noise_targets,
    people_targets,
    transform_targets,
)
from .inputs import Call, Draw

TARGETS: dict[str, Callable[[Draw], Call]] = {
    **function_targets.TARGETS,
    **correction_targets.TARGETS,
    **noise_targets.TARGETS,
    **transform_targets.TARGETS,
    **file_targets.TARGETS,
    **command_targets.TARGETS,
    **people_targets.TARGETS,
}

SLOW = {  # that many times fewer
    "LabelStore": 3,
    "LabelStore, damaged": 3,
    "SpatialCorrector": 2,
    "audit": 4,
    "audit, any file": 4,
    "calibrate_num_steps": 4,
    "correct": 6,
    "correct, any file": 6,
    "fit_markov_noise": 150,
    "restore": 6,
    "simulate": 4,
    "simulate, any file": 4,
    "usable_cases": 2,
}

# The targets of one image, which are tried with large ones, too.
WITH_LARGE = {
    *function_targets.TARGETS,
    *correction_targets.TARGETS,
    *noise_targets.TARGETS,
    *transform_targets.TARGETS,
} - {
    "calibrate_num_steps",
    "fit_markov_noise",
    "required_validation_size",
    "LoadCaseMapd",
    "SpatialCorrector",
}

NO_TARGETS = {
    **dict.fromkeys(
        ("NOISE_PRESETS", "NoisePreset", "noise_preset", "with_steps"), "settings, all of which are tested"
    ),
    **dict.fromkeys(("BoundaryBias", "Calibration", "MarkovFit"), "a result of a function that is a target"),
    **dict.fromkeys(
        ("MarkovParameters", "MarkovRates", "LabelNoiseOptions", "MarkovNoiseOptions"), "the types of keyword arguments"
    ),
    **dict.fromkeys(("RandLabelNoise", "RandLabelNoised"), "a base of noises that are targets"),
    **dict.fromkeys(("PickAndLearnNet", "QualityAwarenessModule"), "networks"),
    "WatchedVoxel": "a record of what a method did",
    "case_seed": "takes a number and a text, of which all are right",
}
"""What is public and no target, with the reason."""
