"""A map that a training keeps of each case: kept between epochs, augmented with it, and handed to the loss."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ignite.engine import Events
from monai.config import PathLike
from monai.data import DataLoader, MetaTensor
from monai.data.utils import to_affine_nd
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.inferers import Inferer
from monai.transforms import (
    Compose,
    Rand2DElastic,
    Rand2DElasticd,
    Rand3DElastic,
    Rand3DElasticd,
    RandGridDistortion,
    RandGridDistortiond,
    RandomizableTrait,
    SpatialResample,
    Transform,
)
from monai.utils import TransformBackends, convert_to_dst_type

from monai_sc.files.cases import check_name, same_name
from monai_sc.files.durable import naming, sync_folder
from monai_sc.handlers.prediction import predict
from monai_sc.parallel import fail_together, gather, is_main, unwrapped, world_size

PREFIX = "maps-"


class CaseMemory:
    """One map ``(channels, *spatial)`` per case, with the affine of its grid, in memory or in a folder.

    The maps are replaced all at once and between two epochs, so that the processes of a ``DataLoader``, which start
    with an epoch, only read. In memory each of them gets a copy, which costs nothing where processes are forked
    (Linux), and is sent to them where they are not; a folder is for that, and for what does not fit into memory. Its
    disk must hold two versions of the maps: that before stays until the next is begun, so that a run that is
    interrupted between the replacement and its checkpoint goes on from the older one.

    Args:
        folder: of the files, one per case; it is made when something is written, and maps of an earlier run in it are
            replaced. ``None`` keeps the maps in memory, and :py:meth:`state_dict` holds them.
        dtype: of the stored values: ``"float16"`` (steps of 0.0005 near 1) for probabilities, ``"bool"`` for masks.

    Example:
        >>> memory = CaseMemory(dtype="bool")
        >>> memory.read("a") is None
        True
        >>> memory.replace([("a", MetaTensor(torch.tensor([[[1, 0]]]), affine=torch.eye(4)))])
        >>> memory.read("a").tolist()
        [[[True, False]]]
    """

    def __init__(self, folder: PathLike | None = None, *, dtype: str = "float16") -> None:
        self.folder = None if folder is None else Path(folder)
        self.dtype = np.dtype(dtype)
        self.version = 0
        self._maps: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def read(self, case_id: str) -> MetaTensor | None:
        """Return the map of a case, not to be written into, or ``None`` if there is none yet.

        Raises:
            ValueError: when ``case_id`` cannot name a file.
            FileNotFoundError: when the maps in force are gone from the folder.
        """
        check_name(case_id, "The id of a case")
        if self.folder is None:
            found = self._maps.get(case_id)
        else:
            found = _load(_place(self.folder, self.version), case_id) if self.version else None
        return None if found is None else MetaTensor(torch.from_numpy(found[0]), affine=torch.from_numpy(found[1]))

    def replace(self, maps: Iterable[tuple[str, MetaTensor]]) -> None:
        """Replace the maps of all cases; an error while ``maps`` are made leaves the old ones in force.

        Args:
            maps: ids of cases and their maps ``(channels, *spatial)``; it may be a generator that reads the old ones.

        Raises:
            ValueError: when an id cannot name a file, or comes twice (upper and lower case count as the same).
            TypeError: when a map has no affine.
            OSError: naming the file, when the disk cannot take it.
        """
        checked = self._checked(maps)
        if self.folder is None:
            self._maps = dict(checked)
            self.version += 1
            return
        for old in self.folder.glob(f"{PREFIX}*"):
            if old.name[len(PREFIX) :].isdecimal() and old != _place(self.folder, self.version):
                shutil.rmtree(old)
        new = _place(self.folder, self.version + 1)
        with naming(new):
            new.mkdir(parents=True)
        for case_id, (values, affine) in checked:
            file = new / f"{case_id}.npz"
            with naming(file), file.open("wb") as stream:
                np.savez(stream, values=values, affine=affine)
                stream.flush()
                os.fsync(stream.fileno())
        sync_folder(new)
        sync_folder(self.folder)
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the maps, or which version of them in the folder is in force."""
        if self.folder is not None:
            return {"version": self.version}
        maps = {name: [torch.from_numpy(array) for array in arrays] for name, arrays in self._maps.items()}
        return {"version": self.version, "maps": maps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the maps that :py:meth:`state_dict` told.

        Raises:
            ValueError: when the folder does not hold them, or the state is that of a memory of the other kind.
        """
        version = int(state_dict["version"])
        if (self.folder is None) != ("maps" in state_dict):
            here, there = ("in memory", "in a folder") if self.folder is None else ("in a folder", "in memory")
            raise ValueError(f"The run must keep its maps of cases {there}, as when it was saved, got them {here}.")
        if self.folder is None:
            self._maps = {name: (one[0].numpy(), one[1].numpy()) for name, one in state_dict["maps"].items()}
        elif version and not _place(self.folder, version).is_dir():
            raise ValueError(
                f"{self.folder} must hold version {version} of the maps of cases, but it is gone: put it back, or "
                "start a new run; the memory keeps two versions, so save a checkpoint each time they are replaced."
            )
        self.version = version

    def _checked(self, maps: Iterable[tuple[str, MetaTensor]]) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
        seen = set()
        for case_id, one in maps:
            check_name(case_id, "The id of a case")
            if same_name(case_id) in seen:
                raise ValueError(f"The ids of cases must be unique, got {case_id!r} twice or more.")
            seen.add(same_name(case_id))
            if not isinstance(one, MetaTensor):
                raise TypeError(
                    f"The map of a case must be a MetaTensor, whose affine says where it lies, got "
                    f"{type(one).__name__} for {case_id!r}."
                )
            yield case_id, (one.cpu().numpy().astype(self.dtype), one.affine.cpu().numpy().astype(np.float64))


def _place(folder: Path, version: int) -> Path:
    return folder / f"{PREFIX}{version}"


def _load(place: Path, case_id: str) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        with np.load(place / f"{case_id}.npz") as file:
            return file["values"], file["affine"]
    except FileNotFoundError:
        if place.is_dir():
            return None
        raise FileNotFoundError(
            f"{place} must hold the maps of cases, but it is gone; loader workers must restart every epoch."
        ) from None


class CaseMapLoss(torch.nn.Module):
    """Call a loss with a third argument, the maps of the batch's cases, which a handler puts here before each call.

    MONAI's ``SupervisedTrainer`` calls its loss with the prediction and the label only.

    Args:
        loss: called with the prediction, the label, and the maps ``(batch, channels, *spatial)``.

    Raises:
        ValueError: at the call, when no maps were put here since the last one.

    Example:
        >>> loss = CaseMapLoss(lambda input, target, weight: (weight * (input - target).abs()).mean())
        >>> loss.put(torch.tensor([1.0, 0.0]))
        >>> loss(torch.tensor([3.0, 3.0]), torch.tensor([1.0, 0.0])).item()
        1.0
    """

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.loss = loss
        self._maps: torch.Tensor | None = None

    def put(self, maps: torch.Tensor) -> None:
        """Keep the maps for the next call."""
        self._maps = maps

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002 (as in PyTorch)
        if self._maps is None:
            raise ValueError(
                "CaseMapLoss must get the maps of a batch before each call, got none; attach the handler that puts "
                "them there, such as EarlyLearningTargetHandler, to the trainer."
            )
        maps, self._maps = self._maps, None
        return self.loss(input, target, maps)


class LoadCaseMapd(Transform, RandomizableTrait):
    r"""Add the map of the case from a memory, moved as augmentation has moved the label: the last transform of all.

    With the affines :math:`A_0` of the stored map and :math:`A` of the label, the voxel ``x`` of the label gets the
    map at :math:`A_0^{-1} A x`: linearly interpolated, or the nearest voxel of a mask. It works for whatever MONAI
    keeps track of in the affine of a ``MetaTensor``: flips, rotations, zooms, crops, padding, affine transforms, also
    several samples of one image. **It cannot follow elastic deformations** (``Rand2DElastic``, ``Rand3DElastic``,
    ``RandGridDistortion``), nor transforms that move voxels without telling, such as a lambda; the handlers refuse
    the ones of MONAI. Labels that are resized or zoomed should be so with ``mode="nearest-exact"``: PyTorch's
    ``"nearest"`` moves them by up to half a voxel against the image, and against the map.

    It draws nothing, but has the trait of random transforms, before the first of which MONAI's data sets cache: a map
    that comes from a cache would be that of the first epoch for ever.

    Args:
        key: of the map, a ``MetaTensor`` ``(channels, *spatial)`` of the type float32 with the grid of the label.
        memory: with the maps; a case is looked up by its ``"id"``.
        channels: of each map.
        like: key of the label, or whatever has its grid.
        default: the value of all voxels of a case without a map, and of those that lie outside of its map, where
            augmentation has padded.

    Raises:
        ValueError: when ``channels`` is under 1; at the call, when the label has not 2 or 3 spatial axes, or a map has
            another number of channels or axes.
        KeyError: at the call, when the id or the label is missing.
        TypeError: at the call, when the label has no affine.

    Example:
        >>> from monai_sc.benchmark.methods import CaseMemory
        >>> memory = CaseMemory()
        >>> memory.replace([("a", MetaTensor(torch.tensor([[[1.0, 2.0, 3.0]]]), affine=torch.eye(4)))])
        >>> flipped = MetaTensor(torch.zeros(1, 1, 3), affine=[[1, 0, 0, 0], [0, -1, 0, 2], [0, 0, 1, 0], [0, 0, 0, 1]])
        >>> LoadCaseMapd("map", memory, channels=1)({"id": "a", "label": flipped})["map"].tolist()
        [[[3.0, 2.0, 1.0]]]
    """

    backend = [TransformBackends.TORCH]

    def __init__(
        self, key: Hashable, memory: CaseMemory, *, channels: int, like: Hashable = "label", default: float = 0.0
    ) -> None:
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}.")
        self.key = key
        self.memory = memory
        self.channels = channels
        self.like = like
        self.default = default

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in ("id", self.like):
            if key not in d:
                raise KeyError(f"A case must hold 'id' and {self.like!r} for its map, but {key!r} is missing.")
        like = d[self.like]
        if not isinstance(like, MetaTensor):
            raise TypeError(
                f"{self.like!r} must be a MetaTensor, whose affine tells how it was moved, got {type(like).__name__}; "
                "load it with LoadImaged or LoadLabeld, and keep track_meta=True."
            )
        if like.ndim not in (3, 4):
            raise ValueError(f"{self.like!r} must have 2 or 3 spatial axes, got the shape {tuple(like.shape)}.")
        found = self.memory.read(d["id"])
        if found is None or not like.numel():
            moved = torch.full((self.channels, *like.shape[1:]), self.default, device=like.device)
        elif found.ndim != like.ndim or len(found) != self.channels:
            raise ValueError(
                f"The map of case {d['id']!r} must have {self.channels} channels and {like.ndim - 1} spatial axes, got "
                f"the shape {tuple(found.shape)}."
            )
        else:
            moved = self._moved(found, like)
        d[self.key] = convert_to_dst_type(moved, like, dtype=torch.float32)[0]
        return d

    def _moved(self, found: MetaTensor, like: MetaTensor) -> torch.Tensor:
        """Return the map on the grid of ``like``."""
        rank = found.ndim - 1
        # From voxels to voxels: in world coordinates the plane of an image in 2D may be any, and MONAI takes the first
        # two axes.
        ours, theirs = (to_affine_nd(3, one.affine.cpu().double()) for one in (found, like))
        voxels = to_affine_nd(rank, torch.linalg.solve(ours, theirs))
        resample = SpatialResample(mode="nearest" if found.dtype == torch.bool else "bilinear", padding_mode="zeros")
        # Padding is zero, so that of the difference from the default is the default.
        source = MetaTensor(found.as_tensor().float() - self.default, affine=torch.eye(rank + 1))
        moved: Any = resample(source, dst_affine=voxels, spatial_size=tuple(like.shape[1:]))
        result: torch.Tensor = moved.as_tensor() + self.default
        return result


LoadCaseMapD = LoadCaseMapDict = LoadCaseMapd


UNTRACKED = (Rand2DElastic, Rand2DElasticd, Rand3DElastic, Rand3DElasticd, RandGridDistortion, RandGridDistortiond)


class CaseMapHandler(ABC):
    """Hand the maps of a batch's cases to the loss, and make the maps of all cases anew at the end of epochs.

    The trainer's loss is a :py:class:`~monai_sc.benchmark.methods.CaseMapLoss`, and its transforms end with a
    :py:class:`~monai_sc.benchmark.methods.LoadCaseMapd`. New maps are made from what the network predicts for the cases
    without augmentation, in eval mode. Such a pass costs the loading of all cases and a forward pass of each: a third
    to a half of an epoch, in which the backward pass comes on top.

    In a training of several processes the memory must be a folder that all reach; the first process makes the maps,
    the others wait.
    """

    def __init__(
        self, memory: CaseMemory, *, loader: DataLoader, key: Hashable, inferer: Inferer | None = None
    ) -> None:
        self.memory = memory
        self.loader = loader
        self.key = key
        self.inferer = inferer
        self._like: Any = None  # key of what the transform moves maps like

    def attach(self, engine: SupervisedTrainer) -> None:
        """Attach to a trainer; handlers that save a checkpoint, or stop the run, come behind."""
        engine.add_event_handler(Events.STARTED, self.check)
        engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self.hand_over)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the memory: the maps, or where they are in the folder."""
        return {"memory": self.memory.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the maps that :py:meth:`state_dict` told."""
        self.memory.load_state_dict(state_dict["memory"])

    def check(self, engine: SupervisedTrainer) -> None:
        """Refuse a trainer whose loss would not get the maps, or not where they belong."""
        self.check_loss(engine.loss_function.loss if isinstance(engine.loss_function, CaseMapLoss) else None)
        if world_size() > 1 and self.memory.folder is None:
            raise ValueError("memory must have a folder in a training of several processes, which share it, got none.")
        if any(isinstance(t, RandomizableTrait) for t in _transforms(self.loader)):
            raise ValueError(
                "loader must have deterministic transforms only, got a random one: the maps are those of cases without "
                "augmentation."
            )
        training: Any = engine.data_loader
        if getattr(training, "persistent_workers", False):
            raise ValueError(
                "The trainer's data loader must have persistent_workers=False, got True: such workers never see new "
                "maps."
            )
        if getattr(training, "num_workers", 0) and engine.state.epoch_length != len(training):
            raise ValueError(
                f"epoch_length must be that of the trainer's loader with num_workers over 0, {len(training)}, got "
                f"{engine.state.epoch_length}: workers that outlive an epoch do not see new maps."
            )
        transforms = list(_transforms(training))
        places = [
            k
            for k, t in enumerate(transforms)
            if isinstance(t, LoadCaseMapd) and t.memory is self.memory and t.key == self.key
        ]
        if not places or any(
            isinstance(t, RandomizableTrait) and not isinstance(t, LoadCaseMapd) for t in transforms[places[-1] :]
        ):
            raise ValueError(
                f"The trainer's transforms must have LoadCaseMapd({self.key!r}, memory) behind all random ones, with "
                f"the memory of this handler, got {[type(t).__name__ for t in transforms]}."
            )
        self._like = transforms[places[-1]].like
        elastic = [type(t).__name__ for t in transforms if isinstance(t, UNTRACKED)]
        if elastic:
            raise ValueError(
                f"The trainer's transforms must move voxels in ways that the affine tells, got {elastic[0]}: maps "
                "cannot follow it; leave it out."
            )

    def hand_over(self, engine: SupervisedTrainer) -> None:
        """Give the maps of the batch to the loss."""
        maps, loss = engine.state.batch[self.key], cast(CaseMapLoss, engine.loss_function)
        loss.put(maps.to(engine.state.device, non_blocking=engine.non_blocking))

    def __call__(self, engine: SupervisedTrainer) -> None:
        if not self.is_due(engine.state.epoch):
            return
        with fail_together():
            if is_main():
                self.memory.replace(self._maps(engine))
            if world_size() > 1:
                self.memory.load_state_dict(gather(self.memory.state_dict())[0])

    def is_due(self, epoch: int) -> bool:
        """Say whether new maps are made at the end of an epoch."""
        return True

    def network(self, engine: SupervisedTrainer) -> torch.nn.Module:
        """Return the network that predicts the cases."""
        return unwrapped(engine.network)

    @abstractmethod
    def check_loss(self, loss: Any) -> None:
        """Refuse a loss that does not know what to do with the maps; ``None`` if there is no ``CaseMapLoss``."""

    @abstractmethod
    def make_map(self, loss: Any, case: Mapping[str, Any], logits: torch.Tensor) -> torch.Tensor:
        """Return the new map of a case ``(channels, *spatial)``."""

    def _maps(self, engine: SupervisedTrainer) -> Iterator[tuple[str, MetaTensor]]:
        loss = cast(CaseMapLoss, engine.loss_function).loss
        predictions = predict(engine, self.loader, [self.network(engine)], inferer=self.inferer)
        for case, (logits,) in predictions:
            image = case["image"]
            if not isinstance(image, MetaTensor):
                raise TypeError(
                    f"The images of loader must be MetaTensors, whose affine says where a map lies, got "
                    f"{type(image).__name__}; keep track_meta=True."
                )
            if logits.shape[1:] != image.shape[1:]:
                raise ValueError(
                    f"The network's output must have the size of the image, {tuple(image.shape[1:])}, got "
                    f"{tuple(logits.shape[1:])}."
                )
            # The files of a label may have another affine than that of its image, such as none.
            like = case.get(self._like)
            affine = like.affine if isinstance(like, MetaTensor) else image.affine
            yield case["id"], MetaTensor(self.make_map(loss, case, logits), affine=affine)


def _transforms(loader: Any) -> Iterator[Any]:
    """Yield the transforms of a loader's data set, also those in others, as in ``OneOf``."""
    waiting = [getattr(getattr(loader, "dataset", None), "transform", None)]
    while waiting:
        transform = waiting.pop(0)
        if isinstance(transform, Compose):
            waiting = [*transform.transforms, *waiting]
        elif transform is not None:
            yield transform
