"""``restore``: list the rounds of a label store, or go back to one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_sc.commands.common import add_command, add_output_options, print_table, show

if TYPE_CHECKING:
    from monai_sc.store import LabelStore

EXAMPLE = """\
example:
  python -m monai_sc restore run/labels
  python -m monai_sc restore run/labels --round 1

Without --round the rounds are listed, and nothing changes. No round is deleted by it, and the labels that were given
stay as they are: --round 0 makes them current again.
"""


def add_restore(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "restore",
        text="list the rounds of a label store, or go back to one",
        description="List the rounds of labels that a label store holds, or make one of them the current one.",
        epilog=EXAMPLE,
    )
    parser.add_argument("store", metavar="STORE", help="folder of the label store, or of the run that contains it")
    parser.add_argument("--round", metavar="N", type=int, help="make this round the current one")
    add_output_options(parser, _restore, when_stopped="the current round may still be the one before")


def _restore(arguments: argparse.Namespace) -> None:
    from monai_sc.store import LabelStore

    store = LabelStore.open(arguments.store)
    if arguments.round is not None:
        if arguments.round not in store.rounds:
            known = ", ".join(map(str, store.rounds))
            raise ValueError(f"--round must be one of those in {store.root}, {known}, got {arguments.round}.")
        store.restore(arguments.round)
    result = {"store": str(Path(store.root).resolve()), "current": store.current, "classes": store.class_names}
    result["rounds"] = [_round(store, number) for number in store.rounds]
    show(arguments, result, lambda: _print_rounds(result))


def _round(store: LabelStore, number: int) -> dict[str, Any]:
    """Return what is known of a round, which for labels that are as they were given is next to nothing."""
    import numpy as np

    known = {"round": number, "current": store.current == number, "cases": len(store.cases)}
    if number == 0 and not store.is_simulated:
        return known | {"bias": None, "noise": None, "voxels_changed": None, "changed": None}
    record, lines = store.record(number), store.manifest(number)
    bias, noise = record.get("bias"), record.get("noise")
    scores = np.array([line["dice_to_previous"] for line in lines])
    return known | {
        "bias": bias if isinstance(bias, list) else None,  # of the labels from which the round was made
        "noise": noise.get("name") if isinstance(noise, dict) else None,
        "voxels_changed": [sum(line["voxels_changed"][k] for line in lines) for k in range(len(store.class_names))],
        # Of the label before and after together, which follows from the Dice of the two: no label is read.
        "changed": [round(float(part), 6) for part in (2 * (1 - scores) / (2 - scores)).mean(axis=0)],
    }


def _print_rounds(result: dict[str, Any]) -> None:
    from rich.table import Table

    names = result["classes"]
    table = Table("round", "current", "labels", "cases", "bias before it, in voxels", "voxels changed")
    for row in result["rounds"]:
        corrected = f"made noisy ({row['noise']})" if row["noise"] else "corrected" if row["round"] else "as given"
        changes = None
        if row["voxels_changed"] is not None:  # and which part of the structure that is
            pairs = zip(row["voxels_changed"], row["changed"], strict=True)
            changes = [f"{number} ({100 * part:.1f} %)" for number, part in pairs]
        table.add_row(
            str(row["round"]),
            "yes" if row["current"] else "",
            corrected,
            str(row["cases"]),
            _by_class(names, None if row["bias"] is None else [_signed(value) for value in row["bias"]]),
            _by_class(names, changes),
        )
    print_table(table)
    print(f"The current labels of {result['store']} are those of round {result['current']}.")


def _signed(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:+.2f}"


def _by_class(names: list[str], told: list[str] | None) -> str:
    if told is None:
        return "-"
    return told[0] if len(names) == 1 else ", ".join(f"{name} {text}" for name, text in zip(names, told, strict=True))
