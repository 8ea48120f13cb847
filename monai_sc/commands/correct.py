"""``correct``: labels corrected by predictions and a few clean labels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from monai_sc.commands.common import add_command, add_output_options, note_part, print_table, several, show
from monai_sc.commands.report import add_report_option, report_on
from monai_sc.wording import counted

CORRECT_EXAMPLE = """\
example:
  python -m monai_sc correct --predictions nnUNet_cv --labels labelsTr --clean expert --out corrected

Predictions: CASE.npz of nnU-Net (--save_probabilities), or CASE.nii.gz with the channels on the last axis and --kind.
Best are predictions of networks that have not seen the case, as cross-validation gives them.
Under torchrun, in a SLURM job array or with srun, each process takes a part of the cases.
"""


def add_correct(commands: Any) -> None:
    """Add ``correct``: labels corrected by predictions and a few clean labels."""
    parser = add_command(
        commands,
        "correct",
        text="correct a folder of labels by predictions and a few clean labels",
        description="Correct a folder of labels by the predictions of a network that learnt from them.",
        epilog=CORRECT_EXAMPLE,
    )
    parser.add_argument("--predictions", metavar="DIR", required=True, help="of all cases, the clean ones among them")
    parser.add_argument("--labels", metavar="DIR", required=True, help="folder of the labels, which are only read")
    parser.add_argument("--clean", metavar="DIR", required=True, help="folder of a few clean labels, only read")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder for the corrected labels")
    parser.add_argument("--images", metavar="DIR", help="folder of images of the same names, for the report")
    parser.add_argument("--kind", choices=("logits", "probabilities"), help="of predictions whose files do not say it")
    parser.add_argument("--trusted", metavar="DIR", help="folder of masks of voxels that stay as they are")
    parser.add_argument("--names", metavar="NAMES", type=several(str), help="of the classes 1, 2, ...: lung,heart")
    parser.add_argument("--ignore-value", metavar="V", type=int, help="value of unknown voxels, which stay")
    parser.add_argument("--max-shift-mm", metavar="MM", type=float, help="no boundary moves farther")
    parser.add_argument(
        "--representation",
        choices=("auto", "distance", "logit"),
        default="auto",
        help="of the correction (default: auto)",
    )
    parser.add_argument(
        "--shape-weight", metavar="W", type=float, default=0.5, help="of the shape of the given labels (default: 0.5)"
    )
    parser.add_argument("--no-presence", action="store_true", help="never drop an object")
    add_report_option(parser)
    add_output_options(parser, _correct, when_stopped="either no result was written, or all but the report")


def _correct(arguments: argparse.Namespace) -> None:
    from monai_sc.data import Part, correct_folder

    if arguments.images is not None and not Path(arguments.images).is_dir():
        raise FileNotFoundError(f"{arguments.images} is no folder.")
    part = Part.from_environment()
    report = correct_folder(
        arguments.predictions,
        arguments.labels,
        arguments.clean,
        arguments.out,
        kind=arguments.kind,
        trusted=arguments.trusted,
        class_names=arguments.names,
        ignore_value=arguments.ignore_value,
        max_shift_mm=arguments.max_shift_mm,
        representation=arguments.representation,
        shape_weight=arguments.shape_weight,
        presence=not arguments.no_presence,
        progress=not arguments.quiet and part.index == 0,
        part=part,
    )
    if not report:
        note_part(arguments, part)
        return
    page = report_on(arguments, done=f"The corrected labels are in {arguments.out}")
    show(arguments, report, lambda: _print_correction(report, Path(arguments.out), page))


def _print_correction(report: dict[str, Any], out: Path, page: Path | None) -> None:
    from rich.table import Table

    table = Table("class", f"bias of the network in {report['unit']}", "verdict", "correction", "voxels changed")
    for name, row in report["classes"].items():
        bias = "undefined" if row["bias"] is None else f"{row['bias']:+.2f}"
        if row["interval"][0] is not None:
            bias += " [{:+.2f}, {:+.2f}]".format(*row["interval"])
        own = row["correction"]
        done = "none" if own["representation"] == "none" else f"{own['representation']} {own['shift']:+.2f}"
        table.add_row(name, bias, row["verdict"], done, str(report["voxels_changed"][name]))
    print_table(table)
    for name, row in report["classes"].items():
        print(f"Class {name}: {row['correction']['note']}.")
        if row["existence"]["rule"] is not None:
            rule = row["existence"]["rule"]
            print(f"Class {name}: objects with a {rule['feature']} under {rule['threshold']:.3g} are dropped.")
    both = report["both"]
    if both["cases"]:
        for name, given in both["given"].items():
            print(
                f"Class {name}: on {counted(both['cases'], 'case')} with both labels, Dice {given:.3f} as given, "
                f"{both['corrected'][name]:.3f} corrected."
            )
    if report["labels_kept"]:
        print(f"Labels of {', '.join(report['labels_kept'])} stay as they are: corrected, they would be no better.")
    redrawn = f" ({both['cases']} of them as drawn anew)" if both["cases"] else ""
    print(f"{counted(report['cases'], 'label')}{redrawn} in {out.resolve()}, with report.json and manifest.jsonl.")
    if page is not None:
        print(f"Report: {page}")
