"""Symmetric cross-entropy: cross-entropy, and the same with prediction and label exchanged."""

from __future__ import annotations

import torch
from monai.utils import LossReduction
from torch.nn.modules.loss import _Loss

from monai_sc.benchmark.methods.distributions import check_reduction, label_distributions, log_distributions, reduced
from monai_sc.functional.checks import OUTPUTS, check_choice


class SymmetricCrossEntropyLoss(_Loss):
    r"""Cross-entropy, and the reverse one, in which the network's prediction weighs the label.

    For a voxel with the predicted distribution :math:`p` over the classes and the label's :math:`y`,

    .. math:: -\alpha \sum_c y_c \log p_c \; - \; \beta \sum_c p_c \log \max(y_c, a)

    (Wang et al., *Symmetric Cross Entropy for Robust Learning with Noisy Labels*, ICCV 2019, where
    :math:`\log 0` is defined as a constant :math:`A`; here :math:`A = \log a`). For a label of 0 and 1 the second term
    is :math:`-\beta A (1 - p_y)`, the mean absolute error, which label noise harms least but which learns slowly.

    Args:
        output: ``"sigmoid"``: each channel is a class of its own, and background is a class too; ``"softmax"``: the
            channels are exclusive classes.
        alpha: weight of cross-entropy, at least 0.
        beta: weight of the reverse one, at least 0.
        label_clip: :math:`a`, the least probability that a label gives to a class, in ``(0, 1)``; 1e-4 is
            :math:`A = -9.2`.
        reduction: ``"mean"`` over all voxels and groups, ``"sum"``, or ``"none"``.

    Raises:
        ValueError: when an option is out of range.

    Example:
        >>> import torch
        >>> loss = SymmetricCrossEntropyLoss(alpha=0, beta=1, label_clip=torch.e**-4)
        >>> round(loss(torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8)).item(), 3)
        2.0
    """

    def __init__(
        self,
        *,
        output: str = "sigmoid",
        alpha: float = 1.0,
        beta: float = 0.5,
        label_clip: float = 1e-4,
        reduction: LossReduction | str = "mean",
    ) -> None:
        super().__init__(reduction=check_reduction(reduction))
        self.output = check_choice(output, OUTPUTS, "output")
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value}.")
        if not 0 < label_clip < 1:
            raise ValueError(f"label_clip must be in (0, 1), got {label_clip}.")
        self.alpha = alpha
        self.beta = beta
        self.label_clip = label_clip

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as in every loss
        """Return the loss; with ``reduction="none"`` ``(batch, groups, *spatial)``, float32 at least.

        Args:
            input: logits ``(batch, channels, *spatial)``.
            target: ``(batch, channels, *spatial)`` of 0 and 1 or of soft labels; with ``"softmax"`` also
                ``(batch, 1, *spatial)`` of class numbers. A group is a channel with ``"sigmoid"``, and there is one in
                all with ``"softmax"``.

        Raises:
            ValueError: when the shapes do not fit.
        """
        log_p = log_distributions(input, self.output)
        labels = label_distributions(target, input, self.output)
        log_labels = labels.clamp(min=self.label_clip).log()
        loss = -(self.alpha * labels * log_p + self.beta * log_p.exp() * log_labels).sum(dim=2)
        return reduced(loss, self.reduction)
