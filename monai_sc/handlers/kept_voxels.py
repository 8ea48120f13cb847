"""The handler that says which voxels the truncated generalized cross-entropy trains on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from statistics import mean
from typing import Any

import torch
from ignite.engine import Events
from monai.data import DataLoader
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.inferers import Inferer

from monai_sc.data.case_memory import CaseMemory
from monai_sc.handlers.case_map import CaseMapHandler
from monai_sc.losses.generalized_cross_entropy import GeneralizedCrossEntropyLoss
from monai_sc.parallel import unwrapped


class KeptVoxelsHandler(CaseMapHandler):
    r"""Choose the voxels that the truncated :py:class:`~monai_sc.losses.GeneralizedCrossEntropyLoss` trains on.

    A voxel is kept, :math:`v = 1`, if the probability of its given label is over the loss's ``threshold`` in the image
    without augmentation. All are kept until the end of epoch ``start``; then and every ``interval`` epochs it is
    decided anew (Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy
    Labels, NeurIPS 2018, algorithm 1, with the schedule of the public code, 40 and 10). That code decides with the
    network that did best on the test set, which no training may look at; here it is that of the epoch, or with
    ``evaluator`` the one that did best on clean cases.

    The trainer's loss is ``CaseMapLoss(GeneralizedCrossEntropyLoss(..., threshold=...))``, and its transforms end with
    ``LoadCaseMapd(key, memory, channels=..., default=1)``: as many channels as the network has with ``"sigmoid"``, one
    with ``"softmax"``. Each decision costs a pass over the cases without augmentation, a third to a half of an epoch.

    Args:
        memory: of what is kept, of the type bool.
        loader: of all training cases without augmentation, with ``"id"``, ``"image"`` and the given ``"label"``; of a
            case that it lacks all voxels are kept.
        start: epochs before the first decision, at least 1.
        interval: epochs between two decisions, at least 1.
        evaluator: of the trainer's network on clean cases, with a key metric; something else runs it, such as MONAI's
            ``ValidationHandler``.
        key: of the maps in the batches of the trainer.
        inferer: for whole cases; by default that of the trainer. Where it trains on crops, a sliding window.

    Raises:
        ValueError: when ``memory`` has another type, ``start`` or ``interval`` is under 1, or ``evaluator`` has no key
            metric; at the start of a run, when the maps would not reach the loss as they should; at a decision, when
            the evaluator has not run yet.
        TypeError: at the start of a run, when the trainer has another loss.
    """

    def __init__(
        self,
        memory: CaseMemory,
        *,
        loader: DataLoader,
        start: int = 40,
        interval: int = 10,
        evaluator: SupervisedEvaluator | None = None,
        key: Hashable = "kept_voxels",
        inferer: Inferer | None = None,
    ) -> None:
        super().__init__(memory, loader=loader, key=key, inferer=inferer)
        if memory.dtype != bool:
            raise ValueError(f"memory must have dtype='bool', a voxel is kept or not, got {memory.dtype}.")
        for name, value in (("start", start), ("interval", interval)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1 epoch, got {value}.")
        if evaluator is not None and evaluator.state.key_metric_name is None:
            raise ValueError("evaluator must have a key metric, by which the best network is chosen, got none.")
        self.start = start
        self.interval = interval
        self.evaluator = evaluator
        self._best: dict[str, Any] = {}
        self._kept: list[float] = []

    def attach(self, engine: SupervisedTrainer) -> None:
        super().attach(engine)
        if self.evaluator is not None:
            self.evaluator.add_event_handler(Events.COMPLETED, self.remember_best)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the memory, and the best network if there is an evaluator."""
        return {**super().state_dict(), "best": self._best}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._best = dict(state_dict["best"])

    def check_loss(self, loss: Any) -> None:
        if not isinstance(loss, GeneralizedCrossEntropyLoss) or loss.threshold is None:
            raise TypeError(
                "The trainer's loss must be CaseMapLoss(GeneralizedCrossEntropyLoss(...)) with a threshold, got "
                "another one."
            )

    def remember_best(self, evaluator: SupervisedEvaluator) -> None:
        """Keep the weights of the evaluator's network if they did best so far."""
        value = float(evaluator.state.metrics[evaluator.state.key_metric_name])
        if not self._best or evaluator.metric_cmp_fn(value, self._best["metric"]):
            weights = {name: one.cpu() for name, one in unwrapped(evaluator.network).state_dict().items()}
            self._best = {"metric": value, "network": deepcopy(weights)}

    def __call__(self, engine: SupervisedTrainer) -> None:
        super().__call__(engine)
        if self._kept:
            engine.logger.info("Epoch %d: %.1f%% of the voxels are kept.", engine.state.epoch, 100 * mean(self._kept))
            self._kept = []

    def is_due(self, epoch: int) -> bool:
        return epoch >= self.start and (epoch - self.start) % self.interval == 0

    def network(self, engine: SupervisedTrainer) -> torch.nn.Module:
        current = super().network(engine)
        if self.evaluator is None:
            return current
        if not self._best:
            raise ValueError("evaluator must have run before the first decision, got none of its results; run it.")
        best: torch.nn.Module = deepcopy(current)
        best.load_state_dict(self._best["network"])
        return best

    def make_map(
        self, loss: GeneralizedCrossEntropyLoss, case: Mapping[str, Any], logits: torch.Tensor
    ) -> torch.Tensor:
        kept: torch.Tensor = loss.kept(logits[None], case["label"][None].cpu())[0]
        self._kept.append(float(kept.float().mean()))
        return kept
