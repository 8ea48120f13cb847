"""Files that are on the disk when a function returns."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_synced"]


def write_synced(path: Path, text: str) -> None:
    """Write a file, and flush it to the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the list of a folder's files to the disk, after one was renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
