"""``completion``: print what a shell needs to complete the command line."""

from __future__ import annotations

import argparse
from typing import Any

from monai_sc.commands.common import add_command, add_debug

SHELLS = ("bash", "zsh", "tcsh")
FOLDERS = ("DIR", "IN", "OUT", "STORE")  # the metavars of folders
EXAMPLE = """\
example:
  bash:  monai-sc completion bash > ~/.local/share/bash-completion/completions/monai-sc
  zsh:   monai-sc completion zsh > FOLDER/_monai-sc, with a FOLDER in $fpath
  tcsh:  monai-sc completion tcsh > ~/.monai-sc.tcsh, with `source ~/.monai-sc.tcsh` in ~/.tcshrc

Then a new shell completes commands, options, their values and folders after monai-sc.
"""


def add_completion(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        text="print the script that completes monai-sc in a shell",
        description="Print a shell's completion script for monai-sc.",
        epilog=EXAMPLE,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    add_debug(parser)
    parser.set_defaults(run=_completion, when_stopped="nothing was done")


def _completion(arguments: argparse.Namespace) -> None:
    import shtab

    parser = arguments.make_parser("monai-sc")
    _mark_files(parser, {"FILE": shtab.FILE} | dict.fromkeys(FOLDERS, shtab.DIRECTORY))
    print(shtab.complete(parser, shell=arguments.shell))


def _mark_files(parser: argparse.ArgumentParser, kinds: dict[str, Any]) -> None:
    """Tell shtab which values are files or folders, by their metavars."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub_parser in action.choices.values():
                _mark_files(sub_parser, kinds)
        elif action.metavar in kinds:
            action.complete = kinds[str(action.metavar)]  # type: ignore[attr-defined] # read by shtab
