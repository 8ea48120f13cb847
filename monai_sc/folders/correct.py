"""Correct a folder of labels by a few clean labels, with or without predictions of a network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from rich.progress import track

from monai_sc.correction import Fitted, SpatialCorrector, compare_given
from monai_sc.correction.label import DIFFERS, EMPTIED
from monai_sc.files.cases import LazyCases
from monai_sc.files.durable import claim_folder, naming, release_folder, sha256, sync_folder, write_synced
from monai_sc.files.grids import states_unit
from monai_sc.files.names import find_masks, refuse_names
from monai_sc.files.predictions import find_prediction
from monai_sc.files.write import file_suffix, write_values_like
from monai_sc.folders.audit import check_tolerance
from monai_sc.folders.inputs import UNKNOWN, ClassLabel, CorrectionFolders
from monai_sc.folders.journal import noting, read_rows
from monai_sc.folders.words import class_notes, done_words, source_of
from monai_sc.functional.masks import dice
from monai_sc.wording import counted

SAMPLE = 50  # labels from which the offset of the labels is learnt
REPORT, MANIFEST, ROWS = "report.json", "manifest.jsonl", "rows.jsonl"
REFUSED, OTHERS = "refused", "others"  # of a row: refused shifts by class, and values of no class


def correct_folder(
    labels: PathLike,
    clean: PathLike,
    out: PathLike,
    *,
    predictions: PathLike | None = None,
    kind: str | None = None,
    axes: str | None = None,
    regions: Sequence[Sequence[int]] | None = None,
    trusted: PathLike | None = None,
    class_names: Sequence[str] | None = None,
    ignore_value: int | None = None,
    max_shift_mm: float | None = None,
    tolerance: float | None = None,
    representation: str = "auto",
    shape_weight: float = 0.5,
    presence: bool = True,
    progress: bool = True,
) -> dict[str, Any]:
    """Correct a folder of labels by a few clean labels, and by predictions of a network if there are some.

    Without predictions, labels are moved by what the cases with both labels say of the bias. With them, the network's
    labels are compared with moved and with given ones, and the best take their place, class by class, where cases that
    were held out show that it helps (:py:class:`~monai_sc.correction.SpatialCorrector`).

    Args:
        labels: folder of label maps, or of masks of one value; only read.
        clean: folder of a few clean ones, of the same cases or of others; only read. A case that has a clean label gets
            it for its corrected one. Without predictions, only cases with both labels say something of the bias.
        out: a new or empty folder, not within the others: the corrected labels under the same names, with type, dtype
            and geometry of the label; ``report.json`` and ``manifest.jsonl``. It is there when all is done, or not at
            all. What a killed run has done waits in a hidden folder beside it, and the same call goes on from there.
        predictions: of a network that learnt from the labels; one file per label and per clean label, of the same name
            up to the suffix (:py:func:`monai_sc.files.predictions.load_prediction` says which): best of cases that the
            network has not seen (cross-validation), at least for the clean ones. Labels are then maps of 0
            (background) and 1, 2, ..., or masks.
        kind: ``"logits"`` or ``"probabilities"``, where the files of ``predictions`` do not say it.
        axes: how the axes of ``predictions`` lie, where their files do not say it and they are not those of the labels:
            an orientation such as ``"RAS"``, or for each axis of a label the number of that of the prediction, negative
            where it runs the other way, such as ``"2,1"``.
        regions: the values of each channel of ``predictions``, where these overlap, such as ``[[1, 2], [1], [2]]`` for
            the whole, and its two parts. By default they are regions if a ``dataset.json`` of nnU-Net in or beside
            ``predictions`` or ``labels`` says so. Each region is then a class of its own, and a voxel gets the value
            that is in the right regions.
        trusted: folder of masks of the same names, for some of the cases; where one is not 0, the label stays.
        class_names: for the report, in the order of the values; the values by default.
        ignore_value: value of unknown voxels; they do not count, and stay.
        max_shift_mm: largest shift of a boundary, in mm (in voxels where files have no geometry).
        tolerance: a bias up to it does no harm, in the same unit; one voxel by default, as for
            :py:func:`~monai_sc.folders.audit_folder`.
        representation: as of :py:class:`~monai_sc.correction.SpatialCorrector`.
        shape_weight: the same.
        presence: the same.
        progress: show progress bars.

    Returns:
        The report, as in ``report.json``: that of the corrector, in whose ``classes`` each has ``done`` and ``notes``,
        sentences; ``unit``, ``unit_stated`` (whether all files say it), ``output`` and ``values`` (of the classes in
        the files; of regions a list for each); ``cases``, ``pairs`` (with both labels) and ``redrawn`` (which got their
        clean label), numbers of labels; ``unused``, clean labels that say nothing; by class ``moved`` (``"keep"``,
        ``"move"``, ``"blend"`` or ``"predict"``), ``voxels_changed`` and ``refused`` (shifts that would have left too
        little); ``to_check``, each with ``case``, ``class`` and ``reason``; ``other_values``, by value of no class in
        how many labels it stays; and ``settings``.

    Raises:
        ValueError: when folders or files do not fit each other, or no case has both labels and there are no
            predictions.
        FileNotFoundError: when a folder or a prediction does not exist.
        OSError: naming the file that the disk cannot take.
    """
    check_tolerance(tolerance)
    target = Path(out)
    named = {"labels": labels, "clean": clean, "predictions": predictions, "trusted": trusted}
    sources = {name: Path(folder) for name, folder in named.items() if folder is not None}
    refuse_source_folders(target, list(sources.values()))
    refuse_names(sources["labels"], find_masks(sources["labels"])[0], (REPORT, MANIFEST))
    _refuse_used(target)
    if kind not in (None, "logits", "probabilities"):
        raise ValueError(f"kind must be 'logits' or 'probabilities', got {kind!r}.")
    folders = CorrectionFolders(
        **sources, kind=kind, ignore=ignore_value, judged=class_names is None, axes=axes, regions=regions
    )
    own_names = folders.class_names()
    names = own_names if class_names is None else list(class_names)
    if len(names) != len(own_names):
        number = counted(len(own_names), "class")
        raise ValueError(f"class_names must name {number}, of the values {', '.join(own_names)}, got {names}.")
    corrector = SpatialCorrector(
        names,
        output=folders.output,
        probabilities=folders.probabilities,
        representation=representation,
        shape_weight=shape_weight,
        presence=presence,
        max_shift=max_shift_mm,
        tolerance=folders.voxel_of_pairs if tolerance is None else tolerance,
        ignore_value=UNKNOWN,
    )
    settings = {
        "monai_sc": version("monai-sc"),
        **{name: str(sources[name]) if name in sources else None for name in named},
        "kind": kind,
        "axes": axes,
        "regions": None if folders.regions is None else folders.class_values,
        "class_names": names,
        "ignore_value": ignore_value,
        "max_shift_mm": max_shift_mm,
        "tolerance": corrector.tolerance,
        "representation": representation,
        "gamma": corrector.gamma,
        "metric": corrector.metric,
        "region": corrector.region,
        "shape_weight": shape_weight,
        "presence": presence,
        "seed": None,  # nothing is drawn
    }
    correction = _Correction(corrector, folders, target, settings)
    hidden = _hidden_folder(target, settings, folders)
    hidden.mkdir(parents=True, exist_ok=True)
    claim_folder(hidden)
    try:
        _refuse_used(target)  # another run may have ended meanwhile
        partial = hidden / "labels"
        partial.mkdir(exist_ok=True)
        correction.fit(progress)
        done = read_rows(hidden / ROWS)
        left = [name for name in folders.names if name not in done]
        with noting(hidden / ROWS) as note:
            for name in track(left, "Correcting labels", disable=not progress):
                done[name] = correction.correct(name, partial)
                with naming(target / name):
                    note(done[name])
        report = correction.finish([done[name] for name in folders.names], partial)
    finally:  # only a killed run leaves something
        shutil.rmtree(hidden, ignore_errors=True)
        release_folder(hidden)
    return report


def _hidden_folder(target: Path, settings: Mapping[str, Any], folders: CorrectionFolders) -> Path:
    """Return where a call collects its results, which depends on the settings and on sizes and times of all files."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for file in folders.files():
        status = file.stat()
        digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    root = target.resolve()
    return root.with_name(f".{root.name[:100]}.{digest.hexdigest()[:16]}")


