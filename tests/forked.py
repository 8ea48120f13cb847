"""Processes that are forked from one that has imported PyTorch and MONAI, which a new Python takes seconds for.

That a command works in a new Python is told by the tests of ``tests/commands``, and those that start torchrun.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("monai.bundle", "monai_sc.benchmark.ablations", "monai_sc.handlers", "monai_sc.reports", __name__),
        "pytest",  # which each process would import as the module that is run, where there is no pytest-xdist
        "torch._dynamo",  # which the first optimizer imports
    ]
)


class Forked:
    """A process that does what ``python`` does with some arguments, as far as ``subprocess.Popen`` has its methods.

    Args:
        arguments: ``-m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``.
        cwd: its folder.
        env: its environment; by default that of this process.
        log: an open file for both of its outputs, which ``communicate`` returns else.
    """

    stdin = None

    def __init__(self, arguments, *, cwd=".", env=None, log=None):
        # The files last as long as the process.
        self._outputs = [tempfile.NamedTemporaryFile() if log is None else log for _ in range(2)]  # noqa: SIM115
        given = list(map(str, arguments)), os.path.abspath(cwd), dict(os.environ if env is None else env)
        self._process = CONTEXT.Process(target=_become, args=(*given, *(file.name for file in self._outputs)))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python", timeout)
        return self.returncode

    def communicate(self, timeout=None):
        """Return standard output and standard error."""
        self.wait(timeout)
        return tuple(Path(file.name).read_text(encoding="utf-8") for file in self._outputs)

    def kill(self):
        self._process.kill()


def run_forked(arguments, *, cwd=".", env=None, timeout=280):
    """Return the process, which has ended, with ``stdout`` and ``stderr`` as ``subprocess.run`` has them."""
    process = Forked(arguments, cwd=cwd, env=env)
    try:
        output = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, *output)


def run_ranks(arguments, count, *, cwd=".", env=None, timeout=280):
    """Return the processes of a training, which have ended; ``torchrun`` would start a new Python for each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    common = {**(os.environ if env is None else env), **address}
    ranks = [
        Forked(arguments, cwd=cwd, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)
    ]
    try:
        outputs = [rank.communicate(timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        subprocess.CompletedProcess(arguments, rank.returncode, *output)
        for rank, output in zip(ranks, outputs, strict=True)
    ]


def ended_well(done):
    """Tell whether a process of a training did all; PyTorch 2.13 with gloo now and then aborts one that then ends."""
    return done.returncode == 0 or "terminate called without an active exception" in done.stderr


def _become(arguments, folder, environment, *outputs):
    """Do what a new Python would."""
    gc.freeze()  # as in conftest.py
    multiprocessing.set_start_method(None, force=True)  # else workers would have a server that outlives this process
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, file in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    how, rest = arguments[0], arguments[1:]
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(how).parent))
        runpy.run_path(how, run_name="__main__")
