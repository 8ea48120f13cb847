"""Folders of predictions, labels and a few clean labels: corrected labels beside the originals."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from monai_sc.correction import SpatialCorrector
from monai_sc.data.audit import LabelFile, load_label, refuse_other_types
from monai_sc.data.durable import sync_folder, write_synced
from monai_sc.data.label_files import write_values_like
from monai_sc.data.predictions import find_prediction, load_prediction
from monai_sc.data.simulation.case import sha256
from monai_sc.data.simulation.masks import find_masks
from monai_sc.functional.correction import ROUNDING
from monai_sc.functional.dice import dice

__all__ = ["correct_folder", "refuse_source_folders"]

SAMPLE = 50  # labels from which the offset of the labels is learnt
REPORT, MANIFEST = "report.json", "manifest.jsonl"


class _Cases(Sequence[Any]):
    """Predictions or masks of some cases, each loaded when it is asked for."""

    def __init__(self, load: Any, names: Sequence[str]) -> None:
        self.load = load
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self.load(self.names[index])


class _Folders:
    """What the files of one call are, and how to read them."""

    def __init__(
        self, predictions: Path, labels: Path, clean: Path, trusted: Path | None, kind: str | None, ignore: int | None
    ) -> None:
        self.predictions, self.labels, self.clean, self.trusted = predictions, labels, clean, trusted
        self.kind = kind
        self.ignore_value = ignore
        self.foreground = 1
        self.names = find_masks(labels)[0]
        self.clean_names = find_masks(clean)[0]
        for name in dict.fromkeys([*self.names, *self.clean_names]):
            find_prediction(predictions, name)  # told now, not after an hour
        refuse_other_types(self.names, self.clean_names)
        if trusted is not None:
            unknown = sorted(set(find_masks(trusted)[0]) - set(self.names))
            if unknown:
                raise ValueError(f"trusted must hold masks with the names of labels, got {unknown[0]}.")
        self.values: list[int] = []
        first = self.clean_label(self.clean_names[0])
        sample = load_prediction(find_prediction(predictions, self.clean_names[0]), first.values.shape, first.affine)
        self.channels = len(sample.values)
        self.probabilities = self._kind_of(sample.are_probabilities, self.clean_names[0])
        values = sorted({v for name in self.clean_names for v in self.clean_label(name).classes(ignore)})
        if len(values) == 1 and self.channels <= 2:  # binary masks, perhaps of 0 and 255
            self.foreground, values = values[0], [1]
        highest = values[-1] if values else 1
        if self.channels == 1 and highest == 1:
            self.output, self.num_classes = "sigmoid", 1
        elif self.channels > 1 and highest < self.channels:
            self.output, self.num_classes = "softmax", self.channels - 1
        else:
            raise ValueError(
                "Predictions must have one channel per value of the labels, the background among them (or one channel "
                f"for labels of 0 and 1), got {self.channels} channels for labels up to {highest}."
            )

        self.values = list(range(1, self.num_classes + 1)) if self.foreground == 1 else [self.foreground]

    def _kind_of(self, known: bool | None, name: str) -> bool:
        if known is not None:
            if self.kind is not None and known != (self.kind == "probabilities"):
                raise ValueError(
                    f"kind must be that of the files, {'probabilities' if known else 'logits'}, got {self.kind!r}."
                )
            return known
        if self.kind is None:
            raise ValueError(
                f"kind must be 'logits' or 'probabilities' for predictions such as that of {name}: the file does not "
                "say which it holds."
            )
        return self.kind == "probabilities"

    def clean_label(self, name: str) -> LabelFile:
        return self._mapped(load_label(self.clean, name))

    def label(self, name: str) -> LabelFile:
        return self._mapped(load_label(self.labels, name))

    def clean_of(self, name: str, given: LabelFile) -> LabelFile:
        """Return the clean label of a case that has both."""
        return self._mapped(load_label(self.clean, name, given))

    def _mapped(self, label: LabelFile) -> LabelFile:
        """Return a label with the classes as 1, 2, ..., and refuse other values."""
        if self.values:
            unknown = sorted(set(label.classes(self.ignore_value)) - set(self.values))
            if unknown:
                raise ValueError(
                    f"Label {label.path} must hold 0 and {', '.join(map(str, self.values))} only, got {unknown[0]}; "
                    "give ignore_value, or make the values the same in all files."
                )
        if self.foreground != 1:
            label.values = np.where(label.values == self.foreground, 1, label.values)
        return label

    def prediction(self, name: str, like: LabelFile) -> np.ndarray:
        file = find_prediction(self.predictions, name)
        found = load_prediction(file, like.values.shape, like.affine)
        if len(found.values) != self.channels:
            raise ValueError(f"All predictions must have {self.channels} channels, got {len(found.values)} in {file}.")
        if self._kind_of(found.are_probabilities, name) != self.probabilities:
            raise ValueError(f"All predictions must be probabilities, or all logits, but {file} is another kind.")
        if self.probabilities and not (found.values.min() >= -ROUNDING and found.values.max() <= 1 + ROUNDING):
            raise ValueError(
                f"Prediction {file} must hold probabilities, in [0, 1], got values from {found.values.min():g} to "
                f"{found.values.max():g}; say kind='logits' if it holds logits."
            )
        return found.values

    def trust(self, name: str, like: LabelFile) -> np.ndarray | None:
        if self.trusted is None or not (self.trusted / name).is_file():
            return None
        return np.asarray(load_label(self.trusted, name, like).values[None] != 0)


def correct_folder(
    predictions: str | Path,
    labels: str | Path,
    clean: str | Path,
    out: str | Path,
    *,
    kind: str | None = None,
    trusted: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    ignore_value: int | None = None,
    max_shift_mm: float | None = None,
    representation: str = "auto",
    shape_weight: float = 0.5,
    presence: bool = True,
    progress: bool = True,
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

    Returns:
        The report, as in ``report.json``: that of the corrector, ``unit``, ``labels_kept`` (classes whose labels stay,
        since the cases with both labels would be worse corrected), ``both`` (mean Dice by class of the given and of
        the corrected labels of these cases, against the clean ones), and ``voxels_changed`` by class.

    Raises:
        ValueError: when folders or files do not fit each other.
        FileNotFoundError: when a folder or a prediction does not exist.
    """
    target = Path(out)
    sources = [Path(p) for p in (predictions, labels, clean, *([trusted] if trusted is not None else []))]
    refuse_source_folders(target, sources)
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ValueError(f"out must be a new or an empty folder, got {target}, which is there and is not empty.")
    if kind not in (None, "logits", "probabilities"):
        raise ValueError(f"kind must be 'logits' or 'probabilities', got {kind!r}.")
    folders = _Folders(sources[0], sources[1], sources[2], None if trusted is None else sources[3], kind, ignore_value)
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
    target.resolve().parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.resolve().name[:100]}.", dir=target.resolve().parent))
    try:
        in_mm = _fit(corrector, folders, progress)
        both, kept = _judge(corrector, folders)
        entries = [
            _correct_case(corrector, folders, name, kept, partial)
            for name in track(folders.names, "Correcting labels", disable=not progress)
        ]
        write_synced(partial / MANIFEST, "".join(json.dumps(entry) + "\n" for entry in entries))
        stays = [keep or corrector.keeps_given(k) for k, keep in enumerate(kept)]
        report = {
            **corrector.report(),
            "unit": "mm" if in_mm else "voxel",
            "output": folders.output,
            "labels_kept": [name for name, keep in zip(names, stays, strict=True) if keep],
            "both": both,
            "voxels_changed": {name: sum(e["voxels_changed"][name] for e in entries) for name in names},
            "cases": len(entries),
            "monai_sc": version("monai-sc"),
        }
        write_synced(partial / REPORT, json.dumps(report, indent=2) + "\n")
        partial.chmod(0o755)
        _put_in_place(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
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


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        partial.rename(target.resolve())  # takes the place of an empty folder
    except OSError as error:
        raise ValueError(
            f"out must be a new or an empty folder that can be renamed, got {target}: {error.strerror}; another run "
            "may have written it, or it is a mount point: give a folder in it."
        ) from error
    sync_folder(target.resolve().parent)


def _fit(corrector: SpatialCorrector, folders: _Folders, progress: bool) -> bool:
    """Fit on the clean labels and on a sample of the given ones, and say whether all sizes are known in mm."""
    clean = folders.clean_names
    in_mm = all(folders.clean_label(name).in_mm for name in clean)
    spacings = [folders.clean_label(name).spacing if in_mm else None for name in clean]
    corrector.fit(
        _Cases(lambda name: folders.prediction(name, folders.clean_label(name)), clean),
        _Cases(lambda name: folders.clean_label(name).values[None], clean),
        spacing=spacings,
    )
    chosen = np.unique(np.linspace(0, len(folders.names) - 1, min(SAMPLE, len(folders.names))).round().astype(int))
    sample = [folders.names[i] for i in chosen]
    if corrector.shape_weight:
        corrector.fit_given(
            _Cases(lambda name: folders.prediction(name, folders.label(name)), sample),
            _Cases(
                lambda name: folders.label(name).values[None],
                list(track(sample, "Comparing predictions with labels", disable=not progress)),
            ),
            spacing=[folders.label(name).spacing if in_mm else None for name in sample],
        )
    corrector.refused = [0] * len(corrector.class_names)
    return in_mm


def _corrected(corrector: SpatialCorrector, folders: _Folders, name: str, given: LabelFile) -> np.ndarray:
    label = corrector.transform(
        folders.prediction(name, given),
        given=given.values[None],
        trusted=folders.trust(name, given),
        spacing=given.spacing if given.in_mm else None,
    )
    return np.asarray(label[0])


def _judge(corrector: SpatialCorrector, folders: _Folders) -> tuple[dict[str, Any], list[bool]]:
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


def _correct_case(
    corrector: SpatialCorrector, folders: _Folders, name: str, kept: Sequence[bool], target: Path
) -> dict[str, Any]:
    given = folders.label(name)
    file = target / name
    file.parent.mkdir(parents=True, exist_ok=True)
    clean = name in set(folders.clean_names)
    if clean:
        true = folders.clean_of(name, given)
        stay = [m for m in (given.ignored(folders.ignore_value), true.ignored(folders.ignore_value)) if m is not None]
        trusted = folders.trust(name, given)
        stay += [trusted[0]] if trusted is not None else []
        label = np.where(np.any(stay, axis=0), given.values, true.values) if stay else true.values
    else:
        label = _corrected(corrector, folders, name, given)
        classes = range(1, folders.num_classes + 1)
        stays = [value for value, keep in zip(classes, kept, strict=True) if keep]
        if stays:  # of a class that stays, voxels neither come nor go
            theirs = np.isin(given.values, stays) | np.isin(label, stays)
            label = np.where(theirs, given.values, label)
    written = np.where(label == 1, folders.foreground, label) if folders.foreground != 1 else label
    write_values_like(written, file, given.path, name="label")
    changed: Mapping[str, int] = {
        class_name: int(((label == k + 1) != (given.values == k + 1)).sum())
        for k, class_name in enumerate(corrector.class_names)
    }
    return {
        "case": name,
        "source": "clean" if clean else "corrected",
        "label": {"path": str(given.path), "sha256": sha256(given.path)},
        "prediction": str(find_prediction(folders.predictions, name)),
        "voxels_changed": dict(changed),
        "dice_to_given": dict(
            zip(
                corrector.class_names,
                dice(
                    np.stack([label == k + 1 for k in range(folders.num_classes)]),
                    np.stack([given.values == k + 1 for k in range(folders.num_classes)]),
                )
                .round(6)
                .tolist(),
                strict=True,
            )
        ),
    }
