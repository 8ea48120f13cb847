"""The label store: every version of a data set's labels, beside the originals and never over them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data import MetaTensor
from monai.data.utils import to_affine_nd
from monai.transforms import LoadImage, Transform
from monai.utils import MetaKeys

from monai_sc.data.cases import Case, check_cases, check_name, file_keys, files_of, same_name
from monai_sc.data.durable import claim_folder, naming, release_folder, sha256, sync_folder, write_synced
from monai_sc.data.export import export_datalist, export_labels
from monai_sc.data.export_layouts import export_monai_label, export_nnunet
from monai_sc.data.label_files import WRITABLE, file_suffix
from monai_sc.data.round_writer import MANIFEST, RoundWriter
from monai_sc.data.simulated_round import simulate_round
from monai_sc.data.store_contents import find_store, has_contents, read_contents, write_contents
from monai_sc.data.usable_cases import UsableCases
from monai_sc.functional.dice import dice
from monai_sc.parallel import gather, is_main
from monai_sc.transforms import LoadLabel

__all__ = ["LabelStore"]


class LabelStore:
    """All rounds of labels of a list of cases, in one folder.

    Round 0 is the labels that were given, which stay where they are and are only read; or, after
    :py:meth:`simulate`, noisy versions of them. Each later round is a folder ``round-NNN`` with one folder per case,
    whose files have the type, shape, dtype, geometry and values of the case's own label files::

        round-001/round.json       what was done: the parameters of the round
        round-001/manifest.jsonl   one line per case: files, sources with SHA-256, what was done, what it changed
        round-001/CASE/CLASS.png   (CASE/label.png where labels are maps)
        current.json               the round that is in force
        store.json                 the arguments of the store, from which :py:meth:`open` makes it again

    A round is written under a temporary name, flushed and renamed, so that it is there whole or not at all. In a
    training of several processes, which must see one disk, each writes some cases of a round.

    Args:
        root: the folder; made if it does not exist.
        cases: dictionaries with ``id``, ``image`` and ``label`` (a file, or one per class); optionally ``clean_label``
            (for reports only), ``trusted``, and ``foreground`` (the value of the foreground in the files, 1 if
            absent). What :py:func:`monai_sc.data.usable_cases` left out is kept as ``skipped``, for reports.
        class_names: one per label file of a case, or per value of ``values``; ``class_0`` and so on by default.
        values: the values of the classes, where labels are maps: one file per case, whose voxels have one value each,
            0 for the background.
        config_version: of the configuration that the rounds are made with, such as that of a bundle; for the manifest.

    Raises:
        ValueError: when the case list is not sound (see :py:func:`monai_sc.data.check_cases`), ``class_names`` or
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
        self.root = Path(root)
        self._refuse_unfit_files(cases)
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
        self._loaders: dict[float, LoadLabel] = {}
        self._loader({})  # which refuses unfit values
        self._case_of = {str(case["id"]): case for case in self.cases}
        self._position_of = {name: position for position, name in enumerate(self._case_of)}
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        if written := self._written():
            self._refuse_other_labels(written[-1])
        if is_main() and not has_contents(self):
            # If another process has the store now, or nobody may write here, it is written at the latest with a round.
            with suppress(OSError, ValueError), self._claimed():
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

    @property
    def rounds(self) -> list[int]:
        """The numbers of the rounds that are complete, 0 always among them."""
        names = (f.name for f in self.root.glob("round-*") if (f / "round.json").is_file())
        return sorted({0, *(int(name[6:]) for name in names if re.fullmatch(r"round-\d{3,}", name))})

    @property
    def is_simulated(self) -> bool:
        """Whether round 0 was made noisy here."""
        return self._folder(0).is_dir()

    @property
    def current(self) -> int:
        """The round that is in force, which is the last one that was written or restored."""
        file = self.root / "current.json"
        if not file.is_file():
            return 0
        number = self._read_json(file).get("round")
        if not isinstance(number, int):
            raise ValueError(f"{file} is damaged; delete it, and put a round in force with restore.")
        return number

    def datalist(self, number: int | None = None) -> list[Case]:
        """Return the cases with the labels of a round, by default the current one, in the order they were given.

        Where round 0 was simulated, ``clean_label`` holds the files that were given.

        Raises:
            ValueError: when there is no such round.
        """
        number = self._chosen(number)
        simulated = self.is_simulated
        datalist = []
        for case in self.cases:
            case = dict(case)
            if simulated:
                case.setdefault("clean_label", case["label"])
            if number or simulated:
                files = [str(file) for file in self.files(self._folder(number), case)]
                case["label"] = files[0] if isinstance(case["label"], (str, Path)) else files
            datalist.append(case)
        return datalist

    def read(self, case_id: str, number: int | None = None) -> np.ndarray:
        """Return the label of a case in a round, by default the current one, as booleans ``(classes, *spatial)``."""
        number = self._chosen(number)
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
        key = "clean_label" if "clean_label" in case else "label" if self.is_simulated else None
        if key is None:
            return None
        return np.asarray(self._loader(case)(files_of(case, key)).numpy() > 0)

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
        return self._read_json(self._folder(self._checked(number)) / "round.json")

    def manifest(self, number: int) -> list[dict[str, Any]]:
        """Return the manifest of a round that was written, one dictionary per case."""
        file = self._folder(self._checked(number)) / MANIFEST
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            lines = []
        if len(lines) < 1:
            raise ValueError(f"{file} is damaged; put it back from a copy, or choose another folder.")
        return lines

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
        numbers = [self._checked(first), self._chosen(second)]
        for case_id in self._case_of:
            one, other = (self.read(case_id, number) for number in numbers)
            changed = (one != other).sum(axis=tuple(range(1, one.ndim)))
            yield {"case": case_id, "voxels_changed": changed.tolist(), "dice": dice(one, other).tolist()}

    def export(self, out: PathLike, number: int | None = None) -> Path:
        """Copy the labels of a round into a plain folder: ``ID.nii.gz``, in a folder for each class if there are more.

        Args:
            out: a new or empty folder; it is there whole, or not at all.
            number: of the round, by default the current one.

        Returns:
            The folder.

        Raises:
            ValueError: when there is no such round, or ``out`` is no new or empty folder.
            OSError: when it cannot be written; nothing is left.
        """
        return export_labels(self, Path(out), self._chosen(number))

    def export_datalist(self, file: PathLike, number: int | None = None) -> Path:
        """Write the cases with the labels of a round as a data list of MONAI, for ``load_decathlon_datalist``.

        Args:
            file: a new JSON file; its list is ``training``, its paths are absolute.
            number: of the round, by default the current one.

        Raises:
            ValueError: when there is no such round, the file exists, or a case holds what JSON cannot.
        """
        return export_datalist(self, Path(file), self._chosen(number))

    def export_nnunet(
        self,
        out: PathLike,
        number: int | None = None,
        *,
        channel_names: Sequence[str],
        link_images: bool = False,
    ) -> Path:
        """Write images and the labels of a round as a raw data set of nnU-Net, version 2.

        The label of a case becomes one map, 0 for the background and 1, 2, ... for the classes in their order. Classes
        that lie within others (in all cases) become regions of nnU-Net, the outer ones first.

        Args:
            out: a new or empty folder whose name nnU-Net understands, such as ``nnUNet_raw/Dataset101_Lung``; it is
                there whole, or not at all.
            number: of the round, by default the current one.
            channel_names: one per channel of an image, in the order of its files; nnU-Net chooses by it how to
                normalize: ``"CT"`` by the intensities of the data set, most others by those of the image.
            link_images: link to the images instead of copying them.

        Returns:
            The folder, with ``imagesTr/ID_0000.EXT``, ``labelsTr/ID.EXT`` and ``dataset.json``.

        Raises:
            ValueError: when there is no such round, ``out`` is no such folder, the images have other channels,
                nnU-Net cannot read the files (images and labels must be of one type), a class has a name that it
                reserves, or classes overlap and are not nested.
            TypeError: when ``channel_names`` is no list.
            OSError: when it cannot be written; nothing is left.
        """
        return export_nnunet(self, Path(out), self._chosen(number), channel_names, link_images)

    def export_monai_label(self, out: PathLike, number: int | None = None) -> Path:
        """Write images and the labels of a round as a folder of studies for the server of MONAI Label.

        The label of a case becomes one map, 0 for the background and 1, 2, ... for the classes in their order, which
        must be those that the app of MONAI Label has. Images are copied, for MONAI Label can delete them.

        Args:
            out: a new or empty folder, for ``monailabel start_server --studies``; it is there whole, or not at all.
            number: of the round, by default the current one.

        Returns:
            The folder, with the images ``ID.EXT`` and the labels ``labels/final/ID.EXT``.

        Raises:
            ValueError: when there is no such round, ``out`` is no new or empty folder, MONAI Label does not look for
                files of their type, a case has several image files, or classes overlap.
            OSError: when it cannot be written; nothing is left.
        """
        return export_monai_label(self, Path(out), self._chosen(number))

    def changed_sources(self) -> list[Path]:
        """Return the label files that were given and have changed, or are gone, since the last round was written.

        A file whose size and time are as they were is taken for unchanged; else its SHA-256 decides.
        """
        written, changed = self._written(), []
        for entry in self.manifest(written[-1]) if written else []:
            for source in entry["sources"]:
                path = Path(source["path"])
                if not path.is_file():
                    changed.append(path)
                    continue
                state = path.stat()
                same = (state.st_size, state.st_mtime_ns) == (source["size"], source["mtime_ns"])
                if not same and sha256(path) != source["sha256"]:
                    changed.append(path)
        return changed

    def claim(self) -> None:
        """Keep other processes from writing rounds, until :py:meth:`release` or the end of this process.

        Raises:
            ValueError: when another process has claimed the store.
        """
        claim_folder(self.root)

    def release(self) -> None:
        """Let other processes write rounds again."""
        release_folder(self.root)

    def restore(self, number: int) -> None:
        """Put a round in force. No round is deleted by it.

        Raises:
            ValueError: when there is no such round, or another process writes into the store.
        """
        with self._claimed():
            partial = self.root / ".current.json.partial"
            try:
                write_synced(partial, json.dumps({"round": self._checked(number)}) + "\n")
                partial.replace(self.root / "current.json")
                sync_folder(self.root)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def discard(self, number: int) -> None:
        """Delete a round that was written here. Round 0 and the originals cannot be discarded.

        Raises:
            ValueError: when ``number`` is 0, there is no such round, or another process writes into the store.
        """
        if self._checked(number) == 0:
            raise ValueError("number must be at least 1, got 0: round 0 is the labels that were given.")
        with self._claimed():
            if self.current == number:
                self.restore(max(r for r in self.rounds if r < number))
            self._last = (None, None)
            doomed = self._folder(number).rename(self._partial(number))
            shutil.rmtree(doomed)

    @contextmanager
    def write_round(self, number: int, record: Mapping[str, Any], *, previous: int = 0) -> Iterator[RoundWriter]:
        """Write a whole round, and put it in force: in a ``with`` block, ``write`` every case once.

        If the block raises, or leaves out a case, nothing of the round stays. In a training of several processes each
        enters the block, and writes its own cases.

        Args:
            number: of the new round.
            record: what was done, for ``round.json``: JSON types only.
            previous: the round that the new labels are compared with.

        Raises:
            ValueError: when the round exists already, there is no round ``previous``, cases are missing at the end, or
                another process writes into the store.
            OSError: when the disk cannot take it.
        """
        self._checked(previous)
        final, partial = self._folder(number), self._partial(number)
        if final.exists():
            raise ValueError(f"number must be that of a new round, got {number}, which {self.root} holds already.")
        self._last = (None, None)
        gather()  # all have looked
        versions = {"monai_sc": version("monai-sc"), "config": self.config_version}
        with self._claimed():
            try:
                if is_main():
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir(parents=True)
                    if not has_contents(self):
                        write_contents(self)
                gather()
                writer = RoundWriter(self, partial, previous, versions)
                yield writer
                gather()
                if is_main():
                    numbers = {"round": number, "previous": previous, "classes": self.class_names}
                    writer.finish({**record, **numbers, **versions})
                    partial.rename(final)
                    sync_folder(self.root)
                    self.restore(number)
                gather()
            except BaseException as error:
                if is_main():
                    if final.is_dir() and self.current != number:  # whole, but not in force
                        final.rename(partial)
                    shutil.rmtree(partial, ignore_errors=True)
                elif isinstance(error, OSError) and not partial.exists():
                    gather()  # where the first process, which has failed and cleared up, says why
                if isinstance(error, OSError):
                    reason = str(error.strerror or error).rstrip(".")
                    raise OSError(
                        f"Round {number} could not be written to {self.root}: {reason}. Nothing of it was kept, and "
                        "the labels in force are as they were; the same command goes on from there."
                    ) from error
                raise

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
        simulate_round(self, noise, seed=seed, progress=progress)
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
            folder / str(case["id"]) / f"{name}{file_suffix(source)}"
            for name, source in zip(names, sources, strict=True)
        ]

    def load(self, files: Sequence[Path], case: Mapping[str, Any]) -> MetaTensor:
        """Return a label as it lies on the disk; the last one is kept, since a case is read several times in a row."""
        key = (tuple(files), case.get("foreground", 1))
        if self._last[0] != key:
            self._last = (key, self._loader(case)(list(files)))
        label: MetaTensor = self._last[1]
        return label

    def label_files(self, number: int, case: Mapping[str, Any]) -> list[Path]:
        """Return the files with the label of a case in a round: in round 0 those that were given, or simulated."""
        given = number == 0 and not self.is_simulated
        return files_of(case) if given else self.files(self._folder(number), case)

    def _loader(self, case: Mapping[str, Any]) -> LoadLabel:
        foreground = case.get("foreground", 1)
        if foreground not in self._loaders:
            self._loaders[foreground] = LoadLabel(foreground=foreground, values=self.values)
        return self._loaders[foreground]

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        if not is_main():
            yield
            return
        self.claim()
        try:
            yield
        finally:
            self.release()

    def _read_json(self, file: Path) -> dict[str, Any]:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = None
        if not isinstance(content, dict):
            raise ValueError(f"{file} is damaged; put it back from a copy, or choose another folder.")
        return content

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
            files = [file for key in file_keys(case) for file in files_of(case, key)]
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

    def _written(self) -> list[int]:
        return [number for number in self.rounds if self._folder(number).is_dir()]

    def _chosen(self, number: int | None) -> int:
        return self._checked(self.current if number is None else number)

    def _folder(self, number: int) -> Path:
        return self.root / f"round-{number:03d}"

    def _partial(self, number: int) -> Path:
        return self.root / f".round-{number:03d}.partial"
