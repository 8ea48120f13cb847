"""What distinguishes a noisy mask from a clean one: where its boundary lies, how rough it is, and what lies astray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from monai_sc.functional.compiled import compiled
from monai_sc.functional.distance import signed_distance

__all__ = ["CleanMask", "PairErrors", "PairStatistics", "correlation_length", "pair_statistics", "split_strays"]

NUM_LAGS = 64
NUM_ANCHORS = 32
HISTOGRAM_BINS = 40


def split_strays(noisy: np.ndarray, clean: np.ndarray) -> tuple[np.ndarray, int]:
    """Return ``noisy`` without its stray components, and how many voxels they had.

    Stray is a component of the foreground (over face neighbours) that has no voxel in the clean foreground, and a
    component of the background, a hole, that has none in the clean background.

    Args:
        noisy: booleans ``(*spatial)``.
        clean: booleans, same shape.

    Example:
        >>> clean = np.array([False, True, True, True, True, True, False, False, False])
        >>> noisy = np.array([False, True, False, True, True, True, True, False, True])
        >>> split_strays(noisy, clean)[0].astype(int).tolist(), split_strays(noisy, clean)[1]
        ([0, 1, 1, 1, 1, 1, 1, 0, 0], 2)
    """
    kept = noisy.copy()
    for foreground in (True, False):
        components, number = ndimage.label(noisy == foreground)
        rooted = np.zeros(number + 1, dtype=bool)
        rooted[components[clean == foreground]] = True
        rooted[0] = True  # the other class
        if not rooted.all():
            kept[~rooted[components]] = not foreground
    return kept, int(np.count_nonzero(kept ^ noisy))


@dataclass(frozen=True)
class PairErrors:
    """What was measured of one noisy mask.

    Attributes:
        dice: of the noisy and the clean mask.
        displacement: ``(positions,)``, of each boundary position; none where the noisy mask has no boundary beside
            strays.
        stray: voxels of stray components.
        voxels: of the region in which they were counted.
        correlation: ``(2, lags)``: sums over pairs of positions at each lag of the product and of the mean square of
            their displacements less those of the case.
    """

    dice: float
    displacement: np.ndarray
    stray: int
    voxels: int
    correlation: np.ndarray


class CleanMask:
    """A clean mask, prepared so that many noisy masks can be compared with it.

    Boundary positions are the faces between foreground and background of the noisy mask, strays left out. The
    displacement of a face is the signed distance of the clean mask there (the mean over the two voxels that share it),
    with the sign of :py:func:`~monai_sc.functional.boundary_displacement`: **negative where the noisy mask is too
    large**. So a boundary that is moved by ``k`` along an axis is displaced by ``k`` exactly.

    Args:
        mask: booleans ``(*spatial)``, neither empty nor full.
        spacing: size of a voxel along each spatial axis, in mm; without it the unit is a voxel.
        lag_width: the lags of the correlation are 1, 2, ... times this.
    """

    def __init__(self, mask: np.ndarray, spacing: Sequence[float] | None = None, lag_width: float = 1.0) -> None:
        self.mask = mask
        self.size = int(np.count_nonzero(mask))
        self.spacing = np.ones(mask.ndim) if spacing is None else np.asarray(spacing, dtype=np.float64)
        self.lag_width = lag_width
        phi = np.asarray(signed_distance(mask[None], spacing=spacing, origin="face"))[0].astype(np.float64)
        self.faces = []
        for axis in range(mask.ndim):
            before = (slice(None),) * axis + (slice(None, -1),)
            after = (slice(None),) * axis + (slice(1, None),)
            self.faces.append((before, after, -(phi[before] + phi[after]) / 2))

    def compare(self, noisy: np.ndarray) -> PairErrors:
        """Return what distinguishes ``noisy``, booleans of the same shape."""
        dice = 2 * np.count_nonzero(noisy & self.mask) / (np.count_nonzero(noisy) + self.size)
        kept, stray = split_strays(noisy, self.mask)
        points, displacement = self.boundary(kept)
        sums = np.zeros((2, NUM_LAGS))
        if len(points):
            deviation = displacement - displacement.mean()
            deviation[np.abs(deviation) < 1e-9] = 0  # rounding
            correlation_sums(points, deviation, self.lag_width, sums)
        return PairErrors(dice, displacement, stray, noisy.size, sums)

    def boundary(self, noisy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return place ``(positions, axes)`` and displacement ``(positions,)`` of the boundary of ``noisy``."""
        points, displacements = [], []
        for axis, (before, after, displacement) in enumerate(self.faces):
            hits = np.nonzero(noisy[before] != noisy[after])
            place = np.stack(hits, axis=1).astype(np.float64)
            place[:, axis] += 0.5
            points.append(place * self.spacing)
            displacements.append(displacement[hits])
        return np.concatenate(points), np.concatenate(displacements)


