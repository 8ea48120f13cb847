"""Files that are on the disk when a function returns, and folders that one process at a time writes into."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK = ".lock"

# By process too: a child process finds the locks of its parent here, but they are not its own.
_locks: dict[tuple[int, Path], FileLock] = {}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the disk, which else says no more than that there is no space left.

    Raises:
        OSError: with one sentence.
    """
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}.") from error


def write_synced(path: Path, text: str) -> None:
    """Write a file, and flush it to the disk. A link of its name is replaced, and what it leads to stays as it is.

    Raises:
        OSError: naming the file, when the disk cannot take it.
    """
    with naming(path):
        if path.is_symlink():
            path.unlink()
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def replace_synced(path: Path, text: str) -> None:
    """Write a file so that it is there whole, or as it was before, whenever the process or the system ends.

    Raises:
        OSError: naming the file, when the disk cannot take it.
    """
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a hidden name beside ``path`` to write a file under, which then takes its place, or is gone after an error.

    A link of either name is replaced, and what it leads to stays as it is.

    Raises:
        OSError: naming the file, when the disk cannot take it.
    """
    partial = partial_of(path)
    try:
        with naming(path):
            partial.unlink(missing_ok=True)
            yield partial
            sync_file(partial)
            partial.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """Return the name that a file has until it is whole."""
    return path.with_name(f".{path.name}.partial")


def sync_file(path: Path) -> None:
    """Flush a file that was written to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the list of a folder's files to the disk, after one was renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_object(content: str | bytes) -> dict[str, Any] | None:
    """Return the object that JSON holds, ``None`` where it is damaged or holds something else."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def claim_folder(folder: Path) -> None:
    """Keep other processes from claiming a folder, until this one releases it as often as it claimed it, or ends.

    Where a disk or a system has no locks, nothing is locked.

    Raises:
        ValueError: when another process has claimed it.
        OSError: when the folder cannot be written to.
    """
    key = os.getpid(), folder.resolve()
    lock = _locks.setdefault(key, FileLock(folder.resolve() / LOCK, thread_local=False))
    with naming(folder / LOCK):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"Another process writes into {folder} right now; wait for it, or stop it.") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise


def release_folder(folder: Path) -> None:
    """Take back one claim of this process; without one, nothing happens."""
    key = os.getpid(), folder.resolve()
    if key in _locks:
        _locks[key].release()
        if not _locks[key].is_locked:
            del _locks[key]
