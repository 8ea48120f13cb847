"""The record of a round: what the clean cases said, its log lines, and whether the loop goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from logging import Logger
from typing import Any

import numpy as np
import torch
from monai.engines import Evaluator, SupervisedTrainer

from monai_sc.correction import Fitted
from monai_sc.correction.state import plain
from monai_sc.handlers.clean_check import judged_epochs
from monai_sc.handlers.run_options import RunOptions
from monai_sc.parallel import meeting_elsewhere, unwrapped

COLLAPSE = 0.2  # by which the Dice on the clean cases must fall under that of the best round
SURELY_MISSED = 3  # clean cases of a class, all of which a network that finds half of them misses in 1 of 8 rounds


def evaluate(
    engine: SupervisedTrainer, evaluator: Evaluator, weights: Mapping[str, torch.Tensor], is_last: bool
) -> dict[str, Any]:
    """Return the metrics of an evaluator with these weights, as floats, which a checkpoint may hold."""
    if evaluator.state.epoch != engine.state.epoch or not is_last:
        network = unwrapped(engine.network)
        last = deepcopy(network.state_dict())
        network.load_state_dict(weights)
        with meeting_elsewhere():
            evaluator.run(engine.state.epoch)
        network.load_state_dict(last)
    metrics = {
        name: value.cpu() if isinstance(value, torch.Tensor) else value
        for name, value in evaluator.state.metrics.items()
    }
    return {name: np.asarray(value, dtype=np.float64).tolist() for name, value in metrics.items()}


def make_record(found: Mapping[str, Any], options: RunOptions, **others: Any) -> dict[str, Any]:
    """Return the record of a round whose labels have not been judged yet."""
    state = found["state"]
    fitted = Fitted.from_dict(state["fitted"])
    bias = fitted.bias
    reports, learnt, known = {}, [], []
    for k, (name, chosen) in enumerate(zip(options.class_names, found["classes"], strict=True)):
        own = Fitted.from_dict(chosen["fitted"])
        report = {"network_epoch": chosen["epoch"], **own.report()["classes"][name]}
        before, after = judged_epochs(found["checks"], k, joint=options.softmax)
        report["held_out"] |= {"before": before, "after": after}
        reports[name] = report
        learnt.append(own.fits[k].learnt)
        known.append(own.fits[k].dice_present)
    classes = len(options.class_names)
    return {
        "round": others["round"],
        "epoch": others["epoch"],
        "network_epoch": state["epoch"],
        "bias": bias.mean.tolist(),
        "bias_interval": bias.interval.tolist(),
        "bias_mm": (bias.mean * state["voxel_mm"]).tolist(),
        "voxel_mm": state["voxel_mm"],
        "tolerance": fitted.options.tolerated(fitted.unit) * (fitted.unit or 1.0),
        "label_bias": [math.nan] * classes,
        "verdict": [told if fits else "cannot tell" for told, fits in zip(bias.verdict, learnt, strict=True)],
        "learnt": learnt,
        "dice_present": known,
        "num_used": bias.num_used.tolist(),
        "num_skipped": bias.num_skipped.tolist(),
        "clean_dice": state["clean_dice"],
        "correction": plain(reports, nan=False),
        "agreement": [math.nan] * classes,
        "memorised": [False] * classes,
        "kept": [False] * classes,
        "sources": ["keep"] * classes,
        "fits": [],
        "to_check": {},
        "voxels_changed": [],
        "metrics": others["metrics"],
        "restarts": others["restarts"],
        "stop_reason": "",
    }


def log_record(logger: Logger, record: Mapping[str, Any]) -> None:
    """Log what the clean cases said of each class."""
    for k, (name, own) in enumerate(record["correction"].items()):
        number, mean, (low, high) = record["round"], record["bias"][k], record["bias_interval"][k]
        millimetres = "" if math.isnan(record["bias_mm"][k]) else f" = {record['bias_mm'][k]:+.2f} mm"
        interval = "no interval" if math.isnan(low) else f"95% interval [{low:+.2f}, {high:+.2f}]"
        logger.info(
            "Round %d, %s: boundary bias of the network %+.2f voxels%s, %s, %s, from %d clean cases (%d skipped); Dice "
            "on the clean cases %.3f.",
            *(number, name, mean, millimetres, interval, record["verdict"][k], record["num_used"][k]),
            *(record["num_skipped"][k], record["clean_dice"][k]),
        )
        after = own["held_out"]["after"]
        held_out = "a single clean case carries it" if after is None else f"Dice on held-out clean cases {after:.3f}"
        logger.info(
            "Round %d, %s: correction %s by %+.2f, with the network of epoch %d: %s; %s.",
            *(number, name, own["correction"]["representation"], own["correction"]["shift"], own["network_epoch"]),
            *(own["correction"]["note"], held_out),
        )
        if not record["learnt"][k]:
            logger.warning(
                "Round %d, %s: the network has not learnt this class (Dice %.2f on the clean cases with it, before "
                "correction) and corrects none of its labels. Train longer.",
                *(number, name, record["dice_present"][k]),
            )
        if math.isnan(mean):
            logger.warning(
                "Round %d, %s: the bias is undefined, since in every clean case the label or the prediction is "
                "empty or full; the labels of this class stay as they are.",
                *(number, name),
            )


def metrics_of(record: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, float]:
    """Return what a round measured of each class as one number each: ``NAME_bias`` in voxels and so on."""
    metrics = {"round": float(record["round"])}
    for k, name in enumerate(class_names):
        metrics[f"{name}_bias"] = record["bias"][k]
        if not math.isnan(record["bias_mm"][k]):
            metrics[f"{name}_bias_mm"] = record["bias_mm"][k]
        metrics[f"{name}_clean_dice"] = record["clean_dice"][k]
    return metrics


def has_collapsed(record: Mapping[str, Any], best_dice: float | None) -> bool:
    """Say whether the clean cases show that the network has collapsed, so that it is worth training again.

    It has if the mean Dice on the clean cases is far under that of the best round before; or if a class is predicted
    in none of at least 3 clean cases that hold it, or no class in any clean case that holds one, and the mean Dice is
    not that of the best round before, or higher.

    A network that has learnt a class may miss it in one or two cases, which is no reason to train all anew; a network
    that predicts nothing at all has collapsed on however few cases. And where the mean has not fallen, a class that is
    missed was not predicted before either, or others have gained more than it had: another training would not help.
    """
    dice = float(np.mean(record["clean_dice"]))
    if best_dice is not None and dice >= best_dice:
        return False
    if best_dice is not None and dice < best_dice - COLLAPSE:
        return True
    missed = [own["existence"]["missed"] for own in record["correction"].values()]
    never = [present for number, present in missed if present and number == present]
    return any(present >= SURELY_MISSED for present in never) or (
        bool(never) and len(never) == sum(present > 0 for _, present in missed)
    )


def stop_reason(record: Mapping[str, Any], *, as_asked: bool, better: int | None, is_first: bool, is_last: bool) -> str:
    """Return why the loop stops after a round whose labels have been judged, or nothing if it goes on."""
    if better is not None:
        return f"the clean cases are predicted worse than in round {better}"
    learnt = np.array(record["learnt"])
    bias, interval = np.array(record["bias"]), np.array(record["bias_interval"])
    told = np.isfinite(bias) & learnt
    verdicts = np.array(record["verdict"])[told]
    small = bool(np.all(np.abs(bias[told]) < record["tolerance"]))
    sure = bool(np.all(verdicts == "unbiased"))
    which = "class"
    if not told.all():
        which = "class that the network has learnt" if told[learnt].all() else "class whose bias can be told"
    low, high = interval[told].T
    reason = ""
    if not told.any():
        reason = "there is no verdict"
    elif small and sure and (as_asked or not is_first):
        reason = f"the bias of every {which} is under one voxel"
    elif small and as_asked:
        reason = f"the measured bias of every {which} is under one voxel, though its interval is wider"
    elif not as_asked and all(record["kept"]):
        reason = f"no correction clearly improves the labels of any {which}"
    elif as_asked and np.all((low <= 0) & (high >= 0)):
        reason = f"the interval of the bias contains 0 for every {which}"
    elif is_last:
        reason = f"the last round of training is over{'' if small else ', the bias is not under one voxel yet'}"
    if not reason or learnt.all():
        return reason
    missed = ", ".join(
        f"{name} (Dice {score:.2f})"
        for name, score, known in zip(record["correction"], record["dice_present"], learnt, strict=True)
        if not known
    )
    return f"{reason}; the network has not learnt {missed}, so its bias is unknown: train longer"
