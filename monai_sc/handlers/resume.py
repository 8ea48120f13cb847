"""The handler that lets an interrupted run go on."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint
from monai.config import PathLike
from monai.data import set_rnd
from monai.engines import Workflow

from monai_sc.functional import case_seed
from monai_sc.handlers.progress import LOGGER
from monai_sc.parallel import fail_together, gather, is_main, rank, unwrapped


class OtherRunError(ValueError):
    """A checkpoint is that of a run with other options or cases."""


class ResumeHandler:
    """Save the state of a run at its start and after every epoch, and go on from it when the same run is started again.

    An interrupted run that goes on ends with the same result as one that was not. So that nothing random needs to be
    saved, this handler seeds every epoch: Python, NumPy, PyTorch and the transforms of the training data, from the
    seed that PyTorch has at the start of the run (``monai.utils.set_determinism`` sets it), the number of the epoch,
    and the rank of the process. (Two things go on otherwise: a ``SmartCacheDataset``, whose order starts anew, and a
    trainer whose ``epoch_length`` is under the length of its loader, since its epochs share one pass.)

    MONAI's ``CheckpointSaver`` names its files after the epoch, and its ``CheckpointLoader`` has to be told a name;
    here there is one file, which is replaced whole. In a training of several processes the first one writes it, and
    all read it.

    Args:
        path: of the checkpoint; its folder is made if it does not exist. Without the file a run starts at its
            beginning.
        parts: what to save, by name: objects with ``state_dict`` and ``load_state_dict``, the trainer among them.

    Raises:
        ValueError: at the start of a run, when the file is damaged, lacks a part or holds one that does not fit; an
            ``OtherRunError`` when the run began with other options or cases.
        OSError: when the checkpoint cannot be written; the one before stays.
    """

    def __init__(self, path: PathLike, parts: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.parts = dict(parts)
        self.seed = 0

    def attach(self, engine: Workflow) -> None:
        """Attach to a MONAI trainer, behind every handler that changes the state it saves."""
        engine.add_event_handler(Events.STARTED, self.load)
        engine.add_event_handler(Events.EPOCH_STARTED(once=1), self)
        engine.add_event_handler(Events.EPOCH_STARTED, self.seed_epoch)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def state_dict(self) -> dict[str, int]:
        """Return the seed of the run."""
        return {"seed": self.seed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go on with the seed that :py:meth:`state_dict` returned."""
        self.seed = state_dict["seed"]

    def load(self, engine: Workflow) -> None:
        """Load the checkpoint, if there is one; the trainer keeps its own ``max_epochs``."""
        scaler = getattr(engine, "scaler", None)  # of gradients in half precision, made when a run starts
        if scaler is not None:
            self.parts["scaler"] = scaler
        with fail_together():
            self.seed = gather(torch.initial_seed())[0]
            found = gather(self.path.is_file())
            if any(found):
                self._load(engine)

    def seed_epoch(self, engine: Workflow) -> None:
        """Seed the epoch that starts, and have its batches drawn anew."""
        seed = case_seed(self.seed, f"epoch {engine.state.epoch}, rank {rank()}")
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed % 2**63)
        loader: Any = engine.data_loader
        if getattr(loader, "num_workers", None) == 0:  # else MONAI's worker_init_fn does it in each worker
            set_rnd(loader.dataset, seed % 2**31)
        if not isinstance(loader, Sized) or len(loader) <= (engine.state.epoch_length or 0):
            engine.set_data(loader)

    def __call__(self, engine: Workflow) -> None:
        with fail_together():
            if is_main():
                self._save()

    def _everything(self) -> dict[str, Any]:
        return {name: unwrapped(part) for name, part in self.parts.items()} | {"resume": self}

    def _load(self, engine: Workflow) -> None:
        max_epochs = engine.state.max_epochs
        try:
            with zipfile.ZipFile(self.path) as file:  # whose checksums torch.load does not look at
                if changed := file.testzip():
                    raise ValueError(f"the checksum of {changed} is wrong")
            checkpoint = torch.load(self.path, map_location=engine.state.device, weights_only=True)
            Checkpoint.load_objects(self._everything(), checkpoint)
        except OtherRunError as error:
            raise OtherRunError(f"{self.path} is the checkpoint of another run: {error}") from error
        except Exception as error:  # a file that is damaged or of another kind raises nearly anything
            raise ValueError(
                f"{self.path} must be the checkpoint of this run, but it is damaged or does not fit "
                f"({type(error).__name__}: {error}); choose another folder to start a new run."
            ) from error
        engine.state.max_epochs = max_epochs
        LOGGER.info("Resumed after epoch %d from %s.", engine.state.epoch, self.path)

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            partial.unlink(missing_ok=True)  # a link would be written through
            with partial.open("wb") as file:
                torch.save({name: part.state_dict() for name, part in self._everything().items()}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
            partial.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or f"{str(error).splitlines()[0][:200]}, is the disk full?"
            raise OSError(f"{self.path} cannot be written ({reason}); the previous checkpoint is kept.") from error
