"""``report``: one page that says what was found and done."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from monai_sc.reports import open_source, write_page
from monai_sc.reports.page import REPORT_FILES

__all__ = ["add_report"]

REPORT_EXAMPLE = """\
example:
  python -m monai_sc report corrected --images imagesTr

RUN is the output folder of a training that has ended, or the folder that `correct` or `audit` wrote. The page,
report.html, needs no network and no other file; report_data.json and report_cases.csv hold the same numbers.
"""


def add_report(commands: Any) -> argparse.ArgumentParser:
    """Add ``report``: one page that says what was found and done."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write one page on a run, a corrected folder or an audit",
        description="Write one page that says what was found and done, with every case: for whoever has to decide.",
        epilog=REPORT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN", help="folder of the run, the correction or the audit")
    parser.add_argument(
        "--images", metavar="DIR", help="images of the names of the labels, where RUN does not know them"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the page (default: RUN)")
    parser.add_argument("--json", action="store_true", help="print what report_data.json holds")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=_report, when_stopped="no page was written")
    return parser


def _report(arguments: argparse.Namespace) -> None:
    quiet = arguments.quiet or arguments.json
    source = open_source(arguments.folder, images=arguments.images)
    page = write_page(source, arguments.out or arguments.folder, progress=not quiet)
    if arguments.json:
        print((page.parent / REPORT_FILES[1]).read_text(encoding="utf-8"), end="")
    elif not quiet:
        print(json.loads((page.parent / REPORT_FILES[1]).read_text(encoding="utf-8"))["headline"])
        print(f"Report: {Path(page).resolve()}")
