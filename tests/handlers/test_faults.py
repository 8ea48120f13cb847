import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "workers"), [(8, 0), (2, 2)], ids=["one-process", "with-workers"])
def test_run_that_is_killed_at_any_moment_goes_on_to_the_same_result(tmp_path, kills, workers):
    command = [sys.executable, SCRIPTS / "kills.py", tmp_path / "runs", str(kills), "0", "--workers", str(workers)]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["failures"] == []
    assert summary["kills"] >= kills
    assert summary["rounds"] == [0, 1, 2]
