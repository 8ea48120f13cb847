"""The choice of the voxels whose labels are probably right: those that a network has the smallest loss on."""

from __future__ import annotations

import torch

from monai_sc.functional.checks import check_same_shape


def select_small_loss(loss: torch.Tensor, candidates: torch.Tensor, keep_fraction: float) -> torch.Tensor:
    r"""Select the share of candidates with the smallest loss, in each image by itself.

    Of :math:`n` candidates :math:`\max(1, \mathrm{round}(R n))` are selected, with :math:`R` the ``keep_fraction``; a
    half is rounded to the even number. (Han et al., Co-teaching, NeurIPS 2018, Algorithm 1, which selects among the
    images of a mini-batch.)

    Args:
        loss: ``(batch, groups, *spatial)``, of each voxel; ``nan`` and infinity count as the largest number. Of equal
            losses, that of the voxel which comes first in memory is the smaller one.
        candidates: boolean, of the same shape. Where an image has none in a group, none is selected.
        keep_fraction: in ``[0, 1]``.

    Returns:
        A boolean mask of the shape of ``loss``.

    Raises:
        TypeError: when ``loss`` does not hold floating-point numbers, or ``candidates`` no booleans.
        ValueError: when ``keep_fraction`` is out of range, the shapes differ, or there is no group axis.

    Example:
        >>> loss = torch.tensor([[[0.9, 0.1, 0.5, 0.2]]])
        >>> select_small_loss(loss, loss > 0.15, 0.67).int().tolist()
        [[[0, 0, 1, 1]]]
    """
    if not 0 <= keep_fraction <= 1:
        raise ValueError(f"keep_fraction must be in [0, 1], got {keep_fraction}.")
    check_same_shape(loss, candidates, ("loss", "candidates"))
    if not loss.is_floating_point() or candidates.dtype != torch.bool:
        raise TypeError(
            f"loss must hold floating-point numbers and candidates booleans, got {loss.dtype} and {candidates.dtype}."
        )
    if loss.ndim < 3:
        raise ValueError(f"loss must have the shape (batch, groups, *spatial), got {tuple(loss.shape)}.")
    if keep_fraction == 1:  # there is nothing to sort
        return candidates.clone()
    finite = loss.detach().nan_to_num(nan=torch.finfo(loss.dtype).max)
    order = finite.masked_fill(~candidates, torch.inf).flatten(2).argsort(dim=-1, stable=True)
    number = candidates.flatten(2).sum(dim=-1, keepdim=True)
    kept = torch.minimum((number.double() * keep_fraction).round().clamp(min=1), number)
    is_kept = torch.arange(order.shape[-1], device=loss.device) < kept
    return torch.zeros_like(is_kept).scatter(-1, order, is_kept).reshape(loss.shape)
