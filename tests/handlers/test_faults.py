import json
from pathlib import Path

import pytest

from tests.forked import run_forked

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "workers"), [(2, 0), (1, 2)], ids=["one-process", "with-workers"])
def test_run_that_is_killed_at_any_moment_goes_on_to_the_same_result(tmp_path, kills, workers):
    done = run_forked([SCRIPTS / "kills.py", tmp_path / "runs", kills, 0, "--workers", workers], timeout=None)
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["failures"] == []
    assert summary["kills"] >= kills
    assert summary["rounds"] == [0, 1, 2]


def test_forked_process_starts_others_as_a_new_python_does():
    done = run_forked(["-c", "import multiprocessing; print(multiprocessing.get_start_method(allow_none=True))"])
    assert done.stdout == "None\n", done.stderr
