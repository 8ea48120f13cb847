"""The parser of the whole command line."""

from __future__ import annotations

import argparse

from monai_sc.commands.ablate import add_ablate
from monai_sc.commands.audit import add_audit
from monai_sc.commands.common import Parser
from monai_sc.commands.compare import add_compare
from monai_sc.commands.completion import add_completion
from monai_sc.commands.correct import add_correct
from monai_sc.commands.prepare import add_prepare
from monai_sc.commands.report import add_report
from monai_sc.commands.restore import add_restore
from monai_sc.commands.simulate import add_simulate
from monai_sc.commands.stand_in import add_stand_in

COMMANDS = (
    add_ablate,
    add_audit,
    add_compare,
    add_completion,
    add_correct,
    add_prepare,
    add_report,
    add_restore,
    add_simulate,
    add_stand_in,
)
"""What adds each command, in the order of the help."""

EPILOG = """\
`COMMAND --help` lists the options of a command, with an example.

exit status:
  0    done
  1    failed: a file, the disk or a training
  2    refused: wrong use, or files and folders that do not fit it
  130  stopped by Ctrl-C
"""


def make_parser(prog: str) -> Parser:
    """Return the parser of all commands.

    Args:
        prog: what the command line is called by.
    """
    parser = Parser(
        prog=prog,
        description="Find, correct and simulate annotation error in segmentation labels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(make_parser=make_parser)  # for the command that completes all of them
    commands = parser.add_subparsers(metavar="COMMAND", dest="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser
