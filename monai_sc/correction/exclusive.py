"""Classes that exclude each other: one class per voxel, and no correction that loses by it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from monai_sc.correction.cases import CleanCases
from monai_sc.correction.evidence import Exchange
from monai_sc.functional.correction import exclusive_label
from monai_sc.functional.dice import dice

if TYPE_CHECKING:
    from monai_sc.correction.corrector import SpatialCorrector


def exclusive_map(
    masks: np.ndarray, scores: np.ndarray, logits: np.ndarray, spacing: Sequence[float] | None = None
) -> np.ndarray:
    """Return a map ``(*spatial)`` with one class per voxel, 0 for the background.

    Args:
        masks: ``(classes, *spatial)``; they may overlap, and leave voxels to none.
        scores: corrected signed distances, same shape; a mask may differ from them.
        logits: of all channels, for voxels that no class claims.
        spacing: size of a voxel along each axis.
    """
    # A mask that differs from its scores has no score of its own: its distance from the boundary serves, as everywhere.
    claims = np.where(masks == (scores >= 0), scores, np.where(masks, 0.0, -1.0))
    return exclusive_label(np.concatenate([np.zeros_like(claims[:1]), claims]), logits, spacing=spacing)


def take_back_losers(
    corrector: SpatialCorrector, cases: CleanCases, groups: Sequence[Hashable] | None, exchange: Exchange
) -> None:
    """Take back corrections whose classes lose when all is done to the clean cases, until none does.

    They can lose since each was chosen alone, where classes exclude each other, or groups have shifts of their own.

    Args:
        corrector: whose corrections and rules may change.
        cases: the clean cases, of which a process may have a part.
        groups: of each of them.
        exchange: with the other processes.
    """
    corrections, rules = corrector.corrections, corrector.rules
    for _ in corrector.class_names:
        changed = [
            correction.representation != "none" or rule is not None
            for correction, rule in zip(corrections, rules, strict=True)
        ]
        if not any(changed):
            break
        rows = []
        for index, (logits, masks, left_out, size) in enumerate(cases):
            raw = cases.raw(index) if corrector.output == "softmax" else logits
            group = None if groups is None else groups[index]
            predicted = corrector.format.predicted(raw)
            scores = corrector.scores_of_logits(logits, spacing=size, group=group)
            corrected = corrector.label_of_scores(scores, logits=raw, spacing=size)
            rows.append((dice(predicted, masks, left_out), dice(corrected, masks, left_out)))
        uncorrected, after = np.mean(exchange(rows), axis=0)
        lost = after - uncorrected
        if (lost >= 0).all():
            break
        worst = int(np.argmin(np.where(changed, lost, np.inf)))
        corrections[worst] = replace(
            corrections[worst],
            representation="none",
            shift=0.0,
            dice_before=float(uncorrected[worst]),
            dice_after=float(uncorrected[worst]),
            note="its correction was taken back, since with that of the other classes the clean cases lost by it",
        )
        rules[worst] = None
