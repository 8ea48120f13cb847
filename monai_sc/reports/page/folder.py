"""The pages of an audit and of a corrected folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.files.durable import sha256
from monai_sc.folders.correct import MANIFEST, REPORT
from monai_sc.folders.labels import LabelFile, load_label
from monai_sc.folders.words import file_notes, folder_notes, headline
from monai_sc.reports.page.contents import (
    Contents,
    Finding,
    bias_found,
    correction_notes,
    finite,
    finite_interval,
    versions,
)
from monai_sc.reports.page.measures import PageCase, size_unit
from monai_sc.reports.shown_cases import find_image
from monai_sc.wording import counted


class FolderSource(Sequence[PageCase]):
    """What the report of :py:func:`~monai_sc.folders.correct_folder` shows.

    Args:
        folder: that it wrote.
        images: folder of images of the same names, or none.

    Raises:
        ValueError: when the folder is damaged.
    """

    def __init__(self, folder: Path, images: Path | None = None) -> None:
        self.folder = folder
        self.images = images
        try:
            self.report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
            lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
            entries = [json.loads(line) for line in lines]
            self.files = [(entry["case"], Path(entry["label"]["path"]), entry["source"]) for entry in entries]
            self.names = list(self.report["classes"])
            self.values = self.report["values"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{folder} must be a folder that `python -m monai_sc correct` wrote, with {REPORT} and {MANIFEST} as "
                f"they were written; {type(error).__name__}: {error}."
            ) from error

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        name, path, source = self.files[index]
        given, label = LabelFile(path), LabelFile(self.folder / name)
        image = find_image(name, given.values.shape, self.images)
        return PageCase(
            name,
            image=None if image is None else image[None],
            given=given.masks(self.values),
            corrected=label.masks(self.values),
            clean=None,
            spacing=given.spacing,
            in_mm=given.in_mm,
            source=source,
            affine=given.affine if given.values.ndim == 3 else None,
        )

    def contents(self) -> Contents:
        """Return what the report says."""
        report = self.report
        unit = report["unit"]
        findings = [self._finding(name, unit) for name in self.names]
        direct = any(row["bias_of"] == "labels" for row in report["classes"].values())
        first = LabelFile(self.files[0][1])
        return Contents(
            title=f"Label correction: {self.folder.resolve().name}",
            headline=headline(report, listed="below"),
            unit=unit,
            size_unit=size_unit(first.values.ndim, first.in_mm)[0],
            subject="the labels" if direct else "the network that learnt from the labels",
            after="corrected",
            findings=findings,
            reasons=report["to_check"],
            provenance={
                "corrected labels": str(self.folder.resolve()),
                "label files that were given": f"{len(self.files)}, SHA-256 in {MANIFEST}",
                f"SHA-256 of {MANIFEST}": sha256(self.folder / MANIFEST),
                "clean cases": f"{report['clean_cases']}, {report['pairs']} of them with both labels",
                **{f"note {number}": sentence for number, sentence in enumerate(folder_notes(report), 1)},
                **{name.replace("_", " "): str(value) for name, value in report["settings"].items()},
                **versions(),
            },
            undo="The originals are unchanged; delete the folder of the corrected labels.",
        )

    def _finding(self, name: str, unit: str) -> Finding:
        row = self.report["classes"][name]
        notes = [*row["notes"], *correction_notes(self.report["refused"][name], row["existence"])]
        held_out = row["held_out"]
        scores = {}
        if held_out["cases"] and held_out["after"] is not None:
            what = "labels given" if held_out["of"] == "labels" else "predictions"
            where = counted(held_out["cases"], "held-out case")
            scores = {f"{where}, {what}": held_out["before"]}
            if self.report["moved"][name] != "keep":
                scores[f"{where}, corrected"] = held_out["after"]
        return Finding(
            name,
            row["verdict"],
            finite(row["bias"]),
            finite_interval(row["interval"]),
            int(row["cases_used"]),
            row["done"],
            dice=scores,
            notes=notes,
        )


AUDIT = "audit.json"


class AuditSource(Sequence[PageCase]):
    """What the report of :py:func:`~monai_sc.folders.audit_folder` shows.

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
        for key, words in (("spurious", "drawn in {} of {} cases without it"), ("missed", "missed in {} of {}")):
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
