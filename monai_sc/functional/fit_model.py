"""Real pairs of masks, and the simulated ones that are to resemble them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.checks import binary_mask, check_same_shape, check_spacing
from monai_sc.functional.distance import has_boundary
from monai_sc.functional.masks import bounding_box
from monai_sc.functional.noise import markov_label_noise
from monai_sc.functional.pair_statistics import NUM_LAGS, SCALARS, CleanMask, ErrorTable, PairErrors, split_strays

MIN_GROUPS = 5
NUM_RESAMPLES = 400
# The least standard errors, on the scales of the fit; that of strays is one voxel.
LEAST_ERRORS = {"displacement": 0.01, "dice": 0.001}
LEAST_ERROR = 0.02

LEAST_TRAVEL = 0.05  # mean number of steps times march_prob
LEAST_SMOOTHING, MOST_SMOOTHING = 0.5, 3.0  # a narrower filter changes no voxel
NO_SMOOTHING = 0.13  # share of its axis
MOST_FLIPS = 0.3
MOST_SPREAD = 2.0


def draw_num_steps(num_steps: int, step_spread: float, seed: int) -> int:
    """Return the number of steps of one case: log-normal, cut off at two standard deviations."""
    deviation = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,))).standard_normal()
    return round(num_steps * float(np.exp(step_spread * np.clip(deviation, -2, 2))))


class RealPairs:
    """The usable pairs, cut down to the surroundings of their structures.

    Attributes:
        clean: of each usable pair.
        spacings: of each.
        errors: of its noisy mask.
        lag_width: smallest side of a voxel, in which all lengths are measured.
        observed: ``(statistics,)``, on the scales of the fit.
    """

    def __init__(
        self,
        clean: Sequence[NdarrayOrTensor],
        noisy: Sequence[NdarrayOrTensor],
        spacing: Sequence[float] | Sequence[Sequence[float]] | None,
        groups: Sequence[Hashable] | None,
    ) -> None:
        number = len(clean)
        if len(noisy) != number:
            raise ValueError(f"clean and noisy must have the same number of masks, got {number} and {len(noisy)}.")
        if groups is not None and len(groups) != number:
            raise ValueError(f"groups must have one entry per pair ({number}), got {len(groups)}.")
        is_one = spacing is None or not len(spacing) or np.ndim(spacing[0]) == 0
        spacings: Any = [spacing] * number if is_one else spacing
        if len(spacings) != number:
            raise ValueError(f"spacing must be one for all or one per pair ({number}), got {len(spacings)}.")
        self.spacings: list[tuple[float, ...] | None] = []
        masks: list[tuple[np.ndarray, np.ndarray]] = []
        group_of: dict[Hashable, int] = {}
        group, num_masks = [], 0
        for k in range(number):
            pair = binary_mask(clean[k], "clean"), binary_mask(noisy[k], "noisy")
            check_same_shape(*pair, ("clean", "noisy"))
            own_spacing = check_spacing(cast("Sequence[float] | None", spacings[k]), pair[0].ndim - 1)
            num_masks += len(pair[0])
            for channel in np.flatnonzero(has_boundary(pair[0]) & has_boundary(pair[1])):
                masks.append((pair[0][channel], pair[1][channel]))
                self.spacings.append(own_spacing)
                group.append(group_of.setdefault(k if groups is None else groups[k], len(group_of)))
        self.group, self.num_groups, self.num_skipped = np.array(group), len(group_of), num_masks - len(masks)
        if self.num_groups < MIN_GROUPS:
            raise ValueError(
                f"clean and noisy must have usable pairs in at least {MIN_GROUPS} groups, got {self.num_groups}: "
                f"{self.num_skipped} of {num_masks} pairs have a mask that is empty or full."
            )
        if all(np.array_equal(*pair) for pair in masks):
            raise ValueError(f"noisy must differ from clean, but all {len(masks)} usable pairs are equal.")
        self.lag_width = min(min(own) if own else 1.0 for own in self.spacings)
        self.clean: list[CleanMask] = []
        self.errors: list[PairErrors] = []
        self._compare(masks)
        self.table = ErrorTable(self.errors, self.lag_width)
        self.observed = self.scaled(self.table.scalars())

    def _compare(self, masks: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Measure the pairs in regions in which simulated boundaries may go half as far again as any real one."""
        either = [a | split_strays(b, a)[0] for a, b in masks]
        reach = 0.0
        for (a, b), shown, own in zip(masks, either, self.spacings, strict=True):
            near = bounding_box(shown, 1) or ()
            reach = max(reach, -CleanMask(a[near], own).compare(b[near]).displacement.min(initial=0))
        for (a, b), shown, own in zip(masks, either, self.spacings, strict=True):
            region = bounding_box(shown, [int(np.ceil(1.5 * reach / s)) + 4 for s in own or [1.0] * a.ndim]) or ()
            self.clean.append(CleanMask(a[region].copy(), own, self.lag_width))
            self.errors.append(self.clean[-1].compare(b[region]))

    def scaled(self, scalars: np.ndarray) -> np.ndarray:
        """Return the statistics on the scales of the fit, on which their errors are about normal."""
        values = dict(zip(SCALARS, scalars, strict=True))
        unit = self.lag_width
        values["displacement"] /= unit
        values["correlation_length"] = min(values["correlation_length"], unit * NUM_LAGS)
        for name in ("magnitude", "spread_between", "spread_within", "correlation_length"):
            values[name] = np.log(max(values[name] / unit, 0.01))
        values["stray_rate"] = np.sqrt(values["stray_rate"])
        values["dice_spread"] = np.log(max(values["dice_spread"], 0.001))
        return np.array(list(values.values()))

    def resample(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return standard errors, and the covariance on the scales of the fit, from a bootstrap over groups."""
        choices = rng.integers(self.num_groups, size=(NUM_RESAMPLES, self.num_groups))
        times = [np.bincount(choice, minlength=self.num_groups)[self.group].astype(float) for choice in choices]
        rows = np.array([self.table.scalars(weights) for weights in times])
        rows = rows[np.isfinite(rows[:, 0])]
        least = {**dict.fromkeys(SCALARS, LEAST_ERROR), **LEAST_ERRORS, "stray_rate": self.table.num_voxels**-0.5}
        errors = np.std(np.where(np.isfinite(rows), rows, self.lag_width * NUM_LAGS), axis=0)
        return errors, np.cov([*zip(*map(self.scaled, rows), strict=True)]) + np.diag(np.square([*least.values()]))


class PairModel:
    """The noise of pairs with the clean masks of others, its parameters put on axes from 0 to 1.

    These are: the logarithm of the number of steps; ``expansion_prob``; the logarithm of the mean number of steps times
    ``march_prob``; the fourth root of ``flip_prob``; the width of the smoothing, whose first part stands for none; and
    the spread of the number of steps, if it is to vary.
    """

    def __init__(
        self, pairs: RealPairs, *, vary_steps: bool, max_steps: int, fixed: Mapping[str, Any], seed: int
    ) -> None:
        self.pairs, self.vary_steps, self.max_steps, self.fixed, self.seed = pairs, vary_steps, max_steps, fixed, seed
        self.num_parameters = 6 if vary_steps else 5
        self.calls = 0

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters that ``x`` ``(..., num_parameters)`` stands for; a ``smooth_sigma`` of 0 is none."""
        sigma = LEAST_SMOOTHING + (MOST_SMOOTHING - LEAST_SMOOTHING) * (x[..., 4] - NO_SMOOTHING) / (1 - NO_SMOOTHING)
        spread = MOST_SPREAD * x[..., 5] if self.vary_steps else np.zeros_like(sigma)
        num_steps = np.round(self.max_steps ** x[..., 0])
        travel = LEAST_TRAVEL * (self.max_steps / LEAST_TRAVEL) ** x[..., 2]
        values = {
            "num_steps": num_steps,
            "expansion_prob": x[..., 1],
            "march_prob": np.minimum(travel / (num_steps * np.exp(spread**2 / 2)), 1.0),
            "flip_prob": MOST_FLIPS * x[..., 3] ** 4,
            "smooth_sigma": np.where(x[..., 4] > NO_SMOOTHING, sigma, 0.0),
        }
        return {**values, "step_spread": spread} if self.vary_steps else values

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Return the points that are simulated for ``x`` ``(points, num_parameters)``: whole steps, say."""
        values, x = self.values(x), x.copy()
        if self.max_steps > 1:
            x[:, 0] = np.log(values["num_steps"]) / np.log(self.max_steps)
        travel = values["num_steps"] * values["march_prob"] * np.exp(values.get("step_spread", 0.0) ** 2 / 2)
        x[:, 2] = np.clip(np.log(travel / LEAST_TRAVEL) / np.log(self.max_steps / LEAST_TRAVEL), 0, 1)
        x[:, 4] = np.maximum(x[:, 4], NO_SMOOTHING)
        return x

    def simulate(self, x: np.ndarray, num_pairs: int) -> np.ndarray:
        """Return the statistics, on the scales of the fit; ``nan`` where more than half of the masks vanish."""
        errors = self.errors(self.values(x), num_pairs)
        if len(errors) < num_pairs / 2:
            return np.full(len(SCALARS), np.nan)
        return self.pairs.scaled(ErrorTable(errors, self.pairs.lag_width).scalars())

    def errors(self, values: Mapping[str, Any], num_pairs: int) -> list[PairErrors]:
        """Return the errors of simulated pairs, new ones at each call; each clean mask comes as often as any other.

        A mask that the noise leaves empty, or fills, is left out, since real pairs with such a mask are, too.
        """
        self.calls += 1
        rng = np.random.default_rng([self.seed, self.calls])
        parameters, spread = noise_parameters(values, self.fixed), float(values.get("step_spread", 0.0))
        errors = []
        for k in np.resize(rng.permutation(len(self.pairs.clean)), num_pairs):
            seed = int(rng.integers(2**62))
            own: Any = {**parameters, "num_steps": draw_num_steps(parameters["num_steps"], spread, seed)}
            clean, spacing = self.pairs.clean[k], self.pairs.spacings[k]
            noisy = np.asarray(markov_label_noise(clean.mask[None], spacing=spacing, seed=seed, **own))
            if has_boundary(noisy)[0]:
                errors.append(clean.compare(noisy[0]))
        return errors


def noise_parameters(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of :py:func:`~monai_sc.functional.markov_label_noise`, with four digits."""
    parameters: dict[str, Any] = {"num_steps": int(values["num_steps"])}
    for name in ("expansion_prob", "march_prob", "flip_prob"):
        parameters[name] = float(f"{values[name]:.4g}")
    smooth = {"smoothing": "before_flips", "smooth_sigma": float(f"{values['smooth_sigma']:.4g}")}
    return {**parameters, **(smooth if values["smooth_sigma"] > 0 else {"smoothing": None}), **fixed}
