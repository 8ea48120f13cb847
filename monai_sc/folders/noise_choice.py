"""The noise that a user asks for by name and numbers: a preset, parameters, and a target for the number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from monai.transforms import Randomizable

from monai_sc.functional import NOISE_PRESETS, calibrate_num_steps
from monai_sc.functional.noise import PER_CHANNEL, acquisition_axis
from monai_sc.transforms.annotation_error import RandDilateErodeLabel
from monai_sc.transforms.noise import RandMarkovLabelNoise

Spacing = tuple[float, ...]


@dataclass(frozen=True)
class NoiseChoice:
    """A noise as a user describes it; its methods are what :py:func:`monai_sc.folders.simulate_folder` asks for.

    Attributes:
        parameters: of the noise; they come before those of the preset.
        preset: a name in ``NOISE_PRESETS``; ``None`` is the Markov noise with ``parameters`` alone.
        structure: of a preset that has several.
        overlap: how the classes of a label map share a voxel; ``None`` is the default of the transform.
        target_dice: mean Dice for which ``num_steps`` is looked for.
        target_displacement: mean displacement for which it is, in mm with ``unit="mm"``, else in voxels.

    Raises:
        ValueError: when these do not go together.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    structure: str | None = None
    overlap: str | None = None
    target_dice: float | None = None
    target_displacement: float | None = None

    def __post_init__(self) -> None:
        if self.target_dice is not None and self.target_displacement is not None:
            raise ValueError("target_dice and target_displacement must not be given together.")
        if self.has_target and "num_steps" in self.parameters:
            raise ValueError("Give num_steps or a target, not both.")
        if self.structure is not None and self.preset is None:
            raise ValueError(f"structure is of a preset, got {self.structure!r} without one.")
        kind, resolved = self.resolved()
        if self.has_target and kind != "markov":
            raise ValueError(f"A target needs a noise with steps, which preset {self.preset!r} is not.")
        needed = [name for name in PER_CHANNEL[:3] if not (name == "num_steps" and self.has_target)]
        missing = [name for name in needed if kind == "markov" and name not in resolved]
        if missing:
            raise ValueError(f"Without a preset, {' and '.join(missing)} must be given.")

    @property
    def has_target(self) -> bool:
        """Whether the number of steps is looked for."""
        return self.target_dice is not None or self.target_displacement is not None

    def resolved(self) -> tuple[str, dict[str, Any]]:
        """Return the kind of the noise, ``"markov"`` or ``"dilate_erode"``, and all parameters that are not defaults.

        Raises:
            ValueError: when there is no such preset, or it has no such structure or parameter.
        """
        if self.preset is None:
            return "markov", dict(self.parameters)
        if self.preset not in NOISE_PRESETS:
            raise ValueError(f"preset must be one of {', '.join(NOISE_PRESETS)}, got {self.preset!r}.")
        preset = NOISE_PRESETS[self.preset]
        if self.structure is not None:
            preset = preset.of_structure(self.structure)
        parameters = dict(preset.parameters)
        strange = self.parameters.keys() - {"unit"} - parameters.keys()
        if preset.kind != "markov" and strange:
            raise ValueError(f"{min(strange)} is not a parameter of preset {self.preset!r}, which dilates and erodes.")
        if self.has_target:
            parameters.pop("num_steps", None)
        return preset.kind, {**parameters, **self.parameters}

    def make(self, classes: list[int] | None, **more: Any) -> Randomizable:
        """Return the transform for label maps of ``classes``; for binary masks with ``None``.

        Raises:
            ValueError: when a parameter is out of range, or is a list that does not have one value per class.
        """
        kind, parameters = self.resolved()
        parameters = {**parameters, **more}
        self._refuse_unfit_lists(parameters, 1 if classes is None else len(classes))
        if classes is not None:
            parameters["classes"] = classes
            if self.overlap is not None:
                parameters["overlap"] = self.overlap
        transform: Any = RandMarkovLabelNoise if kind == "markov" else RandDilateErodeLabel
        try:
            noise: Randomizable = transform(1.0, **parameters)
        except TypeError as error:
            raise ValueError(f"The parameters do not fit the noise: {str(error).rstrip('.')}.") from error
        return noise

    def description(self) -> dict[str, Any]:
        """Return all that was asked for, as JSON types."""
        kind, parameters = self.resolved()
        return {
            "kind": kind,
            "preset": self.preset,
            "structure": self.structure,
            "parameters": parameters,
            "overlap": self.overlap,
            "target_dice": self.target_dice,
            "target_displacement": self.target_displacement,
        }

    def calibrate(self, masks: Sequence[np.ndarray], spacings: Sequence[Spacing | None]) -> dict[str, Any]:
        """Return the number of steps that comes nearest to the target on ``masks``, with the Dice that it gives.

        Raises:
            ValueError: when the target cannot be reached, or a mask has no geometry, which the noise needs.
        """
        parameters = self.resolved()[1]
        in_mm = parameters.pop("unit", "voxel") == "mm"
        sliced = bool(parameters.get("in_plane")) and parameters.get("slice_axis") is None
        known = [spacing for spacing in spacings if spacing is not None]
        if (in_mm or sliced) and len(known) < len(spacings):
            raise ValueError("unit='mm', and in_plane without slice_axis, need files with a voxel size.")
        if sliced and not in_mm:
            axes = {acquisition_axis(spacing) for spacing in known}
            if len(axes) > 1:
                raise ValueError("slice_axis must be given, since the slices of the masks lie along different axes.")
            parameters["slice_axis"] = axes.pop()
        found = calibrate_num_steps(
            masks,
            target_dice=self.target_dice,
            target_displacement=self.target_displacement,
            spacing=known if in_mm else None,
            seed=0,  # any, but the same for a sample whatever the seed of the folder
            **parameters,
        )
        displacement = round(found.displacement, 6) if np.isfinite(found.displacement) else None
        return {"num_steps": found.num_steps, "dice": round(found.dice, 6), "displacement": displacement}

    def _refuse_unfit_lists(self, parameters: Mapping[str, Any], channels: int) -> None:
        for name, value in parameters.items():
            # the radius of a dilation is a pair, so that a list of them has one more level
            if np.ndim(value) == (2 if name == "radius" else 1) and len(value) != channels:
                if self.preset is not None and self.structure is None and name not in self.parameters:
                    raise ValueError(
                        f"preset {self.preset!r} has a {name} for each of its {len(value)} structures; choose one of "
                        "them as structure, or name as many classes."
                    )
                raise ValueError(f"{name} must have one value per class ({channels}), got {len(value)}.")
