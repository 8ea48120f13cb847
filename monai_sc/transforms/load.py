"""The transform that loads label files, and refuses those that are not what the case list says."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection, PathLike
from monai.data import MetaTensor
from monai.transforms import MapTransform, Transform
from monai.utils import TransformBackends, convert_to_dst_type, convert_to_tensor

from monai_sc.files.read import LAYERS, TOLERANCE, has_layers, read_image
from monai_sc.files.values import values_in, why_no_label


class LoadLabel(Transform):
    """Load a label ``(channels, *spatial)``, 0 and 1 as uint8, from one binary file per channel or from one label map.

    The files are read by MONAI's ``LoadImage``, whose axes and metadata they keep (of the first file). A value within
    0.001 of the one that it should be counts, for files whose scale makes a 1 read 0.99999997.

    Args:
        foreground: the value of the foreground in the files, by default the one value over 0 that a file holds, such as
            1 or 255; the background is 0.
        values: the label is one file, a label map: channel ``k`` is where it holds ``values[k]``, the background is 0.

    Raises:
        ValueError: when ``foreground`` is not over 0, ``values`` are not distinct whole numbers under 2**24 other than
            0, or both are given; at the call, when a file cannot be read, holds another value or more than one
            channel, the files differ in shape, or several are given with ``values``.
        FileNotFoundError: at the call, when a file does not exist.
    """

    backend = [TransformBackends.NUMPY]

    def __init__(self, *, foreground: float | None = None, values: Sequence[int] | None = None) -> None:
        if foreground is not None and (not isinstance(foreground, (int, float, np.number)) or not foreground > 0):
            raise ValueError(
                f"foreground must be the value of the foreground in the files, over 0, got {foreground!r}."
            )
        if values is not None:
            _check_values(values)
            if foreground not in (None, 1):
                raise ValueError(
                    f"foreground must be omitted if values give the classes of a label map, got {foreground!r}."
                )
        self.foreground = None if foreground is None else float(foreground)
        self.values = None if values is None else [int(value) for value in values]

    def __call__(self, files: PathLike | Sequence[PathLike]) -> MetaTensor:
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        if not paths:
            raise ValueError("A label must have at least one file, got none.")
        if self.values is not None and len(paths) > 1:
            files_given = ", ".join(map(str, paths))
            raise ValueError(f"With values a label must be one file, a label map, got {len(paths)}: {files_given}.")
        channels: list[Any] = [self._load(Path(path)) for path in paths]
        if len({tuple(c.shape) for c in channels}) != 1:
            shapes = ", ".join(f"{path} {tuple(c.shape[1:])}" for path, c in zip(paths, channels, strict=True))
            raise ValueError(f"The label files of a case must have one shape, got {shapes}.")
        label: MetaTensor = convert_to_dst_type(
            torch.cat([convert_to_tensor(c, track_meta=False) for c in channels]), channels[0]
        )[0]
        return label

    def _load(self, path: Path) -> MetaTensor:
        """Return the channels of one file."""
        if not path.is_file():
            raise FileNotFoundError(f"Label file {path} does not exist.")
        if has_layers(path):
            raise ValueError(f"Label file {path} cannot be used: {LAYERS}.")
        image = read_image(path, f"Label file {path}")
        if len(image) != 1:
            raise ValueError(f"Label file {path} must hold one channel, got {len(image)}.")
        content = image.numpy()[0]
        low, top = float(content.min(initial=0)), float(content.max(initial=0))  # either is nan if anything is
        if not np.isfinite([low, top]).all():
            raise ValueError(f"Label file {path} must hold numbers, got nan or infinity.")
        wanted: Sequence[float] = self.values or [self.foreground or (top if top > TOLERANCE else 1.0)]
        masks = np.stack([np.abs(content - value) < TOLERANCE for value in wanted])
        stray = ~masks.any(axis=0) & ~(np.abs(content) < TOLERANCE)
        if stray.any():
            raise ValueError(self._refusal(path, content, content[stray]))
        return convert_to_dst_type(masks, image, dtype=torch.uint8)[0]

    def _refusal(self, path: Path, content: np.ndarray, stray: np.ndarray) -> str:
        """Return what to say of a file with other values than it should hold."""
        few = [float(value) for value in values_in(stray, limit=4)[:4]]
        if self.values is not None:
            *first, last = map(str, [0, *self.values])
            wanted, way_out = f"{', '.join(first)} and {last} only", "values must list every class of the file"
        elif self.foreground is not None:
            wanted, way_out = f"0 and {self.foreground:g} only", "'foreground' of its case must be that value"
        else:
            few = [*few, float(content.max())]
            wanted = "0 and one other value"
            way_out = "state 'foreground' in its case, or values for the classes of a label map"
        if self.values is None:
            way_out = why_no_label(content) or way_out
        return f"Label file {path} must hold {wanted}, got {', '.join(f'{value:g}' for value in few)}; {way_out}."


def _check_values(values: Sequence[int]) -> None:
    whole = isinstance(values, (Sequence, np.ndarray)) and all(isinstance(v, (int, np.integer)) for v in values)
    # LoadImage gives float32, in which larger numbers may be equal
    if not whole or not len(values) or len({0, *values}) <= len(values) or max(map(abs, values)) >= 2**24:
        raise ValueError(
            f"values must be distinct whole numbers under 2**24, one per class, none of them 0, got {values!r}."
        )


class LoadLabeld(MapTransform):
    """Dictionary version of :py:class:`LoadLabel`: each key holds the file of a label, or one file per channel.

    Args:
        keys: of the labels.
        foreground_key: of the foreground's value in the files; without it, it is the one value that a file holds.
        values: of the classes, where the files are label maps; the same in all cases.
        allow_missing_keys: skip a key that is absent.
    """

    backend = LoadLabel.backend

    def __init__(
        self,
        keys: KeysCollection,
        *,
        foreground_key: str = "foreground",
        values: Sequence[int] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.foreground_key = foreground_key
        self.values = LoadLabel(values=values).values

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        load = LoadLabel(foreground=d.get(self.foreground_key), values=self.values)
        for key in self.key_iterator(d):
            d[key] = load(d[key])
        return d


LoadLabelD = LoadLabelDict = LoadLabeld
