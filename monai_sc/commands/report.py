"""``report``: write one page that says what was found and done."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from shlex import quote
from typing import Any

from monai_sc.commands.common import add_command, add_output_options, show

EXAMPLE = """\
example:
  python -m monai_sc report corrected --images imagesTr

RUN is the output folder of a training that has ended, or the folder that `correct` or `audit` wrote; each of them ends
with its report, and this command writes it again, with images or in another place. The page, report.html, needs no
network and no other file; report_data.json and report_cases.csv hold the same numbers.
"""


def add_report(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        text="write the report page of a run, a corrected folder or an audit",
        description="Write a page with the verdict and every case.",
        epilog=EXAMPLE,
    )
    parser.add_argument("folder", metavar="RUN", help="folder of the run, the correction or the audit")
    text = "images with the names of the labels, if RUN does not know them"
    parser.add_argument("--images", metavar="DIR", help=text)
    parser.add_argument("--out", metavar="DIR", help="folder for the page (default: RUN)")
    add_output_options(parser, _report, when_stopped="the page may be missing; RUN is unchanged")


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-report``, of commands that end with :py:func:`report_on`."""
    parser.add_argument("--no-report", action="store_true", help="skip report.html, which takes a moment per case")


def report_on(arguments: argparse.Namespace, *, done: str) -> Path | None:
    """Return the path of the report of what a command has just written into ``--out``, ``None`` with ``--no-report``.

    Args:
        arguments: of the command.
        done: what is there even if the report fails, a clause for the error.
    """
    if arguments.no_report:
        return None
    from monai_sc.reports.page import open_source, write_page

    try:
        source = open_source(arguments.out, images=arguments.images)
        return write_page(source, arguments.out, progress=not (arguments.quiet or arguments.json)).resolve()
    except Exception as error:  # whatever it is, the rest is there
        raise RuntimeError(
            f"{done}, but no report: {str(error).rstrip('.')}; `python -m monai_sc report {quote(str(arguments.out))}` "
            "writes it."
        ) from error


def _report(arguments: argparse.Namespace) -> None:
    from monai_sc.reports.page import REPORT_FILES, open_source, write_page

    source = open_source(arguments.folder, images=arguments.images)
    out = arguments.out or arguments.folder
    page = write_page(source, out, progress=not (arguments.quiet or arguments.json)).resolve()
    found = json.loads((page.parent / REPORT_FILES[1]).read_text(encoding="utf-8"))

    def tell() -> None:
        print(found["headline"])
        print(f"Report: {page}")

    show(arguments, found, tell)
