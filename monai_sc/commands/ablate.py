"""``ablate``: repeat trainings with one thing changed."""

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
    several,
    show,
)

UNBIASED, SHOWN = "dilate_erode", ["noisy", "sc"]
EXAMPLE = """\
example:
  python -m monai_sc ablate noise-level --bundle bundles/jsrt --dataset-dir DATA --out level --steps 180,240,320,400
  python -m monai_sc ablate holes --bundle bundles/phantom --out holes

The bundle phantom generates its images. Each training is a process of its own, with its log in OUT/cells; stopped or
killed, the same command goes on. Results: a table, NAME.json and NAME.png in OUT.
"""


def add_ablate(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "ablate",
        text="repeat an ablation of the paper",
        description="Train a bundle several times with one setting changed, and plot the effect.",
        epilog=EXAMPLE,
    )
    kinds = parser.add_subparsers(metavar="NAME", dest="NAME", required=True)
    own = _add(kinds, "noise-level", "methods at increasing noise")
    text = "steps (default: 1, 4/3, 16/9 and 20/9 times the bundle's)"
    own.add_argument("--steps", metavar="T", type=several(int), help=text)
    own.add_argument("--methods", metavar="NAMES", type=several(str), default=SHOWN, help="(default: noisy,sc)")
    own.add_argument("--noise", metavar="NAME", help="a Markov noise of the bundle (default: its own choice)")
    add_protocol(own)
    own = _add(kinds, "validation-size", "the correction with fewer clean cases")
    text = "numbers of cases (default: 24,12,6,3,1)"
    own.add_argument("--sizes", metavar="N", type=several(int), default=argparse.SUPPRESS, help=text)
    own.add_argument("--noise", metavar="NAME", help="noise of the bundle (default: its own choice)")
    own = _add(kinds, "confidence", "how sure plain training becomes of wrong labels")
    own.add_argument("--epochs", metavar="N", type=int, help="epochs of training (default: one round of the bundle)")
    text = "noise of the bundle (default: dilate_erode if the bundle has it)"
    own.add_argument("--noise", metavar="NAME", help=text)
    own = _add(kinds, "holes", "the correction of labels with holes")
    text = "of holes: low,high (default: 2,5)"
    own.add_argument("--number", metavar="N", type=several(int), default=[2, 5], help=text)
    text = "in voxels: low,high (default: 2,4)"
    own.add_argument("--radius", metavar="R", type=several(float), default=[2, 4], help=text)


def _add(kinds: Any, name: str, text: str) -> argparse.ArgumentParser:
    epilog = f"example:\n  python -m monai_sc ablate {name} --bundle bundles/phantom --out {name}\n"
    parser = add_command(kinds, name, text=text, description=f"Train and draw: {text}.", epilog=epilog)
    add_training_options(parser)
    add_output_options(parser, _ablate, when_stopped="finished trainings are kept; run the same command to resume")
    return parser


def _ablate(arguments: argparse.Namespace) -> None:
    from monai_sc.benchmark import ablations
    from monai_sc.benchmark.ablations.ablation import ABLATION_CONFIGS
    from monai_sc.benchmark.grid import ComparedBundle, find_method

    bundle = ComparedBundle(arguments.bundle)
    is_unbiased = arguments.NAME == "confidence" and UNBIASED in bundle.noises
    own_choice = UNBIASED if is_unbiased else bundle.train["noise"]
    noise = getattr(arguments, "noise", None) or own_choice
    bundle.check_noises([noise])
    configs = [find_method(method)[1] for method in getattr(arguments, "methods", SHOWN)]
    configs += ABLATION_CONFIGS.glob("*.json")
    arguments.with_clean = getattr(arguments, "protocol", None) == "paper"
    bundle.check_overrides(dict(arguments.overrides), configs, arguments.quick, with_clean=arguments.with_clean)
    data = bundle.folder / "data" if arguments.dataset_dir is None else Path(arguments.dataset_dir)
    setup = ablations.Setup(
        bundle=bundle,
        out=Path(arguments.out),
        dataset_dir=data,
        seeds=arguments.seeds,
        noise=noise,
        quick=arguments.quick,
        overrides=dict(arguments.overrides),
    )
    for name in ("number", "radius"):
        if len(values := getattr(arguments, name, [0, 0])) != 2:
            raise ValueError(f"--{name} must be low,high, got {','.join(map(str, values))}.")
    make = getattr(ablations, arguments.NAME.replace("-", "_"))
    ablation = make(setup, **options_of(make, arguments))
    rows = ablations.run_ablation(setup, ablation, jobs=arguments.jobs, progress=not arguments.quiet)
    out = setup.out.resolve()

    def tell() -> None:
        print_table(ablation.table(rows))
        print(f"Results: {out / ablation.name}.json, and the picture {ablation.name}.png beside it.")

    show(arguments, {"ablation": ablation.name, "out": str(out), "rows": rows}, tell)
