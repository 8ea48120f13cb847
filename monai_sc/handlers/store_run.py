"""What the handlers share that train on the labels of a store, and write rounds into it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.engines import SupervisedTrainer

from monai_sc.data.label_store import LabelStore
from monai_sc.handlers.loaders import check_loaders, damaged_file
from monai_sc.handlers.relabelling import to_file_grid
from monai_sc.handlers.resume import OtherRunError
from monai_sc.handlers.training_data import TrainingLabels
from monai_sc.parallel import LOST, OtherProcessError, fail_together, gather, is_lost, is_main, prepare, rank, unwrapped

# How MONAI begins what it says of an error in a transform that loads a file; it does not name the file.
IN_A_LOADER = re.compile(r"applying transform <(monai\.transforms\.io|monai_sc\.transforms\.load)\.")


class StoreRun(ABC):
    """A run of several trainings, each from the first weights, on labels of a store in which it writes rounds.

    Args:
        store: label store with the training cases.
        relabel_loader: batches of the store's cases.
        epochs_per_round: epochs of each training, at least 1.
        lr_scheduler: learning-rate schedule to restart with the network, if there is one.
        folds: number of parts of the cases.

    Raises:
        ValueError: when ``epochs_per_round`` is under 1.
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
        with fail_together():
            prepare()
            if not self._initial:
                self._initial = deepcopy({name: part.state_dict() for name, part in self._parts(engine).items()})
            self._start(engine)

    def __call__(self, engine: SupervisedTrainer) -> None:
        with fail_together():
            self._complete_epoch(engine)

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
            part.load_state_dict(deepcopy(self._initial[name]))
        self._training.use(engine.data_loader, number, fold)
        engine.set_data(engine.data_loader)  # a fresh iterator: the old one may hold batches of the old labels

    def _parts(self, engine: SupervisedTrainer) -> dict[str, Any]:
        parts = {"network": unwrapped(engine.network), "optimizer": engine.optimizer, "lr_scheduler": self.lr_scheduler}
        return {name: part for name, part in parts.items() if part is not None}

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
        if self._has_claimed:
            self.store.release()
            self._has_claimed = False

    def _fail(self, engine: SupervisedTrainer, error: BaseException) -> None:
        self._release()
        if is_lost(error):  # in the midst of training, where the backend says it in its own words
            raise OtherProcessError(LOST.format(rank())) from error
        if IN_A_LOADER.search(str(error)):
            engine.logger.info("A file could not be loaded; looking for one that is damaged.")
            loaders = (engine.data_loader, self.relabel_loader, getattr(self, "clean_loader", None))
            if damaged := damaged_file(loaders):
                raise ValueError(damaged) from error


def _raise(error: BaseException) -> None:
    raise error
