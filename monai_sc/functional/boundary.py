"""The correction of a predicted boundary by its bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.config import NdarrayOrTensor
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_sc.functional.checks import as_array, check_choice, check_same_shape, check_spacing, per_channel
from monai_sc.functional.distance import METRICS, has_boundary, signed_distance
from monai_sc.functional.masks import bounding_box

REPRESENTATIONS = ("distance", "logit")
ROUNDING = 1e-4  # by which probabilities that were summed in single precision may leave [0, 1]


def check_correction(gamma: float, metric: str, max_shift: float | None) -> None:
    """Refuse options that :py:func:`correct_boundary` does not take.

    Raises:
        ValueError: naming the first option that is out of range.
    """
    check_choice(metric, METRICS, "metric")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}.")
    if max_shift is not None and not max_shift >= 0:
        raise ValueError(f"max_shift must be at least 0 or None, got {max_shift}.")


def correct_boundary(
    logits: NdarrayOrTensor,
    bias: float | Sequence[float],
    *,
    representation: str = "distance",
    gamma: float = 1.0,
    metric: str = "euclidean",
    spacing: Sequence[float] | None = None,
    max_shift: float | None = None,
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
        max_shift: largest shift of a boundary than this, in the unit of ``bias``; ``None`` for no limit.

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
    check_correction(gamma, metric, max_shift)
    array = _finite_logits(logits)
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
        if max_shift is not None:
            shift = min(max(shift, -max_shift), max_shift)
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
    if array.dtype == np.float16:  # whose largest number is 65504
        scores = scores.clip(np.finfo(np.float16).min, np.finfo(np.float16).max)
    return convert_to_dst_type(scores, logits, dtype=logits.dtype if floating else np.float32)[0]


def probabilities_to_logits(
    probabilities: NdarrayOrTensor, *, exclusive: bool = False, clip: float = 1e-6
) -> NdarrayOrTensor:
    r"""Return the logits ``(channels, *spatial)`` whose sigmoid, or softmax, is ``probabilities``.

    Args:
        probabilities: in ``[0, 1]``.
        exclusive: the channels are those of a softmax: the result is :math:`\log p`; else
            :math:`\log(p / (1 - p))`.
        clip: values under it, or over 1 less it, are set to it; no boundary moves by it, since 0.5 stays.

    Raises:
        ValueError: when a value is outside ``[0, 1]``, or ``clip`` not in ``(0, 0.5)``.

    Example:
        >>> import numpy as np
        >>> probabilities_to_logits(np.array([[0.5, 1.0]])).round(1).tolist()
        [[0.0, 13.8]]
    """
    if not 0 < clip < 0.5:
        raise ValueError(f"clip must be in (0, 0.5), got {clip}.")
    array = as_array(probabilities)
    if array.ndim < 2 or not len(array):
        raise ValueError(f"probabilities must have the shape (channels, *spatial), got {array.shape}.")
    with np.errstate(invalid="ignore"):  # of nan, which is refused as well
        inside = (array >= -ROUNDING) & (array <= 1 + ROUNDING)
    if not np.all(inside):
        raise ValueError(
            f"probabilities must be in [0, 1], got values from {np.min(array):g} to {np.max(array):g}; give logits as "
            "logits."
        )
    clipped = np.clip(array.astype(np.result_type(array.dtype, np.float32)), clip, 1 - clip)
    logits = np.log(clipped) if exclusive else np.log(clipped) - np.log1p(-clipped)
    return convert_to_dst_type(logits, probabilities, dtype=logits.dtype)[0]


def one_against_rest(logits: NdarrayOrTensor) -> NdarrayOrTensor:
    r"""Return for each class of a softmax the logit of it against all others, :math:`f_k - \log\sum_{j \ne k} e^{f_j}`.

    Its sigmoid is the softmax probability of the class. At least 0 is a probability of at least a half, so with three
    classes and more, a voxel whose largest probability is under a half belongs to none; ``exclusive_label`` gives it to
    the largest.

    Args:
        logits: ``(classes, *spatial)``, two classes at least.

    Raises:
        ValueError: when there is one class only, or a logit is not finite.

    Example:
        >>> import numpy as np
        >>> one_against_rest(np.array([[0.0], [2.0]])).tolist()
        [[-2.0], [2.0]]
    """
    array = _finite_logits(logits)
    if len(array) < 2:
        raise ValueError(f"logits must have one channel per class, two at least, got {array.shape}.")
    values = array.astype(np.result_type(array.dtype, np.float32))
    against = np.empty_like(values)
    for k in range(len(values)):
        others = np.delete(values, k, axis=0)
        top = others.max(axis=0)
        against[k] = values[k] - top - np.log(np.exp(others - top).sum(axis=0))
    return convert_to_dst_type(against, logits, dtype=against.dtype)[0]


def exclusive_label(
    scores: NdarrayOrTensor, logits: NdarrayOrTensor, *, spacing: Sequence[float] | None = None
) -> np.ndarray:
    """Return one class per voxel, from corrected scores of each class and the softmax logits that they came from.

    Channel 0 is the background, which claims nothing. A voxel that other classes claim with a score of at least 0 goes
    to the largest score. One that no class claims was given up by the class that held it. It becomes background, unless
    another class lies on the other side of the boundary that has moved, and is likelier there than the background: one
    that has the nearest of the voxels which the class never held. Where two classes draw back from each other,
    background is between them.

    The logits alone do not decide, since just inside a boundary those of all other classes are low: a class whose grey
    values lie between two others would get a rim around them.

    Args:
        scores: ``(classes, *spatial)`` of :py:func:`correct_boundary`, in one unit; channel 0 is not read.
        logits: same shape.
        spacing: size of a voxel along each axis, for what is nearest.

    Returns:
        The class of each voxel, int64 ``(*spatial)``.

    Raises:
        ValueError: when the shapes differ, there is one class only, or ``spacing`` does not fit.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[0.0, 0, 4, 4], [2, 2, 2, 0]])  # background and one class
        >>> scores = np.array([[0.0] * 4, [1.0, -0.5, -1.5, -2.5]])  # which shrinks by one voxel
        >>> exclusive_label(scores, logits).tolist()
        [1, 0, 0, 0]
    """
    given, corrected = _finite_logits(logits), as_array(scores)
    check_same_shape(corrected, given, ("scores", "logits"))
    size = check_spacing(spacing, given.ndim - 1)
    holder, against = given.argmax(axis=0), as_array(one_against_rest(given))
    claimed = (corrected[1:] >= 0).any(axis=0)
    kept = np.where(claimed, corrected[1:].argmax(axis=0) + 1, holder)
    # A class that holds a voxel by less than a half of the probability had no boundary there to move.
    given_up = [~claimed & (holder == k) & (against[k] >= 0) for k in range(1, len(given))]
    kept[np.any(given_up, axis=0)] = 0
    label = kept.copy()
    for k, place in enumerate(given_up, start=1):
        if place.any() and not (holder == k).all():
            box = bounding_box(holder == k, 1) or ()
            nearest = ndimage.distance_transform_edt(
                holder[box] == k, sampling=size, return_distances=False, return_indices=True
            )
            beyond = kept[box][tuple(nearest[:, place[box]])]
            own = given[:, place]
            label[place] = np.where(own[beyond, np.arange(len(beyond))] > own[0], beyond, 0)
    return np.asarray(label)


def _finite_logits(logits: NdarrayOrTensor) -> np.ndarray:
    array = as_array(logits)
    if array.ndim < 2 or not len(array):
        raise ValueError(f"logits must have the shape (channels, *spatial), got {array.shape}.")
    if not np.all(np.isfinite(array)):
        raise ValueError("logits must be finite, got nan or infinite values; the network has diverged.")
    return array
