"""The corrector: fitted on predictions of a few clean cases, it corrects predictions and labels of all others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.correction.cases import CleanCases
from monai_sc.correction.choice import ClassCorrection, choose_correction
from monai_sc.correction.evidence import Exchange, gather_evidence, logit_dice, shifts_of_groups
from monai_sc.correction.exclusive import exclusive_map, take_back_losers
from monai_sc.correction.format import LabelFormat
from monai_sc.correction.move import corrected_scores
from monai_sc.correction.presence import PresenceRates, PresenceRule, choose_presence_rule, presence_rates
from monai_sc.correction.shape import GivenLearner, GivenShape, blend_shapes
from monai_sc.correction.state import forget_bias, read_state, report_of, state_of
from monai_sc.functional.bias import REGIONS, BoundaryBias, boundary_bias
from monai_sc.functional.checks import check_choice, check_same_shape, check_spacing
from monai_sc.functional.correction import check_correction

CHOICES = ("auto", "distance", "logit")
GAMMAS = (0.5, 1.0)  # of the "logit" corrections that "auto" tries
Spacing = Sequence[float] | None


class SpatialCorrector:
    r"""Correct predictions, and labels, by what a few clean cases say of the network: no engine, no files.

    ``fit`` measures on clean cases how far each predicted boundary lies off (:math:`\hat\Delta`, Yao et al., ICLR
    2023, eq. 6), chooses per class how to move it back, and a rule for objects that are not there. What it chooses
    never makes the predictions of the clean cases worse. ``fit_given`` learns how the labels that were given lie to the
    corrected predictions. ``transform`` corrects one case: the prediction says where the boundary lies, and the given
    label, moved there, adds its shape.

    All distances are in the unit of ``spacing`` (mm, if it is in mm), in voxels without it.

    Args:
        class_names: one per channel; with ``"softmax"`` one per channel but the first, which is the background.
        output: ``"sigmoid"``: channels that may overlap, labels ``(classes, *spatial)`` of 0 and 1. ``"softmax"``: one
            class per voxel, labels ``(1, *spatial)`` of 0 (background) and ``1, 2, ...`` (``class_names``), and so is
            the result.
        probabilities: predictions are probabilities, not logits; they are clipped to ``[1e-6, 1 - 1e-6]``.
        representation: ``"auto"``: per class what serves best on the clean cases; ``"distance"`` or ``"logit"``: that
            one, by :math:`\hat\Delta`, as published.
        gamma: width of the ``"logit"`` correction, in ``(0, 1]``, where it was asked for.
        metric: ``"euclidean"`` or ``"taxicab"``; the latter needs voxels with equal sides.
        region: of the bias, ``"boundary"`` or ``"image"``.
        presence: look for a rule that drops objects which are not there.
        shape_weight: of the given label's shape in the corrected label, in ``[0, 1]``; 0 is the prediction alone.
        max_shift: no boundary moves farther, in the unit of the distances.
        tolerance: a bias under it does no harm, in the same unit.
        ignore_value: voxels of a label with this value are unknown: they do not count, and stay as they are.

    Raises:
        ValueError: when an option is out of range.

    Example:
        >>> import numpy as np
        >>> y, x = np.mgrid[:40, :40] - 20
        >>> clean = [(np.hypot(y, x) <= r)[None] for r in (8, 9, 10)]
        >>> logits = [(r + 3 - np.hypot(y, x))[None] for r in (8, 9, 10)]  # three voxels too large
        >>> corrector = SpatialCorrector(["disc"]).fit(logits, clean)
        >>> corrector.bias.mean.round().tolist(), corrector.bias.verdict
        ([-3.0], ('biased',))
        >>> bool((corrector.transform(logits[0]) == clean[0]).mean() > 0.99)
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
        tolerance: float = 1.0,
        ignore_value: int | None = None,
    ) -> None:
        self.format = LabelFormat(class_names, output, probabilities, ignore_value)
        check_choice(representation, CHOICES, "representation")
        check_correction(gamma, metric, max_shift)
        check_choice(region, REGIONS, "region")
        if not 0 <= shape_weight <= 1:
            raise ValueError(f"shape_weight must be in [0, 1], got {shape_weight}.")
        if not tolerance >= 0:
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
        self.corrections: list[ClassCorrection] = []
        self.rules: list[PresenceRule | None] = []
        self.rates: list[PresenceRates] = []
        self.shapes: list[GivenShape | None] = []
        self.group_shifts: dict[str, list[float]] = {}
        self.bias: BoundaryBias | None = None
        self.num_clean = 0
        self.refused: list[int] = [0] * len(self.class_names)

    def fit(
        self,
        predictions: Iterable[NdarrayOrTensor],
        labels: Iterable[NdarrayOrTensor],
        *,
        spacing: Spacing | Iterable[Spacing] = None,
        groups: Sequence[Hashable] | None = None,
        ignore: Iterable[NdarrayOrTensor | None] | None = None,
        exchange: Exchange = list,
    ) -> SpatialCorrector:
        """Measure the bias on clean cases, and choose the correction.

        Args:
            predictions: of the clean cases, each ``(channels, *spatial)``; read up to three times, one at a time, so
                a list, or an object that loads a case when it is asked for it, and no generator.
            labels: the clean labels, in the same order.
            spacing: size of a voxel along each axis, for all cases or for each.
            groups: name of the annotator, site or scanner of each case; each gets a shift of its own, drawn toward the
                common one (:py:func:`monai_sc.functional.grouped_bias`).
            ignore: for each case a mask ``(channels or 1, *spatial)`` of voxels that do not count, or ``None``.
            exchange: where several processes measure a part of the cases each, a function that is given a list with
                one entry per case of this process, and returns the entries of all, in the order of all cases. It is
                called several times, as often in every process, and all end with the same correction.

        Returns:
            This corrector.

        Raises:
            ValueError: when there is no case, no class is usable in any case, or a shape or a value does not fit.
        """
        for name, values in (("predictions", predictions), ("labels", labels)):
            if iter(values) is values:
                raise ValueError(
                    f"{name} must be a list or another collection that can be read twice, got an iterator."
                )
        cases = CleanCases(self.format, predictions, labels, spacing, ignore)
        evidence = gather_evidence(
            cases, metric=self.metric, region=self.region, max_shift=self.max_shift, exchange=exchange
        )
        self.num_clean = len(evidence.dice)
        self.bias = boundary_bias(evidence.displacements, tolerance=self.tolerance)
        gammas = {"auto": GAMMAS, "logit": (self.gamma,)}.get(self.representation, ())
        floors = [table.floor for table in evidence.tables]
        by_logit = logit_dice(
            cases, self.bias.mean, gammas, floors, metric=self.metric, max_shift=self.max_shift, exchange=exchange
        )
        self.corrections, self.rates, self.rules = [], [], []
        for k, table in enumerate(evidence.tables):
            correction = choose_correction(
                table,
                evidence.displacements[:, k],
                self.representation,
                gamma=self.gamma,
                logit_dice={gamma: scores[:, k] for gamma, scores in by_logit.items()},
            )
            present = evidence.present[:, k]
            rule = None
            kept = evidence.dice_with(k, correction, by_logit)
            if present.any():
                correction = replace(correction, dice_present=max(evidence.floor(k), float(kept[present].mean())))
            if self.presence:
                rule = choose_presence_rule(evidence.features[:, k], kept, present, evidence.floor(k))
            self.corrections.append(correction)
            self.rates.append(presence_rates(evidence.predicted[:, k], present))
            self.rules.append(rule)
        self.group_shifts = {}
        if groups is not None:
            self.group_shifts, self.corrections = shifts_of_groups(evidence, exchange([*groups]), self.corrections)
        self.shapes = [None] * len(self.class_names)
        if self.representation == "auto":
            take_back_losers(self, cases, groups, exchange)
            self.refused = [0] * len(self.class_names)  # only cases that are corrected later count
        return self

    def fit_given(
        self,
        predictions: Iterable[NdarrayOrTensor],
        given: Iterable[NdarrayOrTensor],
        *,
        spacing: Spacing | Iterable[Spacing] = None,
    ) -> SpatialCorrector:
        """Learn how given labels lie to corrected predictions, from some of the cases that are to be corrected.

        Args:
            predictions: of a few dozen cases; more narrow the estimate little.
            given: their labels.
            spacing: as for ``fit``.

        Returns:
            This corrector.

        Raises:
            ValueError: when ``fit`` has not been called, or a shape or a value does not fit.
        """
        learner = GivenLearner(self)
        for logits, masks, left_out, size in CleanCases(self.format, predictions, given, spacing):
            learner.add(logits, masks, left_out, size)
        self.shapes = [*learner.shapes()]
        return self

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
            float32 ``(classes, *spatial)``, in the unit of ``spacing``. Where a class is absent, or must not be there
            by its rule, all of it is minus the size of the image; where it is everywhere, plus that.
        """
        return self.scores_of_logits(self.logits(prediction), spacing=spacing, group=group)

    def scores_of_logits(
        self, logits: np.ndarray, *, spacing: Spacing = None, group: Hashable | None = None
    ) -> np.ndarray:
        """Return :py:meth:`scores` of what :py:meth:`logits` returned."""
        self.check_fitted()
        size = check_spacing(spacing, logits.ndim - 1)
        scores = np.empty(logits.shape, dtype=np.float32)
        for k, (correction, rule) in enumerate(zip(self.corrections, self.rules, strict=True)):
            shift = self.shift(k, group)
            scores[k], refused = corrected_scores(logits[k], correction, shift, rule, size=size, metric=self.metric)
            self.refused[k] += refused
        return scores

    def label_of_scores(
        self,
        scores: np.ndarray,
        *,
        logits: np.ndarray | None = None,
        given: np.ndarray | None = None,
        spacing: Spacing = None,
    ) -> np.ndarray:
        """Return the masks of corrected scores, with the shape of the given label where ``fit_given`` learnt it.

        Args:
            scores: of :py:meth:`scores`, perhaps resampled.
            logits: with ``"softmax"`` the raw logits on the same grid, for voxels that no class claims.
            given: boolean ``(classes, *spatial)``.
            spacing: size of a voxel along each axis.

        Returns:
            Booleans ``(classes, *spatial)``, exclusive with ``"softmax"``.
        """
        masks = scores >= 0
        unit = 1.0 if spacing is None else min(spacing)
        if given is not None and self.shape_weight:
            for k, shape in enumerate(self.shapes):
                # What is absent where its class has a rule stays away: a rule drops what the network is not sure of.
                if shape is not None and (self.rules[k] is None or masks[k].any()):
                    masks[k] = blend_shapes(
                        scores[k], given[k], shape, weight=self.shape_weight, unit=unit, spacing=spacing
                    )
        if self.output == "softmax" and logits is not None:
            masks = self.format.exclusive(exclusive_map(masks, scores, logits, spacing))
        return masks

    def transform(
        self,
        prediction: NdarrayOrTensor,
        *,
        given: NdarrayOrTensor | None = None,
        trusted: NdarrayOrTensor | None = None,
        spacing: Spacing = None,
        group: Hashable | None = None,
    ) -> np.ndarray:
        """Return the corrected label of one case.

        Args:
            prediction: ``(channels, *spatial)``.
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
        self.check_fitted()
        logits = self.logits(prediction)
        masks, kept = None, None
        if given is not None:
            masks, left_out = self.masks(given, "given")
            check_same_shape(logits, masks, ("prediction", "given"))
            kept = left_out
        if trusted is not None:
            if given is None:
                raise ValueError("trusted needs given: it says which voxels of the given label stay.")
            trust = self.format.trusted(trusted, given, logits.shape[1:])
            kept = trust if kept is None else kept | trust
        scores = self.scores_of_logits(logits, spacing=spacing, group=group)
        raw = self.format.raw(prediction) if self.output == "softmax" else None
        label = self.label_of_scores(scores, logits=raw, given=masks, spacing=spacing)
        if masks is not None:
            for k in np.flatnonzero([self.keeps_given(k) for k in range(len(masks))]):
                # Of a class that stays, voxels neither come nor go, and no other class gets them.
                stays = masks[k] | label[k]
                own = (
                    np.broadcast_to(stays, label.shape)
                    if self.output == "softmax"
                    else _only(stays, int(k), label.shape)
                )
                kept = own if kept is None else kept | own
        return self.format.as_label(label, given, kept)

    def keeps_given(self, k: int) -> bool:
        """Say whether the given labels of class ``k`` stay: nothing that ``fit`` and ``fit_given`` saw is against them.

        No correction serves on the clean cases, and the network agrees with the given labels at least as well as with
        the clean ones.
        """
        shape, correction = self.shapes[k], self.corrections[k]
        unmoved = correction.representation == "none" and self.rules[k] is None
        return shape is not None and unmoved and shape.agreement >= correction.dice_after

    def check_fitted(self) -> BoundaryBias:
        """Return the bias that ``fit`` has measured.

        Raises:
            ValueError: when ``fit`` has not been called.
        """
        if self.bias is None or not self.corrections:
            raise ValueError("fit must be called first: without clean cases nothing is known of the bias.")
        return self.bias

    def state_dict(self) -> dict[str, Any]:
        """Return what was learnt, as JSON types: a checkpoint or a file can hold it."""
        return state_of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what :py:meth:`state_dict` returned.

        Raises:
            ValueError: when it is of other classes.
        """
        read_state(self, state_dict)

    def report(self) -> dict[str, Any]:
        """Return what was measured and chosen, one dictionary per class by name, as JSON types without ``nan``."""
        return report_of(self)

    def take_class(self, k: int, other: SpatialCorrector) -> None:
        """Take over what another corrector of the same classes learnt of class ``k``."""
        for name in ("corrections", "rules", "rates", "shapes"):
            getattr(self, name)[k] = getattr(other, name)[k]
        for group, shifts in other.group_shifts.items():
            self.group_shifts.setdefault(group, [c.shift for c in self.corrections])[k] = shifts[k]
        bias, others = self.check_fitted(), other.check_fitted()
        for name in ("mean", "interval", "num_used", "num_skipped", "spread"):
            getattr(bias, name)[k] = getattr(others, name)[k]
        verdict = [*bias.verdict[:k], others.verdict[k], *bias.verdict[k + 1 :]]
        self.bias = replace(bias, verdict=tuple(verdict))

    def without_bias(self, num_clean: int) -> SpatialCorrector:
        """Return this corrector as one that has seen no usable clean case: it corrects nothing."""
        forget_bias(self, num_clean)
        return self

    def shift(self, k: int, group: Hashable | None = None) -> float:
        """Return by how much the boundaries of class ``k`` are moved in cases of a group; negative shrinks."""
        shift = self.corrections[k].shift
        if group is not None and str(group) in self.group_shifts and self.corrections[k].representation != "none":
            shift = self.group_shifts[str(group)][k]
        return shift if self.max_shift is None else float(np.clip(shift, -self.max_shift, self.max_shift))


def _only(mask: np.ndarray, k: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``mask`` in channel ``k`` of an otherwise empty array."""
    channels = np.zeros(shape, dtype=bool)
    channels[k] = mask
    return channels
