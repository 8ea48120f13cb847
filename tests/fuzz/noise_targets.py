"""The functions of ``monai_sc.functional`` that make labels noisy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from monai_sc import functional

from .checks import is_label_like, on_label
from .inputs import Call, Draw, as_numpy


def markov_options(draw: Draw, ndim: int, channels: int = 1) -> dict[str, Any]:
    """Return the parameters of the Markov noise, but for the seed."""
    per_channel = draw.happens(0.2)
    spacing = draw.spacing(ndim)
    while spacing is not None and not draw.flaws and max(spacing) > 64 * min(spacing):
        spacing = draw.spacing(ndim)
    options = {
        "num_steps": draw.option((0, 1, 3, 6), (-1, 1.5, np.nan)),
        "expansion_prob": [draw.rate() for _ in range(channels)] if per_channel else draw.rate(),
        "march_prob": draw.rate(),
        "flip_prob": draw.rate() if draw.happens(0.4) else 0.0,
        "smoothing": draw.option((None, None, "before_flips", "after_flips"), ("before",)),
        "smooth_sigma": draw.option((0.7, 1.0, 2.0), (0.0, -1.0, np.nan, np.inf)),
        "smooth_radius": draw.option((None, None, 2), (0, 1.5, np.inf)),
        "spacing": spacing,
    }
    if ndim == 3 and draw.happens(0.4):
        options |= {"in_plane": True, "slice_correlation": draw.rate()}
        options["slice_axis"] = draw.option((0, 2), (3, 0.5)) if spacing is None or draw.happens(0.3) else None
    if spacing and draw.happens(0.3):
        options["step_size"] = draw.option((min(spacing) / 2, None), (0.0, np.nan, 1e9, 1e-9))
    return options


def markov(draw: Draw) -> Call:
    label = draw.label()
    given = markov_options(draw, label.ndim - 1, len(label) if label.ndim else 1)
    given["seed"] = draw.option((0, 7, 2**63), (-1, 0.5, np.nan))
    return Call([label, given], lambda: functional.markov_label_noise(label, **given), is_label_like(label, given))


def number_of_steps(draw: Draw) -> Call:
    labels = [
        draw.array(draw.structure(draw.shape((1, 2), sizes=(5, 8, 13)))) for _ in range(draw.option((1, 2), (0,)))
    ]
    given = {
        "expansion_prob": draw.option((1.0, 0.8, 0.2), (0.5, 2.0)),
        "march_prob": draw.option((1.0, 0.5), (0.0, np.nan)),
        "max_steps": draw.option((8, 16), (0, 1.5)),
    }
    target = draw.option(("target_dice", "target_displacement"), ("both",))
    if target != "target_displacement":
        given["target_dice"] = draw.option((0.9, 0.7, 1.0), (0.0, 2.0, np.nan))
    if target != "target_dice":
        sign = -1 if given["expansion_prob"] > 0.5 else 1
        given["target_displacement"] = draw.option((0.5 * sign, 1.0 * sign), (-sign, np.nan, np.inf, 1e9 * sign))
    return Call(
        [labels, given],
        lambda: functional.calibrate_num_steps(labels, **given),
        lambda r: 0 <= r.num_steps <= given["max_steps"] and 0 <= r.dice <= 1 and 0 <= r.num_lost <= r.num_used,
    )


def fitted_noise(draw: Draw) -> Call:
    """Pairs of which the fit is the shortest that there is: it takes seconds."""
    number, size = draw.option((6,), (3,)), draw.option((14,), (3,))
    clean = [
        draw.array(np.pad(np.ones((1, size, size - k % 3)), ((0, 0), (5, 5), (5, 5 + k % 3)))) for k in range(number)
    ]
    noisy = [
        functional.markov_label_noise(
            np.asarray(as_numpy(c) == 1), num_steps=4, expansion_prob=0.7, march_prob=0.5, seed=k
        )
        for k, c in enumerate(clean)
    ]
    given = {
        "budget": draw.option((5000,), (10, np.nan)),
        "max_steps": draw.option((8,), (1,)),
        "vary_steps": draw.happens(0.3),
        "spacing": draw.spacing(2),
    }
    return Call(
        [clean, noisy],
        lambda: functional.fit_markov_noise(clean, noisy, **given),
        lambda r: 0 <= r.p_value <= 1 and r.parameters["num_steps"] >= 1 and np.isfinite(r.distance),
    )


def of_ranges(draw: Draw, good: Sequence[Any]) -> Any:
    return draw.option(good, ((2, 1), (-1, 1), (0, np.nan), (0, np.inf), (1,), 3))


TARGETS = {
    "shift_boundary": on_label(
        functional.shift_boundary,
        is_label_like,
        lambda draw, n: {
            "distance": draw.option((0, 1.0, -1.5, 3.0, np.inf), (np.nan, [1.0] * 9)),
            "spacing": draw.spacing(n),
        },
        (1, 2, 3, 4),
    ),
    "markov_label_noise": markov,
    "coarsen_contour": on_label(
        functional.coarsen_contour,
        is_label_like,
        lambda draw, n: {
            "vertex_distance": draw.option((1.0, 4.0, 1e6), (0.0, -1.0, np.nan, np.inf)),
            "slice_axis": draw.option((-1, 0), (7,)),
            "seed": draw.option((0,), (-1,)),
            "spacing": draw.spacing(n),
        },
        (2, 3),
    ),
    "drop_components": on_label(
        functional.drop_components,
        is_label_like,
        lambda draw, n: {"drop_prob": draw.rate(), "seed": draw.option((1,), (-1,))},
        (1, 2, 3, 4),
    ),
    "punch_holes": on_label(
        functional.punch_holes,
        is_label_like,
        lambda draw, n: {
            "number": of_ranges(draw, ((0, 2), (1, 1))),
            "radius": of_ranges(draw, ((0, 0), (0.5, 2.0))),
            "seed": 2,
            "spacing": draw.spacing(n),
        },
    ),
    "translate_label": on_label(
        functional.translate_label,
        is_label_like,
        lambda draw, n: {
            "shift": draw.option(([1.2] * n, [-3.0] * n, [1e6] * n), ([1.0] * 5, [np.nan] * n, [1e300] * n))
        },
        (1, 2, 3, 4),
    ),
    "calibrate_num_steps": number_of_steps,
    "fit_markov_noise": fitted_noise,
}
