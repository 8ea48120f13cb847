"""The folder of a simulation: what it holds while it grows, so that it goes on where a killed run stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from monai_sc.data.durable import json_object, sha256, sync_folder, write_synced
from monai_sc.data.parts import Exchange, Part
from monai_sc.data.simulation.case import SimulationError

RECORD = "simulation.json"
MANIFEST = "manifest.jsonl"
PROGRESS = ".manifest.partial.jsonl"
STAGING = ".simulation.partial"

Entry = dict[str, Any]


class SimulationFolder:
    """The masks of a simulation under their own names, and what was done to them.

    Every file is written in a hidden folder inside, flushed and renamed, then noted in a hidden manifest, which becomes
    the manifest when the last case is done. So whatever has its final name is whole, and what is not noted is done
    again, with the same bytes. Of several parts each stages and notes its own files, and the last to end makes the
    manifest.

    Args:
        root: the folder, which need not exist yet.
        part: which this process is; by default the only one.
    """

    def __init__(self, root: Path, part: Part | None = None) -> None:
        self.root = root
        self.part = part or Part()
        self.exchange = Exchange(root / STAGING, self.part, root, root / PROGRESS)
        self.staging = self.exchange.scratch

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other runs out of the folder, which is made if need be, and goes again if it stays empty.

        Other parts may come in, but for a process that does everything. In the end the staging folder goes.

        Raises:
            ValueError: when another run writes into it.
        """
        import fcntl  # not on every system, where the rest of the package may be of use

        made = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if self.part.count > 1 else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"Another run writes into {self.root} right now; wait for it.") from None
            except OSError:
                pass  # some network disks have no such locks
            with ExitStack() as stack:
                if self.exchange.is_needed:
                    stack.enter_context(self.exchange.claimed())
                else:
                    stack.callback(shutil.rmtree, self.exchange.folder, ignore_errors=True)
                yield
        finally:
            os.close(descriptor)
            if made:
                with suppress(OSError):
                    self.root.rmdir()

    def record(self) -> dict[str, Any] | None:
        """Return what was asked for when the simulation began; ``None`` where none did."""
        file = self.root / RECORD
        return _parsed(file.read_bytes(), file) if file.is_file() else None

    def begin(self, record: Mapping[str, Any]) -> None:
        """Clear the remains of a killed run away, and write down what is asked for if that has not been done."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True, exist_ok=True)  # a killed run's worker may still have been writing there
        if self.record() is None:
            self._put(RECORD, json.dumps(record, indent=2) + "\n")

    def forget(self) -> None:
        """Delete the record and the lists of what is done, if nothing is and no other part is at work."""
        with self.exchange.alone():
            if self.exchange.is_only() and not self.exchange.rows():
                for file in (self.root / RECORD, *self.exchange.logs()):
                    file.unlink(missing_ok=True)

    def refuse_foreign_files(self, names: Collection[str]) -> None:
        """Refuse a folder that holds anything but a simulation of files of these names.

        Raises:
            ValueError: naming the first other file.
        """
        logs = [log.name for log in self.exchange.logs()]
        own = {RECORD, MANIFEST, *logs, *names} if (self.root / RECORD).is_file() else set()
        for folder, folders, files in os.walk(self.root):
            where = Path(folder)
            links = [name for name in folders if (where / name).is_symlink()]
            for name in sorted([*files, *links]):
                file = where / name
                relative = file.relative_to(self.root)
                if file.is_symlink() or (relative.as_posix() not in own and relative.parts[0] != STAGING):
                    raise ValueError(
                        f"{self.root} holds {relative}, which this simulation did not write; choose an empty or a new "
                        "folder."
                    )

    def finished(self) -> list[Entry] | None:
        """Return the manifest of a simulation that is complete, else ``None``."""
        file = self.root / MANIFEST
        return [_parsed(line, file) for line in file.read_bytes().splitlines()] if file.is_file() else None

    def place(self, entry: Entry, staged: Path, note: Callable[[Entry], None]) -> None:
        """Give a finished file its name, and note it.

        Raises:
            SimulationError: when another file has that name, or the disk cannot take it.
        """
        target = self.root / entry["case"]
        try:
            if target.exists() and sha256(target) != entry["sha256"]:
                raise SimulationError(f"{target} is not the file that this simulation writes; move it away.")
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(target)
            sync_folder(target.parent)
            note(entry)
        except OSError as error:
            raise SimulationError(f"{target} could not be written: {error.strerror or error}.") from error

    def finish(self, entries: Sequence[Entry]) -> list[Entry]:
        """Write the manifest, in the order of the names, and return it.

        Raises:
            SimulationError: when a file has gone since it was noted.
        """
        for entry in entries:
            if not (self.root / entry["case"]).exists():
                raise SimulationError(f"{self.root / entry['case']} has gone; simulate again, and it is made again.")
        lines = sorted(entries, key=lambda entry: entry["case"])
        self._put(MANIFEST, "".join(json.dumps(line) + "\n" for line in lines))
        self.clean()
        self.exchange.merged()
        return lines

    def clean(self) -> None:
        """Delete the lists that the manifest has taken the place of."""
        for log in self.exchange.logs():
            log.unlink(missing_ok=True)

    def _put(self, name: str, text: str) -> None:
        write_synced(self.staging / name, text)
        (self.staging / name).replace(self.root / name)
        sync_folder(self.root)


def _parsed(text: bytes, file: Path) -> dict[str, Any]:
    content = json_object(text)
    if content is None:
        raise ValueError(f"{file} is damaged; delete its folder and simulate again.")
    return content
