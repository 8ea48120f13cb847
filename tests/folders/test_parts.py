from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.__main__ import main
from monai_sc.folders import Part, audit_folder, correct_folder, simulate_folder, simulated_case
from monai_sc.folders import correct as correct_module
from monai_sc.folders.noise_choice import NoiseChoice
from monai_sc.folders.parts import Exchange, key_of
from monai_sc.reports.audit import write_audit
from tests.contents import contents
from tests.forked import Forked, run_forked

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


def array(task, low, high, step=1):
    """Return what SLURM sets for a task of an array with the ids from ``low`` to ``high``."""
    names = {"ID": task, "MIN": low, "MAX": high, "STEP": step, "COUNT": (high - low) // step + 1}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}


def srun(task, count):
    return {"SLURM_PROCID": str(task), "SLURM_NTASKS": str(count)}


ENVIRONMENTS = [
    pytest.param({}, (0, 1), id="none"),
    pytest.param(TORCHRUN, (1, 4), id="torchrun"),
    pytest.param(array(2, 0, 3), (2, 4), id="array"),
    pytest.param(array(5, 1, 8), (4, 8), id="array-from-1"),
    pytest.param(array(9, 3, 12, 3), (2, 4), id="array-by-3"),
    pytest.param(
        {f"SLURM_ARRAY_TASK_{k}": v for k, v in (("ID", "7"), ("MIN", "5"), ("COUNT", "3"))}, (2, 3), id="few"
    ),
    pytest.param(array(7, 7, 7), (0, 1), id="array-of-one"),
    pytest.param(srun(3, 6), (3, 6), id="srun"),
    pytest.param(srun(0, 1), (0, 1), id="srun-of-one"),
    pytest.param({**srun(0, 8), "ENVIRONMENT": "BATCH"}, (0, 1), id="batch-script"),
    pytest.param({**srun(1, 8), "ENVIRONMENT": "BATCH", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2), id="srun-in-a-script"),
    pytest.param({"SLURM_NTASKS": "8"}, (0, 1), id="salloc"),
    pytest.param({**array(2, 1, 3), **srun(1, 2)}, (3, 6), id="array-of-srun"),
    pytest.param({**array(2, 0, 3), **srun(1, 2), **TORCHRUN}, (1, 4), id="torchrun-comes-first"),
    pytest.param({**array(2, 0, 3), "RANK": "0", "WORLD_SIZE": "1"}, (0, 1), id="all-of-it-in-an-array"),
]


@pytest.mark.parametrize(("environ", "expected"), ENVIRONMENTS)
def test_part_is_what_the_launcher_says(environ, expected):
    part = Part.from_environment(environ)
    assert (part.index, part.count) == expected


BAD_ENVIRONMENTS = [
    ({"RANK": "1"}, r"^RANK and WORLD_SIZE must both be set, as torchrun does, or none of them; got one\.$"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, r"^RANK must be a whole number, got 'x'\.$"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, r"^RANK must be from 0 and under WORLD_SIZE, got 2 and 2\.$"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, r"^RANK must be from 0 and under WORLD_SIZE, got 0 and 0\.$"),
    ({"SLURM_ARRAY_TASK_ID": "1"}, r"^SLURM_ARRAY_TASK_MIN must be a whole number, got None\.$"),
    (array(1, 0, 3) | {"SLURM_ARRAY_TASK_COUNT": "two"}, r"^SLURM_ARRAY_TASK_COUNT must be a whole number, got 'two'"),
    (
        array(5, 1, 5) | {"SLURM_ARRAY_TASK_COUNT": "3"},
        r"^The ids of a job array must .*, got id 5 in 3 from 1 to 5 by",
    ),
    (array(2, 1, 5, 2), r"^The ids of a job array must .*, as with --array=0-3, got id 2 in 3 from 1 to 5 by 2\.$"),
    (array(1, 0, 3) | {"SLURM_ARRAY_TASK_STEP": "0"}, r"^The ids of a job array must"),
    (srun(4, 4), r"^SLURM_PROCID must be from 0 and under SLURM_NTASKS, got 4 and 4\.$"),
]


@pytest.mark.parametrize(("environ", "message"), BAD_ENVIRONMENTS, ids=[m[1:30] for _, m in BAD_ENVIRONMENTS])
def test_unfit_environment_is_one_sentence(environ, message):
    with pytest.raises(ValueError, match=message):
        Part.from_environment(environ)


def test_parts_share_all_names_between_them():
    names = list("abcdefghijk")
    shares = [Part(k, 4).own(names) for k in range(4)]
    assert sorted(name for share in shares for name in share) == names
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert Part().own(names) == names
    assert Part(2, 3).own(["a", "b"]) == []
    assert str(Part(0, 4)) == "Part 1 of 4"
    with pytest.raises(ValueError, match=r"^A part must have an index from 0 and under the count, got 2 of 2\.$"):
        Part(2, 2)


def test_key_tells_calls_and_files_apart(tmp_path):
    file = tmp_path / "a"
    file.write_text("x")
    key = key_of({"seed": 0}, [file])
    assert key_of({"seed": 0}, [file]) == key
    assert key_of({"seed": 1}, [file]) != key
    assert key_of({"seed": 0}, []) != key
    os.utime(file, ns=(0, 5))
    assert key_of({"seed": 0}, [file]) != key


# Folders of 2D masks, which all commands take: five cases, three of them with a clean label.

NOISE = {"num_steps": 3, "expansion_prob": 0.8, "march_prob": 0.6}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in NOISE.items()]
COMMANDS = ["simulate", "audit", "correct"]