def refuse_source_folders(target: Path, sources: Sequence[Path]) -> None:
    """Refuse a folder for results that is one of ``sources``, or lies within or around one.

    Raises:
        ValueError: when it is, or does.
        FileNotFoundError: when one of ``sources`` is not a folder.
    """
    root = target.resolve()
    for source in sources:
        if not source.is_dir():
            raise FileNotFoundError(f"{source} is not a folder.")
        own = source.resolve()
        if root == own or root.is_relative_to(own) or own.is_relative_to(root):
            raise ValueError(f"out must be a folder of its own, not within or around {source}, got {target}.")


def _refuse_used(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ValueError(f"out must be a new or empty folder, got {target}, which is not empty.")


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        partial.rename(target.resolve())  # takes the place of an empty folder
    except OSError as error:
        raise ValueError(
            f"out must be a new or an empty folder that can be renamed, got {target}: {error.strerror}; another run "
            "may have written it, or it is a mount point: give a folder in it."
        ) from error
    sync_folder(target.resolve().parent)


@dataclass
class _Correction:
    """What one call does with the labels: all calls of the corrector are here."""

    corrector: SpatialCorrector
    folders: CorrectionFolders
    target: Path
    settings: Mapping[str, Any]
    fitted: Fitted = field(init=False)

    def fit(self, progress: bool) -> None:
        """Fit the corrector on the clean labels, and on a sample of the given ones if there are predictions."""
        corrector, folders = self.corrector, self.folders
        predicted = folders.predictions is not None

        def predictions(names: Sequence[str], read: Callable[[str], ClassLabel]) -> LazyCases:
            return LazyCases(lambda name: folders.prediction(name, read(name).file), names)

        def given(name: str) -> np.ndarray:
            return folders.as_label(folders.label(name).values)

        names = folders.fitted
        self.fitted = corrector.fit(
            predictions(names, folders.clean_label) if predicted else None,
            LazyCases(lambda name: folders.as_label(folders.clean_label(name).values), names),
            given=LazyCases(lambda name: given(name) if name in folders.pairs else None, names),
            spacing=folders.spacings,
        )
        if not predicted or not (corrector.shape_weight or corrector.representation == "auto"):
            return
        names = folders.names
        chosen = np.unique(np.linspace(0, len(names) - 1, min(SAMPLE, len(names))).round().astype(int))
        sample = [names[i] for i in chosen]
        self.fitted = compare_given(
            self.fitted,
            predictions(sample, folders.label),
            LazyCases(
                given,
                list(track(sample, "Comparing predictions with labels", disable=not progress)),
            ),
            spacing=[self._spacing(folders.label(name)) for name in sample],
        )

    @cached_property
    def dice(self) -> list[float | None]:
        """Of each class the Dice of corrected labels on held-out cases."""
        return [row["held_out"]["after"] for row in self.fitted.report()["classes"].values()]

    def correct(self, name: str, partial: Path) -> dict[str, Any]:
        """Write the corrected label of a case into the folder ``partial``, and return its row.

        Raises:
            OSError: naming the file, when the disk cannot take it.
        """
        folders, given = self.folders, self.folders.label(name)
        classes = len(self.corrector.class_names)
        trusted = folders.trust(name, given)
        refused, to_check = [0] * classes, {}
        if name in folders.clean_names:
            true = folders.clean_label(name, given)
            stays = [m for m in (None if trusted is None else trusted[0], true.stays) if m is not None]
            label = np.where(np.any(stays, axis=0), given.values, true.values) if stays else true.values
            sources = ["clean"] * classes
        else:
            drawn = given.filled()
            found, result = self.fitted.correct(
                folders.prediction(name, given.file),
                given=folders.as_label(drawn),
                trusted=trusted,
                spacing=self._spacing(given),
            )
            label = folders.from_label(found, drawn, self.dice)
            label = label if given.stays is None else np.where(given.stays, given.values, label)
            refused, to_check = result.refused, result.to_check
            sources = [self._source(k, to_check.get(k, "")) for k in range(classes)]
        file, staged = partial / name, partial.parent / f".staged{file_suffix(given.file.path)}"
        with naming(self.target / name):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_values_like(folders.as_file(label, given), staged, given.file.path, name="label")
            staged.replace(file)
            sync_folder(file.parent)
        masks = [folders.masks(given.values), folders.masks(label)]
        changed = [int((now != before).sum()) for before, now in zip(*masks, strict=True)]
        others = [] if given.others is None else np.unique(given.file.values[given.others]).tolist()
        return {
            "case": name,
            "source": {"clean": "clean", "keep": "given"}.get("".join(set(sources)), "corrected"),
            "sources": self._by_name(sources),
            "label": {"path": str(given.file.path.absolute()), "sha256": sha256(given.file.path)},
            "prediction": None if folders.predictions is None else str(find_prediction(folders.predictions, name)),
            "voxels_changed": self._by_name(changed),
            "dice_to_given": self._by_name(dice(*masks).round(6).tolist()),
            "to_check": {self.corrector.class_names[k]: reason for k, reason in to_check.items()},
            REFUSED: list(refused),
            OTHERS: [int(value) for value in others],
        }

    def finish(self, rows: Sequence[Mapping[str, Any]], partial: Path) -> dict[str, Any]:
        """Write the manifest and the report beside the labels, put all in place, and return the report."""
        entries = [{key: value for key, value in row.items() if key not in (REFUSED, OTHERS)} for row in rows]
        write_synced(partial / MANIFEST, "".join(json.dumps(entry) + "\n" for entry in entries))
        report = self._report(entries, rows)
        write_synced(partial / REPORT, json.dumps(report, indent=2) + "\n")
        _put_in_place(partial, self.target)
        return report

    def _report(self, entries: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        folders, names = self.folders, self.corrector.class_names
        unit = "mm" if folders.in_mm else "voxels"
        found = self.fitted.report()
        found["options"]["ignore_value"] = self.settings["ignore_value"]
        for row in found["classes"].values():
            if (most := self.corrector.max_shift) is not None:
                for key in ("correction", "move"):
                    row[key]["shift"] = float(np.clip(row[key]["shift"], -most, most))
            row["done"] = done_words(row, unit, len(folders.pairs))
            row["notes"] = class_notes(row, unit)
        others = Counter(value for row in rows for value in row[OTHERS])
        return {
            **found,
            "unit": unit,
            "unit_stated": all(states_unit(file) for file in folders.label_files()),
            "output": folders.output,
            "values": folders.class_values,
            "cases": len(entries),
            "pairs": len(folders.pairs),
            "redrawn": sum(entry["source"] == "clean" for entry in entries),
            "unused": [name for name in folders.clean_names if name not in folders.fitted],
            "moved": {name: source_of(row) for name, row in found["classes"].items()},
            "voxels_changed": {name: sum(e["voxels_changed"][name] for e in entries) for name in names},
            "refused": self._by_name([sum(counts) for counts in zip(*(row[REFUSED] for row in rows), strict=True)]),
            "to_check": [
                {"case": entry["case"], "class": name, "reason": reason}
                for entry in entries
                for name, reason in entry["to_check"].items()
            ],
            "other_values": {str(value): others[value] for value in sorted(others)},
            "settings": dict(self.settings),
        }

    def _spacing(self, label: ClassLabel) -> tuple[float, ...] | None:
        return label.file.spacing if self.folders.in_mm else None

    def _source(self, k: int, reason: str) -> str:
        """Return where the label of a class in a case comes from, which has that reason to be checked."""
        fit = self.fitted.fits[k]
        source = "move" if reason == DIFFERS else "keep" if reason == EMPTIED else fit.source
        still = fit.move.representation == "none" or self.corrector.max_shift == 0
        return "keep" if source == "move" and still else source

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.corrector.class_names, values, strict=True))
