"""Options that several commands have, how they are read, and how a result is printed.

The modules of the commands import what is slow to load (PyTorch, MONAI) in the functions that run, so that help,
completion and refusals of the command line take no seconds.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 110  # of a table that is not on a terminal


class WrongUseError(ValueError):
    """The command line cannot be understood."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are told as those of the commands are, in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise WrongUseError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see {self.prog} --help.")


def add_command(commands: Any, name: str, *, text: str, description: str, epilog: str) -> Parser:
    """Add a command without options; ``text`` is for the list of commands, all else for its own help."""
    form = argparse.RawDescriptionHelpFormatter
    parser: Parser = commands.add_parser(name, help=text, description=description, epilog=epilog, formatter_class=form)
    return parser


def add_output_options(parser: argparse.ArgumentParser, run: Callable[..., None], *, when_stopped: str) -> None:
    """Add the options that every command ends with, the function that it runs, and what Ctrl-C leaves."""
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
    output.add_argument("--quiet", action="store_true", help="print errors only")
    add_debug(output)
    parser.set_defaults(run=run, when_stopped=when_stopped)


def add_debug(parser: Any) -> None:
    """Add ``--debug``, which :py:func:`~monai_sc.__main__.main` understands."""
    parser.add_argument("--debug", action="store_true", help="show where in the code an error came from")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that train a bundle several times."""
    parser.add_argument("--bundle", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="folder for the results; an existing one is resumed"
    )
    parser.add_argument("--dataset-dir", metavar="DIR", help="data of the bundle (default: data in its folder)")
    parser.add_argument(
        "--seeds", metavar="N", type=seeds, default=[0], help=("number of seeds, or a list: 0,3,5 (default: 1)")
    )
    parser.add_argument("--quick", action="store_true", help="use the smaller settings of the bundle")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="number of parallel trainings (default: 1)")
    text = "override an id override an id of the configs; may be repeated"
    parser.add_argument(
        "--set", dest="overrides", metavar="ID=VALUE", type=_override, action="append", default=[], help=text
    )


def add_class_names(parser: argparse.ArgumentParser) -> None:
    """Add ``--names``."""
    text = "names of the classes, in the order of their values: lung,heart"
    parser.add_argument("--names", dest="class_names", metavar="NAMES", type=several(str), help=text)


def add_protocol(parser: argparse.ArgumentParser) -> None:
    """Add ``--protocol``, of commands that compare methods."""
    text = "paper: the other methods learn from the clean cases too; plain: they do not see them (default: paper)"
    parser.add_argument("--protocol", choices=("paper", "plain"), default="paper", help=text)


def show(arguments: argparse.Namespace, result: Any, tell: Callable[[], None]) -> None:
    """Print the result of a command: as JSON, by ``tell`` in words, or not at all."""
    if arguments.json:
        from monai_sc.correction.state import plain

        print(json.dumps(plain(result, nan=False), indent=2, default=str))
    elif not arguments.quiet:
        tell()


def print_table(table: Table) -> None:
    """Print a table, as wide as it needs to be where there is no terminal; all in it is plain text."""
    from rich.console import Console

    Console(width=None if Console().is_terminal else WIDTH, markup=False, emoji=False).print(table)


def options_of(function: Callable[..., Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that are parameters of a function; ``progress`` is shown unless ``--quiet`` is given."""
    given = {**vars(arguments), "progress": not arguments.quiet}
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return those of ``arguments.own_options`` that were given."""
    return {name: getattr(arguments, name) for name in arguments.own_options if getattr(arguments, name) is not None}


def several(kind: type) -> Callable[[str], list[Any]]:
    """Return what reads a list of values of a kind, between commas."""

    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    parse.__name__ = f"list of {kind.__name__}"  # which argparse names in an error
    return parse


def list_of(kind: type) -> Callable[[str], Any]:
    """Return what reads one value of a kind, or several between commas."""

    def parse(text: str) -> Any:
        values = several(kind)(text)
        return values if len(values) > 1 else values[0]

    parse.__name__ = f"{kind.__name__} or list of {kind.__name__}"
    return parse


def seeds(text: str) -> list[int]:
    """Read how many seeds there are to be, or which."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise argparse.ArgumentTypeError(f"must be at least 1 or a comma-separated list of seeds, got {text!r}")
    return list(dict.fromkeys(numbers)) if "," in text else list(range(numbers[0]))


def _override(text: str) -> tuple[str, str]:
    """Read the value that an id of a config is to have."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"must be ID=VALUE, got {text}")
    return name, value
