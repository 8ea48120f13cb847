"""The process of a cell: how it starts, and how it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from monai_sc.comparison import cell_process
from monai_sc.comparison.cells import LOG, RECORD, CellResult, GridCell, read_result
from monai_sc.comparison.result import RESULT
from monai_sc.data.durable import replace_synced

CAUSE = "The above exception was the direct cause of the following exception:"
GRACE = 10.0  # seconds for a cell to end by itself


@dataclass(frozen=True)
class FailedCell:
    """A cell whose process ended without a result: why, in one line, and the file of all that it wrote."""

    cell: GridCell
    reason: str
    log: Path


class RunningCell:
    """A cell whose process was started, in its folder.

    Args:
        cell: what to run.
        environment: of the process.
    """

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
            reason = f"ended without a sound {RESULT}, which write_result at the end of its run makes"
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
    """Return the environment of one of several processes at the same time: its part of the cores, and a GPU.

    Args:
        slot: which of them, from 0.
        jobs: how many.
    """
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
