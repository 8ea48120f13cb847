"""Folders of predictions, labels and a few clean labels: corrected labels beside the originals."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from rich.progress import track

from monai_sc.correction import SpatialCorrector
from monai_sc.data.audit import LabelFile
from monai_sc.data.cases import LazyCases
from monai_sc.data.correction_folders import CorrectionFolders
from monai_sc.data.durable import naming, sha256, sync_folder, write_synced
from monai_sc.data.label_files import file_suffix, write_values_like
from monai_sc.data.parts import Exchange, Part, key_of
from monai_sc.data.predictions import find_prediction
from monai_sc.data.simulation.masks import find_masks, refuse_names
from monai_sc.functional.dice import dice

SAMPLE = 50  # labels from which the offset of the labels is learnt
REPORT, MANIFEST = "report.json", "manifest.jsonl"
REFUSED = "refused"  # of a row: how often a shift would have left too little, by class


def correct_folder(
    predictions: PathLike,
    labels: PathLike,
    clean: PathLike,
    out: PathLike,
    *,
    kind: str | None = None,
    trusted: PathLike | None = None,
    class_names: Sequence[str] | None = None,
    ignore_value: int | None = None,
    max_shift_mm: float | None = None,
    representation: str = "auto",
    shape_weight: float = 0.5,
    presence: bool = True,
    progress: bool = True,
    part: Part | None = None,
) -> dict[str, Any]:
    """Correct a folder of labels by predictions of a network that learnt from them, and a few clean labels.

    Args:
        predictions: one file per label and per clean label, of the same name up to the suffix
            (:py:func:`monai_sc.data.predictions.load_prediction` says which): best of cases that the network has not
            seen (cross-validation), at least for the clean ones.
        labels: folder of label maps of 0 (background) and 1, 2, ..., or of masks of 0 and 1; only read.
        clean: folder of a few clean ones, of the same cases or of others; only read. A case that has a clean label gets
            it for its corrected one.
        out: a new or empty folder, not within the others: the corrected labels under the same names, with type, dtype
            and geometry of the label; ``report.json`` and ``manifest.jsonl``. It is there when all is done, or not at
            all.
        kind: ``"logits"`` or ``"probabilities"``, where the files do not say it.
        trusted: folder of masks of the same names, for some of the cases; where one is not 0, the label stays.
        class_names: for the report.
        ignore_value: value of unknown voxels; they do not count, and stay.
        max_shift_mm: no boundary moves farther, in mm (in voxels where files have no geometry).
        representation: as of :py:class:`~monai_sc.correction.SpatialCorrector`.
        shape_weight: the same.
        presence: the same.
        progress: show progress bars.
        part: of several processes with the same call, which correct the labels between them; by default the only one.
            Until the last one ends, what they have done waits in a hidden folder beside ``out``; the same call of a
            part that failed goes on from there, whatever the number of parts.

    Returns:
        The report, as in ``report.json``: that of the corrector, ``unit``, ``values`` (of the classes in the files),
        ``labels_kept`` (classes whose labels stay,
        since the cases with both labels would be worse corrected), ``both`` (mean Dice by class of the given and of
        the corrected labels of these cases, against the clean ones), and ``voxels_changed`` by class. Empty for a part
        that ends before all labels are corrected.

    Raises:
        ValueError: when folders or files do not fit each other.
        FileNotFoundError: when a folder or a prediction does not exist.
        OSError: naming the file that the disk cannot take.
    """
    part = part or Part()
    target = Path(out)
    sources = [Path(p) for p in (predictions, labels, clean, *([trusted] if trusted is not None else []))]
    refuse_source_folders(target, sources)
    label_names = find_masks(sources[1])[0]
    refuse_names(sources[1], label_names, (REPORT, MANIFEST))
    if not part.own(label_names):
        return {}  # there are more parts than labels
    _refuse_used(target)
    if kind not in (None, "logits", "probabilities"):
        raise ValueError(f"kind must be 'logits' or 'probabilities', got {kind!r}.")
    folders = CorrectionFolders(
        sources[0], sources[1], sources[2], None if trusted is None else sources[3], kind, ignore_value
    )
    names = list(class_names) if class_names is not None else [str(k + 1) for k in range(folders.num_classes)]
    if len(names) != folders.num_classes:
        raise ValueError(f"class_names must name {folders.num_classes} classes, got {names}.")
    corrector = SpatialCorrector(
        names,
        output=folders.output,
        probabilities=folders.probabilities,
        representation=representation,
        shape_weight=shape_weight,
        presence=presence,
        max_shift=max_shift_mm,
        ignore_value=ignore_value,
    )
    asked = {
        "monai_sc": version("monai-sc"),
        "sources": [str(source) for source in sources],
        "kind": kind,
        "class_names": names,
        "ignore_value": ignore_value,
        "max_shift_mm": max_shift_mm,
        "representation": representation,
        "shape_weight": shape_weight,
        "presence": presence,
    }
    hidden = target.resolve().with_name(f".{target.resolve().name[:100]}.")
    exchange = Exchange(Path(f"{hidden}{key_of(asked, folders.files())}"), part, target)
    hidden.parent.mkdir(parents=True, exist_ok=True)
    if exchange.is_needed:
        return _correct_part(exchange, corrector, folders, target, progress)
    partial = Path(tempfile.mkdtemp(prefix=hidden.name, dir=hidden.parent))
    try:
        correction = _Correction.fitted(corrector, folders, target, progress)
        bar = track(folders.names, "Correcting labels", disable=not progress)
        rows = [correction.correct(name, partial, partial) for name in bar]
        return correction.finish(rows, partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _correct_part(
    exchange: Exchange, corrector: SpatialCorrector, folders: CorrectionFolders, target: Path, progress: bool
) -> dict[str, Any]:
    """Correct the labels of a part, and return the report if it is the last to end."""
    with exchange.claimed():
        _refuse_used(target)  # another part may have ended meanwhile
        partial = exchange.folder / "labels"
        partial.mkdir(exist_ok=True)
        correction = _Correction.fitted(corrector, folders, target, progress)
        done = exchange.rows()
        own = [name for name in exchange.part.own(folders.names) if name not in done]
        with exchange.noting() as note:
            for name in track(own, "Correcting labels", disable=not progress):
                row = correction.correct(name, partial, exchange.scratch)
                with naming(target / name):
                    note(row)
        with exchange.gathered(folders.names) as rows:
            if not rows:
                return {}
            report = correction.finish(rows, partial)
            exchange.merged()
            return report


def refuse_source_folders(target: Path, sources: Sequence[Path]) -> None:
    """Refuse a folder for results that is one of ``sources``, or lies within or around one.

    Raises:
        ValueError: when it is, or does.
        FileNotFoundError: when one of ``sources`` is no folder.
    """
    root = target.resolve()
    for source in sources:
        if not source.is_dir():
            raise FileNotFoundError(f"{source} is no folder.")
        own = source.resolve()
        if root == own or root.is_relative_to(own) or own.is_relative_to(root):
            raise ValueError(f"out must be a folder of its own, not within or around {source}, got {target}.")


def _refuse_used(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ValueError(f"out must be a new or an empty folder, got {target}, which is there and is not empty.")


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        partial.rename(target.resolve())  # takes the place of an empty folder
    except OSError as error:
        raise ValueError(
            f"out must be a new or an empty folder that can be renamed, got {target}: {error.strerror}; another run "
            "may have written it, or it is a mount point: give a folder in it."
        ) from error
    sync_folder(target.resolve().parent)


def _fit(corrector: SpatialCorrector, folders: CorrectionFolders, progress: bool) -> bool:
    """Fit on the clean labels and on a sample of the given ones, and say whether all sizes are known in mm."""
    clean = folders.clean_names
    in_mm = all(folders.clean_label(name).in_mm for name in clean)
    spacings = [folders.clean_label(name).spacing if in_mm else None for name in clean]
    corrector.fit(
        LazyCases(lambda name: folders.prediction(name, folders.clean_label(name)), clean),
        LazyCases(lambda name: folders.clean_label(name).values[None], clean),
        spacing=spacings,
    )
    chosen = np.unique(np.linspace(0, len(folders.names) - 1, min(SAMPLE, len(folders.names))).round().astype(int))
    sample = [folders.names[i] for i in chosen]
    if corrector.shape_weight:
        corrector.fit_given(
            LazyCases(lambda name: folders.prediction(name, folders.label(name)), sample),
            LazyCases(
                lambda name: folders.label(name).values[None],
                list(track(sample, "Comparing predictions with labels", disable=not progress)),
            ),
            spacing=[folders.label(name).spacing if in_mm else None for name in sample],
        )
    corrector.refused = [0] * len(corrector.class_names)
    return in_mm


def _corrected(corrector: SpatialCorrector, folders: CorrectionFolders, name: str, given: LabelFile) -> np.ndarray:
    label = corrector.transform(
        folders.prediction(name, given),
        given=given.values[None],
        trusted=folders.trust(name, given),
        spacing=given.spacing if given.in_mm else None,
    )
    return np.asarray(label[0])


def _judge(corrector: SpatialCorrector, folders: CorrectionFolders) -> tuple[dict[str, Any], list[bool]]:
    """Compare corrected and given labels where a clean one is known, and say which classes had better stay."""
    both = [name for name in folders.names if name in set(folders.clean_names)]
    classes = range(1, folders.num_classes + 1)
    before, after = [], []
    for name in both:
        given = folders.label(name)
        true = folders.clean_of(name, given)
        unknown = true.ignored(folders.ignore_value)
        masks = [given.masks(classes), true.masks(classes)]
        corrected = _corrected(corrector, folders, name, given)
        ignored = None if unknown is None else np.broadcast_to(unknown, masks[0].shape)
        before.append(dice(masks[0], masks[1], ignored))
        after.append(dice(np.stack([corrected == k for k in classes]), masks[1], ignored))
    corrector.refused = [0] * len(corrector.class_names)
    if not both:
        return {"cases": 0}, [False] * folders.num_classes
    means = [np.mean(values, axis=0) for values in (before, after)]
    by_name = [dict(zip(corrector.class_names, mean.tolist(), strict=True)) for mean in means]
    kept = [bool(lost) for lost in means[1] < means[0]]
    return {"cases": len(both), "given": by_name[0], "corrected": by_name[1]}, kept


@dataclass(frozen=True)
class _Correction:
    """A corrector that knows what to do with the labels.

    Attributes:
        corrector: fitted.
        folders: of the files.
        target: the folder for the result.
        in_mm: whether all sizes are known in mm.
        both: how given and corrected labels compare with clean ones.
        kept: for each class, whether its labels had better stay.
    """

    corrector: SpatialCorrector
    folders: CorrectionFolders
    target: Path
    in_mm: bool
    both: dict[str, Any]
    kept: list[bool]

    @classmethod
    def fitted(
        cls, corrector: SpatialCorrector, folders: CorrectionFolders, target: Path, progress: bool
    ) -> _Correction:
        """Fit the corrector, and judge it."""
        in_mm = _fit(corrector, folders, progress)
        return cls(corrector, folders, target, in_mm, *_judge(corrector, folders))

    def correct(self, name: str, partial: Path, scratch: Path) -> dict[str, Any]:
        """Write the corrected label of a case into ``partial``, by way of a file in ``scratch``, and return its row.

        Raises:
            OSError: naming the file, when the disk cannot take it.
        """
        folders, given = self.folders, self.folders.label(name)
        self.corrector.refused = [0] * folders.num_classes
        clean = name in set(folders.clean_names)
        label = self._clean(name, given) if clean else self._corrected(name, given)
        written = np.where(label == 1, folders.foreground, label) if folders.foreground != 1 else label
        file, staged = partial / name, scratch / f".staged{file_suffix(given.path)}"
        with naming(self.target / name):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_values_like(written, staged, given.path, name="label")
            staged.replace(file)
            sync_folder(file.parent)
        masks = [np.stack([values == k + 1 for k in range(folders.num_classes)]) for values in (label, given.values)]
        changed = [int((now != before).sum()) for now, before in zip(*masks, strict=True)]
        return {
            "case": name,
            "source": "clean" if clean else "corrected",
            "label": {"path": str(given.path.absolute()), "sha256": sha256(given.path)},
            "prediction": str(find_prediction(folders.predictions, name)),
            "voxels_changed": self._by_name(changed),
            "dice_to_given": self._by_name(dice(*masks).round(6).tolist()),
            REFUSED: list(self.corrector.refused),
        }

    def finish(self, rows: Sequence[Mapping[str, Any]], partial: Path) -> dict[str, Any]:
        """Write the manifest and the report beside the labels, put all in place, and return the report."""
        entries = [{key: value for key, value in row.items() if key != REFUSED} for row in rows]
        write_synced(partial / MANIFEST, "".join(json.dumps(entry) + "\n" for entry in entries))
        corrector, names = self.corrector, self.corrector.class_names
        corrector.refused = [sum(counts) for counts in zip(*(row[REFUSED] for row in rows), strict=True)]
        stays = [keep or corrector.keeps_given(k) for k, keep in enumerate(self.kept)]
        report = {
            **corrector.report(),
            "unit": "mm" if self.in_mm else "voxels",
            "output": self.folders.output,
            "values": self.folders.values,
            "labels_kept": [name for name, keep in zip(names, stays, strict=True) if keep],
            "both": self.both,
            "voxels_changed": {name: sum(e["voxels_changed"][name] for e in entries) for name in names},
            "cases": len(entries),
            "monai_sc": version("monai-sc"),
        }
        write_synced(partial / REPORT, json.dumps(report, indent=2) + "\n")
        partial.chmod(0o755)
        _put_in_place(partial, self.target)
        return report

    def _clean(self, name: str, given: LabelFile) -> np.ndarray:
        """Return the clean label of a case, but for the voxels that stay."""
        folders = self.folders
        true = folders.clean_of(name, given)
        stay = [m for m in (given.ignored(folders.ignore_value), true.ignored(folders.ignore_value)) if m is not None]
        trusted = folders.trust(name, given)
        stay += [trusted[0]] if trusted is not None else []
        return np.where(np.any(stay, axis=0), given.values, true.values) if stay else true.values

    def _corrected(self, name: str, given: LabelFile) -> np.ndarray:
        """Return the corrected label of a case; of a class that stays, voxels neither come nor go."""
        label = _corrected(self.corrector, self.folders, name, given)
        stays = [k + 1 for k, keep in enumerate(self.kept) if keep]
        return np.where(np.isin(given.values, stays) | np.isin(label, stays), given.values, label) if stays else label

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.corrector.class_names, values, strict=True))
