"""``audit``: compare labels with clean ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import join
from typing import Any

from monai_sc.commands.common import (
    add_class_names,
    add_command,
    add_output_options,
    options_of,
    print_table,
    show,
)
from monai_sc.commands.report import add_report_option, report_on
from monai_sc.wording import counted, signed

AUDIT_EXAMPLE = """\
example:
  python -m monai_sc audit --labels labels --clean expert --out audit

Files of the same name are compared. Nothing is trained.
"""


def add_audit(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "audit",
        text="measure the bias of a folder of labels",
        description="Compare labels with clean labels of the same cases: bias per class in mm, with its interval.",
        epilog=AUDIT_EXAMPLE,
    )
    parser.add_argument("--labels", metavar="DIR", required=True, help="folder of the labels, which are only read")
    parser.add_argument("--clean", metavar="DIR", required=True, help="folder of clean labels; a few are enough")
    parser.add_argument("--images", metavar="DIR", help="folder of images of the same names, for the pictures")
    parser.add_argument(
        "--out", metavar="DIR", help="folder for audit.json, audit.png and the report (created if missing)"
    )
    add_class_names(parser)
    parser.add_argument("--ignore-value", metavar="V", type=float, help="value of unknown voxels")
    parser.add_argument(
        "--tolerance", metavar="MM", type=float, help="largest bias that counts as harmless (default: one voxel)"
    )
    add_report_option(parser)
    add_output_options(parser, _audit, when_stopped="either no result was written, or all but the report")


def _audit(arguments: argparse.Namespace) -> None:
    from monai_sc.folders import audit_folder
    from monai_sc.reports.audit import check_audit_folder, write_audit

    if arguments.out is not None:
        sources = [arguments.labels, arguments.clean, arguments.images]
        check_audit_folder(arguments.out, [source for source in sources if source is not None])
    result = audit_folder(**options_of(audit_folder, arguments))
    page = None
    if arguments.out is not None:
        write_audit(result, arguments.labels, arguments.clean, arguments.out, images=arguments.images)
        page = report_on(arguments, done=f"The results are in {arguments.out}")
    show(arguments, result, lambda: _print_audit(result, arguments, page))


def _print_audit(result: dict[str, Any], arguments: argparse.Namespace, page: Path | None) -> None:
    from rich.table import Table

    from monai_sc.folders.words import file_notes

    out = arguments.out
    unit = result["unit"]
    in_mm = unit == "mm"
    columns = ["class", "cases", "mean Dice", f"bias in {unit} (negative: too large)", "verdict"]
    table = Table(*columns, *(["in voxels"] if in_mm else []))
    for name, row in result["classes"].items():
        low, high = row["interval"]
        defined = row["bias"] == row["bias"]
        interval = "" if low != low else f" [{signed(low)}, {signed(high)}]"
        bias = signed(row["bias"]) + interval if defined else "undefined"
        voxels = [f"{row['bias_voxels']:+.2f}" if defined else "-"] if in_mm else []
        table.add_row(name, str(row["cases_used"]), f"{row['dice']:.3f}", bias, row["verdict"], *voxels)
    print_table(table)
    for name, row in result["classes"].items():
        (spurious, absent), (missed, present) = row["spurious"], row["missed"]
        if spurious or missed:
            print(
                f"Class {name}: drawn in {spurious} of {counted(absent, 'case')} without it, missing in {missed} of "
                f"{counted(present, 'case')} with it."
            )
        widths = list(row["half_width_by_cases"].items())
        if row["cases_used"] == 1:
            print(f"Class {name}: one case gives no interval; add a few more.")
        if row["verdict"] == "cannot tell" and widths:
            more = ", ".join(f"{signed(width)[1:]} {unit} with {n}" for n, width in widths)
            print(f"Class {name}: half of the interval would be about {more} clean cases.")
    for note in file_notes(result):
        print(note)
    if any(row["verdict"] == "biased" for row in result["classes"].values()):
        print(f"To move the labels back, no network is needed: {_next_command(arguments)}")
    if out is not None:
        print(f"Results and pictures: {Path(out).resolve()}")
    if page is not None:
        print(f"Report: {page}")


def _next_command(arguments: argparse.Namespace) -> str:
    """Return the command that corrects the labels which were audited."""
    command = ["python", "-m", "monai_sc", "correct", "--labels", arguments.labels, "--clean", arguments.clean]
    if arguments.class_names is not None:
        command += ["--names", ",".join(arguments.class_names)]
    for option, value in {"--ignore-value": arguments.ignore_value, "--tolerance": arguments.tolerance}.items():
        command += [] if value is None else [option, f"{value:g}"]
    return join([*command, "--out", "corrected"])
