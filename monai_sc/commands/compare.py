"""``compare``: methods against label noise, trained on the same noisy labels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from monai_sc.commands.common import override, seeds
from monai_sc.comparison import compare
from monai_sc.comparison.grid import METHODS
from monai_sc.comparison.summary import MEAN
from monai_sc.comparison.tables import dice_text, difference_text

__all__ = ["add_compare"]

COMPARE_EXAMPLE = f"""\
example:
  python -m monai_sc compare --bundle bundles/jsrt --dataset-dir DATA --methods noisy,gce,sc,clean \\
      --noise markov_expand,markov_shrink --seeds 3 --quick --jobs 2 --out comparison

methods: {", ".join(METHODS)}.
Your own method is a .json that is merged over the bundle's train.json, as those in monai_sc/configs/methods are; its
run must end with monai_sc.comparison.write_result.

Stopped or killed, the same command goes on; more methods, noises or seeds are added to what is done. Results, of all
that is done: results.md, results.csv, results.json and results.png. The log of a training: cells/NOISE/METHOD/seed-S/
log.txt; delete its folder to train it again.
"""


def add_compare(commands: Any) -> argparse.ArgumentParser:
    """Add ``compare``: methods against label noise."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="train several methods on the same noisy labels, and compare them",
        description="Train methods against label noise on the noises and seeds of a bundle, and compare their Dice.",
        epilog=COMPARE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bundle", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the comparison, new or to go on with")
    parser.add_argument("--dataset-dir", metavar="DIR", help="data of the bundle (default: data in its folder)")
    parser.add_argument(
        "--methods", metavar="NAMES", type=_names, default=list(METHODS), help="names or .json files, or all (all)"
    )
    parser.add_argument("--noise", metavar="NAMES", type=_names, help="noises of the bundle (default: its own choice)")
    parser.add_argument("--seeds", metavar="N", type=seeds, default=[0], help="how many, or which: 0,3,5 (1)")
    parser.add_argument("--quick", action="store_true", help="the smaller setting of the bundle")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="trainings at the same time (1)")
    parser.add_argument(
        "--protocol",
        choices=("paper", "plain"),
        default="paper",
        help="paper: the other methods learn from the clean cases too; plain: they do not see them (paper)",
    )
    parser.add_argument("--against", metavar="NAME", default="sc", help="the method that others are compared with (sc)")
    parser.add_argument(
        "--set", metavar="ID=VALUE", type=override, action="append", default=[], help="of the configs; may be repeated"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=_compare, when_stopped="what is done is kept, and the same command goes on")
    return parser


def _names(text: str) -> list[str]:
    return list(METHODS) if text == "all" else [name for name in text.split(",") if name]


def _compare(arguments: argparse.Namespace) -> None:
    found = compare(
        arguments.bundle,
        arguments.out,
        methods=arguments.methods,
        noises=arguments.noise,
        seeds=arguments.seeds,
        dataset_dir=arguments.dataset_dir,
        quick=arguments.quick,
        protocol=arguments.protocol,
        overrides=dict(arguments.set),
        jobs=arguments.jobs,
        against=arguments.against,
        progress=not arguments.quiet,
    )
    if not arguments.quiet:
        _print_comparison(found)
        print(f"Results: {Path(arguments.out).resolve() / 'results.md'}, and the picture results.png beside it.")


def _print_comparison(found: dict[str, Any]) -> None:
    console = Console(width=None if Console().is_terminal else 110)
    names = [*found["classes"], MEAN]
    for noise, methods in found["noises"].items():
        table = Table("method", "seeds", *names, f"from {found['against']}", title=noise)
        for method, row in methods.items():
            cells = (dice_text(row, name) for name in names)
            table.add_row(method, str(len(row["seeds"])), *cells, difference_text(row).replace("[", r"\["))
        console.print(table)
    console.print(f"Dice on the test cases; * differs from {found['against']} (p < 0.05, adjusted for the methods).")
