"""The command line, ``python -m monai_sc COMMAND``: it parses, calls and prints."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from monai_sc.correction.state import plain
from monai_sc.data import NoiseChoice, Part, audit_folder, correct_folder, simulate_folder, summary
from monai_sc.data.simulation.folder import MANIFEST, SimulationFolder
from monai_sc.data.simulation.masks import find_masks
from monai_sc.reports.audit import check_audit_folder, write_audit

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130

SIMULATE_EXAMPLE = """\
example:
  python -m monai_sc simulate masks noisy --num-steps 8 --expansion-prob 0.8 --march-prob 0.5
  python -m monai_sc simulate masks noisy --preset jsrt-expand --structure lung --target-dice 0.85

A run that was stopped goes on when it is called again.
Under torchrun, in a SLURM job array or with srun, each process takes a part of the cases.
Exit status: 0 done, 1 failed (a file, the disk), 2 refused (arguments, or folders that do not fit them).
"""


AUDIT_EXAMPLE = """\
example:
  python -m monai_sc audit --labels labels --clean expert --out audit

A case of the one folder is compared with the case of the same name in the other. Nothing is trained.
Under torchrun, in a SLURM job array or with srun, each process takes a part of the cases.
"""

CORRECT_EXAMPLE = """\
example:
  python -m monai_sc correct --predictions nnUNet_cv --labels labelsTr --clean expert --out corrected

