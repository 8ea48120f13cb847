"""The correction of a predicted boundary by its bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type

from monai_sc.functional.checks import as_array, check_choice, check_spacing, per_channel
from monai_sc.functional.distance import METRICS, has_boundary, signed_distance

__all__ = ["REPRESENTATIONS", "correct_boundary"]

REPRESENTATIONS = ("distance", "logit")


def correct_boundary(
    logits: NdarrayOrTensor,
    bias: float | Sequence[float],
    *,
    representation: str = "distance",
    gamma: float = 1.0,
    metric: str = "euclidean",
    spacing: Sequence[float] | None = None,
) -> NdarrayOrTensor:
    r"""Move the boundary that ``logits`` ``(channels, *spatial)`` predict back by ``bias``: **the label is** ``>= 0``.

    ``"distance"``: :math:`\hat\Delta - \hat\phi`, so that the label is :math:`\hat\phi - \hat\Delta \le 0` (Yao et al.,
    ICLR 2023, section 3.2). Here :math:`\hat\phi` is measured from the face between the classes, which makes the rule
    symmetric: a slab that was dilated or eroded by ``k`` is given back exactly, a curved boundary up to the grid.

    ``"logit"``: :math:`\hat f - \lambda \exp(-\hat\phi^2 / (2 \gamma^2 \hat\Delta^2))` (eq. 8), where
    :math:`\lambda` is the supremum of :math:`\hat f` over :math:`\hat\Delta \le \hat\phi \le 0` for
    :math:`\hat\Delta < 0`, and its infimum over :math:`0 \le \hat\phi \le \hat\Delta` for
    :math:`\hat\Delta > 0`. The paper prints :math:`+\lambda`, which moves the boundary the wrong way. One step removes
    about three quarters of the bias of a linear logit.

    Args:
        logits: the network's output before sigmoid, so that the predicted label is ``logits >= 0``; finite. A channel
            whose predicted label is empty or full has no boundary to move, and is returned unchanged.
        bias: :math:`\hat\Delta`, one value or one per channel, in voxels, or mm with ``spacing``. Negative: the
            prediction is too large, and shrinks. 0 returns a channel unchanged, and so does ``"logit"`` with
            :math:`|\hat\Delta|` under the smallest distance, where there is no voxel to take :math:`\lambda` from.
        representation: ``"distance"`` or ``"logit"``.
        gamma: :math:`\gamma` in ``(0, 1]``, width of the ``"logit"`` correction.
        metric: ``"euclidean"`` or ``"taxicab"``.
        spacing: size of a voxel along each spatial axis, in mm.

    Returns:
        Scores, with the kind, shape and floating dtype of ``logits`` (float32 for integers): in the unit of ``bias``
        for a channel moved by ``"distance"``, else logits.

    Raises:
        ValueError: when ``logits`` or ``bias`` is not finite, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[-1.5, -0.5, 0.5, 1.5, 0.5, -0.5]])
        >>> (correct_boundary(logits, bias=-1.0) >= 0).astype(int).tolist()
        [[0, 0, 0, 1, 0, 0]]
    """
    check_choice(representation, REPRESENTATIONS, "representation")
    check_choice(metric, METRICS, "metric")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}.")
    array = as_array(logits)
    if array.ndim < 2:
        raise ValueError(f"logits must have the shape (channels, *spatial), got {array.shape}.")
    if not np.all(np.isfinite(array)):
        raise ValueError("logits must be finite, got nan or infinite values; the network has diverged.")
    check_spacing(spacing, array.ndim - 1)
    shifts = per_channel(bias, len(array), "bias")
    if not np.all(np.isfinite(np.asarray(shifts, dtype=np.float64))):
        raise ValueError(
            f"bias must be finite, got {shifts}; it is undefined for a class without a usable clean case: "
            "give 0 for that class to leave it as predicted."
        )
    floating = array.dtype.kind == "f"
    scores = array.astype(np.result_type(array.dtype, np.float32) if floating else np.float32)
    predicted = array >= 0
    for channel in np.flatnonzero(has_boundary(predicted)):
        shift = float(shifts[channel])
        if shift == 0:
            continue
        mask = predicted[channel : channel + 1]
        origin = "face" if representation == "distance" else "voxel"
        phi = np.asarray(signed_distance(mask, metric=metric, spacing=spacing, origin=origin))[0]
        if representation == "distance":
            scores[channel] = shift - phi
            continue
        band = (shift <= phi) & (phi <= 0) if shift < 0 else (phi >= 0) & (phi <= shift)
        if band.any():
            extreme = scores[channel][band].max() if shift < 0 else scores[channel][band].min()
            scores[channel] -= extreme * np.exp(-(phi**2) / (2 * (gamma * shift) ** 2))
    return convert_to_dst_type(scores, logits, dtype=logits.dtype if floating else np.float32)[0]
