"""The handler that corrects the training labels round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, EventEnum, Events
from monai.data import DataLoader
from monai.engines import Evaluator, SupervisedTrainer
from monai.inferers import Inferer

from monai_sc.correction import Fitted, SpatialCorrector
from monai_sc.handlers.clean_check import check_clean_cases, nothing_found, remember_best
from monai_sc.handlers.pairs import is_moved, move_labels
from monai_sc.handlers.progress import LOGGER
from monai_sc.handlers.relabelling import Relabelling
from monai_sc.handlers.round_record import evaluate, has_collapsed, log_record, make_record, metrics_of, stop_reason
from monai_sc.handlers.run_options import RunOptions
from monai_sc.handlers.store_run import StoreRun
from monai_sc.parallel import gather, is_main, unwrapped
from monai_sc.store.label_store import LabelStore
from monai_sc.wording import counted


class RoundEvents(EventEnum):
    """Events of a trainer whose labels are corrected.

    ``ROUND_COMPLETED`` is fired at the end of each round, when its record is in ``engine.state.spatial_correction``
    and the labels that follow from it are current.
    """

    ROUND_COMPLETED = "spatial_correction_round_completed"


class SpatialCorrectionHandler(StoreRun):
    r"""Correct the labels of a MONAI ``SupervisedTrainer`` after every ``epochs_per_round`` epochs, and train again.

    Several times in a round the network predicts the clean cases, and ``corrector`` is fitted on them: the boundary
    bias :math:`\hat\Delta` of each class, and how to correct it. Each class uses the epoch whose corrected predictions
    of the clean cases are best, since later ones may have memorised the errors. Unless the loop stops, the networks of
    those epochs predict the training cases; their corrected labels are written to the label store as a new round, on
    the grid of the label files. The training data get the new files, network, optimizer and schedule return to what
    they were before the first epoch, and the next round begins. (Yao et al., ICLR 2023, Algorithm 1, which has one
    epoch, no choice and no blend: ``representation="distance"`` or ``"logit"``, ``shape_weight=0``,
    ``checks_per_round=1``.)

    With ``representation="auto"`` the shift, the false-positive filter and the epoch of each class are chosen anew
    without each clean case, which then judges them; what does not clearly beat doing nothing is not done. Labels stay,
    are moved by their own bias, or take the boundary of the network, with the shape of the given label or without.
    Cases of the store with a ``clean_label`` beside their label (pairs) decide which, each judged by the others;
    without pairs, the errors of the network on clean cases and the offset of given labels to corrected predictions do.
    A network with an uncorrected Dice under 0.5 on the clean cases that hold a class has not learnt it, and corrects
    none of its labels. A label that differs from the moved one by more than clean cases ever show stays the moved one,
    and is listed to be checked.

    With two pairs or more, the training begins with labels that the pairs have moved, if held-out pairs gain: they are
    round 1. The given labels stay what they are, round 0.

    Measured distances are in voxels of the files, of their smallest side where they are anisotropic. The default
    tolerance, under which a bias needs no correction, is one voxel of the grid that the network works on.

    The loop stops when the bias of every class is under the tolerance, and its interval too; with ``"auto"`` when no
    correction makes labels clearly better, as published when every interval contains 0; when the clean cases are
    predicted worse than in an earlier round; or at the last epoch. Network and labels are then those of the best round,
    by the mean Dice on the clean cases. A network that has collapsed (it predicts a class in none of three clean cases
    or more that hold it, or their mean Dice is 0.2 under that of the best round) is trained again once, from its first
    weights, and never relabels.

    Each round adds a dictionary to ``engine.state.spatial_correction``. Lists have one value per class:

    - ``round``, ``epoch``, ``restarts``, ``stop_reason``, ``metrics`` (of ``evaluator``);
    - of the network: ``network_epoch`` (whose corrected predictions were best on the whole), and of it ``bias``
      (voxels), ``bias_interval``, ``bias_mm`` (``nan`` where ``voxel_mm`` is not known), ``tolerance``, ``verdict``,
      ``num_used``, ``num_skipped``, ``clean_dice`` (uncorrected), ``dice_present`` (over the cases that hold the class)
      and ``learnt``;
    - of the labels: ``label_bias`` (voxels, from pairs, else ``nan``), ``agreement`` (Dice of the predictions with the
      labels they learnt from), ``memorised`` (it is higher than that with clean labels), ``sources`` (``"keep"``,
      ``"move"``, ``"blend"`` or ``"predict"``), ``kept``, and where the round ended in new labels ``voxels_changed``
      and ``to_check`` (by case and class, why);
    - ``correction``: the report of the corrector by class, with ``held_out`` Dice; ``fits``: the same as a state.

    Args:
        store: label store with the training cases. A case may have ``trusted``: a mask file, or one per class; where it
            is not 0, labels stay. Cases with a ``clean_label`` are pairs.
        corrector: with the options of the correction, by default those of ``SpatialCorrector(store.class_names)``. With
            ``output="softmax"`` the network has a channel for the background, then the classes of the store, and
            clean labels are maps ``(batch, 1, *spatial)``. ``max_shift`` and ``tolerance`` are in mm; the files, or
            ``voxel_mm``, must say how large a voxel is.
        clean_loader: batches of the clean cases with ``image`` and ``label`` ``(batch, classes, *spatial)``, on the
            grid of training; optionally ``ignore``, a mask of what does not count, and ``group_key``.
        relabel_loader: batches of the store's cases with ``image`` and the case's ``id``: the preprocessing of
            training, but no random transform. Its data set's transform is inverted to bring labels back to the grid of
            their files, which must be that of the image file.
        epochs_per_round: epochs of training in each round; the trainer's ``max_epochs`` must be a multiple of it, and
            allows one round of relabelling less than it holds.
        lr_scheduler: learning-rate schedule to restart with the network, if there is one.
        evaluator: run at the end of each round with the weights of ``network_epoch``; its metrics go into the round's
            record and decide nothing.
        inferer: for clean and training cases; by default the trainer's own.
        group_key: key of the annotator, site or scanner in clean and relabel batches; each gets a shift of its own.
        checks_per_round: how often the clean cases are predicted in a round, evenly spaced, last at its end.
        folds: over 1, that many more networks are trained in each round that relabels, each without one part of the
            cases, and each case is relabelled by the one that has not seen its label. They take ``epochs_per_round``
            epochs each, of the trainer's ``max_epochs``.
        voxel_mm: size of a voxel of the files in mm, where they do not say it themselves.
        progress: show progress bars, and what a round will take.

    Raises:
        ValueError: when an option is out of range; at the start of a run, when the trainer's ``max_epochs`` does not
            fit, its loader has persistent workers, the store holds rounds of another run, or labels could not be
            brought back to the grid of their files; at the end of a round, when no clean case is usable, or outputs,
            labels and label files do not fit each other.
        TypeError: when it is attached to an engine that is not a ``SupervisedTrainer``; at the start of a run, when
            a loader or its data set is of another kind than the trainer or the correction needs.
        KeyError: at the start of a run, when a batch lacks a key.
    """

    _saved = (*StoreRun._saved, "history", "_first", "_best", "_fold", "_found", "_record", "_restarts")

    def __init__(
        self,
        store: LabelStore,
        corrector: SpatialCorrector | None = None,
        *,
        clean_loader: DataLoader,
        relabel_loader: DataLoader,
        epochs_per_round: int,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        evaluator: Evaluator | None = None,
        inferer: Inferer | None = None,
        group_key: str | None = None,
        checks_per_round: int = 6,
        folds: int = 1,
        voxel_mm: float | None = None,
        progress: bool = True,
    ) -> None:
        corrector = SpatialCorrector(store.class_names) if corrector is None else corrector
        if list(corrector.class_names) != list(store.class_names):
            raise ValueError(
                f"corrector must have the classes of the store, {store.class_names}, in the same order, got "
                f"{corrector.class_names}."
            )
        self.options = RunOptions(corrector.options, inferer, group_key, voxel_mm, progress)
        for name, value, unit in (("checks_per_round", checks_per_round, "check"), ("folds", folds, "fold")):
            if value < 1:
                raise ValueError(f"{name} must be at least 1 {unit}, got {value}.")
        super().__init__(
            store,
            progress=progress,
            relabel_loader=relabel_loader,
            epochs_per_round=epochs_per_round,
            lr_scheduler=lr_scheduler,
            folds=folds,
        )
        self.clean_loader = clean_loader
        self.evaluator = evaluator
        checks = range(1, checks_per_round + 1)
        self.checks = {max(1, round(epochs_per_round * i / checks_per_round)) for i in checks}
        self.history: list[dict[str, Any]] = []
        self._first = 0  # round: 1 where the training begins with labels that pairs have moved
        self._best: dict[str, Any] = {}
        # Of the round that is going on: what each training found best, and the record of the one on all cases.
        self._found: list[dict[str, Any]] = []
        self._record: dict[str, Any] = {}
        self._restarts = 0

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer, behind the handlers that validate or step the schedule, before those that save."""
        super().attach(engine)
        engine.register_events(*RoundEvents)
        # A finished run that is started again has no epoch left, and so never starts.
        engine.add_event_handler(Events.COMPLETED, lambda: setattr(engine.state, "spatial_correction", self.history))

    def _start(self, engine: SupervisedTrainer) -> None:
        if self.evaluator is not None:
            self.evaluator.state.epoch = 0  # what it measured before this run is not the result of a round
        if engine.state.max_epochs is None or engine.state.max_epochs % self.epochs_per_round:
            raise ValueError(
                f"max_epochs of the trainer must be a multiple of epochs_per_round ({self.epochs_per_round}), "
                f"got {engine.state.max_epochs}."
            )
        engine.state.spatial_correction = self.history
        is_finished = bool(self.history) and bool(self.history[-1]["stop_reason"])
        if not self.history and not self._trainings and not self._resumed:
            self._move_labels(engine)
        number = self._round
        self._refuse_lost_rounds(number - is_finished)
        if is_finished:
            LOGGER.info("The correction of the labels is finished: %s.", self.history[-1]["stop_reason"])
            if self.store.current != self._best["round"]:
                LOGGER.warning(
                    "The current labels are those of round %d, not of round %d, which the run kept.",
                    *(self.store.current, self._best["round"]),
                )
            engine.terminate()
            return
        self._go_on(engine, number, self.clean_loader, self.options.group_key)

    @property
    def fitted(self) -> Fitted | None:
        """The correction of the network that the run has kept, ``None`` before the first round has ended.

        Its distances are in mm, or in voxels of the files where these do not say how large a voxel is.
        :py:class:`~monai_sc.transforms.SpatialCorrectiond` applies it to predictions of other images.
        """
        if not self._best:
            return None
        found, voxel_mm = Fitted.from_dict(self._best["state"]["fitted"]), self._best["state"]["voxel_mm"]
        return found if math.isnan(voxel_mm) else found.in_unit(voxel_mm)

    @property
    def _round(self) -> int:
        """The round that is trained on."""
        return self._first + len(self.history)

    def _move_labels(self, engine: SupervisedTrainer) -> None:
        """Write a first round of labels moved by the bias that cases with both labels show, if that serves."""
        if self.options.correction.as_asked or len(self.store.pairs) < 2:
            return
        # A run that ended before its first checkpoint may have written them.
        if is_moved(self.store, self.options) or (
            self.store.rounds == [0] and move_labels(self.store, self.options, LOGGER)
        ):
            self._first = 1

    def _complete_epoch(self, engine: SupervisedTrainer) -> None:
        trained = (engine.state.epoch - 1) % self.epochs_per_round + 1
        if trained == 1:
            self._tell_plan(engine)
        if trained in self.checks:
            if not self._found or self._found[-1]["fold"] != self._fold:
                self._found.append(nothing_found(self._fold, len(self.store.class_names)))
            now = f"Round {self._round}, epoch {trained} of {self.epochs_per_round}:"
            checked = check_clean_cases(engine, self.clean_loader, self.options, f"{now} clean cases")
            scores = zip(self.options.class_names, checked[1], strict=True)
            told = ", ".join(f"{name} {score:.3f}" for name, score in scores)
            self._bars.tell(f"{now} Dice on the clean cases, before the correction: {told}{self._left(engine)}.")
            remember_best(self._found[-1], engine.network, trained, *checked)
        if trained == self.epochs_per_round:
            self._finish_training(engine)

    def _tell_plan(self, engine: SupervisedTrainer) -> None:
        """Say after the first epoch of a training what follows, and how long an epoch takes."""
        seconds = engine.state.times[Events.EPOCH_COMPLETED.name] or 0.0
        self._bars.tell(
            f"Round {self._round}: {counted(self.epochs_per_round, 'epoch')} of training, the first took "
            f"{seconds:.0f} s; the clean cases are predicted after epoch {', '.join(map(str, sorted(self.checks)))}."
        )

    def _left(self, engine: SupervisedTrainer) -> str:
        """Return in words how long the round and the run will take."""
        epoch = engine.state.epoch
        of_round, of_run = -epoch % self.epochs_per_round, (engine.state.max_epochs or 0) - epoch
        run = self._bars.time_left(epoch, of_run)
        if not run or of_run <= 0:
            return ""
        round_left = f"{self._bars.time_left(epoch, of_round)} left in this round, " if of_round else ""
        return f"; about {round_left}{run} in the run at most"

    def _finish_training(self, engine: SupervisedTrainer) -> None:
        number = self._round
        # After this a run that was interrupted begins with the next training.
        self._trainings += 1
        try:
            if self._fold is None and not self._finish_full_training(engine, number):
                return
            following = 0 if self._fold is None else self._fold + 1
            if self.folds > 1 and following < self.folds:
                self._restart(engine, number, following)
                return
            self._record["voxels_changed"] = self._relabel(engine)
        except BaseException:
            self._trainings -= 1
            raise
        self._add_to_history(engine, self._record)
        self._record, self._restarts = {}, 0
        self._restart(engine, number + 1, None)

    def _finish_full_training(self, engine: SupervisedTrainer, number: int) -> bool:
        """Judge the network that has seen all cases, and say whether to relabel."""
        found = self._found[-1]
        record = self._record = self._make_record(engine, found, number)
        best_dice = self._best["dice"] if self._best else None
        collapsed = has_collapsed(record, best_dice)
        if collapsed and not self._restarts and engine.state.epoch < engine.state.max_epochs:
            self._restarts = 1
            LOGGER.warning(
                "Round %d: the network has collapsed (Dice on the clean cases %s); it is trained again, once.",
                *(number, " ".join(f"{d:.2f}" for d in record["clean_dice"])),
            )
            self._found, self._record = [], {}
            self._restart(engine, number, None)
            return False
        if not self._best and not any(record["num_used"]):
            raise ValueError(
                "labels must have at least one usable case, but in all "
                f"{counted(record['num_skipped'][0], 'clean case')} the label or prediction is empty or full in every "
                "class; give clean cases that show the structures, or train the network longer."
            )
        score = float(np.mean(record["clean_dice"]))
        worse = best_dice is not None and score < best_dice
        if not worse:
            self._best = {"round": number, "dice": score, "network": found["network"], "state": found["state"]}
        if any(record["num_used"]):
            self._relabelling(engine).judge(record)
        else:
            record["kept"] = [True] * len(record["kept"])
        left = (engine.state.max_epochs - engine.state.epoch) // self.epochs_per_round
        record["stop_reason"] = stop_reason(
            record,
            as_asked=self.options.correction.as_asked,
            better=self._best["round"] if worse else None,
            is_first=not self.history,
            is_last=left < 1 + (self.folds if self.folds > 1 else 0),
        )
        if not record["stop_reason"]:
            return True
        best = self._best["round"]
        unwrapped(engine.network).load_state_dict(self._best["network"])
        if is_main() and self.store.current != best:
            self.store.restore(best)
        gather()
        self._add_to_history(engine, record)
        self._record = {}
        LOGGER.info("Correction stops: %s. Labels and network are those of round %d.", record["stop_reason"], best)
        engine.terminate()
        return False

    def _add_to_history(self, engine: SupervisedTrainer, record: dict[str, Any]) -> None:
        self.history.append(record)
        self._found = []
        # For the handlers that log metrics, such as those of TensorBoard and MLflow.
        engine.state.metrics.update(metrics_of(record, self.store.class_names))
        engine.fire_event(RoundEvents.ROUND_COMPLETED)

    def _make_record(self, engine: SupervisedTrainer, found: dict[str, Any], number: int) -> dict[str, Any]:
        metrics = {}
        if self.evaluator is not None:
            is_last = found["state"]["epoch"] == self.epochs_per_round
            metrics = evaluate(engine, self.evaluator, found["network"], is_last)
        epoch, restarts = engine.state.epoch, self._restarts
        record = make_record(found, self.options, round=number, epoch=epoch, metrics=metrics, restarts=restarts)
        log_record(LOGGER, record)
        return record

    def _relabelling(self, engine: SupervisedTrainer) -> Relabelling:
        return Relabelling(engine, self.store, self.relabel_loader, self.options, self.folds, self._found)

    def _relabel(self, engine: SupervisedTrainer) -> list[int]:
        return self._relabelling(engine).write_round(self._record)

    def _told_options(self) -> dict[str, Any]:
        own = {"epochs_per_round": self.epochs_per_round, "checks_per_round": len(self.checks), "folds": self.folds}
        return {**self.options.as_dict(), **own}

    def _case_ids(self) -> dict[str, list[str] | None]:
        """Return the ids of the store's cases, and of the clean ones where their data set has a list of them."""
        clean = getattr(self.clean_loader.dataset, "data", None)
        known = isinstance(clean, Sequence) and all(isinstance(case, Mapping) and "id" in case for case in clean)
        return {
            "training": [str(case["id"]) for case in self.store.cases],
            "clean": [str(case["id"]) for case in clean] if known and clean is not None else None,
        }
