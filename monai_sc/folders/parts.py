"""Which part of a folder command a process is, and how what the parts have done becomes one result."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One of several processes that share the cases of a folder; by default the only one, which has them all.

    Attributes:
        index: of the part, from 0.
        count: of the parts.

    Raises:
        ValueError: when there is no such part.

    Example:
        >>> Part(1, 3).own(["a", "b", "c", "d", "e"])
        ['b', 'e']
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"A part must have an index from 0 and under the count, got {self.index} of {self.count}.")

    def __str__(self) -> str:
        return f"Part {self.index + 1} of {self.count}"

    def own(self, names: Sequence[str]) -> list[str]:
        """Return those of all names that this part is to do."""
        return list(names[self.index :: self.count])

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Part:
        """Return the part that this process is, as ``torchrun`` or SLURM say; all of it where neither does.

        ``RANK`` and ``WORLD_SIZE`` of ``torchrun`` come before all else. A task of a SLURM job array is the part of its
        place in the array, wherever the ids begin; a task of ``srun`` that of its ``SLURM_PROCID``. With an array of
        several tasks each, there are as many parts as tasks in all.

        Args:
            environ: the variables; by default those of the process.

        Raises:
            ValueError: when a variable is missing or has no such value.
        """
        environ = os.environ if environ is None else environ
        launched = [name in environ for name in ("RANK", "WORLD_SIZE")]
        if any(launched):
            if not all(launched):
                raise ValueError("RANK and WORLD_SIZE must both be set, as torchrun does, or none of them; got one.")
            return cls._of(environ, "RANK", "WORLD_SIZE")
        outer = cls._of_array(environ) if "SLURM_ARRAY_TASK_ID" in environ else cls()
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        # a batch script is no task of srun, and runs once, but has the number of tasks that its job may start
        is_script = environ.get("ENVIRONMENT") == "BATCH" and tasks == "SLURM_NTASKS"
        is_task = not is_script and "SLURM_PROCID" in environ and tasks in environ
        inner = cls._of(environ, "SLURM_PROCID", tasks) if is_task else cls()
        return cls(outer.index * inner.count + inner.index, outer.count * inner.count)

    @classmethod
    def _of(cls, environ: Mapping[str, str], index: str, count: str) -> Part:
        part = _whole(environ, index), _whole(environ, count)
        if not 0 <= part[0] < part[1]:
            raise ValueError(f"{index} must be from 0 and under {count}, got {part[0]} and {part[1]}.")
        return cls(*part)

    @classmethod
    def _of_array(cls, environ: Mapping[str, str]) -> Part:
        number, first, count = (_whole(environ, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "COUNT"))
        step = _whole(environ, "SLURM_ARRAY_TASK_STEP", 1)
        last = _whole(environ, "SLURM_ARRAY_TASK_MAX", first + (count - 1) * step)
        index, rest = divmod(number - first, max(step, 1))
        if step < 1 or rest or not 0 <= index < count or last != first + (count - 1) * step:
            raise ValueError(
                "The ids of a job array must follow each other at one step, as with --array=0-3, got id "
                f"{number} in {count} from {first} to {last} by {step}."
            )
        return cls(index, count)


def _whole(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}.") from None


def key_of(asked: Any, files: Iterable[Path]) -> str:
    """Return a hash that tells a call from others: of what was asked (JSON types), the files, their sizes and times."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for file in files:
        status = file.stat()
        digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


