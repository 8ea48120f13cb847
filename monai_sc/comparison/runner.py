"""The cells of a grid run one after the other, or several at once; what is done stays done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from monai_sc.comparison.cells import RECORD, CellResult, GridCell, nothing_trained, read_result
from monai_sc.comparison.processes import FailedCell, RunningCell, job_environment
from monai_sc.data.durable import claim_folder, json_object, naming, release_folder

__all__ = ["CellsFailedError", "Watcher", "check_record", "claimed", "run_cells"]

WAIT = 0.1  # seconds between two looks at the running cells


class Watcher(Protocol):
    """What is told of the cells as they run."""

    def started(self, cell: GridCell) -> None:
        """A process of a cell was started."""

    def ended(self, cell: GridCell, outcome: CellResult | FailedCell) -> None:
        """A cell was found done, is done, or has failed."""


class CellsFailedError(RuntimeError):
    """Some cells of a grid have failed; the others are done."""

    def __init__(self, failed: Sequence[FailedCell], num_cells: int) -> None:
        lines = [f"  {one.cell.name}: {one.reason} ({one.log})" for one in failed]
        super().__init__(
            f"{len(failed)} of {num_cells} cells failed:\n" + "\n".join(lines) + "\nThe same command tries them again, "
            "and leaves alone what is done."
        )


def run_cells(
    cells: Sequence[GridCell], out: Path, *, jobs: int = 1, watcher: Watcher | None = None, update: Callable[[], None]
) -> None:
    """Run the cells that are not done, in their order, each in a process of its own.

    Cells that are done (their ``result.json`` is sound) are not run again. Another one starts in an empty folder, or,
    if it ``resumes``, with what lies there. If this process ends in any way, so do those of the cells; the next call
    goes on. A cell that fails does not stop the others.

    Each process gets an equal part of the cores (``OMP_NUM_THREADS``, unless it is set), and one GPU, if there are any.

    Args:
        cells: of different names and folders.
        out: the folder that is claimed for this process; made if it does not exist.
        jobs: cells that run at the same time, at least 1.
        watcher: what is told of them.
        update: called after each cell that ends, and at the end if none did: writes the tables.

    Raises:
        ValueError: when ``jobs`` is under 1, cells share a folder, another process works in ``out``, or a folder holds
            the result of a cell with another record.
        CellsFailedError: at the end, when cells have failed.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    folders: set[Path] = set()
    for cell in cells:
        if cell.folder in folders:
            raise ValueError(f"Cells must have different folders, got {cell.folder} twice or more; rename a method.")
        folders.add(cell.folder)
    with claimed(out):
        for cell in cells:
            check_record(cell)
        waiting = []
        for cell in cells:
            result = read_result(cell.folder)
            if result is None:
                waiting.append(cell)
            elif watcher is not None:
                watcher.ended(cell, result)
        failed = _run(waiting, min(jobs, len(waiting)), watcher, update)
    if failed:
        raise CellsFailedError(failed, len(cells))


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make a folder, and keep other processes from working in it.

    Raises:
        ValueError: when it is a file or in one, or another process works in it.
        OSError: when it cannot be written to.
    """
    nearest = next((path for path in (out, *out.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise ValueError(f"out must be a folder, got {out}, where {nearest} is a file.")
    with naming(out):
        out.mkdir(parents=True, exist_ok=True)
    claim_folder(out)
    try:
        yield
    finally:
        release_folder(out)


def check_record(cell: GridCell) -> None:
    """Refuse the folder of a cell that was made otherwise, unless nothing there would be kept anyway.

    Raises:
        ValueError: when it holds the record of a cell with other configs, labels or overrides, or a damaged one.
    """
    file = cell.folder / RECORD
    starts_anew = not cell.resumes or nothing_trained(cell.folder)
    if not file.is_file() or (starts_anew and read_result(cell.folder) is None):
        return
    way_out = "delete it to train that cell again, or choose another folder for the results."
    before = json_object(file.read_bytes())
    if before is None:
        raise ValueError(f"{cell.folder} has a damaged {RECORD}; {way_out}")
    now = json.loads(json.dumps(dict(cell.record)))
    if before != now:
        parts = [name for name in now if before.get(name) != now[name]] or list(before)
        raise ValueError(f"{cell.folder} was made with other {' and '.join(parts)}; {way_out}")


def _run(
    waiting: Sequence[GridCell], jobs: int, watcher: Watcher | None, update: Callable[[], None]
) -> list[FailedCell]:
    failed: list[FailedCell] = []
    queue = list(waiting)
    slots: list[RunningCell | None] = [None] * jobs
    try:
        while queue or any(slots):
            for k, running in enumerate(slots):
                if running is not None and running.process.poll() is not None:
                    slots[k] = None
                    outcome = running.outcome()
                    if isinstance(outcome, FailedCell):
                        failed.append(outcome)
                    if watcher is not None:
                        watcher.ended(running.cell, outcome)
                    update()
                if slots[k] is None and queue:
                    cell = queue.pop(0)
                    slots[k] = RunningCell(cell, job_environment(k, jobs))
                    if watcher is not None:
                        watcher.started(cell)
            time.sleep(WAIT if any(slots) else 0)
    finally:
        for running in slots:
            if running is not None:
                running.end()
    if not waiting:
        update()
    return failed