@pytest.fixture
def folders(tmp_path):
    for name in ("labels", "clean", "predictions"):
        (tmp_path / name).mkdir()
    y, x = np.mgrid[:40, :36]
    for k in range(5):
        phi = np.hypot(y - 20, x - 18) - 7 - k
        image = nib.Nifti1Image((phi <= 3).astype(np.uint8)[..., None], np.diag([0.8, 0.8, 2, 1]))
        nib.save(image, tmp_path / "labels" / f"c{k}.nii.gz")
        if k < 3:
            clean = nib.Nifti1Image((phi <= 0).astype(np.uint8)[..., None], image.affine)
            nib.save(clean, tmp_path / "clean" / f"c{k}.nii.gz")
        np.savez(tmp_path / "predictions" / f"c{k}.npz", logits=(3 - phi).T[None, None].astype(np.float32))
    return tmp_path


def arguments(command, folders, out="out"):
    if command == "simulate":
        return ["simulate", str(folders / "labels"), str(folders / out), *OPTIONS]
    given = [command, "--labels", str(folders / "labels"), "--clean", str(folders / "clean")]
    given += ["--predictions", str(folders / "predictions")] if command == "correct" else []
    return [*given, "--no-report", "--out", str(folders / out)]


def run(monkeypatch, index, count, *given):
    monkeypatch.setenv("RANK", str(index))
    monkeypatch.setenv("WORLD_SIZE", str(count))
    return main(list(map(str, given)))


