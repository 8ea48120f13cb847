"""What a corrector has learnt: it corrects labels and predictions, reports, and is JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import NdarrayOrTensor, PathLike

from monai_sc.correction.boundaries import GivenShape, object_scores
from monai_sc.correction.cases import LabelFormat, Size, in_voxels
from monai_sc.correction.class_fit import ClassBias, ClassFit
from monai_sc.correction.label import EMPTIED, Corrected, check_label, class_label, exclusive_map, logits_of_map
from monai_sc.correction.presence import PresenceRates, PresenceRule
from monai_sc.correction.shifts import REACH, ClassCorrection
from monai_sc.correction.state import half_widths, plain, read
from monai_sc.functional.bias import REGIONS, BoundaryBias
from monai_sc.functional.boundary import check_correction
from monai_sc.functional.checks import check_choice, check_same_shape

CHOICES = ("auto", "distance", "logit")
BY_NETWORK = ("blend", "predict")
Spacing = Sequence[float] | None


@dataclass(frozen=True)
class CorrectionOptions:
    """The options of a correction, which :py:class:`~monai_sc.correction.SpatialCorrector` documents.

    Raises:
        ValueError: when an option is out of range.
    """

    class_names: Sequence[str]
    _: KW_ONLY
    output: str = "sigmoid"
    probabilities: bool = False
    representation: str = "auto"
    gamma: float = 1.0
    metric: str = "euclidean"
    region: str = "boundary"
    presence: bool = True
    shape_weight: float = 0.5
    max_shift: float | None = None
    tolerance: float | None = None
    ignore_value: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.representation, CHOICES, "representation")
        check_correction(self.gamma, self.metric, self.max_shift)
        check_choice(self.region, REGIONS, "region")
        if not 0 <= self.shape_weight <= 1:
            raise ValueError(f"shape_weight must be in [0, 1], got {self.shape_weight}.")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0, got {self.tolerance}.")
        object.__setattr__(self, "class_names", self.format.class_names)

    @cached_property
    def format(self) -> LabelFormat:
        """The format of predictions and labels."""
        return LabelFormat(self.class_names, self.output, self.probabilities, self.ignore_value)

    @property
    def as_asked(self) -> bool:
        """Whether a representation was asked for, which is used whatever it does."""
        return self.representation != "auto"

    def cap(self, unit: float | None) -> float:
        """Return the largest shift in voxels, infinite if there is no limit."""
        return math.inf if self.max_shift is None else self.max_shift / (unit or 1.0)

    def reach(self, unit: float | None) -> float:
        """Return the largest shift that is tried, in voxels."""
        return min(self.cap(unit), REACH)

    def tolerated(self, unit: float | None) -> float:
        """Return the bias in voxels under which a correction is not needed."""
        return 1.0 if self.tolerance is None else self.tolerance / (unit or 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON types."""
        return plain({f.name: getattr(self, f.name) for f in fields(CorrectionOptions)})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Fields:
    """A corrected prediction: arrays ``(classes, *spatial)``, in voxels of the corrector's unit.

    Attributes:
        scores: signed distance to the corrected boundary, positive inside.
        suspect: the same of objects that the filter takes for false ones, ``None`` where there are none.
        raw: with ``"softmax"`` the logits of all channels.
        refused: for each class the number of objects whose shift would leave too little.
    """

    scores: np.ndarray
    suspect: np.ndarray | None
    raw: np.ndarray | None
    refused: list[int]


