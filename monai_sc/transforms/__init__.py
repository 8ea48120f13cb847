"""MONAI transforms, each as an array and a dictionary version."""

from __future__ import annotations

from monai_sc.transforms.annotation_error import (
    RandCoarsenContour,
    RandCoarsenContourD,
    RandCoarsenContourd,
    RandCoarsenContourDict,
    RandDilateErodeLabel,
    RandDilateErodeLabelD,
    RandDilateErodeLabeld,
    RandDilateErodeLabelDict,
    RandDropComponents,
    RandDropComponentsD,
    RandDropComponentsd,
    RandDropComponentsDict,
    RandTranslateLabel,
    RandTranslateLabelD,
    RandTranslateLabeld,
    RandTranslateLabelDict,
)
from monai_sc.transforms.case_map import LoadCaseMapD, LoadCaseMapd, LoadCaseMapDict
from monai_sc.transforms.correction import (
    SpatialCorrection,
    SpatialCorrectionD,
    SpatialCorrectiond,
    SpatialCorrectionDict,
)
from monai_sc.transforms.distance import SignedDistance, SignedDistanceD, SignedDistanced, SignedDistanceDict
from monai_sc.transforms.inner_holes import RandInnerHoles, RandInnerHolesD, RandInnerHolesd, RandInnerHolesDict
from monai_sc.transforms.label_noise import LabelNoiseOptions, RandLabelNoise, RandLabelNoised
from monai_sc.transforms.load import LoadLabel, LoadLabelD, LoadLabeld, LoadLabelDict
from monai_sc.transforms.noise import (
    MarkovLabelNoise,
    MarkovLabelNoiseD,
    MarkovLabelNoised,
    MarkovLabelNoiseDict,
    RandMarkovLabelNoise,
    RandMarkovLabelNoiseD,
    RandMarkovLabelNoised,
    RandMarkovLabelNoiseDict,
    noise_preset,
)

__all__ = [
    "LabelNoiseOptions",
    "LoadCaseMapD",
    "LoadCaseMapDict",
    "LoadCaseMapd",
    "LoadLabel",
    "LoadLabelD",
    "LoadLabelDict",
    "LoadLabeld",
    "MarkovLabelNoise",
    "MarkovLabelNoiseD",
    "MarkovLabelNoiseDict",
    "MarkovLabelNoised",
    "RandCoarsenContour",
    "RandCoarsenContourD",
    "RandCoarsenContourDict",
    "RandCoarsenContourd",
    "RandDilateErodeLabel",
    "RandDilateErodeLabelD",
    "RandDilateErodeLabelDict",
    "RandDilateErodeLabeld",
    "RandDropComponents",
    "RandDropComponentsD",
    "RandDropComponentsDict",
    "RandDropComponentsd",
    "RandInnerHoles",
    "RandInnerHolesD",
    "RandInnerHolesDict",
    "RandInnerHolesd",
    "RandLabelNoise",
    "RandLabelNoised",
    "RandMarkovLabelNoise",
    "RandMarkovLabelNoiseD",
    "RandMarkovLabelNoiseDict",
    "RandMarkovLabelNoised",
    "RandTranslateLabel",
    "RandTranslateLabelD",
    "RandTranslateLabelDict",
    "RandTranslateLabeld",
    "SignedDistance",
    "SignedDistanceD",
    "SignedDistanceDict",
    "SignedDistanced",
    "SpatialCorrection",
    "SpatialCorrectionD",
    "SpatialCorrectionDict",
    "SpatialCorrectiond",
    "noise_preset",
]
