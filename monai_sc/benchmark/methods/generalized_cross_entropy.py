"""Generalized cross-entropy, between cross-entropy and the mean absolute error."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from copy import deepcopy
from statistics import mean
from typing import Any

import torch
from ignite.engine import Events
from monai.data import DataLoader
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.inferers import Inferer
from monai.utils import LossReduction, convert_to_tensor
from torch.nn.modules.loss import _Loss

from monai_sc.benchmark.methods.case_map import CaseMapHandler, CaseMemory
from monai_sc.benchmark.methods.distributions import check_reduction, label_distributions, log_distributions, reduced
from monai_sc.functional.checks import OUTPUTS, check_choice
from monai_sc.handlers.progress import LOGGER
from monai_sc.parallel import unwrapped


class GeneralizedCrossEntropyLoss(_Loss):
    r"""Generalized cross-entropy, which learns less from a voxel the less the network believes its label.

    For a voxel with label :math:`y`,

    .. math:: L_q = \frac{1 - p_y^q}{q},

    (Zhang and Sabuncu, *Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels*, NeurIPS
    2018, eq. 6), which is cross-entropy for :math:`q \to 0` and the mean absolute error for :math:`q = 1`: its gradient
    is that of cross-entropy times :math:`p_y^q`. For a soft label it is the expectation over the label. The truncated
    form (in the same paper) is :math:`v\,(L_q(p_y) - L_q(k))`, where the weight :math:`v` is 1 for voxels that are kept
    and 0 for those that are pruned: :py:meth:`kept` says which those are, to be asked anew every few epochs.

    Args:
        output: ``"sigmoid"``: each channel is a class of its own, and background is a class too; ``"softmax"``: the
            channels are exclusive classes.
        q: in ``[0, 1]``; 0 is cross-entropy, and 0.7 is usual.
        threshold: :math:`k`, a probability in ``(0, 1)``, for the truncated form, usually 0.5; ``None`` for the plain
            one.
        reduction: ``"mean"`` over all voxels and groups, the pruned ones too, as in the paper, whose sum runs over all
            samples; ``"sum"``; or ``"none"``.

    Raises:
        ValueError: when an option is out of range.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[0.0, -20.0]]])  # the second voxel's label is not believed
        >>> GeneralizedCrossEntropyLoss(q=1.0, reduction="none")(logits, torch.ones(1, 1, 2)).tolist()
        [[[0.5, 1.0]]]
    """

    def __init__(
        self,
        *,
        output: str = "sigmoid",
        q: float = 0.7,
        threshold: float | None = None,
        reduction: LossReduction | str = "mean",
    ) -> None:
        super().__init__(reduction=check_reduction(reduction))
        self.output = check_choice(output, OUTPUTS, "output")
        if not 0 <= q <= 1:
            raise ValueError(f"q must be in [0, 1], got {q}.")
        if threshold is not None and not 0 < threshold < 1:
            raise ValueError(f"threshold must be in (0, 1) or None, got {threshold}.")
        self.q = q
        self.threshold = threshold

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - as in every loss
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss; with ``reduction="none"`` ``(batch, groups, *spatial)``, float32 at least.

        Args:
            input: logits ``(batch, channels, *spatial)``.
            target: ``(batch, channels, *spatial)`` of 0 and 1 or of soft labels; with ``"softmax"`` also
                ``(batch, 1, *spatial)`` of class numbers.
            weight: :math:`v`, ``(batch, groups, *spatial)``: one group per channel with ``"sigmoid"``, and one in all
                with ``"softmax"``; ``None`` is 1 everywhere. Where all of it is 0, the loss and its gradient are 0.

        Raises:
            ValueError: when the shapes do not fit.
        """
        loss = self._loss(input, target)
        if self.threshold is not None:
            loss = loss - self._of_log(torch.tensor(math.log(self.threshold), dtype=loss.dtype))
        if weight is not None:
            if tuple(weight.shape) != tuple(loss.shape):
                raise ValueError(
                    f"weight must have the shape (batch, groups, *spatial), {tuple(loss.shape)} with "
                    f"output={self.output!r}, got {tuple(weight.shape)}."
                )
            loss = loss * convert_to_tensor(weight, track_meta=False).to(loss.dtype)
        return reduced(loss, self.reduction)

    @torch.no_grad()
    def kept(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as in every loss
        r"""Return which voxels the truncated form keeps: those with :math:`L_q(p_y) < L_q(k)`, thus :math:`p_y > k`.

        Args:
            input: as in :py:meth:`forward`.
            target: as in :py:meth:`forward`.

        Returns:
            Booleans ``(batch, groups, *spatial)``, a ``weight`` for :py:meth:`forward`.

        Raises:
            ValueError: when there is no threshold, or the shapes do not fit.
        """
        if self.threshold is None:
            raise ValueError("threshold must be in (0, 1) to tell which voxels are kept, got None.")
        loss = self._loss(input, target)
        return loss < self._of_log(torch.tensor(math.log(self.threshold), dtype=loss.dtype))

    def _loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses = self._of_log(log_distributions(logits, self.output))
        return (label_distributions(target, logits, self.output) * losses).sum(dim=2)

    def _of_log(self, log_p: torch.Tensor) -> torch.Tensor:
        """Return the loss from log p: a power of p itself has no finite gradient where p is 0."""
        return -log_p if self.q == 0 else -torch.expm1(self.q * log_p) / self.q


class KeptVoxelsHandler(CaseMapHandler):
    r"""Choose the voxels that a truncated :py:class:`GeneralizedCrossEntropyLoss` trains on.

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
            LOGGER.info("Epoch %d: %.1f%% of the voxels are kept.", engine.state.epoch, 100 * mean(self._kept))
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
