"""What the handlers share that train on the labels of a store, and write rounds into it."""

from __future__ import annotations

import inspect
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers.param_scheduler import ParamGroupScheduler, ParamScheduler
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_sc.handlers.loaders import check_loaders, damaged_file
from monai_sc.handlers.progress import LOGGER, RunProgress
from monai_sc.handlers.relabelling import to_file_grid
from monai_sc.handlers.resume import OtherRunError
from monai_sc.handlers.training_data import TrainingLabels
from monai_sc.parallel import LOST, OtherProcessError, fail_together, gather, is_lost, is_main, rank, unwrapped, warm_up
from monai_sc.store.label_store import LabelStore

# How MONAI begins what it says of an error in a transform that loads a file; it does not name the file.
IN_A_LOADER = re.compile(r"applying transform <(monai\.transforms\.io|monai_sc\.transforms\.load)\.")


class StoreRun(ABC):
    """A run of several trainings, each from the first weights, on labels of a store in which it writes rounds.

    Each training begins with what the run began with: the network, the optimizer, the scaler of gradients in half
    precision, and the schedules that a ``LrScheduleHandler`` of MONAI or a parameter scheduler of ignite steps.

    Raises:
        ValueError: when ``epochs_per_round`` is under 1; at the start of a run, when a schedule of the learning rate
            could not begin anew with each training.
        TypeError: when it is attached to an engine that is not a ``SupervisedTrainer``.
    """

    _saved: tuple[str, ...] = ("_initial", "_trainings")  # the attributes that a checkpoint must hold

    def __init__(
        self,
        store: LabelStore,
        *,
        relabel_loader: DataLoader,
        epochs_per_round: int,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        folds: int,
        progress: bool = True,
    ) -> None:
        if epochs_per_round < 1:
            raise ValueError(f"epochs_per_round must be at least 1 epoch, got {epochs_per_round}.")
        self.store = store
        self.relabel_loader = relabel_loader
        self.epochs_per_round = epochs_per_round
        self.lr_scheduler = lr_scheduler
        self.folds = folds
        self._initial: dict[str, Any] = {}
        self._trainings = 0  # that are finished
        self._fold: int | None = None  # that is left out
        self._training = TrainingLabels(store, folds)
        self._running = False
        self._resumed = False
        self._bars = RunProgress(progress)
        self._has_claimed = False

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer, behind the handlers that validate or step the schedule, before those that save."""
        if not isinstance(engine, SupervisedTrainer):
            raise TypeError(f"engine must be a monai.engines.SupervisedTrainer, got {type(engine).__name__}.")
        engine.add_event_handler(Events.STARTED, lambda: setattr(self, "_running", False))
        # Not at STARTED, where other handlers load weights or the state of this one, before or after it.
        engine.add_event_handler(Events.EPOCH_STARTED, self.start)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)
        engine.add_event_handler(Events.COMPLETED | Events.TERMINATE, lambda: self._release())
        # ignite calls the handlers of an exception up to the first that raises, as MONAI's StatsHandler does. So one in
        # front of all gives the store up, whenever they are attached; ignite has no public way for it. Another one, in
        # its turn, raises the error, which ignite does only where no handler is attached.
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)
        handlers = engine._event_handlers[Events.EXCEPTION_RAISED]
        handlers.insert(0, handlers.pop())
        engine.add_event_handler(Events.EXCEPTION_RAISED, _raise)

    def start(self, engine: SupervisedTrainer) -> None:
        """Check what the run is given, and point the training data at the labels that it begins or goes on with."""
        if self._running:
            return
        self._running = True
        engine.state.shows_rounds = True  # so that a ProgressHandler shows nothing beside it
        with fail_together():
            warm_up()
            parts = self._parts(engine)
            if not self._initial:
                self._initial = deepcopy({name: part.state_dict() for name, part in parts.items()})
            if missing := sorted(parts.keys() - self._initial.keys()):
                raise ValueError(
                    f"The checkpoint must hold the first state of {', '.join(missing)}, without which the run began; "
                    "go on with the handlers of the run, or choose another folder for a new run."
                )
            self._start(engine)
        self._show(engine, engine.state.epoch - 1)

    def __call__(self, engine: SupervisedTrainer) -> None:
        self._show(engine, engine.state.epoch)
        with fail_together():
            self._complete_epoch(engine)

    def _show(self, engine: SupervisedTrainer, epoch: int) -> None:
        done = (epoch - 1) % self.epochs_per_round + 1 if epoch else 0
        self._bars.show(f"Round {self._round}", done, self.epochs_per_round, epoch, engine.state.max_epochs or 0)

    @property
    def _round(self) -> int:
        """The round that is trained on."""
        return self._trainings

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on, the first weights and what the run has found among it."""
        saved = {name.lstrip("_"): getattr(self, name) for name in self._saved}
        return {"options": self._told_options(), "cases": self._case_ids(), **saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what :py:meth:`state_dict` returned.

        Raises:
            OtherRunError: when that was with other options or cases.
        """
        self._refuse_other_run(state_dict)
        for name in self._saved:
            setattr(self, name, copy(state_dict[name.lstrip("_")]))
        self._resumed = True

    @abstractmethod
    def _start(self, engine: SupervisedTrainer) -> None:
        """Check what the run is given."""

    @abstractmethod
    def _complete_epoch(self, engine: SupervisedTrainer) -> None:
        """Do what is due after an epoch."""

    @abstractmethod
    def _told_options(self) -> dict[str, Any]:
        """Return the options on which the labels depend, as types that a checkpoint may hold."""

    @abstractmethod
    def _case_ids(self) -> dict[str, list[str] | None]:
        """Return the ids of the cases, by what they are for."""

    def _refuse_other_run(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of a run with other options or cases."""
        options = self._told_options()
        for name, value in state_dict["options"].items():
            if value != options.get(name):
                raise OtherRunError(
                    f"{name} must be {value!r}, with which the run began, got {options.get(name)!r}; choose another "
                    "folder for a run with other options."
                )
        for name, ids in self._case_ids().items():
            if ids != state_dict["cases"][name]:
                raise OtherRunError(
                    f"the {name} cases must be those with which the run began, in the same order; choose another "
                    "folder for a run with other cases."
                )

    def _refuse_lost_rounds(self, last: int) -> None:
        """Refuse a store without the rounds that the run has made."""
        lost = sorted(set(range(1, last + 1)) - set(self.store.rounds))
        if lost:
            raise ValueError(
                f"{self.store.root} must hold the rounds that this run has made, but {lost} are missing; put them back "
                "from a copy, or choose another folder for a new run."
            )

    def _go_on(
        self,
        engine: SupervisedTrainer,
        number: int,
        clean_loader: DataLoader | None = None,
        group_key: str | None = None,
    ) -> None:
        """Begin or go on with a training on the labels of a round, the last one of the run."""
        expected = (engine.state.epoch - 1) // self.epochs_per_round
        if self._trainings != expected:
            raise ValueError(
                f"A run that goes on at epoch {engine.state.epoch} with epochs_per_round={self.epochs_per_round} must "
                f"have finished {expected} rounds, got {self._trainings}: save and load this handler together with the "
                "trainer, by a handler that is attached behind it, and keep epochs_per_round."
            )
        newer = [r for r in self.store.rounds if r > number]
        if newer and not (self._resumed and newer == [number + 1]):
            raise ValueError(
                f"{self.store.root} holds the rounds {newer}, which this run has not made; load the checkpoint of the "
                "run that made them, or choose another folder."
            )
        if is_main():
            self._claim()
            self._refuse_changed_files(number)
            for orphan in newer:  # written just before this run was interrupted, and not yet in its checkpoint
                self.store.discard(orphan)
        gather()
        case = check_loaders(engine.data_loader, clean_loader, self.relabel_loader, group_key)
        to_file_grid(self.store, self.relabel_loader, case, torch.zeros(1, *case["image"].shape[1:]))
        self._training.use(engine.data_loader, number, self._fold)

    def _restart(self, engine: SupervisedTrainer, number: int, fold: int | None) -> None:
        """Begin the next training, from the first weights, on the labels of a round, without the cases of one fold."""
        self._fold = fold
        for name, part in self._parts(engine).items():
            if self._initial[name]:  # not that of a scaler without a GPU
                part.load_state_dict(deepcopy(self._initial[name]))
        self._training.use(engine.data_loader, number, fold)
        engine.set_data(engine.data_loader)  # a fresh iterator: the old one may hold batches of the old labels

    def _parts(self, engine: SupervisedTrainer) -> dict[str, Any]:
        """Return what begins anew with each training, by name."""
        parts = {"network": unwrapped(engine.network), "optimizer": engine.optimizer, "lr_scheduler": self.lr_scheduler}
        parts["scaler"] = engine.scaler
        parts |= {f"lr_scheduler_{k}": schedule for k, schedule in enumerate(self._attached_schedules(engine), start=1)}
        return {name: part for name, part in parts.items() if part is not None}

    def _attached_schedules(self, engine: SupervisedTrainer) -> list[Any]:
        """Return the schedules that handlers of the trainer step, beside the one that this handler was given."""
        found: list[Any] = []
        for event, handlers in engine._event_handlers.items():
            # The handlers themselves, out of the filter of an event, and the objects of those that are methods.
            owners = [inspect.unwrap(handler) for handler, *_ in handlers]
            owners = [getattr(owner, "__self__", owner) for owner in owners]
            schedules = [_schedule_of(owner) for owner in owners]
            own = [owner is self for owner in owners]
            if True in own and event in (Events.EPOCH_STARTED, Events.EPOCH_COMPLETED):
                early, late = schedules[: own.index(True)], schedules[own.index(True) :]
                if any(schedule is not None for schedule in (early if event == Events.EPOCH_STARTED else late)):
                    raise ValueError(
                        "The handler of a learning-rate schedule must be attached "
                        f"{'behind' if event == Events.EPOCH_STARTED else 'before'} {type(self).__name__}, otherwise "
                        "training would start at the second step of the schedule."
                    )
            for schedule in schedules:
                if schedule is None or any(schedule is other for other in (*found, self.lr_scheduler)):
                    continue
                if not _can_be_reset(schedule):
                    raise ValueError(
                        f"The learning-rate schedule {type(schedule).__name__} must begin anew in each round, but its "
                        "state cannot be saved and loaded; take one of torch.optim.lr_scheduler with MONAI's "
                        "LrScheduleHandler, and pass it as lr_scheduler=."
                    )
                found.append(schedule)
        # PyTorch's mark of an optimizer for which a schedule has been made, such as one that a function steps.
        if not found and self.lr_scheduler is None and hasattr(engine.optimizer.step, "_wrapped_by_lr_sched"):
            raise ValueError(
                "The learning-rate schedule of the optimizer must begin anew in each round, but no LrScheduleHandler "
                "of the trainer has it; pass it as lr_scheduler=."
            )
        return found

    def _refuse_changed_files(self, number: int) -> None:
        """Refuse labels that were given, or that the run has made, if they are no longer what they were."""
        self.store.refuse_changed_sources()
        changed = self.store.changed_labels(number) if number else []
        if changed:
            raise ValueError(
                f"The labels of round {number} must stay as they were written, but {changed[0]} "
                f"{'has changed' if changed[0].is_file() else 'is gone'}, and {len(changed) - 1} more; put the old "
                "ones back from a copy, or choose another folder for a new run."
            )

    def _claim(self) -> None:
        """Keep other processes from the store, as long as this run lasts."""
        if not self._has_claimed:
            self.store.claim()
            self._has_claimed = True

    def _release(self) -> None:
        self._bars.stop()
        if self._has_claimed:
            self.store.release()
            self._has_claimed = False

    def _fail(self, engine: SupervisedTrainer, error: BaseException) -> None:
        self._release()
        told: Exception | None = None
        # In the midst of training, where the backend says it in its own words.
        if is_lost(error) and not isinstance(error, OtherProcessError):
            told = OtherProcessError(LOST.format(rank()))
        elif IN_A_LOADER.search(str(error)):
            LOGGER.info("A file could not be loaded; looking for a damaged file.")
            loaders = (engine.data_loader, self.relabel_loader, getattr(self, "clean_loader", None))
            if damaged := damaged_file(loaders):
                told = ValueError(damaged)
        if told is not None:
            told.__cause__ = error
            engine._fire_event(Events.EXCEPTION_RAISED, told)  # the others log it, or save; the last one raises it


def _raise(error: BaseException) -> None:
    raise error


def _schedule_of(handler: Any) -> Any:
    """Return the schedule that a handler steps, nothing if it steps none."""
    if isinstance(handler, LrScheduleHandler):
        return handler.lr_scheduler
    return handler if isinstance(handler, (ParamScheduler, ParamGroupScheduler)) else None


def _can_be_reset(schedule: Any) -> bool:
    """Say whether a schedule has a state that a checkpoint can hold."""
    try:
        file = io.BytesIO()
        torch.save(schedule.state_dict(), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # what is not made to be saved raises nearly anything
        return False
    return hasattr(schedule, "load_state_dict")
