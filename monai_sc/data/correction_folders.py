"""What the files of a correction are, and how to read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from monai_sc.data.audit import LabelFile, load_label, refuse_other_types
from monai_sc.data.predictions import find_prediction, load_prediction
from monai_sc.data.simulation.masks import find_masks
from monai_sc.functional.correction import ROUNDING


class CorrectionFolders:
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
            first_with_it = next(name for name in self.clean_names if highest in self.clean_label(name).values)
            raise ValueError(
                "Predictions must have one channel per value of the labels, the background among them (or one channel "
                f"for labels of 0 and 1), got {self.channels} channels for labels up to {highest}, as in "
                f"{self.clean / first_with_it}."
            )
        self.values = list(range(1, self.num_classes + 1)) if self.foreground == 1 else [self.foreground]

    def files(self) -> Iterator[Path]:
        """Return all files that a correction reads."""
        for name in self.names:
            yield self.labels / name
            if self.trusted is not None and (self.trusted / name).is_file():
                yield self.trusted / name
        yield from (self.clean / name for name in self.clean_names)
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
