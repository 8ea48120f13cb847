"""How a handler predicts cases and measures them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer
from monai.utils import MetaKeys
from torch.utils.data import DataLoader

from monai_sc.correction import CorrectionOptions
from monai_sc.handlers.prediction import predict
from monai_sc.transforms.distance import voxel_size
from monai_sc.transforms.file_grid import file_grid


@dataclass(frozen=True)
class RunOptions:
    """Options of :py:class:`~monai_sc.handlers.SpatialCorrectionHandler`, which documents them.

    Attributes:
        correction: its options, with lengths in mm.
        inferer: for clean and training cases.
        group_key: key of the annotator, site or scanner.
        voxel_mm: size of a voxel of the files, where they do not say it.
        progress: show progress bars.
    """

    correction: CorrectionOptions
    inferer: Inferer | None = None
    group_key: str | None = None
    voxel_mm: float | None = None
    progress: bool = True

    @property
    def class_names(self) -> Sequence[str]:
        """The classes."""
        return self.correction.class_names

    @property
    def softmax(self) -> bool:
        """Whether a voxel has one class only."""
        return self.correction.format.softmax

    def as_dict(self) -> dict[str, Any]:
        """Return the options on which the labels depend, as types that a checkpoint may hold."""
        return {**self.correction.as_dict(), "group_key": self.group_key, "voxel_mm": self.voxel_mm}

    def in_voxels(self, voxel_mm: float) -> CorrectionOptions:
        """Return the options of the correction with lengths in voxels of the files.

        Raises:
            ValueError: when a length is given, and the size of a voxel is not known.
        """
        lengths = {name: getattr(self.correction, name) for name in ("max_shift", "tolerance")}
        lengths = {name: length / voxel_mm for name, length in lengths.items() if length is not None}
        if lengths and math.isnan(voxel_mm):
            raise ValueError(
                f"{next(iter(lengths))} is in mm, and needs the size of a voxel, which the files do not say; give "
                "voxel_mm."
            )
        return replace(self.correction, **lengths)

    def predict(
        self, engine: SupervisedTrainer, loader: DataLoader[Any], networks: Sequence[torch.nn.Module], description: str
    ) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
        """Yield every case of ``loader`` with the output of each network."""
        return predict(engine, loader, networks, inferer=self.inferer, description=description, progress=self.progress)

    def grid(self, image: torch.Tensor) -> tuple[tuple[float, ...], float]:
        """Return the size of a voxel of an image in voxels of its file, and of one of those in mm."""
        grid = file_grid(image, self.correction.metric)
        spacing = grid.spacing if grid.spacing is not None else (grid.unit,) * (image.ndim - 1)
        return spacing, grid.voxel_mm if self.voxel_mm is None else self.voxel_mm

    def file_spacing(self, image: torch.Tensor) -> tuple[float, ...] | None:
        """Return the size of a voxel of the image's file in voxels of its smallest side."""
        affine = getattr(image, "meta", {}).get(MetaKeys.ORIGINAL_AFFINE)
        if affine is None or self.correction.metric == "taxicab":
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
