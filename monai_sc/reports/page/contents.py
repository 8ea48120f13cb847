"""What a report says: the verdict of each class in words and numbers, tables, and where everything comes from."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from monai_sc.correction.label import AGAINST, DIFFERS, EMPTIED, FARTHER
from monai_sc.folders.words import bias_sentence, existence_words
from monai_sc.reports.page.measures import WARNINGS

SCHEMA = "monai_sc report 1"

REASONS = {
    AGAINST: "against the bias",
    FARTHER: "moved too far",
    DIFFERS: "not believed",
    EMPTIED: "not emptied",
}
"""What a reason to check a label is called, the gravest first."""

SHAPE_ONLY = "boundaries not moved; the shape of the prediction blended in"

PACKAGES = ("monai-sc", "monai", "torch", "numpy", "scipy", "nibabel", "itk")


@dataclass
class Finding:
    """What was found about one class, and what was done.

    Attributes:
        name: of the class.
        verdict: ``"biased"``, ``"unbiased"`` or ``"cannot tell"``.
        bias: of the labels, in the unit of the report; negative: they are too large. ``None`` where undefined.
        interval: of 95 %; ``None`` where there is none.
        num_cases: that it was measured on.
        remaining: the bias after the correction, where it was measured.
        remaining_interval: of 95 %.
        remaining_verdict: of it.
        done: what was done, a sentence without a stop: ``"boundaries moved inwards by 2.1 mm"``.
        dice: by name, such as ``"labels given"``.
        notes: more sentences.
    """

    name: str
    verdict: str
    bias: float | None
    interval: Sequence[float] | None
    num_cases: int
    done: str
    remaining: float | None = None
    remaining_interval: Sequence[float] | None = None
    remaining_verdict: str = ""
    dice: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def direction(self) -> str:
        """Whether the labels are too large or too small."""
        return "" if not self.bias else "too large" if self.bias < 0 else "too small"


@dataclass
class Contents:
    """What a report says, but for its cases.

    Attributes:
        title: of the page.
        headline: the verdict in one or two sentences.
        unit: of distances: ``"mm"`` or ``"voxels"``.
        size_unit: of sizes, see :py:func:`~monai_sc.reports.page.measures.size_unit`.
        subject: whose boundary the bias is of: ``"the network that learnt from the labels"``, ``"the labels"``.
        after: what the labels are compared with: ``"corrected"`` or ``"clean"``.
        findings: one per class.
        rounds: the history of a run; nothing of others.
        kept_round: the current round, of a run.
        stop_reason: of a run.
        recovered: of a run, see :py:func:`~monai_sc.reports.summarise_run`.
        skipped: why cases were left out, by id.
        reasons: what the correction itself found to be checked, each with ``case``, ``class`` and ``reason``.
        provenance: versions, files and settings, by name.
        undo: how to take it back.
    """

    title: str
    headline: str
    unit: str
    size_unit: str
    subject: str
    after: str
    findings: Sequence[Finding]
    rounds: Sequence[Mapping[str, Any]] = ()
    kept_round: int | None = None
    stop_reason: str = ""
    recovered: float | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    reasons: Sequence[Mapping[str, str]] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    undo: str = ""

    @property
    def class_names(self) -> list[str]:
        """The names of the classes."""
        return [finding.name for finding in self.findings]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def to_check(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is to be checked by hand: each kind of warning with the cases that have it, the gravest first."""
    kinds = {what: reason for reason, what in REASONS.items()} | WARNINGS
    return [
        {"what": what, "why": why, "cases": found}
        for what, why in kinds.items()
        if (found := [c["id"] for c in cases if any(w["what"] == what for w in c["warnings"])])
    ]


def document(contents: Contents, cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a report as JSON types.

    Returns:
        ``schema``, the fields of :py:class:`Contents` (``findings`` as ``classes``, by name, with their ``direction``
        and the mean displacement of the labels that were corrected, ``labels_off``), ``check`` (of :py:func:`to_check`)
        and ``cases``, those that changed most first.
    """
    reasons: dict[str, list[dict[str, str]]] = {}
    for row in contents.reasons:
        told = {"class": row["class"], "what": REASONS[row["reason"]], "how": ""}
        reasons.setdefault(row["case"], []).append(told)
    ranked = [
        {**case, "warnings": [*reasons.get(case["id"], []), *case["warnings"]]}
        for case in sorted(cases, key=lambda case: (-case["changed"], case["id"]))
    ]
    found = {one.name: getattr(contents, one.name) for one in fields(contents) if one.name != "reasons"}
    classes = {
        finding.name: {
            **{one.name: getattr(finding, one.name) for one in fields(finding) if one.name != "name"},
            "direction": finding.direction,
            "labels_off": _mean_displacement(ranked, finding.name) if contents.after == "corrected" else None,
        }
        for finding in found.pop("findings")
    }
    return {"schema": SCHEMA, **found, "classes": classes, "check": to_check(ranked), "cases": ranked}


def _mean_displacement(cases: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return how far the labels of a class lay off on average, ``None`` where none was corrected."""
    found = [case["classes"][name]["displacement"] for case in cases if case["source"] == "corrected"]
    told = [value for value in found if value is not None]
    return float(np.mean(told)) if told else None


def bias_found(findings: Sequence[Finding]) -> str:
    """Return the sentence that says which classes are biased, and which way."""
    return bias_sentence([(finding.name, finding.verdict, finding.bias) for finding in findings])


def correction_notes(refused: int, existence: Mapping[str, Any] | None) -> list[str]:
    """Return the sentences on shifts that were refused, and on objects that a rule has dropped."""
    return existence_words(refused, existence)


def finite(value: Any) -> float | None:
    """Return a number, ``None`` where it is not finite or missing."""
    return None if value is None or not np.isfinite(value) else float(value)


def finite_interval(interval: Any) -> list[float] | None:
    """Return an interval, ``None`` where it is not finite or missing."""
    if interval is None or any(finite(end) is None for end in interval):
        return None
    return [float(end) for end in interval]
