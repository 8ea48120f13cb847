"""The handler that corrects the training labels round by round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader, MetaTensor, decollate_batch
from monai.engines import Evaluator, SupervisedTrainer
from monai.inferers import Inferer
from monai.networks.utils import eval_mode
from monai.transforms import Compose
from monai.utils import MetaKeys
from rich.progress import track

from monai_sc.data.label_store import LabelStore, dice
from monai_sc.functional import BoundaryBias, boundary_bias, boundary_displacement, correct_boundary
from monai_sc.functional.bias import REGIONS
from monai_sc.functional.checks import binary_mask, check_choice, check_same_shape
from monai_sc.functional.correction import REPRESENTATIONS
from monai_sc.functional.distance import METRICS
from monai_sc.transforms.file_grid import file_grid, invert_to_file

__all__ = ["SpatialCorrectionHandler"]

LEARNT_DICE = 0.5  # under it, on the clean cases, a prediction is mostly wrong, and so is its bias


class SpatialCorrectionHandler:
    r"""Correct the labels of a MONAI ``SupervisedTrainer`` after every ``epochs_per_round`` epochs, and train again.

    At the end of a round the network predicts the clean cases, which gives the boundary bias :math:`\hat\Delta` of each
    class. Unless the loop is to stop, the network then predicts the training cases, each predicted boundary is moved
    back by the bias, and the result is brought back to the grid of the case's label files and written to the label
    store as a new round. The training data set is pointed at the new files, network, optimizer and schedule return to
    what they were before the first epoch, and the next round begins. (Yao et al., ICLR 2023, Algorithm 1.)

    All distances are in voxels of the files, whatever grid the network works on: of their smallest side, where voxels
    are anisotropic. A class with :math:`|\hat\Delta| < 1` voxel gets the prediction unshifted. A class that is
    predicted in no clean case has no :math:`\hat\Delta`: it keeps its labels, and the log says so. So does a class in
    a case where nothing of it would be left. The loop stops
    when every class is under one voxel, when the interval of every class contains 0, when the clean cases are predicted
    worse than in an earlier round, or at the last epoch of the trainer; network and labels are then those of the best
    round, by the mean Dice on the clean cases.

    Each round adds a dictionary to ``engine.state.spatial_correction``: ``round``, ``epoch``, ``bias`` (voxels),
    ``bias_interval``, ``bias_mm`` (``nan`` where the size of a voxel is not known), ``num_used``,
    ``num_skipped``, ``clean_dice`` (each with one value per class), ``voxels_changed`` (per class, where the round
    ended in new labels), ``metrics`` (of ``evaluator``) and ``stop_reason``.

    Args:
        store: label store with the training cases.
        clean_loader: batches of the clean cases with ``image`` and ``label`` ``(batch, classes, *spatial)``, on the
            grid of training.
        relabel_loader: batches of the store's cases with ``image`` and the case's ``id``: the preprocessing of
            training, but no random transform. Its data set's transform is inverted to bring labels back to the grid of
            their files, which must be that of the image file.
        epochs_per_round: epochs of training in each round; the trainer's ``max_epochs`` must be a multiple of it, and
            allows one round of relabelling less than it holds.
        lr_scheduler: learning-rate schedule to restart with the network, if there is one.
        evaluator: run at the end of each round, unless it has run in that epoch; its metrics go into the round's
            record and decide nothing.
        inferer: for clean and training cases; by default the trainer's own.
        representation: of the correction, ``"distance"`` or ``"logit"``.
        gamma: width of the ``"logit"`` correction, in ``(0, 1]``.
        metric: ``"euclidean"`` or ``"taxicab"``.
        region: of the bias, ``"boundary"`` or ``"image"``.
        voxel_mm: size of a voxel of the files in mm, where they do not say it themselves; for reports only.
        keep_converged: leave the labels of a class with :math:`|\hat\Delta| < 1` voxel as they are.
        progress: show progress bars.

    Raises:
        ValueError: when an option is out of range; at the start of a run, when the trainer's ``max_epochs`` does not
            fit, its loader has persistent workers, the store holds rounds of another run, or labels could not be
            brought back to the grid of their files; at the end of a round, when no clean case is usable, or outputs,
            labels and label files do not fit each other.
        TypeError: when it is attached to an engine that is not a ``SupervisedTrainer``; at the start of a run, when
            a loader or its data set is of another kind than the trainer or the correction needs.
        KeyError: at the start of a run, when a batch lacks a key.
    """

    def __init__(
        self,
        store: LabelStore,
        *,
        clean_loader: DataLoader,
        relabel_loader: DataLoader,
        epochs_per_round: int,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        evaluator: Evaluator | None = None,
        inferer: Inferer | None = None,
        representation: str = "distance",
        gamma: float = 1.0,
        metric: str = "euclidean",
        region: str = "boundary",
        voxel_mm: float | None = None,
        keep_converged: bool = False,
        progress: bool = True,
    ) -> None:
        check_choice(representation, REPRESENTATIONS, "representation")
        check_choice(metric, METRICS, "metric")
        check_choice(region, REGIONS, "region")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {gamma}.")
        if epochs_per_round < 1:
            raise ValueError(f"epochs_per_round must be at least 1 epoch, got {epochs_per_round}.")
        self.store = store
        self.clean_loader = clean_loader
        self.relabel_loader = relabel_loader
        self.epochs_per_round = epochs_per_round
        self.lr_scheduler = lr_scheduler
        self.evaluator = evaluator
        self.inferer = inferer
        self.representation = representation
        self.gamma = gamma
        self.metric = metric
        self.region = region
        self.voxel_mm = voxel_mm
        self.keep_converged = keep_converged
        self.progress = progress
        self.history: list[dict[str, Any]] = []
        self._initial: dict[str, Any] = {}
        self._best: dict[str, Any] = {}
        self._running = False
        self._resumed = False

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer, behind the handlers that validate or step the schedule, before those that save."""
        if not isinstance(engine, SupervisedTrainer):
            raise TypeError(f"engine must be a monai.engines.SupervisedTrainer, got {type(engine).__name__}.")
        engine.add_event_handler(Events.STARTED, lambda: setattr(self, "_running", False))
        # Not at STARTED, where other handlers load weights or the state of this one, before or after it.
        engine.add_event_handler(Events.EPOCH_STARTED, self.start)
        engine.add_event_handler(Events.EPOCH_COMPLETED(every=self.epochs_per_round), self)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on: the rounds so far, the first weights and the best ones."""
        return {"history": self.history, "initial": self._initial, "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :py:meth:`state_dict` returned."""
        self.history = list(state_dict["history"])
        self._initial = state_dict["initial"]
        self._best = state_dict["best"]
        self._resumed = True

    def start(self, engine: SupervisedTrainer) -> None:
        """Check what the run is given, and point the training data at the labels that it begins or goes on with."""
        if self._running:
            return
        self._running = True
        if not self._initial:
            self._initial = deepcopy({name: part.state_dict() for name, part in self._parts(engine).items()})
        if self.evaluator is not None:
            self.evaluator.state.epoch = 0  # what it measured before this run is not the result of a round
        if engine.state.max_epochs is None or engine.state.max_epochs % self.epochs_per_round:
            raise ValueError(
                f"max_epochs of the trainer must be a multiple of epochs_per_round ({self.epochs_per_round}), "
                f"got {engine.state.max_epochs}."
            )
        if getattr(engine.data_loader, "persistent_workers", False):
            raise ValueError(
                "The trainer's data loader must have persistent_workers=False, got True: such workers never see the "
                "corrected labels."
            )
        engine.state.spatial_correction = self.history
        if self.history and self.history[-1]["stop_reason"]:
            engine.logger.info("The correction of the labels is finished: %s.", self.history[-1]["stop_reason"])
            engine.terminate()
            return
        number = len(self.history)
        expected = (engine.state.epoch - 1) // self.epochs_per_round
        if number != expected:
            raise ValueError(
                f"A run that goes on at epoch {engine.state.epoch} with epochs_per_round={self.epochs_per_round} must "
                f"have finished {expected} rounds, got {number}: save and load this handler together with the trainer, "
                "by a handler that is attached behind it, and keep epochs_per_round."
            )
        newer = [r for r in self.store.rounds if r > number]
        if len(newer) > 1 or (newer and not self._resumed):
            raise ValueError(
                f"{self.store.root} holds the rounds {newer}, which this run has not made; load the checkpoint of the "
                "run that made them, or choose another folder."
            )
        for orphan in newer:  # written just before this run was interrupted, and not yet in its checkpoint
            self.store.discard(orphan)
        self._check_loaders(engine)
        self._use_labels(engine, number)

    def __call__(self, engine: SupervisedTrainer) -> None:
        number = len(self.history)
        bias, record = self._evaluate(engine, number)
        score = float(np.mean(record["clean_dice"]))
        worse = bool(self._best) and score < self._best["dice"]
        if not worse:
            self._best = {"round": number, "dice": score, "network": deepcopy(engine.network.state_dict())}
        record["stop_reason"] = self._stop_reason(engine, bias, worse)
        if record["stop_reason"]:
            self.history.append(record)
            best = self._best["round"]
            if best != number:
                engine.network.load_state_dict(self._best["network"])
            if self.store.current != best:
                self.store.restore(best)
            engine.logger.info(
                "Correction stops: %s. Labels and network are those of round %d.", record["stop_reason"], best
            )
            engine.terminate()
            return
        record["voxels_changed"] = self._relabel(engine, bias, record)
        self.history.append(record)
        for name, part in self._parts(engine).items():
            part.load_state_dict(deepcopy(self._initial[name]))
        self._use_labels(engine, number + 1)
        engine.set_data(engine.data_loader)  # a fresh iterator: the old one may hold batches of the old labels

    def _parts(self, engine: SupervisedTrainer) -> dict[str, Any]:
        parts = {"network": engine.network, "optimizer": engine.optimizer, "lr_scheduler": self.lr_scheduler}
        return {name: part for name, part in parts.items() if part is not None}

    def _use_labels(self, engine: SupervisedTrainer, number: int) -> None:
        dataset: Any = engine.data_loader.dataset  # type: ignore[union-attr]
        labels = {case["id"]: case["label"] for case in self.store.datalist(number)}
        datalist = [{**case, "label": labels.get(case["id"], case["label"])} for case in dataset.data]
        if all(new["label"] == old["label"] for new, old in zip(datalist, dataset.data, strict=True)):
            return  # to fill a cache again would take time
        if hasattr(dataset, "set_data"):
            dataset.set_data(datalist)
        else:  # monai.data.Dataset has no cache, and so no method of its own
            dataset.data = datalist

    def _check_loaders(self, engine: SupervisedTrainer) -> None:
        """Refuse now what would fail at the end of the round."""
        train: Any = getattr(engine.data_loader, "dataset", None)
        if not isinstance(getattr(train, "data", None), Sequence) or not all(
            isinstance(case, Mapping) and "id" in case and "label" in case for case in train.data
        ):
            raise TypeError(
                "The trainer must have a DataLoader over a MONAI data set whose data is a list of dictionaries with "
                f"'id' and 'label', got {type(train).__name__}."
            )
        if not isinstance(getattr(getattr(self.relabel_loader, "dataset", None), "transform", None), Compose):
            raise TypeError("relabel_loader must be a DataLoader over a MONAI data set with a transform.")
        for name, loader, keys in (
            ("clean_loader", self.clean_loader, ("image", "label")),
            ("relabel_loader", self.relabel_loader, ("id", "image")),
        ):
            batch = next(iter(loader), None)
            if batch is None:
                raise ValueError(f"{name} must hold at least one case, got none.")
            missing = [key for key in keys if key not in batch]
            if missing:
                raise KeyError(f"The batches of {name} must hold {keys}, but {missing[0]!r} is missing.")
        case = decollate_batch(batch)[0]
        self._to_file_grid(case, torch.zeros(len(self.store.class_names), *case["image"].shape[1:]))

    def _to_file_grid(self, case: Mapping[str, Any], scores: torch.Tensor) -> torch.Tensor:
        """Bring scores from the grid of the relabel loader's images to that of the case's label files."""
        dataset: Any = self.relabel_loader.dataset
        result = invert_to_file(scores, case["image"], dataset.transform)
        if MetaKeys.ORIGINAL_AFFINE in case["image"].meta:
            self.store.check_grid(case["id"], result.shape[1:], case["image"].meta[MetaKeys.ORIGINAL_AFFINE])
        return result

    def _predict(
        self, engine: SupervisedTrainer, loader: DataLoader, description: str
    ) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Yield every case of ``loader`` as its dictionary and the network's logits ``(classes, *spatial)``."""
        inferer = self.inferer or engine.inferer
        with eval_mode(engine.network):
            for batch in track(loader, description, disable=not self.progress):
                images, _ = engine.prepare_batch(batch, engine.state.device, engine.non_blocking, **engine.to_kwargs)
                with torch.autocast("cuda", enabled=engine.amp and images.is_cuda, **engine.amp_kwargs):
                    outputs = inferer(images, engine.network)
                for case, logits in zip(decollate_batch(batch), outputs, strict=True):
                    logits = logits.as_tensor() if isinstance(logits, MetaTensor) else logits
                    logits = logits.float().cpu()
                    if not torch.isfinite(logits).all():
                        raise ValueError(
                            f"The network's output must be finite, got nan or infinite values for case "
                            f"{case.get('id', '?')!r}: training has diverged, nothing was relabelled."
                        )
                    yield case, logits

    def _evaluate(self, engine: SupervisedTrainer, number: int) -> tuple[BoundaryBias, dict[str, Any]]:
        if self.evaluator is not None and self.evaluator.state.epoch != engine.state.epoch:
            self.evaluator.run(engine.state.epoch)
        displacements, scores, sizes = [], [], []
        for case, logits in self._predict(engine, self.clean_loader, f"Round {number}: clean cases"):
            label = case["label"]
            check_same_shape(logits, label, ("The network's output", "the clean label"))
            prediction = (logits >= 0).numpy()
            grid = file_grid(case["image"], self.metric)
            displacement = boundary_displacement(
                prediction, label, region=self.region, metric=self.metric, spacing=grid.spacing
            )
            displacements.append(grid.unit * displacement)
            scores.append(dice(prediction, binary_mask(label)))
            sizes.append(grid.voxel_mm if self.voxel_mm is None else self.voxel_mm)
        if not displacements:
            raise ValueError("clean_loader must hold at least one clean case, got none.")
        values = np.stack(displacements)
        if self._best and np.isnan(values).all():  # the network has collapsed: an earlier round is better, and is kept
            undefined = np.full(values.shape[1], np.nan)
            used = np.zeros(values.shape[1], dtype=np.int64)
            bias = BoundaryBias(undefined, np.stack([undefined] * 2, axis=1), used, used + len(values))
        else:
            bias = boundary_bias(values)
        if len(bias.mean) != len(self.store.class_names):
            raise ValueError(
                f"The network must have one output channel per class of the store {self.store.class_names}, "
                f"got {len(bias.mean)}."
            )
        metrics = {} if self.evaluator is None else {k: _plain(v) for k, v in self.evaluator.state.metrics.items()}
        record = {
            "round": number,
            "epoch": engine.state.epoch,
            "bias": bias.mean.tolist(),
            "bias_interval": bias.interval.tolist(),
            "bias_mm": (bias.mean * float(np.mean(sizes))).tolist(),
            "num_used": bias.num_used.tolist(),
            "num_skipped": bias.num_skipped.tolist(),
            "clean_dice": np.mean(scores, axis=0).tolist(),
            "voxels_changed": [],
            "metrics": metrics,
            "stop_reason": "",
        }
        for k, name in enumerate(self.store.class_names):
            low, high = bias.interval[k]
            millimetres = "" if math.isnan(record["bias_mm"][k]) else f" = {record['bias_mm'][k]:+.2f} mm"
            engine.logger.info(
                "Round %d, %s: boundary bias %+.2f voxels%s, 95%% interval [%+.2f, %+.2f], from %d clean cases "
                "(%d skipped); Dice on the clean cases %.3f.",
                *(number, name, bias.mean[k], millimetres, low, high, bias.num_used[k], bias.num_skipped[k]),
                record["clean_dice"][k],
            )
            if record["clean_dice"][k] < LEARNT_DICE:
                engine.logger.warning(
                    "Round %d, %s: with a Dice of %.2f on the clean cases the network has not learnt it, and its bias "
                    "means little; train longer.",
                    *(number, name, record["clean_dice"][k]),
                )
            if math.isnan(bias.mean[k]):
                engine.logger.warning(
                    "Round %d, %s: the bias is undefined, since in every clean case the label or the prediction is "
                    "empty or full; the labels of this class stay as they are.",
                    *(number, name),
                )
        return bias, record

    def _stop_reason(self, engine: SupervisedTrainer, bias: BoundaryBias, worse: bool) -> str:
        if worse:
            return f"the clean cases are predicted worse than in round {self._best['round']}"
        defined = np.isfinite(bias.mean)
        if np.all(np.abs(bias.mean[defined]) < 1):
            return "the bias of every class is under one voxel"
        low, high = bias.interval[defined].T
        if np.all((low <= 0) & (high >= 0)):
            return "the interval of the bias contains 0 for every class"
        if engine.state.epoch >= engine.state.max_epochs:
            return "the last round of training is over, the bias is not under one voxel yet"
        return ""

    def _relabel(self, engine: SupervisedTrainer, bias: BoundaryBias, record: dict[str, Any]) -> list[int]:
        number = record["round"]
        converged = np.abs(bias.mean) < 1
        shift = np.where(converged | np.isnan(bias.mean), 0.0, bias.mean)
        kept = np.isnan(bias.mean) | (converged if self.keep_converged else False)
        done = {
            "bias": [b if math.isfinite(b) else None for b in record["bias"]],
            "shift": shift.tolist(),
            "kept": kept.tolist(),
            "representation": self.representation,
            "gamma": self.gamma,
            "metric": self.metric,
            "region": self.region,
        }
        changed = np.zeros(len(shift), dtype=np.int64)
        emptied = np.zeros(len(shift), dtype=np.int64)
        size = 0
        with self.store.write_round(number + 1, done, previous=number) as writer:
            for case, logits in self._predict(engine, self.relabel_loader, f"Round {number}: relabelling"):
                grid = file_grid(case["image"], self.metric)
                scores: Any = correct_boundary(
                    logits,
                    (shift / grid.unit).tolist(),
                    representation=self.representation,
                    gamma=self.gamma,
                    metric=self.metric,
                    spacing=grid.spacing,
                )
                # The label is scores >= 0, but where the inverse of a crop pads, 0 must be background.
                scores = torch.where(scores == 0, torch.finfo(torch.float32).tiny, scores)
                label = (self._to_file_grid(case, scores) > 0).numpy()
                before = self.store.read(case["id"], number)
                check_same_shape(label, before, (f"The label made for case {case['id']!r}", "its label files"))
                axes = tuple(range(1, label.ndim))
                gone = before.any(axis=axes) & ~label.any(axis=axes) & ~kept
                emptied += gone
                label[kept | gone] = before[kept | gone]
                changed += writer.write(case["id"], label)
                size += label[0].size
        for k, name in enumerate(self.store.class_names):
            engine.logger.info(
                "Round %d, %s: shifted by %+.2f voxels, %d voxels changed (%.2f %% of the images).",
                *(number + 1, name, shift[k], changed[k], 100 * changed[k] / size),
            )
            if emptied[k]:
                engine.logger.warning(
                    "Round %d, %s: in %d cases nothing of it is left; they keep their labels of this class.",
                    *(number + 1, name, emptied[k]),
                )
        return [int(n) for n in changed]


def _plain(value: Any) -> Any:
    """Return a metric as a float or a list of floats, which a checkpoint may hold."""
    return np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float64).tolist()
