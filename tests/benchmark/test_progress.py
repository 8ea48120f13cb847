import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from monai_sc.benchmark import progress as progress_module
from monai_sc.benchmark.cells import CellResult, GridCell
from monai_sc.benchmark.progress import GridProgress
from monai_sc.benchmark.runner import FailedCell

CELLS = [
    GridCell(f"{noise}/{method}", Path(noise) / method, {"noise": noise, "method": method}, (), {})
    for noise in ("grow", "shrink")
    for method in ("noisy", "sc")
]


def done(dice, seconds):
    return CellResult(("a",), ("c",), np.array([[dice]]), seconds=seconds)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def shown(progress):
    console = Console(file=io.StringIO(), width=80)
    console.print(progress.table())
    return console.file.getvalue()


def test_table_tells_what_is_done_runs_and_has_failed(clock):
    progress = GridProgress(CELLS, console=Console(file=io.StringIO()))
    assert "0 of 4 cells" in shown(progress)
    progress.started(CELLS[0])
    progress.ended(CELLS[0], done(0.5, 600))
    progress.started(CELLS[1])
    progress.ended(CELLS[1], FailedCell(CELLS[1], "no memory", Path("log.txt")))
    progress.started(CELLS[2])
    told = shown(progress)
    assert "│ noisy  │ 1/1 0.500    │ 0/1 1 running │" in told
    assert "│ sc     │ 0/1 1 failed │ 0/1           │" in told
    assert "2 of 4 cells" in told


def test_time_to_come_by_hand(clock):
    progress = GridProgress(CELLS, jobs=2, console=Console(file=io.StringIO()))
    assert progress.remaining() is None
    progress.ended(CELLS[0], done(0.5, 600))
    progress.ended(CELLS[1], done(0.5, 1800))
    assert progress.remaining() == (600 + 1800) / 2
    progress.started(CELLS[2])
    clock[0] = 200.0
    assert progress.remaining() == (400 + 1800) / 2
    clock[0] = 900.0
    assert progress.remaining() == 1800 / 2
    assert "15 min passed, about 15 min left" in " ".join(shown(progress).split())


def test_lines_where_there_is_no_terminal(clock):
    file = io.StringIO()
    with GridProgress(CELLS, console=Console(file=file, width=40)) as progress:
        progress.ended(CELLS[0], done(0.5, 600))  # by an earlier call
        progress.started(CELLS[1])
        clock[0] = 90.0
        progress.ended(CELLS[1], done(0.75, 90))
        progress.started(CELLS[2])
        progress.ended(CELLS[2], FailedCell(CELLS[2], "no [bold] memory", Path("log.txt")))
    assert file.getvalue().splitlines() == [
        "grow/sc: started, its log is grow/sc/log.txt.",
        "grow/sc: Dice 0.750; 1.5 minutes; 2 of 4 cells.",
        "shrink/noisy: started, its log is shrink/noisy/log.txt.",
        "shrink/noisy: failed, no [bold] memory (log.txt); 0.0 minutes; 3 of 4 cells.",
    ]


def test_table_stays_on_a_terminal(clock):
    file = io.StringIO()
    with GridProgress(CELLS, console=Console(file=file, force_terminal=True, width=80)) as progress:
        progress.ended(CELLS[0], done(0.5, 600))
    assert "1 of 4 cells" in file.getvalue()
    assert "0.500" in file.getvalue()
