"""How many steps of the Markov noise cost a given Dice, or move the boundary a given distance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from monai.config import NdarrayOrTensor
from typing_extensions import Unpack

from monai_sc.functional.bias import boundary_displacement
from monai_sc.functional.checks import binary_mask
from monai_sc.functional.distance import has_boundary
from monai_sc.functional.masks import bounding_box
from monai_sc.functional.noise import (
    MarkovParameters,
    MarkovRates,
    case_seed,
    check_markov_parameters,
    markov_label_noise,
)


@dataclass(frozen=True)
class Calibration:
    """The number of steps that was found, and what the noise does with it.

    Attributes:
        num_steps: of the Markov process.
        dice: mean Dice of the noisy and the clean masks, over labels and channels.
        displacement: mean displacement of the boundary (negative: the noise expands), in mm or voxels; ``nan`` where no
            noisy mask has a boundary.
        curve: ``(number of steps, mean Dice or mean displacement)`` of all numbers that were tried, in rising order.
        num_used: masks, one per label and channel, that have a boundary and so count.
        num_lost: of these, the masks that ``num_steps`` steps wipe out or fill the image with; they have a Dice but no
            displacement.
    """

    num_steps: int
    dice: float
    displacement: float
    curve: tuple[tuple[int, float], ...]
    num_used: int
    num_lost: int


def calibrate_num_steps(
    labels: Sequence[NdarrayOrTensor],
    *,
    target_dice: float | None = None,
    target_displacement: float | None = None,
    spacing: Sequence[float] | Sequence[Sequence[float]] | None = None,
    seed: int = 0,
    max_steps: int = 4096,
    **parameters: Unpack[MarkovRates],
) -> Calibration:
    r"""Return the smallest number of steps with which the Markov noise is nearest to a target.

    The target is the mean Dice of noisy and clean masks, or the mean of
    :py:func:`~monai_sc.functional.boundary_displacement`, over all labels and channels. Label ``k`` gets the noise of
    ``seed=case_seed(seed, str(k))`` for every number of steps, so that a longer process begins as a shorter one does,
    and few labels are enough. The number is doubled until the target is passed, then bisected: exact where the mean
    falls, or rises, with every step. Where it goes up and down (few labels, ``expansion_prob`` near 0.5, flips), it is
    one of the numbers where the mean crosses the target.

    Args:
        labels: each ``(channels, *spatial)``, 0 and 1 only; shapes may differ. A channel that is empty or full has no
            boundary, and does not count. They are read one at a time, again for each number of steps.
        target_dice: mean Dice, in ``(0, 1]``.
        target_displacement: mean displacement, negative to expand and positive to shrink, in the unit of ``spacing``,
            voxels without one; flips count as they do in any measurement of the displacement. A mask that has vanished
            or fills the image has none, and is left out of the mean.
        spacing: size of a voxel along each spatial axis, in mm, of all labels; or one such sequence per label.
        seed: of the noise.
        max_steps: most steps that are tried, at least 1.
        **parameters: the other parameters of :py:func:`~monai_sc.functional.markov_label_noise`.

    Raises:
        TypeError: when a parameter of the noise is missing or unknown.
        ValueError: when not exactly one target is given, a target or parameter is out of range, no mask has a boundary,
            or the target cannot be reached; the message then says what was reached.

    Example:
        >>> import numpy as np
        >>> square = np.pad(np.ones((1, 20, 20)), ((0, 0), (20, 20), (20, 20)))
        >>> calibrate_num_steps([square], target_displacement=-3, expansion_prob=1, march_prob=1).num_steps
        3
    """
    targets = {"target_dice": target_dice, "target_displacement": target_displacement}
    given = [(name, float(value)) for name, value in targets.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            "Exactly one of target_dice and target_displacement must be given, "
            f"got {'both' if given else 'none'} of them."
        )
    if "num_steps" in parameters:
        raise TypeError("num_steps must not be given: calibrate_num_steps finds it.")
    check_markov_parameters(**cast(MarkovParameters, {**parameters, "num_steps": 0}))
    if max_steps < 1 or max_steps != int(max_steps):
        raise ValueError(f"max_steps must be a whole number of at least 1, got {max_steps}.")
    ((name, target),) = given
    _check_target(name, target, parameters)
    noise = _Noise(labels, spacing, seed, parameters, name)
    # Turned so that it rises with the number of steps: the target is passed where it is at least 0.
    sign = -1 if name == "target_dice" or target < 0 else 1

    def excess(steps: int) -> float:
        value = noise.mean(steps)
        return np.inf if np.isnan(value) else sign * (value - target)  # nan: nothing is left to move any further

    low, high = -1, 0
    while excess(high) < 0:
        if high == max_steps:
            raise noise.unreachable(target)
        low, high = high, min(max(2 * high, 1), max_steps)
    low, high = _bisect(lambda steps: excess(steps) >= 0, low, high)
    if np.isinf(excess(high)) or excess(0) > 1e-6:
        raise noise.unreachable(target)
    if low >= 0 and -excess(low) <= excess(high):
        high = low
        while high > 0 and noise.mean(high - 1) == noise.mean(low):  # fewer steps that do the same
            high -= 1
    dice, displacement, lost = noise.measure(high, with_displacement=True)
    return Calibration(high, dice, displacement, tuple(sorted(noise.curve.items())), noise.num_used, lost)


def _bisect(passed: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Return two neighbours between ``low`` and ``high``, the second of which has passed and the first has not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return low, high


def _check_target(name: str, target: float, parameters: MarkovRates) -> None:
    if name == "target_dice":
        if not 0 < target <= 1:
            raise ValueError(f"target_dice must be in (0, 1], got {target:g}.")
        return
    if not np.isfinite(target):
        raise ValueError(f"target_displacement must be a finite number of mm or voxels, got {target}.")
    drift = 0.5 - np.ravel(parameters["expansion_prob"])
    if target and not (drift * target > 0).any():
        way, needed = ("outwards", "over") if target < 0 else ("inwards", "under")
        raise ValueError(
            f"target_displacement of {target:g} cannot be reached: boundaries drift {way} only with expansion_prob "
            f"{needed} 0.5, got {parameters['expansion_prob']}."
        )


class _Noise:
    """The noise of all labels, measured once for each number of steps that is asked for."""

    def __init__(
        self,
        labels: Sequence[NdarrayOrTensor],
        spacing: Sequence[float] | Sequence[Sequence[float]] | None,
        seed: int,
        parameters: MarkovRates,
        name: str,
    ) -> None:
        if spacing is None or not len(spacing) or np.ndim(spacing[0]) == 0:
            self.spacings = [cast("Sequence[float] | None", spacing)] * len(labels)
        else:
            self.spacings = [*cast("Sequence[Sequence[float]]", spacing)]
            if len(self.spacings) != len(labels):
                raise ValueError(f"spacing must be one for all or one per label ({len(labels)}), got {len(spacing)}.")
        self.labels, self.seed, self.parameters, self.name = labels, seed, parameters, name
        self.num_used = sum(int(has_boundary(binary_mask(labels[k])).sum()) for k in range(len(labels)))
        if not self.num_used:
            raise ValueError(f"labels must have a mask with a boundary, but all {len(labels)} are empty or full.")
        self.curve: dict[int, float] = {}

    def mean(self, steps: int) -> float:
        """Return the mean that the target is of."""
        if steps not in self.curve:
            by_distance = self.name == "target_displacement"
            dice, displacement, _ = self.measure(steps, with_displacement=by_distance)
            self.curve[steps] = displacement if by_distance else dice
        return self.curve[steps]

    def measure(self, steps: int, *, with_displacement: bool) -> tuple[float, float, int]:
        """Return the mean Dice, the mean displacement (else ``nan``) and how many masks have lost their boundary."""
        scores: list[float] = []
        displacements: list[float] = []
        lost = 0
        parameters = cast(MarkovParameters, {**self.parameters, "num_steps": steps})
        for k, spacing in enumerate(self.spacings):
            clean = binary_mask(self.labels[k])
            seed = case_seed(self.seed, str(k))
            noisy = np.asarray(markov_label_noise(clean, spacing=spacing, seed=seed, **parameters))
            for channel in np.flatnonzero(has_boundary(clean)):
                before, after = clean[channel], noisy[channel]
                scores.append(2 * np.count_nonzero(before & after) / (before.sum() + after.sum()))
                if not has_boundary(after[None])[0]:
                    lost += 1
                elif with_displacement:
                    # Distances in it are those in the image.
                    box = (slice(None), *(bounding_box(before | after, 1) or ()))
                    displacements.extend(boundary_displacement(after[None][box], before[None][box], spacing=spacing))
        return float(np.mean(scores)), float(np.mean(displacements)) if displacements else np.nan, lost

    def unreachable(self, target: float) -> ValueError:
        """Say what was reached instead of ``target``, and why it was no more."""
        measure = "mean Dice" if self.name == "target_dice" else "mean displacement"
        last = max(self.curve)
        if last == 0:
            return ValueError(
                f"{self.name} of {target:g} cannot be reached: without any step, flips and smoothing alone give a "
                f"{measure} of {self.curve[0]:.3g}."
            )
        reached = {steps: value for steps, value in self.curve.items() if not np.isnan(value)}
        nearest = min(reached, key=lambda steps: (abs(reached[steps] - target), steps))
        lost = self.measure(last, with_displacement=False)[2]
        if not np.any(self.parameters["march_prob"]):
            why = "march_prob is 0, so that no boundary moves"
        elif lost:
            why = f"with {last} steps {lost} of {self.num_used} masks have vanished or fill the image"
        else:
            why = f"more than max_steps={last}, or a larger march_prob, would go further"
        return ValueError(
            f"{self.name} of {target:g} cannot be reached: the nearest {measure} was {reached[nearest]:.3g}, with "
            f"{nearest} steps; {why}."
        )
