"""The report of an audit: labels beside clean labels of the same cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.data.audit import load_label
from monai_sc.data.correction_words import file_notes
from monai_sc.reports.page.contents import Contents, Finding, bias_found, finite, finite_interval, versions
from monai_sc.reports.page.measures import PageCase, size_unit
from monai_sc.reports.shown_cases import find_image
from monai_sc.wording import counted

AUDIT = "audit.json"


class AuditSource(Sequence[PageCase]):
    """What the report of :py:func:`~monai_sc.data.audit_folder` shows.

    Args:
        folder: that :py:func:`~monai_sc.reports.write_audit` wrote.
        images: folder of images of the same names; by default that of the audit.

    Raises:
        ValueError: when the folder is damaged.
    """

    def __init__(self, folder: Path, images: Path | None = None) -> None:
        self.folder = folder
        try:
            self.result: dict[str, Any] = json.loads((folder / AUDIT).read_text(encoding="utf-8"))
            self.labels, self.clean = Path(self.result["labels"]), Path(self.result["clean"])
            own, _ = self.result["images"], self.result["ignore_value"]
            self.files = [case["name"] for case in self.result["cases"]]
            self.names = list(self.result["classes"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{folder} must be a folder that `python -m monai_sc audit` wrote, with audit.json as it was written; "
                f"{type(error).__name__}: {error}."
            ) from error
        self.images = images if images is not None or own is None else Path(own)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        name = self.files[index]
        values = [row["value"] for row in self.result["classes"].values()]
        given, true = load_label(self.labels, name), load_label(self.clean, name)
        unknown = [m for file in (given, true) if (m := file.ignored(self.result["ignore_value"])) is not None]
        known = ~np.any(unknown, axis=0) if unknown else True
        image = find_image(name, given.values.shape, self.images)
        return PageCase(
            name,
            None if image is None else image[None],
            given.masks(values) & known,
            None,
            true.masks(values) & known,
            given.spacing,
            given.in_mm,
            source="given",
            affine=given.affine if given.values.ndim == 3 else None,
        )

    def contents(self) -> Contents:
        """Return what the report says."""
        unit = self.result["unit"]
        findings = [self._finding(name) for name in self.names]
        first = load_label(self.labels, self.files[0])
        return Contents(
            title=f"Label audit: {self.folder.resolve().name}",
            headline=f"{bias_found(findings)} Nothing was corrected.",
            unit=unit,
            size_unit=size_unit(first.values.ndim, first.in_mm)[0],
            subject="the labels",
            after="clean",
            findings=findings,
            provenance={
                "labels": str(self.labels),
                "clean labels": str(self.clean),
                "tolerance": f"{self.result['tolerance']:.3g} {unit}",
                **{f"note {number}": note for number, note in enumerate(file_notes(self.result), 1)},
                **versions(),
            },
        )

    def _finding(self, name: str) -> Finding:
        row = self.result["classes"][name]
        notes = []
        for key, words in (("spurious", "drawn in {} of {} without it"), ("missed", "missed in {} of {}")):
            number, cases = row[key]
            if number:
                notes.append(words.format(number, counted(cases, "case")))
        more = {int(n): width for n, width in row["half_width_by_cases"].items()}
        if row["verdict"] == "cannot tell" and more:
            most = max(more)
            notes.append(f"with {most} cases like these the interval would be ±{more[most]:.2g} wide")
        return Finding(
            name,
            row["verdict"],
            finite(row["bias"]),
            finite_interval(row["interval"]),
            int(row["cases_used"]),
            "nothing; an audit only measures",
            dice={"labels, to the clean ones": float(row["dice"])},
            notes=notes,
        )
