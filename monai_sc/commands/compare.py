"""``compare``: train methods against label noise on the same noisy labels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from monai_sc.commands.common import (
    add_command,
    add_output_options,
    add_protocol,
    add_training_options,
    options_of,
    print_table,
    show,
)
from monai_sc.names import METHODS

COMPARE_EXAMPLE = f"""\
example:
  python -m monai_sc compare --bundle bundles/jsrt --dataset-dir DATA --methods noisy,gce,sc,clean \\
      --noise markov_expand,markov_shrink --seeds 3 --quick --jobs 2 --out comparison

methods: {", ".join(METHODS)}.
Your own method is a .json that is merged over the bundle's train.json, as those in monai_sc/configs/methods are; its
run must end with monai_sc.benchmark.write_result.

Stopped or killed, the same command goes on; more methods, noises or seeds are added to what is done. Results, of all
that is done: results.md, results.csv, results.json and results.png. The log of a training: cells/NOISE/METHOD/seed-S/
log.txt; delete its folder to train it again.
"""


def add_compare(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "compare",
        text="train several methods on the same noisy labels, and compare them",
        description="Train methods against label noise on the noises and seeds of a bundle, and compare their Dice.",
        epilog=COMPARE_EXAMPLE,
    )
    add_training_options(parser)
    parser.add_argument(
        "--methods", metavar="NAMES", type=_names, default=["all"], help="names or .json files, or all (default: all)"
    )
    text = "noises of the bundle (default: its own choice)"
    parser.add_argument("--noise", dest="noises", metavar="NAMES", type=_names, help=text)
    add_protocol(parser)
    parser.add_argument("--against", metavar="NAME", default="sc", help="reference method (default: sc)")
    add_output_options(parser, _compare, when_stopped="finished trainings are kept; run the same command to resume")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _compare(arguments: argparse.Namespace) -> None:
    from monai_sc.benchmark import compare

    arguments.methods = [one for name in arguments.methods for one in (METHODS if name == "all" else [name])]
    arguments.overrides = dict(arguments.overrides)
    found = compare(**options_of(compare, arguments))
    show(arguments, found, lambda: _print_comparison(found, Path(arguments.out)))


def _print_comparison(found: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    from monai_sc.benchmark.summary import MEAN
    from monai_sc.benchmark.tables import dice_text, difference_text

    names = [*found["classes"], MEAN]
    for noise, methods in found["noises"].items():
        table = Table("method", "seeds", *names, f"from {found['against']}", title=noise)
        for method, row in methods.items():
            cells = (dice_text(row, name) for name in names)
            table.add_row(method, str(len(row["seeds"])), *cells, difference_text(row))
        print_table(table)
    print(f"Dice on the test cases; * differs from {found['against']} (p < 0.05, adjusted for the methods).")
    print(f"Results: {out.resolve() / 'results.md'}, and the picture results.png beside it.")
