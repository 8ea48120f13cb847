"""MONAI transforms, each as an array and a dictionary version."""

from __future__ import annotations

from monai_sc.transforms.correction import (
    SpatialCorrection,
    SpatialCorrectionD,
    SpatialCorrectiond,
    SpatialCorrectionDict,
)
from monai_sc.transforms.distance import SignedDistance, SignedDistanceD, SignedDistanced, SignedDistanceDict
from monai_sc.transforms.load import LoadLabel, LoadLabelD, LoadLabeld, LoadLabelDict
from monai_sc.transforms.noise import (
    MarkovLabelNoise,
    MarkovLabelNoiseD,
    MarkovLabelNoised,
    MarkovLabelNoiseDict,
    RandDilateErodeLabel,
    RandDilateErodeLabelD,
    RandDilateErodeLabeld,
    RandDilateErodeLabelDict,
    RandMarkovLabelNoise,
    RandMarkovLabelNoiseD,
    RandMarkovLabelNoised,
    RandMarkovLabelNoiseDict,
)

__all__ = [
    "LoadLabel",
    "LoadLabelD",
    "LoadLabelDict",
    "LoadLabeld",
    "MarkovLabelNoise",
    "MarkovLabelNoiseD",
    "MarkovLabelNoiseDict",
    "MarkovLabelNoised",
    "RandDilateErodeLabel",
    "RandDilateErodeLabelD",
    "RandDilateErodeLabelDict",
    "RandDilateErodeLabeld",
    "RandMarkovLabelNoise",
    "RandMarkovLabelNoiseD",
    "RandMarkovLabelNoiseDict",
    "RandMarkovLabelNoised",
    "SignedDistance",
    "SignedDistanceD",
    "SignedDistanceDict",
    "SignedDistanced",
    "SpatialCorrection",
    "SpatialCorrectionD",
    "SpatialCorrectionDict",
    "SpatialCorrectiond",
]
