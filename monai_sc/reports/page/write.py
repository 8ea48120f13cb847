"""Writing a report: the page, and the same as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from monai.config import PathLike
from rich.progress import track

from monai_sc.correction.state import plain
from monai_sc.files.durable import naming, replace_synced
from monai_sc.reports.page.contents import Contents, document
from monai_sc.reports.page.html import render
from monai_sc.reports.page.measures import PageCase, measure_case
from monai_sc.reports.page.overlays import TIERS, Detail, pictures_of
from monai_sc.reports.spreadsheet import csv_text
from monai_sc.wording import counted

PAGE, DATA, TABLE = REPORT_FILES = ("report.html", "report_data.json", "report_cases.csv")

MEGABYTES = 9.0  # of pictures, so that the page opens at once
SAMPLE = 6  # cases that are drawn to see which pictures fit


class Source(Protocol):
    """What a report is made of: cases, each read when it is asked for, and what is said of them all."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> PageCase: ...

    def contents(self) -> Contents: ...


def write_page(source: Source, out: PathLike, *, megabytes: float = MEGABYTES, progress: bool = True) -> Path:
    """Write ``report.html``, ``report_data.json`` and ``report_cases.csv``.

    Args:
        source: of the report.
        out: folder for the files, made if it does not exist; those of an earlier report are replaced.
        megabytes: of pictures at most. They are as fine as fits; where even the coarsest are too large, the cases that
            changed least have none.
        progress: show a progress bar.

    Returns:
        The path of the page.

    Raises:
        OSError: naming the file, when it cannot be written.
    """
    contents = source.contents()
    folder = Path(out)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    limit = int(megabytes * 1e6)
    detail = _fitting(source, limit)
    measured, drawn, bare = [], {}, 0
    for index in track(range(len(source)), "Writing the report", disable=not progress):
        case = source[index]
        measured.append(measure_case(case, contents.class_names))
        drawn[case.id] = pictures_of(case, detail)
        bare += case.image is None
    found = plain(document(contents, measured), nan=False)
    pictures, left, without = [], limit, 0
    for row in found["cases"]:
        left -= _size(drawn[row["id"]])
        without += left < 0
        pictures.append(drawn[row["id"]] if left >= 0 else None)
    notes = []
    if bare:
        notes.append(f"{counted(bare, 'case')} without an image of the same name and size: outlines only.")
    if without:
        notes.append(f"Too large for a page are the pictures of {counted(without, 'case')}, those that changed least.")
    replace_synced(folder / DATA, json.dumps(found, indent=1) + "\n")
    for name, text in ((TABLE, _table(found)), (PAGE, render(found, pictures, note=" ".join(notes)))):
        # the name of a folder may hold what is no character
        replace_synced(folder / name, text.encode(errors="backslashreplace").decode())
    return folder / PAGE


def _fitting(source: Source, limit: int) -> Detail:
    """Return the finest pictures of which those of all cases are expected to fit."""
    sample = [source[int(k)] for k in np.unique(np.linspace(0, len(source) - 1, SAMPLE).round())]
    for detail in TIERS[:-1]:
        if np.mean([_size(pictures_of(case, detail)) for case in sample]) * len(source) * 1.1 < limit:
            return detail
    return TIERS[-1]


def _size(pictures: Mapping[str, Any]) -> int:
    return sum(len(picture.svg) for key in ("planes", "slices") for picture in pictures[key])


def _table(found: Mapping[str, Any]) -> str:
    """Return the measures as CSV, a line for each case and class."""
    measures = list(next(iter(found["cases"][0]["classes"].values())))
    rows = [["case", "class", "source", *measures, "warnings"]]
    for case in found["cases"]:
        for name, own in case["classes"].items():
            warnings = "; ".join(w["what"] for w in case["warnings"] if w["class"] == name)
            rows.append([case["id"], name, case["source"], *(own[key] for key in measures), warnings])
    return csv_text(rows)