class Exchange:
    """The hidden folder through which the parts of one call learn what the others have done.

    The parts need not run at the same time, nor on one machine, as long as they share the disk. Each notes its rows,
    one per case, in a list of its own, and each reads all lists: so cases that are done stay done, whatever the number
    of parts of a later call. POSIX locks of a file keep apart what must not happen at once; where the disk has none,
    nothing does.

    Args:
        folder: of all parts of the same call, and of no other call; made if need be.
        part: which this process is.
        out: where the result goes, for the messages.
        rows: the list of a process that does everything; those of parts lie beside it.
    """

    def __init__(self, folder: Path, part: Part, out: Path, rows: Path | None = None) -> None:
        self.folder, self.part, self.out = folder, part, out
        label = f"{part.index + 1}-of-{part.count}"
        self.scratch = folder / label
        self._all = folder / "rows.jsonl" if rows is None else rows
        self._own = self._all if part.count == 1 else self._all.with_name(f"{self._all.stem}.{label}.jsonl")
        self._bytes = (1, 0) if part.count == 1 else (1 + part.index, 1)
        self._descriptor: int | None = None
        self._is_merged = False

    @property
    def is_needed(self) -> bool:
        """Whether there are other parts, or were before."""
        return self.part.count > 1 or (self.folder / "lock").exists()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep this part to this process, which gets an empty folder ``scratch``; at the end, clear up.

        Raises:
            ValueError: when another process does this part.
        """
        while not self._claim():
            pass
        try:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(exist_ok=True)
            yield
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
            with self.alone():
                if not self._is_merged and self.is_only() and not self._holds_rows():
                    shutil.rmtree(self.folder, ignore_errors=True)
            self._close()
            with suppress(OSError):  # on NFS, a file that is open when it is deleted keeps its folder
                self.folder.rmdir()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other part is in such a section, and keep the others waiting."""
        if self._descriptor is None:
            yield
            return
        import fcntl  # not on every system

        with suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, 0)
        with suppress(OSError):
            os.utime(self._all.parent)  # else NFS may show a listing from before another machine's last files
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0)

    def is_only(self) -> bool:
        """Return, within :py:meth:`alone`, whether no other part is at work; not where there are no locks to tell."""
        if self._descriptor is None:
            return True
        only = self._take(1, 0)
        if only:
            self._release()
            self._take(*self._bytes)
        return bool(only)

    def logs(self) -> list[Path]:
        """Return the lists of all parts."""
        return sorted(self._all.parent.glob(f"{self._all.stem}*.jsonl"))

    def rows(self) -> dict[str, Row]:
        """Return the rows of all parts by case, but for a line that is torn or still being written.

        Raises:
            ValueError: when a list is damaged.
        """
        found: dict[str, Row] = {}
        for file in self.logs():
            content = file.read_bytes()
            try:
                rows = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
                found |= {row["case"]: row for row in rows}
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is damaged; delete it, and what it lists is done again.") from error
        return found

    @contextmanager
    def noting(self) -> Iterator[Callable[[Row], None]]:
        """Open the list of this part, and give a function that puts a row, which has a ``case``, on the disk."""
        with self._own.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # without the line that was torn when a run was killed

            def note(row: Row) -> None:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

            yield note

    @contextmanager
    def gathered(self, names: Sequence[str]) -> Iterator[list[Row]]:
        """Give the rows of all cases to the last part to end, which is to merge them meanwhile; to the others none.

        To be called once, when the part has noted its rows: from then on it does not count as being at work.
        """
        with self.alone():
            rows = self.rows()
            is_last = self._take(1, 0) is not False and all(name in rows for name in names)
            self._release()
            yield [rows[name] for name in names] if is_last else []
            if self._is_merged:
                shutil.rmtree(self.folder, ignore_errors=True)

    def merged(self) -> None:
        """Say that the rows have become a result, so that the folder goes."""
        self._is_merged = True

    def _holds_rows(self) -> bool:
        return self._all.parent == self.folder and any(file.stat().st_size for file in self.logs())

    def _claim(self) -> bool:
        """Lock what is this part's; ``False`` if the folder went in that moment, as another part ended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.folder / "lock"
        try:
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            return False
        with self.alone():
            try:
                is_there = os.path.samestat(os.fstat(self._descriptor), lock.stat())
            except FileNotFoundError:
                is_there = False
            is_free = is_there and self._take(*self._bytes) is not False
        if not is_free:
            self._close()
        if is_there and not is_free:
            raise ValueError(f"Another run writes into {self.out} right now; wait for it.")
        return is_there

    def _take(self, start: int, length: int) -> bool | None:
        """Lock bytes of the file, to its end with a length of 0; ``None`` where the disk has no locks."""
        if self._descriptor is None:
            return None
        import fcntl

        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        except OSError as error:
            return False if error.errno in (errno.EACCES, errno.EAGAIN) else None
        return True

    def _release(self) -> None:
        if self._descriptor is not None:
            import fcntl

            with suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 0, 1)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
