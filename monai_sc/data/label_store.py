"""The label store: every version of a data set's labels, beside the originals and never over them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data import MetaTensor
from monai.transforms import LoadImage, Randomizable, Transform
from monai.utils import MetaKeys
from rich.progress import track

from monai_sc.data.cases import Case, check_cases, check_name, files_of
from monai_sc.data.durable import sync_folder, write_synced
from monai_sc.data.label_files import WRITABLE, file_suffix, write_label_like
from monai_sc.functional import case_seed
from monai_sc.functional.checks import binary_mask
from monai_sc.functional.dice import dice
from monai_sc.transforms import LoadLabel

__all__ = ["LabelStore", "RoundWriter"]


class LabelStore:
    """All rounds of labels of a list of cases, in one folder.

    Round 0 is the labels that were given, which stay where they are and are only read; or, after
    :py:meth:`simulate`, noisy versions of them. Each later round is a folder ``round-NNN`` with one folder per case,
    whose files have the type, shape, dtype, geometry and foreground value of the case's own label files::

        round-001/round.json       what was done: the parameters of the round
        round-001/manifest.jsonl   one line per case: files, sources with SHA-256, voxels changed, Dice to before
        round-001/CASE/CLASS.png
        current.json               the round that is in force

    A round is written under a temporary name, flushed and renamed, so that it is there whole or not at all.

    Args:
        root: the folder; made if it does not exist.
        cases: dictionaries with ``id``, ``image`` and ``label`` (a file, or one per class); optionally ``clean_label``
            (for reports only) and ``foreground`` (the value of the foreground in the files, 1 if absent).
        class_names: one per label file of a case; ``class_0`` and so on by default.

    Raises:
        ValueError: when the case list is not sound (see :py:func:`monai_sc.data.check_cases`), ``class_names`` does
            not fit it, or a file of a case lies in ``root``.
        KeyError: when a case lacks a key.
        FileNotFoundError: when a file of a case does not exist.
    """

    def __init__(
        self, root: PathLike, cases: Sequence[Mapping[str, Any]], *, class_names: Sequence[str] | None = None
    ) -> None:
        check_cases(cases)
        self.root = Path(root)
        self._refuse_unfit_files(cases)
        self.cases: list[Case] = [dict(case) for case in cases]
        num_classes = len(files_of(self.cases[0]))
        self.class_names = [f"class_{k}" for k in range(num_classes)] if class_names is None else list(class_names)
        if len(self.class_names) != num_classes or len(set(self.class_names)) != num_classes:
            raise ValueError(
                f"class_names must be one name per label file of a case ({num_classes}), all different, "
                f"got {self.class_names}."
            )
        for name in self.class_names:
            check_name(name, "A class name")
        self._last: tuple[Any, Any] = (None, None)
        self._loaders: dict[float, LoadLabel] = {}
        self._case_of = {str(case["id"]): case for case in self.cases}
        self._position_of = {name: position for position, name in enumerate(self._case_of)}
        self.root.mkdir(parents=True, exist_ok=True)
        for number in self.rounds:
            if self._folder(number).is_dir():
                self._refuse_other_labels(number)

    @property
    def rounds(self) -> list[int]:
        """The numbers of the rounds that are complete, 0 always among them."""
        names = (f.name for f in self.root.glob("round-*") if (f / "round.json").is_file())
        return sorted({0, *(int(name[6:]) for name in names if re.fullmatch(r"round-\d{3,}", name))})

    @property
    def current(self) -> int:
        """The round that is in force, which is the last one that was written or restored."""
        file = self.root / "current.json"
        return int(json.loads(file.read_text())["round"]) if file.is_file() else 0

    def datalist(self, number: int | None = None) -> list[Case]:
        """Return the cases with the labels of a round, by default the current one, in the order they were given.

        Where round 0 was simulated, ``clean_label`` holds the files that were given.

        Raises:
            ValueError: when there is no such round.
        """
        number = self._checked(self.current if number is None else number)
        simulated = self._folder(0).is_dir()
        datalist = []
        for case in self.cases:
            case = dict(case)
            if simulated:
                case.setdefault("clean_label", case["label"])
            if number or simulated:
                files = [str(file) for file in self._files(self._folder(number), case)]
                case["label"] = files[0] if isinstance(case["label"], (str, Path)) else files
            datalist.append(case)
        return datalist

    def read(self, case_id: str, number: int | None = None) -> np.ndarray:
        """Return the label of a case in a round, by default the current one, as booleans ``(classes, *spatial)``."""
        number = self._checked(self.current if number is None else number)
        case = self._case_of[case_id]
        given = number == 0 and not self._folder(0).is_dir()
        files = files_of(case) if given else self._files(self._folder(number), case)
        return np.asarray(self._load(files, case).numpy() > 0)

    def read_trusted(self, case_id: str) -> np.ndarray | None:
        """Return where the labels of a case are to be trusted ``(classes, *spatial)``, ``None`` where nothing says so.

        Raises:
            ValueError: when ``trusted`` of the case is neither one mask nor one per class, or of another shape.
        """
        case = self._case_of[case_id]
        if case.get("trusted") is None:
            return None
        files = files_of(case, "trusted")
        masks = [LoadImage(image_only=True, ensure_channel_first=True)(file).numpy() != 0 for file in files]
        shape = self.read(case_id, 0).shape
        if len(masks) not in (1, len(self.class_names)) or any(mask.shape != (1, *shape[1:]) for mask in masks):
            raise ValueError(
                f"trusted of case {case_id!r} must be one mask file, or one per class, with the shape of its label "
                f"{shape[1:]}, got {[mask.shape[1:] for mask in masks]}."
            )
        return np.broadcast_to(np.concatenate(masks), shape)

    def read_clean(self, case_id: str) -> np.ndarray | None:
        """Return the clean label of a case ``(classes, *spatial)``, ``None`` where it is not known."""
        case = self._case_of[case_id]
        key = "clean_label" if "clean_label" in case else "label" if self._folder(0).is_dir() else None
        if key is None:
            return None
        return np.asarray(LoadLabel(foreground=case.get("foreground", 1))(files_of(case, key)).numpy() > 0)

    def check_grid(self, case_id: str, shape: Sequence[int], affine: np.ndarray) -> None:
        """Refuse a label for a case whose grid is not that of the case's label files.

        Files without geometry, such as PNG, are compared by shape only.

        Raises:
            ValueError: when the shape or the affine differs.
            KeyError: when the store has no such case.
        """
        if case_id not in self._case_of:
            raise KeyError(f"case_id must be that of a case in the store, got {case_id!r}.")
        case = self._case_of[case_id]
        label = self._load(files_of(case), case)
        if tuple(shape) != tuple(label.shape[1:]):
            raise ValueError(
                f"Image and label files of case {case_id!r} must have the same shape, "
                f"got {tuple(shape)} and {tuple(label.shape[1:])}."
            )
        if isinstance(label, MetaTensor) and MetaKeys.ORIGINAL_AFFINE in label.meta:
            own, other = (np.asarray(matrix) for matrix in (label.meta[MetaKeys.ORIGINAL_AFFINE], affine))
            if not np.allclose(own, other, atol=1e-3):
                raise ValueError(
                    f"Image and label files of case {case_id!r} must have the same affine, got "
                    f"{other.round(3).tolist()} and {own.round(3).tolist()}; resample or reorient one of "
                    "them first."
                )

    def position(self, case_id: str) -> int:
        """Return the place of a case in the list of cases."""
        return self._position_of[case_id]

    def record(self, number: int) -> dict[str, Any]:
        """Return what ``round.json`` says of a round that was written."""
        content: dict[str, Any] = json.loads((self._folder(self._checked(number)) / "round.json").read_text())
        return content

    def manifest(self, number: int) -> list[dict[str, Any]]:
        """Return the manifest of a round that was written, one dictionary per case."""
        lines = (self._folder(self._checked(number)) / "manifest.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def restore(self, number: int) -> None:
        """Put a round in force. No round is deleted by it.

        Raises:
            ValueError: when there is no such round.
        """
        partial = self.root / ".current.json.partial"
        write_synced(partial, json.dumps({"round": self._checked(number)}) + "\n")
        partial.replace(self.root / "current.json")
        sync_folder(self.root)

    def discard(self, number: int) -> None:
        """Delete a round that was written here. Round 0 and the originals cannot be discarded.

        Raises:
            ValueError: when ``number`` is 0 or there is no such round.
        """
        if self._checked(number) == 0:
            raise ValueError("number must be at least 1, got 0: round 0 is the labels that were given.")
        if self.current == number:
            self.restore(max(r for r in self.rounds if r < number))
        self._last = (None, None)
        doomed = self._folder(number)
        doomed = doomed.rename(self._partial(number))
        shutil.rmtree(doomed)

    @contextmanager
    def write_round(self, number: int, record: Mapping[str, Any], *, previous: int = 0) -> Iterator[RoundWriter]:
        """Write a whole round, and put it in force: in a ``with`` block, ``write`` every case once.

        If the block raises, or leaves out a case, nothing of the round stays.

        Args:
            number: of the new round.
            record: what was done, for ``round.json``: JSON types only.
            previous: the round that the new labels are compared with.

        Raises:
            ValueError: when the round exists already, there is no round ``previous``, or cases are missing at the end.
        """
        self._checked(previous)
        final, partial = self._folder(number), self._partial(number)
        if final.exists():
            raise ValueError(f"number must be that of a new round, got {number}, which {self.root} holds already.")
        self._last = (None, None)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            writer = RoundWriter(self, partial, previous)
            yield writer
            missing = [name for name in self._case_of if name not in writer.entries]
            if missing:
                raise ValueError(
                    f"A round must hold every case, but {missing[0]!r} and {len(missing) - 1} more are missing."
                )
            lines = [json.dumps(writer.entries[name]) for name in self._case_of]
            write_synced(partial / "manifest.jsonl", "\n".join(lines) + "\n")
            content = {
                **record,
                "round": number,
                "previous": previous,
                "classes": self.class_names,
                "monai_sc": version("monai-sc"),
            }
            write_synced(partial / "round.json", json.dumps(content, indent=2) + "\n")
            sync_folder(partial)
            partial.rename(final)
            sync_folder(self.root)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.restore(number)

    def simulate(self, noise: Transform | None, *, seed: int = 0, progress: bool = True) -> LabelStore:
        """Write round 0: the given labels made noisy, once, each case by a draw that depends on seed and id alone.

        If the store holds that very round already, it stays. With ``None`` the given labels are round 0 as they are.

        Args:
            noise: an array transform of labels, a ``Randomizable`` such as
                :py:class:`monai_sc.transforms.RandMarkovLabelNoise` with ``prob=1``.
            seed: of the data set.
            progress: show a progress bar.

        Returns:
            This store.

        Raises:
            TypeError: when ``noise`` is not ``Randomizable``.
            ValueError: when the store holds another round 0, or later rounds made from one.
        """
        draw: Any = noise
        if noise is not None and not isinstance(noise, Randomizable):
            raise TypeError(f"noise must be a Randomizable array transform or None, got {type(noise).__name__}.")
        exists = self._folder(0).is_dir()
        told = self.record(0).get("noise") if exists else None
        described = None if noise is None else {**describe(noise), "seed": seed}
        if told == described:
            return self
        if exists or self.rounds != [0]:
            raise ValueError(
                f"{self.root} holds labels that were made with the noise {told}, and {described} was asked for; "
                "choose another folder for this run."
            )
        with self.write_round(0, {"noise": described}) as writer:
            for case in track(self.cases, "Simulating label noise", disable=not progress):
                draw.set_random_state(seed=case_seed(seed, str(case["id"])) % 2**32)
                label = LoadLabel(foreground=case.get("foreground", 1))(files_of(case))
                writer.write(str(case["id"]), np.asarray(draw(label.numpy())) > 0)
        return self

    def _load(self, files: Sequence[Path], case: Mapping[str, Any]) -> MetaTensor:
        """Return a label as it lies on the disk; the last one is kept, since a case is read several times in a row."""
        foreground = case.get("foreground", 1)
        key = (tuple(files), foreground)
        if self._last[0] != key:
            self._loaders.setdefault(foreground, LoadLabel(foreground=foreground))
            self._last = (key, self._loaders[foreground](list(files)))
        label: MetaTensor = self._last[1]
        return label

    def _refuse_other_labels(self, number: int) -> None:
        classes = self.record(number)["classes"]
        if classes != self.class_names:
            raise ValueError(
                f"class_names must be those of the rounds that {self.root} holds, {classes}, got {self.class_names}."
            )
        missing = self._case_of.keys() ^ {entry["case"] for entry in self.manifest(number)}
        if missing:
            raise ValueError(
                f"cases must be those of the rounds that {self.root} holds, but {min(missing)!r} is in one only; "
                "choose another folder for other cases."
            )

    def _refuse_unfit_files(self, cases: Sequence[Mapping[str, Any]]) -> None:
        root = self.root.resolve()
        for case in cases:
            for file in files_of(case):
                if file_suffix(file) not in WRITABLE:
                    raise ValueError(
                        f"Label files must be of a type that can be written without loss, {', '.join(WRITABLE)}, "
                        f"got {file} of case {case['id']!r}."
                    )
            files = [file for key in ("image", "label", "clean_label") if key in case for file in files_of(case, key)]
            for file in files:
                if file.resolve().is_relative_to(root):
                    raise ValueError(
                        f"root must be a folder without originals, but {self.root} holds {file} of {case['id']!r}; "
                        "choose an empty or a new folder."
                    )

    def _checked(self, number: int) -> int:
        if number not in self.rounds:
            raise ValueError(f"number must be one of the rounds {self.rounds} in {self.root}, got {number}.")
        return number

    def _folder(self, number: int) -> Path:
        return self.root / f"round-{number:03d}"

    def _partial(self, number: int) -> Path:
        return self.root / f".round-{number:03d}.partial"

    def _files(self, folder: Path, case: Mapping[str, Any]) -> list[Path]:
        sources = files_of(case)
        return [
            folder / str(case["id"]) / f"{name}{file_suffix(source)}"
            for name, source in zip(self.class_names, sources, strict=True)
        ]


class RoundWriter:
    """Writes the cases of one round; made by :py:meth:`LabelStore.write_round`."""

    def __init__(self, store: LabelStore, folder: Path, previous: int) -> None:
        self.store = store
        self.folder = folder
        self.previous = previous
        self.entries: dict[str, dict[str, Any]] = {}

    def write(self, case_id: str, label: np.ndarray) -> list[int]:
        """Write the label of one case, and return how many voxels of each class differ from the previous round.

        Args:
            case_id: of a case of the store.
            label: ``(classes, *spatial)``, 0 and 1 only, on the grid of the case's own label files.

        Raises:
            KeyError: when the store has no such case.
            ValueError: when ``label`` is not binary or has another shape than the case's label.
        """
        if case_id not in self.store._case_of:
            raise KeyError(f"case_id must be that of a case in the store, got {case_id!r}.")
        case = self.store._case_of[case_id]
        mask = binary_mask(label)
        before = self.store.read(case_id, self.previous)
        if mask.shape != before.shape:
            raise ValueError(
                f"label of case {case_id!r} must have the shape of its files, {before.shape}, got {mask.shape}."
            )
        sources = files_of(case)
        files = self.store._files(self.folder, case)
        files[0].parent.mkdir()
        for channel, file, source in zip(mask, files, sources, strict=True):
            write_label_like(channel, file, source, case.get("foreground", 1))
        if not np.array_equal(self.store._load(files, case).numpy() > 0, mask):
            raise ValueError(f"{sources[0]} of case {case_id!r} must be of a type that holds a mask without loss.")
        changed = [int(n) for n in (mask != before).sum(axis=tuple(range(1, mask.ndim)))]
        self.entries[case_id] = {
            "case": case_id,
            "files": [str(file.relative_to(self.folder)) for file in files],
            "sources": [
                {"path": str(source), "sha256": hashlib.sha256(source.read_bytes()).hexdigest()} for source in sources
            ],
            "voxels_changed": changed,
            "dice_to_previous": [round(float(d), 6) for d in dice(mask, before)],
        }
        return changed


def describe(transform: Transform) -> dict[str, Any]:
    """Return the class and the settings of a transform, as JSON types, without the state of its draws."""
    settings = {k: v for k, v in vars(transform).items() if k not in ("R", "seed", "_do_transform")}
    described: dict[str, Any] = json.loads(json.dumps({"name": type(transform).__name__, **settings}))
    return described
