"""The corrector: its options, and its fit on a few clean cases."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields

from monai.config import NdarrayOrTensor

from monai_sc.correction.cases import Cases, unit_of
from monai_sc.correction.evidence import Exchange
from monai_sc.correction.fitted import CorrectionOptions, Fitted, Spacing
from monai_sc.correction.fitting import fit_cases


@dataclass(frozen=True)
class SpatialCorrector(CorrectionOptions):
    r"""Correct labels, and predictions, by a few clean cases: no engine, no files.

    :py:meth:`fit` measures on clean cases how far the boundaries of predictions, and of the labels that the cases were
    given, are off (:math:`\hat\Delta`, Yao et al., ICLR 2023, eq. 6), and chooses per class how to move them back. Each
    choice is repeated without the case that judges it; what does not clearly beat leaving things as they are is not
    done. The result, a :py:class:`Fitted`, corrects one case at a time. Its label

    - stays (``"keep"``),
    - is the given one, moved by the bias of given labels (``"move"``),
    - or that of the network, moved by the bias of the network, with the shape of the given one (``"blend"``) or
      without (``"predict"``).

    Where clean cases have a given label, they decide which. Where they have none,
    :py:func:`~monai_sc.correction.compare_given` compares given labels of other cases with corrected predictions.
    Without predictions, labels are moved, or stay.

    All distances are in the unit of ``spacing`` (mm, if it is in mm), in voxels without it.

    Args:
        class_names: one per channel; with ``"softmax"`` one per channel but the first, which is the background.
        output: ``"sigmoid"``: channels that may overlap, labels ``(classes, *spatial)`` of 0 and 1. ``"softmax"``: one
            class per voxel, labels ``(1, *spatial)`` of 0 (background) and ``1, 2, ...`` (``class_names``), and so is
            the result.
        probabilities: predictions are probabilities, not logits; they are clipped to ``[1e-6, 1 - 1e-6]``.
        representation: ``"auto"``: per class what serves best on held-out clean cases, if anything does; ``"distance"``
            or ``"logit"``: that one, by :math:`\hat\Delta`, as published, whatever it does.
        gamma: width of the ``"logit"`` correction, in ``(0, 1]``, where it was asked for.
        metric: ``"euclidean"`` or ``"taxicab"``; the latter needs voxels with equal sides.
        region: of the bias, ``"boundary"`` or ``"image"``.
        presence: look for a false-positive filter, which drops predicted objects that are not there.
        shape_weight: of the given label's shape in the corrected label, in ``[0, 1]``; 0 is the prediction alone.
        max_shift: largest shift of a boundary, in the unit of the distances.
        tolerance: a bias under it does no harm, in the same unit; by default one voxel, of the smallest side.
        ignore_value: voxels of a label with this value are unknown: they do not count, and stay as they are.

    Raises:
        ValueError: when an option is out of range.

    Example:
        >>> import numpy as np
        >>> y, x = np.mgrid[:40, :40] - 20
        >>> clean = [(np.hypot(y, x) <= r)[None] for r in (8, 9, 10, 11)]
        >>> given = [(np.hypot(y, x) <= r + 3)[None] for r in (8, 9, 10, 11)]  # three voxels too large
        >>> fitted = SpatialCorrector(["disc"]).fit(None, clean, given=given)
        >>> fitted.label_bias.mean.round().tolist(), fitted.label_bias.verdict
        ([-3.0], ('biased',))
        >>> bool((fitted.transform(given=given[0]) == clean[0]).mean() > 0.99)
        True
    """

    def fit(
        self,
        predictions: Iterable[NdarrayOrTensor] | None,
        labels: Iterable[NdarrayOrTensor],
        *,
        given: Iterable[NdarrayOrTensor | None] | None = None,
        spacing: Spacing | Iterable[Spacing] = None,
        groups: Sequence[Hashable] | None = None,
        ignore: Iterable[NdarrayOrTensor | None] | None = None,
        exchange: Exchange = list,
    ) -> Fitted:
        """Measure the bias on clean cases, choose the correction, and judge it.

        Args:
            predictions: of the clean cases, each ``(channels, *spatial)``; read up to twice, four at a time at most,
                so a list, or an object that loads a case when it is asked for it, and no generator. ``None``: there are
                no predictions, and ``given`` labels are moved.
            labels: the clean labels, in the same order.
            given: the labels that these cases were given, ``None`` for a case that has none.
            spacing: size of a voxel along each axis, for all cases or for each.
            groups: name of the annotator, site or scanner of each case; each gets a shift of its own, drawn toward the
                common one (:py:func:`monai_sc.functional.grouped_bias`), if that serves better.
            ignore: for each case a mask ``(channels or 1, *spatial)`` of voxels that do not count, or ``None``.
            exchange: where several processes measure a part of the cases each, a function that is given a list with
                one entry per case of this process, and returns the entries of all, in the order of all cases. It is
                called several times, as often in every process, and all end with the same correction.

        Raises:
            ValueError: when there is no case, no class is usable in any case, or a shape or a value does not fit.
        """
        if predictions is None and given is None:
            raise ValueError("Give predictions or given labels, got neither.")
        cases = Cases(self.format, predictions, labels, given=given, spacing=spacing, ignore=ignore, groups=groups)
        cases.unit = unit_of(exchange(cases.sizes()))
        return fit_cases(self.options, cases, exchange)[0]

    @property
    def options(self) -> CorrectionOptions:
        """The options alone."""
        return CorrectionOptions(**{f.name: getattr(self, f.name) for f in fields(CorrectionOptions)})
