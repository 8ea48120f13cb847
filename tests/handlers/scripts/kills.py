"""Kill a small run at seeded random moments, look at what it left behind, and let it go on.

    python kills.py FOLDER KILLS SEED [--workers N]

prints a summary as JSON; the exit status is 0 if every run ended as the one that was not killed. Processes are forked,
so that the packages are imported once. Every second kill comes just before an operation on a file of the run, the
others at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
from small_run import CLASSES, build, digest, result_of

from monai_sc.store import LabelStore

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}


def checksums(folder):
    return {str(file): digest(file.read_bytes()) for file in sorted(folder.rglob("*")) if file.is_file()}


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def child(make, out, *, act=kill, operation=None, seconds=None, counted=None, told=None):
    """Run in a process of its own; return whether it ended, as the exit status of that process.

    Args:
        make: returns the trainer, the handler and the store.
        out: folder of the run.
        act: called with each audit event of an operation on a file of the run, from one of them on.
        operation: number of that one.
        seconds: after which the process dies.
        counted: file for the number of operations.
        told: file for what is wrong, a list of what the errors say, instead of standard error.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        seen = 0

        def watch(event, arguments):
            nonlocal seen
            if event in OPERATIONS and f"{out}/" in f"{arguments[0]}/":
                seen += 1
                if operation is not None and seen >= operation:
                    act(event, arguments)

        sys.addaudithook(watch)
        if seconds is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process at once, as SIGKILL does
            signal.setitimer(signal.ITIMER_REAL, seconds)
        trainer, handler, store = make()
        trainer.run()
        signal.setitimer(signal.ITIMER_REAL, 0)
        operations = seen
        (out.parent / f"{out.name}.json").write_text(json.dumps(result_of(trainer, handler, store)))
        if counted is not None:
            counted.write_text(str(operations))
        status = 0
    except BaseException as error:
        if told is None:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            causes = [error]
            while cause := causes[-1].__cause__ or causes[-1].__context__:
                causes.append(cause)
            told.write_text(json.dumps([str(one) for one in causes]))
    finally:
        os._exit(status)


def problems_of(out, cases, originals, data):
    """Return what is wrong with what a killed run left: half-written labels that can be seen, or originals touched."""
    problems = []
    if checksums(data) != originals:
        problems.append("originals have changed")
    if not (out / "labels").is_dir():
        return problems
    try:
        store = LabelStore(out / "labels", cases, class_names=CLASSES, config_version="1.2.3")
        for folder in (out / "labels").glob("round-*"):
            number = int(folder.name.removeprefix("round-"))
            if number not in store.rounds or len(store.manifest(number)) != len(cases):
                problems.append(f"{folder.name} is visible, but not complete")
        for number in store.rounds:
            for case in cases:
                store.read(case["id"], number)
        store.datalist()
    except Exception as error:
        problems.append(f"{type(error).__name__}: {error}")
    checkpoint = out / "checkpoint.pt"
    if checkpoint.is_file():
        try:
            torch.load(checkpoint, weights_only=True)
        except Exception as error:
            problems.append(f"checkpoint: {error}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    draw = random.Random(options.seed)
    data, whole = options.folder / "data", options.folder / "whole"
    whole.mkdir(parents=True)
    counted = options.folder / "operations.txt"
    begin = time.monotonic()
    assert child(partial(build, data, whole, workers=options.workers), whole, counted=counted) == 0
    duration, operations = time.monotonic() - begin, int(counted.read_text())
    expected = json.loads((options.folder / "whole.json").read_text())
    cases = [
        {"id": f"case{k}", **{kind: [str(data / f"case{k}_{c}_{kind}.nii.gz") for c in ("large", "small")]
                              for kind in ("image", "label")}}
        for k in range(8)
    ]  # fmt: skip
    originals = checksums(data)
    killed, runs, failures = 0, 0, []
    out = options.folder / "killed"
    make = partial(build, data, out, workers=options.workers)
    while killed < options.kills:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        runs += 1
        moments = []
        status = -1
        for _ in range(draw.randint(1, 3)):
            if killed % 2:
                moment = {"operation": draw.randint(1, operations)}
            else:
                moment = {"seconds": draw.uniform(0.0, duration)}
            status = child(make, out, **moment)
            if status >= 0:  # it ended before
                break
            moments.append(moment)
            killed += 1
            failures += [(moments, problem) for problem in problems_of(out, cases, originals, data)]
        if status != 0 and child(make, out) != 0:
            failures.append((moments, "the run does not go on"))
            continue
        result = json.loads((options.folder / "killed.json").read_text())
        different = [key for key in expected if result[key] != expected[key]]
        if different:
            failures.append((moments, f"the result differs in {different}"))
    summary = {"kills": killed, "runs": runs, "rounds": expected["rounds"], "operations": operations,
               "seconds": round(duration, 2), "failures": failures}  # fmt: skip
    print(json.dumps(summary))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
