"""The cells of a grid run one after the other, or several at once, each in its own process; what is done stays done."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from monai_sc.benchmark import cell_process
from monai_sc.benchmark.cells import LOG, RECORD, CellResult, GridCell, nothing_trained, read_result
from monai_sc.benchmark.result import RESULT
from monai_sc.files.durable import claim_folder, json_object, naming, release_folder, replace_synced


def settle(file: Path, settings: Mapping[str, Any]) -> None:
    """Keep the settings of a grid of cells in a file of its folder, or see that they are those kept there.

    Settings bind nobody as long as no cell in ``cells`` has trained anything, as after a wrong path of the data.
    """
    if file.is_file():
        before = json_object(file.read_bytes())
        if before is None:
            raise ValueError(f"{file} is damaged; put it back from a copy, or choose another folder.")
        names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        if not names:
            return
        if not nothing_trained(file.parent / "cells"):
            changes = "; ".join(f"{name} was {before.get(name)!r}, not {settings.get(name)!r}" for name in names)
            raise ValueError(f"{file.parent} holds cells of other settings ({changes}); choose another folder.")
    elif file.parent.is_dir() and any(not path.name.startswith(".") for path in file.parent.iterdir()):
        raise ValueError(f"{file.parent} must be a new or empty folder, or one with {file.name}.")
    replace_synced(file, json.dumps(dict(settings), indent=2) + "\n")


CAUSE = "The above exception was the direct cause of the following exception:"
GRACE = 10.0  # seconds for a cell to end by itself


@dataclass(frozen=True)
class FailedCell:
    """A cell whose process ended without a result: why, in one line, and the file of all that it wrote."""

    cell: GridCell
    reason: str
    log: Path


class RunningCell:
    """A cell whose process was started, in its folder."""

    def __init__(self, cell: GridCell, environment: dict[str, str]) -> None:
        self.cell = cell
        self.log = cell.folder / LOG
        if cell.folder.exists() and not cell.resumes:
            shutil.rmtree(cell.folder)
        cell.folder.mkdir(parents=True, exist_ok=True)
        (cell.folder / RESULT).unlink(missing_ok=True)  # one that is damaged
        replace_synced(cell.folder / RECORD, json.dumps(dict(cell.record), indent=2) + "\n")
        command = [sys.executable, cell_process.__file__, *cell.command]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(shlex.join(["python", "-m", *cell.command]) + "\n")
            log.flush()
            self.process = _start(command, log, environment)

    def outcome(self) -> CellResult | FailedCell:
        """Return what came of the process, which has ended."""
        self._let_go()
        result = read_result(self.cell.folder)
        if result is not None:
            return result
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - 100_000, 0))
            reason = first_error(file.read().decode("utf-8", errors="replace"))
        status = self.process.returncode
        if status == 0:
            reason = f"ended without a valid {RESULT}, which write_result writes at the end of a run"
        elif status < 0:
            reason = f"ended by signal {-status}"
        return FailedCell(self.cell, reason, self.log)

    def end(self) -> None:
        """End the process and its children."""
        self._let_go()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _let_go(self) -> None:
        """Close the pipe, which the process does not outlive."""
        if self.process.stdin is not None:
            self.process.stdin.close()


def _start(command: Sequence[str], log: IO[Any], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that Ctrl-C comes to this one only, with a pipe that it watches."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def first_error(log: str) -> str:
    r"""Return the line of a log that tells why its process failed: the cause of the last error, else its last line.

    MONAI raises an error in a config once more, with the expression and without the reason.

    Example:
        >>> first_error("one\nTraceback (most recent call last):\n  run()\nValueError: no data.\nThe second line.\n")
        'ValueError: no data.'
    """
    _, *errors = log.split("Traceback (most recent call last):\n")
    while len(errors) > 1 and errors[-2].rstrip().endswith(CAUSE):
        errors.pop()
    unindented = [line for line in errors[-1].splitlines() if line.strip() and not line[0].isspace()] if errors else []
    lines = unindented or [line for line in reversed(log.splitlines()) if line.strip()]
    return lines[0].strip() if lines else ""


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_environment(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment of one of several processes at the same time: its part of the cores, and a GPU."""
    # MONAI warns before it runs a config, since a config is code.
    ignored = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:parsing config_file"]))
    environment = {
        "OMP_NUM_THREADS": str(max(num_cores() // jobs, 1)),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait for one another give up their core
        **os.environ,
        "PYTHONWARNINGS": ignored,
        "PYTHONUNBUFFERED": "1",  # so that the log has what was written before a kill
    }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(k) for k in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    if torch.cuda.device_count():
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return environment


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
            f"{len(failed)} of {num_cells} cells failed:\n" + "\n".join(lines) + "\nThe same command tries them "
            "again and keeps finished ones."
        )


def run_cells(
    cells: Sequence[GridCell], out: Path, *, jobs: int = 1, watcher: Watcher | None = None, update: Callable[[], None]
) -> None:
    """Run the cells that are not done, in their order, each in a process of its own.

    Cells that are done (their ``result.json`` is sound) are not run again. Another one starts in an empty folder, or,
    if it ``resumes``, with what lies there. If this process ends in any way, so do those of the cells; the next call
    goes on. A cell that fails does not stop the others.

    Each process gets an equal part of the cores (``OMP_NUM_THREADS``, unless it is set), and one GPU, if there are any.
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
    """Make a folder, and keep other processes from working in it."""
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
    """Refuse the folder of a cell that was made otherwise, unless nothing there would be kept anyway."""
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
