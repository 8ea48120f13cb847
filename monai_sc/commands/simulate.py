"""``simulate``: make a folder of masks noisy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from monai_sc.commands.common import (
    add_command,
    add_output_options,
    given_options,
    list_of,
    options_of,
    print_table,
    several,
    show,
)
from monai_sc.wording import counted

SIMULATE_EXAMPLE = """\
example:
  python -m monai_sc simulate masks noisy --num-steps 8 --expansion-prob 0.8 --march-prob 0.5
  python -m monai_sc simulate masks noisy --preset jsrt-expand --structure lung --target-dice 0.85

Run the same command to resume.
"""


def add_simulate(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "simulate",
        text="make noisy copies of a folder of masks",
        description="Make noisy copies of all masks in a folder: same names, file types, headers and geometry.",
        epilog=SIMULATE_EXAMPLE,
    )
    parser.add_argument("source", metavar="IN", help="folder of the clean masks, which are only read")
    parser.add_argument("out", metavar="OUT", help="folder for the noisy masks; new, or of the same command")
    noise = parser.add_argument_group("noise", "The first four take one value, or one per class: 4,8,2.")
    options: list[Any] = [  # each is the parameter of the noise with that name
        noise.add_argument("--num-steps", metavar="T", type=list_of(int), help="number of steps"),
        noise.add_argument(
            "--expansion-prob",
            metavar="P",
            type=list_of(float),
            help=("probability probability probability that a step expands"),
        ),
        noise.add_argument(
            "--march-prob", metavar="P", type=list_of(float), help="probability that a boundary voxel moves in a step"
        ),
        noise.add_argument(
            "--flip-prob", metavar="P", type=list_of(float), help="probability that a voxel flips after the steps"
        ),
        noise.add_argument("--smoothing", choices=("before_flips", "after_flips"), help="when to smooth the mask"),
        noise.add_argument(
            "--smooth-sigma", metavar="S", type=float, help="sigma sigma sigma of the smoothing, in voxels or steps"
        ),
        noise.add_argument("--smooth-radius", metavar="R", type=int, help="radius of the smoothing"),
        noise.add_argument("--step-size", metavar="H", type=float, help="length of a step, in mm"),
        noise.add_argument("--in-plane", action="store_true", default=None, help="draw slices one by one"),
        noise.add_argument("--slice-axis", type=int, choices=(0, 1, 2), help="axis of the slices"),
        noise.add_argument(
            "--slice-correlation",
            metavar="C",
            type=float,
            help=("correlation correlation correlation of neighbouring slices, 0 to 1"),
        ),
        noise.add_argument("--unit", choices=("voxel", "mm"), help="unit of the steps; mm uses the header of the file"),
    ]
    noise.add_argument("--preset", metavar="NAME", help="noise of a paper or data set; the options above override it")
    noise.add_argument("--structure", metavar="NAME", help="structure of the preset, such as lung")
    noise.add_argument("--target-dice", metavar="D", type=float, help="look for the steps with this mean Dice")
    text = "choose the steps for this mean Dice"
    noise.add_argument("--target-displacement", metavar="X", type=float, help=text)
    labels = parser.add_argument_group("label maps")
    labels.add_argument(
        "--classes",
        metavar="C",
        type=several(int),
        help="values of the classes that become noisy: 1,2,3 (default: all)",
    )
    labels.add_argument("--overlap", choices=("nearest", "priority"), help="which class gets a contested voxel")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the folder (default: 0)")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="number of number of number of processes (default: 1)"
    )
    parser.set_defaults(own_options=[option.dest for option in options])
    add_output_options(parser, _simulate, when_stopped="the same call goes on from there")


def _simulate(arguments: argparse.Namespace) -> None:
    from monai_sc.files.names import find_masks
    from monai_sc.folders import NoiseChoice, simulate_folder, summarise_simulation
    from monai_sc.folders.simulate import MANIFEST, read_record

    choice = NoiseChoice(given_options(arguments), **options_of(NoiseChoice, arguments))
    # before the folders are looked at, so that a wrong number is what the user is told
    choice.make(arguments.classes, **({"num_steps": 1} if choice.has_target else {}))
    out = Path(arguments.out)
    was_complete = (out / MANIFEST).is_file()
    manifest = simulate_folder(
        **options_of(simulate_folder, arguments),
        make_noise=choice.make,
        description=choice.description(),
        calibrate=choice.calibrate if choice.has_target else None,
    )
    result = {
        "out": str(out.resolve()),
        "cases": len(manifest),
        "was_complete": was_complete,
        "left_out": find_masks(Path(arguments.source))[1],
        "calibration": (read_record(out) or {})["calibration"],
        "classes": summarise_simulation(manifest),
    }
    show(arguments, result, lambda: _print_simulation(result))


def _print_simulation(result: dict[str, Any]) -> None:
    from rich.table import Table

    from monai_sc.folders.simulate import MANIFEST

    if result["was_complete"]:
        print(f"Nothing to do: {result['out']} is complete.")
    table = Table("class", "cases", "mean Dice", "mean displacement (negative: expands)")
    for row in result["classes"]:
        table.add_row(str(row["class"]), str(row["cases"]), _number(row["dice"], ".3f"), _displacement(row))
    print_table(table)
    if result["calibration"]:
        print(f"Steps for the target: {result['calibration']['num_steps']}.")
    if left_out := result["left_out"]:
        print(f"Skipped {len(left_out)} files of other types, such as {left_out[0]}.")
    print(f"{counted(result['cases'], 'noisy mask')} in {result['out']}, listed in {MANIFEST}.")


def _displacement(row: dict[str, Any]) -> str:
    in_mm = "" if row["displacement_mm"] is None else f", {row['displacement_mm']:+.2f} mm"
    return f"{_number(row['displacement_voxels'], '+.2f')} voxels{in_mm}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
