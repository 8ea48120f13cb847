"""A script that runs a Python module as ``python -m`` does, and ends with the process that started it.

It runs by its path, without the package around it, whose import takes seconds.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with_starter(pipe: int) -> None:
    """Kill this process and its children, once nobody holds the other end of a pipe any more."""
    while os.read(pipe, 1):
        pass
    if hasattr(os, "killpg"):  # not on every system
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    pipe = os.dup(sys.stdin.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    threading.Thread(target=end_with_starter, args=(pipe,), daemon=True).start()
    sys.path[0] = os.getcwd()  # as with ``python -m``
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
