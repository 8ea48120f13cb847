"""Would the tests notice? ``make mutants`` changes the code in one small place at a time, and runs tests on it.

The changes are those of mutmut, whose runner cannot be used here: numba cannot compile what it wraps functions in, and
to import PyTorch and MONAI anew for every change would take days. Here they are imported once; each changed source, a
mutant, is tried in a fork, which runs in a copy of the repository a minute of the tests of the same subpackage: first
those that execute the changed lines, then those that execute others of the file, the quickest ones first. Times are
those of the processor, so that they are the same on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import math
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import coverage
import pytest
import tomllib
from changes import sample_changes

import monai_sc

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
BUILD = ROOT / "build" / "mutants"  # which test executes which lines, for as long as neither changes
QUICK = 0.05  # seconds of a test that may look at a file, such as at its signatures, although it executes no line of it


def used_seconds() -> float:
    """Return the seconds that this process and those that it has waited for have used the processor."""
    others = os.times()
    return time.process_time() + others.children_user + others.children_system


class Tracer:
    """Plugin of pytest: notes for each test how long it takes and which lines of the subpackage it executes."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*"])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.coverage.switch_context(item.nodeid)
        start = used_seconds()
        result = yield
        self.seconds[item.nodeid] = used_seconds() - start
        self.coverage.switch_context("")
        return result

    def tests(self):
        """Return ``{test: [seconds, {file name: lines}]}``."""
        tests = {test: [seconds, {}] for test, seconds in self.seconds.items()}
        data = self.coverage.get_data()
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                for name in filter(None, names):
                    tests[name][1].setdefault(Path(file).name, []).append(line)
        return tests


