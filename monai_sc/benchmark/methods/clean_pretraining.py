"""Training on clean cases before the training itself."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from ignite.engine import Events
from monai.data import DataLoader
from monai.engines import SupervisedTrainer, Trainer
from monai.inferers import Inferer

from monai_sc.handlers.progress import LOGGER


class CleanPretrainingHandler:
    """Train a trainer's network, or its networks, on clean cases before the first epoch.

    So methods that have no use for clean cases get as much from them as those that have one (Yao et al., ICLR 2023,
    section 4: the compared methods are pre-trained on the clean validation cases, which are then among the training
    cases). The optimizer of each network is that of the trainer, at the rate that it begins with, and starts afresh
    afterwards. A training that is resumed is not pre-trained again.

    Args:
        clean_loader: batches of the clean cases, as the trainer has them of the training cases.
        loss_function: of predictions and clean labels; the trainer's own may be one for labels with errors.
        epochs: of this training, at least 1.
        inferer: of the networks; by default they are called with the whole image.

    Raises:
        ValueError: when ``epochs`` is less.
        TypeError: when it is attached to an engine that is not a ``Trainer``.
    """

    def __init__(
        self,
        clean_loader: DataLoader,
        *,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        epochs: int,
        inferer: Inferer | None = None,
    ) -> None:
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1 epoch, got {epochs}.")
        self.clean_loader = clean_loader
        self.loss_function = loss_function
        self.epochs = epochs
        self.inferer = inferer

    def attach(self, engine: Trainer) -> None:
        """Attach to a trainer with ``network`` and ``optimizer``, or with lists ``networks`` and ``optimizers``."""
        if not isinstance(engine, Trainer):
            raise TypeError(f"engine must be a monai.engines.Trainer, got {type(engine).__name__}.")
        engine.add_event_handler(Events.EPOCH_STARTED(once=1), self)

    def __call__(self, engine: Any) -> None:
        networks = getattr(engine, "networks", [engine.network])
        optimizers = getattr(engine, "optimizers", None) or [engine.optimizer]
        for network, optimizer in zip(networks, optimizers, strict=True):
            before = deepcopy(optimizer.state_dict())
            trainer = SupervisedTrainer(
                device=engine.state.device,
                max_epochs=self.epochs,
                train_data_loader=self.clean_loader,
                network=network,
                optimizer=optimizer,
                loss_function=self.loss_function,
                non_blocking=engine.non_blocking,
                prepare_batch=engine.prepare_batch,
                inferer=self.inferer,
                amp=engine.amp,
                to_kwargs=engine.to_kwargs,
                amp_kwargs=engine.amp_kwargs,
            )
            trainer.run()
            optimizer.load_state_dict(before)
        LOGGER.info("Trained on the clean cases for %d epochs.", self.epochs)
