"""What a right result is, and the target of a function of one label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .inputs import Call, Draw, as_numpy

Check = Callable[[Any, dict[str, Any]], Callable[[Any], bool]]


def is_label_like(label, given):
    """Same shape, type and library; 0 and 1 only."""
    return lambda result: (
        type(result) is type(label)
        and result.dtype == label.dtype
        and tuple(result.shape) == tuple(label.shape)
        and bool(np.isin(as_numpy(result).real, (0, 1)).all())
    )


def is_finite_like(array):
    return lambda result: (
        tuple(result.shape) == tuple(array.shape)
        and bool(np.isfinite(as_numpy(result)).all())
        and type(result) is type(array)
    )


def is_same_kind(result, array):
    return type(result) is type(array) and result.dtype == array.dtype and tuple(result.shape) == tuple(array.shape)


def has_distances(label, given):
    """The sign says the class of each voxel, of a channel that has both classes; else there is no number."""

    def is_right(result):
        mask, phi = as_numpy(label) == 1, as_numpy(result)
        axes = tuple(range(1, mask.ndim))
        both = (mask.any(axis=axes) & ~mask.all(axis=axes)).reshape(-1, *[1] * len(axes))
        expected = np.where(mask, phi < 0, phi > 0) & np.isfinite(phi)
        return phi.shape == mask.shape and bool(np.where(both, expected, np.isnan(phi)).all())

    return is_right


def on_label(
    function: Callable[..., Any], check: Check, options: Callable[[Draw, int], dict[str, Any]], ndims=(1, 2, 3)
):
    def target(draw: Draw) -> Call:
        label = draw.label(ndims)
        given = options(draw, max(label.ndim - 1, 0))
        return Call([label, given], lambda: function(label, **given), check(label, given))

    return target
