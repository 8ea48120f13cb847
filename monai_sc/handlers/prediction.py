"""Predictions of a trainer's network, one case at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor, decollate_batch
from monai.engines import SupervisedTrainer, default_prepare_batch
from monai.inferers import Inferer
from monai.networks.utils import eval_mode
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader

from monai_sc.parallel import is_main


def predict(
    engine: SupervisedTrainer,
    loader: DataLoader[Any],
    networks: Sequence[torch.nn.Module],
    *,
    inferer: Inferer | None = None,
    description: str = "",
    progress: bool = False,
) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
    """Yield every case of ``loader`` as its dictionary and the logits ``(channels, *spatial)`` of each network.

    Raises:
        ValueError: when an output is not finite.
    """
    inferer = inferer or engine.inferer
    shown = progress and is_main() and Console().is_terminal
    for batch in track(loader, description, disable=not shown, transient=True):
        images, _ = engine.prepare_batch(batch, engine.state.device, engine.non_blocking, **engine.to_kwargs)
        outputs = []
        for network in networks:
            with eval_mode(network), torch.autocast("cuda", enabled=engine.amp and images.is_cuda, **engine.amp_kwargs):
                outputs.append(inferer(images, network))
        for case, *logits in zip(decollate_batch(batch), *outputs, strict=True):
            found = [(one.as_tensor() if isinstance(one, MetaTensor) else one).float().cpu() for one in logits]
            if not all(torch.isfinite(one).all() for one in found):
                raise ValueError(
                    f"The network's output must be finite, got nan or infinite values for case "
                    f"{case.get('id', '?')!r}: training has diverged."
                )
            yield case, found


def prepare_plain_batch(batchdata: Any, device: Any = None, non_blocking: bool = False, **options: Any) -> Any:
    """Return images and labels of a batch without metadata: a ``prepare_batch`` that makes a training faster.

    A ``MetaTensor`` carries its metadata through every layer of a network, which takes up to a quarter of an epoch on
    small images. What handlers and transforms read is still in the batch.
    """
    images, labels, *_ = default_prepare_batch(batchdata, device, non_blocking, **options)
    return tuple(x.as_tensor() if isinstance(x, MetaTensor) else x for x in (images, labels))


class ArraysOnDisk(Sequence[np.ndarray]):
    """A list of arrays in a folder, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.length = 0

    def append(self, array: np.ndarray) -> None:
        """Write one more array."""
        np.save(self.folder / f"{self.length}.npy", array)
        self.length += 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return np.load(self.folder / f"{index}.npy")
