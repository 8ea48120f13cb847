"""Results as JSON types, and back."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from scipy import stats


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


def read(kind: Any, value: Any) -> Any:
    """Return a value of a type, such as a dataclass, from what :py:func:`plain` made of it; ``None`` is ``nan``."""
    if isinstance(kind, types.UnionType):
        return None if value is None else read(get_args(kind)[0], value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: read(hints[name], own) for name, own in value.items()})  # type: ignore[operator]
    if kind is float:
        return math.nan if value is None else float(value)
    if get_origin(kind) is tuple:
        return tuple(read(get_args(kind)[0], own) for own in value)
    if get_origin(kind) is dict:
        return {key: read(get_args(kind)[1], own) for key, own in value.items()}
    return value
