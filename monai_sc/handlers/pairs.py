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

from monai_sc.correction import SpatialCorrector
from monai_sc.correction.cases import Cases, Size, in_voxels, unit_of
from monai_sc.correction.corrector import Fields
from monai_sc.correction.fitting import ClassFit, fit_classes, judge_labels
from monai_sc.files.cases import LazyCases, files_of
from monai_sc.files.grids import mm_per_unit_of
from monai_sc.functional.masks import dice
from monai_sc.handlers.correction_options import CorrectionOptions, in_unit
from monai_sc.parallel import gather, rank, world_size
from monai_sc.store.label_store import LabelStore
from monai_sc.transforms.distance import voxel_size


@dataclass(frozen=True)
class PairMoves:
    """What the pairs of a store say of its labels, without a network.

    Attributes:
        corrector: fitted on the pairs.
        rows: of each pair, what the others make of it.
        unit_mm: the voxel in mm in which lengths are told, ``nan`` where it is not known.
    """

    corrector: SpatialCorrector
    rows: Sequence[Mapping[str, Any]]
    unit_mm: float

    @property
    def fits(self) -> list[ClassFit]:
        """One per class."""
        return self.corrector.fits


def pair_moves(
    store: LabelStore,
    number: int,
    options: CorrectionOptions,
    *,
    like: SpatialCorrector | None = None,
    unit_mm: float = math.nan,
) -> PairMoves:
    """Return what the pairs of a store say of the labels of a round.

    Args:
        store: with two pairs at least.
        number: of the round.
        options: of the correction.
        like: a corrector whose unit is taken.
        unit_mm: the voxel in mm in which ``like`` tells lengths; without it the mean voxel of the pairs.

    Raises:
        ValueError: when ``max_shift_mm`` is asked for, and nothing says how large a voxel is.
    """
    names = store.pairs
    if like is None:
        unit_mm = float(np.mean([file_voxel(store, name, options)[1] for name in names]))
    if options.max_shift_mm is not None and math.isnan(unit_mm):
        raise ValueError("max_shift_mm needs the size of a voxel, which the files do not say; give voxel_mm.")
    corrector = SpatialCorrector(
        store.class_names,
        presence=False,
        metric=options.metric,
        region=options.region,
        max_shift=None if options.max_shift_mm is None else options.max_shift_mm / unit_mm,
    )
    groups = [options.group(store.case(name)) for name in names] if _have_groups(store, options) else None
    cases = Cases(
        corrector.format,
        None,
        LazyCases(lambda name: np.asarray(store.read_clean(name), dtype=np.uint8), names),
        given=LazyCases(lambda name: store.read(name, number).astype(np.uint8), names),
        spacing=[in_unit(*file_voxel(store, name, options), unit_mm) for name in names],
        groups=groups,
    )
    corrector.unit = cases.unit = unit_of(cases.sizes()) if like is None else like.unit
    corrector.fits, corrector.num_clean, rows = fit_classes(corrector, cases, list)
    return PairMoves(corrector, rows, unit_mm)


