"""What the handlers share that keep a map of each training case and hand it to the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import torch
from ignite.engine import Events
from monai.data import DataLoader, MetaTensor
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.inferers import Inferer
from monai.transforms import (
    Compose,
    Rand2DElastic,
    Rand2DElasticd,
    Rand3DElastic,
    Rand3DElasticd,
    RandGridDistortion,
    RandGridDistortiond,
    RandomizableTrait,
)

from monai_sc.data.case_memory import CaseMemory
from monai_sc.handlers.prediction import predict
from monai_sc.losses.case_map import CaseMapLoss
from monai_sc.parallel import fail_together, gather, is_main, unwrapped, world_size
from monai_sc.transforms.case_map import LoadCaseMapd

UNTRACKED = (Rand2DElastic, Rand2DElasticd, Rand3DElastic, Rand3DElasticd, RandGridDistortion, RandGridDistortiond)


class CaseMapHandler(ABC):
    """Hand the maps of a batch's cases to the loss, and make the maps of all cases anew at the end of epochs.

    The trainer's loss is a :py:class:`~monai_sc.losses.CaseMapLoss`, and its transforms end with a
    :py:class:`~monai_sc.transforms.LoadCaseMapd`. New maps are made from what the network predicts for the cases
    without augmentation, in eval mode. Such a pass costs the loading of all cases and a forward pass of each: a third
    to a half of an epoch, in which the backward pass comes on top.

    In a training of several processes the memory must be a folder that all reach; the first process makes the maps,
    the others wait.

    Args:
        memory: of the maps, the same object as in the transform.
        loader: of all training cases with the deterministic part of the transforms; batches have ``"id"`` and
            ``"image"``. A case that it lacks gets no map. A map gets the affine of what the transform moves it like,
            the label; without that in the batches, the affine of the image, which must then be the same.
        key: of the maps in the batches of the trainer.
        inferer: for whole cases; by default that of the trainer. Where it trains on crops, a sliding window.
    """

    def __init__(
        self, memory: CaseMemory, *, loader: DataLoader, key: Hashable, inferer: Inferer | None = None
    ) -> None:
        self.memory = memory
        self.loader = loader
        self.key = key
        self.inferer = inferer
        self._like: Any = None  # key of what the transform moves maps like

    def attach(self, engine: SupervisedTrainer) -> None:
        """Attach to a trainer; handlers that save a checkpoint, or stop the run, come behind."""
        engine.add_event_handler(Events.STARTED, self.check)
        engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self.hand_over)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the memory: the maps, or where they are in the folder."""
        return {"memory": self.memory.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the maps that :py:meth:`state_dict` told."""
        self.memory.load_state_dict(state_dict["memory"])

    def check(self, engine: SupervisedTrainer) -> None:
        """Refuse a trainer whose loss would not get the maps, or not where they belong.

        Raises:
            TypeError: when the trainer's loss is of another kind.
            ValueError: when its loader or transforms do not bring the maps in force to where the cases are.
        """
        self.check_loss(engine.loss_function.loss if isinstance(engine.loss_function, CaseMapLoss) else None)
        if world_size() > 1 and self.memory.folder is None:
            raise ValueError("memory must have a folder in a training of several processes, which share it, got none.")
        if any(isinstance(t, RandomizableTrait) for t in _transforms(self.loader)):
            raise ValueError(
                "loader must have deterministic transforms only, got a random one: the maps are those of cases without "
                "augmentation."
            )
        training: Any = engine.data_loader
        if getattr(training, "persistent_workers", False):
            raise ValueError(
                "The trainer's data loader must have persistent_workers=False, got True: such workers never see new "
                "maps."
            )
        if getattr(training, "num_workers", 0) and engine.state.epoch_length != len(training):
            raise ValueError(
                f"epoch_length must be that of the trainer's loader with num_workers over 0, {len(training)}, got "
                f"{engine.state.epoch_length}: workers that outlive an epoch do not see new maps."
            )
        transforms = list(_transforms(training))
        places = [
            k
            for k, t in enumerate(transforms)
            if isinstance(t, LoadCaseMapd) and t.memory is self.memory and t.key == self.key
        ]
        if not places or any(
            isinstance(t, RandomizableTrait) and not isinstance(t, LoadCaseMapd) for t in transforms[places[-1] :]
        ):
            raise ValueError(
                f"The trainer's transforms must have LoadCaseMapd({self.key!r}, memory) behind all random ones, with "
                f"the memory of this handler, got {[type(t).__name__ for t in transforms]}."
            )
        self._like = transforms[places[-1]].like
        elastic = [type(t).__name__ for t in transforms if isinstance(t, UNTRACKED)]
        if elastic:
            raise ValueError(
                f"The trainer's transforms must move voxels in ways that the affine tells, got {elastic[0]}: maps "
                "cannot follow it; leave it out."
            )

    def hand_over(self, engine: SupervisedTrainer) -> None:
        """Give the maps of the batch to the loss."""
        maps, loss = engine.state.batch[self.key], cast(CaseMapLoss, engine.loss_function)
        loss.put(maps.to(engine.state.device, non_blocking=engine.non_blocking))

    def __call__(self, engine: SupervisedTrainer) -> None:
        if not self.is_due(engine.state.epoch):
            return
        with fail_together():
            if is_main():
                self.memory.replace(self._maps(engine))
            if world_size() > 1:
                self.memory.load_state_dict(gather(self.memory.state_dict())[0])

    def is_due(self, epoch: int) -> bool:
        """Say whether new maps are made at the end of an epoch."""
        return True

    def network(self, engine: SupervisedTrainer) -> torch.nn.Module:
        """Return the network that predicts the cases."""
        return unwrapped(engine.network)

    @abstractmethod
    def check_loss(self, loss: Any) -> None:
        """Refuse a loss that does not know what to do with the maps; ``None`` if there is no ``CaseMapLoss``."""

    @abstractmethod
    def make_map(self, loss: Any, case: Mapping[str, Any], logits: torch.Tensor) -> torch.Tensor:
        """Return the new map of a case ``(channels, *spatial)``."""

    def _maps(self, engine: SupervisedTrainer) -> Iterator[tuple[str, MetaTensor]]:
        loss = cast(CaseMapLoss, engine.loss_function).loss
        predictions = predict(engine, self.loader, [self.network(engine)], inferer=self.inferer)
        for case, (logits,) in predictions:
            image = case["image"]
            if not isinstance(image, MetaTensor):
                raise TypeError(
                    f"The images of loader must be MetaTensors, whose affine says where a map lies, got "
                    f"{type(image).__name__}; keep track_meta=True."
                )
            if logits.shape[1:] != image.shape[1:]:
                raise ValueError(
                    f"The network's output must have the size of the image, {tuple(image.shape[1:])}, got "
                    f"{tuple(logits.shape[1:])}."
                )
            # The files of a label may have another affine than that of its image, such as none.
            like = case.get(self._like)
            affine = like.affine if isinstance(like, MetaTensor) else image.affine
            yield case["id"], MetaTensor(self.make_map(loss, case, logits), affine=affine)


def _transforms(loader: Any) -> Iterator[Any]:
    """Yield the transforms of a loader's data set, also those in others, as in ``OneOf``."""
    waiting = [getattr(getattr(loader, "dataset", None), "transform", None)]
    while waiting:
        transform = waiting.pop(0)
        if isinstance(transform, Compose):
            waiting = [*transform.transforms, *waiting]
        elif transform is not None:
            yield transform
