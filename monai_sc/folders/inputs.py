"""Read and check the files of a correction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monai_sc.correction.cases import unit_of
from monai_sc.files.axes import CHECKED, Axes, AxesCheck
from monai_sc.files.names import find_in, find_masks, named_alike
from monai_sc.files.predictions import find_prediction, load_prediction
from monai_sc.files.regions import Regions, described_regions
from monai_sc.folders.labels import LabelFile, LabelPairs, load_label, refuse_masks_apart
from monai_sc.functional.boundary import ROUNDING
from monai_sc.functional.masks import filled

SUMS = 0.05  # by which those of probabilities over the channels may differ from 1
UNKNOWN = -1  # in a label whose classes are 1, 2, ..., whatever the files call them


@dataclass(frozen=True)
class ClassLabel:
    """A label with its values as 1, 2, ...

    Attributes:
        file: what the file holds.
        values: int16 ``(*spatial)``: 0, the values that the files hold as 1, 2, ..., and :py:data:`UNKNOWN`.
        others: boolean, where the file has a value of no class; ``None`` where it has none.
    """

    file: LabelFile
    values: np.ndarray
    others: np.ndarray | None = None

    @property
    def stays(self) -> np.ndarray | None:
        """Where no voxel may change: of unknown ones and of other values; ``None`` where there is none."""
        unknown = self.values == UNKNOWN
        unknown = unknown if self.others is None else unknown | self.others
        return unknown if unknown.any() else None

    def filled(self) -> np.ndarray:
        """Return the values with those of the nearest voxel that may change where none may.

        A boundary to what is not known is none, and a class that is moved back must not retreat from it.
        """
        stays = self.stays
        if stays is None or stays.all():
            return self.values
        return filled(self.values, stays, self.file.spacing)


class CorrectionFolders:
    """The files of one call, and how to read them.

    Args:
        labels: folder.
        clean: folder.
        predictions: folder, or none.
        trusted: folder, or none.
        kind: what predictions hold, if their files do not say.
        ignore: value of unknown voxels.
        judged: whether to refuse values of an image, or of a label that was smoothed.
        axes: how those of predictions lie, if not as those of the labels.
        regions: what the channels of predictions mean, if they overlap; by default as nnU-Net describes it beside the
            files.

    Attributes:
        names: of the labels.
        clean_names: of the clean labels.
        pairs: of the cases that have both.
        fitted: of the clean cases that are used: all where there are predictions, else those with both labels.
        in_mm: whether these files say how large a voxel is.
        spacings: of ``fitted``.
        values: that the labels hold beside 0, sorted.
        regions: what the classes are, if they overlap; else each value is one.
        output: ``"sigmoid"`` for one class, and for regions, or ``"softmax"``.
        probabilities: whether predictions are probabilities.

    Raises:
        ValueError: when the files do not fit each other.
        FileNotFoundError: when there is no prediction of a case.
    """

    def __init__(
        self,
        labels: Path,
        clean: Path,
        *,
        predictions: Path | None = None,
        trusted: Path | None = None,
        kind: str | None = None,
        ignore: int | None = None,
        judged: bool = True,
        axes: str | None = None,
        regions: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.predictions, self.labels, self.clean, self.trusted = predictions, labels, clean, trusted
        self.kind = kind
        self.ignore_value = ignore
        self.axes = None if axes is None else Axes(axes).text
        self.regions = None if regions is None else Regions(regions)
        self.described = None if predictions is None or regions is not None else described_regions(predictions, labels)
        pairs = LabelPairs(labels, clean, ignore_value=ignore, judged=judged)
        self.names, self.clean_names, self.pairs, self.judge = pairs.names, pairs.clean_names, pairs.both, pairs.judge
        if predictions is not None:
            for name in dict.fromkeys([*self.names, *self.clean_names]):
                find_prediction(predictions, name)  # told now, not after an hour
        if trusted is not None:
            unknown = sorted(set(named_alike(find_masks(trusted)[0], self.names)) - set(self.names))
            if unknown:
                raise ValueError(f"trusted must hold masks with the names of labels, got {unknown[0]}.")
        self.fitted = self.pairs if predictions is None else self.clean_names
        self.probabilities = False
        self.channels = 0
        if predictions is None:
            self._refuse_without_pairs()
        sizes = []
        for name in self.fitted:
            true = pairs.read(name)[1] if name in self.pairs else pairs.read_clean(name)
            sizes.append((true.in_mm, true.spacing))
        pairs.refuse_turned(self.fitted[0])
        pairs.refuse_masks_apart()
        self.in_mm = all(in_mm for in_mm, _ in sizes)
        self.spacings = [spacing if self.in_mm else None for _, spacing in sizes]
        self._clean = pairs.true
        if predictions is None:
            drawn, true_values = pairs.values()
            is_mask = len(true_values) == 1 and true_values != {1}
            self.values = sorted(true_values if is_mask else drawn | true_values)
            # a mask of 255 has no other value, in which an edge that was smoothed may have many
            self.has_others = len(self.values) > 1 or self.values == [1]
        else:
            self.values = self._values_of_channels(predictions)
            self.has_others = False
            self._refuse_turned_predictions()
        is_mask = len(self.values) == 1 and self.channels < 2
        self.output = "sigmoid" if is_mask or self.regions is not None else "softmax"

    @property
    def class_values(self) -> list[Any]:
        """Of each class its value in the files, or its values."""
        return self.values if self.regions is None else [list(own) for own in self.regions.sets]

    def class_names(self) -> list[str]:
        """Return what the classes are called by default."""
        return [str(value) for value in self.values] if self.regions is None else self.regions.names

    def masks(self, values: np.ndarray) -> np.ndarray:
        """Return a boolean mask ``(classes, *spatial)`` of values as in :py:class:`ClassLabel`."""
        if self.regions is not None:
            return self.regions.masks(values)
        return np.stack([values == k + 1 for k in range(len(self.values))])

    def as_label(self, values: np.ndarray) -> np.ndarray:
        """Return values ``(*spatial)`` as a corrector takes a label."""
        if self.regions is None:
            return values[None]
        return np.where(values == UNKNOWN, UNKNOWN, self.masks(values)).astype(np.int8)

    def from_label(self, label: np.ndarray, given: np.ndarray, dice: Sequence[float | None]) -> np.ndarray:
        """Return the values ``(*spatial)`` of a corrected label; ``dice`` is that of each class, where it is known."""
        return label[0] if self.regions is None else self.regions.codes(label > 0, given, dice)

    def _refuse_without_pairs(self) -> None:
        if self.regions is not None:
            raise ValueError("regions needs predictions, got none.")
        if self.kind is not None:
            raise ValueError(f"kind needs predictions, got {self.kind!r} without them.")
        if not self.pairs:
            raise ValueError(
                f"{self.labels} and {self.clean} must have at least one case in common if there are no predictions, "
                f"got {self.names[0]} there and {self.clean_names[0]} here; let an expert draw some of the labels "
                "again, under their names, or give predictions of all cases."
            )

    def _values_of_channels(self, predictions: Path) -> list[int]:
        """Return the values of the classes that predictions and clean labels have."""
        first = load_label(self.clean, self.clean_names[0])
        file = find_prediction(predictions, self.clean_names[0])
        sample = load_prediction(file, first.values.shape, first.affine, self.axes)
        self.channels = len(sample.values)
        self.probabilities = self._kind_of(sample.are_probabilities, self.clean_names[0])
        if self.described is not None and self.channels == len(self.described.sets):
            self.regions = self.described
        if self.regions is not None:
            if self.channels != len(self.regions.sets):
                raise ValueError(
                    f"regions must name the values of each channel, {self.channels} in {file}, got "
                    f"{len(self.regions.sets)}: {', '.join(self.regions.names)}."
                )
            return self.regions.values
        self._refuse_regions(sample.values, file)
        values = sorted({value for own in self._clean.values() for value in own})
        if len(values) == 1 and self.channels <= 2:  # binary masks, perhaps of 0 and 255
            return values
        highest = values[-1] if values else 1
        if self.channels == 1 and highest == 1:
            return [1]
        if self.channels > 1 and highest < self.channels:
            return list(range(1, self.channels))
        first_with_it = next(name for name in self.clean_names if highest in self._clean[name])
        raise ValueError(
            "Predictions must have one channel per value of the labels, the background among them (or one channel "
            f"for labels of 0 and 1), got {self.channels} channels for labels up to {highest}, as in "
            f"{self.clean / first_with_it}."
        )

    @property
    def voxel_of_pairs(self) -> float | None:
        """The length of a voxel, as an audit of the same labels has it; ``None`` without pairs, or unknown."""
        return unit_of([size for name, size in zip(self.fitted, self.spacings, strict=True) if name in self.pairs])

    def label_files(self) -> Iterator[Path]:
        """Return the files of all labels, given and clean ones."""
        yield from (self.labels / name for name in self.names)
        yield from (find_in(self.clean, name) for name in self.clean_names)

    def files(self) -> Iterator[Path]:
        """Return all files that a correction reads."""
        yield from self.label_files()
        for name in self.names:
            if self.trusted is not None and find_in(self.trusted, name).is_file():
                yield find_in(self.trusted, name)
        if self.predictions is not None:
            for name in dict.fromkeys([*self.names, *self.clean_names]):
                yield find_prediction(self.predictions, name)

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

    def label(self, name: str) -> ClassLabel:
        """Return a given label."""
        return self._mapped(load_label(self.labels, name))

    def clean_label(self, name: str, given: ClassLabel | None = None) -> ClassLabel:
        """Return a clean label, on the grid of the given one."""
        return self._mapped(load_label(self.clean, name, None if given is None else given.file))

    def _mapped(self, label: LabelFile) -> ClassLabel:
        """Return a label with its classes as 1, 2, ..., and refuse other values, unless there may be some."""
        found = label.classes(self.ignore_value)
        others = sorted(set(found) - set(self.values))
        if others and self.judge is not None:
            label.classes(self.ignore_value, self.judge)  # which knows more of what is wrong
            refuse_masks_apart({label.path: found, self.clean / self.clean_names[0]: self.values})
        if others and not self.has_others:
            raise ValueError(
                f"Label {label.path} must hold 0 and {', '.join(map(str, self.values))} only, got {others[0]}; "
                "give ignore_value, or make the values the same in all files."
            )
        values = np.zeros(label.values.shape, dtype=np.int16)
        for k, value in enumerate(self.values, 1):
            values[label.values == value] = k
        if self.ignore_value is not None:
            values[label.values == self.ignore_value] = UNKNOWN
        return ClassLabel(label, values, np.isin(label.values, others) if others else None)

    def as_file(self, values: np.ndarray, given: ClassLabel) -> np.ndarray:
        """Return what a file holds of values ``(*spatial)`` as of :py:class:`ClassLabel`; what must stay stays."""
        written = np.asarray([0, *self.values])[np.maximum(values, 0)]
        stays = values == UNKNOWN if given.stays is None else given.stays | (values == UNKNOWN)
        return np.where(stays, given.file.values, written)

    def prediction(self, name: str, like: LabelFile) -> np.ndarray | None:
        """Return the prediction of a case, ``None`` where there are none."""
        if self.predictions is None:
            return None
        file = find_prediction(self.predictions, name)
        found = load_prediction(file, like.values.shape, like.affine, self.axes)
        if len(found.values) != self.channels:
            raise ValueError(f"All predictions must have {self.channels} channels, got {len(found.values)} in {file}.")
        if self._kind_of(found.are_probabilities, name) != self.probabilities:
            raise ValueError(f"All predictions must be probabilities, or all logits, but {file} is another kind.")
        if self.probabilities and not (found.values.min() >= -ROUNDING and found.values.max() <= 1 + ROUNDING):
            raise ValueError(
                f"Prediction {file} must hold probabilities, in [0, 1], got values from {found.values.min():g} to "
                f"{found.values.max():g}; say kind='logits' if it holds logits."
            )
        self._refuse_regions(found.values, file)
        return found.values

    def _refuse_turned_predictions(self) -> None:
        """Refuse predictions that fit labels much better when they are turned, as those of a reader that reorients."""
        check = AxesCheck()
        for name in self.names[:: max(1, len(self.names) // CHECKED)][:CHECKED]:
            label = self.label(name)
            values = self.prediction(name, label.file)
            if values is None:
                return
            masks = values > (0.5 if self.probabilities else 0)
            if self.regions is not None:
                drawn = self.regions.codes(masks, np.zeros_like(label.values))
            else:
                drawn = values.argmax(axis=0) if len(values) > 1 else masks[0]
            check.add(label.values, drawn, label.file.affine)
        found = check.better()
        if found is not None:
            axes, best, given = found
            way_out = f"use --axes={axes} (axes={axes!r} in Python), or export them with the axes of the labels"
            if self.axes is not None:
                way_out = f"axes={self.axes!r} is not how they lie"
            raise ValueError(
                f"Predictions must have the axes of the labels, but fit better with their axes turned: mean Dice "
                f"{best:.2f} instead of {given:.2f}; {way_out}."
            )

    def _refuse_regions(self, values: np.ndarray, file: Path) -> None:
        """Refuse probabilities of several channels that do not exclude each other, such as regions of nnU-Net."""
        if not self.probabilities or len(values) < 2 or self.regions is not None:
            return
        sums = values.sum(axis=0)
        low, high = float(sums.min()), float(sums.max())
        if low < 1 - SUMS or high > 1 + SUMS:
            raise ValueError(
                f"Prediction {file} must hold the probabilities of a softmax, which sum to 1 in each voxel, got sums "
                f"from {low:.3g} to {high:.3g}; where its channels are regions that overlap (a sigmoid each), say "
                "which values each holds: --regions=1+2,1,2 (regions=[[1, 2], [1], [2]] in Python)."
            )

    def trust(self, name: str, like: ClassLabel) -> np.ndarray | None:
        """Return where the label of a case stays ``(1, *spatial)``, ``None`` where it may change everywhere."""
        stays = like.stays
        if self.trusted is not None and find_in(self.trusted, name).is_file():
            trusted = np.asarray(load_label(self.trusted, name, like.file).values != 0)
            stays = trusted if stays is None else stays | trusted
        return None if stays is None else stays[None]
