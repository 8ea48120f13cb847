"""How a handler predicts, measures and corrects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer
from monai.utils import MetaKeys
from torch.utils.data import DataLoader

from monai_sc.correction import SpatialCorrector
from monai_sc.handlers.prediction import predict
from monai_sc.transforms.distance import voxel_size
from monai_sc.transforms.file_grid import file_grid


@dataclass(frozen=True)
class CorrectionOptions:
    """Options of :py:class:`~monai_sc.handlers.SpatialCorrectionHandler`, which documents them, and what they mean.

    Raises:
        ValueError: when an option is out of range.
    """

    class_names: Sequence[str]
    inferer: Inferer | None
    representation: str
    gamma: float
    metric: str
    region: str
    output: str
    shape_weight: float
    presence: bool
    max_shift_mm: float | None
    group_key: str | None
    voxel_mm: float | None
    keep_converged: bool
    progress: bool

    def __post_init__(self) -> None:
        if self.max_shift_mm is not None and not self.max_shift_mm >= 0:
            raise ValueError(f"max_shift_mm must be at least 0 or None, got {self.max_shift_mm}.")
        self.corrector(1.0)  # which refuses the others

    def as_dict(self) -> dict[str, Any]:
        """Return those options on which the labels depend, as types that a checkpoint may hold."""
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("inferer", "progress")}
        return {**content, "class_names": list(self.class_names)}

    @property
    def softmax(self) -> bool:
        """Whether a voxel has one class only."""
        return self.output == "softmax"

    def corrector(self, voxel_mm: float, state: Mapping[str, Any] | None = None) -> SpatialCorrector:
        """Return a corrector, with what it has learnt if there is a state.

        Args:
            voxel_mm: size of a voxel of the files in mm, for the largest shift; ``nan`` if it is not known.
            state: of another corrector with these options.
        """
        corrector = SpatialCorrector(
            self.class_names,
            output=self.output,
            representation=self.representation,
            gamma=self.gamma,
            metric=self.metric,
            region=self.region,
            presence=self.presence and self.representation == "auto",
            shape_weight=self.shape_weight,
            max_shift=None if self.max_shift_mm is None else self.max_shift_mm / voxel_mm,
        )
        if state is not None:
            corrector.load_state_dict(state)
        return corrector

    def predict(
        self, engine: SupervisedTrainer, loader: DataLoader[Any], networks: Sequence[torch.nn.Module], description: str
    ) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
        """Yield every case of ``loader`` with the logits of each network."""
        return predict(engine, loader, networks, inferer=self.inferer, description=description, progress=self.progress)

    def grid(self, image: torch.Tensor) -> tuple[tuple[float, ...], float]:
        """Return the size of a voxel of an image in voxels of its file, and of one of those in mm."""
        grid = file_grid(image, self.metric)
        spacing = grid.spacing if grid.spacing is not None else (grid.unit,) * (image.ndim - 1)
        return spacing, grid.voxel_mm if self.voxel_mm is None else self.voxel_mm

    def file_spacing(self, image: torch.Tensor) -> tuple[float, ...] | None:
        """Return the size of a voxel of the image's file in voxels of its smallest side."""
        affine = getattr(image, "meta", {}).get(MetaKeys.ORIGINAL_AFFINE)
        if affine is None or self.metric == "taxicab":
            return None
        size = voxel_size(affine, image.ndim - 1)
        return tuple(side / min(size) for side in size)

    def group(self, case: Mapping[str, Any]) -> str | None:
        """Return the annotator, site or scanner of a case."""
        return None if self.group_key is None else str(case[self.group_key])


def in_unit(spacing: tuple[float, ...], voxel_mm: float, unit_mm: float) -> tuple[float, ...]:
    """Return a spacing in voxels of ``voxel_mm`` in those of ``unit_mm``; as it is where either is not known."""
    ratio = voxel_mm / unit_mm
    return spacing if math.isnan(ratio) or math.isclose(ratio, 1) else tuple(side * ratio for side in spacing)
