"""The command line, ``python -m monai_sc COMMAND`` or ``monai-sc COMMAND``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
SCRIPT = "monai-sc"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status. What a user did wrong is one sentence, not a traceback.

    Args:
        argv: the arguments; by default those of the process.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # what its encoding has not is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    finally:
        _end_output()


def _run(given: list[str]) -> int:
    when_stopped = "nothing was done"
    try:
        from monai_sc.commands.parser import make_parser  # here, where Ctrl-C is understood

        arguments = make_parser(SCRIPT if Path(sys.argv[0]).stem == SCRIPT else "python -m monai_sc").parse_args(given)
        when_stopped = arguments.when_stopped
        _quieten()
        arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        status, told = INTERRUPTED, f"Stopped; {when_stopped}."
    except Exception as error:
        if "--debug" in given:
            traceback.print_exc()
        if isinstance(error, BrokenPipeError):  # such as by `| head`, which has read enough
            return FAILED
        status = REFUSED if isinstance(error, (ValueError, FileNotFoundError)) else FAILED
        told = f"Error: {_sentence(error)}"
    else:
        return DONE
    # not before the error is forgotten, and with it the progress bar that it came through, which ends with a last line
    print(told, file=sys.stderr)
    return status


def _end_output() -> None:
    """Write what is left of standard output; what cannot be written is not tried again when Python ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quieten() -> None:
    """Leave standard output to results."""
    import rich

    rich.reconfigure(stderr=True)  # the console of progress bars


def _sentence(error: Exception) -> str:
    # the text of a KeyError is the representation of what it was made with
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text if text.endswith(".") else f"{type(error).__name__}: {text}."


if __name__ == "__main__":
    sys.exit(main())