class Chosen:
    """Plugin of pytest: runs the given tests in the given order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: k for k, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])


class Copies:
    """Copies of the repository, with one process at a time in each."""

    def __init__(self, folder: str, number: int) -> None:
        self.origin = Path(folder, "origin")  # as it is now, so that one can go on to edit
        self.free = [Path(folder, str(k)) for k in range(number)]
        self.running = {}
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
        for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
            (self.origin / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.origin / name)
        for copy in self.free:
            shutil.copytree(self.origin, copy)

    def start(self, work, done, seconds: float) -> None:
        """Fork as soon as a copy is free; ``done(copy, status)`` is called with what ``work(copy)`` returns.

        The process is killed when it has used the processor for ``seconds``, or waits for something ten times as long.
        """
        while not self.free:
            self.wait()
        copy = self.free.pop()
        process = os.fork()
        if not process:
            status = 99
            try:
                os.setpgid(0, 0)
                if math.isfinite(seconds):
                    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
                output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.chdir(copy)
                sys.dont_write_bytecode = True  # what differs within a second or two may have the same cache
                sys.path.insert(0, str(copy))
                os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
                status = int(work(copy))
            finally:
                os._exit(status)
        self.running[process] = (copy, time.monotonic() + 10 * seconds, done)

    def wait(self) -> None:
        """Wait until one process has ended; those that are too late are killed."""
        while True:
            for process, (copy, end, done) in self.running.items():
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() > end:
                    os.killpg(process, signal.SIGKILL)
                    ended, status = os.waitpid(process, 0)
                if ended:
                    with suppress(ProcessLookupError):  # what it has started and not ended
                        os.killpg(process, signal.SIGKILL)
                    del self.running[process]
                    self.free.append(copy)
                    return done(copy, os.waitstatus_to_exitcode(status))
            time.sleep(0.05)

    def finish(self) -> None:
        while self.running:
            self.wait()


def run_tests(copy, files, plugin):
    for file in files:
        if file.startswith("monai_sc/"):  # else pytest would import it a second time, behind its package
            importlib.import_module(file.removesuffix(".py").replace("/", "."))
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy}/basetemp", "-m", "not slow"]
    return pytest.main([*options, *files], plugins=[plugin])


def check_unchanged(copy, status):
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"Without a change the tests must pass:\n{(copy / 'output.txt').read_text()}")


def trace(copies, folder, files):
    """Return ``{test: [seconds, {file name: lines of the folder}]}`` of the tests in ``files``."""
    sources = b"".join(path.read_bytes() for path in sorted((copies.origin / folder).glob("*.py")))
    tests = {}

    def start(file):
        key = hashlib.sha256(sources + (copies.origin / file).read_bytes()).hexdigest()[:16]
        known = BUILD / f"{file.replace('/', '.')}-{key}.json"

        def work(copy):
            tracer = Tracer(copy / folder)
            with tracer.coverage.collect():
                status = run_tests(copy, [file], tracer)
            (copy / "traced.json").write_text(json.dumps(tracer.tests()))
            return status

        def done(copy, status):
            check_unchanged(copy, status)
            shutil.move(copy / "traced.json", known)
            tests.update(json.loads(known.read_text()))

        if known.exists():
            tests.update(json.loads(known.read_text()))
        else:
            copies.start(work, done, float("inf"))

    for file in files:
        start(file)
    copies.finish()
    return tests


def try_changes(copies, file, changes, tests, most, report):
    """Call ``report(change, outcome)`` for each of ``changes``, after tests of at most so many seconds."""
    executed = {test: lines[Path(file).name] for test, (_, lines) in tests.items() if Path(file).name in lines}
    others = {test for test, (seconds, _) in tests.items() if test in executed or seconds < QUICK}

    def start(change):
        hit = {t for t in executed if change and not set(change.span).isdisjoint(executed[t])}
        chosen, seconds = [], 0.0
        # Global lines are in none; compiled ones are only in those that execute them in Python too.
        for test in sorted(others, key=lambda test: (test not in hit, tests[test][0])):
            seconds += tests[test][0]
            if seconds < most or not chosen:
                chosen.append(test)

        def work(copy):
            if change:
                (copy / file).write_text(change.code)
            return run_tests(copy, sorted({test.split("::")[0] for test in chosen}), Chosen(chosen))

        def done(copy, status):
            shutil.copyfile(copies.origin / file, copy / file)
            if not change:
                return check_unchanged(copy, status)
            report(change, {0: "survived", 5: "survived", -signal.SIGKILL: "killed, hangs"}.get(status, "killed"))

        copies.start(work, done, 60 + 5 * min(seconds, most))  # what numba compiles it compiles anew

    start(None)
    copies.finish()
    for change in changes:
        start(change)
    copies.finish()


def import_others() -> None:
    """Import all that the package needs, but not the package."""
    for module in pkgutil.walk_packages(monai_sc.__path__, "monai_sc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in [name for name in sys.modules if name.split(".")[0] == "monai_sc"]:
        del sys.modules[name]
    gc.freeze()  # what is imported stays; to collect it in every fork again takes longer than many tests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="sources, or folders of them (default: monai_sc/functional)")
    parser.add_argument("--sample", type=int, default=25, help="mutants per file (default: 25); 0 for all")
    parser.add_argument("--seed", default="0", help="of the samples (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--tests", nargs="*", help="files of tests (default: those of the subpackage)")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each mutant (default: 60)")
    parser.add_argument("--least", type=float, default=90, help="fail below this score in percent (default: 90)")
    options = parser.parse_args()
    files = [file for name in options.files or ["monai_sc/functional"] for file in sources_of(ROOT / name)]
    explained = tomllib.loads(EXPLAINED.read_text())["mutant"]
    for entry in explained:
        if " ".join(entry["line"].split()) not in " ".join((ROOT / entry["file"]).read_text().split()):
            sys.exit(f"{entry['file']} has no more the line {entry['line']!r} of {EXPLAINED.name}.")
    BUILD.mkdir(parents=True, exist_ok=True)
    import_others()
    total = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(folder, options.jobs)
        for file in files:
            number, changes = sample_changes(copies.origin / file, options.sample, f"{options.seed} {file}")
            known = [e for e in explained if e["file"] == file]
            open_changes = [c for c in changes if not any(c.before == e["line"] and c.after in e["to"] for e in known)]
            subpackage = Path(file).parent
            beside = copies.origin / "tests" / Path(*subpackage.parts[1:])
            paths = [*(copies.origin / subpackage).glob("*.py"), *beside.glob("test_*.py")]
            tests = options.tests or sorted(str(path.relative_to(copies.origin)) for path in paths)
            count = dict.fromkeys(("mutants", "tried", "explained", "killed", "survived"), 0)
            count |= {"mutants": number, "tried": len(changes), "explained": len(changes) - len(open_changes)}

            def report(change, outcome, file=file, count=count):
                count[outcome.split(",")[0]] += 1
                if outcome != "killed":
                    print(f"{file}:{change.span.start} {outcome}\n  - {change.before}\n  + {change.after}", flush=True)

            if open_changes:
                traced = trace(copies, str(subpackage), tests)
                try_changes(copies, file, open_changes, traced, options.seconds, report)
            print_score(file, count)
            total = {key: total.get(key, 0) + count[key] for key in count}
    sys.exit(print_score("all", total) < options.least)


def sources_of(path):
    found = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return [str(file.relative_to(ROOT)) for file in found]


def print_score(name, count):
    score = 100 * count["killed"] / max(count["killed"] + count["survived"], 1)
    print(f"{name}: {score:.0f} %;", ", ".join(f"{number} {what}" for what, number in count.items()), flush=True)
    return score


if __name__ == "__main__":
    main()
