"""Cases of a store that have both labels: they say how far the labels are off, and judge what is made of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import Logger
from typing import Any

import numpy as np
from monai.data import MetaTensor
from monai.utils import MetaKeys

from monai_sc.correction import Fitted
from monai_sc.correction.cases import Cases, Size, in_voxels, unit_of
from monai_sc.correction.class_fit import ClassFit, judge_labels
from monai_sc.correction.fitted import Fields
from monai_sc.correction.fitting import fit_cases
from monai_sc.files.cases import LazyCases, files_of
from monai_sc.files.grids import mm_per_unit_of
from monai_sc.functional.masks import dice
from monai_sc.handlers.run_options import RunOptions, in_unit
from monai_sc.parallel import gather, rank, world_size
from monai_sc.store.label_store import LabelStore
from monai_sc.transforms.distance import voxel_size


@dataclass(frozen=True)
class PairMoves:
    """What the pairs of a store say of its labels, without a network.

    Attributes:
        fitted: on the pairs.
        rows: of each pair, what the others make of it.
        unit_mm: the voxel in mm in which lengths are told, ``nan`` where it is not known.
    """

    fitted: Fitted
    rows: Sequence[Mapping[str, Any]]
    unit_mm: float


def pair_moves(
    store: LabelStore,
    number: int,
    options: RunOptions,
    *,
    like: Fitted | None = None,
    unit_mm: float = math.nan,
) -> PairMoves:
    """Return what the pairs of a store say of the labels of a round.

    Raises:
        ValueError: when ``max_shift`` is asked for, and nothing says how large a voxel is.
    """
    names = store.pairs
    if like is None:
        unit_mm = float(np.mean([file_voxel(store, name, options)[1] for name in names]))
    masks = {"output": "sigmoid", "representation": "auto", "presence": False}
    correction = replace(options.in_voxels(unit_mm), **masks)  # type: ignore[arg-type]
    groups = [options.group(store.case(name)) for name in names] if _have_groups(store, options) else None
    cases = Cases(
        correction.format,
        None,
        LazyCases(lambda name: np.asarray(store.read_clean(name), dtype=np.uint8), names),
        given=LazyCases(lambda name: store.read(name, number).astype(np.uint8), names),
        spacing=[in_unit(*file_voxel(store, name, options), unit_mm) for name in names],
        groups=groups,
    )
    cases.unit = unit_of(cases.sizes()) if like is None else like.unit
    return PairMoves(*fit_cases(correction, cases, list), unit_mm)


def move_labels(store: LabelStore, options: RunOptions, logger: Logger) -> bool:
    """Write the given labels, moved by the bias that the pairs of a store show, as round 1, if held-out pairs gain.

    Returns:
        Whether it was written.
    """
    moves = pair_moves(store, 0, options)
    fitted, names = moves.fitted, store.class_names
    voxel = fitted.unit or 1.0
    for name, fit in zip(names, fitted.fits, strict=True):
        held_out = fit.judged_labels.summary()
        logger.info(
            "%s: bias of the labels %+.2f voxels, %s, from %d cases with both labels; %s.",
            *(name, fit.labels.mean * voxel, fit.labels.verdict, fit.num_pairs),
            f"moved by {fit.move.shift * voxel:+.2f} voxels, Dice on held-out cases {held_out['before']:.3f} as given, "
            f"{held_out['after']:.3f} moved"
            if fit.source == "move"
            else f"labels stay: {fit.judged_labels.note}",
        )
    sources = [fit.source for fit in fitted.fits]
    if "move" not in sources:
        return False
    grouped, to_check = _have_groups(store, options), 0
    with store.write_round(1, moved_record(moves, options)) as writer:
        for case in store.cases[rank() :: world_size()]:
            name = str(case["id"])
            given = store.read(name, 0)
            size = in_voxels(in_unit(*file_voxel(store, name, options), moves.unit_mm), fitted.unit, given.ndim - 1)
            group = options.group(case) if grouped else None
            found = fitted.label(None, given, size=size, group=group)
            label = found.masks
            trusted = store.read_trusted(name)
            if trusted is not None:
                label = np.where(trusted, given, label)
            if store.values is not None:
                label = exclusive_masks(label, given)
            notes = {names[k]: note for k, note in found.to_check.items()}
            to_check += bool(notes)
            shifts = [move.shift_of(group) for move in fitted.moves]
            writer.write(name, label, source=sources, label_shift=shifts, to_check=notes)
    to_check = sum(gather(to_check))
    if to_check:
        logger.warning("Round 1: %d cases to check, listed in the manifest.", to_check)
    return True


def moved_record(moves: PairMoves, options: RunOptions) -> dict[str, Any]:
    """Return what the store keeps of a round of moved labels."""
    return {
        "moved": True,
        "label_bias": moves.fitted.report()["classes"],
        "label_shift": [move.shift for move in moves.fitted.moves],
        "kept": [fit.source == "keep" for fit in moves.fitted.fits],
        "sources": [fit.source for fit in moves.fitted.fits],
        "options": options.as_dict(),
    }


def is_moved(store: LabelStore, options: RunOptions) -> bool:
    """Say whether all that a store holds is a round 1 that :py:func:`move_labels` has written with these options."""
    if store.rounds != [0, 1]:
        return False
    record = store.record(1)
    return bool(record.get("moved")) and record.get("options") == options.as_dict()


def _have_groups(store: LabelStore, options: RunOptions) -> bool:
    return options.group_key is not None and all(options.group_key in case for case in store.cases)


def exclusive_masks(label: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return moved masks ``(classes, *spatial)`` of a label map without overlaps.

    What a class held, it keeps before another gets it; else the first one that claims a voxel has it.
    """
    kept = label & given
    taken = kept.any(axis=0)
    result = kept.copy()
    for k, mask in enumerate(label):
        own = mask & ~taken
        result[k] |= own
        taken |= own
    return np.asarray(result)


