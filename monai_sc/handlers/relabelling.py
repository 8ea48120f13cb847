"""Relabelling: the best networks of a round predict the store's cases, and their labels are judged and corrected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.utils import MetaKeys

from monai_sc.correction import SpatialCorrector
from monai_sc.correction.shape import GivenLearner, GivenShape
from monai_sc.correction.state import plain
from monai_sc.data.label_store import LabelStore
from monai_sc.functional.checks import check_same_shape
from monai_sc.handlers.correction_options import CorrectionOptions, in_unit
from monai_sc.handlers.training_data import fold_of
from monai_sc.parallel import gather, gather_items, own_part, unwrapped
from monai_sc.transforms.file_grid import invert_to_file, unpadded_box

SAMPLE = 32  # training cases from which the offset of the given labels is learnt


def to_file_grid(store: LabelStore, loader: DataLoader, case: Mapping[str, Any], scores: torch.Tensor) -> torch.Tensor:
    """Bring scores from the grid of the relabel loader's images to that of the case's label files."""
    dataset: Any = loader.dataset
    result = invert_to_file(scores, case["image"], dataset.transform)
    if MetaKeys.ORIGINAL_AFFINE in case["image"].meta:
        store.check_grid(case["id"], result.shape[1:], case["image"].meta[MetaKeys.ORIGINAL_AFFINE])
    return result


class Relabelling:
    """What the best networks of a round say of the labels that they learnt from.

    Args:
        engine: of the training.
        store: with the cases.
        loader: of the store's cases.
        options: of the correction.
        folds: number of parts of the cases.
        found: by each training of the round, see :py:func:`~monai_sc.handlers.clean_check.nothing_found`. Where there
            are trainings without a fold, each case is predicted by the one that has not seen its label.
    """

    def __init__(
        self,
        engine: SupervisedTrainer,
        store: LabelStore,
        loader: DataLoader,
        options: CorrectionOptions,
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
        self.correctors = {part["fold"]: self._corrector(part["classes"]) for part in self.found}

    def judge(self, record: dict[str, Any]) -> None:
        """Compare predictions of some training cases with their labels: are those worse than the clean ones?

        Args:
            record: of the round; gets ``agreement``, ``memorised``, ``kept``, and what was learnt of the labels.
        """
        number = record["round"]
        dataset: Any = self.loader.dataset
        chosen = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLE, len(dataset))).round().astype(int))
        loader, positions = own_part(self.loader, chosen.tolist())
        learner = GivenLearner(next(iter(self.correctors.values())))
        for case, logits, corrector in self._predictions(loader, f"Round {number}: training cases"):
            own = corrector.logits(logits.numpy())
            given = self.store.read(case["id"], number)
            joint = self._on_file_grid(
                case, given, torch.from_numpy(np.concatenate([self._scores(case, own, corrector), own]))
            )
            scores, predicted = joint[: len(given)], joint[len(given) :] > 0
            learner.add_scores(scores, predicted, given, self._file_spacing(case["image"]))
        learner.offsets = gather_items(learner.offsets, positions)
        learner.agreement = gather_items(learner.agreement, positions)
        for k, (name, shape) in enumerate(zip(self.options.class_names, learner.shapes(), strict=True)):
            self._judge_class(record, k, name, shape)

    def write_round(self, record: Mapping[str, Any]) -> list[int]:
        """Write the corrected labels as the next round of the store, and return the changed voxels by class.

        Args:
            record: of the round, whose labels have been judged.
        """
        number, kept, names = record["round"], np.array(record["kept"]), self.options.class_names
        shifts = [
            self.options.corrector(chosen["voxel_mm"], chosen["corrector"]).corrections[k].shift
            for k, chosen in enumerate(self.found[-1]["classes"])
        ]
        learnt = [record["correction"][name]["given_labels"] for name in names]
        for corrector in self.correctors.values():
            corrector.shapes = [None if shape is None else GivenShape.from_dict(shape) for shape in learnt]
            corrector.refused = [0] * len(names)
        changed, emptied, refused = counts = np.zeros((3, len(names)), dtype=np.int64)
        size = 0
        loader, _ = own_part(self.loader)
        with self.store.write_round(number + 1, self._done(record, shifts), previous=number) as writer:
            for case, logits, corrector in self._predictions(loader, f"Round {number}: relabelling"):
                given = self.store.read(case["id"], number)
                label = self._label(case, logits, corrector, given)
                axes = tuple(range(1, label.ndim))
                ruled = np.array([rule is not None for rule in corrector.rules])
                gone = given.any(axis=axes) & ~label.any(axis=axes) & ~kept & ~ruled
                emptied += gone
                restored = np.zeros_like(label)
                restored[kept | gone] = given[kept | gone]
                label[kept | gone] = False
                trusted = self.store.read_trusted(case["id"])
                if trusted is not None:
                    restored |= given & trusted
                    label &= ~trusted
                if self.options.softmax:  # what is as it was given comes before what is corrected
                    label &= ~restored.any(axis=0)
                label |= restored
                changed += writer.write(case["id"], label, **self._details(record, corrector, case))
                size += label[0].size
                refused += corrector.refused
                corrector.refused = [0] * len(names)
        counts[:] = np.sum(gather(counts), axis=0)
        size = sum(gather(size))
        logger = self.engine.logger
        for k, name in enumerate(names):
            logger.info(
                "Round %d, %s: shifted by %+.2f voxels, %d voxels changed (%.2f %% of the images).",
                *(number + 1, name, shifts[k], changed[k], 100 * changed[k] / size),
            )
            if emptied[k]:
                logger.warning(
                    "Round %d, %s: in %d cases nothing of it is left; they keep their labels of this class.",
                    *(number + 1, name, emptied[k]),
                )
            if refused[k]:
                logger.warning(
                    "Round %d, %s: in %d cases the shift would leave too little of it; it was not shifted there.",
                    *(number + 1, name, refused[k]),
                )
        return [int(n) for n in changed]

    def _corrector(self, classes: Sequence[Mapping[str, Any]]) -> SpatialCorrector:
        """Return the corrector of one training, each class as it was at its best."""
        first, *others = (self.options.corrector(chosen["voxel_mm"], chosen["corrector"]) for chosen in classes)
        for k, other in enumerate(others, start=1):
            first.take_class(k, other)
        return first

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
    ) -> Iterator[tuple[dict[str, Any], torch.Tensor, SpatialCorrector]]:
        """Yield each case with its logits, each class from its own network, and with its corrector."""
        networks, index = self._networks()
        for case, outputs in self.options.predict(self.engine, loader, networks, description):
            fold = None if None in self.correctors else fold_of(self.store, case["id"], self.folds)
            if self.options.softmax:  # the channels of one softmax belong together
                logits = outputs[index[fold, 0]]
            else:
                logits = torch.stack([outputs[index[fold, k]][k] for k in range(len(self.options.class_names))])
            yield case, logits, self.correctors[fold]

    def _judge_class(self, record: dict[str, Any], k: int, name: str, shape: GivenShape) -> None:
        own, bias = record["correction"][name], record["bias"][k]
        clean_dice = self.found[-1]["classes"][k]["dice"]
        fits = own["correction"]["representation"] == "none" and shape.agreement >= clean_dice
        own["given_labels"] = plain(shape.as_dict(), nan=False)
        record["agreement"][k] = shape.agreement
        record["memorised"][k] = bool(shape.agreement > clean_dice)
        record["kept"][k] = bool(
            math.isnan(bias)
            or not record["learnt"][k]
            or (self.options.representation == "auto" and fits)
            or (self.options.keep_converged and abs(bias) < 1)
        )
        if record["memorised"][k] and not record["kept"][k]:
            self.engine.logger.info(
                "Round %d, %s: the network agrees with the labels that it learnt from (Dice %.3f) more than with "
                "the clean ones, corrected (%.3f): it knows them by heart. More checks_per_round, or folds, help "
                "where they are wrong in ways that the image does not show.",
                *(record["round"], name, shape.agreement, clean_dice),
            )

    def _details(
        self, record: Mapping[str, Any], corrector: SpatialCorrector, case: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return how the labels of a case were made, for the manifest: lists with one entry per class."""
        group = self.options.group(case)
        return {
            "bias": [b if math.isfinite(b) else None for b in record["bias"]],
            "representation": [own.representation for own in corrector.corrections],
            "gamma": [own.gamma for own in corrector.corrections],
            "shift": [corrector.shift(k, group) for k in range(len(corrector.class_names))],
        }

    def _done(self, record: Mapping[str, Any], shifts: Sequence[float]) -> dict[str, Any]:
        """Return what the store keeps of how a round was made."""
        return {
            "bias": [b if math.isfinite(b) else None for b in record["bias"]],
            "shift": list(shifts),
            "kept": list(record["kept"]),
            "representation": self.options.representation,
            "corrections": record["correction"],
            "shape_weight": self.options.shape_weight,
            "folds": self.folds,
            "gamma": self.options.gamma,
            "metric": self.options.metric,
            "region": self.options.region,
        }

    def _scores(self, case: Mapping[str, Any], logits: np.ndarray, corrector: SpatialCorrector) -> np.ndarray:
        spacing, voxel_mm = self.options.grid(case["image"])
        spacing = in_unit(spacing, voxel_mm, self.voxel_mm)
        box = unpadded_box(case["image"])
        scanned: Any = (..., *box)
        scores = corrector.scores_of_logits(logits[scanned], spacing=spacing, group=self.options.group(case))
        # What was padded goes with the way back to the file; it gets the scores beside it, which leave no trace.
        widths = [(part.start, size - part.stop) for part, size in zip(box, logits.shape[1:], strict=True)]
        return np.pad(scores, [(0, 0), *widths], mode="edge")

    def _file_spacing(self, image: torch.Tensor) -> tuple[float, ...]:
        spacing = self.options.file_spacing(image) or (1.0,) * (image.ndim - 1)
        return in_unit(spacing, self.options.grid(image)[1], self.voxel_mm)

    def _on_file_grid(self, case: Mapping[str, Any], given: np.ndarray, scores: torch.Tensor) -> np.ndarray:
        result = to_file_grid(self.store, self.loader, case, scores).numpy()
        check_same_shape(result[0], given[0], (f"The label made for case {case['id']!r}", "its label files"))
        return result

    def _label(
        self, case: Mapping[str, Any], logits: torch.Tensor, corrector: SpatialCorrector, given: np.ndarray
    ) -> np.ndarray:
        """Return the corrected masks of a case on the grid of its label files."""
        scores = torch.from_numpy(self._scores(case, corrector.logits(logits.numpy()), corrector))
        softmax = self.options.softmax
        joint = self._on_file_grid(case, given, torch.cat([scores, logits]) if softmax else scores)
        return corrector.label_of_scores(
            joint[: len(given)],
            logits=joint[len(given) :] if softmax else None,
            given=given,
            spacing=self._file_spacing(case["image"]),
        )


def _same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first is second or all(torch.equal(first[name], second[name]) for name in first)
