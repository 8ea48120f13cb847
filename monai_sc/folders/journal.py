"""Keep the list of finished cases on the disk, so that a killed run goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(file: Path) -> dict[str, Row]:
    """Return the rows of a list by ``case``, without a last line that is torn.

    Raises:
        ValueError: when the list is damaged.
    """
    content = file.read_bytes() if file.is_file() else b""
    try:
        rows = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
        return {row["case"]: row for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged; delete it, and what it lists is done again.") from error


@contextmanager
def noting(file: Path) -> Iterator[Callable[[Row], None]]:
    """Open a list, and give a function that writes a row to the disk."""
    with file.open("ab+") as lines:
        lines.seek(0)
        lines.truncate(lines.read().rfind(b"\n") + 1)  # without the line that was torn when a run was killed

        def note(row: Row) -> None:
            lines.write(json.dumps(row).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())

        yield note
