"""The bias of a boundary: how far, on average, predictions lie inside or outside the true boundary."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from monai.config import NdarrayOrTensor
from scipy import ndimage, stats

from monai_sc.functional.box import bounding_box
from monai_sc.functional.checks import as_array, binary_mask, check_choice, check_same_shape, check_spacing
from monai_sc.functional.distance import METRICS, has_boundary, signed_distance
from monai_sc.functional.surface import matched_structures, surface_displacement

REGIONS = ("boundary", "image")


def boundary_displacement(
    prediction: NdarrayOrTensor,
    label: NdarrayOrTensor,
    *,
    region: str = "boundary",
    metric: str = "euclidean",
    spacing: Sequence[float] | None = None,
    ignore: NdarrayOrTensor | None = None,
) -> np.ndarray:
    r"""Return the mean of :math:`\hat\phi - \phi` for each channel of one case.

    **Negative: the prediction lies outside the label, it is too large. Positive: it is too small.**
    (Yao et al., ICLR 2023, eq. 6, for one image.)

    Args:
        prediction: ``(channels, *spatial)``, 0 and 1 only.
        label: the clean mask, same shape.
        region: ``"boundary"`` measures at the boundaries themselves. Components and holes that only one of the masks
            has are left out first. With ``"euclidean"`` the mean runs over points between the voxels, from one boundary
            to the other; where the two ways differ, since a part has vanished, the lesser counts. A mask that was
            dilated or eroded by ``k`` gives ``-k`` or ``+k``, up to a quarter of a voxel. With ``"taxicab"`` the mean
            runs over the voxels on both sides of the label's boundary. ``"image"`` is eq. 6 to the letter: the mean
            over all voxels; a stray speck far from the object changes the distance of half the image, and ruins it.
        metric: ``"euclidean"`` or ``"taxicab"``.
        spacing: size of a voxel along each spatial axis, in mm; without it the unit is a voxel.
        ignore: ``(channels or 1, *spatial)``; where it is not 0, nothing counts.

    Returns:
        A float64 array ``(channels,)``, in voxels or mm; ``nan`` where prediction or label has no boundary (is empty or
        full), since there is no distance then, and with ``"boundary"`` where the two do not overlap.

    Raises:
        ValueError: when an input is not binary, the shapes differ, or an option has no such value.

    Example:
        >>> import numpy as np
        >>> position = np.arange(20)[None]
        >>> label, prediction = (position > 9) & (position < 16), (position > 7) & (position < 18)
        >>> boundary_displacement(prediction, label).round(3).tolist()
        [-2.0]
    """
    check_choice(region, REGIONS, "region")
    check_choice(metric, METRICS, "metric")
    predicted = binary_mask(prediction, "prediction")
    true = binary_mask(label)
    check_same_shape(predicted, true, ("prediction", "label"))
    check_spacing(spacing, true.ndim - 1)
    ignored = ignored_voxels(ignore, true.shape)
    displacement = np.full(len(true), np.nan)
    for channel in np.flatnonzero(has_boundary(predicted) & has_boundary(true)):
        pair = np.stack([predicted[channel], true[channel]])
        left_out = None if ignored is None else ignored[channel]
        if region == "image":
            counted: np.ndarray = np.ones(pair[0].shape, dtype=bool)
        else:
            box = bounding_box(np.asarray(pair.any(axis=0)), 1) or ()
            pair = np.stack(matched_structures(*(mask[box] for mask in pair)))
            if not has_boundary(pair).all():
                continue
            left_out = None if left_out is None else left_out[box]
            if metric == "euclidean":
                displacement[channel] = surface_displacement(*pair, spacing=spacing, ignored=left_out)
                continue
            faces = ndimage.generate_binary_structure(pair[1].ndim, 1)
            counted = ndimage.binary_dilation(pair[1], faces) & ndimage.binary_dilation(~pair[1], faces)
        counted = counted if left_out is None else counted & ~left_out
        origin = "face" if region == "boundary" else "voxel"
        phi = np.asarray(signed_distance(pair, metric=metric, spacing=spacing, origin=origin), dtype=np.float64)
        if counted.any():
            displacement[channel] = (phi[0] - phi[1])[counted].mean()
    return displacement


def ignored_voxels(ignore: NdarrayOrTensor | None, shape: Sequence[int]) -> np.ndarray | None:
    """Return the voxels that are not to count or to change, as booleans of ``shape`` ``(channels, *spatial)``.

    Raises:
        ValueError: when ``ignore`` has neither that shape nor that of one channel.
    """
    if ignore is None:
        return None
    voxels = as_array(ignore) != 0
    if voxels.shape[1:] != tuple(shape[1:]) or len(voxels) not in (1, shape[0]):
        raise ValueError(
            f"ignore must have the shape of the label, {tuple(shape)}, or one channel of it, got {voxels.shape}."
        )
    return np.broadcast_to(voxels, shape)


@dataclass(frozen=True)
class BoundaryBias:
    r"""The boundary bias :math:`\hat\Delta` of each class over a set of clean cases.

    **Negative: the labels that were learnt expand. Positive: they shrink.**

    Attributes:
        mean: :math:`\hat\Delta` ``(classes,)``, in the unit of the displacements; ``nan`` where no case was usable.
        interval: ``(classes, 2)``, bootstrap interval of the mean over cases; ``nan`` with fewer than two cases.
        num_used: ``(classes,)``, cases that count.
        num_skipped: ``(classes,)``, cases without a boundary in the label or in the prediction.
        spread: ``(classes,)``, standard deviation over the cases; ``nan`` with fewer than two.
        verdict: for each class ``"unbiased"`` where the whole interval lies within the tolerance of 0, else
            ``"biased"`` where it does not contain 0, else ``"cannot tell"``.
    """

    mean: np.ndarray
    interval: np.ndarray
    num_used: np.ndarray
    num_skipped: np.ndarray
    spread: np.ndarray
    verdict: tuple[str, ...]

    def half_width(self, num_cases: int, *, confidence: float = 0.95) -> np.ndarray:
        r"""Return what half of the interval of each class would be with another number of cases like these.

        It is :math:`t \, s / \sqrt{n}`: four times as many cases halve it, and a few more are worth most where there
        are few.

        Args:
            num_cases: at least 2.
            confidence: of the interval, in ``(0, 1)``.

        Raises:
            ValueError: when ``num_cases`` is under 2.
        """
        if num_cases < 2:
            raise ValueError(f"num_cases must be at least 2, got {num_cases}: one case says nothing of its error.")
        return np.asarray(stats.t.ppf((1 + confidence) / 2, num_cases - 1) * self.spread / math.sqrt(num_cases))


def unknown_bias(classes: int, num_cases: int) -> BoundaryBias:
    """Return the bias of classes of which none of some cases is usable."""
    used, skipped = (np.full(classes, n, dtype=np.int64) for n in (0, num_cases))
    mean, interval, spread = np.full(classes, np.nan), np.full((classes, 2), np.nan), np.full(classes, np.nan)
    return BoundaryBias(mean, interval, used, skipped, spread, ("cannot tell",) * classes)


def boundary_bias(
    displacements: np.ndarray,
    *,
    confidence: float = 0.95,
    tolerance: float = 1.0,
    num_resamples: int = 2000,
    seed: int = 0,
) -> BoundaryBias:
    r"""Return :math:`\hat\Delta`, the mean displacement of each class over cases (Yao et al., ICLR 2023, eq. 6).

    The interval is that of a bootstrap over cases (percentiles), made wider by the factor
    :math:`t_{n-1} / z \cdot \sqrt{n / (n - 1)}`, without which it is too narrow with few cases (Hesterberg, The
    American Statistician 2015).

    Args:
        displacements: ``(cases, classes)``, from :py:func:`boundary_displacement`; ``nan`` is a case to skip.
        confidence: of the interval, in ``(0, 1)``.
        tolerance: a bias up to it does no harm, for the verdict; in the unit of the displacements.
        num_resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: when no case is usable in any class, ``displacements`` has another shape, or an option is out of
            range.

    Example:
        >>> bias = boundary_bias(np.array([[-5.0, np.nan], [-3.0, np.nan]]))
        >>> bias.mean.tolist(), bias.num_used.tolist(), bias.num_skipped.tolist()
        ([-4.0, nan], [2, 0], [0, 2])
    """
    values = as_array(displacements).astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"displacements must have the shape (cases, classes) with at least one case, got {values.shape}."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}.")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}.")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}.")
    usable = np.isfinite(values)
    if not usable.any():
        raise ValueError(
            f"displacements must have at least one usable case, but in all {len(values)} the label or prediction is "
            "empty or full in every class; give clean cases that show the structures, or train the network longer."
        )
    classes = values.shape[1]
    mean, spread, interval = np.full(classes, np.nan), np.full(classes, np.nan), np.full((classes, 2), np.nan)
    for k in range(classes):
        cases = values[usable[:, k], k]
        if len(cases):
            mean[k] = cases.mean()
        if len(cases) > 1:
            spread[k] = cases.std(ddof=1)
            interval[k] = _interval(cases, confidence, num_resamples, seed)
    verdict = tuple(_verdict(low, high, tolerance) for low, high in interval)
    return BoundaryBias(mean, interval, usable.sum(axis=0), (~usable).sum(axis=0), spread, verdict)


def _interval(cases: np.ndarray, confidence: float, num_resamples: int, seed: int) -> np.ndarray:
    result = stats.bootstrap(
        (cases,),
        np.mean,
        method="percentile",
        confidence_level=confidence,
        n_resamples=num_resamples,
        rng=np.random.default_rng(seed),
    )
    n, tail = len(cases), (1 + confidence) / 2
    factor = stats.t.ppf(tail, n - 1) / stats.norm.ppf(tail) * math.sqrt(n / (n - 1))
    return np.asarray(cases.mean() + factor * (np.asarray(result.confidence_interval) - cases.mean()))


def _verdict(low: float, high: float, tolerance: float) -> str:
    if -tolerance < low and high < tolerance:
        return "unbiased"
    return "biased" if low > 0 or high < 0 else "cannot tell"


def grouped_bias(
    displacements: np.ndarray, groups: Sequence[Hashable], **options: float
) -> dict[Hashable, BoundaryBias]:
    r"""Return the bias of each group of cases (annotator, site, scanner), drawn toward the common one.

    With :math:`n_g` cases of mean :math:`m_g` and the common mean :math:`\mu`, a group gets
    :math:`\mu + (m_g - \mu) \, \tau^2 / (\tau^2 + \sigma^2 / n_g)`, where :math:`\sigma^2` is the variance of cases
    within groups, and :math:`\tau^2` that between groups beyond it, by the method of moments (one-way random effects;
    Efron and Morris 1975). So a group with few cases gets about the common bias, and one with many its own. A
    group whose own cases are all skipped gets the common mean.

    Args:
        displacements: ``(cases, classes)``, from :py:func:`boundary_displacement`; ``nan`` is a case to skip.
        groups: one name per case.
        options: those of :py:func:`boundary_bias`; intervals, counts and verdicts are those of the group's own cases,
            the intervals drawn toward the common one as far as the mean is.

    Returns:
        The bias by group, in the order in which groups appear.

    Raises:
        ValueError: when ``groups`` has another length or a ``nan``, or :py:func:`boundary_bias` refuses.

    Example:
        >>> shifts = np.array([[-4.0], [-4.2], [-3.8], [1.0], [1.2], [0.8]])
        >>> biases = grouped_bias(shifts, ["ann"] * 3 + ["ben"] * 3)
        >>> {name: round(float(bias.mean[0]), 2) for name, bias in biases.items()}
        {'ann': -4.0, 'ben': 1.0}
    """
    values = as_array(displacements).astype(np.float64)
    common = boundary_bias(values, **options)  # type: ignore[arg-type]
    if len(groups) != len(values):
        raise ValueError(f"groups must have one name per case ({len(values)}), got {len(groups)}.")
    if any(name != name for name in groups):  # as tables have it, and equal to no name, not even itself
        raise ValueError("groups must be names, got nan; give the cases without one a name of their own.")
    names = list(dict.fromkeys(groups))
    rows = [np.array([name == group for group in groups]) for name in names]
    parts = [[values[r, k][np.isfinite(values[r, k])] for k in range(values.shape[1])] for r in rows]
    weights = np.array([_reliability([part[k] for part in parts]) for k in range(values.shape[1])]).T
    biases: dict[Hashable, BoundaryBias] = {}
    for name, row, weight in zip(names, rows, weights, strict=True):
        usable = np.isfinite(values[row]).any()
        own = boundary_bias(values[row], **options) if usable else None  # type: ignore[arg-type]
        centre = common.mean if own is None else np.where(np.isfinite(own.mean), own.mean, common.mean)
        mean = common.mean + weight * (centre - common.mean)
        if own is None:
            own = unknown_bias(values.shape[1], int(row.sum()))
        interval = common.interval + weight[:, None] * (own.interval - common.interval)
        biases[name] = replace(own, mean=mean, interval=interval)
    return biases


def _reliability(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return for each group the part of its deviation from the common mean that is its own."""
    counts = np.array([len(part) for part in parts])
    shown = [part for part in parts if len(part)]
    within = sum(len(part) - 1 for part in shown)
    if len(shown) < 2 or not within:
        return np.zeros(len(parts))  # nothing tells cases from groups
    variance = sum(((part - part.mean()) ** 2).sum() for part in shown) / within
    total, sizes = np.concatenate(shown), counts[counts > 0]
    between = sum(len(part) * (part.mean() - total.mean()) ** 2 for part in shown) / (len(shown) - 1)
    effective = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(shown) - 1)
    own = max(0.0, (between - variance) / effective)
    if own == 0:
        return np.zeros(len(parts))
    return np.asarray(own / (own + variance / np.maximum(counts, 1)))
