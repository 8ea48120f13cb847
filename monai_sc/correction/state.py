"""What a corrector has learnt, as a state dict and as a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from monai_sc.correction.fitting import ClassBias, ClassFit, Judgement
from monai_sc.correction.presence import PresenceRates, PresenceRule
from monai_sc.correction.shape import GivenShape
from monai_sc.correction.shifts import ClassCorrection

if TYPE_CHECKING:
    from monai_sc.correction.corrector import SpatialCorrector

OPTIONS = (
    "class_names",
    "output",
    "probabilities",
    "representation",
    "gamma",
    "metric",
    "region",
    "presence",
    "shape_weight",
    "max_shift",
    "tolerance",
    "ignore_value",
)
"""The options of a corrector, all of which change a result."""

PARTS: dict[str, Any] = {
    "correction": ClassCorrection,
    "move": ClassCorrection,
    "pending": ClassCorrection,
    "rule": PresenceRule,
    "rates": PresenceRates,
    "shape": GivenShape,
    "network": ClassBias,
    "labels": ClassBias,
    "judged": Judgement,
    "judged_labels": Judgement,
}


def state_of(corrector: SpatialCorrector) -> dict[str, Any]:
    """Return what a corrector has learnt, and its options, as JSON types.

    Raises:
        ValueError: when it has not been fitted.
    """
    state: dict[str, Any] = plain(
        {
            "options": {name: getattr(corrector, name) for name in OPTIONS},
            "unit": corrector.unit,
            "num_clean": corrector.num_clean,
            "fits": [asdict(fit) for fit in corrector.check_fitted()],
        }
    )
    return state


def read_state(corrector: SpatialCorrector, state: Mapping[str, Any]) -> None:
    """Give a corrector what :py:func:`state_of` returned.

    Raises:
        ValueError: when it is of another corrector.
    """
    for name, value in state["options"].items():
        own = plain(getattr(corrector, name))
        if value != own:
            raise ValueError(f"state_dict must be of a corrector with {name}={own!r}, got one with {value!r}.")
    corrector.unit = state["unit"]
    corrector.num_clean = int(state["num_clean"])
    corrector.fits = [read_fit(fit) for fit in state["fits"]]


def read_fit(content: Mapping[str, Any]) -> ClassFit:
    """Return the fit of a class that :py:func:`state_of` wrote."""
    values = dict(content)
    for name, kind in PARTS.items():
        if values[name] is not None:
            types = {f.name: tuple if str(f.type).startswith("tuple") else None for f in fields(kind)}
            values[name] = kind(
                **{key: tuple(v) if types[key] and v is not None else v for key, v in values[name].items()}
            )
    return ClassFit(**values)


def report_of(corrector: SpatialCorrector) -> dict[str, Any]:
    """Return what was measured and chosen, one dictionary per class by name, as JSON types without ``nan``.

    ``bias``, ``interval`` and ``verdict`` are those of the given labels where cases have both labels, else those of the
    network's predictions; ``bias_of`` says which, and ``network`` has those of the network apart.

    Raises:
        ValueError: when the corrector has not been fitted.
    """
    voxel = corrector.unit or 1.0
    classes = {}
    for name, fit in zip(corrector.class_names, corrector.check_fitted(), strict=True):
        direct = fit.num_pairs > 0
        rates, rule = fit.rates, fit.rule
        judged = fit.judged_labels if direct else fit.judged
        classes[name] = {
            **_bias_row(fit.labels if direct else fit.network, voxel),
            "bias_of": "labels" if direct else "network",
            "network": _bias_row(fit.network, voxel) if fit.rates is not None else None,
            "learnt": fit.learnt,
            "source": fit.source,
            "correction": corrector.capped(fit.correction).scaled(voxel).as_dict(),
            "move": corrector.capped(fit.move).scaled(voxel).as_dict(),
            "held_out": judged.summary(),
            "held_out_predictions": fit.judged.summary(),
            "existence": None
            if rates is None
            else {
                "spurious": [rates.num_spurious, rates.num_absent],
                "spurious_interval": rates.spurious_interval,
                "missed": [rates.num_missed, rates.num_present],
                "missed_interval": rates.missed_interval,
                "rule": None if rule is None else rule.as_dict(),
            },
            "given_labels": None if fit.shape is None else fit.shape.scaled(voxel).as_dict(),
        }
    options = {name: getattr(corrector, name) for name in OPTIONS}
    return plain({"clean_cases": corrector.num_clean, "options": options, "classes": classes}, nan=False)  # type: ignore[no-any-return]


def _bias_row(bias: ClassBias, voxel: float) -> dict[str, Any]:
    return {
        "bias": bias.mean * voxel,
        "bias_voxels": bias.mean,
        "interval": [side * voxel for side in bias.interval],
        "verdict": bias.verdict,
        "cases_used": bias.num_used,
        "cases_skipped": bias.num_skipped,
        "half_width_by_cases": half_widths(bias.spread * voxel, bias.num_used),
    }


def half_widths(spread: float, cases: int) -> dict[str, float]:
    """Return half of the interval with the cases there are, one more, and two and four times as many."""
    if cases < 2:
        return {}
    numbers = dict.fromkeys((cases, cases + 1, 2 * cases, 4 * cases))
    return {str(n): float(stats.t.ppf(0.975, n - 1) * spread / math.sqrt(n)) for n in numbers}


def plain(value: Any, *, nan: bool = True) -> Any:
    """Return numpy's types and tuples as JSON types, with ``None`` for ``nan``, which JSON has not, unless ``nan``."""
    if isinstance(value, Mapping):
        return {key: plain(v, nan=nan) for key, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v, nan=nan) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if not nan and isinstance(value, float) and not np.isfinite(value) else value
