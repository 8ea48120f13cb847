"""The loss that keeps a network from unlearning what it learnt before it learns wrong labels by heart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader
from monai.inferers import Inferer
from monai.utils import LossReduction, convert_to_tensor
from torch.nn.modules.loss import _Loss

from monai_sc.benchmark.methods.case_map import CaseMapHandler, CaseMemory
from monai_sc.benchmark.methods.distributions import check_reduction, label_distributions, log_distributions, reduced
from monai_sc.functional.checks import OUTPUTS, check_choice

LEAST = 1e-4  # probability in a target, and argument of the logarithm


def updated_target(target: torch.Tensor, probabilities: torch.Tensor, momentum: float) -> torch.Tensor:
    r"""Return :math:`\beta t + (1 - \beta) p`, with ``p`` clamped to 0.0001 at least and normalised again.

    Args:
        target: ``t``, ``(batch, groups, classes, *spatial)``; zero in all classes where there is none yet.
        probabilities: ``p``, of the same shape; the result has no gradient.
        momentum: ``beta``.
    """
    clamped = probabilities.detach().clamp(LEAST, 1 - LEAST)
    return momentum * target + (1 - momentum) * clamped / clamped.sum(dim=2, keepdim=True)


class EarlyLearningRegularizationLoss(_Loss):
    r"""Cross-entropy with a term that draws the prediction towards a target: what was predicted in earlier epochs.

    .. math:: L = \mathrm{CE}(p, y) + \lambda \operatorname{mean} \log(1 - \langle t', p \rangle), \qquad
              t' = \beta t + (1 - \beta) p

    (Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, NeurIPS 2020, section 4, for
    every voxel). ``p`` in ``t'`` is a constant, clamped to 0.0001 at least; so is the argument of the logarithm. The
    loss does not change ``t``: :py:class:`~monai_sc.benchmark.methods.EarlyLearningTargetHandler` does, once per epoch
    and from images without augmentation, where the paper does at every step.

    Of the target ``t`` all classes are kept, also of a sigmoid head background and foreground of each channel: after
    ``n`` epochs their sum is :math:`1 - \beta^n`, so that a target of the first epochs weighs little, and one that is
    zero in both is none at all, while a probability of the foreground alone could not tell it from "background".

    Args:
        output: ``"sigmoid"`` or ``"softmax"``, of the network's head.
        coefficient: ``lambda``, at least 0; 0 leaves the cross-entropy.
        momentum: ``beta``, in ``[0, 1)``.
        loss: in place of the cross-entropy, any loss of logits and label, with its own reduction.
        reduction: ``"mean"`` or ``"sum"`` over the batch, groups and voxels, or ``"none"``:
            ``(batch, groups, *spatial)``.

    Raises:
        ValueError: when a value is out of range; at the call, when the shapes do not fit.

    Example:
        >>> logits, label = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
        >>> loss = EarlyLearningRegularizationLoss(coefficient=1, momentum=0)
        >>> loss(logits, label).abs().item()  # log 2 + log (1 - 1/2)
        0.0
    """

    def __init__(
        self,
        *,
        output: str = "sigmoid",
        coefficient: float = 7.0,
        momentum: float = 0.8,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        reduction: LossReduction | str = "mean",
    ) -> None:
        super().__init__(reduction=check_reduction(reduction))
        if not coefficient >= 0:
            raise ValueError(f"coefficient must be at least 0, got {coefficient}.")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and under 1, got {momentum}.")
        self.output = check_choice(output, OUTPUTS, "output")
        self.coefficient = coefficient
        self.momentum = momentum
        self.loss = loss

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 (as in PyTorch)
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss.

        Args:
            input: logits ``(batch, channels, *spatial)``.
            target: the label, of the same shape (with ``"softmax"`` also ``(batch, 1, *spatial)`` of class numbers).
            memory: ``t``: ``(batch, channels, *spatial)`` with ``"softmax"``, and ``(batch, 2 * channels, *spatial)``
                with ``"sigmoid"``: background and foreground of the first channel, of the second, and so on. Zero in
                all classes, or ``None``, is no target yet, as in the first epoch.
        """
        logs = log_distributions(input, self.output)
        predicted = logs.exp()
        following = updated_target(_as_distributions(memory, predicted), predicted, self.momentum)
        agreement = (following * predicted).sum(dim=2)
        regularizer = self.coefficient * (1 - agreement).clamp_min(LEAST).log()
        if self.loss is not None:
            return self.loss(input, target) + reduced(regularizer, self.reduction)
        entropy = -(label_distributions(target, input, self.output) * logs).sum(dim=2)
        return reduced(entropy + regularizer, self.reduction)


def _as_distributions(memory: torch.Tensor | None, predicted: torch.Tensor) -> torch.Tensor:
    """Return the remembered target in the form of the prediction's distributions."""
    if memory is None:
        return torch.zeros_like(predicted)
    batch, groups, classes, *spatial = predicted.shape
    if tuple(memory.shape) != (batch, groups * classes, *spatial):
        raise ValueError(
            f"memory must have the shape {(batch, groups * classes, *spatial)}, all classes of each of the {groups} "
            f"groups, got {tuple(memory.shape)}."
        )
    known: torch.Tensor = convert_to_tensor(memory, track_meta=False)
    return known.to(predicted).reshape(predicted.shape)


class EarlyLearningTargetHandler(CaseMapHandler):
    r"""Keep the target ``t`` of each case for :py:class:`~monai_sc.benchmark.methods.EarlyLearningRegularizationLoss`.

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
