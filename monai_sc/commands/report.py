"""``report``: one page that says what was found and done."""

from __future__ import annotations

import argparse
import json
from typing import Any

from monai_sc.commands.common import add_command, add_output_options, show

__all__ = ["add_report"]

EXAMPLE = """\
example:
  python -m monai_sc report corrected --images imagesTr

RUN is the output folder of a training that has ended, or the folder that `correct` or `audit` wrote. The page,
report.html, needs no network and no other file; report_data.json and report_cases.csv hold the same numbers.
"""


def add_report(commands: Any) -> argparse.ArgumentParser:
    """Add ``report``: one page that says what was found and done."""
    parser = add_command(
        commands,
        "report",
        text="write one page on a run, a corrected folder or an audit",
        description="Write one page that says what was found and done, with every case: for whoever has to decide.",
        epilog=EXAMPLE,
    )
    parser.add_argument("folder", metavar="RUN", help="folder of the run, the correction or the audit")
    parser.add_argument(
        "--images", metavar="DIR", help="images of the names of the labels, where RUN does not know them"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the page (default: RUN)")
    add_output_options(parser, _report, when_stopped="the page may not be there, and RUN is as it was")
    return parser


def _report(arguments: argparse.Namespace) -> None:
    from monai_sc.reports import open_source, write_page
    from monai_sc.reports.page import REPORT_FILES

    source = open_source(arguments.folder, images=arguments.images)
    out = arguments.out or arguments.folder
    page = write_page(source, out, progress=not (arguments.quiet or arguments.json)).resolve()
    found = json.loads((page.parent / REPORT_FILES[1]).read_text(encoding="utf-8"))

    def tell() -> None:
        print(found["headline"])
        print(f"Report: {page}")

    show(arguments, found, tell)