Predictions: CASE.npz of nnU-Net (--save_probabilities), or CASE.nii.gz with the channels on the last axis and --kind.
Best are predictions of networks that have not seen the case, as cross-validation gives them.
Under torchrun, in a SLURM job array or with srun, each process takes a part of the cases.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status. What a user did wrong is one sentence, not a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m monai_sc", description="Annotation error in masks: find it, correct it, simulate it."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        command = add(commands)
        command.add_argument("--debug", action="store_true", help="show where in the code an error came from")
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print(f"Stopped; {arguments.when_stopped}.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        text = str(error)
        print(f"Error: {text if text.endswith('.') else f'{type(error).__name__}: {text}.'}", file=sys.stderr)
        return REFUSED if isinstance(error, (ValueError, FileNotFoundError)) else FAILED
    return DONE


def add_simulate(commands: Any) -> argparse.ArgumentParser:
    """Add ``simulate``: a folder of masks made noisy."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="make noisy copies of a folder of masks",
        description="Make noisy copies of all masks in a folder: same names, file types, headers and geometry.",
        epilog=SIMULATE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="IN", help="folder of the clean masks, which are only read")
    parser.add_argument("out", metavar="OUT", help="folder for the noisy masks: new, or that of the same call")
    noise = parser.add_argument_group("noise", "The first four take one value, or one per class: 4,8,2.")
    options: list[Any] = [  # each is the parameter of the noise with that name
        noise.add_argument("--num-steps", metavar="T", type=_list_of(int), help="steps of the boundary"),
        noise.add_argument("--expansion-prob", metavar="P", type=_list_of(float), help="that a step expands"),
        noise.add_argument("--march-prob", metavar="P", type=_list_of(float), help="that a voxel moves in a step"),
        noise.add_argument("--flip-prob", metavar="P", type=_list_of(float), help="that a voxel flips in the end"),
        noise.add_argument("--smoothing", choices=("before_flips", "after_flips"), help="when to smooth the mask"),
        noise.add_argument("--smooth-sigma", metavar="S", type=float, help="of the smoothing, in voxels or steps"),
        noise.add_argument("--smooth-radius", metavar="R", type=int, help="where the smoothing is cut off"),
        noise.add_argument("--step-size", metavar="H", type=float, help="length of a step, in mm"),
        noise.add_argument("--in-plane", action="store_true", default=None, help="draw slices one by one"),
        noise.add_argument("--slice-axis", type=int, choices=(0, 1, 2), help="along which the slices lie"),
        noise.add_argument("--slice-correlation", metavar="C", type=float, help="of neighbouring slices, 0 to 1"),
        noise.add_argument("--unit", choices=("voxel", "mm"), help="of the steps, from the header of the file"),
    ]
    noise.add_argument("--preset", metavar="NAME", help="the noise of a paper or data set; options above go before it")
    noise.add_argument("--structure", metavar="NAME", help="of a preset that has several, such as lung")
    noise.add_argument("--target-dice", metavar="D", type=float, help="look for the steps with this mean Dice")
    noise.add_argument(
        "--target-displacement", metavar="X", type=float, help="or this mean, negative to expand, in the unit"
    )
    labels = parser.add_argument_group("label maps")
    labels.add_argument("--classes", metavar="C", type=_classes, help="1,2,3; others stay. Default: all in a file")
    labels.add_argument("--overlap", choices=("nearest", "priority"), help="which class gets a contested voxel")
    parser.add_argument("--seed", type=int, default=0, help="of the whole folder (default: 0)")
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(
        run=partial(_simulate, [option.dest for option in options]), when_stopped="the same call goes on from there"
    )
    return parser


def add_audit(commands: Any) -> argparse.ArgumentParser:
    """Add ``audit``: labels compared with clean ones."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="is there a bias in a folder of labels?",
        description="Compare labels with clean ones of the same cases: bias in mm with its interval, by class.",
        epilog=AUDIT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--labels", metavar="DIR", required=True, help="folder of the labels, which are only read")
    parser.add_argument("--clean", metavar="DIR", required=True, help="folder of clean labels, a few are enough")
    parser.add_argument("--images", metavar="DIR", help="folder of images of the same names, for the pictures")
    parser.add_argument("--out", metavar="DIR", help="folder for audit.json and audit.png, made if need be")
    parser.add_argument("--ignore-value", metavar="V", type=float, help="value of unknown voxels")
    parser.add_argument("--tolerance", metavar="MM", type=float, help="a bias that does no harm (default: one voxel)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=_audit, when_stopped="no result was written")
    return parser


def _audit(arguments: argparse.Namespace) -> None:
    quiet = arguments.quiet or arguments.json
    sources = [arguments.labels, arguments.clean, *([] if arguments.images is None else [arguments.images])]
    if arguments.out is not None:
        check_audit_folder(arguments.out, sources)
    part = Part.from_environment()
    if part.count > 1 and arguments.out is None:
        raise ValueError("--out must be given to several processes, which exchange through it what they measure.")
    result = audit_folder(
        arguments.labels,
        arguments.clean,
        ignore_value=arguments.ignore_value,
        tolerance=arguments.tolerance,
        progress=not quiet and part.index == 0,
        part=part,
        out=arguments.out,
    )
    if not result:
        _print_part(part, quiet)
        return
    content = json.dumps(plain(result, nan=False), indent=2)
    if arguments.out is not None:
        write_audit(result, arguments.labels, arguments.clean, arguments.out, images=arguments.images)
    if arguments.json:
        print(content)
    elif not arguments.quiet:
        _print_audit(result)
        if arguments.out is not None:
            print(f"Results and pictures: {Path(arguments.out).resolve()}")


def _print_part(part: Part, quiet: bool) -> None:
    """Tell the user that the result is the matter of another process."""
    if not quiet:
        print(f"{part} is done; the last one to end writes the result.")


def _print_audit(result: dict[str, Any]) -> None:
    in_mm = result["unit"] == "mm"
    unit = "mm" if in_mm else "voxels"
    columns = ["class", "cases", "mean Dice", f"bias in {unit} (negative: too large)", "verdict"]
    table = Table(*columns, *(["in voxels"] if in_mm else []))
    for name, row in result["classes"].items():
        low, high = row["interval"]
        bias = f"{row['bias']:+.2f}" + ("" if low != low else f" [{low:+.2f}, {high:+.2f}]")
        voxels = [f"{row['bias_voxels']:+.2f}"] if in_mm else []
        table.add_row(name, str(row["cases_used"]), f"{row['dice']:.3f}", bias, row["verdict"], *voxels)
    Console(width=None if Console().is_terminal else 110).print(table)
    for name, row in result["classes"].items():
        (spurious, absent), (missed, present) = row["spurious"], row["missed"]
        if spurious or missed:
            print(
                f"Class {name}: drawn in {spurious} of {absent} cases without it, missing in {missed} of {present} "
                "cases with it."
            )
        widths = list(row["half_width_by_cases"].items())
        if row["cases_used"] == 1:
            print(f"Class {name}: one case gives no interval; with a few more there is one.")
        if row["verdict"] == "cannot tell" and widths:
            more = ", ".join(f"{width:.2f} {unit} with {n}" for n, width in widths)
            print(f"Class {name}: half of the interval would be about {more} clean cases.")


def add_correct(commands: Any) -> argparse.ArgumentParser:
    """Add ``correct``: labels corrected by predictions and a few clean labels."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "correct",
        help="correct a folder of labels by predictions and a few clean labels",
        description="Correct a folder of labels by the predictions of a network that learnt from them.",
        epilog=CORRECT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--predictions", metavar="DIR", required=True, help="of all cases, the clean ones among them")
    parser.add_argument("--labels", metavar="DIR", required=True, help="folder of the labels, which are only read")
    parser.add_argument("--clean", metavar="DIR", required=True, help="folder of a few clean labels, only read")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder for the corrected labels")
    parser.add_argument("--kind", choices=("logits", "probabilities"), help="of predictions whose files do not say it")
    parser.add_argument("--trusted", metavar="DIR", help="folder of masks of voxels that stay as they are")
    parser.add_argument("--names", metavar="NAME", type=_names, help="of the classes 1, 2, ...: lung,heart")
    parser.add_argument("--ignore-value", metavar="V", type=int, help="value of unknown voxels, which stay")
    parser.add_argument("--max-shift-mm", metavar="MM", type=float, help="no boundary moves farther")
    parser.add_argument(
        "--representation", choices=("auto", "distance", "logit"), default="auto", help="of the correction (auto)"
    )
    parser.add_argument(
        "--shape-weight", metavar="W", type=float, default=0.5, help="of the shape of the given labels (0.5)"
    )
    parser.add_argument("--no-presence", action="store_true", help="never drop an object")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=_correct, when_stopped="no result was written")
    return parser


def _correct(arguments: argparse.Namespace) -> None:
    quiet = arguments.quiet or arguments.json
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
        progress=not quiet and part.index == 0,
        part=part,
    )
    if not report:
        _print_part(part, quiet)
        return
    if arguments.json:
        print(json.dumps(report, indent=2))
    elif not arguments.quiet:
        _print_correction(report, Path(arguments.out))


def _print_correction(report: dict[str, Any], out: Path) -> None:
    unit = "mm" if report["unit"] == "mm" else "voxels"
    table = Table("class", f"bias of the network in {unit}", "verdict", "correction", "voxels changed")
    for name, row in report["classes"].items():
        bias = "undefined" if row["bias"] is None else f"{row['bias']:+.2f}"
        if row["interval"][0] is not None:
            bias += " [{:+.2f}, {:+.2f}]".format(*row["interval"])
        own = row["correction"]
        done = "none" if own["representation"] == "none" else f"{own['representation']} {own['shift']:+.2f}"
        table.add_row(name, bias, row["verdict"], done, str(report["voxels_changed"][name]))
    Console(width=None if Console().is_terminal else 110).print(table)
    for name, row in report["classes"].items():
        print(f"Class {name}: {row['correction']['note']}.")
        if row["existence"]["rule"] is not None:
            rule = row["existence"]["rule"]
            print(f"Class {name}: objects with a {rule['feature']} under {rule['threshold']:.3g} are dropped.")
    both = report["both"]
    if both["cases"]:
        for name, given in both["given"].items():
            print(
                f"Class {name}: on {both['cases']} cases with both labels, Dice {given:.3f} as given, "
                f"{both['corrected'][name]:.3f} corrected."
            )
    if report["labels_kept"]:
        print(f"Labels of {', '.join(report['labels_kept'])} stay as they are: corrected, they would be worse.")
    print(f"{report['cases']} corrected labels in {out.resolve()}, with report.json and manifest.jsonl.")


def _names(text: str) -> list[str]:
    return text.split(",")


_names.__name__ = "list of names"


def _simulate(parameters: Sequence[str], arguments: argparse.Namespace) -> None:
    given = {name: getattr(arguments, name) for name in parameters if getattr(arguments, name) is not None}
    choice = NoiseChoice(
        given,
        arguments.preset,
        arguments.structure,
        arguments.overlap,
        arguments.target_dice,
        arguments.target_displacement,
    )
    # before the folders are looked at, so that a wrong number is what the user is told
    choice.make(arguments.classes, **({"num_steps": 1} if choice.has_target else {}))
    out = Path(arguments.out)
    quiet = arguments.quiet or arguments.json
    part = Part.from_environment()
    was_complete = (out / MANIFEST).is_file()
    manifest = simulate_folder(
        arguments.source,
        out,
        choice.make,
        description=choice.description(),
        calibrate=choice.calibrate if choice.has_target else None,
        classes=arguments.classes,
        seed=arguments.seed,
        workers=arguments.workers,
        progress=not quiet and part.index == 0,
        part=part,
    )
    if not manifest:
        _print_part(part, quiet)
        return
    result = {
        "out": str(out.resolve()),
        "cases": len(manifest),
        "was_complete": was_complete,
        "left_out": find_masks(Path(arguments.source))[1],
        "calibration": (SimulationFolder(out).record() or {})["calibration"],
        "classes": summary(manifest),
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    elif not arguments.quiet:
        _print_simulation(result)


def _print_simulation(result: dict[str, Any]) -> None:
    if result["was_complete"]:
        print(f"Nothing to do: {result['out']} is complete.")
    table = Table("class", "cases", "mean Dice", "mean displacement (negative: expands)")
    for row in result["classes"]:
        table.add_row(str(row["class"]), str(row["cases"]), _number(row["dice"], ".3f"), _displacement(row))
    Console().print(table)
    if result["calibration"]:
        print(f"Steps that were found for the target: {result['calibration']['num_steps']}.")
    if left_out := result["left_out"]:
        print(f"Files of other types that were left out: {len(left_out)}, such as {left_out[0]}.")
    print(f"{result['cases']} noisy masks in {result['out']}, listed in {MANIFEST}.")


def _displacement(row: dict[str, Any]) -> str:
    in_mm = "" if row["displacement_mm"] is None else f", {row['displacement_mm']:+.2f} mm"
    return f"{_number(row['displacement_voxels'], '+.2f')} voxels{in_mm}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _list_of(kind: type) -> Any:
    def parse(text: str) -> Any:
        values = [kind(part) for part in text.split(",")]
        return values if len(values) > 1 else values[0]

    parse.__name__ = f"{kind.__name__} or list of {kind.__name__}"  # which argparse names when it is none
    return parse


def _classes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_classes.__name__ = "list of int"

COMMANDS = (add_audit, add_correct, add_simulate)

if __name__ == "__main__":
    sys.exit(main())