def listing(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("command", COMMANDS)
def test_parts_one_after_the_other_write_what_one_process_writes(folders, monkeypatch, capsys, command, count):
    assert main(arguments(command, folders, "one")) == 0
    whole = capsys.readouterr().out
    for k in reversed(range(count)):
        assert not (folders / "out" / "manifest.jsonl").exists()
        assert not (folders / "out" / "audit.json").exists()
        assert run(monkeypatch, k, count, *arguments(command, folders)) == 0
        told, noted = capsys.readouterr()
        if k:
            assert noted.strip() + "\n" == f"Part {k + 1} of {count} is done; the last one to end writes the result.\n"
        else:
            assert told.split("\n")[:-2] == whole.replace(str(folders / "one"), str(folders / "out")).split("\n")[:-2]
    assert contents(folders / "out") == contents(folders / "one")
    assert listing(folders) == ["clean", "labels", "one", "out", "predictions"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_parts_at_once_write_what_one_process_writes(folders, command):
    assert main(arguments(command, folders, "one")) == 0
    given = ["-m", "monai_sc", *arguments(command, folders)]
    processes = [Forked(given, env={**os.environ, "RANK": str(k), "WORLD_SIZE": "3"}) for k in range(3)]
    told = [process.communicate(200) for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, told
    assert sum("is done; the last one to end writes the result." in noted for _, noted in told) == 2
    assert contents(folders / "out") == contents(folders / "one")
    assert listing(folders) == ["clean", "labels", "one", "out", "predictions"]


# The last of two parts is killed before the first thing that it does to a file of its result, the second, and so on.
KILL = """
import os, signal, sys
from pathlib import Path
from monai_sc.__main__ import main

def run(index, base, kill_at=0):
    left = [kill_at]
    def hook(event, args):
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(base) in str(args[0]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        os.environ.update(RANK=str(index), WORLD_SIZE="2")
        sys.addaudithook(hook)
        os._exit(main([str(base / "out") if a == "OUT" else a for a in sys.argv[2:]]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for kill_at in range(1, 1000, 5):
    base = Path(sys.argv[1]) / f"{kill_at:03d}"
    assert run(1, base) == 0
    killed = run(0, base, kill_at)
    if killed == 0:
        break
    assert killed == -signal.SIGKILL, killed
    again = run(0, base)
    assert again == 0 or (again == 2 and (base / "out" / "report.json").exists()), again
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_part_that_was_killed_goes_on_with_the_same_call(folders, command):
    assert main(arguments(command, folders, "one")) == 0
    given = ["OUT" if a == str(folders / "out") else a for a in arguments(command, folders)]
    run_forked(["-c", KILL, folders / "killed", *given, "--quiet"]).check_returncode()
    bases = sorted((folders / "killed").iterdir())
    assert len(bases) > 3
    for base in bases:
        found = contents(base / "out")
        if command == "audit":  # a part that is killed while it clears up leaves rows that the next audit deletes
            found = {name: content for name, content in found.items() if not name.startswith(".audit.")}
        assert found == contents(folders / "one"), base


def call(command, folders, part, out="out"):
    """Call the function of a command, and return whether it has the result."""
    labels, target = folders / "labels", folders / out
    if command == "simulate":
        return bool(simulate_folder(labels, target, NoiseChoice(NOISE).make, progress=False, part=part))
    if command == "correct":
        given = labels, folders / "clean", target
        return bool(correct_folder(*given, predictions=folders / "predictions", progress=False, part=part))
    result = audit_folder(labels, folders / "clean", progress=False, part=part, out=target)
    if result:
        write_audit(result, labels, folders / "clean", target)
    return bool(result)


@pytest.mark.parametrize("finish", [[Part()], [Part(1, 2), Part(0, 2)]], ids=["one", "two"])
@pytest.mark.parametrize("command", COMMANDS)
def test_another_number_of_parts_finishes(folders, monkeypatch, command, finish):
    assert call(command, folders, None, "one")
    assert not call(command, folders, Part(1, 3))
    with monkeypatch.context() as patch:  # what is done is not done again
        for module in (simulated_case, correct_module):
            patch.setattr(module, "write_values_like", refusing(["c1.nii.gz", "c4.nii.gz"], module.write_values_like))
        assert [call(command, folders, part) for part in finish] == [False] * (len(finish) - 1) + [True]
    assert contents(folders / "out") == contents(folders / "one")
    assert listing(folders) == ["clean", "labels", "one", "out", "predictions"]


def refusing(names, write):
    """Return a function that writes labels, but not those that are already there."""

    def checked(values, path, source, **options):
        assert source.name not in names
        write(values, path, source, **options)

    return checked


@pytest.mark.parametrize("command", ["audit", "correct"])
def test_what_is_left_of_another_call_is_not_merged(folders, command):
    assert not call(command, folders, Part(0, 2))
    file = folders / "labels" / "c0.nii.gz"
    image = nib.load(file)
    values = np.asarray(image.dataobj).copy()
    values[:20] = 0
    nib.save(nib.Nifti1Image(values, image.affine), file)  # so the first part would find something else now
    assert not call(command, folders, Part(1, 2))
    assert call(command, folders, Part(0, 2))
    assert call(command, folders, None, "one")
    assert contents(folders / "out") == contents(folders / "one")


def test_parts_of_another_simulation_are_refused(folders):
    assert not call("simulate", folders, Part(0, 2))
    other = NoiseChoice({**NOISE, "num_steps": 4}).make
    with pytest.raises(ValueError, match=r"with noise\.parameters\.num_steps 3, but 4 was asked for"):
        simulate_folder(folders / "labels", folders / "out", other, progress=False, part=Part(1, 2))
    assert call("simulate", folders, Part(1, 2))


def test_calibration_is_done_by_one_part(folders):
    choice = NoiseChoice({"expansion_prob": 0.8, "march_prob": 0.6}, target_dice=0.9)
    calls = []

    def calibrate(clean, spacings):
        calls.append(len(clean))
        return {"num_steps": 2}

    options = {"description": choice.description(), "calibrate": calibrate, "progress": False}
    for k in range(3):
        simulate_folder(folders / "labels", folders / "out", choice.make, part=Part(k, 3), **options)
    assert calls == [5]
    assert json.loads((folders / "out" / "simulation.json").read_text())["calibration"]["num_steps"] == 2


# Another process that does a part, as far as its lock tells: byte 0 is for all, the others are one for each part.
HOLD = """
import fcntl, os, sys

os.makedirs(sys.argv[1], exist_ok=True)
descriptor = os.open(os.path.join(sys.argv[1], "lock"), os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 1 + int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold():
    processes = []

    def holding(folder, index):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield holding
    for process in processes:
        process.kill()
        process.communicate()


def test_one_part_is_done_by_one_process_at_a_time(folders, hold):
    out = folders / "out"
    other = hold(out / ".simulation.partial", 1)
    for part in (Part(1, 2), Part()):
        with pytest.raises(ValueError, match=r"^Another run writes into .*out right now; wait for it\.$"):
            call("simulate", folders, part)
    assert not call("simulate", folders, Part(0, 2))
    other.communicate()
    assert call("simulate", folders, Part(1, 2))


def test_last_part_to_end_merges(folders, hold):
    """With all rows there, a part leaves the result to one that is still at work; that one is the last."""
    folder = folders / "exchange"
    exchange = Exchange(folder, Part(0, 2), folder)
    with exchange.claimed():
        with exchange.noting() as note:
            note({"case": "a"})
        other = hold(folder, 1)
        with exchange.gathered(["a"]) as rows:
            assert rows == []
    other.communicate()
    with exchange.claimed(), exchange.gathered(["a"]) as rows:
        assert rows == [{"case": "a"}]
        exchange.merged()
    assert not folder.exists()


def test_disk_without_locks_is_good_enough(folders, monkeypatch):
    import fcntl

    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert call("simulate", folders, None, "one")
    monkeypatch.setattr(fcntl, "lockf", fail)
    monkeypatch.setattr(fcntl, "flock", fail)
    assert [call("simulate", folders, Part(k, 2)) for k in range(2)] == [False, True]
    assert contents(folders / "out") == contents(folders / "one")


def test_torn_line_is_not_a_row_and_a_damaged_list_is_named(tmp_path):
    exchange = Exchange(tmp_path / "x", Part(0, 2), tmp_path)
    with exchange.claimed():
        with exchange.noting() as note:
            note({"case": "a"})
        (log,) = exchange.logs()
        log.write_bytes(log.read_bytes() + b'{"case": "b"')
        assert list(exchange.rows()) == ["a"]
        with exchange.noting() as note:
            note({"case": "c"})
        assert list(exchange.rows()) == ["a", "c"]
        log.write_text("[]\n")
        with pytest.raises(ValueError, match=r"rows\.1-of-2\.jsonl is damaged; delete it, and what it lists is done"):
            exchange.rows()
        log.unlink()


def test_mistake_before_the_first_file_does_not_bind_the_parts(folders):
    (folders / "labels" / "c0.nii.gz").write_bytes(b"nonsense")
    for part in (Part(0, 2), Part(0, 3)):
        with pytest.raises(RuntimeError, match=r"c0\.nii\.gz cannot be simulated"):
            call("simulate", folders, part)
    assert not (folders / "out").exists()


def test_part_that_fails_leaves_the_work_of_the_others(folders, monkeypatch, capsys):
    assert call("correct", folders, None, "one")
    assert not call("correct", folders, Part(0, 2))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(correct_module, "write_values_like", full)
        assert run(patch, 1, 2, *arguments("correct", folders)) == 1
    told = capsys.readouterr().err
    assert told == f"Error: {folders / 'out' / 'c1.nii.gz'} could not be written: No space left on device.\n"
    assert not (folders / "out").exists()
    written = refusing(["c0.nii.gz", "c2.nii.gz", "c4.nii.gz"], correct_module.write_values_like)
    monkeypatch.setattr(correct_module, "write_values_like", written)
    assert call("correct", folders, Part(1, 2))
    assert contents(folders / "out") == contents(folders / "one")


def test_full_disk_names_the_file_and_leaves_nothing(folders, monkeypatch, capsys):
    fsync, calls = os.fsync, []

    def full_later(descriptor):
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_later)
    failing = 0
    assert main(arguments("correct", folders, "counted")) == 0
    capsys.readouterr()
    told = []
    for failing in range(1, len(calls)):  # noqa: B007 # the last is of the folder, when all is there
        calls.clear()
        assert main(arguments("correct", folders)) == 1
        told.append(capsys.readouterr().err)
        assert listing(folders) == ["clean", "counted", "labels", "predictions"]
    names = [f"c{k}.nii.gz" for k in range(5)]
    expected = [name for name in names for _ in range(2)] + ["manifest.jsonl", "report.json"]
    for message, name in zip(told, expected, strict=True):
        (line,) = [line for line in message.splitlines() if line.startswith("Error: ")]  # among the progress bars
        assert line.endswith(f"{name} could not be written: No space left on device.")


def test_audit_in_parts_needs_a_folder(folders, monkeypatch, capsys):
    assert run(monkeypatch, 0, 2, *arguments("audit", folders)[:-2]) == 2
    assert capsys.readouterr().err.startswith("Error: --out must be given to several processes, which exchange")
    with pytest.raises(ValueError, match=r"^out must be given for one of several parts, which exchange through it"):
        audit_folder(folders / "labels", folders / "clean", part=Part(0, 2), progress=False)


def test_unfit_environment_is_refused(folders, monkeypatch, capsys):
    for command in COMMANDS:
        assert run(monkeypatch, 2, 2, *arguments(command, folders)) == 2
        assert capsys.readouterr().err == "Error: RANK must be from 0 and under WORLD_SIZE, got 2 and 2.\n"
    assert listing(folders) == ["clean", "labels", "predictions"]


def test_json_is_printed_by_the_last_part_alone(folders, monkeypatch, capsys):
    for command in COMMANDS:
        for k in range(2):
            assert run(monkeypatch, k, 2, *arguments(command, folders, command), "--json") == 0
            told = capsys.readouterr().out
            assert told == "" if k == 0 else json.loads(told)


def test_pictures_and_empty_labels_are_audited_in_parts(tmp_path):
    for name in ("labels", "clean"):
        (tmp_path / name).mkdir()
    square = np.zeros((20, 20), np.uint8)
    square[5:12, 5:12] = 2
    for k in range(4):
        Image.fromarray(square if k else square * 0).save(tmp_path / "labels" / f"p{k}.png")
        Image.fromarray(square * (k < 3) * (k > 0)).save(tmp_path / "clean" / f"p{k}.png")
    whole = audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)
    given = {"progress": False, "out": tmp_path / "out"}
    first, second = (audit_folder(tmp_path / "labels", tmp_path / "clean", part=Part(k, 2), **given) for k in range(2))
    assert first == {}
    np.testing.assert_equal(second, whole)
    assert whole["classes"]["2"]["spurious"] == [1, 2]