@compiled
def correlation_sums(points, deviation, width, sums):  # type: ignore[no-untyped-def] # pragma: no cover
    """Add to ``sums`` ``(2, lags)`` for pairs of some positions, evenly spread over the list, with all."""
    some = min(NUM_ANCHORS, len(points))
    for k in range(some):
        i = k * len(points) // some
        for j in range(len(points)):
            square = 0.0
            for axis in range(points.shape[1]):
                square += (points[i, axis] - points[j, axis]) ** 2
            lag = int(np.sqrt(square) / width + 0.5)
            if 1 <= lag <= sums.shape[1]:
                sums[0, lag - 1] += deviation[i] * deviation[j]
                sums[1, lag - 1] += (deviation[i] ** 2 + deviation[j] ** 2) / 2


def correlation_length(correlation: np.ndarray, lag_width: float = 1.0) -> float:
    """Return the lag at which the correlation falls to 1/e, between the lags that are known by a straight line.

    Args:
        correlation: ``(lags,)``, at 1, 2, ... times ``lag_width``; it is 1 at lag 0. ``nan`` is a lag without pairs.
        lag_width: in the unit of the result.

    Returns:
        The lag; ``inf`` where the correlation does not fall that far, or is nowhere known.

    Example:
        >>> round(correlation_length(np.array([0.8, 0.4, 0.3]), lag_width=2.0), 3)
        4.642
    """
    lags = np.flatnonzero(np.isfinite(correlation))
    known = np.concatenate([[1.0], np.asarray(correlation)[lags]])
    lags = np.concatenate([[0], lags + 1])
    below = np.flatnonzero(known <= 1 / np.e)
    if not len(below):
        return np.inf
    k = below[0]
    part = (known[k - 1] - 1 / np.e) / (known[k - 1] - known[k])
    return float(lag_width * (lags[k - 1] + part * (lags[k] - lags[k - 1])))


@dataclass(frozen=True)
class PairStatistics:
    r"""Statistics of many pairs of a clean and a noisy mask, in which every pair counts alike.

    Attributes:
        displacement: mean over pairs of the mean displacement of their boundary positions; negative where noisy masks
            are too large. In mm, or voxels.
        magnitude: mean over pairs of the mean magnitude of the displacement.
        spread_between: standard deviation over pairs of their mean displacement.
        spread_within: root of the mean over pairs of the variance of the displacement along their boundary.
        correlation_length: lag at which the correlation of the displacement of two positions of a boundary (less the
            mean of the pair) has fallen to 1/e; ``inf`` where it does not.
        stray_rate: voxels of stray components per voxel of the region.
        dice: mean Dice.
        dice_spread: standard deviation of the Dice over pairs.
        lags: ``(lags,)``, in mm or voxels.
        correlation: ``(lags,)``, ``nan`` where no two positions are that far apart.
        dices: ``(pairs,)``.
        histogram: ``(bins,)``, density of the displacement; what lies outside of the edges is missing in it.
        histogram_edges: ``(bins + 1,)``.
        num_pairs: pairs that were measured.
        num_lost: of these, noisy masks without a boundary beside strays; they have a Dice but no displacement.
    """

    displacement: float
    magnitude: float
    spread_between: float
    spread_within: float
    correlation_length: float
    stray_rate: float
    dice: float
    dice_spread: float
    lags: np.ndarray
    correlation: np.ndarray
    dices: np.ndarray
    histogram: np.ndarray
    histogram_edges: np.ndarray
    num_pairs: int
    num_lost: int

    @property
    def spread(self) -> float:
        """Standard deviation of the displacement, whose square is that between and that within pairs together."""
        return float(np.hypot(self.spread_between, self.spread_within))


