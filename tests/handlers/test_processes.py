"""Trainings of two processes, which are started here without torchrun: nothing ends one but the other's end."""

import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.forked import Forked

RUN = Path(__file__).parent / "scripts" / "small_run.py"


def start(folder, *options, ranks=1):
    """Return the processes of a run."""
    folder.mkdir(exist_ok=True)
    meeting = Path(tempfile.mkdtemp(dir=folder)) / "meeting"  # a port could be taken by others
    processes = []
    for rank in range(ranks):
        own = {} if ranks == 1 else {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        environment = {**os.environ, **own, "RENDEZVOUS": str(meeting), "OMP_NUM_THREADS": "1"}
        processes.append(Forked([RUN, folder / "data", folder / "out", *options], env=environment))
    return processes


def finish(processes, timeout=200):
    """Return the exit status and the output of each process."""
    try:
        outputs = ["".join(process.communicate(timeout)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    # PyTorch 2.13 with gloo now and then aborts a process that has done all and ends.
    aborted = ["terminate called without an active exception" in output for output in outputs]
    status = [process.returncode for process in processes]
    return [0 if a and s == -signal.SIGABRT else s for a, s in zip(aborted, status, strict=True)], outputs


def one_and_two(folder, *options):
    """Return the results of a run of one process and of one of two."""
    pytest.importorskip("monai", minversion="1.6", reason="accumulation_steps came with MONAI 1.6")
    results = []
    for name, own, ranks in (("one", ["--micro-batches", "2"], 1), ("two", [], 2)):
        status, outputs = finish(start(folder / name, "--fixed", *options, *own, ranks=ranks))
        assert status == [0] * ranks, outputs
        text = (folder / name / "out" / "result.json").read_text()
        results.append(json.loads(text.replace(str(folder / name), "")))
        assert not [f for f in (folder / name / "out" / "labels").rglob(".*") if f.name != ".lock"]
    return results


@pytest.mark.slow
def test_two_processes_give_the_labels_and_the_bias_of_one(tmp_path):
    one, two = results = one_and_two(tmp_path)
    for entries in (*one["manifests"].values(), *two["manifests"].values()):
        for entry in entries:
            for source in entry["sources"]:
                del source["mtime_ns"]  # each run has files of its own
    # The evaluator is that of the user; here it counts each case once per process, which rounds otherwise.
    metrics = [[record.pop("metrics")["dice"] for record in result["history"]] for result in results]
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-6)
    assert one["rounds"] == [0, 1, 2]
    for key in ("history", "current", "rounds", "manifests", "labels"):
        assert one[key] == two[key], key
    for name, weights in one["weights"].items():
        # The gradients of two processes are averaged, which rounds otherwise than a sum.
        np.testing.assert_allclose(two["weights"][name], weights, atol=1e-4)


@pytest.mark.slow
def test_two_processes_begin_with_the_moved_labels_and_give_the_fits_of_one(tmp_path):
    one, two = one_and_two(tmp_path, "--pairs", "5")
    assert one["rounds"][:2] == [0, 1]
    assert one["history"][0]["round"] == 1
    assert one["history"][0]["fits"]
    for key in ("rounds", "current", "labels"):
        assert one[key] == two[key], key
    for first, second in zip(one["history"], two["history"], strict=True):
        # The gradients of two processes are averaged, which rounds otherwise than a sum.
        assert_alike(first, second)


def assert_alike(one, two, where=""):
    """Say that two records are the same but for rounding."""
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for name, value in one.items():
            assert_alike(value, two[name], f"{where}/{name}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for k, value in enumerate(one):
            assert_alike(value, two[k], f"{where}/{k}")
    elif isinstance(one, float):
        assert one == pytest.approx(two, abs=1e-3, nan_ok=True), where
    else:
        assert one == two, where


@pytest.mark.slow
def test_two_processes_learn_from_the_confident_voxels_of_both(tmp_path):
    results = one_and_two(tmp_path, "--confident")
    (one,), (two,) = (result["history"] for result in results)
    assert results[1]["rounds"] == [0, 1]
    assert one["label_counts"] == two["label_counts"]
    # The gradients of two processes are averaged, which rounds otherwise than a sum.
    np.testing.assert_allclose(two["thresholds"], one["thresholds"], atol=1e-3)
    np.testing.assert_allclose(two["joint"], one["joint"], atol=1e-3)
    assert np.sum(one["flagged"]) > 0
    np.testing.assert_allclose(two["voxels_changed"], one["voxels_changed"], atol=10)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "moment"), [(1, "training"), (0, "relabelling")])
def test_killed_process_ends_the_other_one_with_a_message(tmp_path, rank, moment):
    processes = start(tmp_path, "--fixed", "--kill-on-rank", str(rank), "--at", moment, ranks=2)
    processes[rank].wait(timeout=200)
    status, outputs = finish(processes, timeout=60)
    other = 1 - rank
    assert status[rank] == -signal.SIGKILL
    assert status[other] == 1
    assert f"Rank {other} stops because another process of this run ended" in outputs[other]
    assert not list((tmp_path / "out" / "labels").glob("round-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("evaluation", "Rank 0 stops because another process of this run ended"),
        ("relabelling", "Rank 0 ends, since rank 1 failed: RuntimeError: the scanner is on fire"),
    ],
)
def test_failing_process_ends_the_other_one_and_tells_it_why(tmp_path, moment, message):
    status, outputs = finish(start(tmp_path, "--fixed", "--fail-on-rank", "1", "--at", moment, ranks=2))
    assert status == [1, 1]
    assert message in outputs[0]
    assert "the scanner is on fire" in outputs[1]
    assert not list((tmp_path / "out" / "labels").glob("round-*"))


@pytest.mark.slow
def test_run_of_two_processes_goes_on_with_one(tmp_path):
    status, _ = finish(start(tmp_path, "--fixed", "--fail-on-rank", "1", "--at", "training", ranks=2))
    assert status == [1, 1]
    status, outputs = finish(start(tmp_path, "--fixed"))
    assert status == [0], outputs
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rounds"] == [0, 1, 2]
