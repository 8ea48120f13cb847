"""Confident learning: which voxels of a data set are labelled wrongly, in the view of out-of-sample predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.checks import as_array, check_choice

PRUNE = ("both", "class", "noise_rate")

ROUNDING = 1e-6  # by which a probability may be under a threshold that is a mean of probabilities like it
UNIT = 2**30  # probabilities are summed in whole units of its inverse: no order of the voxels changes a sum
RANGE, PER_LOGIT = 32, 256  # the bins of scores, which are logits
BINS = 2 * RANGE * PER_LOGIT
TINY = float(np.finfo(np.float32).tiny)


class ConfidentLearning:
    r"""Estimate how often which class is labelled as which, and flag the voxels where that has most likely happened.

    The data are read in three passes, one case in memory at a time, in any order and any parts:

    1. :py:meth:`add`: the threshold of class :math:`j` is the mean probability :math:`p_j` of the voxels labelled
       :math:`j`.
    2. :py:meth:`add_confident`: :math:`C_{ab}` counts the voxels labelled :math:`a` for which :math:`b` has the largest
       :math:`p` of all classes that reach their threshold. Its rows are scaled to the number :math:`n_a` of voxels
       labelled :math:`a`: :math:`N_{ab} = n_a C_{ab} / \sum_c C_{ac}` of them are expected to be :math:`b`.
    3. :py:meth:`flagged`: of the voxels labelled :math:`a`, by ``"class"`` the :math:`\sum_{b \ne a} N_{ab}` with the
       lowest :math:`p_a`; by ``"noise_rate"``, for each :math:`b \ne a`, the :math:`N_{ab}` with the largest
       :math:`p_b - p_a`; by ``"both"`` those that are in both. A voxel whose label has its largest probability is not
       flagged.

    (Northcutt et al. 2021, eq. 1 to 3 and "prune by class", "by noise rate" and "C+NR"; Zhang et al. 2020 for
    segmentation. The last rule of 3. is that of the library cleanlab. It takes all voxels at once, and where two
    classes reach their thresholds it counts the most probable class even if that does not reach its own.)

    The cuts of the third pass are read off histograms with bins of 1/256 of a logit, from -32 to 32: at most 1/1024 of
    a probability. Voxels that share the bin of the last one that is flagged are flagged with it. All else is exact. The
    memory is 128 KiB for each group and pair of classes, besides one case.

    Args:
        num_groups: of exclusive classes: 1 for a softmax, the number of channels for a sigmoid.
        num_classes: of each group, with the background: the number of channels for a softmax, 2 for a sigmoid.
        prune: ``"both"``, ``"class"`` or ``"noise_rate"``.

    Raises:
        ValueError: when an option is out of range, or arrays do not fit it or each other.

    Example:
        >>> import numpy as np
        >>> foreground = np.array([0.9, 0.8, 0.1, 0.2, 0.1, 0.7])
        >>> probabilities, label = np.stack([1 - foreground, foreground])[None], np.array([[1, 1, 1, 0, 0, 0]])
        >>> confident = ConfidentLearning(1, 2)
        >>> confident.add(probabilities, label)
        >>> confident.thresholds.round(2).tolist()
        [[0.67, 0.6]]
        >>> confident.add_confident(probabilities, label)
        >>> confident.expected.tolist()
        [[[2.0, 1.0], [1.0, 2.0]]]
        >>> confident.flagged(probabilities, label).tolist()
        [[False, False, True, False, False, True]]
    """

    def __init__(self, num_groups: int, num_classes: int, *, prune: str = "both") -> None:
        if num_groups < 1 or num_classes < 2:
            raise ValueError(
                f"num_groups must be at least 1, and num_classes at least 2 with the background, got {num_groups} and "
                f"{num_classes}."
            )
        self.shape = (num_groups, num_classes)
        self.prune = check_choice(prune, PRUNE, "prune")
        self.label_counts = np.zeros(self.shape, dtype=np.int64)
        self.confident_counts = np.zeros((*self.shape, num_classes), dtype=np.int64)
        self._sums = np.zeros(self.shape, dtype=np.int64)
        # Of each label a: on the diagonal of p_a, else of the margin p_b - p_a.
        self._scores = np.zeros((*self.shape, num_classes, BINS), dtype=np.int64)

    def add(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> None:
        """Count a case in the first pass.

        Args:
            probabilities: ``(groups, classes, *spatial)``, in [0, 1]. They must come from a network that has not been
                trained on this label.
            label: the given one, ``(groups, *spatial)``, class numbers from 0.
        """
        for g, a, own in self._by_label(probabilities, label):
            self.label_counts[g, a] += own.shape[1]
            self._sums[g, a] += np.rint(own[a] * UNIT).astype(np.int64).sum()
            for b in range(self.shape[1]):
                self._scores[g, a, b] += np.bincount(_bins(own, a, b), minlength=BINS)

    def add_confident(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> None:
        """Count a case in the second pass, which comes when the first is over."""
        thresholds = self.thresholds
        for g, a, own in self._by_label(probabilities, label):
            confident = own >= thresholds[g][:, None] - ROUNDING
            best = np.where(confident, own, -1).argmax(axis=0)[confident.any(axis=0)]
            self.confident_counts[g, a] += np.bincount(best, minlength=self.shape[1])

    def share(self, gather: Callable[[Any], list[Any]], *, confident: bool) -> None:
        """Make the counts of a pass those of all processes, each of which has counted some of the cases.

        Args:
            gather: returns what all processes give it.
            confident: of the second pass; else of the first.
        """
        for name in ("confident_counts",) if confident else ("label_counts", "_sums", "_scores"):
            setattr(self, name, np.sum(gather(getattr(self, name)), axis=0))

    @property
    def thresholds(self) -> np.ndarray:
        """The thresholds ``(groups, classes)``; infinite for a class that no voxel is labelled as."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = self._sums / UNIT / self.label_counts
        return np.asarray(np.where(self.label_counts > 0, means, np.inf))

    @property
    def expected(self) -> np.ndarray:
        """How many voxels labelled ``a`` are expected to be ``b``: ``(groups, a, b)``."""
        rows = np.maximum(self.confident_counts.sum(axis=2, keepdims=True), 1)  # 0 for a class without a label only
        return np.asarray(self.confident_counts / rows * self.label_counts[..., None])

    @property
    def joint(self) -> np.ndarray:
        """The joint distribution of given and true class ``(groups, a, b)``, which sums to 1 in each group."""
        return np.asarray(self.expected / np.maximum(self.label_counts.sum(axis=1), 1)[:, None, None])

    def flagged(self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor) -> np.ndarray:
        """Return which voxels of a case are flagged ``(groups, *spatial)``, in the third pass.

        Args:
            probabilities: as in the other passes.
            label: as in the other passes.
        """
        labels = as_array(label)
        flagged = np.zeros(labels.shape, dtype=bool)
        cuts = self._cuts()
        for g, a, own in self._by_label(probabilities, label):
            others = [b for b in range(self.shape[1]) if b != a]
            by_class = _bins(own, a, a) >= cuts[g, a, a]
            by_rate = np.any([_bins(own, a, b) >= cuts[g, a, b] for b in others], axis=0)
            chosen = {"both": by_class & by_rate, "class": by_class, "noise_rate": by_rate}[self.prune]
            flagged[g, labels[g] == a] = chosen & (own.argmax(axis=0) != a)
        return flagged

    def _cuts(self) -> np.ndarray:
        """Return the lowest bin that is flagged, of each histogram."""
        expected = np.rint(self.expected).astype(np.int64)
        cuts = np.full(expected.shape, BINS)
        for g, a, b in np.ndindex(expected.shape):
            wanted = self.label_counts[g, a] - expected[g, a, a] if a == b else expected[g, a, b]
            if wanted > 0:
                from_top = np.cumsum(self._scores[g, a, b, ::-1])
                cuts[g, a, b] = BINS - 1 - np.searchsorted(from_top, wanted)
        return cuts

    def _by_label(
        self, probabilities: NdarrayOrTensor, label: NdarrayOrTensor
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield group, class, and the float64 probabilities ``(classes, voxels)`` of the voxels labelled as it."""
        p, y = as_array(probabilities), as_array(label)
        if p.shape[:2] != self.shape or y.shape != (p.shape[0], *p.shape[2:]):
            raise ValueError(
                "probabilities and label must have the shapes (groups, classes, *spatial) and (groups, *spatial) with "
                f"{self.shape[0]} groups and {self.shape[1]} classes, got {p.shape} and {y.shape}."
            )
        if not ((p >= 0) & (p <= 1 + ROUNDING)).all():
            raise ValueError("probabilities must be in [0, 1], got others; apply a sigmoid or softmax to logits first.")
        if not np.isin(y, np.arange(self.shape[1])).all():
            raise ValueError(
                f"label must hold class numbers from 0 to {self.shape[1] - 1} only, got {np.unique(y)[[0, -1]]}."
            )
        for g, a in np.ndindex(self.shape):
            own = p[g][:, y[g] == a].astype(np.float64)
            if own.shape[1]:
                yield g, a, own


def _bins(p: np.ndarray, a: int, b: int) -> np.ndarray:
    r"""Return the bin of each voxel labelled ``a``, the higher the more it speaks for ``b``, or against ``a`` alone.

    The score is :math:`-\mathrm{logit}\,p_a` if ``b`` is ``a``, else :math:`\log (1 + m) / (1 - m)` of the margin
    :math:`m = p_b - p_a`, which is the same for two classes. Neither takes a difference from 1, so that probabilities
    near 0 and 1 stay apart.

    Args:
        p: ``(classes, voxels)``.
        a: the given class.
        b: another one, or ``a``.
    """
    without_a = np.delete(p, a, axis=0).sum(axis=0)
    if b == a:
        above, below = without_a, p[a]
    else:
        above, below = without_a + p[b], np.delete(p, b, axis=0).sum(axis=0) + p[a]
    scores = np.log(np.maximum(above, TINY)) - np.log(np.maximum(below, TINY))
    return np.asarray(np.clip((scores + RANGE) * PER_LOGIT, 0, BINS - 1).astype(np.int64))
