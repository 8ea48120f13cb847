"""``ablate``: repeat trainings with one thing changed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_sc.commands.common import (
    add_command,
    add_output_options,
    add_protocol,
    add_training_options,
    print_table,
    several,
    show,
)

if TYPE_CHECKING:
    from monai_sc.benchmark.ablations import Ablation, Setup

UNBIASED = "dilate_erode"
EXAMPLE = """\
example:
  python -m monai_sc ablate noise-level --bundle bundles/jsrt --dataset-dir DATA --out level --steps 180,240,320,400
  python -m monai_sc ablate holes --bundle bundles/phantom --out holes

The bundle phantom generates its images. Each training is a process of its own, with its log in OUT/cells; stopped or
killed, the same command goes on. What comes of it: a table, NAME.json and NAME.png in OUT.
"""


def add_ablate(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "ablate",
        text="repeat an ablation or an illustration of the paper",
        description="Train a bundle several times, with one thing changed, and draw what that does.",
        epilog=EXAMPLE,
    )
    kinds = parser.add_subparsers(metavar="NAME", dest="NAME", required=True)
    own = _add(kinds, "noise-level", "methods against a noise that grows")
    own.add_argument(
        "--steps", metavar="T", type=several(int), help="steps (default: 1, 4/3, 16/9 and 20/9 times the bundle's)"
    )
    own.add_argument(
        "--methods", metavar="NAMES", type=several(str), default=["noisy", "sc"], help="(default: noisy,sc)"
    )
    own.add_argument("--noise", metavar="NAME", help="a Markov noise of the bundle (default: its own choice)")
    add_protocol(own)
    _end(own, _noise_level)
    own = _add(kinds, "validation-size", "the correction with fewer and fewer clean cases")
    own.add_argument("--sizes", metavar="N", type=several(int), help="numbers of cases (default: 24,12,6,3,1)")
    own.add_argument("--noise", metavar="NAME", help="noise of the bundle (default: its own choice)")
    _end(own, _validation_size)
    own = _add(kinds, "confidence", "how plain training becomes sure of wrong labels")
    own.add_argument("--epochs", metavar="N", type=int, help="of the training (default: a round of the bundle)")
    own.add_argument(
        "--noise", metavar="NAME", help="noise of the bundle (default: dilate_erode, which has no bias, if it is there)"
    )
    _end(own, _confidence)
    own = _add(kinds, "holes", "what the correction makes of labels with holes")
    own.add_argument(
        "--number", metavar="N", type=several(int), default=[2, 5], help="of holes: low,high (default: 2,5)"
    )
    own.add_argument(
        "--radius", metavar="R", type=several(float), default=[2, 4], help="in voxels: low,high (default: 2,4)"
    )
    _end(own, _holes)


def _add(kinds: Any, name: str, text: str) -> argparse.ArgumentParser:
    epilog = f"example:\n  python -m monai_sc ablate {name} --bundle bundles/phantom --out {name}\n"
    parser = add_command(kinds, name, text=text, description=f"Train and draw: {text}.", epilog=epilog)
    add_training_options(parser)
    return parser


def _end(parser: argparse.ArgumentParser, make: Callable[[Setup, argparse.Namespace], Ablation]) -> None:
    parser.set_defaults(make=make)
    add_output_options(parser, _ablate, when_stopped="what is done is kept, and the same command goes on")


def _ablate(arguments: argparse.Namespace) -> None:
    from monai_sc.benchmark.ablations import Setup, run_ablation
    from monai_sc.benchmark.ablations.ablation import ABLATION_CONFIGS
    from monai_sc.benchmark.grid import ComparedBundle, find_method

    bundle = ComparedBundle(arguments.bundle)
    own_choice = UNBIASED if arguments.make is _confidence and UNBIASED in bundle.noises else bundle.train["noise"]
    noise = getattr(arguments, "noise", None) or own_choice
    bundle.check_noises([noise])
    configs = [find_method(method)[1] for method in getattr(arguments, "methods", ["noisy", "sc"])]
    configs += ABLATION_CONFIGS.glob("*.json")
    with_clean = getattr(arguments, "protocol", None) == "paper"
    bundle.check_overrides(dict(arguments.overrides), configs, arguments.quick, with_clean=with_clean)
    data = bundle.folder / "data" if arguments.dataset_dir is None else Path(arguments.dataset_dir)
    setup = Setup(
        bundle=bundle,
        out=Path(arguments.out),
        dataset_dir=data,
        seeds=arguments.seeds,
        noise=noise,
        quick=arguments.quick,
        overrides=dict(arguments.overrides),
    )
    ablation = arguments.make(setup, arguments)
    rows = run_ablation(setup, ablation, jobs=arguments.jobs, progress=not arguments.quiet)
    out = setup.out.resolve()

    def tell() -> None:
        print_table(ablation.table(rows))
        print(f"Results: {out / ablation.name}.json, and the picture {ablation.name}.png beside it.")

    show(arguments, {"ablation": ablation.name, "out": str(out), "rows": rows}, tell)


def _noise_level(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    from monai_sc.benchmark.ablations import noise_level

    with_clean = arguments.protocol == "paper"
    return noise_level(setup, steps=arguments.steps, methods=arguments.methods, with_clean=with_clean)


def _validation_size(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    from monai_sc.benchmark.ablations import validation_size
    from monai_sc.benchmark.ablations.validation_size import SIZES

    return validation_size(setup, sizes=SIZES if arguments.sizes is None else arguments.sizes)


def _confidence(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    from monai_sc.benchmark.ablations import confidence

    return confidence(setup, epochs=arguments.epochs)


def _holes(setup: Setup, arguments: argparse.Namespace) -> Ablation:
    from monai_sc.benchmark.ablations import holes

    return holes(setup, number=_pair(arguments.number, "--number"), radius=_pair(arguments.radius, "--radius"))


def _pair(values: list[Any], name: str) -> tuple[Any, Any]:
    if len(values) != 2:
        raise ValueError(f"{name} must be low,high, got {','.join(map(str, values))}.")
    return values[0], values[1]
