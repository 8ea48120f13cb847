"""``stand-in``: write a small generated data set in the layout of an official one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from monai_sc.commands.common import add_command, add_output_options, show
from monai_sc.names import DATA_SETS

EXAMPLE = """\
example:
  python -m monai_sc stand-in jsrt --out raw
  python -m monai_sc prepare jsrt --source raw --out data --partial

Try the preparation and the bundle of a data set without downloading it; the results mean nothing.
"""


def add_stand_in(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "stand-in",
        text="write a small synthetic data set in an official layout",
        description="Write a small generated data set with the folders, file names and file types of an official one.",
        epilog=EXAMPLE,
    )
    parser.add_argument("name", metavar="NAME", choices=DATA_SETS, help=", ".join(DATA_SETS))
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    text = "numbers of training, clean and test cases (default: 4 2 2)"
    parser.add_argument("--cases", metavar="N", type=int, nargs=3, default=(4, 2, 2), help=text)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the images (default: 0)")
    add_output_options(parser, _stand_in, when_stopped="delete what was written")


def _stand_in(arguments: argparse.Namespace) -> None:
    if min(arguments.cases) < 1:
        raise ValueError(f"--cases must be three numbers of at least 1, got {' '.join(map(str, arguments.cases))}.")
    if arguments.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {arguments.seed}.")
    from monai_sc.datasets.layout import SPLITS
    from monai_sc.datasets.stand_ins import STAND_INS

    out = Path(arguments.out)
    num_cases = dict(zip(SPLITS, arguments.cases, strict=True))
    STAND_INS[arguments.name](out, num_cases=num_cases, seed=arguments.seed)
    result = {"name": arguments.name, "out": str(out.resolve()), "counts": num_cases}
    told = (
        f"Wrote synthetic data in the layout of {result['name']} to {result['out']}; continue with python -m monai_sc "
        "prepare."
    )
    show(arguments, result, lambda: print(told))
