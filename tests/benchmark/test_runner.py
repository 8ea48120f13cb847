import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monai_sc.benchmark import CellsFailedError
from monai_sc.benchmark import runner as processes
from monai_sc.benchmark.cells import GridCell, read_result
from monai_sc.benchmark.runner import run_cells
from monai_sc.files.durable import claim_folder

DRIVER = """
import sys, pathlib
from cells_of_the_test import cells_of
from monai_sc.benchmark.runner import run_cells
out = pathlib.Path(sys.argv[1])
run_cells(cells_of(out), out, jobs=2, update=lambda: None)
"""

NAMES = [f"{noise}/{method}/seed-0" for noise in ("grow", "shrink") for method in ("noisy", "sc")]


def cells_of(out, names=NAMES, resumes=()):
    return [
        GridCell(
            name=name,
            folder=out / "cells" / name,
            labels=dict(zip(("noise", "method", "seed"), name.split("/"), strict=True)),
            command=("fake_training", "run", f"--output_dir={out / 'cells' / name}"),
            record={"configs": [["train.json", "abc"]]},
            resumes=name in resumes,
        )
        for name in names
    ]


class Seen(list):
    def started(self, cell):
        self.append(("started", cell.name))

    def ended(self, cell, outcome):
        self.append((type(outcome).__name__, cell.name))


def stamps(out):
    return {str(f.relative_to(out)): (f.stat().st_ino, f.stat().st_mtime_ns) for f in out.rglob("result.json")}


def test_cells_run_once_in_their_order(tmp_path, control, started):
    updates, seen = [], Seen()
    run_cells(cells_of(tmp_path / "out"), tmp_path / "out", watcher=seen, update=lambda: updates.append(1))
    assert started() == NAMES
    assert len(updates) == 4
    assert seen == [(kind, name) for name in NAMES for kind in ("started", "CellResult")]
    before, found = stamps(tmp_path / "out"), Seen()
    run_cells(cells_of(tmp_path / "out"), tmp_path / "out", watcher=found, update=lambda: updates.append(1))
    assert started() == NAMES
    assert stamps(tmp_path / "out") == before
    assert len(updates) == 5
    assert found == [("CellResult", name) for name in NAMES]


def test_log_begins_with_the_command(tmp_path, control):
    cells = cells_of(tmp_path / "out", NAMES[:1])
    run_cells(cells, tmp_path / "out", update=lambda: None)
    lines = (cells[0].folder / "log.txt").read_text().splitlines()
    assert lines == [f"python -m fake_training run --output_dir={cells[0].folder}", f"training {NAMES[0]}"]


def test_failed_cell_stops_no_other_and_is_tried_again(tmp_path, control, started):
    out = tmp_path / "out"
    (control / "fail").write_text("grow/sc")
    with pytest.raises(CellsFailedError) as error:
        run_cells(cells_of(out), out, jobs=2, update=lambda: None)
    assert str(error.value) == (
        "1 of 4 cells failed:\n"
        f"  grow/sc/seed-0: RuntimeError: no memory is left. ({out / 'cells/grow/sc/seed-0/log.txt'})\n"
        "The same command tries them again and keeps finished ones."
    )
    assert len(stamps(out)) == 3
    (control / "fail").unlink()
    run_cells(cells_of(out), out, jobs=2, update=lambda: None)
    assert sorted(started()) == sorted([*NAMES, "grow/sc/seed-0"])
    assert len(stamps(out)) == 4


TRACE = "Traceback (most recent call last):\n  File 'x.py', line 1, in <module>\n    run()\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
LATER = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("one\ntwo\n\n", "two", id="no-error"),
        pytest.param(f"one\n{TRACE}ValueError: a\nb\n", "ValueError: a", id="message-of-two-lines"),
        pytest.param(f"{TRACE}A: a\n{CAUSE}{TRACE}B: b\n{CAUSE}{TRACE}C: c\n('d')\n", "A: a", id="cause-of-a-cause"),
        pytest.param(f"{TRACE}A: a\nINFO\n{TRACE}B: b\n", "B: b", id="an-earlier-one-that-was-logged"),
        pytest.param(f"{TRACE}A: a\n{LATER}{TRACE}B: b\n", "B: b", id="one-after-the-other"),
        pytest.param(f"{TRACE}A: Caught A in worker.\nOriginal {TRACE}A: a\n", "A: a", id="in-a-worker-of-a-loader"),
        pytest.param("one\nTraceback (most recent call last):\n", "Traceback (most recent call last):", id="cut-off"),
    ],
)
def test_reason_is_the_first_cause(log, told):
    assert processes.first_error(log) == told


