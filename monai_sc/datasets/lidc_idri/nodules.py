"""The nodules of a scan of LIDC-IDRI: masks from contours, and which contours are of one nodule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from monai_sc.datasets.lidc_idri.dicom import Reading, ReadNodule

READERS = 4
"""Readers of each scan."""

Pixels = frozenset[tuple[int, int]]
"""Pixels ``(x, y)`` of one slice: column and row."""


@dataclass(frozen=True)
class Nodule:
    """One nodule of a patient, as all readers drew it.

    Attributes:
        slices: what each reader drew, by the SOP instance UID of the slice, from the lowest to the highest; only slices
            where at least one drew a pixel. There are four readers, or more if the file has more.
    """

    slices: dict[str, tuple[Pixels, ...]]

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last ``(x, y)`` of the box around all that was drawn in any slice."""
        pixels = np.array([pixel for readers in self.slices.values() for drawn in readers for pixel in drawn])
        return pixels.min(axis=0), pixels.max(axis=0)


def fill(points: Sequence[tuple[int, int]]) -> tuple[Pixels, Pixels]:
    """Return the pixels inside a closed line, and those on it.

    A pixel is on the line when its centre is exactly on it. It is inside when it is not on the line, and a ray from its
    centre crosses the line an odd number of times. The arithmetic is that of whole numbers, thus exact.

    Args:
        points: ``(x, y)`` of the line, in pixels; the last is joined to the first.
    """
    corners = np.asarray(points)
    low = corners.min(axis=0)
    x, y = np.indices(corners.max(axis=0) - low + 1) + low[:, None, None]
    inside, on = np.zeros((2, *x.shape), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        side = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
        on |= (side == 0) & (min(x0, x1) <= x) & (x <= max(x0, x1)) & (min(y0, y1) <= y) & (y <= max(y0, y1))
        inside ^= ((y0 <= y) != (y1 <= y)) & ((side > 0) == (y1 > y0))
    return _pixels(inside & ~on, low), _pixels(on, low)


def _pixels(mask: np.ndarray, low: np.ndarray) -> Pixels:
    return frozenset(map(tuple, (np.argwhere(mask) + low).tolist()))


def drawn_pixels(nodule: ReadNodule) -> dict[str, Pixels]:
    """Return the pixels that one reader gave to a nodule, by slice.

    The line of an inclusion runs through the pixels next to the nodule, and is not part of it (Armato et al. 2011,
    Med. Phys. 38, 915). What an exclusion encloses is not part of the nodule, nor is its line. A single point marks
    a nodule under 3 mm, which has no outline; it gives no pixels.
    """
    included: dict[str, set[tuple[int, int]]] = {}
    excluded: dict[str, set[tuple[int, int]]] = {}
    for contour in nodule:
        if len(contour.points) < 2:
            continue
        inside, on = fill(contour.points)
        if contour.inclusion:
            included.setdefault(contour.slice_uid, set()).update(inside)
        else:
            excluded.setdefault(contour.slice_uid, set()).update(inside | on)
    drawn = {uid: frozenset(pixels - excluded.get(uid, set())) for uid, pixels in included.items()}
    return {uid: pixels for uid, pixels in drawn.items() if pixels}


def match(drawn: Sequence[tuple[int, dict[str, Pixels]]]) -> list[int]:
    """Return the number of the nodule that each drawing is of.

    Two drawings of different readers are of one nodule when they share a pixel of a slice, and so are those that a
    chain of such pairs joins.
    """
    pairs = [
        (i, k)
        for (i, (first, a)), (k, (second, b)) in combinations(enumerate(drawn), 2)
        if first != second and any(not a[uid].isdisjoint(b[uid]) for uid in a.keys() & b.keys())
    ]
    rows, columns = np.array(pairs, dtype=int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(len(drawn), len(drawn)))
    return [int(label) for label in connected_components(graph, directed=False)[1]]


def nodules_of(reading: Reading) -> list[Nodule]:
    """Return the nodules of a scan that have a mask, from the lowest to the highest."""
    drawn = [
        (reader, pixels)
        for reader, nodules in enumerate(reading.readers)
        for pixels in map(drawn_pixels, nodules)
        if pixels
    ]
    if not drawn:
        return []
    heights = {c.slice_uid: c.z for nodules in reading.readers for nodule in nodules for c in nodule}
    count = max(READERS, len(reading.readers))
    labels = match(drawn)
    nodules = []
    for number in sorted(set(labels)):
        parts = [part for part, label in zip(drawn, labels, strict=True) if label == number]
        uids = sorted({uid for _, pixels in parts for uid in pixels}, key=lambda uid: (heights[uid], uid))
        nodules.append(Nodule({uid: tuple(_of_reader(parts, reader, uid) for reader in range(count)) for uid in uids}))
    return sorted(nodules, key=lambda nodule: (heights[next(iter(nodule.slices))], *nodule.box()[0].tolist()))


def _of_reader(parts: Sequence[tuple[int, dict[str, Pixels]]], reader: int, uid: str) -> Pixels:
    return frozenset().union(*(pixels.get(uid, frozenset()) for owner, pixels in parts if owner == reader))
