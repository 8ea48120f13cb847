"""The check of a network on the clean cases: a corrector is fitted on them, and the best weights are remembered."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader
from monai.engines import SupervisedTrainer

from monai_sc.correction import Fitted, SpatialCorrector
from monai_sc.correction.class_fit import ClassFit
from monai_sc.correction.fitting import nothing_fitted
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.functional.checks import as_array, check_same_shape
from monai_sc.handlers.prediction import ArraysOnDisk
from monai_sc.handlers.run_options import RunOptions, in_unit
from monai_sc.parallel import broadcast_state, gather_items, own_part, unwrapped
from monai_sc.transforms.file_grid import unpadded_box


def nothing_found(fold: int | None, classes: int) -> dict[str, Any]:
    """Return what a training has found before its first check.

    Returns:
        A dictionary that a checkpoint may hold. After a check, ``score``, ``network`` (weights) and ``state`` are those
        of the best check, and ``classes`` holds for each class the state of the check that was best for it, with its
        ``dice`` and ``network``. A state has ``epoch``, ``fitted``, ``clean_dice`` and ``voxel_mm``. ``checks``
        holds of each check its ``epoch``, and by class whether it is ``learnt``, and the Dice of each clean case
        ``before`` and ``after``. A score is the number of learnt classes, and the mean Dice after.
    """
    return {"fold": fold, "score": (-1, -math.inf), "classes": [{}] * classes, "checks": []}


def check_clean_cases(
    engine: SupervisedTrainer, loader: DataLoader, options: RunOptions, description: str
) -> tuple[Fitted, list[float], float]:
    """Predict the clean cases, and fit a corrector on them; each process takes a part, and all get the same result.

    Returns:
        The fit, the Dice of the uncorrected predictions by class, and the size of a voxel of the files in mm.
    """
    broadcast_state(engine.network)
    part, positions = own_part(loader)

    def exchange(items: list[Any]) -> list[Any]:
        return gather_items(items, positions[: len(items)])

    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, part) for part in ("logits", "labels", "ignore")]
        for folder in folders:
            folder.mkdir()
        logits, labels, ignore = (ArraysOnDisk(folder) for folder in folders)
        spacings, sizes, groups = [], [], []
        for case, (output,) in options.predict(engine, part, [unwrapped(engine.network)], description):
            spacing, size = options.grid(case["image"])
            if not options.softmax:
                check_same_shape(output, case["label"], ("The network's output", "the clean label"))
                if len(output) != len(options.class_names):
                    raise ValueError(
                        "The network must have one output channel per class of the store "
                        f"{options.class_names}, got {len(output)}."
                    )
            scanned: Any = (..., *unpadded_box(case["image"]))
            logits.append(output.numpy()[scanned])
            labels.append(_label_of(case, options)[scanned])
            ignore.append(as_array(case.get("ignore", torch.zeros(1, *output.shape[1:])))[scanned])
            spacings.append(spacing)
            sizes.append(size)
            if options.group_key is not None:
                groups.append(case[options.group_key])
        own_sizes, sizes = sizes, exchange(sizes)
        if not sizes:
            raise ValueError("clean_loader must hold at least one clean case, got none.")
        voxel_mm = float(np.mean(sizes))
        # One unit for all cases, whatever the size of their voxels.
        spacings = [in_unit(own, size, voxel_mm) for own, size in zip(spacings, own_sizes, strict=True)]
        correction = options.in_voxels(voxel_mm)
        try:
            fitted = SpatialCorrector(**correction.as_dict()).fit(
                logits,
                labels,
                spacing=spacings,
                groups=groups if options.group_key is not None else None,
                ignore=ignore,
                exchange=exchange,
            )
        except ValueError as error:
            if "at least one usable case" not in str(error):
                raise
            fitted = nothing_fitted(correction, len(sizes), None)
    if correction.as_asked:  # as published: under one voxel there is no band, and nothing to move
        fitted = _leave_converged(fitted)
    return fitted, [_dice_before(fit) for fit in fitted.fits], voxel_mm


def _label_of(case: Mapping[str, Any], options: RunOptions) -> np.ndarray:
    """Return a clean label as a corrector takes it: with a softmax one map ``(1, *spatial)`` of 0, 1, 2, ..."""
    label = as_array(case["label"])
    if not options.softmax or len(label) == 1 or len(label) != len(options.class_names):
        return label
    masks = label > 0
    if (masks.sum(axis=0) > 1).any():
        raise ValueError("With output='softmax' the classes of a clean label must not overlap.")
    return np.asarray((masks * np.arange(1, len(masks) + 1).reshape(-1, *(1,) * (masks.ndim - 1))).sum(axis=0)[None])


def _dice_before(fit: ClassFit) -> float:
    """Return the mean Dice of the uncorrected predictions of a class."""
    return float(np.mean(fit.judged.before)) if fit.judged.before else fit.correction.dice_before


def held_out_dice(fit: ClassFit, num_clean: int) -> list[float]:
    """Return the Dice of each clean case with what is done, judged by the others; of a single one by itself."""
    judged = fit.judged
    return [*(judged.after if judged.accepted else judged.before)] or [fit.single_dice] * num_clean


def _leave_converged(fitted: Fitted) -> Fitted:
    fits = []
    for fit in fitted.fits:
        if abs(fit.network.mean) < fitted.options.tolerated(fitted.unit):
            before = fit.correction.dice_before
            note = "its bias is under one voxel" if fitted.options.tolerance is None else "its bias is tolerated"
            fit = replace(
                fit,
                correction=ClassCorrection(dice_before=before, dice_after=before, note=note),
                judged=replace(fit.judged, after=fit.judged.before),
                single_dice=before,
            )
        fits.append(fit)
    return replace(fitted, fits=tuple(fits))


def remember_best(
    found: dict[str, Any],
    network: torch.nn.Module,
    epoch: int,
    fitted: Fitted,
    clean_dice: list[float],
    voxel_mm: float,
) -> None:
    """Remember in what a training has found the weights of a check, if they are the best yet for a class or for all."""
    state = {"epoch": epoch, "fitted": fitted.to_dict(), "clean_dice": clean_dice, "voxel_mm": voxel_mm}
    weights = deepcopy(unwrapped(network).state_dict())
    scores = [held_out_dice(fit, fitted.num_clean) for fit in fitted.fits]
    learnt = [fit.learnt for fit in fitted.fits]
    before = [_before(fit, fitted.num_clean) for fit in fitted.fits]
    check = {"epoch": epoch, "before": before, "after": scores, "learnt": learnt}
    found["checks"] = [*found["checks"], check]
    # A class that the network has learnt is better than one whose bias seems large, and removed, before it has.
    score = (sum(learnt), float(np.nanmean([np.mean(values) for values in scores])))
    best_of_all = score >= found["score"]
    for k, values in enumerate(scores):
        best, own = found["classes"][k], float(np.mean(values))
        # The channels of a softmax belong together, and so do their corrections.
        joint = fitted.options.format.softmax
        if best_of_all if joint else not best or (learnt[k], own) >= (best["learnt"], best["dice"]):
            found["classes"][k] = {**state, "learnt": learnt[k], "dice": own, "network": weights}
    if best_of_all:
        found.update(score=score, network=weights, state=state)


def _before(fit: ClassFit, num_clean: int) -> list[float]:
    return [*fit.judged.before] or [fit.correction.dice_before] * num_clean


def judged_epochs(checks: Sequence[Mapping[str, Any]], k: int, *, joint: bool = False) -> tuple[float, float]:
    """Return the mean Dice of a class on the clean cases before and after, each judged by the choice of the others.

    What the epoch is, is chosen as well: for each case by the other cases.

    Returns:
        Both; ``nan`` for the latter where a single case leaves none to judge by.
    """
    before, after = (
        np.array([check[name] for check in checks]) for name in ("before", "after")
    )  # (checks, classes, n)
    scores = np.nanmean(after, axis=1) if joint else after[:, k]
    learnt = np.array([check["learnt"] for check in checks])
    learnt = learnt.sum(axis=1) if joint else learnt[:, k]
    scores = scores + 2.0 * learnt[:, None]  # what has been learnt comes first
    before, after = before[:, k], after[:, k]
    count = after.shape[1]
    if count == 1:
        return float(before[_best(scores[:, 0]), 0]), math.nan
    chosen = [_best(np.delete(scores, case, axis=1).mean(axis=1)) for case in range(count)]
    cases = np.arange(count)
    return float(before[chosen, cases].mean()), float(after[chosen, cases].mean())


def _best(scores: np.ndarray) -> int:
    """Return the best check, of equals the last one, as :py:func:`remember_best` does."""
    return len(scores) - 1 - int(np.argmax(scores[::-1]))