def move_labels(store: LabelStore, options: CorrectionOptions, logger: Logger) -> bool:
    """Write the given labels, moved by the bias that the pairs of a store show, as round 1, if held-out pairs gain.

    Returns:
        Whether it was written.
    """
    moves = pair_moves(store, 0, options)
    corrector, names = moves.corrector, store.class_names
    voxel = corrector.unit or 1.0
    for name, fit in zip(names, moves.fits, strict=True):
        held_out = fit.judged_labels.summary()
        logger.info(
            "%s: bias of the labels %+.2f voxels, %s, from %d cases with both labels; %s.",
            *(name, fit.labels.mean * voxel, fit.labels.verdict, fit.num_pairs),
            f"moved by {fit.move.shift * voxel:+.2f} voxels, Dice on held-out cases {held_out['before']:.3f} as given, "
            f"{held_out['after']:.3f} moved"
            if fit.source == "move"
            else f"labels stay: {fit.judged_labels.note}",
        )
    sources = [fit.source for fit in moves.fits]
    if "move" not in sources:
        return False
    grouped, to_check = _have_groups(store, options), 0
    with store.write_round(1, moved_record(moves, options)) as writer:
        for case in store.cases[rank() :: world_size()]:
            name = str(case["id"])
            given = store.read(name, 0)
            size = in_voxels(in_unit(*file_voxel(store, name, options), moves.unit_mm), corrector.unit, given.ndim - 1)
            group = options.group(case) if grouped else None
            found = corrector.corrected(None, given, size=size, group=group)
            label = found.masks
            trusted = store.read_trusted(name)
            if trusted is not None:
                label = np.where(trusted, given, label)
            if store.values is not None:
                label = exclusive_masks(label, given)
            notes = {names[k]: note for k, note in found.to_check.items()}
            to_check += bool(notes)
            shifts = [move.shift_of(group) for move in corrector.moves]
            writer.write(name, label, source=sources, label_shift=shifts, to_check=notes)
    to_check = sum(gather(to_check))
    if to_check:
        logger.warning("Round 1: %d cases to check, listed in the manifest.", to_check)
    return True


def moved_record(moves: PairMoves, options: CorrectionOptions) -> dict[str, Any]:
    """Return what the store keeps of a round of moved labels."""
    return {
        "moved": True,
        "label_bias": moves.corrector.report()["classes"],
        "label_shift": [move.shift for move in moves.corrector.moves],
        "kept": [fit.source == "keep" for fit in moves.fits],
        "sources": [fit.source for fit in moves.fits],
        "options": options.as_dict(),
    }


def is_moved(store: LabelStore, options: CorrectionOptions) -> bool:
    """Say whether all that a store holds is a round 1 that :py:func:`move_labels` has written with these options."""
    if store.rounds != [0, 1]:
        return False
    record = store.record(1)
    return bool(record.get("moved")) and record.get("options") == options.as_dict()


def _have_groups(store: LabelStore, options: CorrectionOptions) -> bool:
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


def file_voxel(store: LabelStore, case_id: str, options: CorrectionOptions) -> tuple[tuple[float, ...], float]:
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
    sides = (1.0,) * len(size) if options.metric == "taxicab" else tuple(side / smallest for side in size)
    return sides, smallest if options.voxel_mm is None else known


def judge_pair(
    corrector: SpatialCorrector,
    fields: Fields,
    given: np.ndarray,
    true: np.ndarray,
    size: Size,
    group: Hashable,
    moves: Sequence[ClassFit],
) -> dict[str, Any]:
    """Return the Dice by class of what a network makes of a pair, and how its labels differ from the given ones.

    Args:
        corrector: that has not seen the pair.
        fields: of its prediction, on the grid of the files.
        given: booleans ``(classes, *spatial)``.
        true: the same, clean.
        size: of a voxel.
        group: of the case.
        moves: how the pairs say that given labels are moved.
    """
    fits = [replace(fit, move=move.move) for fit, move in zip(corrector.fits, moves, strict=True)]
    moved = corrector.corrected(None, given, size=size, group=group, fits=fits, source="move").masks
    found: dict[str, Any] = {"keep": dice(given, true)}
    for source in ("blend", "predict"):
        label = corrector.corrected(fields, given, size=size, group=group, fits=fits, source=source).masks
        found[source] = dice(label, true)
        found[f"{source} from keep"] = 1 - dice(label, given)
        found[f"{source} from move"] = 1 - dice(label, moved)
    return found


def judge_fit(
    fit: ClassFit, move: ClassFit, k: int, rows: Sequence[Mapping[str, Any]], moved: Sequence[Mapping[str, Any]]
) -> ClassFit:
    """Return the fit of a class whose labels the pairs have judged.

    Args:
        fit: of the class, by clean cases of a network.
        move: of the class, by the pairs.
        k: index of the class.
        rows: of :py:func:`judge_pair`, in the order of the pairs.
        moved: what the other pairs make of each, of :py:class:`PairMoves`.
    """
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
