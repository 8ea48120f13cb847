"""Confident learning: which voxels of a data set are labelled wrongly, in the view of out-of-sample predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from monai.config import NdarrayOrTensor
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer

from monai_sc.benchmark.methods.distributions import log_distributions
from monai_sc.functional.checks import OUTPUTS, as_array, check_choice, check_same_shape
from monai_sc.handlers.prediction import predict
from monai_sc.handlers.progress import LOGGER
from monai_sc.handlers.relabelling import to_file_grid
from monai_sc.handlers.store_run import StoreRun
from monai_sc.handlers.training_data import fold_of
from monai_sc.parallel import broadcast_state, gather, own_part, unwrapped
from monai_sc.store.label_store import LabelStore

PRUNE = ("both", "class", "noise_rate")

ROUNDING = 1e-6  # by which a probability may be under a threshold that is a mean of probabilities like it
UNIT = 2**30  # probabilities are summed in whole units of its inverse: no order of the voxels changes a sum
RANGE, PER_LOGIT = 32, 256  # the bins of scores, which are logits
BINS = 2 * RANGE * PER_LOGIT
TINY = float(np.finfo(np.float32).tiny)


class ConfidentLearning:
    r"""Estimate how often which class is labelled as which, and flag the voxels where that has most likely happened.

    The data are read in three passes, one case in memory at a time, in any order and any parts:

    1. :py:meth:`add`: the threshold of class :math:`j` is the mean probability :math:`p_j` of the voxels labelled
       :math:`j`.
    2. :py:meth:`add_confident`: :math:`C_{ab}` counts the voxels labelled :math:`a` for which :math:`b` has the largest
       :math:`p` of all classes that reach their threshold. Its rows are scaled to the number :math:`n_a` of voxels
       labelled :math:`a`: :math:`N_{ab} = n_a C_{ab} / \sum_c C_{ac}` of them are expected to be :math:`b`.
    3. :py:meth:`flagged`: of the voxels labelled :math:`a`, by ``"class"`` the :math:`\sum_{b \ne a} N_{ab}` with the
       lowest :math:`p_a`; by ``"noise_rate"``, for each :math:`b \ne a`, the :math:`N_{ab}` with the largest
       :math:`p_b - p_a`; by ``"both"`` those that are in both. A voxel whose label has its largest probability is not
       flagged.

    (Northcutt et al. 2021, eq. 1 to 3 and "prune by class", "by noise rate" and "C+NR"; Zhang et al. 2020 for
    segmentation. The last rule of 3. is that of the library cleanlab. It takes all voxels at once, and where two
    classes reach their thresholds it counts the most probable class even if that does not reach its own.)

    The cuts of the third pass are read off histograms with bins of 1/256 of a logit, from -32 to 32: at most 1/1024 of
    a probability. Voxels that share the bin of the last one that is flagged are flagged with it. All else is exact. The
    memory is 128 KiB for each group and pair of classes, besides one case.

    Args:
        num_groups: of exclusive classes: 1 for a softmax, the number of channels for a sigmoid.
        num_classes: of each group, with the background: the number of channels for a softmax, 2 for a sigmoid.
        prune: ``"both"``, ``"class"`` or ``"noise_rate"``.

    Raises:
        ValueError: when an option is out of range, or arrays do not fit it or each other.

    Example:
        >>> import numpy as np
        >>> foreground = np.array([0.9, 0.8, 0.1, 0.2, 0.1, 0.7])
        >>> probabilities, label = np.stack([1 - foreground, foreground])[None], np.array([[1, 1, 1, 0, 0, 0]])
        >>> confident = ConfidentLearning(1, 2)
        >>> confident.add(probabilities, label)
        >>> confident.thresholds.round(2).tolist()
        [[0.67, 0.6]]
        >>> confident.add_confident(probabilities, label)
        >>> confident.expected.tolist()
        [[[2.0, 1.0], [1.0, 2.0]]]
        >>> confident.flagged(probabilities, label).tolist()
        [[False, False, True, False, False, True]]
    """

    def __init__(self, num_groups: int, num_classes: int, *, prune: str = "both") -> None:
        if num_groups < 1 or num_classes < 2:
            raise ValueError(
                f"num_groups must be at least 1, and num_classes at least 2 with the background, got {num_groups} and "
                f"{num_classes}."
            )
        self.shape = (num_groups, num_classes)
        self.prune = check_choice(prune, PRUNE, "prune")
        self.label_counts = np.zeros(self.shape, dtype=np.int64)
        self.confident_counts = np.zeros((*self.shape, num_classes), dtype=np.int64)
        self._sums = np.zeros(self.shape, dtype=np.int64)
        # Of each label a: on the diagonal of p_a, else of the margin p_b - p_a.
        self._scores = np.zeros((*self.shape, num_classes, BINS), dtype=np.int64)

    def add(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> None:
        """Count a case in the first pass.

        Args:
            probabilities: ``(groups, classes, *spatial)``, in [0, 1]. They must come from a network that has not been
                trained on this label.
            label: the given one, ``(groups, *spatial)``, class numbers from 0.
        """
        for g, a, own in self._by_label(probabilities, label):
            self.label_counts[g, a] += own.shape[1]
            self._sums[g, a] += np.rint(own[a] * UNIT).astype(np.int64).sum()
            for b in range(self.shape[1]):
                self._scores[g, a, b] += np.bincount(_bins(own, a, b), minlength=BINS)

    def add_confident(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> None:
        """Count a case in the second pass, which comes when the first is over."""
        thresholds = self.thresholds
        for g, a, own in self._by_label(probabilities, label):
            confident = own >= thresholds[g][:, None] - ROUNDING
            best = np.where(confident, own, -1).argmax(axis=0)[confident.any(axis=0)]
            self.confident_counts[g, a] += np.bincount(best, minlength=self.shape[1])

    def share(self, gather: Callable[[Any], list[Any]], *, confident: bool) -> None:
        """Make the counts of a pass those of all processes, each of which has counted some of the cases.

        Args:
            gather: returns what all processes give it.
            confident: of the second pass; else of the first.
        """
        for name in ("confident_counts",) if confident else ("label_counts", "_sums", "_scores"):
            setattr(self, name, np.sum(gather(getattr(self, name)), axis=0))

    @property
    def thresholds(self) -> np.ndarray:
        """The thresholds ``(groups, classes)``; infinite for a class that no voxel is labelled as."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = self._sums / UNIT / self.label_counts
        return np.asarray(np.where(self.label_counts > 0, means, np.inf))

    @property
    def expected(self) -> np.ndarray:
        """How many voxels labelled ``a`` are expected to be ``b``: ``(groups, a, b)``."""
        rows = np.maximum(self.confident_counts.sum(axis=2, keepdims=True), 1)  # 0 for a class without a label only
        return np.asarray(self.confident_counts / rows * self.label_counts[..., None])

    @property
    def joint(self) -> np.ndarray:
        """The joint distribution of given and true class ``(groups, a, b)``, which sums to 1 in each group."""
        return np.asarray(self.expected / np.maximum(self.label_counts.sum(axis=1), 1)[:, None, None])

    def flagged(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> np.ndarray:
        """Return which voxels of a case are flagged ``(groups, *spatial)``, in the third pass.

        Args:
            probabilities: as in the other passes.
            label: as in the other passes.
        """
        labels = as_array(label)
        flagged = np.zeros(labels.shape, dtype=bool)
        cuts = self._cuts()
        for g, a, own in self._by_label(probabilities, label):
            others = [b for b in range(self.shape[1]) if b != a]
            by_class = _bins(own, a, a) >= cuts[g, a, a]
            by_rate = np.any([_bins(own, a, b) >= cuts[g, a, b] for b in others], axis=0)
            chosen = {"both": by_class & by_rate, "class": by_class, "noise_rate": by_rate}[self.prune]
            flagged[g, labels[g] == a] = chosen & (own.argmax(axis=0) != a)
        return flagged

    def _cuts(self) -> np.ndarray:
        """Return the lowest bin that is flagged, of each histogram."""
        expected = np.rint(self.expected).astype(np.int64)
        cuts = np.full(expected.shape, BINS)
        for g, a, b in np.ndindex(expected.shape):
            wanted = self.label_counts[g, a] - expected[g, a, a] if a == b else expected[g, a, b]
            if wanted > 0:
                from_top = np.cumsum(self._scores[g, a, b, ::-1])
                cuts[g, a, b] = BINS - 1 - np.searchsorted(from_top, wanted)
        return cuts

    def _by_label(
        self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield group, class, and the float64 probabilities ``(classes, voxels)`` of the voxels labelled as it."""
        p, y = as_array(probabilities), as_array(label)
        if p.shape[:2] != self.shape or y.shape != (p.shape[0], *p.shape[2:]):
            raise ValueError(
                "probabilities and label must have the shapes (groups, classes, *spatial) and (groups, *spatial) with "
                f"{self.shape[0]} groups and {self.shape[1]} classes, got {p.shape} and {y.shape}."
            )
        if not ((p >= 0) & (p <= 1 + ROUNDING)).all():
            raise ValueError("probabilities must be in [0, 1], got others; apply a sigmoid or softmax to logits first.")
        if not np.isin(y, np.arange(self.shape[1])).all():
            raise ValueError(
                f"label must hold class numbers from 0 to {self.shape[1] - 1} only, got {np.unique(y)[[0, -1]]}."
            )
        for g, a in np.ndindex(self.shape):
            own = p[g][:, y[g] == a].astype(np.float64)
            if own.shape[1]:
                yield g, a, own


def _bins(p: np.ndarray, a: int, b: int) -> np.ndarray:
    r"""Return the bin of each voxel labelled ``a``, the higher the more it speaks for ``b``, or against ``a`` alone.

    The score is :math:`-\mathrm{logit}\,p_a` if ``b`` is ``a``, else :math:`\log (1 + m) / (1 - m)` of the margin
    :math:`m = p_b - p_a`, which is the same for two classes. Neither takes a difference from 1, so that probabilities
    near 0 and 1 stay apart.
    """
    without_a = np.delete(p, a, axis=0).sum(axis=0)
    if b == a:
        above, below = without_a, p[a]
    else:
        above, below = without_a + p[b], np.delete(p, b, axis=0).sum(axis=0) + p[a]
    scores = np.log(np.maximum(above, TINY)) - np.log(np.maximum(below, TINY))
    return np.asarray(np.clip((scores + RANGE) * PER_LOGIT, 0, BINS - 1).astype(np.int64))


class ConfidentLearningHandler(StoreRun):
    """Flip the labels of a MONAI ``SupervisedTrainer`` that confident learning takes for wrong, and train again.

    One network per fold is trained without the cases of that fold, ``epochs_per_round`` epochs each, and predicts them.
    :py:class:`~monai_sc.benchmark.methods.ConfidentLearning` then flags voxels, pooled over all cases; each gets the
    class that is predicted for it, and the result is written to the label store as round 1, on the grid of the case's
    label files. Network, optimizer and schedule return to what they were before the first epoch, and the network is
    trained on the new labels for ``epochs_per_round`` epochs. (CLE of Yao et al., ICLR 2023, after Zhang et al. 2020,
    who soften the flagged labels in the loss instead; a label file cannot hold that.)

    Each voxel counts once, on the grid of the label files; what the preprocessing had cropped does not count, and stays
    as it is. The training cases are predicted three times, once for each pass of the estimate, so that nothing needs to
    be stored: of the cases one batch is in memory, and of the networks their weights.

    ``engine.state.confident_learning`` then holds ``thresholds`` ``(groups, classes)`` (``None`` for a class that no
    voxel is labelled as), ``joint`` ``(groups, given, true)``, ``label_counts`` ``(groups, classes)``, ``flagged``
    ``(groups, given, predicted)`` and ``voxels_changed`` (per class of the store). A group is a class of the store and
    its background, or with a softmax all of them. ``round.json`` has the first three as well.

    Args:
        store: label store with the training cases. A case may have ``trusted``: a mask file, or one per class; where it
            is not 0, labels stay.
        relabel_loader: batches of the store's cases with ``image`` and the case's ``id``: the preprocessing of
            training, but no random transform. Its data set's transform is inverted to bring predictions back to the
            grid of the label files, which must be that of the image file.
        epochs_per_round: epochs of each training; the trainer's ``max_epochs`` must be ``folds + 1`` times as many.
        lr_scheduler: learning-rate schedule to restart with the network, if there is one.
        inferer: for the training cases; by default the trainer's own.
        output: of the network, ``"sigmoid"`` or ``"softmax"`` (the background, then the classes of the store).
        folds: number of parts of the cases, at least 2.
        prune: which voxels are flagged: ``"class"``, ``"noise_rate"``, or those of both.
        progress: show progress bars.

    Raises:
        ValueError: when an option is out of range; at the start of a run, when the trainer's ``max_epochs`` does not
            fit, its loader has persistent workers, the store holds rounds of another run, ``relabel_loader`` does not
            hold its cases, or labels could not be brought back to the grid of their files; when outputs, labels and
            label files do not fit each other.
        TypeError: when it is attached to an engine that is not a ``SupervisedTrainer``; at the start of a run, when
            a loader or its data set is of another kind than the trainer or the correction needs.
        KeyError: at the start of a run, when a batch lacks a key.
    """

    _saved = (*StoreRun._saved, "record", "_weights")

    def __init__(
        self,
        store: LabelStore,
        *,
        relabel_loader: DataLoader,
        epochs_per_round: int,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        inferer: Inferer | None = None,
        output: str = "sigmoid",
        folds: int = 2,
        prune: str = "both",
        progress: bool = True,
    ) -> None:
        super().__init__(
            store,
            relabel_loader=relabel_loader,
            epochs_per_round=epochs_per_round,
            lr_scheduler=lr_scheduler,
            folds=folds,
        )
        self.output = check_choice(output, OUTPUTS, "output")
        self.prune = check_choice(prune, PRUNE, "prune")
        if not 2 <= folds <= len(store.cases):
            raise ValueError(
                f"folds must be at least 2, and at most the number of cases ({len(store.cases)}), got {folds}."
            )
        if output == "sigmoid" and store.values is not None and len(store.values) > 1:
            raise ValueError(
                "output must be 'softmax' where the labels of the store are maps of several classes, got 'sigmoid', "
                "whose classes may overlap."
            )
        self.inferer = inferer
        self.progress = progress
        self.record: dict[str, Any] = {}
        self._weights: list[Mapping[str, torch.Tensor]] = []  # of the network that has not seen each fold

    def _start(self, engine: SupervisedTrainer) -> None:
        wanted = (self.folds + 1) * self.epochs_per_round
        if engine.state.max_epochs != wanted:
            raise ValueError(
                f"max_epochs of the trainer must be (folds + 1) * epochs_per_round ({wanted}), got "
                f"{engine.state.max_epochs}."
            )
        engine.state.confident_learning = self.record
        self._refuse_lost_rounds(self._number)
        self._fold = self._next_fold
        self._go_on(engine, self._number)
        if sorted(self._ids_to_relabel()) != sorted(self._case_ids()["training"] or []):
            raise ValueError("relabel_loader must hold every case of the store once, and no other.")

    @property
    def _next_fold(self) -> int | None:
        """The fold that is left out after the trainings that are finished."""
        return self._trainings if self._trainings < self.folds else None

    @property
    def _number(self) -> int:
        """The round of labels after the trainings that are finished."""
        return int(self._next_fold is None)

    def _complete_epoch(self, engine: SupervisedTrainer) -> None:
        if engine.state.epoch % self.epochs_per_round:
            return
        if self._fold is not None:
            broadcast_state(engine.network)
            weights = [*self._weights, deepcopy(unwrapped(engine.network).state_dict())]
            is_last = self._fold == self.folds - 1
            if is_last:
                self._relabel(engine, weights)
            self._weights = [] if is_last else weights
        # After this a run that was interrupted begins with the next training.
        self._trainings += 1
        if self._trainings <= self.folds:
            self._restart(engine, self._number, self._next_fold)

    def _relabel(self, engine: SupervisedTrainer, weights: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Write round 1, and record how."""
        names = self.store.class_names
        groups, classes = (len(names), 2) if self.output == "sigmoid" else (1, len(names) + 1)
        learning = ConfidentLearning(groups, classes, prune=self.prune)
        for case in self._predictions(engine, weights, "thresholds"):
            learning.add(*case.counted)
        learning.share(gather, confident=False)
        for case in self._predictions(engine, weights, "confident joint"):
            learning.add_confident(*case.counted)
        learning.share(gather, confident=True)
        done = {
            "thresholds": [[t if np.isfinite(t) else None for t in group] for group in learning.thresholds.tolist()],
            "joint": learning.joint.tolist(),
            "label_counts": learning.label_counts.tolist(),
        }
        flagged = np.zeros((groups, classes, classes), dtype=np.int64)
        changed = np.zeros(len(names), dtype=np.int64)
        with self.store.write_round(1, {"method": "confident_learning", **self._told_options(), **done}) as writer:
            for case in self._predictions(engine, weights, "relabelling"):
                own = learning.flagged(case.probabilities, case.label) & case.seen
                predicted = case.probabilities.argmax(axis=1)
                for g in range(groups):
                    np.add.at(flagged[g], (case.label[g][own[g]], predicted[g][own[g]]), 1)
                number = own.sum(axis=tuple(range(1, own.ndim))).tolist()
                changed += writer.write(case.id, self._flip(case, own, predicted), flagged=number)
        flagged = np.sum(gather(flagged), axis=0)
        self.record = {**done, "flagged": flagged.tolist(), "voxels_changed": np.sum(gather(changed), axis=0).tolist()}
        engine.state.confident_learning = self.record
        self._log(engine, learning, flagged)

    def _predictions(
        self, engine: SupervisedTrainer, weights: Sequence[Mapping[str, torch.Tensor]], description: str
    ) -> Iterator[_Case]:
        """Yield each case of this process, predicted by the network that has not seen its label."""
        network = deepcopy(unwrapped(engine.network))
        folds = [fold_of(self.store, name, self.folds) for name in self._ids_to_relabel()]
        for fold, own in enumerate(weights):
            network.load_state_dict(own)
            loader, _ = own_part(self.relabel_loader, [i for i, other in enumerate(folds) if other == fold])
            told = f"Fold {fold}: {description}"
            for case, (logits,) in predict(
                engine, loader, [network], inferer=self.inferer, description=told, progress=self.progress
            ):
                yield self._case(case, logits)

    def _case(self, case: Mapping[str, Any], logits: torch.Tensor) -> _Case:
        names, softmax = self.store.class_names, self.output == "softmax"
        if len(logits) != len(names) + softmax:
            raise ValueError(
                f"The network must have one output channel {'for the background and one ' if softmax else ''}per class "
                f"of the store {names}, got {len(logits)}."
            )
        # The channel of ones is 0 where the way back to the file passes what had been cropped.
        found = to_file_grid(self.store, self.relabel_loader, case, torch.cat([logits, torch.ones_like(logits[:1])]))
        probabilities = log_distributions(found[None, :-1], self.output)[0].exp().numpy()
        masks = self.store.read(case["id"], 0)
        check_same_shape(found[0], masks[0], (f"The prediction of case {case['id']!r}", "its label files"))
        label = masks.astype(np.int64)
        if softmax:
            if (masks.sum(axis=0) > 1).any():
                raise ValueError(
                    f"With output='softmax' the classes of a label must not overlap, as they do in case {case['id']!r}."
                )
            label = np.tensordot(np.arange(1, len(masks) + 1), label, axes=1)[None]
        return _Case(case["id"], probabilities, label, (found[-1] > 0.5).numpy())

    def _flip(self, case: _Case, flagged: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the masks of a case with the predicted class where voxels are flagged and not trusted."""
        trusted = self.store.read_trusted(case.id)
        if trusted is not None:
            flagged = flagged & ~(trusted.any(axis=0) if self.output == "softmax" else trusted)
        label = np.where(flagged, predicted, case.label)
        if self.output == "sigmoid":
            return np.asarray(label == 1)
        return np.stack([label[0] == k + 1 for k in range(len(self.store.class_names))])

    def _log(self, engine: SupervisedTrainer, learning: ConfidentLearning, flagged: np.ndarray) -> None:
        names = self.store.class_names
        groups = [[f"not {name}", name] for name in names] if self.output == "sigmoid" else [["background", *names]]
        for g, a, b in np.argwhere(learning.expected >= 1):
            if a != b:
                share = 100 / learning.label_counts[g, a]
                LOGGER.info(
                    "Round 1: of %d voxels labelled %s, %.2f %% are expected to be %s, and %.2f %% were flagged as it.",
                    *(learning.label_counts[g, a], groups[g][a], share * learning.expected[g, a, b]),
                    *(groups[g][b], share * flagged[g, a, b]),
                )

    def _ids_to_relabel(self) -> list[str]:
        dataset: Any = self.relabel_loader.dataset
        data = getattr(dataset, "data", None)
        if not isinstance(data, Sequence) or not all(isinstance(case, Mapping) and "id" in case for case in data):
            raise TypeError(
                "relabel_loader must be a DataLoader over a MONAI data set whose data is a list of dictionaries with "
                f"'id', got {type(dataset).__name__}."
            )
        return [str(case["id"]) for case in data]

    def _told_options(self) -> dict[str, Any]:
        names = ("epochs_per_round", "output", "folds", "prune")
        return {**{name: getattr(self, name) for name in names}, "class_names": list(self.store.class_names)}

    def _case_ids(self) -> dict[str, list[str] | None]:
        return {"training": [str(case["id"]) for case in self.store.cases]}


@dataclass(frozen=True)
class _Case:
    """A case on the grid of its label files.

    Attributes:
        id: of the case.
        probabilities: ``(groups, classes, *spatial)``.
        label: class numbers ``(groups, *spatial)``.
        seen: by the network ``(*spatial)``: not cropped.
    """

    id: str
    probabilities: np.ndarray
    label: np.ndarray
    seen: np.ndarray

    @property
    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and label of the voxels that count."""
        return self.probabilities[..., self.seen], self.label[..., self.seen]
