"""The report of a folder of labels that was corrected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monai_sc.data.audit import LabelFile
from monai_sc.data.correct import MANIFEST, REPORT
from monai_sc.data.correction_words import folder_notes, headline
from monai_sc.data.durable import sha256
from monai_sc.reports.page.contents import (
    Contents,
    Finding,
    correction_notes,
    finite,
    finite_interval,
    versions,
)
from monai_sc.reports.page.measures import PageCase, size_unit
from monai_sc.reports.shown_cases import find_image
from monai_sc.wording import counted


class FolderSource(Sequence[PageCase]):
    """What the report of :py:func:`~monai_sc.data.correct_folder` shows.

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
            undo="The originals are where they were; delete the folder of the corrected labels.",
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