def test_training_that_writes_no_result_has_failed(tmp_path, control):
    cell = GridCell("a", tmp_path / "out" / "a", {}, ("fake_nothing",), {})
    (control / "fake_nothing.py").write_text("print('done')\n")
    with pytest.raises(CellsFailedError, match=r"a: ended without a valid result\.json"):
        run_cells([cell], tmp_path / "out", update=lambda: None)


@pytest.mark.parametrize("content", ["", '{"classes": ["a"], "cases": ["b", "b"], "dice": [[1], [1]]}', "[]"])
def test_damaged_result_is_no_result(tmp_path, control, started, content):
    cells = cells_of(tmp_path / "out", NAMES[:1])
    cells[0].folder.mkdir(parents=True)
    (cells[0].folder / "result.json").write_text(content)
    run_cells(cells, tmp_path / "out", update=lambda: None)
    assert started() == NAMES[:1]
    assert read_result(cells[0].folder).cases == ("c0", "c1", "c2", "c3", "c4", "c5")


@pytest.mark.parametrize(("resumes", "left"), [((), "x"), (NAMES[:1], "xx")])
def test_only_a_method_that_resumes_finds_what_it_left(tmp_path, control, resumes, left):
    cells = cells_of(tmp_path / "out", NAMES[:1], resumes)
    (control / "fail").write_text("grow")
    with pytest.raises(CellsFailedError, match=r"^1 of 1 cells failed:\n  grow"):
        run_cells(cells, tmp_path / "out", update=lambda: None)
    (control / "fail").unlink()
    run_cells(cells, tmp_path / "out", update=lambda: None)
    assert (cells[0].folder / "half.txt").read_text() == left


def test_cells_that_share_a_folder_are_refused(tmp_path, control, started):
    cells = cells_of(tmp_path / "out", [NAMES[0], NAMES[1], NAMES[0]])
    with pytest.raises(ValueError, match=r"^Cells must have different folders, got .*grow/noisy/seed-0 twice or more;"):
        run_cells(cells, tmp_path / "out", update=lambda: None)
    assert started() == []


def test_folder_of_another_config_is_refused(tmp_path, control, started):
    out = tmp_path / "out"
    run_cells(cells_of(out), out, update=lambda: None)
    (changed,) = cells_of(out, NAMES[1:2])
    changed = GridCell(
        changed.name, changed.folder, changed.labels, changed.command, {"configs": [["train.json", "def"]]}
    )
    with pytest.raises(ValueError, match=r"seed-0 was made with other configs; delete it to train that cell again, or"):
        run_cells([changed], out, update=lambda: None)
    assert len(started()) == 4


@pytest.mark.parametrize("content", ["", "[]", "null"])
def test_folder_with_a_damaged_record_is_refused(tmp_path, control, started, content):
    cells = cells_of(tmp_path / "out", NAMES[:1])
    run_cells(cells, tmp_path / "out", update=lambda: None)
    (cells[0].folder / "cell.json").write_text(content)
    with pytest.raises(ValueError, match=r"seed-0 has a damaged cell\.json; delete it to train that cell again, or"):
        run_cells(cells, tmp_path / "out", update=lambda: None)
    assert started() == NAMES[:1]


