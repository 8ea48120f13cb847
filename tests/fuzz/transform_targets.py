"""The transforms, as array and dictionary versions, and the methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from monai_sc import transforms
from monai_sc.benchmark import methods
from monai_sc.benchmark.methods import CaseMemory, LoadCaseMapd
from monai_sc.transforms import MarkovLabelNoise, MarkovLabelNoised
from tests.transforms.test_label_noise import NOISES

from .checks import has_distances
from .inputs import Call, Draw, as_numpy
from .noise_targets import markov_options

OTHERS = {"image": np.zeros((1, 2)), "reader": {"name": ["ann", {"years": 3}]}}  # entries that no transform is to touch


def is_mask_like(label, classes=None):
    """As transforms of MONAI give it, which make tensors of arrays."""

    def is_right(result):
        before, after = as_numpy(label), as_numpy(result)
        allowed = (0, 1) if classes is None else [*np.unique(before), *classes]
        return after.shape == before.shape and bool(np.isin(after, allowed).all())

    return is_right


def label_and_classes(draw: Draw, ndims: tuple[int, ...]) -> tuple[Any, list[int] | None]:
    """Return a label of 0 and 1, or a label map with its classes."""
    if draw.happens(0.7):
        return draw.label(ndims), None
    classes = list(draw.option(((1,), (2, 7)), ((1, 1), (0,), ())))
    return draw.array(draw.label_map(draw.shape(ndims, channels=(1,)), classes)), classes


def unit_of(draw: Draw, label: Any) -> str:
    can_be_mm = isinstance(label, MetaTensor) or draw.is_wrong("option")
    return draw.option(("voxel", "mm") if can_be_mm else ("voxel",), ("cm",))


def noise_options(draw: Draw, label: Any, classes: list[int] | None) -> dict[str, Any]:
    overlap = draw.option(("nearest", "priority"), ("largest",))
    return {"unit": unit_of(draw, label), "classes": classes, "overlap": overlap}


def noise_of(name: str, own: dict[str, Any], *, dictionary: bool = False):
    """A noise that is drawn anew in every call; the dictionary version gives what the array version gives."""
    make = getattr(transforms, name)
    ndims = (2, 3) if name == "RandCoarsenContour" else (1, 2, 3)

    def target(draw: Draw) -> Call:
        label, classes = label_and_classes(draw, ndims)
        options = {**own, **noise_options(draw, label, classes)}
        seed = draw.whole(0, 99)

        def array():
            return make(1.0, **options).set_random_state(seed)(label)

        if not dictionary:
            return Call([label, options], array, is_mask_like(label, classes))
        make_for = getattr(transforms, f"{name}d")
        return on_dictionary(draw, label, lambda: make_for("label", 1.0, **options).set_random_state(seed), array)

    return target


def on_dictionary(draw: Draw, value: Any, make: Callable[[], Any], expected: Callable[[], Any]) -> Call:
    """A dictionary of which one entry is changed as the array version changes it, and the others stay what they are."""
    data = {"id": "case 1", "label": value, **OTHERS}
    if draw.is_wrong("option"):
        data.pop(draw.one(("id", "label")))

    def is_right(result):
        same = all(result[key] is data[key] for key in data if key != "label")
        if not (same and set(result) == set(data)):
            return False
        after, by_array = as_numpy(result["label"]), as_numpy(expected())
        return bool(np.array_equal(after, by_array, equal_nan=True)) and type(result["label"]) is type(expected())

    return Call([data], lambda: make()(data), is_right)


def noise_of_case(dictionary: bool):
    def target(draw: Draw) -> Call:
        label, classes = label_and_classes(draw, (1, 2, 3))
        channels = (len(label) if label.ndim else 1) if classes is None else len(classes)
        options = {**markov_options(draw, max(label.ndim - 1, 0), channels), **noise_options(draw, label, classes)}
        del options["spacing"]
        if options["unit"] != "mm":
            options.pop("step_size", None)
        if dictionary:
            return on_dictionary(
                draw,
                label,
                lambda: MarkovLabelNoised("label", **options),
                lambda: MarkovLabelNoise(**options)(label, "case 1"),
            )
        return Call(
            [label, options], lambda: MarkovLabelNoise(**options)(label, "case 1"), is_mask_like(label, classes)
        )

    return target


def distance(dictionary: bool):
    def target(draw: Draw) -> Call:
        label = draw.label((1, 2, 3, 4))
        metric = draw.option(("euclidean", "taxicab"), ("manhattan",))
        unit = unit_of(draw, label) if metric == "euclidean" and label.ndim < 5 else "voxel"
        options = {"metric": metric, "unit": unit, "origin": draw.option(("voxel", "face"), ("edge",))}

        def array():
            return transforms.SignedDistance(**options)(label)

        if dictionary:
            return on_dictionary(draw, label, lambda: transforms.SignedDistanced("label", **options), array)
        return Call([label], array, has_distances(label, options))

    return target


def correction(dictionary: bool):
    def target(draw: Draw) -> Call:
        logits = draw.array(draw.logits(draw.shape((1, 2, 3, 4))))
        options = {
            "representation": draw.option(("distance", "logit"), ("auto",)),
            "gamma": draw.option((1.0, 0.5), (0.0, np.nan)),
            "spacing": draw.spacing(max(logits.ndim - 1, 0)),
            "max_shift": draw.option((None, 1.0), (-1.0, np.nan)),
            "as_label": draw.happens(0.5),
        }
        bias = draw.option((0.0, 1.5, -2.0), (np.nan, np.inf))

        def array():
            return transforms.SpatialCorrection(bias, **options)(logits)

        if dictionary:
            return on_dictionary(draw, logits, lambda: transforms.SpatialCorrectiond("label", bias, **options), array)
        is_right = is_mask_like(logits) if options["as_label"] else lambda r: bool(np.isfinite(as_numpy(r)).all())
        return Call([logits, options], array, is_right)

    return target


def case_map(draw: Draw) -> Call:
    """A map of a case on the grid of its label, which was flipped and cropped."""
    size = draw.shape((2, 3), channels=(1, 2))
    ndim = max(len(size) - 1, 1)
    affine = np.eye(4)
    affine[0, 0], affine[0, 3] = draw.one(((1.0, 0.0), (-1.0, 3.0), (0.5, 1.0)))
    label = torch.as_tensor(draw.mask(draw.shape((ndim,))))
    data = {"id": "case 1", "label": MetaTensor(label, affine=affine) if not draw.is_wrong("type") else label, **OTHERS}
    if draw.is_wrong("option"):
        data |= {"id": draw.one(("unknown", "../case 1", "", None, 3))}
    memory = CaseMemory(dtype=draw.one(("float16", "bool")))
    channels = draw.option((size[0] if size else 1,), (0, 9))

    def run():
        memory.replace([("case 1", MetaTensor(torch.as_tensor(draw.rng.random(size)), affine=np.eye(4)))])
        return LoadCaseMapd("map", memory, channels=channels)(data)

    def is_right(result):
        others = all(result[key] is value for key, value in data.items())
        return others and tuple(result["map"].shape) == (channels, *label.shape[1:])

    return Call([data], run, is_right)


def loss_of(make: Callable[[Draw, str, str], Callable[..., torch.Tensor]], with_memory: bool = False):
    """Of finite logits the loss is finite, and so is its gradient."""

    def target(draw: Draw) -> Call:
        output = draw.option(("sigmoid", "softmax"), ("tanh",))
        reduction = draw.option(("mean", "sum", "none"), ("median",))
        size = draw.shape((1, 2, 3), channels=(2, 3) if output == "softmax" else (1, 2, 3))
        size = size if draw.is_wrong("shape") else (draw.whole(1, 2), *size)
        said = torch.as_tensor(draw.logits(size).clip(-1e30, 1e30)).to(
            draw.one((torch.float32, torch.float64, torch.bfloat16))
        )
        wanted = torch.as_tensor(np.nan_to_num(draw.mask(size), posinf=1, neginf=0)).float()
        if output == "softmax" and len(size) > 2 and draw.happens(0.5):
            wanted = wanted.argmax(dim=1, keepdim=True) if wanted.numel() else wanted
        if draw.is_wrong("shape") and wanted.ndim:
            wanted = wanted[..., :1]
        given = [said, wanted]
        if with_memory and len(size) > 1:
            classes = 1 if output == "softmax" else 2
            classes = draw.option((classes,), (3,))
            given.append(torch.full((size[0], classes * size[1], *size[2:]), 0.3))

        def run():
            logits = said.clone().requires_grad_()
            loss = make(draw, output, reduction)(logits, *given[1:])
            loss.sum().backward()
            return loss.detach(), logits.grad

        usable = bool(torch.isfinite(said).all()) and said.numel() > 0
        return Call(given, run, lambda result: not usable or all(bool(torch.isfinite(r).all()) for r in result))

    return target


def early_learning(draw: Draw, output: str, reduction: str) -> Any:
    return methods.EarlyLearningRegularizationLoss(
        output=output,
        reduction=reduction,
        coefficient=draw.option((7.0, 0.0), (-1.0, np.nan)),
        momentum=draw.option((0.8, 0.0), (1.0, np.nan)),
    )


def with_map(draw: Draw, output: str, reduction: str) -> Callable[..., torch.Tensor]:
    loss = methods.CaseMapLoss(early_learning(draw, output, reduction))
    put = not draw.is_wrong("option")

    def call(said, wanted, memory=None):
        if put:
            loss.put(memory)
        return loss(said, wanted)

    return call


def plain(name: str):
    return lambda draw, output, reduction: getattr(methods, name)(output=output, reduction=reduction)


LOSSES = [name for name in methods.__all__ if name.endswith("Loss")]
WITH_MEMORY = {
    "EarlyLearningRegularizationLoss": loss_of(early_learning, with_memory=True),
    "CaseMapLoss": loss_of(with_map, with_memory=True),
}
TARGETS = {  # new noises and losses come by themselves
    **{noise.__name__: noise_of(noise.__name__, own) for noise, own in NOISES.items()},
    **{f"{noise.__name__}d": noise_of(noise.__name__, own, dictionary=True) for noise, own in NOISES.items()},
    "MarkovLabelNoise": noise_of_case(dictionary=False),
    "MarkovLabelNoised": noise_of_case(dictionary=True),
    "SignedDistance": distance(dictionary=False),
    "SignedDistanced": distance(dictionary=True),
    "SpatialCorrection": correction(dictionary=False),
    "SpatialCorrectiond": correction(dictionary=True),
    "LoadCaseMapd": case_map,
    **{name: loss_of(plain(name)) for name in LOSSES if name not in WITH_MEMORY},
    **WITH_MEMORY,
}
