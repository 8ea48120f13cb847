"""Relabelling: the best networks of a round predict the store's cases, and their labels are judged and corrected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.utils import MetaKeys

from monai_sc.correction import Fitted
from monai_sc.correction.cases import Size, in_voxels
from monai_sc.correction.class_fit import ClassFit
from monai_sc.correction.fitted import Fields
from monai_sc.correction.given import given_row, settle_rows, with_pending
from monai_sc.correction.label import Corrected
from monai_sc.correction.state import plain, read
from monai_sc.functional.checks import check_same_shape
from monai_sc.functional.threads import in_threads
from monai_sc.handlers.pairs import judge_fit, judge_pair, pair_moves
from monai_sc.handlers.progress import LOGGER
from monai_sc.handlers.run_options import RunOptions, in_unit
from monai_sc.handlers.training_data import fold_of
from monai_sc.parallel import gather, gather_items, own_part, unwrapped
from monai_sc.store.label_store import LabelStore
from monai_sc.transforms.file_grid import invert_to_file, unpadded_box

SAMPLE = 32  # training cases from which the offset of the given labels is learnt


def to_file_grid(store: LabelStore, loader: DataLoader, case: Mapping[str, Any], scores: torch.Tensor) -> torch.Tensor:
    """Bring scores from the grid of the relabel loader's images to that of the case's label files."""
    dataset: Any = loader.dataset
    result = invert_to_file(scores, case["image"], dataset.transform)
    if MetaKeys.ORIGINAL_AFFINE in case["image"].meta:
        store.check_grid(case["id"], result.shape[1:], case["image"].meta[MetaKeys.ORIGINAL_AFFINE])
    return result


class PredictedCase(NamedTuple):
    """What the corrected label of a case is made from, on the grid of its files."""

    case_id: str
    fitted: Fitted
    found: Fields
    given: np.ndarray
    trusted: np.ndarray | None
    size: Size
    group: str | None


class Relabelling:
    """What the best networks of a round say of the labels that they learnt from."""

    def __init__(
        self,
        engine: SupervisedTrainer,
        store: LabelStore,
        loader: DataLoader,
        options: RunOptions,
        folds: int,
        found: Sequence[Mapping[str, Any]],
    ) -> None:
        self.engine = engine
        self.store = store
        self.loader = loader
        self.options = options
        self.folds = folds
        self.found = [part for part in found if part["fold"] is not None] or list(found)
        self.voxel_mm = float(self.found[-1]["classes"][0]["voxel_mm"])
        # Of each training, each class as it was at its best.
        self.fitted: dict[int | None, Fitted] = {}
        for part in self.found:
            own = [Fitted.from_dict(chosen["fitted"]) for chosen in part["classes"]]
            self.fitted[part["fold"]] = replace(own[0], fits=tuple(one.fits[k] for k, one in enumerate(own)))

    def judge(self, record: dict[str, Any]) -> None:
        """Let some training cases say how their labels lie to the predictions, and what to do with them.

        Where cases of the store name a clean label too, these say it.
        """
        number = record["round"]
        dataset: Any = self.loader.dataset
        chosen = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLE, len(dataset))).round().astype(int))
        loader, positions = own_part(self.loader, chosen.tolist())
        pending = {fold: with_pending(fitted) for fold, fitted in self.fitted.items()}

        def prepared(case: Mapping[str, Any], logits: torch.Tensor, fold: int | None) -> tuple[Any, ...]:
            given = self.store.read(case["id"], number)
            found, predicted, size = self._fields(case, logits, pending[fold], given)
            return pending[fold], found, predicted, given, size, self.options.group(case)

        cases = (prepared(*found) for found in self._predictions(loader, f"Round {number}: training cases"))
        rows = gather_items(list(in_threads(lambda own: given_row(*own), cases)), positions)
        has_groups = self.options.group_key is not None
        self.fitted = {fold: settle_rows(own, rows, has_groups=has_groups) for fold, own in self.fitted.items()}
        if len(self.store.pairs) > 1 and not self.options.correction.as_asked:
            self._judge_pairs(number)
        for k, name in enumerate(self.options.class_names):
            self._judge_class(record, k, name)

    def write_round(self, record: dict[str, Any]) -> list[int]:
        """Write the corrected labels as the next round of the store, and return the changed voxels by class."""
        number, names = record["round"], self.options.class_names
        judged = [read(ClassFit, fit) for fit in record["fits"]]
        for fold, own in self.fitted.items():
            fits = tuple(as_judged(fit, done) for fit, done in zip(own.fits, judged, strict=True))
            self.fitted[fold] = replace(own, fits=fits)
        first = next(iter(self.fitted.values()))
        voxel = first.unit or 1.0
        changed, refused, checked = counts = np.zeros((3, len(names)), dtype=np.int64)
        size, to_check = 0, {}
        loader, _ = own_part(self.loader)
        with self.store.write_round(number + 1, self._done(record), previous=number) as writer:
            predicted = (
                self._prepared(*found, number) for found in self._predictions(loader, f"Round {number}: relabelling")
            )
            for one, found in in_threads(self._corrected, predicted):
                notes = {names[k]: note for k, note in found.to_check.items()}
                if notes:
                    to_check[one.case_id] = notes
                details = self._details(record, one.fitted, one.group)
                changed += writer.write(one.case_id, found.masks, **details, to_check=notes)
                size += found.masks[0].size
                refused += found.refused
                checked += [k in found.to_check for k in range(len(names))]
        counts[:] = np.sum(gather(counts), axis=0)
        record["to_check"] = {case: notes for part in gather(to_check) for case, notes in part.items()}
        size = sum(gather(size))
        for k, (name, fit) in enumerate(zip(names, first.fits, strict=True)):
            LOGGER.info(
                "Round %d, %s: %s; %d voxels changed (%.2f %% of the images).",
                *(number + 1, name, told_source(fit, voxel), changed[k], 100 * changed[k] / size),
            )
            if checked[k]:
                LOGGER.warning("Round %d, %s: %d cases to check, listed in the manifest.", number + 1, name, checked[k])
            if refused[k]:
                LOGGER.warning(
                    "Round %d, %s: %d objects were not shifted: less than half of them would be left.",
                    *(number + 1, name, refused[k]),
                )
        return [int(n) for n in changed]

    def _prepared(self, case: Mapping[str, Any], logits: torch.Tensor, fold: int | None, number: int) -> PredictedCase:
        """Return what the corrected label of a case is made from."""
        fitted, given = self.fitted[fold], self.store.read(case["id"], number)
        found, _, size = self._fields(case, logits, fitted, given)
        return PredictedCase(
            case["id"], fitted, found, given, self.store.read_trusted(case["id"]), size, self.options.group(case)
        )

    def _corrected(self, one: PredictedCase) -> tuple[PredictedCase, Corrected]:
        """Return a case with its corrected label."""
        found = one.fitted.label(one.found, one.given, size=one.size, group=one.group)
        if one.trusted is None:
            return one, found
        stays = one.given & one.trusted
        label = (found.masks & ~one.trusted) | stays
        if self.options.softmax:  # what is as it was given comes before what is corrected
            label = np.where(stays.any(axis=0), stays, label)
        return one, replace(found, masks=label)

    def _judge_pairs(self, number: int) -> None:
        """Let cases that have both labels say which correction of labels serves, each judged by the others."""
        ids = set(self.store.pairs)
        dataset: Any = self.loader.dataset
        places = [i for i, case in enumerate(dataset.data) if str(case["id"]) in ids]
        loader, positions = own_part(self.loader, places)
        first = next(iter(self.fitted.values()))
        moves = pair_moves(self.store, number, self.options, like=first, unit_mm=self.voxel_mm)
        rows = []
        for case, logits, fold in self._predictions(loader, f"Round {number}: cases with both labels"):
            own = self.fitted[fold]
            given, true = self.store.read(case["id"], number), np.asarray(self.store.read_clean(case["id"]))
            fields, _, size = self._fields(case, logits, own, given)
            judged = judge_pair(own, fields, given, true, size, self.options.group(case), moves.fitted.fits)
            rows.append((str(case["id"]), judged))
        found = dict(gather_items(rows, positions))
        ordered = [found[name] for name in self.store.pairs]
        for fold, own in self.fitted.items():
            both = enumerate(zip(own.fits, moves.fitted.fits, strict=True))
            fits = tuple(judge_fit(fit, move, k, ordered, moves.rows) for k, (fit, move) in both)
            self.fitted[fold] = replace(own, fits=fits)

    def _networks(self) -> tuple[list[torch.nn.Module], dict[tuple[int | None, int], int]]:
        """Return the networks that relabel, and which of them predicts each class for each fold that was left out."""
        weights: list[Mapping[str, torch.Tensor]] = []
        index = {}
        for part in self.found:
            for k, chosen in enumerate(part["classes"]):
                known = [i for i, own in enumerate(weights) if _same(own, chosen["network"])]
                if not known:
                    weights.append(chosen["network"])
                index[part["fold"], k] = known[0] if known else len(weights) - 1
        networks = []
        for own in weights:
            network = deepcopy(unwrapped(self.engine.network))
            network.load_state_dict(own)
            networks.append(network)
        return networks, index

    def _predictions(
        self, loader: torch.utils.data.DataLoader[Any], description: str
    ) -> Iterator[tuple[dict[str, Any], torch.Tensor, int | None]]:
        """Yield each case with its logits, each class from its own network, and the fold whose networks they are."""
        networks, index = self._networks()
        for case, outputs in self.options.predict(self.engine, loader, networks, description):
            fold = None if None in self.fitted else fold_of(self.store, case["id"], self.folds)
            if self.options.softmax:  # the channels of one softmax belong together
                logits = outputs[index[fold, 0]]
            else:
                logits = torch.stack([outputs[index[fold, k]][k] for k in range(len(self.options.class_names))])
            yield case, logits, fold

    def _judge_class(self, record: dict[str, Any], k: int, name: str) -> None:
        own, bias = record["correction"][name], record["bias"][k]
        if math.isnan(bias) or not record["learnt"][k]:
            for fold, fitted in self.fitted.items():
                if fitted.fits[k].source != "move":
                    fits = (*fitted.fits[:k], replace(fitted.fits[k], source="keep"), *fitted.fits[k + 1 :])
                    self.fitted[fold] = replace(fitted, fits=fits)
        first = next(iter(self.fitted.values()))
        fit, held_out = first.fits[k], own["held_out"]
        own.update(first.report()["classes"][name])
        own["held_out"] = own["held_out"] if fit.judged_labels.before else held_out
        agreement = fit.shape.agreement if fit.shape is not None else math.nan
        clean_dice = self.found[-1]["classes"][k]["dice"]
        record["agreement"][k] = agreement
        record["memorised"][k] = bool(agreement > clean_dice)
        record["kept"][k] = fit.source == "keep"
        record["sources"][k] = fit.source
        record["label_bias"][k] = fit.labels.mean * (first.unit or 1.0)
        record["fits"] = plain([asdict(own) for own in first.fits], nan=False)
        if record["memorised"][k] and not record["kept"][k]:
            LOGGER.info(
                "Round %d, %s: the network agrees with the labels that it learnt from (Dice %.3f) more than with "
                "the clean ones, corrected (%.3f): it has memorised them. Try more checks_per_round, or folds.",
                *(record["round"], name, agreement, clean_dice),
            )

    def _details(self, record: Mapping[str, Any], fitted: Fitted, group: str | None) -> dict[str, Any]:
        """Return how the labels of a case were made, for the manifest: lists with one entry per class."""
        return {
            "bias": [b if math.isfinite(b) else None for b in record["bias"]],
            "source": [fit.source for fit in fitted.fits],
            "representation": [fit.correction.representation for fit in fitted.fits],
            "gamma": [fit.correction.gamma for fit in fitted.fits],
            "shift": [own.shift_of(group) for own in fitted.corrections],
            "label_shift": [move.shift_of(group) for move in fitted.moves],
        }

    def _done(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the store keeps of how a round was made."""
        first = next(iter(self.fitted.values()))
        return {
            "bias": [b if math.isfinite(b) else None for b in record["bias"]],
            "shift": [c.shift for c in first.corrections],
            "label_shift": [move.shift for move in first.moves],
            "kept": list(record["kept"]),
            "sources": list(record["sources"]),
            "corrections": record["correction"],
            "folds": self.folds,
            "options": self.options.as_dict(),
        }

    def _fields(
        self,
        case: Mapping[str, Any],
        logits: torch.Tensor,
        fitted: Fitted,
        given: np.ndarray,
    ) -> tuple[Fields, np.ndarray, Size]:
        """Return a corrected prediction and the uncorrected masks on the grid of the label files, and a voxel there."""
        image = case["image"]
        spacing, voxel_mm = self.options.grid(image)
        box = unpadded_box(image)
        scanned: Any = (..., *box)
        form = fitted.options.format
        raw, own = form.raw(logits.numpy()), form.logits(logits.numpy())
        size = in_voxels(in_unit(spacing, voxel_mm, self.voxel_mm), fitted.unit, given.ndim - 1)
        fields = fitted.fields(own[scanned], size=size, group=self.options.group(case))
        # What was padded goes with the way back to the file; it gets the scores beside it, which leave no trace.
        widths = [(0, 0), *((part.start, n - part.stop) for part, n in zip(box, own.shape[1:], strict=True))]
        parts = [np.pad(fields.scores, widths, mode="edge"), own]
        if fields.suspect is not None:
            parts.append(np.pad(fields.suspect, widths, mode="edge"))
        if self.options.softmax:
            parts.append(raw)
        joint = torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))
        result = to_file_grid(self.store, self.loader, case, joint).numpy()
        check_same_shape(result[0], given[0], (f"The label made for case {case['id']!r}", "its label files"))
        count = len(own)
        suspect = result[2 * count : 3 * count] if fields.suspect is not None else None
        channels = result[-len(raw) :] if self.options.softmax else None
        predicted = form.predicted(result[count : 2 * count] if channels is None else channels)
        whole = self.options.file_spacing(image) or (1.0,) * (given.ndim - 1)
        file_size = in_voxels(in_unit(whole, voxel_mm, self.voxel_mm), fitted.unit, given.ndim - 1)
        return Fields(result[:count], suspect, channels, fields.refused), predicted, file_size


def as_judged(fit: ClassFit, judged: ClassFit) -> ClassFit:
    """Return what is done by a network that was trained without some cases, as it was judged for that with all."""
    own = fit if fit.pending is None else replace(fit, correction=fit.pending)
    if judged.correction.representation == "none" or own.correction.representation == "none":
        return judged
    return replace(judged, correction=own.correction, rule=own.rule)


def told_source(fit: ClassFit, voxel: float) -> str:
    """Return in words what is done with the labels of a class."""
    by = f"by {fit.move.shift * voxel:+.2f} voxels"
    network = f"the boundaries of the network, moved by {fit.correction.shift * voxel:+.2f} voxels"
    return {
        "keep": "labels stay",
        "move": f"labels moved {by}",
        "blend": f"{network}, with the shape of the labels",
        "predict": network,
    }[fit.source]


def _same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first is second or all(torch.equal(first[name], second[name]) for name in first)