@pytest.mark.parametrize(("resumes", "refused"), [((), False), (NAMES[:1], True)])
def test_unfinished_training_of_another_config_is_refused_if_it_would_go_on(tmp_path, control, resumes, refused):
    out = tmp_path / "out"
    (control / "fail").write_text("grow")
    with pytest.raises(CellsFailedError, match=r"^1 of 1 cells failed"):
        run_cells(cells_of(out, NAMES[:1], resumes), out, update=lambda: None)
    (control / "fail").unlink()
    changed = dataclasses.replace(cells_of(out, NAMES[:1], resumes)[0], record={"configs": [["train.json", "def"]]})
    if refused:
        with pytest.raises(ValueError, match=r"seed-0 was made with other configs; delete it to train"):
            run_cells([changed], out, update=lambda: None)
    else:
        run_cells([changed], out, update=lambda: None)
    assert (changed.folder / "half.txt").read_text() == "x"


def test_two_processes_do_not_share_a_folder(tmp_path):
    code = "import sys, pathlib; sys.path.insert(0, sys.argv[2])\nimport durable\n"
    code += "durable.claim_folder(pathlib.Path(sys.argv[1])); print('claimed', flush=True); sys.stdin.read()"
    source = os.path.dirname(sys.modules[claim_folder.__module__].__file__)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(ValueError, match="Another process writes into"):
            run_cells(cells_of(tmp_path), tmp_path, update=lambda: None)
        other.stdin.close()


def test_no_job_is_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        run_cells([], tmp_path, jobs=0, update=lambda: None)


def wait_for(condition):
    """Look until something holds; the test's own time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.05)


def is_running(pid):
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, encoding="utf-8", check=False
    ).stdout
    return bool(state.strip()) and not state.startswith("Z")


def pids(control):
    return [int(file.name[4:]) for file in control.glob("pid-*")]


@pytest.fixture
def interruptible():
    """Let SIGINT raise, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_stopped_run_leaves_no_process(tmp_path, control, interruptible):
    (control / "wait").touch()

    def stop():
        wait_for(lambda: len(pids(control)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells_of(tmp_path / "out"), tmp_path / "out", jobs=2, update=lambda: None)
    thread.join()
    assert len(pids(control)) == 2
    assert not any(is_running(pid) for pid in pids(control))


@pytest.mark.slow
def test_killed_run_leaves_no_process_and_loses_no_cell(tmp_path, control, started):
    out = tmp_path / "out"
    (control / "cells_of_the_test.py").write_bytes(Path(__file__).read_bytes())
    command = [sys.executable, "-c", DRIVER, str(out)]
    run_cells(cells_of(out, NAMES[:1]), out, update=lambda: None)
    before = stamps(out)
    (control / "wait").touch()
    with subprocess.Popen(command, start_new_session=True) as process:
        wait_for(lambda: len(pids(control)) == 2)
        os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(is_running(pid) for pid in pids(control)))
    assert stamps(out) == before
    (control / "wait").unlink()
    assert subprocess.run(command, check=False).returncode == 0
    after = stamps(out)
    assert len(after) == 4
    assert after.items() >= before.items()
    assert sorted(started()) == sorted([NAMES[0], *NAMES[1:3], *NAMES[1:]])


def test_killed_training_has_failed(tmp_path, control):
    (control / "wait").touch()

    def kill():
        wait_for(lambda: pids(control))
        os.kill(pids(control)[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(CellsFailedError, match=r"grow/noisy/seed-0: ended by signal 9 "):
        run_cells(cells_of(tmp_path / "out", NAMES[:1]), tmp_path / "out", update=lambda: None)
    thread.join()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [pytest.param(None, ["0", "1", "0"], id="all"), pytest.param("3,5", ["3", "5", "3"], id="those-that-are-given")],
)
def test_jobs_take_turns_at_the_gpus(monkeypatch, visible, expected):
    monkeypatch.setattr(processes.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [processes.job_environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == expected


@pytest.mark.parametrize(("given", "jobs", "threads"), [(None, 1, "6"), (None, 4, "1"), (None, 9, "1"), ("5", 4, "5")])
def test_jobs_share_the_cores(monkeypatch, given, jobs, threads):
    monkeypatch.setattr(processes, "num_cores", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert processes.job_environment(0, jobs)["OMP_NUM_THREADS"] == threads


def test_warnings_that_are_ignored_stay_so(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error::FutureWarning")
    ignored = processes.job_environment(0, 1)["PYTHONWARNINGS"]
    assert ignored == "error::FutureWarning,ignore:parsing config_file"
