"""The handler that lets an interrupted run go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint
from monai.config import PathLike
from monai.engines import Workflow

__all__ = ["ResumeHandler"]


class ResumeHandler:
    """Save the state of a run at its start and after every epoch, and go on from it when the same run is started again.

    MONAI's ``CheckpointSaver`` names its files after the epoch, and its ``CheckpointLoader`` has to be told a name;
    here there is one file, which is replaced whole.

    Args:
        path: of the checkpoint; its folder is made if it does not exist. Without the file a run starts at its
            beginning.
        parts: what to save, by name: objects with ``state_dict`` and ``load_state_dict``, the trainer among them.

    Raises:
        ValueError: at the start of a run, when the file is damaged, lacks a part or holds one that does not fit.
        OSError: when the checkpoint cannot be written; the one before stays.
    """

    def __init__(self, path: PathLike, parts: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.parts = dict(parts)

    def attach(self, engine: Workflow) -> None:
        """Attach to a MONAI trainer, behind every handler that changes the state it saves."""
        engine.add_event_handler(Events.STARTED, self.load)
        engine.add_event_handler(Events.EPOCH_STARTED(once=1), self)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def load(self, engine: Workflow) -> None:
        """Load the checkpoint, if there is one; the trainer keeps its own ``max_epochs``."""
        if not self.path.is_file():
            return
        max_epochs = engine.state.max_epochs
        try:
            checkpoint = torch.load(self.path, map_location=engine.state.device, weights_only=True)
            Checkpoint.load_objects(self.parts, checkpoint)
        except Exception as error:  # a file that is damaged or of another kind raises nearly anything
            raise ValueError(
                f"{self.path} must be the checkpoint of this run, but it is damaged or does not fit "
                f"({type(error).__name__}: {error}); choose another folder to start a new run."
            ) from error
        engine.state.max_epochs = max_epochs
        engine.logger.info("Resumed after epoch %d from %s.", engine.state.epoch, self.path)

    def __call__(self, engine: Workflow) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            with partial.open("wb") as file:
                torch.save({name: part.state_dict() for name, part in self.parts.items()}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
            partial.unlink(missing_ok=True)
            raise OSError(
                f"{self.path} cannot be written, is the disk full? The one before stays ({error})."
            ) from error
