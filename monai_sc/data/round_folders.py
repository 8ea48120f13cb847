"""The rounds of labels in a folder: which are there, which is in force, and who may write."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai_sc.data.durable import claim_folder, json_object, release_folder, replace_synced, sha256
from monai_sc.parallel import is_main

MANIFEST, RECORD, CURRENT = "manifest.jsonl", "round.json", "current.json"


class RoundFolders:
    """The rounds in a folder, each a folder ``round-NNN`` that is there whole or not at all.

    It knows nothing of cases and classes: those are the matter of :py:class:`LabelStore`.

    Args:
        root: the folder.
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
        """The round that is in force, which is the last one that was written or restored."""
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
        """Put a round in force. No round is deleted by it.

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

    def _chosen(self, number: int | None) -> int:
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
