"""The rounds of a label store: which are there, which is current, and how a new one is written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.files.cases import Case, files_of
from monai_sc.files.durable import (
    claim_folder,
    json_object,
    release_folder,
    replace_synced,
    sha256,
    sync_folder,
    write_synced,
)
from monai_sc.files.write import write_label_like, write_values_like
from monai_sc.functional.checks import binary_mask
from monai_sc.functional.masks import dice
from monai_sc.parallel import gather, is_main, rank, world_size
from monai_sc.store.contents import has_contents, write_contents

if TYPE_CHECKING:
    from monai_sc.store.label_store import LabelStore


MANIFEST, RECORD, CURRENT = "manifest.jsonl", "round.json", "current.json"


class RoundFolders:
    """The rounds in a folder, each a folder ``round-NNN`` that is there whole or not at all.

    It knows nothing of cases and classes: those are the matter of :py:class:`LabelStore`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def rounds(self) -> list[int]:
        """The numbers of the rounds that are complete, 0 always among them."""
        names = (f.name for f in self.root.glob("round-*") if (f / RECORD).is_file())
        return sorted({0, *(int(name[6:]) for name in names if re.fullmatch(r"round-\d{3,}", name))})

    @property
    def is_simulated(self) -> bool:
        """Whether round 0 was made noisy here."""
        return self._folder(0).is_dir()

    @property
    def current(self) -> int:
        """The current round, which is the last one that was written or restored."""
        file = self.root / CURRENT
        if not file.is_file():
            return 0
        number = self._read_json(file).get("round")
        if not isinstance(number, int) or number not in self.rounds:
            raise ValueError(f"{file} is damaged; delete it, and choose a round with restore.")
        return number

    def record(self, number: int) -> dict[str, Any]:
        """Return what ``round.json`` says of a round that was written.

        Raises:
            ValueError: when it is damaged.
        """
        file = self._folder(self._checked(number)) / RECORD
        record = self._read_json(file)
        classes = record.get("classes")
        if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
            raise _damaged(file)
        return record

    def manifest(self, number: int) -> list[dict[str, Any]]:
        """Return the manifest of a round that was written, one dictionary per case.

        Raises:
            ValueError: when it is damaged.
        """
        file = self._folder(self._checked(number)) / MANIFEST
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            lines = []
        num_classes = len(self.record(number)["classes"])
        if not lines or not all(_is_entry(line, num_classes) for line in lines):
            raise _damaged(file)
        return lines

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

    def refuse_changed_sources(self) -> None:
        """Refuse to make labels from files that are not what they were in the round before.

        Raises:
            ValueError: naming the first file.
        """
        changed = self.changed_sources()
        if changed:
            raise ValueError(
                f"Label files must stay as they were when labels were made from them, but {changed[0]} "
                f"{'has changed' if changed[0].is_file() else 'is gone'}, and {len(changed) - 1} more; put the old "
                "ones back, or choose another folder for a new run."
            )

    def changed_labels(self, number: int) -> list[Path]:
        """Return the label files of a round that was written which have changed since, or are gone.

        Their SHA-256 decides, which rounds of older versions do not have.
        """
        folder = self._folder(self._checked(number))
        noted = [
            (folder / name, digest)
            for entry in self.manifest(number)
            for name, digest in zip(entry["files"], entry.get("sha256", ()), strict=False)
        ]
        return [file for file, digest in noted if not file.is_file() or sha256(file) != digest]

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
        """Make a round the current one. No round is deleted.

        Raises:
            ValueError: when there is no such round, or another process writes into the store.
        """
        with self.claimed():
            replace_synced(self.root / CURRENT, json.dumps({"round": self._checked(number)}) + "\n")

    def discard(self, number: int) -> None:
        """Delete a round that was written here. Round 0 and the originals cannot be discarded.

        Raises:
            ValueError: when ``number`` is 0, there is no such round, or another process writes into the store.
        """
        if self._checked(number) == 0:
            raise ValueError("number must be at least 1, got 0: round 0 is the labels that were given.")
        with self.claimed():
            if self.current == number:
                self.restore(max(r for r in self.rounds if r < number))
            folder = self._folder(number)
            shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.partial")))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Claim the store for a ``with`` block, in the first process of several."""
        if not is_main():
            yield
            return
        self.claim()
        try:
            yield
        finally:
            self.release()

    def _checked(self, number: int) -> int:
        if number not in self.rounds:
            raise ValueError(f"number must be one of the rounds {self.rounds} in {self.root}, got {number}.")
        return number

    def chosen(self, number: int | None) -> int:
        """Return the number of a round that exists, by default of the current one."""
        return self._checked(self.current if number is None else number)

    def _written(self) -> list[int]:
        return [number for number in self.rounds if self._folder(number).is_dir()]

    def _folder(self, number: int) -> Path:
        return self.root / f"round-{number:03d}"

    def _read_json(self, file: Path) -> dict[str, Any]:
        content = json_object(file.read_bytes()) if file.is_file() else None
        if content is None:
            raise _damaged(file)
        return content


def _damaged(file: Path) -> ValueError:
    return ValueError(f"{file} is damaged; put it back from a copy, or choose another folder.")


def _is_entry(entry: Any, num_classes: int) -> bool:
    """Return whether this is what a line of a manifest looks like."""
    try:
        texts = [entry["case"], *entry["files"], *entry.get("sha256", ())]
        for source in entry["sources"]:
            texts += [source["path"], source["sha256"]]
            if not all(isinstance(source[key], int) for key in ("size", "mtime_ns")):
                return False
        counts, scores = entry["voxels_changed"], entry["dice_to_previous"]
        return (
            all(isinstance(part, list) for part in (entry["files"], entry["sources"], counts, scores))
            and all(isinstance(text, str) for text in texts)
            and len(counts) == len(scores) == num_classes
            and all(isinstance(count, int) for count in counts)
            and all(0 <= score <= 1 for score in scores)
        )
    except (KeyError, TypeError, AttributeError):
        return False


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
                if final.is_dir() and store.current != number:  # whole, but not current
                    final.rename(partial)
                shutil.rmtree(partial, ignore_errors=True)
            elif isinstance(error, OSError) and not partial.exists():
                gather()  # where the first process, which has failed and cleared up, says why
            if isinstance(error, OSError):
                reason = str(error.strerror or error)
                reason += "" if reason.endswith((".", "?")) else "."
                raise OSError(
                    f"Round {number} could not be written to {store.root}: {reason} Nothing was kept and the current "
                    "labels are unchanged; run the same command to resume."
                ) from error
            raise


class RoundWriter:
    """Writes cases of one round; made by :py:meth:`LabelStore.write_round <monai_sc.store.LabelStore.write_round>`.

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
            raise ValueError(f"A case must be written once, got {case_id!r} twice.")
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
