"""The corrector: fitted on a few clean cases, it corrects the labels, and the predictions, of all others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.correction.cases import Cases, LabelFormat, Size, in_voxels, unit_of
from monai_sc.correction.evidence import Exchange, max_reach
from monai_sc.correction.fitting import ClassBias, ClassFit, Options, fit_classes
from monai_sc.correction.given import settle_given
from monai_sc.correction.label import Corrected, case_label, exclusive_map
from monai_sc.correction.move import object_scores
from monai_sc.correction.presence import PresenceRates, PresenceRule, presence_rates
from monai_sc.correction.shape import GivenShape
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.correction.state import read_state, report_of, state_of
from monai_sc.functional.bias import REGIONS, BoundaryBias
from monai_sc.functional.boundary import check_correction
from monai_sc.functional.checks import check_choice, check_same_shape

__all__ = ["CHOICES", "Fields", "SpatialCorrector"]

CHOICES = ("auto", "distance", "logit")
Spacing = Sequence[float] | None


@dataclass(frozen=True)
class Fields:
    """What a corrected prediction says: arrays ``(classes, *spatial)``, in voxels of the corrector's unit.

    Attributes:
        scores: signed distance to the corrected boundary, positive inside.
        suspect: the same of objects that are taken for false ones, ``None`` where there are none.
        raw: with ``"softmax"`` the logits of all channels.
        refused: for each class the number of objects whose shift would leave too little.
    """

    scores: np.ndarray
    suspect: np.ndarray | None
    raw: np.ndarray | None
    refused: list[int]


class SpatialCorrector:
    r"""Correct labels, and predictions, by what a few clean cases say: no engine, no files.

    ``fit`` measures on clean cases how far the boundaries of predictions, and of the labels that the cases were given,
    lie off (:math:`\hat\Delta`, Yao et al., ICLR 2023, eq. 6), and chooses per class how to move them back. Each choice
    is repeated without the case that judges it, and what does not clearly beat leaving things as they are is not done.
    ``transform`` corrects one case. Its label

    - stays (``"keep"``),
    - is the given one, moved by the bias of given labels (``"move"``),
    - or that of the network, moved by the bias of the network, with the shape of the given one (``"blend"``) or
      without (``"predict"``).

    Where clean cases have a given label, they say which. Where they have none, ``fit_given`` compares given labels of
    other cases with corrected predictions. Predictions may be left out; then labels are moved, or stay.

    All distances are in the unit of ``spacing`` (mm, if it is in mm), in voxels without it. Inside they are in voxels,
    so that the unit changes nothing.

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
        presence: look for a rule that drops predicted objects which are not there.
        shape_weight: of the given label's shape in the corrected label, in ``[0, 1]``; 0 is the prediction alone.
        max_shift: no boundary moves farther, in the unit of the distances.
        tolerance: a bias under it does no harm, in the same unit; by default one voxel, of the smallest side.
        ignore_value: voxels of a label with this value are unknown: they do not count, and stay as they are.

    Raises:
        ValueError: when an option is out of range.

    Example:
        >>> import numpy as np
        >>> y, x = np.mgrid[:40, :40] - 20
        >>> clean = [(np.hypot(y, x) <= r)[None] for r in (8, 9, 10, 11)]
        >>> given = [(np.hypot(y, x) <= r + 3)[None] for r in (8, 9, 10, 11)]  # three voxels too large
        >>> corrector = SpatialCorrector(["disc"]).fit(None, clean, given=given)
        >>> corrector.label_bias.mean.round().tolist(), corrector.label_bias.verdict
        ([-3.0], ('biased',))
        >>> bool((corrector.transform(given=given[0]) == clean[0]).mean() > 0.99)
        True
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        output: str = "sigmoid",
        probabilities: bool = False,
        representation: str = "auto",
        gamma: float = 1.0,
        metric: str = "euclidean",
        region: str = "boundary",
        presence: bool = True,
        shape_weight: float = 0.5,
        max_shift: float | None = None,
        tolerance: float | None = None,
        ignore_value: int | None = None,
    ) -> None:
        self.format = LabelFormat(class_names, output, probabilities, ignore_value)
        check_choice(representation, CHOICES, "representation")
        check_correction(gamma, metric, max_shift)
        check_choice(region, REGIONS, "region")
        if not 0 <= shape_weight <= 1:
            raise ValueError(f"shape_weight must be in [0, 1], got {shape_weight}.")
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0, got {tolerance}.")
        self.class_names = self.format.class_names
        self.output = output
        self.probabilities = probabilities
        self.ignore_value = ignore_value
        self.representation = representation
        self.gamma = gamma
        self.metric = metric
        self.region = region
        self.presence = presence
        self.shape_weight = shape_weight
        self.max_shift = max_shift
        self.tolerance = tolerance
        self.fits: list[ClassFit] = []
        self.unit: float | None = None
        self.num_clean = 0

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
    ) -> SpatialCorrector:
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

        Returns:
            This corrector.

        Raises:
            ValueError: when there is no case, no class is usable in any case, or a shape or a value does not fit.
        """
        if predictions is None and given is None:
            raise ValueError("predictions or given must be there, got neither: nothing is compared with labels.")
        cases = Cases(self.format, predictions, labels, given=given, spacing=spacing, ignore=ignore, groups=groups)
        self.unit = cases.unit = unit_of(exchange(cases.sizes()))
        self.fits, self.num_clean, _ = fit_classes(self, cases, exchange)
        return self

    def fit_given(
        self,
        predictions: Iterable[NdarrayOrTensor],
        given: Iterable[NdarrayOrTensor],
        *,
        spacing: Spacing | Iterable[Spacing] = None,
        groups: Sequence[Hashable] | None = None,
    ) -> SpatialCorrector:
        """Learn how given labels lie to corrected predictions, from some of the cases that are to be corrected.

        Where clean cases have no given label, this says whether corrected predictions, given labels that are moved to
        them, or a blend of both are nearest to the truth; where there is a single clean case, whether its bias is large
        against what the others differ by.

        Args:
            predictions: of a few dozen cases; more narrow the estimate little.
            given: their labels.
            spacing: as for ``fit``.
            groups: as for ``fit``.

        Returns:
            This corrector.

        Raises:
            ValueError: when ``fit`` has not been called, or a shape or a value does not fit.
        """
        self.check_fitted()
        cases = Cases(self.format, predictions, given, spacing=spacing, groups=groups)
        cases.unit = self.unit
        settle_given(self, cases)
        return self

    @property
    def options(self) -> Options:
        """What a fit depends on, with distances in voxels."""
        voxel = self.unit or 1.0
        return Options(
            self.representation,
            self.gamma,
            self.presence and self.representation == "auto",
            self.shape_weight,
            1.0 if self.tolerance is None else self.tolerance / voxel,
        )

    @property
    def reach(self) -> float:
        """Largest shift in voxels."""
        return max_reach(None if self.max_shift is None else self.max_shift / (self.unit or 1.0))

    @property
    def corrections(self) -> list[ClassCorrection]:
        """How predictions of each class are moved."""
        return [fit.correction.scaled(self.unit or 1.0) for fit in self.fits]

    @property
    def moves(self) -> list[ClassCorrection]:
        """How given labels of each class are moved."""
        return [fit.move.scaled(self.unit or 1.0) for fit in self.fits]

    @property
    def rules(self) -> list[PresenceRule | None]:
        """The rule for predicted objects that are not there, of each class."""
        return [fit.rule for fit in self.fits]

    @property
    def rates(self) -> list[PresenceRates | None]:
        """How often each class is predicted where it is absent, and missed where it is present."""
        return [fit.rates for fit in self.fits]

    @property
    def shapes(self) -> list[GivenShape | None]:
        """How given labels of each class lie to corrected predictions."""
        return [None if fit.shape is None else fit.shape.scaled(self.unit or 1.0) for fit in self.fits]

    @property
    def bias(self) -> BoundaryBias | None:
        """Boundary bias of the predictions, ``None`` before ``fit``."""
        return self._bias([fit.network for fit in self.fits])

    @property
    def label_bias(self) -> BoundaryBias | None:
        """Boundary bias of the given labels, from cases with both labels, ``None`` before ``fit``."""
        return self._bias([fit.labels for fit in self.fits])

    def measured_bias(self) -> BoundaryBias:
        """Return the boundary bias of the predictions.

        Raises:
            ValueError: when ``fit`` has not been called.
        """
        return self._rows([fit.network for fit in self.check_fitted()])

    def _bias(self, rows: Sequence[ClassBias]) -> BoundaryBias | None:
        return self._rows(rows) if rows else None

    def _rows(self, rows: Sequence[ClassBias]) -> BoundaryBias:
        voxel = self.unit or 1.0
        return BoundaryBias(
            voxel * np.array([row.mean for row in rows]),
            voxel * np.array([row.interval for row in rows]),
            np.array([row.num_used for row in rows]),
            np.array([row.num_skipped for row in rows]),
            voxel * np.array([row.spread for row in rows]),
            tuple(row.verdict for row in rows),
        )

    def logits(self, prediction: NdarrayOrTensor) -> np.ndarray:
        """Return a prediction as one logit against the rest per class ``(classes, *spatial)``."""
        return self.format.logits(prediction)

    def masks(self, label: NdarrayOrTensor, name: str = "label") -> tuple[np.ndarray, np.ndarray | None]:
        """Return a label as booleans ``(classes, *spatial)``, and its ignored voxels or ``None``."""
        return self.format.masks(label, name)

    def scores(
        self, prediction: NdarrayOrTensor, *, spacing: Spacing = None, group: Hashable | None = None
    ) -> np.ndarray:
        """Return the corrected signed distance of each class, positive inside: **the label is** ``>= 0``.

        Args:
            prediction: ``(channels, *spatial)``.
            spacing: size of a voxel along each axis.
            group: of the case, where ``fit`` had groups; a group that it had not gets the common shift.

        Returns:
            float32 ``(classes, *spatial)``, in the unit of ``spacing``. Farther than 10 voxels from a class it is minus
            that. Where a class is absent, or must not be there by its rule, all of it is minus the size of the image;
            where it is everywhere, plus that.
        """
        self.check_fitted()
        logits = self.logits(prediction)
        size = in_voxels(spacing, self.unit, logits.ndim - 1)
        scores = self.fields(logits, size=size, group=group).scores
        return scores * np.float32(self.unit) if self.unit is not None else scores

    def fields(
        self,
        logits: np.ndarray,
        *,
        raw: np.ndarray | None = None,
        size: Size = None,
        group: Hashable | None = None,
        fits: Sequence[ClassFit] | None = None,
    ) -> Fields:
        """Return what a corrected prediction says, of what :py:meth:`logits` returned.

        Args:
            logits: ``(classes, *spatial)``.
            raw: with ``"softmax"`` the logits of all channels.
            size: of a voxel, in voxels of the corrector's unit.
            group: of the case.
            fits: to correct by, one per class; by default the own ones.
        """
        scores = np.empty(logits.shape, dtype=np.float32)
        others, refused = [], []
        for k, fit in enumerate(self.fits if fits is None else fits):
            correction = self.capped(fit.correction)
            scores[k], other, number = object_scores(
                logits[k], correction, fit.rule, group, size=size, metric=self.metric
            )
            others.append(other)
            refused.append(number)
        suspect = None
        if any(other is not None for other in others):
            far = -np.abs(scores).max() - 1
            suspect = np.stack([np.full(s.shape, far) if o is None else o for o, s in zip(others, scores, strict=True)])
            suspect = suspect.astype(np.float32)
        return Fields(scores, suspect, raw, refused)

    def predicted(self, fields: Fields, size: Size = None) -> np.ndarray:
        """Return the masks ``(classes, *spatial)`` that a corrected prediction gives alone."""
        masks = fields.scores >= 0
        if fields.raw is None:
            return masks
        return self.format.exclusive(exclusive_map(masks, fields.scores, fields.raw, size))

    def corrected(
        self,
        fields: Fields | None,
        given: np.ndarray,
        *,
        size: Size = None,
        group: Hashable | None = None,
        fits: Sequence[ClassFit] | None = None,
        source: str | None = None,
    ) -> Corrected:
        """Return the corrected label of a case, and what is to be checked of it.

        Args:
            fields: of the prediction, on the grid of ``given``; ``None`` where there is none.
            given: boolean ``(classes, *spatial)``.
            size: of a voxel, in voxels of the corrector's unit.
            group: of the case.
            fits: to correct by; by default the own ones.
            source: of all classes, without a look at what clean cases show; by default that of each.
        """
        return case_label(
            self, fields, given, size=size, group=group, fits=self.fits if fits is None else fits, source=source
        )

    def transform(
        self,
        prediction: NdarrayOrTensor | None = None,
        *,
        given: NdarrayOrTensor | None = None,
        trusted: NdarrayOrTensor | None = None,
        spacing: Spacing = None,
        group: Hashable | None = None,
    ) -> np.ndarray:
        """Return the corrected label of one case.

        Args:
            prediction: ``(channels, *spatial)``; ``None`` where there is none.
            given: the label that the case has. Without it the result is the corrected prediction.
            trusted: ``(channels or 1, *spatial)``; where it is not 0, the given label stays as it is.
            spacing: size of a voxel along each axis.
            group: of the case, where ``fit`` had groups.

        Returns:
            uint8 ``(classes, *spatial)`` of 0 and 1, or with ``"softmax"`` a map ``(1, *spatial)``; in the dtype of
            ``given``, if there is one. Its ignored voxels are as they were.

        Raises:
            ValueError: when ``fit`` has not been called, or a shape or a value does not fit.
        """
        return self.correct(prediction, given=given, trusted=trusted, spacing=spacing, group=group)[0]

    def correct(
        self,
        prediction: NdarrayOrTensor | None = None,
        *,
        given: NdarrayOrTensor | None = None,
        trusted: NdarrayOrTensor | None = None,
        spacing: Spacing = None,
        group: Hashable | None = None,
    ) -> tuple[np.ndarray, Corrected]:
        """Return what :py:meth:`transform` returns, and what is to be checked of it; the arguments are the same."""
        self.check_fitted()
        if prediction is None and given is None:
            raise ValueError("prediction or given must be there, got neither.")
        masks, kept, fields, result = None, None, None, Corrected(np.zeros(0), [])
        logits = None if prediction is None else self.logits(prediction)
        if given is not None:
            masks, kept = self.masks(given, "given")
            if logits is not None:
                check_same_shape(logits, masks, ("prediction", "given"))
        spatial = logits.shape[1:] if logits is not None else masks.shape[1:] if masks is not None else ()
        if trusted is not None:
            if given is None:
                raise ValueError("trusted needs given: it says which voxels of the given label stay.")
            trust = self.format.trusted(trusted, given, spatial)
            kept = trust if kept is None else kept | trust
        size = in_voxels(spacing, self.unit, len(spatial))
        if logits is not None and prediction is not None:
            raw = self.format.raw(prediction) if self.output == "softmax" else None
            fields = self.fields(logits, raw=raw, size=size, group=group)
        if masks is not None:
            result = self.corrected(fields, masks, size=size, group=group)
        elif fields is not None:
            result = Corrected(self.predicted(fields, size), fields.refused)
        return self.format.as_label(result.masks, given, kept), result

    def check_fitted(self) -> list[ClassFit]:
        """Return what ``fit`` has found, one per class.

        Raises:
            ValueError: when ``fit`` has not been called.
        """
        if not self.fits:
            raise ValueError("fit must be called first: without clean cases nothing is known of the bias.")
        return self.fits

    def state_dict(self) -> dict[str, Any]:
        """Return what was learnt, and the options that change a result, as JSON types."""
        return state_of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what :py:meth:`state_dict` returned.

        Raises:
            ValueError: when it is of other classes, or of a corrector with other options.
        """
        read_state(self, state_dict)

    def report(self) -> dict[str, Any]:
        """Return what was measured and chosen, one dictionary per class by name, as JSON types without ``nan``."""
        return report_of(self)

    def without_bias(self, num_clean: int) -> SpatialCorrector:
        """Return this corrector as one that has seen no usable clean case: it corrects nothing."""
        nothing = ClassCorrection(dice_before=0.0, dice_after=0.0, note="no usable clean case")
        bias = ClassBias(num_skipped=num_clean)
        rates = presence_rates([False] * num_clean, [True] * num_clean)
        self.fits = [
            ClassFit(correction=nothing, source="keep", network=bias, dice_present=0.0, single_dice=0.0, rates=rates)
            for _ in self.class_names
        ]
        self.num_clean = num_clean
        return self

    def shift(self, k: int, group: Hashable | None = None) -> float:
        """Return by how much predicted boundaries of class ``k`` are moved in cases of a group; negative shrinks."""
        return self.capped(self.check_fitted()[k].correction).shift_of(group) * (self.unit or 1.0)

    def capped(self, correction: ClassCorrection) -> ClassCorrection:
        """Return a correction that moves no boundary farther than it may."""
        if self.max_shift is None:
            return correction
        cap = self.max_shift / (self.unit or 1.0)
        groups = {group: float(np.clip(shift, -cap, cap)) for group, shift in correction.group_shifts.items()}
        return replace(correction, shift=float(np.clip(correction.shift, -cap, cap)), group_shifts=groups)
