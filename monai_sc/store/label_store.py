"""The label store: every version of a data set's labels, beside the originals and never over them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data import MetaTensor
from monai.data.utils import to_affine_nd
from monai.transforms import Randomizable, Transform
from monai.utils import MetaKeys
from rich.progress import track

from monai_sc.files.cases import Case, check_cases, check_name, files_of, same_name
from monai_sc.files.durable import naming
from monai_sc.files.grids import APART, refuse_unfit_labels, voxels_apart
from monai_sc.files.read import TOLERANCE, read_image
from monai_sc.files.write import name_suffix
from monai_sc.functional import case_seed
from monai_sc.functional.masks import dice
from monai_sc.parallel import fail_together, is_main, rank, world_size
from monai_sc.store.contents import find_store, has_contents, read_contents, write_contents
from monai_sc.store.rounds import RoundFolders, RoundWriter, write_round
from monai_sc.store.usable_cases import UsableCases
from monai_sc.transforms.load import LoadLabel


def describe(transform: Transform) -> dict[str, Any]:
    """Return the class and the settings of a transform, as JSON types, without the state of its draws."""
    settings = {k: v for k, v in vars(transform).items() if k not in ("R", "seed", "_do_transform")}
    described: dict[str, Any] = json.loads(json.dumps({"name": type(transform).__name__, **settings}))
    return described


class LabelStore(RoundFolders):
    """All rounds of labels of a list of cases, in one folder.

    Round 0 is the labels that were given, which stay where they are and are only read; or, after
    :py:meth:`simulate`, noisy versions of them. Each later round is a folder ``round-NNN`` with one folder per case,
    whose files have the type, shape, dtype, geometry and values of the case's own label files::

        round-001/round.json       what was done: the parameters of the round
        round-001/manifest.jsonl   one line per case: files and sources with SHA-256, what was done, what it changed
        round-001/CASE/CLASS.png   (CASE/label.png where labels are maps)
        current.json               the current round
        store.json                 the arguments of the store, from which :py:meth:`open` makes it again

    A round is written under a temporary name, flushed and renamed, so that it is there whole or not at all. In a
    training of several processes, which must see one disk, each writes some cases of a round.

    Args:
        root: the folder; made if it does not exist.
        cases: dictionaries with ``id``, ``image`` and ``label`` (a file, or one per class); optionally ``clean_label``
            (where an expert has drawn the case again: such :py:attr:`pairs` say how far labels are off),
            ``reference_label`` (the truth, for reports only), ``trusted``, and ``foreground`` (the value of the
            foreground in the files; by default the one value that a file holds beside 0). What
            :py:func:`monai_sc.store.usable_cases` left out is kept as ``skipped``, for reports.
        class_names: one per label file of a case, or per value of ``values``; ``class_0`` and so on by default.
        values: the values of the classes, where labels are maps: one file per case, whose voxels have one value each,
            0 for the background.
        config_version: of the configuration that the rounds are made with, such as that of a bundle; for the manifest.

    Raises:
        ValueError: when the case list is not sound (see :py:func:`monai_sc.files.check_cases`), ``class_names`` or
            ``values`` do not fit it, or a file of a case lies in ``root``.
        KeyError: when a case lacks a key.
        FileNotFoundError: when a file of a case does not exist.
    """

    def __init__(
        self,
        root: PathLike,
        cases: Sequence[Mapping[str, Any]],
        *,
        class_names: Sequence[str] | None = None,
        values: Sequence[int] | None = None,
        config_version: str | None = None,
    ) -> None:
        check_cases(cases)
        super().__init__(Path(root))
        refuse_unfit_labels(cases, self.root)
        self.cases: list[Case] = [dict(case) for case in cases]
        self.skipped: dict[str, str] = dict(getattr(cases, "skipped", {}))
        self.values = None if values is None else list(values)
        self.config_version = config_version
        num_files = len(files_of(self.cases[0]))
        if self.values is not None and num_files != 1:
            raise ValueError(f"values are of labels with one file per case, got {num_files} files.")
        num_classes = num_files if self.values is None else len(self.values)
        self.class_names = [f"class_{k}" for k in range(num_classes)] if class_names is None else list(class_names)
        if len(self.class_names) != num_classes or len(set(self.class_names)) != num_classes:
            raise ValueError(
                f"class_names must be one name per {'label file of a case' if self.values is None else 'value'} "
                f"({num_classes}), all different, got {self.class_names}."
            )
        for name in self.class_names:
            check_name(name, "A class name")
        if len({same_name(name) for name in self.class_names}) != num_classes:
            raise ValueError(f"class_names must be different names on every system, got {self.class_names}.")
        self._last: tuple[Any, Any] = (None, None)
        self._foregrounds: dict[Path, float | None] = {}
        self._load({})  # which refuses unfit values
        self._case_of = {str(case["id"]): case for case in self.cases}
        self._position_of = {name: position for position, name in enumerate(self._case_of)}
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        if written := self._written():
            self._refuse_other_labels(written[-1])
        if is_main() and not has_contents(self):
            # If another process has the store now, or nobody may write here, it is written at the latest with a round.
            with suppress(OSError, ValueError), self.claimed():
                write_contents(self)

    @classmethod
    def open(cls, folder: PathLike) -> LabelStore:
        """Return the store that a folder holds, with the cases that it was made with.

        Args:
            folder: of the store, or the output folder of a run, which has it as ``labels``.

        Raises:
            FileNotFoundError: when it holds no store, or a file of a case is gone.
            ValueError: when what it says of itself is damaged.
        """
        root = find_store(Path(folder))
        content = read_contents(root)
        return cls(root, UsableCases(content.pop("cases"), content.pop("skipped")), **content)

    def datalist(self, number: int | None = None) -> list[Case]:
        """Return the cases with the labels of a round, by default the current one, in the order they were given.

        Where round 0 was simulated, ``reference_label`` holds the files that were given.

        Raises:
            ValueError: when there is no such round.
        """
        number = self.chosen(number)
        simulated = self.is_simulated
        datalist = []
        for case in self.cases:
            case = dict(case)
            if simulated and case.get("reference_label") is None:
                case["reference_label"] = case["label"]
            if number or simulated:
                files = [str(file) for file in self.files(self._folder(number), case)]
                case["label"] = files[0] if isinstance(case["label"], (str, Path)) else files
            datalist.append(case)
        return datalist

    def read(self, case_id: str, number: int | None = None) -> np.ndarray:
        """Return the label of a case in a round, by default the current one, as booleans ``(classes, *spatial)``."""
        number = self.chosen(number)
        case = self.case(case_id)
        return np.asarray(self.load(self.label_files(number, case), case).numpy() > 0)

    def read_trusted(self, case_id: str) -> np.ndarray | None:
        """Return where the labels of a case are to be trusted ``(classes, *spatial)``, ``None`` where nothing says so.

        Raises:
            ValueError: when ``trusted`` of the case is neither one mask nor one per class, or of another shape.
        """
        case = self._case_of[case_id]
        if case.get("trusted") is None:
            return None
        files = files_of(case, "trusted")
        masks = [read_image(file, f"Trusted mask {file}").numpy() != 0 for file in files]
        shape = self.read(case_id, 0).shape
        if len(masks) not in (1, len(self.class_names)) or any(mask.shape != (1, *shape[1:]) for mask in masks):
            raise ValueError(
                f"trusted of case {case_id!r} must be one mask file, or one per class, with the shape of its label "
                f"{shape[1:]}, got {[mask.shape[1:] for mask in masks]}."
            )
        return np.broadcast_to(np.concatenate(masks), shape)

    @property
    def pairs(self) -> list[str]:
        """The ids of the cases that name a ``clean_label`` beside their label; none where the noise is simulated."""
        return [] if self.is_simulated else [n for n, c in self._case_of.items() if c.get("clean_label") is not None]

    def read_clean(self, case_id: str) -> np.ndarray | None:
        """Return the clean label of a case ``(classes, *spatial)``, ``None`` where it is not known."""
        key = self._clean_key(case_id)
        case = self._case_of[case_id]
        return None if key is None else np.asarray(self._load(case)(files_of(case, key)).numpy() > 0)

    def has_clean(self, case_id: str) -> bool:
        """Return whether the clean label of a case is known."""
        return self._clean_key(case_id) is not None

    def _clean_key(self, case_id: str) -> str | None:
        case = self._case_of[case_id]
        named = [key for key in ("reference_label", "clean_label") if case.get(key) is not None]
        return named[0] if named else "label" if self.is_simulated else None

    def check_grid(self, case_id: str, shape: Sequence[int], affine: np.ndarray) -> None:
        """Refuse a label for a case whose grid is not that of the case's label files.

        Files without geometry, such as PNG, are compared by shape only.

        Raises:
            ValueError: when the shape or the affine differs.
            KeyError: when the store has no such case.
        """
        case = self.case(case_id)
        label = self.load(files_of(case), case)
        if tuple(shape) != tuple(label.shape[1:]):
            raise ValueError(
                f"Image and label files of case {case_id!r} must have the same shape, "
                f"got {tuple(shape)} and {tuple(label.shape[1:])}."
            )
        if isinstance(label, MetaTensor) and MetaKeys.ORIGINAL_AFFINE in label.meta:
            matrices = label.meta[MetaKeys.ORIGINAL_AFFINE], affine
            own, other = (to_affine_nd(3, np.asarray(matrix)) for matrix in matrices)
            apart = voxels_apart(other, own, shape)
            if not apart <= APART:
                raise ValueError(
                    f"Image and label files of case {case_id!r} must lie in one place, but their corners are up to "
                    f"{apart:.3g} voxels apart; resample or reorient one of them first."
                )

    def position(self, case_id: str) -> int:
        """Return the place of a case in the list of cases."""
        return self._position_of[case_id]

    def diff(self, first: int, second: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield for each case what differs between two rounds, one case in memory at a time.

        Args:
            first: number of a round.
            second: of the other one, by default the current one.

        Returns:
            Dictionaries with ``case``, and ``voxels_changed`` and ``dice``, lists with one entry per class.

        Raises:
            ValueError: when there is no such round.
        """
        numbers = [self._checked(first), self.chosen(second)]
        for case_id in self._case_of:
            one, other = (self.read(case_id, number) for number in numbers)
            changed = (one != other).sum(axis=tuple(range(1, one.ndim)))
            yield {"case": case_id, "voxels_changed": changed.tolist(), "dice": dice(one, other).tolist()}

    @contextmanager
    def write_round(self, number: int, record: Mapping[str, Any], *, previous: int = 0) -> Iterator[RoundWriter]:
        """Write a whole round, and make it the current one: in a ``with`` block, ``write`` every case once.

        If the block raises, or leaves out a case, nothing of the round stays. In a training of several processes each
        enters the block, and writes its own cases.

        Args:
            number: of the new round.
            record: what was done, for ``round.json``: JSON types only.
            previous: the round that the new labels are compared with.

        Raises:
            ValueError: when the round exists already, there is no round ``previous``, cases are missing at the end, a
                label file that was given has changed since the round before, or another process writes into the store.
            OSError: when the disk cannot take it.
        """
        self._checked(previous)
        final = self._folder(number)
        if final.exists():
            raise ValueError(f"number must be that of a new round, got {number}, which {self.root} holds already.")
        self._last = (None, None)
        with write_round(self, final, number, record, previous) as writer:
            yield writer

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
        with fail_together():
            told = self.record(0).get("noise") if self.is_simulated else None
            described = None if noise is None else {**describe(noise), "seed": seed}
            if told == described:
                return self
            if self.is_simulated or self.rounds != [0]:
                raise ValueError(
                    f"{self.root} holds labels that were made with the noise {told}, but {described} was "
                    "requested; choose another folder."
                )
            own = list(self._case_of)[rank() :: world_size()]
            with self.write_round(0, {"noise": described}) as writer:
                for case_id in track(own, "Simulating label noise", disable=not (progress and is_main())):
                    draw.set_random_state(seed=case_seed(seed, case_id) % 2**32)
                    writer.write(case_id, np.asarray(draw(self.read(case_id, 0).astype(np.uint8))) > 0)
        return self

    def case(self, case_id: str) -> Case:
        """Return a case, as it was given.

        Raises:
            KeyError: when the store has no such case.
        """
        if case_id not in self._case_of:
            raise KeyError(f"case_id must be that of a case in the store, got {case_id!r}.")
        return self._case_of[case_id]

    def files(self, folder: Path, case: Mapping[str, Any]) -> list[Path]:
        """Return the files that the label of a case has in the folder of a round."""
        sources = files_of(case)
        names = self.class_names if self.values is None else ["label"]
        return [
            folder / str(case["id"]) / f"{name}{name_suffix(source)}"
            for name, source in zip(names, sources, strict=True)
        ]

    def load(self, files: Sequence[Path], case: Mapping[str, Any]) -> MetaTensor:
        """Return a label as it lies on the disk; the last one is kept, since a case is read several times in a row."""
        key = (tuple(files), case.get("foreground"))
        if self._last[0] != key:
            self._last = (key, self._load(case)(list(files)))
        label: MetaTensor = self._last[1]
        return label

    def label_files(self, number: int, case: Mapping[str, Any]) -> list[Path]:
        """Return the files with the label of a case in a round: in round 0 those that were given, or simulated."""
        given = number == 0 and not self.is_simulated
        return files_of(case) if given else self.files(self._folder(number), case)

    def _load(self, case: Mapping[str, Any]) -> LoadLabel:
        return LoadLabel(foreground=case.get("foreground"), values=self.values)

    def foreground(self, case: Mapping[str, Any], position: int) -> float:
        """Return the value of the foreground in a label file of a case: the one it holds, or that others hold.

        Args:
            case: of the store.
            position: of the class.
        """
        if "foreground" in case:
            return float(case["foreground"])
        alike = (files_of(other)[position] for other in (case, *self.cases))
        others = (file for other in (case, *self.cases) for file in files_of(other))
        values = (self._foreground_of(file) for file in chain(alike, others))
        return next((value for value in values if value is not None), 1.0)

    def _foreground_of(self, file: Path) -> float | None:
        """Return the value of the foreground that a file holds, ``None`` where it holds none; it is read once."""
        if file not in self._foregrounds:
            top = float(read_image(file, f"Label file {file}").max())
            self._foregrounds[file] = top if top > TOLERANCE else None
        return self._foregrounds[file]

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
