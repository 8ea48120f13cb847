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
from monai.transforms import LoadImage, MapTransform, Transform
from monai.utils import TransformBackends, convert_to_dst_type, convert_to_tensor

__all__ = ["LoadLabel", "LoadLabeld"]


class LoadLabel(Transform):
    """Load a binary label ``(channels, *spatial)``, 0 and 1 as uint8, from one file per channel.

    The files are read by MONAI's ``LoadImage``, whose axes and metadata they keep (of the first file).

    Args:
        foreground: the value of the foreground in the files; the background is 0. A value within 0.001 counts, for
            files whose scale makes a 1 read 0.99999997.

    Raises:
        ValueError: when ``foreground`` is not over 0; at the call, when a file cannot be read, holds another value or
            more than one channel, or the files differ in shape.
        FileNotFoundError: at the call, when a file does not exist.
    """

    backend = [TransformBackends.NUMPY]

    def __init__(self, *, foreground: float = 1) -> None:
        if not isinstance(foreground, (int, float, np.number)) or not foreground > 0:
            raise ValueError(
                f"foreground must be the value of the foreground in the files, over 0, got {foreground!r}."
            )
        self.foreground = float(foreground)
        self._load_image = LoadImage(image_only=True, ensure_channel_first=True)

    def __call__(self, files: PathLike | Sequence[PathLike]) -> MetaTensor:
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        if not paths:
            raise ValueError("A label must have at least one file, got none.")
        channels: list[Any] = [self._load(Path(path)) for path in paths]
        if len({tuple(c.shape) for c in channels}) != 1:
            shapes = ", ".join(f"{path} {tuple(c.shape[1:])}" for path, c in zip(paths, channels, strict=True))
            raise ValueError(f"The label files of a case must have one shape, got {shapes}.")
        label: MetaTensor = convert_to_dst_type(
            torch.cat([convert_to_tensor(c, track_meta=False) for c in channels]), channels[0]
        )[0]
        return label

    def _load(self, path: Path) -> MetaTensor:
        if not path.is_file():
            raise FileNotFoundError(f"Label file {path} does not exist.")
        try:
            image: MetaTensor = self._load_image(path)
        except Exception as error:  # each of MONAI's readers has its own
            raise ValueError(f"Label file {path} cannot be read: {error}") from error
        if len(image) != 1:
            raise ValueError(f"Label file {path} must hold one channel, got {len(image)}.")
        values = image.numpy()
        mask = np.abs(values - self.foreground) < 1e-3
        stray = ~mask & ~(np.abs(values) < 1e-3)
        if stray.any():
            found = ", ".join(f"{v:g}" for v in np.unique(values[stray])[:4])
            raise ValueError(
                f"Label file {path} must hold 0 and {self.foreground:g} only, got {found}; "
                "the case list states the value of the foreground."
            )
        return convert_to_dst_type(mask, image, dtype=torch.uint8)[0]


class LoadLabeld(MapTransform):
    """Dictionary version of :py:class:`LoadLabel`: each key holds the file of a label, or one file per channel.

    Args:
        keys: of the labels.
        foreground_key: of the foreground's value in the files, 1 in a case that has no such key.
        allow_missing_keys: skip a key that is absent.
    """

    backend = LoadLabel.backend

    def __init__(
        self, keys: KeysCollection, *, foreground_key: str = "foreground", allow_missing_keys: bool = False
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.foreground_key = foreground_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        load = LoadLabel(foreground=d.get(self.foreground_key, 1))
        for key in self.key_iterator(d):
            d[key] = load(d[key])
        return d


LoadLabelD = LoadLabelDict = LoadLabeld
