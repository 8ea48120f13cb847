"""``ablate``: trainings that differ in one thing, and what that does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from monai_sc.commands.common import override, seeds
from monai_sc.comparison.ablations import (
    Ablation,
    Setup,
    confidence,
    holes,
    noise_level,
    run_ablation,
    validation_size,
)
from monai_sc.comparison.ablations.ablation import ABLATION_CONFIGS
from monai_sc.comparison.ablations.validation_size import SIZES
from monai_sc.comparison.grid import ComparedBundle, find_method

__all__ = ["add_ablate"]

UNBIASED = "dilate_erode"
EXAMPLE = """\
example:
  python -m monai_sc ablate noise-level --bundle bundles/jsrt --dataset-dir DATA --out level --steps 180,240,320,400
  python -m monai_sc ablate holes --bundle bundles/phantom --out holes

The bundle phantom generates its images. Each training is a process of its own, with its log in OUT/cells; stopped or
killed, the same command goes on. What comes of it: a table, NAME.json and NAME.png in OUT.
"""


def add_ablate(commands: Any) -> argparse.ArgumentParser:
    """Add ``ablate``: trainings that differ in one thing."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ablate",
        help="repeat an ablation or an illustration of the paper",
        description="Train a bundle several times, with one thing changed, and draw what that does.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(metavar="NAME", required=True)
    own = _add(kinds, "noise-level", _noise_level, "methods against a noise that grows")
    own.add_argument("--steps", metavar="T", type=_list_of(int), help="steps (1, 4/3, 16/9, 20/9 times the bundle's)")
    own.add_argument("--methods", metavar="NAMES", type=_list_of(str), default=["noisy", "sc"], help="(noisy,sc)")
    own.add_argument("--noise", metavar="NAME", help="a Markov noise of the bundle (its own choice)")
    own.add_argument(
        "--protocol",
        choices=("paper", "plain"),
        default="paper",
        help="paper: the other methods learn from the clean cases too; plain: they do not see them (paper)",
    )
    own = _add(kinds, "validation-size", _validation_size, "the correction with fewer and fewer clean cases")
    own.add_argument("--sizes", metavar="N", type=_list_of(int), default=list(SIZES), help="(24,12,6,3,1)")
    own.add_argument("--noise", metavar="NAME", help="of the bundle (its own choice)")
    own = _add(kinds, "confidence", _confidence, "how plain training becomes sure of wrong labels")
    own.add_argument("--epochs", metavar="N", type=int, help="of the training (a round of the bundle)")
    own.add_argument("--noise", metavar="NAME", help="of the bundle (dilate_erode, which has no bias, if it is there)")
    own = _add(kinds, "holes", _holes, "what the correction makes of labels with holes")
    own.add_argument("--number", metavar="N", type=_list_of(int), default=[2, 5], help="of holes: low,high (2,5)")
    own.add_argument("--radius", metavar="R", type=_list_of(float), default=[2, 4], help="in voxels: low,high (2,4)")
    return parser


def _add(kinds: Any, name: str, make: Callable[[Setup, argparse.Namespace], Ablation], text: str) -> Any:
    parser = kinds.add_parser(name, help=text, description=f"Train and draw: {text}.")
    parser.add_argument("--bundle", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results, new or to go on with")
    parser.add_argument("--dataset-dir", metavar="DIR", help="data of the bundle (default: data in its folder)")
    parser.add_argument("--seeds", metavar="N", type=seeds, default=[0], help="how many, or which: 0,3,5 (1)")
    parser.add_argument("--quick", action="store_true", help="the smaller setting of the bundle")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="trainings at the same time (1)")
    parser.add_argument(
        "--set", metavar="ID=VALUE", type=override, action="append", default=[], help="of the configs; may be repeated"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    # which the command has too, before the name
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(make=make, run=_ablate, when_stopped="what is done is kept, and the same command goes on")
    return parser


def _ablate(arguments: argparse.Namespace) -> None:
    bundle = ComparedBundle(arguments.bundle)
    own_choice = UNBIASED if arguments.make is _confidence and UNBIASED in bundle.noises else bundle.train["noise"]
    noise = getattr(arguments, "noise", None) or own_choice
    bundle.check_noises([noise])
    methods = [find_method(method)[1] for method in getattr(arguments, "methods", ["noisy", "sc"])]
    configs = [*methods, *ABLATION_CONFIGS.glob("*.json")]
    bundle.check_overrides(dict(arguments.set), configs, arguments.quick, with_clean=True)
    data = bundle.folder / "data" if arguments.dataset_dir is None else Path(arguments.dataset_dir)
    setup = Setup(
        bundle=bundle,
        out=Path(arguments.out),
        dataset_dir=data,
        seeds=arguments.seeds,
        noise=noise,
        quick=arguments.quick,
        overrides=dict(arguments.set),
    )
    ablation = arguments.make(setup, arguments)
    rows = run_ablation(setup, ablation, jobs=arguments.jobs, progress=not arguments.quiet)
    if not arguments.quiet:
        Console(width=None if Console().is_terminal else 110).print(ablation.table(rows))
        print(f"Results: {setup.out.resolve() / ablation.name}.json, and the picture {ablation.name}.png beside it.")


def _noise_level(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    with_clean = arguments.protocol == "paper"
    return noise_level(setup, steps=arguments.steps, methods=arguments.methods, with_clean=with_clean)


def _validation_size(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    return validation_size(setup, sizes=arguments.sizes)


def _confidence(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    return confidence(setup, epochs=arguments.epochs)


def _holes(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    return holes(setup, number=_pair(arguments.number, "--number"), radius=_pair(arguments.radius, "--radius"))


def _pair(values: list[Any], name: str) -> tuple[Any, Any]:
    if len(values) != 2:
        raise ValueError(f"{name} must be low,high, got {','.join(map(str, values))}.")
    return values[0], values[1]


def _list_of(kind: type) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    parse.__name__ = f"list of {kind.__name__}"  # which argparse names when it is none
    return parse
