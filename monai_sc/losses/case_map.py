"""The loss of a trainer that also gets what is remembered of each case."""

from __future__ import annotations

from collections.abc import Callable

import torch


class CaseMapLoss(torch.nn.Module):
    """Call a loss with a third argument, the maps of the batch's cases, which a handler puts here before each call.

    MONAI's ``SupervisedTrainer`` calls its loss with the prediction and the label only.

    Args:
        loss: called with the prediction, the label, and the maps ``(batch, channels, *spatial)``.

    Raises:
        ValueError: at the call, when no maps were put here since the last one.

    Example:
        >>> loss = CaseMapLoss(lambda input, target, weight: (weight * (input - target).abs()).mean())
        >>> loss.put(torch.tensor([1.0, 0.0]))
        >>> loss(torch.tensor([3.0, 3.0]), torch.tensor([1.0, 0.0])).item()
        1.0
    """

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.loss = loss
        self._maps: torch.Tensor | None = None

    def put(self, maps: torch.Tensor) -> None:
        """Keep the maps for the next call."""
        self._maps = maps

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002 (as in PyTorch)
        if self._maps is None:
            raise ValueError(
                "CaseMapLoss must get the maps of a batch before each call, got none; attach the handler that puts "
                "them there, such as EarlyLearningTargetHandler, to the trainer."
            )
        maps, self._maps = self._maps, None
        return self.loss(input, target, maps)
