"""What a corrector has learnt, as a state dict and as a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.correction.choice import ClassCorrection
from monai_sc.correction.presence import PresenceRates, PresenceRule, presence_rates
from monai_sc.correction.shape import GivenShape
from monai_sc.functional.bias import BoundaryBias, unknown_bias

if TYPE_CHECKING:
    from monai_sc.correction.corrector import SpatialCorrector

BIAS = ("mean", "interval", "num_used", "num_skipped", "spread", "verdict")


def state_of(corrector: SpatialCorrector) -> dict[str, Any]:
    """Return what a corrector has learnt, as JSON types.

    Raises:
        ValueError: when it has not been fitted.
    """
    bias = corrector.check_fitted()
    state: dict[str, Any] = plain(
        {
            "class_names": corrector.class_names,
            "corrections": [c.as_dict() for c in corrector.corrections],
            "rules": [None if r is None else r.as_dict() for r in corrector.rules],
            "rates": [
                [r.num_absent, r.num_spurious, r.spurious_interval, r.num_present, r.num_missed, r.missed_interval]
                for r in corrector.rates
            ],
            "shapes": [None if s is None else s.as_dict() for s in corrector.shapes],
            "group_shifts": corrector.group_shifts,
            "num_clean": corrector.num_clean,
            "bias": {name: getattr(bias, name) for name in BIAS},
        }
    )
    return state


def read_state(corrector: SpatialCorrector, state: Mapping[str, Any]) -> None:
    """Give a corrector what :py:func:`state_of` returned.

    Raises:
        ValueError: when it is of other classes.
    """
    names = list(state["class_names"])
    if names != corrector.class_names:
        raise ValueError(f"state_dict must be of the classes {corrector.class_names}, got {names}.")
    corrector.corrections = [ClassCorrection.from_dict(c) for c in state["corrections"]]
    corrector.rules = [None if r is None else PresenceRule.from_dict(r) for r in state["rules"]]
    corrector.rates = [PresenceRates(a, s, (i[0], i[1]), p, m, (j[0], j[1])) for a, s, i, p, m, j in state["rates"]]
    corrector.shapes = [None if s is None else GivenShape.from_dict(s) for s in state["shapes"]]
    corrector.group_shifts = {group: list(shifts) for group, shifts in state["group_shifts"].items()}
    corrector.num_clean = int(state["num_clean"])
    arrays = {name: np.asarray(values) for name, values in state["bias"].items() if name != "verdict"}
    corrector.bias = BoundaryBias(**arrays, verdict=tuple(state["bias"]["verdict"]))


def forget_bias(corrector: SpatialCorrector, num_clean: int) -> None:
    """Make a corrector one that has seen no usable clean case among ``num_clean``."""
    classes = len(corrector.class_names)
    corrector.bias = unknown_bias(classes, num_clean)
    corrector.num_clean = num_clean
    corrector.corrections = [
        ClassCorrection(dice_before=0.0, dice_after=0.0, dice_present=0.0, note="no usable clean case")
    ] * classes
    corrector.rules, corrector.shapes = [None] * classes, [None] * classes
    corrector.rates = [presence_rates([False] * num_clean, [True] * num_clean)] * classes


def report_of(corrector: SpatialCorrector) -> dict[str, Any]:
    """Return what was measured and chosen, one dictionary per class by name, as JSON types without ``nan``.

    Raises:
        ValueError: when the corrector has not been fitted.
    """
    bias = corrector.check_fitted()
    classes = {}
    for k, name in enumerate(corrector.class_names):
        rates, shape, rule = corrector.rates[k], corrector.shapes[k], corrector.rules[k]
        classes[name] = {
            "bias": bias.mean[k],
            "interval": bias.interval[k],
            "verdict": bias.verdict[k],
            "cases_used": bias.num_used[k],
            "cases_skipped": bias.num_skipped[k],
            "half_width_by_cases": half_widths(bias, k),
            "correction": corrector.corrections[k].as_dict(),
            "group_shifts": {group: shifts[k] for group, shifts in corrector.group_shifts.items()},
            "existence": {
                "spurious": [rates.num_spurious, rates.num_absent],
                "spurious_interval": rates.spurious_interval,
                "missed": [rates.num_missed, rates.num_present],
                "missed_interval": rates.missed_interval,
                "rule": None if rule is None else rule.as_dict(),
            },
            "given_labels": None if shape is None else shape.as_dict(),
            "refused": corrector.refused[k],
        }
    return {"clean_cases": corrector.num_clean, "classes": plain(classes, nan=False)}


def half_widths(bias: BoundaryBias, k: int) -> dict[str, float]:
    """Return half of the interval with the cases there are, one more, and two and four times as many."""
    n = int(bias.num_used[k])
    if n < 2:
        return {}
    return {str(m): float(np.asarray(bias.half_width(m))[k]) for m in dict.fromkeys((n, n + 1, 2 * n, 4 * n))}


def plain(value: Any, *, nan: bool = True) -> Any:
    """Return numpy's types and tuples as JSON types, with ``None`` for ``nan``, which JSON has not, unless ``nan``."""
    if isinstance(value, Mapping):
        return {key: plain(v, nan=nan) for key, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v, nan=nan) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if not nan and isinstance(value, float) and not np.isfinite(value) else value
