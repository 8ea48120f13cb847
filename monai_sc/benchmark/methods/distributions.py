"""The two heads of a segmentation network in one form: for every voxel, distributions over exclusive classes."""

from __future__ import annotations

import torch
from monai.utils import LossReduction, convert_to_tensor
from torch.nn.functional import log_softmax, logsigmoid

from monai_sc.functional.checks import OUTPUTS, check_choice


def check_reduction(reduction: LossReduction | str) -> str:
    """Return a reduction as PyTorch's losses take it.

    Raises:
        ValueError: when there is no such one.
    """
    return LossReduction(check_choice(reduction, [one.value for one in LossReduction], "reduction")).value


def reduced(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    """Return the ``"mean"`` or the ``"sum"`` of a loss; with ``"none"`` the loss of each voxel."""
    return {"mean": loss.mean, "sum": loss.sum}[reduction]() if reduction != "none" else loss


def log_distributions(logits: torch.Tensor, output: str) -> torch.Tensor:
    """Return the logarithms of the predicted probabilities, in float32 at least, by group and class.

    Args:
        logits: ``(batch, channels, *spatial)``.
        output: ``"softmax"``: the channels are exclusive classes, so one group of them; ``"sigmoid"``: each channel is
            a group of its own with two classes, background and foreground.

    Returns:
        ``(batch, groups, classes, *spatial)``: ``(batch, 1, channels, ...)`` or ``(batch, channels, 2, ...)``; finite,
        whatever the logits.

    Raises:
        ValueError: when ``output`` has no such value, ``logits`` have no spatial axis, or one channel with
            ``"softmax"``.
    """
    check_choice(output, OUTPUTS, "output")
    if logits.ndim < 3:
        raise ValueError(f"input must have the shape (batch, channels, *spatial), got {tuple(logits.shape)}.")
    logits = convert_to_tensor(logits, track_meta=False)  # MetaTensors are slow in arithmetic
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if output == "sigmoid":
        return torch.stack([logsigmoid(-logits), logsigmoid(logits)], dim=2)
    if logits.shape[1] < 2:
        raise ValueError("input must have two channels or more with output='softmax', got 1; use output='sigmoid'.")
    return log_softmax(logits, dim=1).unsqueeze(1)


def label_distributions(target: torch.Tensor, logits: torch.Tensor, output: str) -> torch.Tensor:
    """Return the given labels in the form of :py:func:`log_distributions`.

    Args:
        target: ``(batch, channels, *spatial)`` of probabilities (0 and 1, or soft labels); with ``"softmax"`` also
            ``(batch, 1, *spatial)`` of class numbers.
        logits: that the labels go with.
        output: ``"sigmoid"`` or ``"softmax"``.

    Returns:
        ``(batch, groups, classes, *spatial)``, of the type of :py:func:`log_distributions`.

    Raises:
        ValueError: when the shapes do not fit, or a class number has no channel.
    """
    target = convert_to_tensor(target, track_meta=False)
    shape = tuple(logits.shape)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if output == "softmax" and target.ndim == logits.ndim and target.shape[1] == 1:
        if (target.shape[0], *target.shape[2:]) != (shape[0], *shape[2:]):
            raise ValueError(f"target and input must have the same size, got {tuple(target.shape)} and {shape}.")
        numbers = target.long()
        if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= shape[1]):
            raise ValueError(
                f"target must hold class numbers from 0 to {shape[1] - 1}, one per channel of input, got "
                f"{int(numbers.min())} to {int(numbers.max())}."
            )
        return torch.zeros(shape, dtype=dtype, device=target.device).scatter_(1, numbers, 1).unsqueeze(1)
    if tuple(target.shape) != shape:
        raise ValueError(f"target and input must have the same shape, got {tuple(target.shape)} and {shape}.")
    target = target.to(dtype)
    return target.unsqueeze(1) if output == "softmax" else torch.stack([1 - target, target], dim=2)
