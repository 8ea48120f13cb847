"""What the clean cases show of each class, in one pass; all distances are in voxels."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from monai_sc.correction.boundaries import box_around, distance, given_offset, measure, voxel_volume
from monai_sc.correction.cases import Case, Cases
from monai_sc.correction.presence import CaseObjects, object_sizes, objects_of_case
from monai_sc.correction.shifts import ShiftCounts, ShiftTable
from monai_sc.functional.bias import boundary_displacement
from monai_sc.functional.masks import dice
from monai_sc.functional.threads import in_threads

Exchange = Callable[[list[Any]], list[Any]]
"""Given what a process measured, one entry per case of its own, it returns that of all processes, in one order."""


class CaseEvidence(NamedTuple):
    """What one case shows: arrays ``(classes,)``, ``nan`` where something is not known, and lists by class."""

    displacement: np.ndarray
    dice: np.ndarray
    given_displacement: np.ndarray
    given_dice: np.ndarray
    offset: np.ndarray
    agreement: np.ndarray
    present: np.ndarray
    sizes: Sequence[np.ndarray]
    objects: Sequence[CaseObjects]
    counts: Sequence[ShiftCounts | None]
    given_counts: Sequence[ShiftCounts | None]
    group: Hashable


@dataclass(frozen=True)
class Evidence:
    """What the clean cases show; arrays are ``(cases, classes)``.

    Attributes:
        rows: one per case.
        tables: what shifts of the predictions would do, one per class.
        given_tables: the same of the given labels.
        groups: of the cases, ``None`` where there are none.
        positions: of the cases of this process among all.
    """

    rows: Sequence[CaseEvidence]
    tables: Sequence[ShiftTable]
    given_tables: Sequence[ShiftTable]
    groups: Sequence[Hashable] | None
    positions: Sequence[int]

    def column(self, name: str) -> np.ndarray:
        """Return an array of all cases ``(cases, classes)``."""
        return np.stack([getattr(row, name) for row in self.rows])

    def objects(self, k: int) -> list[CaseObjects]:
        """Return the predicted objects of a class in each case."""
        return [row.objects[k] for row in self.rows]

    @property
    def pairs(self) -> np.ndarray:
        """Indices of the cases that have both labels."""
        return np.flatnonzero([np.isfinite(row.given_dice).any() for row in self.rows])

    @property
    def predicted(self) -> bool:
        """Whether there are predictions."""
        return bool(self.rows) and bool(self.rows[0].objects)


def gather_evidence(
    cases: Cases, *, metric: str, region: str, reach: float, has_groups: bool, exchange: Exchange
) -> Evidence:
    """Return what the clean cases show, from one pass over them.

    Raises:
        ValueError: when there is no case, or a case does not fit.
    """
    own = list(in_threads(lambda case: _case_evidence(case, metric, region, ShiftTable(reach)), cases))
    rows: list[CaseEvidence] = exchange(own)
    token = secrets.token_hex()
    tokens = exchange([token for _ in own])
    if not rows:
        raise ValueError("labels must hold at least one clean case, got none.")
    classes = range(len(rows[0].present))
    return Evidence(
        rows,
        [ShiftTable(reach, [row.counts[k] for row in rows]) for k in classes],
        [ShiftTable(reach, [row.given_counts[k] for row in rows]) for k in classes],
        [row.group for row in rows] if has_groups else None,
        [i for i, other in enumerate(tokens) if other == token],
    )


def _case_evidence(case: Case, metric: str, region: str, table: ShiftTable) -> CaseEvidence:
    unknown = np.full(len(case.label), np.nan)
    classes = range(len(case.label))
    ignored = [None if case.left_out is None else case.left_out[k] for k in classes]
    volume = voxel_volume(case.size)
    inside = case.label if case.left_out is None else case.label & ~case.left_out
    predicted = None if case.logits is None else case.logits >= 0
    objects: list[CaseObjects] = []
    if case.logits is not None:
        for k in classes:
            given = None if case.given is None else case.given[k]
            objects.append(objects_of_case(case.logits[k], case.label[k], given, ignored[k], volume))
    offset = agreement = unknown
    if predicted is not None and case.given is not None:
        offset = np.array([given_offset(g, p, case.size) for g, p in zip(case.given, predicted, strict=True)])
        agreement = dice(predicted, case.given, case.left_out)
    return CaseEvidence(
        displacement=unknown if predicted is None else _displacement(predicted, case, metric, region),
        dice=unknown if predicted is None else dice(predicted, case.label, case.left_out),
        given_displacement=unknown if case.given is None else _displacement(case.given, case, metric, region),
        given_dice=unknown if case.given is None else dice(case.given, case.label, case.left_out),
        offset=offset,
        agreement=agreement,
        present=np.asarray(inside.reshape(len(inside), -1).any(axis=1)),
        sizes=[object_sizes(mask, volume) for mask in inside],
        objects=objects,
        counts=[None if predicted is None else _counts(table, predicted[k], case, k, metric) for k in classes],
        given_counts=[None if case.given is None else _counts(table, case.given[k], case, k, metric) for k in classes],
        group=case.group,
    )


def _displacement(masks: np.ndarray, case: Case, metric: str, region: str) -> np.ndarray:
    sides, length = measure(case.size, metric)
    return length * boundary_displacement(
        masks, case.label, region=region, metric=metric, spacing=sides, ignore=case.left_out
    )


def _counts(table: ShiftTable, mask: np.ndarray, case: Case, k: int, metric: str) -> ShiftCounts:
    label = case.label[k]
    ignored = None if case.left_out is None else case.left_out[k]
    box = box_around(mask | label, float(table.shifts[-1]), case.size)
    if box is None:
        return table.count(mask, None, label, ignored)
    part = mask[box]
    return table.count(part, distance(part, metric, case.size), label[box], None if ignored is None else ignored[box])
