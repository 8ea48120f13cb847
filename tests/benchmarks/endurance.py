"""Hours of relabelling with kills, damaged files and full disks: is anything lost, does the memory grow?

    python tests/benchmarks/endurance.py --minutes 60 --out DIR [--seed 0]

For a sixth of the time one process trains and relabels without end, and its memory is measured. Then small runs in 2D
and 3D are started again and again, each time with a fault that a seeded generator draws. What is left is looked at
after each, and what a run ends with must be, bit for bit, what one without faults ends with. DIR is a new folder. Full
disks need ``mount``, and with it root; without, only disks that fail are tried. The exit status is 1 if anything is
wrong.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Events

sys.path.extend([str(Path(__file__).parent), str(Path(__file__).parents[1] / "handlers" / "scripts")])
import scale
from kills import checksums, child, problems_of
from small_run import CLASSES, build, digest, write_cases

from monai_sc.handlers import ResumeHandler
from monai_sc.store import LabelStore, usable_cases

KINDS = {"2D": {"number": 20, "shape": (48, 48)}, "3D": {"number": 8, "shape": (32, 32, 24)}}
FAULTS = {
    "none": 3,
    "killed at a time": 6,
    "killed at an operation": 6,
    "damaged input": 2,
    "input damaged meanwhile": 2,
    "damaged checkpoint": 2,
    "damaged round": 3,
    "failing disk": 2,
    "full disk": 4,
}  # how often each is drawn
DISK = 4 << 20  # bytes, of which a run needs a quarter
MARGIN = 16  # MB by which memory may differ from one quarter to another


class Run:
    """A small run that is started again after each fault, until it has ended; then the next one begins.

    Args:
        folder: of the data, the run and the one without faults.
        kind: of the cases.
        draw: the generator of all faults.
    """

    def __init__(self, folder: Path, kind: str, draw: random.Random):
        self.kind, self.draw, options = kind, draw, KINDS[kind]
        self.data, self.out, self.told = folder / f"data-{kind}", folder / kind, folder / f"{kind}.told.json"
        self.cases = write_cases(self.data, options["number"], [4.0], "case", options["shape"])
        self.clean = write_cases(self.data, 5, [0.0], "clean", options["shape"])
        self.originals = checksums(self.data)
        whole, counted, begin = folder / f"whole-{kind}", folder / "operations.txt", time.monotonic()
        assert child(partial(self.make, whole), whole, counted=counted) == 0
        self.seconds, self.operations = time.monotonic() - begin, int(counted.read_text())
        self.expected = json.loads((folder / f"whole-{kind}.json").read_text())
        self.out.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.out)]
        self.is_small = subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode == 0
        self.kept = 0  # rounds, by the checkpoint
        self.is_running = False  # which it is in another process only

    def make(self, out: Path):
        """Return what a run consists of, as a user would: files are checked before anything is written."""
        clean = usable_cases(self.clean, progress=False)
        usable_cases(self.cases, clean=clean, progress=False)
        trainer, handler, store = build(self.data, out, rounds=3, **KINDS[self.kind])
        trainer.add_event_handler(Events.STARTED, lambda: setattr(self, "is_running", True))
        return trainer, handler, store

    def cycle(self, fault: str) -> tuple[str, list[str]]:
        """Start the run once with a fault; return what became of it, and what is wrong."""
        before, options = self.hidden_files(), {}
        damaged = self.file_for(fault)
        if damaged is None and "damaged" in fault:
            return "there was no such file yet", []
        # What is left of a run is mostly less than half of it.
        if fault == "killed at a time":
            options = {"seconds": self.draw.uniform(0, self.seconds / 2)}
        elif fault in ("killed at an operation", "input damaged meanwhile", "failing disk"):
            options = {"operation": self.draw.randint(1, self.operations // 2)}
        if damaged is not None:
            content, state = damaged.read_bytes(), damaged.stat()
            # Only at the start are labels read to the checksum at their end.
            has_checksum = damaged.suffix == ".pt" or (damaged.suffix == ".gz" and "image" not in damaged.name)
            bad = self.damage(content, has_checksum and fault != "input damaged meanwhile")
            if fault == "input damaged meanwhile":
                # Between the check of the files and the run a data set of MONAI loads them, which names none.
                options["act"] = lambda *_: self.is_running and damaged.write_bytes(bad)
            else:
                damaged.write_bytes(bad)
        elif fault == "failing disk":
            options["act"] = fail
        elif fault == "full disk":
            fill(self.out / "ballast", self.draw.randrange(200_000))
        self.told.unlink(missing_ok=True)
        status = child(partial(self.make, self.out), self.out, told=self.told, **options)
        (self.out / "ballast").unlink(missing_ok=True)
        if damaged is not None and damaged.is_file() and damaged.read_bytes() == bad:
            damaged.write_bytes(content)
            os.utime(damaged, ns=(state.st_atime_ns, state.st_mtime_ns))
        problems = self.problems()
        if status > 0:
            problems += [f"{file} is left" for file in self.hidden_files() - before]
            outcome, wrong = self.refusal(damaged or self.out)
            return outcome, problems + wrong
        if status < 0:
            return "killed", problems if fault.startswith("killed") else [*problems, f"it ended by signal {-status}"]
        if damaged is not None:  # the result tells its checksum
            return "went on, unharmed", problems
        result = json.loads(self.out.with_name(f"{self.kind}.json").read_text())
        problems += [f"{key} is not as without faults" for key in result if result[key] != self.expected[key]]
        problems += [f"{file} is left" for file in self.hidden_files()]
        subprocess.run(["find", str(self.out), "-mindepth", "1", "-delete"], check=True)
        self.kept = 0
        return "ended otherwise than without faults" if problems else "ended, as without faults", problems

    def file_for(self, fault: str) -> Path | None:
        """Return the file to damage: of what there is already, if it is to be one of the run."""
        checkpoint, labels = self.out / "checkpoint.pt", self.out / "labels"
        files = []
        if fault == "damaged round":
            files = [labels / "store.json", labels / "current.json"]
            for last in sorted(labels.glob("round-*"))[-1:]:
                files += [last / "round.json", last / "manifest.jsonl", *self.draw.sample(sorted(last.glob("*/*")), 2)]
        elif fault == "damaged checkpoint":
            files = [checkpoint]
        elif "input" in fault:
            case = self.draw.choice(self.cases + self.clean)
            files = list(map(Path, case["image"] + case["label"]))
        files = [file for file in files if file.is_file()]
        return self.draw.choice(files) if files else None

    def damage(self, content: bytes, flip: bool) -> bytes:
        """Return the content truncated or empty, or perhaps with one bit flipped."""
        middle = self.draw.randrange(len(content) // 4, 3 * len(content) // 4)
        how = self.draw.choice(["truncated", "empty", "flipped" if flip else "truncated"])
        if how == "flipped":
            return content[:middle] + bytes([content[middle] ^ 1 << self.draw.randrange(8)]) + content[middle + 1 :]
        return b"" if how == "empty" else content[:middle]

    def hidden_files(self) -> set[str]:
        """Return the temporary files of the run."""
        files = {str(file) for file in self.out.rglob("*") if "/." in str(file.relative_to(self.out.parent))}
        return files - {str(self.out / "labels" / ".lock")}

    def problems(self) -> list[str]:
        """Return what is wrong with what the run has left, when nothing of it is damaged."""
        problems = problems_of(self.out, self.cases, self.originals, self.data)
        rounds: list[int] = []
        if (self.out / "labels").is_dir():
            store = LabelStore(self.out / "labels", self.cases, class_names=CLASSES, config_version="1.2.3")
            rounds = store.rounds[1:]
            for number in rounds:
                labels = {
                    f"{number}/{case['id']}": [digest(Path(file).read_bytes()) for file in case["label"]]
                    for case in store.datalist(number)
                }
                same = labels.items() <= self.expected["labels"].items()
                if not same or store.manifest(number) != self.expected["manifests"].get(str(number)):
                    problems.append(f"round {number} is not that of the run without faults")
                problems += [f"{file} has changed" for file in store.changed_labels(number)]
        checkpoint, kept = self.out / "checkpoint.pt", 0
        if checkpoint.is_file():
            history = torch.load(checkpoint, weights_only=True)["correction"]["history"]
            kept = sum(not record["stop_reason"] for record in history)
        if kept < self.kept or not set(range(1, kept + 1)) <= set(rounds):
            problems.append(f"rounds are lost: {rounds}, the checkpoint has made {kept}, and {self.kept} before")
        self.kept = kept
        return problems

    def refusal(self, file: Path) -> tuple[str, list[str]]:
        """Return how the run has refused a file, and what is wrong with what it said."""
        said = json.loads(self.told.read_text())
        sentences = [one for one in said if str(file) in one]
        if not sentences or "\n" in sentences[0] or not sentences[0].endswith("."):
            return "refused, badly", [f"no sentence names {file}: {said}"]
        return "refused by one sentence" + (" behind one of MONAI" if sentences[0] != said[0] else ""), []


def fail(event: str, arguments: tuple) -> None:
    """Let an operation fail that writes, as on a full disk."""
    if event in ("os.mkdir", "os.rename") or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(ballast: Path, left: int) -> None:
    """Fill a disk, but for some bytes."""
    state = os.statvfs(ballast.parent)
    ballast.write_bytes(bytes(max(state.f_bavail * state.f_bsize - left, 0)))


def train(folder: Path, seconds: float) -> None:
    """Train and relabel in this process for some time, and note its memory after each epoch."""
    trainer, handler, store = scale.build(folder, 16, epochs=5, rounds=10**6)
    parts = {"model": trainer.network, "optimizer": trainer.optimizer, "trainer": trainer, "correction": handler}
    ResumeHandler(folder / "checkpoint.pt", parts).attach(trainer)
    end, memories = time.monotonic() + seconds, []

    def note(engine):
        memories.append(scale.memory())
        if time.monotonic() > end:
            engine.terminate()

    trainer.add_event_handler(Events.EPOCH_COMPLETED, note)
    trainer.run()
    (folder / "memory.json").write_text(json.dumps({"memories": memories, "rounds": len(store.rounds) - 1}))


def growth(name: str, memories: list[int]) -> list[str]:
    """Print the memory of the first and the last quarter; return what is wrong with it."""
    quarter = max(len(memories) // 4, 1)
    first, last = (float(np.median(part)) for part in (memories[:quarter], memories[-quarter:]))
    print(f"{name}: median {first:.0f} MB in the first quarter, {last:.0f} MB in the last, at most {max(memories)} MB")
    return [f"{name} has grown by {last - first:.0f} MB"] if last - first > MARGIN else []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)  # seconds, of the process that is measured
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    folder = options.out.absolute()
    folder.mkdir(parents=True)
    if options.train:
        train(folder, options.train)
        return 0
    end = time.monotonic() + 60 * options.minutes
    training = [sys.executable, __file__, "--out", str(folder / "long"), "--train", str(10 * options.minutes)]
    subprocess.run(training, check=True)
    draw, counts, violations, memories, runs = random.Random(options.seed), Counter(), [], [], []
    try:
        for kind in KINDS:
            runs.append(Run(folder, kind, draw))
        while not memories or time.monotonic() < end:
            run = draw.choice(runs)
            chances = {fault: number for fault, number in FAULTS.items() if fault != "full disk" or run.is_small}
            fault = draw.choices(list(chances), list(chances.values()))[0]
            outcome, problems = run.cycle(fault)
            memories.append(scale.memory())
            counts[fault, outcome] += 1
            violations += [f"cycle {len(memories)}, {run.kind}, {fault}: {problem}" for problem in problems]
            print(f"cycle {len(memories)}, {run.kind}, {fault}: {outcome}", *problems, sep="\n  ", flush=True)
    finally:
        for run in runs:
            if run.is_small:
                subprocess.run(["umount", str(run.out)], check=True)
    print("\n| fault | outcome | cycles |\n|---|---|---|")
    for (fault, outcome), number in sorted(counts.items()):
        print(f"| {fault} | {outcome} | {number} |")
    long = json.loads((folder / "long" / "memory.json").read_text())
    print(f"\n{len(memories)} cycles; one process made {len(long['memories'])} epochs and {long['rounds']} rounds.")
    violations += growth("The process that trains", long["memories"])
    violations += growth("The process that starts others", memories)
    print(f"{len(violations)} violations", *violations, sep="\n  ")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