SCALARS = tuple(name for name, kind in PairStatistics.__annotations__.items() if kind == "float")


class ErrorTable:
    """The errors of many pairs, summed up so that the statistics of any choice of them are quickly known."""

    def __init__(self, errors: Sequence[PairErrors], lag_width: float = 1.0) -> None:
        self.lag_width = lag_width
        self.used = np.array([float(len(e.displacement) > 0) for e in errors])
        positions = [e.displacement if len(e.displacement) else np.zeros(1) for e in errors]
        self.moments = np.array([[p.mean(), np.abs(p).mean(), p.var()] for p in positions])
        self.dice = np.array([e.dice for e in errors])
        self.stray = np.array([[e.stray, e.voxels] for e in errors], dtype=np.float64)
        self.correlation = np.stack([e.correlation for e in errors])

    @property
    def num_voxels(self) -> float:
        """Voxels of all regions."""
        return float(self.stray[:, 1].sum())

    def scalars(self, times: np.ndarray | None = None) -> np.ndarray:
        """Return the scalar statistics in the order of ``SCALARS``; a pair counts ``times`` ``(pairs,)`` times."""
        times = np.ones(len(self.dice)) if times is None else times
        mean = magnitude = between = within = np.nan
        if times @ self.used > 0:
            share = times * self.used / (times @ self.used)
            mean, magnitude, variance = share @ self.moments
            between, within = np.sqrt(share @ np.square(self.moments[:, 0] - mean)), np.sqrt(variance)
        length = correlation_length(self.correlate(times), self.lag_width)
        stray, voxels = times @ self.stray
        dice = times @ self.dice / times.sum()
        dice_spread = np.sqrt(times @ np.square(self.dice - dice) / times.sum())
        return np.array([mean, magnitude, between, within, length, stray / voxels, dice, dice_spread])

    def correlate(self, times: np.ndarray) -> np.ndarray:
        """Return the correlation at each lag, ``nan`` where there are no pairs, or displacements do not vary."""
        product, square = np.tensordot(times, self.correlation, 1)
        return np.asarray(np.divide(product, square, out=np.full(NUM_LAGS, np.nan), where=square > 0))


def pair_statistics(
    errors: Sequence[PairErrors], *, lag_width: float = 1.0, histogram_edges: np.ndarray | None = None
) -> PairStatistics:
    """Return the statistics of many pairs.

    Args:
        errors: one for each pair, from :py:meth:`CleanMask.compare`.
        lag_width: that the clean masks were prepared with.
        histogram_edges: ``(bins + 1,)``; ``None`` covers the displacements but for the 1 % that are most extreme.

    Raises:
        ValueError: when there is no pair.
    """
    if not errors:
        raise ValueError("errors must be of at least one pair, got none.")
    table = ErrorTable(errors, lag_width)
    used = [e.displacement for e in errors if len(e.displacement)]
    values = np.concatenate([*used, np.zeros(0)])
    weights = np.concatenate([*(np.full(len(p), 1 / len(p)) for p in used), np.zeros(0)])
    if histogram_edges is None:
        reach = max(*np.abs(np.quantile(values, (0.005, 0.995))), lag_width) if len(values) else lag_width
        histogram_edges = np.linspace(-reach, reach, HISTOGRAM_BINS + 1)
    counts = np.histogram(values, histogram_edges, weights=weights)[0]
    return PairStatistics(
        **dict(zip(SCALARS, map(float, table.scalars()), strict=True)),
        lags=lag_width * np.arange(1, NUM_LAGS + 1),
        correlation=table.correlate(np.ones(len(errors))),
        dices=table.dice,
        histogram=counts / max(len(used), 1) / np.diff(histogram_edges),
        histogram_edges=histogram_edges,
        num_pairs=len(errors),
        num_lost=len(errors) - len(used),
    )
