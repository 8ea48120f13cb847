"""``correct``: correct labels by a few clean labels, and by predictions if there are some."""

from __future__ import annotations

import argparse
from pathlib import Path
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

CORRECT_EXAMPLE = """\
example:
  python -m monai_sc correct --labels labels --clean expert --out moved
  python -m monai_sc correct --predictions nnUNet_cv --labels labelsTr --clean expert --out corrected

Without predictions, labels are moved by the bias of the cases that have both labels; no network is needed.
Predictions: CASE.npz of nnU-Net (--save_probabilities), or CASE.nii.gz with the channels on the last axis and --kind.
Use predictions of networks that have not seen the case, as in cross-validation.
A run that was killed goes on when it is called again.
"""


def add_correct(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "correct",
        text="correct a folder of labels with a few clean labels, and with predictions if given",
        description=(
            "Correct a folder of labels with a few clean labels: move them by their bias, or use predictions of a "
            "network."
        ),
        epilog=CORRECT_EXAMPLE,
    )
    parser.add_argument("--labels", metavar="DIR", required=True, help="folder of the labels, which are only read")
    parser.add_argument("--clean", metavar="DIR", required=True, help="folder of a few clean labels, only read")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder for the corrected labels")
    parser.add_argument(
        "--predictions", metavar="DIR", help="predictions of a network for all cases, including the clean ones"
    )
    parser.add_argument("--images", metavar="DIR", help="folder of images of the same names, for the report")
    parser.add_argument(
        "--kind", choices=("logits", "probabilities"), help="what predictions hold, if their files do not say"
    )
    parser.add_argument(
        "--axes", metavar="AXES", help="axes of predictions, if they differ from those of the labels: RAS, or 2,1,3"
    )
    parser.add_argument("--regions", metavar="VALUES", help="label values of each overlapping channel: 1+2,1,2")
    parser.add_argument("--trusted", metavar="DIR", help="folder of masks of voxels that must not change")
    add_class_names(parser)
    parser.add_argument("--ignore-value", metavar="V", type=int, help="value of unknown voxels, which stay")
    parser.add_argument("--max-shift-mm", metavar="MM", type=float, help="largest shift of a boundary")
    parser.add_argument(
        "--tolerance", metavar="MM", type=float, help="largest bias that counts as harmless (default: one voxel)"
    )
    text, choices = "how predictions are corrected (default: auto)", ("auto", "distance", "logit")
    parser.add_argument("--representation", choices=choices, default="auto", help=text)
    text = "weight of the given label's shape (default: 0.5)"
    parser.add_argument("--shape-weight", metavar="W", type=float, default=0.5, help=text)
    parser.add_argument("--no-presence", dest="presence", action="store_false", help="never drop a predicted object")
    add_report_option(parser)
    add_output_options(parser, _correct, when_stopped="either no result was written, or all but the report")


def _correct(arguments: argparse.Namespace) -> None:
    from monai_sc.files.regions import read_regions
    from monai_sc.folders import correct_folder

    if arguments.images is not None and not Path(arguments.images).is_dir():
        raise FileNotFoundError(f"{arguments.images} is not a folder.")
    regions = None if arguments.regions is None else read_regions(arguments.regions)
    report = correct_folder(**options_of(correct_folder, arguments) | {"regions": regions})
    page = report_on(arguments, done=f"The corrected labels are in {arguments.out}")
    show(arguments, report, lambda: _print_correction(report, Path(arguments.out), page))


def _print_correction(report: dict[str, Any], out: Path, page: Path | None) -> None:
    from rich.table import Table

    from monai_sc.folders.words import existence_words, folder_notes, headline

    rows = report["classes"]
    of = "the network" if all(row["bias_of"] == "network" for row in rows.values()) else "the labels"
    table = Table("class", f"bias of {of} in {report['unit']}", "verdict", "done", "voxels changed")
    for name, row in rows.items():
        bias = "undefined" if row["bias"] is None else signed(row["bias"])
        if row["interval"][0] is not None:
            bias += " [{}, {}]".format(*map(signed, row["interval"]))
        table.add_row(name, bias, row["verdict"], report["moved"][name], str(report["voxels_changed"][name]))
    print_table(table)
    for name, row in rows.items():
        print(f"Class {name}: {row['done']}.")
        for note in [*row["notes"], *existence_words(report["refused"][name], row["existence"])]:
            print(f"Class {name}: {note}.")
    for note in folder_notes(report):
        print(note)
    print(headline(report, listed="in report.json"))
    redrawn = f" ({report['redrawn']} of them drawn by the expert)" if report["redrawn"] else ""
    print(f"{counted(report['cases'], 'label')}{redrawn} in {out.resolve()}, with report.json and manifest.jsonl.")
    if page is not None:
        print(f"Report: {page}")
