"""The bias of a boundary: how far, on average, predictions lie inside or outside the true boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from monai.config import NdarrayOrTensor
from scipy import ndimage, stats

from monai_sc.functional.box import bounding_box
from monai_sc.functional.checks import binary_mask, check_choice, check_same_shape
from monai_sc.functional.distance import METRICS, has_boundary, signed_distance

__all__ = ["REGIONS", "BoundaryBias", "boundary_bias", "boundary_displacement"]

REGIONS = ("boundary", "image")


def boundary_displacement(
    prediction: NdarrayOrTensor,
    label: NdarrayOrTensor,
    *,
    region: str = "boundary",
    metric: str = "euclidean",
    spacing: Sequence[float] | None = None,
) -> np.ndarray:
    r"""Return the mean of :math:`\hat\phi - \phi` for each channel of one case.

    **Negative: the prediction lies outside the label, it is too large. Positive: it is too small.**
    (Yao et al., ICLR 2023, eq. 6, for one image.)

    Args:
        prediction: ``(channels, *spatial)``, 0 and 1 only.
        label: the clean mask, same shape.
        region: ``"boundary"`` takes the mean over the voxels on both sides of the label's boundary, of distances that
            are measured from the face between the classes; a mask dilated by ``k`` voxels gives ``-k`` and one
            eroded by ``k`` gives ``+k``. ``"image"`` is eq. 6 to the letter: the mean over all voxels; a stray speck
            far from the object changes the distance of half the image, and ruins it.
        metric: ``"euclidean"`` or ``"taxicab"``.
        spacing: size of a voxel along each spatial axis, in mm; without it the unit is a voxel.

    Returns:
        A float64 array ``(channels,)``, in voxels or mm; ``nan`` where prediction or label has no boundary (is empty or
        full), since there is no distance then.

    Raises:
        ValueError: when an input is not binary, the shapes differ, or an option has no such value.

    Example:
        >>> import numpy as np
        >>> label = np.array([[0, 0, 0, 1, 1, 0, 0, 0]])
        >>> boundary_displacement(np.array([[0, 1, 1, 1, 1, 1, 1, 0]]), label).tolist()
        [-2.0]
    """
    check_choice(region, REGIONS, "region")
    check_choice(metric, METRICS, "metric")
    predicted = binary_mask(prediction, "prediction")
    true = binary_mask(label)
    check_same_shape(predicted, true, ("prediction", "label"))
    displacement = np.full(len(true), np.nan)
    usable = has_boundary(predicted) & has_boundary(true)
    origin = "face" if region == "boundary" else "voxel"
    faces = ndimage.generate_binary_structure(true.ndim - 1, 1)
    for channel in np.flatnonzero(usable):
        pair = np.stack([predicted[channel], true[channel]])
        if region == "boundary":  # in a box with one voxel more lies all that is nearest to a boundary
            box = bounding_box(np.asarray(pair.any(axis=0)), 1) or ()
            pair = np.stack([mask[box] for mask in pair])
        phi_predicted, phi_true = np.asarray(signed_distance(pair, metric=metric, spacing=spacing, origin=origin))
        difference = phi_predicted.astype(np.float64) - phi_true
        if region == "boundary":
            grown, grown_outside = (ndimage.binary_dilation(m, faces) for m in (pair[1], ~pair[1]))
            difference = difference[grown & grown_outside]
        displacement[channel] = difference.mean()
    return displacement


@dataclass(frozen=True)
class BoundaryBias:
    r"""The boundary bias :math:`\hat\Delta` of each class over a set of clean cases.

    **Negative: the labels that were learnt expand. Positive: they shrink.**

    Attributes:
        mean: :math:`\hat\Delta` ``(classes,)``, in the unit of the displacements; ``nan`` where no case was usable.
        interval: ``(classes, 2)``, bootstrap interval of the mean over cases; ``nan`` with fewer than two cases.
        num_used: ``(classes,)``, cases that count.
        num_skipped: ``(classes,)``, cases without a boundary in the label or in the prediction.
    """

    mean: np.ndarray
    interval: np.ndarray
    num_used: np.ndarray
    num_skipped: np.ndarray


def boundary_bias(
    displacements: np.ndarray, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> BoundaryBias:
    r"""Return :math:`\hat\Delta`, the mean displacement of each class over cases (Yao et al., ICLR 2023, eq. 6).

    Args:
        displacements: ``(cases, classes)``, from :py:func:`boundary_displacement`; ``nan`` is a case to skip.
        confidence: of the interval, in ``(0, 1)``.
        num_resamples: of the bootstrap over cases (percentile interval).
        seed: of the bootstrap.

    Raises:
        ValueError: when no case is usable in any class, ``displacements`` has another shape, or an option is out of
            range.

    Example:
        >>> bias = boundary_bias(np.array([[-5.0, np.nan], [-3.0, np.nan]]))
        >>> bias.mean.tolist(), bias.num_used.tolist(), bias.num_skipped.tolist()
        ([-4.0, nan], [2, 0], [0, 2])
    """
    values = np.asarray(displacements, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"displacements must have the shape (cases, classes) with at least one case, got {values.shape}."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}.")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}.")
    usable = np.isfinite(values)
    if not usable.any():
        raise ValueError(
            f"displacements must have at least one usable case, but in all {len(values)} the label or prediction is "
            "empty or full in every class; give clean cases that show the structures, or train the network longer."
        )
    classes = values.shape[1]
    mean, interval = np.full(classes, np.nan), np.full((classes, 2), np.nan)
    for k in range(classes):
        cases = values[usable[:, k], k]
        if len(cases):
            mean[k] = cases.mean()
        if len(cases) > 1:
            result = stats.bootstrap(
                (cases,),
                np.mean,
                method="percentile",
                confidence_level=confidence,
                n_resamples=num_resamples,
                rng=np.random.default_rng(seed),
            )
            interval[k] = result.confidence_interval
    return BoundaryBias(mean, interval, usable.sum(axis=0), (~usable).sum(axis=0))
