"""``prepare``: make a downloaded data set into the folder that its bundle reads."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from monai_sc.commands.common import add_command, add_output_options, given_options, options_of, print_table, show
from monai_sc.names import DATA_SETS

if TYPE_CHECKING:
    from monai_sc.datasets import Preparation

EXAMPLE = """\
example:
  python -m monai_sc prepare isic2017 --source ISIC --out data
  python -m monai_sc prepare brats2020 --source MICCAI_BraTS2020_TrainingData --out data --modalities flair t1ce

SOURCE is only read. The files grow in OUT.partial, which becomes OUT when it is complete; a call that was stopped goes
on when it is made again. The layouts that are understood are listed in docs/data_sets.md.
"""


def add_prepare(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "prepare",
        text="make a downloaded data set ready for its bundle",
        description="Prepare a downloaded data set for its bundle: check, resize and split it.",
        epilog=EXAMPLE,
    )
    parser.add_argument("name", metavar="NAME", choices=DATA_SETS, help=", ".join(DATA_SETS))
    parser.add_argument("--source", metavar="DIR", required=True, help="folder of the unpacked data set; only read")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder, outside of the source")
    parser.add_argument("--size", metavar="N", type=int, nargs="+", help="width, height (and depth) of the images")
    parser.add_argument("--native", action="store_true", help="keep the size of each image instead")
    parser.add_argument("--partial", action="store_true", help="prepare what is there when files are missing")
    text = "stop at a damaged file, or skip its case (default: raise)"
    parser.add_argument("--on-bad-case", choices=("raise", "skip"), default="raise", help=text)
    text = "shares of training, clean and test cases, such as 6 2 2"
    parser.add_argument("--split", metavar="N", type=int, nargs=3, help=text)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of random splits (default: 0)")
    own: dict[str, tuple[str, dict[str, Any]]] = {  # each is an argument of a layout
        "modalities": (
            "brats2020: flair, t1, t1ce, t2; one channel each (default: flair)",
            {"metavar": "M", "nargs": "+"},
        ),
        "agreement": (
            "lidc_idri: of the four annotators, how many must agree (default: 3)",
            {"metavar": "N", "type": int},
        ),
        "noisy": (
            "lidc_idri: union, intersection, or annotator-1 to annotator-4 (default: union)",
            {"metavar": "KIND"},
        ),
        "gaps": ("lidc_idri: accept scans whose slices are not evenly spaced", {"action": "store_true"}),
        "min_car_share": (
            "cityscapes: minimum share of car pixels in an image (default: 0.01)",
            {"metavar": "P", "type": float},
        ),
    }
    for name, (text, form) in own.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=None, help=text, **form)
    parser.set_defaults(own_options=list(own))
    add_output_options(parser, _prepare, when_stopped="the same call goes on from there")


def _prepare(arguments: argparse.Namespace) -> None:
    from monai_sc.datasets import prepare

    done = prepare(**options_of(prepare, arguments), **given_options(arguments))
    show(arguments, vars(done), lambda: _print(done))


def _print(done: Preparation) -> None:
    from rich.table import Table

    from monai_sc.datasets.prepared import PREPARED

    if done.was_complete:
        print(f"Nothing to do: {done.out} is complete.")
    table = Table("split", "cases")
    for split, count in done.counts.items():
        table.add_row(split, str(count))
    print_table(table)
    if empty := [split for split, count in done.counts.items() if not count]:
        print(f"No case in {', '.join(empty)}: a bundle needs some in each split; prepare more, or give other shares.")
    if done.missing:
        print(f"Not in the source: {'; '.join(done.missing)}.")
    for name, why in done.left_out.items():
        print(f"Left out: {name}. {why}")
    print(f"The prepared data set is in {done.out}, with its splits in {PREPARED}.")
