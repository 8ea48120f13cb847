"""Generalized cross-entropy, between cross-entropy and the mean absolute error."""

from __future__ import annotations

import math

import torch
from monai.utils import LossReduction, convert_to_tensor
from torch.nn.modules.loss import _Loss

from monai_sc.functional.checks import OUTPUTS, check_choice
from monai_sc.losses.distributions import check_reduction, label_distributions, log_distributions, reduced


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
