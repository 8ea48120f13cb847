"""The handler that keeps the targets of early-learning regularization."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader
from monai.inferers import Inferer

from monai_sc.data.case_memory import CaseMemory
from monai_sc.handlers.case_map import CaseMapHandler
from monai_sc.losses.distributions import log_distributions
from monai_sc.losses.early_learning import EarlyLearningRegularizationLoss, updated_target


class EarlyLearningTargetHandler(CaseMapHandler):
    r"""Keep the target ``t`` of each case for :py:class:`~monai_sc.losses.EarlyLearningRegularizationLoss`.

    At the end of every epoch all training cases are predicted without augmentation, and
    :math:`t \leftarrow \beta t + (1 - \beta) p`, with the loss's ``beta``. Liu et al. do this at every step with the
    prediction that was trained on, which has no place for augmentation that moves voxels. The pass over the cases costs
    a third to a half of an epoch. In half precision (the default of the memory) a target is exact to 0.001 or so.

    The trainer's loss is ``CaseMapLoss(EarlyLearningRegularizationLoss(...))``, and its transforms end with
    ``LoadCaseMapd(key, memory, channels=...)``: as many as the network has with ``"softmax"``, twice as many with
    ``"sigmoid"``.

    Args:
        memory: of the targets, of a floating-point type.
        loader: of all training cases without augmentation, with ``"id"`` and ``"image"``; a case that it lacks has no
            target.
        key: of the targets in the batches of the trainer.
        inferer: for whole cases; by default that of the trainer. Where it trains on crops, a sliding window.

    Raises:
        ValueError: when ``memory`` has another type; at the start of a run, when the maps would not reach the loss as
            they should.
        TypeError: at the start of a run, when the trainer has another loss.
    """

    def __init__(
        self,
        memory: CaseMemory,
        *,
        loader: DataLoader,
        key: Hashable = "early_learning_target",
        inferer: Inferer | None = None,
    ) -> None:
        super().__init__(memory, loader=loader, key=key, inferer=inferer)
        if not np.issubdtype(memory.dtype, np.floating):
            raise ValueError(f"memory must have a floating-point dtype for probabilities, got {memory.dtype}.")

    def check_loss(self, loss: Any) -> None:
        if not isinstance(loss, EarlyLearningRegularizationLoss):
            raise TypeError(
                "The trainer's loss must be CaseMapLoss(EarlyLearningRegularizationLoss(...)), got another one."
            )

    def make_map(
        self, loss: EarlyLearningRegularizationLoss, case: Mapping[str, Any], logits: torch.Tensor
    ) -> torch.Tensor:
        predicted = log_distributions(logits[None], loss.output).exp()
        old = self.memory.read(case["id"])
        target = torch.zeros_like(predicted) if old is None else old.as_tensor().to(predicted).reshape(predicted.shape)
        return updated_target(target, predicted, loss.momentum).flatten(1, 2)[0]