def file_voxel(store: LabelStore, case_id: str, options: RunOptions) -> tuple[tuple[float, ...], float]:
    """Return the size of a voxel of a case's label files in voxels of its smallest side, and that side in mm."""
    case = store.case(case_id)
    label = store.load(files_of(case), case)
    affine = label.meta.get(MetaKeys.ORIGINAL_AFFINE) if isinstance(label, MetaTensor) else None
    known = math.nan if options.voxel_mm is None else options.voxel_mm
    if affine is None:
        return (1.0,) * (label.ndim - 1), known
    length = mm_per_unit_of(label.meta)
    size = tuple(side * length for side in voxel_size(np.asarray(affine), label.ndim - 1))
    smallest = min(size)
    sides = (1.0,) * len(size) if options.correction.metric == "taxicab" else tuple(side / smallest for side in size)
    return sides, smallest if options.voxel_mm is None else known


def judge_pair(
    fitted: Fitted,
    found: Fields,
    given: np.ndarray,
    true: np.ndarray,
    size: Size,
    group: Hashable,
    moves: Sequence[ClassFit],
) -> dict[str, Any]:
    """Return the Dice by class of what a network makes of a pair, and how its labels differ from the given ones.

    Args:
        fitted: that has not seen the pair.
        found: of its prediction, on the grid of the files.
        given: booleans ``(classes, *spatial)``.
        true: the same, clean.
        size: of a voxel.
        group: of the case.
        moves: how the pairs say that given labels are moved.
    """
    fits = (replace(fit, move=move.move) for fit, move in zip(fitted.fits, moves, strict=True))
    fitted = replace(fitted, fits=tuple(fits))
    moved = fitted.label(None, given, size=size, group=group, source="move").masks
    scores: dict[str, Any] = {"keep": dice(given, true)}
    for source in ("blend", "predict"):
        label = fitted.label(found, given, size=size, group=group, source=source).masks
        scores[source] = dice(label, true)
        scores[f"{source} from keep"] = 1 - dice(label, given)
        scores[f"{source} from move"] = 1 - dice(label, moved)
    return scores


def judge_fit(
    fit: ClassFit, move: ClassFit, k: int, rows: Sequence[Mapping[str, Any]], moved: Sequence[Mapping[str, Any]]
) -> ClassFit:
    """Return the fit of a class whose labels the pairs have judged."""
    fit = replace(fit, move=move.move, labels=move.labels, num_pairs=move.num_pairs)
    scores = {"move": np.array([row["move"][k] for row in moved])}
    scores |= {name: np.array([row[name][k] for row in rows]) for name in ("blend", "predict")}
    differs = {
        (name, other): np.array([row[f"{name} from {other}"][k] for row in rows])
        for name in ("blend", "predict")
        for other in ("keep", "move")
    }
    keep = np.array([row["keep"][k] for row in rows])
    return judge_labels(fit, keep, scores, differs, np.array([row["displacement"][k] for row in moved]))
