"""The folder that a stand-in is written into."""

from __future__ import annotations

from pathlib import Path


def check_new_folder(out: Path) -> None:
    """Make a folder; refuse one that holds files.

    Raises:
        ValueError: when it holds files, or is one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a folder that is empty or does not exist, got {out}.")
    out.mkdir(parents=True, exist_ok=True)
