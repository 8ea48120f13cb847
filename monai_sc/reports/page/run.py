"""The report of a training: its store of labels, and the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from monai_sc.files.durable import sha256
from monai_sc.files.read import read_image
from monai_sc.files.write import PICTURES, file_suffix
from monai_sc.reports.page.contents import (
    SHAPE_ONLY,
    Contents,
    Finding,
    bias_found,
    correction_notes,
    finite,
    finite_interval,
    versions,
)
from monai_sc.reports.page.measures import PageCase, size_unit
from monai_sc.store.label_store import LabelStore
from monai_sc.store.rounds import MANIFEST
from monai_sc.transforms.distance import voxel_size
from monai_sc.wording import counted

RESULTS = "results.json"

TIMES = {1: "once", 2: "twice"}
NOTHING_AGAINST = "labels kept as given: no bias was found"
NOT_MEASURED = "labels kept as given: their bias could not be measured"
NOT_LEARNT = "labels left as they were given, since the network has not learnt the class"


class RunSource(Sequence[PageCase]):
    """What the report of a training shows.

    Args:
        store: of the labels.
        results: of :py:func:`~monai_sc.reports.summarise_run`; with ``settings``, for the provenance.
        folder: of the run, as a user calls it.
    """

    def __init__(self, store: LabelStore, results: Mapping[str, Any], folder: Path) -> None:
        self.store = store
        self.results = results
        self.folder = folder
        self.kept = int(results["kept_round"])
        rounds = results["rounds"]
        self.voxel_mm = finite(rounds[0].get("voxel_mm"))
        knows_all = all(store.has_clean(str(case["id"])) for case in store.cases)
        self.after = "clean" if knows_all and not self.kept else "corrected"
        source = file_suffix(store.label_files(0, store.cases[0])[0])
        self._has_geometry = source not in PICTURES

    def __len__(self) -> int:
        return len(self.store.cases)

    def __getitem__(self, index: Any) -> Any:
        case = self.store.cases[index]
        name = str(case["id"])
        label = self.store.load(self.store.label_files(0, case), case)
        affine = np.asarray(label.affine, dtype=np.float64) if self._has_geometry else None
        given = np.asarray(label.numpy() > 0)
        ndim = given.ndim - 1
        spacing, in_mm = (1.0,) * ndim, False
        if affine is not None:
            spacing, in_mm = voxel_size(affine, ndim), True
        elif self.voxel_mm is not None:
            spacing, in_mm = (self.voxel_mm,) * ndim, True
        image = read_image(case["image"], f"Image of case {name!r}").numpy()
        corrected = self.store.read(name, self.kept) if self.after == "corrected" else None
        return PageCase(
            name,
            image if image.shape[1:] == given.shape[1:] else None,
            given,
            corrected,
            self.store.read_clean(name),
            spacing,
            in_mm,
            source="corrected" if self.kept else "given",
            affine=affine if ndim == 3 else None,
        )

    def contents(self) -> Contents:
        """Return what the report says."""
        results, rounds = self.results, self.results["rounds"]
        in_mm = self.voxel_mm is not None
        factors = [record["voxel_mm"] if in_mm else 1.0 for record in rounds]
        findings = [self._finding(k, name, factors, in_mm) for k, name in enumerate(results["classes"])]
        ndim = self.store.read(str(self.store.cases[0]["id"]), 0).ndim - 1
        return Contents(
            title=f"Label correction: {self.folder.resolve().name}",
            headline=self._headline(findings),
            unit="mm" if in_mm else "voxels",
            size_unit=size_unit(ndim, self._has_geometry or self.voxel_mm is not None)[0],
            subject="the network that learnt from the labels",
            after=self.after,
            findings=findings,
            rounds=rounds,
            kept_round=self.kept,
            stop_reason=rounds[-1]["stop_reason"],
            recovered=results["recovered"],
            skipped=results["skipped"],
            provenance=self._provenance(),
            undo=f"python -m monai_sc restore {quote(str(self.store.root.resolve()))} --round 0"
            if self.store.current
            else "",
        )

    def _finding(self, k: int, name: str, factors: Sequence[float], in_mm: bool) -> Finding:
        rounds = self.results["rounds"]
        first = rounds[0]
        unit = "mm" if in_mm else "voxels"
        bias = finite(first["bias"][k])
        interval = finite_interval(first["bias_interval"][k])
        finding = Finding(
            name,
            verdict=first["verdict"][k] if "verdict" in first else "cannot tell",
            bias=None if bias is None else bias * factors[0],
            interval=None if interval is None else [end * factors[0] for end in interval],
            num_cases=int(first["num_used"][k]),
            done="labels left as they were given" if first["learnt"][k] else NOT_LEARNT,
            dice=self._dice(k),
        )
        if self.kept:
            finding.done = self._done(k, factors, unit)
            after = next((record for record in rounds if record["round"] == self.kept), None)
            if after is not None:
                factor = factors[rounds.index(after)]
                remaining = finite(after["bias"][k])
                finding.remaining = None if remaining is None else remaining * factor
                ends = finite_interval(after["bias_interval"][k])
                finding.remaining_interval = None if ends is None else [end * factor for end in ends]
                small = after["verdict"][k] == "biased" and abs(after["bias"][k]) < after.get("tolerance", 1.0)
                finding.remaining_verdict = "biased, by less than a voxel" if small else after["verdict"][k]
        correction = first.get("correction", {}).get(name, {})
        notes = correction_notes(0, correction.get("existence"))
        label_bias = finite(first.get("label_bias", [None] * (k + 1))[k])
        if label_bias is not None:
            notes.append(
                f"bias of the labels, from the cases with both: {label_bias * factors[0]:+.2f} {unit}; that above is "
                "of the network"
            )
        held_out = correction.get("held_out", {})
        if finite(held_out.get("after")) is not None:
            what = "labels" if held_out["of"] == "labels" else "predictions"
            notes.append(
                f"on {counted(held_out['cases'], 'held-out case')}, Dice of {what} {held_out['before']:.3f} as they "
                f"were, {held_out['after']:.3f} corrected"
            )
        elif correction:
            notes.append("the correction is based on a single clean case; no held-out case confirms it")
        checked = sum(name in told for record in rounds for told in record.get("to_check", {}).values())
        if checked:
            notes.append(f"{counted(checked, 'label')} to check, listed in the manifest of the round")
        if first["num_skipped"][k]:
            notes.append(
                f"{counted(first['num_skipped'][k], 'clean case')} did not count, since a mask is empty or full"
            )
        if not first["learnt"][k]:
            notes.append(
                "the network has not learnt the class: most of what it draws on the clean cases that hold the class is "
                "wrong, and it corrects no labels; train longer"
            )
        finding.notes = notes
        return finding

    def _done(self, k: int, factors: Sequence[float], unit: str) -> str:
        """Return how the predicted boundaries of a class were moved in the rounds up to the current one."""
        rounds = self.results["rounds"]
        moved: list[str] = []
        kept = True
        for number in range(1, self.kept + 1):
            record = self.store.record(number)
            if record.get("kept", [False] * (k + 1))[k]:
                continue
            kept = False
            source = record.get("sources", ["blend"] * (k + 1))[k]
            key, what = ("label_shift", "labels") if source == "move" else ("shift", "the network's boundaries")
            if shift := record.get(key, [0.0] * (k + 1))[k]:
                way = "inwards" if shift < 0 else "outwards"
                factor = next((f for f, r in zip(factors, rounds, strict=True) if r["round"] == number - 1), factors[0])
                moved.append(f"{what} moved {way} by {abs(shift) * factor:.1f} {unit} in round {number}")
        if moved:
            return "; ".join(moved)
        if kept:
            first = self.results["rounds"][0]
            if finite(first["bias"][k]) is None:
                return NOT_MEASURED
            return NOTHING_AGAINST if first["learnt"][k] else NOT_LEARNT
        return SHAPE_ONLY

    def _dice(self, k: int) -> dict[str, float]:
        labels = {f"labels {name}": values[k] for name, values in self.results["label_dice"].items()}
        tests = {f"test cases, {name}": values[k] for name, values in self.results["test_dice"].items()}
        return {**labels, **tests}

    def _headline(self, findings: Sequence[Finding]) -> str:
        found = bias_found(findings)
        if not self.kept:
            told = f"{found} No correction was kept: the current labels are those that were given."
        else:
            they = "They" if any(f.verdict == "biased" for f in findings) else "The labels"
            often = TIMES.get(self.kept, f"{self.kept} times")
            told = f"{found} {they} were corrected {often}; the originals are untouched."
        if (number := self.store.current) != self.kept:
            told += f" Since then round {number} was restored; this page is of round {self.kept}."
        return told

    def _provenance(self) -> dict[str, Any]:
        store, number = self.store, self.store.current
        found: dict[str, Any] = {"current labels": f"round {number} of {store.root.resolve()}"}
        written = [n for n in (number, 0) if (store.root / f"round-{n:03d}" / MANIFEST).is_file()]
        if written:
            entries = store.manifest(written[0])
            found["label files that were given"] = f"{sum(len(e['sources']) for e in entries)}, SHA-256 in the manifest"
            found[f"SHA-256 of the manifest of round {written[0]}"] = sha256(
                store.root / f"round-{written[0]:03d}" / MANIFEST
            )
        if store.is_simulated:
            noise = store.record(0)["noise"]
            found["noise of round 0"] = f"simulated, {noise['name']}, seed {noise['seed']}" if noise else "simulated"
        if store.config_version is not None:
            found["version of the configuration"] = store.config_version
        return {**found, **self.results.get("settings", {}), **versions()}
