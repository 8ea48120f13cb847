"""Writing the labels of a round, case by case."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.data.cases import Case, files_of
from monai_sc.data.durable import sha256, sync_folder, write_synced
from monai_sc.data.label_files import write_label_like, write_values_like
from monai_sc.data.round_folders import MANIFEST, RECORD
from monai_sc.data.store_contents import has_contents, write_contents
from monai_sc.functional.checks import binary_mask
from monai_sc.functional.dice import dice
from monai_sc.parallel import gather, is_main, rank, world_size

if TYPE_CHECKING:
    from monai_sc.data.label_store import LabelStore


@contextmanager
def write_round(
    store: LabelStore, final: Path, number: int, record: Mapping[str, Any], previous: int
) -> Iterator[RoundWriter]:
    """Write a round into the folder ``final``, for ``LabelStore.write_round``, whose docstring says how."""
    partial = final.with_name(f".{final.name}.partial")
    gather()  # all have looked
    versions = {"monai_sc": version("monai-sc"), "config": store.config_version}
    with store.claimed():
        try:
            if is_main():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                if not has_contents(store):
                    write_contents(store)
            gather()
            writer = RoundWriter(store, partial, previous, versions)
            yield writer
            gather()
            if is_main():
                store.refuse_changed_sources()  # or it would note what they hold now
                numbers = {"round": number, "previous": previous, "classes": store.class_names}
                writer.finish({**record, **numbers, **versions})
                partial.rename(final)
                sync_folder(store.root)
                store.restore(number)
            gather()
        except BaseException as error:
            if is_main():
                if final.is_dir() and store.current != number:  # whole, but not in force
                    final.rename(partial)
                shutil.rmtree(partial, ignore_errors=True)
            elif isinstance(error, OSError) and not partial.exists():
                gather()  # where the first process, which has failed and cleared up, says why
            if isinstance(error, OSError):
                reason = str(error.strerror or error)
                reason += "" if reason.endswith((".", "?")) else "."
                raise OSError(
                    f"Round {number} could not be written to {store.root}: {reason} Nothing of it was kept, and "
                    "the current labels are as they were; the same command goes on from there."
                ) from error
            raise


class RoundWriter:
    """Writes cases of one round; made by :py:meth:`LabelStore.write_round <monai_sc.data.LabelStore.write_round>`.

    Each process of a training has its own, for its cases; the lines that they note become one manifest.

    Args:
        store: of the labels.
        folder: of the round, while it is not complete.
        previous: number of the round that the labels are compared with.
        common: what each line of the manifest ends with.
    """

    def __init__(self, store: LabelStore, folder: Path, previous: int, common: Mapping[str, Any]) -> None:
        self.store = store
        self.folder = folder
        self.previous = previous
        self.common = dict(common)
        self._written: set[str] = set()

    def write(self, case_id: str, label: np.ndarray, **details: Any) -> list[int]:
        """Write the label of one case, and return how many voxels of each class differ from the previous round.

        Args:
            case_id: of a case of the store.
            label: ``(classes, *spatial)``, 0 and 1 only, on the grid of the case's own label files.
            details: of how it was made, for its line of the manifest: JSON types only.

        Raises:
            KeyError: when the store has no such case.
            ValueError: when ``label`` is not binary, has another shape than the case's label, or has classes that
                overlap and would go into one label map; or when the case has been written.
            OSError: when its files cannot be written.
        """
        case = self.store.case(case_id)
        if case_id in self._written:
            raise ValueError(f"Every case is written once, got {case_id!r} again.")
        mask = binary_mask(label)
        before = self.store.read(case_id, self.previous)
        if mask.shape != before.shape:
            raise ValueError(
                f"label of case {case_id!r} must have the shape of its files, {before.shape}, got {mask.shape}."
            )
        files = self.store.files(self.folder, case)
        files[0].parent.mkdir()
        try:
            self._write_files(case, mask, files)
        except RuntimeError as error:  # how ITK reports what it cannot write
            raise OSError(
                f"The label of case {case_id!r} could not be written to {self.store.root}; is the disk full? "
                f"({str(error).splitlines()[-1][:200]})"
            ) from error
        sync_folder(files[0].parent)
        changed = [int(n) for n in (mask != before).sum(axis=tuple(range(1, mask.ndim)))]
        entry = {
            "case": case_id,
            "files": [file.relative_to(self.folder).as_posix() for file in files],
            "sha256": [sha256(file) for file in files],
            "sources": [_source(source) for source in files_of(case)],
            "voxels_changed": changed,
            "dice_to_previous": [round(float(d), 6) for d in dice(mask, before)],
            **details,
            **self.common,
        }
        with self._lines(rank()).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self._written.add(case_id)
        return changed

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the manifest of all cases, and what was done, when every process has written its own.

        Raises:
            ValueError: when a case is missing, or was written by two processes.
        """
        parts = [file for file in map(self._lines, range(world_size())) if file.is_file()]
        lines: dict[str, str] = {}
        for line in (line for file in parts for line in file.read_text(encoding="utf-8").splitlines()):
            case_id = json.loads(line)["case"]
            if case_id in lines:
                raise ValueError(f"Every case is written once, got {case_id!r} of two processes.")
            lines[case_id] = line
        ids = [str(case["id"]) for case in self.store.cases]
        missing = [case_id for case_id in ids if case_id not in lines]
        if missing:
            raise ValueError(
                f"A round must hold every case, but {missing[0]!r} and {len(missing) - 1} more are missing."
            )
        write_synced(self.folder / MANIFEST, "".join(lines[case_id] + "\n" for case_id in ids))
        write_synced(self.folder / RECORD, json.dumps(record, indent=2) + "\n")
        for file in parts:
            file.unlink()
        sync_folder(self.folder)

    def _write_files(self, case: Case, mask: np.ndarray, files: list[Path]) -> None:
        sources = files_of(case)
        if self.store.values is None:
            for k, (channel, file, source) in enumerate(zip(mask, files, sources, strict=True)):
                write_label_like(channel, file, source, self.store.foreground(case, k))
        else:
            if (mask.sum(axis=0) > 1).any():
                raise ValueError(
                    f"The classes of case {case['id']!r} must not overlap, since its label is a map with one value per "
                    "voxel; use output='softmax', or label files of one class each."
                )
            values = np.tensordot(self.store.values, mask.astype(np.int64), axes=1)
            write_values_like(values, files[0], sources[0], name=f"The label of case {case['id']!r}")
        try:
            written = self.store.load(files, case) > 0
        except ValueError as error:
            raise OSError(f"{files[0]} could not be written whole; is the disk full?") from error
        if not np.array_equal(written, mask):
            raise ValueError(f"{sources[0]} of case {case['id']!r} must be of a type that holds a mask without loss.")

    def _lines(self, process: int) -> Path:
        return self.folder / f".manifest-{process}.jsonl"


def _source(path: Path) -> dict[str, Any]:
    state = path.stat()
    return {"path": str(path.absolute()), "sha256": sha256(path), "size": state.st_size, "mtime_ns": state.st_mtime_ns}
