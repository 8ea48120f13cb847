"""What a training remembers of each case from one epoch to the next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.config import PathLike
from monai.data import MetaTensor

from monai_sc.data.cases import check_name, same_name
from monai_sc.data.durable import naming, sync_folder

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
            f"{place} must hold the maps of cases, but it is gone; processes that load data must start anew with every "
            "epoch."
        ) from None