@dataclass(frozen=True)
class Fitted:
    """A correction that was fitted on clean cases, by :py:meth:`SpatialCorrector.fit`; nothing of it changes.

    Attributes:
        options: of the correction.
        fits: what is known of each class, and done with it, in voxels.
        unit: length of such a voxel in the unit of ``spacing``, ``None`` where no spacing was given.
        num_clean: number of clean cases.
    """

    options: CorrectionOptions
    fits: tuple[ClassFit, ...]
    unit: float | None = None
    num_clean: int = 0

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
        """The false-positive filter of each class."""
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
    def bias(self) -> BoundaryBias:
        """Boundary bias of the predictions."""
        return self._bias([fit.network for fit in self.fits])

    @property
    def label_bias(self) -> BoundaryBias:
        """Boundary bias of the given labels, from cases with both labels."""
        return self._bias([fit.labels for fit in self.fits])

    def _bias(self, rows: Sequence[ClassBias]) -> BoundaryBias:
        voxel = self.unit or 1.0
        return BoundaryBias(
            voxel * np.array([row.mean for row in rows]),
            voxel * np.array([row.interval for row in rows]),
            np.array([row.num_used for row in rows]),
            np.array([row.num_skipped for row in rows]),
            voxel * np.array([row.spread for row in rows]),
            tuple(row.verdict for row in rows),
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
            group: of the case, where ``fit`` had groups; a group that it had not gets the common shift.

        Returns:
            uint8 ``(classes, *spatial)`` of 0 and 1, or with ``"softmax"`` a map ``(1, *spatial)``; in the dtype of
            ``given``, if there is one. Its ignored voxels are as they were.

        Raises:
            ValueError: when a shape or a value does not fit.
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
        form = self.options.format
        if prediction is None and given is None:
            raise ValueError("prediction or given must be there, got neither.")
        logits = raw = masks = kept = None
        if prediction is not None:
            logits = form.logits(prediction)
            raw = form.raw(prediction) if form.softmax else None
        if given is not None:
            masks, kept = form.masks(given, "given")
            if logits is not None:
                check_same_shape(logits, masks, ("prediction", "given"))
        spatial: tuple[int, ...] = next(array.shape[1:] for array in (logits, masks) if array is not None)
        if trusted is not None:
            if given is None:
                raise ValueError("trusted needs given, whose voxels it protects.")
            trust = form.trusted(trusted, given, spatial)
            kept = trust if kept is None else kept | trust
        size = in_voxels(spacing, self.unit, len(spatial))
        found = None if logits is None else self.fields(logits, raw=raw, size=size, group=group)
        if masks is not None:
            result = self.label(found, masks, size=size, group=group)
        elif found is not None:
            result = Corrected(self.predicted(found, size), found.refused)
        return form.as_label(result.masks, given, kept), result

    def scores(
        self, prediction: NdarrayOrTensor, *, spacing: Spacing = None, group: Hashable | None = None
    ) -> np.ndarray:
        """Return the corrected signed distance of each class, positive inside: **the label is** ``>= 0``.

        Args:
            prediction: ``(channels, *spatial)``.
            spacing: size of a voxel along each axis.
            group: of the case.

        Returns:
            float32 ``(classes, *spatial)``, in the unit of ``spacing``. Farther than 10 voxels from a class it is minus
            that. Where a class is absent, or filtered out, all of it is minus the size of the image; where it is
            everywhere, plus that.
        """
        logits = self.options.format.logits(prediction)
        size = in_voxels(spacing, self.unit, logits.ndim - 1)
        scores = self.fields(logits, size=size, group=group).scores
        return scores * np.float32(self.unit) if self.unit is not None else scores

    def fields(
        self, logits: np.ndarray, *, raw: np.ndarray | None = None, size: Size = None, group: Hashable | None = None
    ) -> Fields:
        """Correct a prediction.

        Args:
            logits: one against the rest ``(classes, *spatial)``.
            raw: with ``"softmax"`` the logits of all channels.
            size: of a voxel, in voxels of the unit.
            group: of the case.
        """
        metric = self.options.metric
        found = [
            object_scores(own, fit.correction, fit.rule, group, size=size, metric=metric)
            for own, fit in zip(logits, self.fits, strict=True)
        ]
        scores = np.stack([own for own, _, _ in found])
        suspect = None
        if any(other is not None for _, other, _ in found):
            far = -np.abs(scores).max() - 1
            suspect = np.stack([np.full(own.shape, far) if other is None else other for own, other, _ in found])
            suspect = suspect.astype(np.float32)
        return Fields(scores, suspect, raw, [refused for _, _, refused in found])

    def predicted(self, found: Fields, size: Size = None) -> np.ndarray:
        """Return the masks ``(classes, *spatial)`` that a corrected prediction gives alone."""
        masks = found.scores >= 0
        if found.raw is None:
            return masks
        return self.options.format.exclusive(exclusive_map(masks, found.scores, found.raw, size))

    def label(
        self,
        found: Fields | None,
        given: np.ndarray,
        *,
        size: Size = None,
        group: Hashable | None = None,
        source: str | None = None,
    ) -> Corrected:
        """Return the corrected label of a case, and what is to be checked of it.

        Args:
            found: the corrected prediction, on the grid of ``given``; ``None`` where there is none.
            given: boolean ``(classes, *spatial)``.
            size: of a voxel, in voxels of the unit.
            group: of the case.
            source: of all classes, unchecked; by default that of each.
        """
        options = self.options
        sources = [fit.source if source is None else source for fit in self.fits]
        if found is not None and options.shape_weight == 0 and options.as_asked:
            return self._as_published(found, given, size)
        masks, refused, to_check = given.copy(), [], {}
        for k, (fit, name) in enumerate(zip(self.fits, sources, strict=True)):
            own = class_label(
                fit,
                name,
                None if found is None else found.scores[k],
                None if found is None or found.suspect is None else found.suspect[k],
                given[k],
                weight=options.shape_weight,
                metric=options.metric,
                size=size,
                group=group,
            )
            masks[k] = own.mask
            refused.append(found.refused[k] if found is not None and name in BY_NETWORK else own.refused)
            if source is None:
                tolerance = options.tolerated(self.unit)
                masks[k], note = check_label(fit, name, own, given[k], tolerance=tolerance, size=size, group=group)
                if note:
                    to_check[k] = note
        if options.format.softmax:
            masks = self._exclusive(masks, found, given, sources, size)
            for k in np.flatnonzero(_gone(given, masks)).tolist() if source is None else ():
                rule = self.fits[k].rule
                if rule is None or not rule.drops_given:  # another class has taken all of it
                    masks[:, given[k]] = False
                    masks[k] = given[k]
                    to_check[k] = EMPTIED
        return Corrected(masks, refused, to_check)

    def _as_published(self, found: Fields, given: np.ndarray, size: Size) -> Corrected:
        """Return a label in which predictions take the place of what was given; no class becomes empty by it."""
        masks = self.predicted(found, size)
        stays = np.array([fit.source == "keep" for fit in self.fits])
        gone = _gone(given, masks) & ~stays
        back = gone | stays
        masks[back] = given[back]
        if self.options.format.softmax and back.any():
            masks[~back] &= ~given[back].any(axis=0)
        return Corrected(masks, list(found.refused), dict.fromkeys(np.flatnonzero(gone).tolist(), EMPTIED))

    def _exclusive(
        self, masks: np.ndarray, found: Fields | None, given: np.ndarray, sources: Sequence[str], size: Size
    ) -> np.ndarray:
        """Return masks that do not overlap; the boundaries of a class that stays with other classes stay as well."""
        if found is not None and found.raw is not None and any(name in BY_NETWORK for name in sources):
            scores, raw = found.scores, found.raw
        else:
            scores, raw = np.where(given, 0.5, -0.5).astype(np.float32), logits_of_map(given)
        masks = self.options.format.exclusive(exclusive_map(masks, scores, raw, size))
        still = [fit.move.representation == "none" for fit in self.fits]
        stays = np.array([name == "keep" or (name == "move" and s) for name, s in zip(sources, still, strict=True)])
        if stays.any():
            masks = np.where(given[stays].any(axis=0) | masks[stays].any(axis=0), given, masks)
        return masks

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON types; ``nan`` and infinity become ``None``."""
        content = {"unit": self.unit, "num_clean": self.num_clean, "fits": [asdict(fit) for fit in self.fits]}
        return {"options": self.options.as_dict(), **plain(content, nan=False)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Fitted:
        """Return what :py:meth:`to_dict` returned.

        Raises:
            ValueError: when it is something else.
        """
        try:
            options = CorrectionOptions(**content["options"])
            fits = tuple(read(ClassFit, fit) for fit in content["fits"])
            return cls(options, fits, content["unit"], int(content["num_clean"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"A fitted correction must be what Fitted.to_dict() returned, got something else: {error}."
            ) from error

    def save(self, path: PathLike) -> None:
        """Write it to a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: PathLike) -> Fitted:
        """Read what :py:meth:`save` wrote.

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when it holds something else.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} must hold a correction that Fitted.save wrote: {error}") from error

    def report(self) -> dict[str, Any]:
        """Return what was measured and chosen, one dictionary per class by name, as JSON types without ``nan``.

        ``bias``, ``interval`` and ``verdict`` are those of the given labels where cases have both labels, else those of
        the network's predictions; ``bias_of`` says which, and ``network`` has those of the network apart.
        """
        voxel, classes = self.unit or 1.0, {}
        for name, fit in zip(self.options.class_names, self.fits, strict=True):
            direct = fit.num_pairs > 0
            rates = fit.rates
            classes[name] = {
                **_bias_row(fit.labels if direct else fit.network, voxel),
                "bias_of": "labels" if direct else "network",
                "network": None if rates is None else _bias_row(fit.network, voxel),
                "learnt": fit.learnt,
                "source": fit.source,
                "correction": asdict(fit.correction.scaled(voxel)),
                "move": asdict(fit.move.scaled(voxel)),
                "held_out": (fit.judged_labels if direct else fit.judged).summary(),
                "held_out_predictions": fit.judged.summary(),
                "existence": None
                if rates is None
                else {
                    "spurious": [rates.num_spurious, rates.num_absent],
                    "spurious_interval": rates.spurious_interval,
                    "missed": [rates.num_missed, rates.num_present],
                    "missed_interval": rates.missed_interval,
                    "rule": None if fit.rule is None else asdict(fit.rule),
                },
                "given_labels": None if fit.shape is None else asdict(fit.shape.scaled(voxel)),
            }
        options = self.options.as_dict()
        return plain({"clean_cases": self.num_clean, "options": options, "classes": classes}, nan=False)  # type: ignore[no-any-return]

    def in_unit(self, length: float) -> Fitted:
        """Return it with distances in another unit.

        Args:
            length: of the present unit in the new one, such as mm per voxel.
        """
        options = {
            name: value * length
            for name in ("max_shift", "tolerance")
            if (value := getattr(self.options, name)) is not None
        }
        return replace(self, options=replace(self.options, **options), unit=(self.unit or 1.0) * length)


def _gone(given: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Say of each class whether nothing of it is left."""
    axes = tuple(range(1, given.ndim))
    return np.asarray(given.any(axis=axes) & ~masks.any(axis=axes))


def _bias_row(bias: ClassBias, voxel: float) -> dict[str, Any]:
    return {
        "bias": bias.mean * voxel,
        "bias_voxels": bias.mean,
        "interval": [side * voxel for side in bias.interval],
        "verdict": bias.verdict,
        "cases_used": bias.num_used,
        "cases_skipped": bias.num_skipped,
        "half_width_by_cases": half_widths(bias.spread * voxel, bias.num_used),
    }
