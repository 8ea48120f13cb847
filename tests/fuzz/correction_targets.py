"""The functions of ``monai_sc.functional`` that correct, and the corrector."""

from __future__ import annotations

import json

import numpy as np

from monai_sc import functional
from monai_sc.correction import Fitted, SpatialCorrector, compare_given

from .checks import is_finite_like
from .inputs import Call, Draw, as_numpy


def corrected(draw: Draw) -> Call:
    logits = draw.array(draw.logits(draw.shape()))
    bias = draw.option((0.0, 1.5, -2.0, -0.3, 1e9, -1e9), (np.nan, np.inf))
    given = {
        "representation": draw.option(("distance", "logit"), ("auto",)),
        "gamma": draw.option((1.0, 0.5), (0.0, 2.0, np.nan)),
        "spacing": draw.spacing(max(logits.ndim - 1, 0)),
        "max_shift": draw.option((None, None, 1.0, 0.0), (-1.0, np.nan)),
    }
    if logits.ndim and draw.happens(0.2):
        bias = [bias] * draw.option((len(logits),), (0, len(logits) + 1))
    return Call(
        [logits, bias, given], lambda: functional.correct_boundary(logits, bias, **given), is_finite_like(logits)
    )


def exclusive(draw: Draw) -> Call:
    size = draw.shape(channels=(2, 3, 4))
    logits, scores = (draw.array(draw.logits(size)) for _ in range(2))
    if draw.is_wrong("shape") and size:
        scores = scores[..., :1]
    spacing = draw.spacing(max(len(size) - 1, 0))
    return Call(
        [logits, scores, spacing],
        lambda: functional.exclusive_label(scores, logits, spacing=spacing),
        lambda r: r.shape == size[1:] and bool(np.all((r >= 0) & (r < size[0]))),
    )


def against_rest(draw: Draw) -> Call:
    logits = draw.array(draw.logits(draw.shape(channels=(2, 3, 4))))
    return Call([logits], lambda: functional.one_against_rest(logits), is_finite_like(logits))


def to_logits(draw: Draw) -> Call:
    values = draw.rng.choice([0.0, 1.0, 0.2], draw.shape())
    if draw.is_wrong("values"):
        values = np.where(draw.rng.random(values.shape) < 0.2, draw.one((1.2, -0.5, np.nan, np.inf)), values)
    chances = draw.array(values)
    given = {"clip": draw.option((1e-6, 0.1), (0.0, 0.5, np.nan)), "exclusive": draw.happens(0.3)}
    return Call([chances, given], lambda: functional.probabilities_to_logits(chances, **given), is_finite_like(chances))


def corrector(draw: Draw) -> Call:
    """Clean cases with predictions that are a voxel off, and a label to be corrected."""
    exclusive_classes = draw.happens(0.4)
    size = draw.shape((1, 2, 3), channels=(1, 2), sizes=(2, 5, 8, 13))
    number = size[0] if size else 1
    labels, said = [], []
    for _ in range(draw.option((1, 2, 3), (0,))):
        masks = draw.structure(size)
        values = masks.argmax(axis=0)[None] + masks[:1] if exclusive_classes and masks.size else masks
        own = np.roll(masks, 1, axis=-1) if masks.ndim else masks
        own = np.where(np.nan_to_num(own) > 0, 3.0, -3.0) + draw.logits(size).clip(-5, 5)
        own = np.concatenate([0 * own[:1], own]) if exclusive_classes and own.ndim else own
        labels.append(draw.array(values, ("uint8", "bool", "float32") if not exclusive_classes else ("uint8", "int16")))
        said.append(draw.array(own, ("float16", "float32", "float64", ">f4")))
    options = {
        "output": "softmax" if exclusive_classes else "sigmoid",
        "representation": draw.option(("auto", "auto", "distance", "logit"), ("none",)),
        "shape_weight": draw.option((0.5, 0.0, 1.0), (-0.1, np.nan)),
        "max_shift": draw.option((None, 1.0, 0.0), (-1.0, np.nan)),
        "tolerance": draw.option((1.0, 0.0), (-1.0, np.nan)),
        "ignore_value": draw.option((None, None, 255), (1,)),
    }
    spacing = draw.spacing(max(len(size) - 1, 0))
    trusted = draw.array(draw.mask(size)[:1] if size else np.zeros(())) if draw.happens(0.3) else None
    ignore = [draw.mask(size) for _ in labels] if draw.happens(0.3) else None

    def run():
        corrector = SpatialCorrector([f"class {k}" for k in range(number)], **options)
        made = corrector.fit(said, labels, spacing=spacing, ignore=ignore)
        made = compare_given(made, said, labels, spacing=spacing)
        again = Fitted.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
        given = {"given": labels[0], "trusted": trusted, "spacing": spacing}
        return made.transform(said[0], **given), again.transform(said[0], **given)

    def is_right(both):
        before = as_numpy(labels[0])
        allowed = {*np.unique(before), *range(number + 1)} if exclusive_classes else {0, 1, 255}
        return np.array_equal(*both) and both[0].shape == before.shape and set(np.unique(both[0])) <= allowed

    return Call([labels, said, trusted, ignore, options], run, is_right)


TARGETS = {
    "correct_boundary": corrected,
    "exclusive_label": exclusive,
    "one_against_rest": against_rest,
    "probabilities_to_logits": to_logits,
    "SpatialCorrector": corrector,
}
