"""``restore``: the rounds of a label store, and which one is in force."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_sc.commands.common import add_command, add_output_options, print_table, show

if TYPE_CHECKING:
    from monai_sc.data import LabelStore

__all__ = ["add_restore"]

EXAMPLE = """\
example:
  python -m monai_sc restore run/labels
  python -m monai_sc restore run/labels --round 1

Without --round the rounds are listed, and nothing changes. No round is deleted by it, and the labels that were given
stay as they are: --round 0 makes them current again.
"""


def add_restore(commands: Any) -> argparse.ArgumentParser:
    """Add ``restore``: the rounds of a label store, and which one is in force."""
    parser = add_command(
        commands,
        "restore",
        text="list the rounds of a label store, or go back to one",
        description="List the rounds of labels that a label store holds, or make one of them the current one.",
        epilog=EXAMPLE,
    )
    parser.add_argument("store", metavar="STORE", help="folder of the label store, or of the run that has it as labels")
    parser.add_argument("--round", metavar="N", type=int, help="the round whose labels are to be used from now on")
    add_output_options(parser, _restore, when_stopped="the current round may still be the one before")
    return parser


def _restore(arguments: argparse.Namespace) -> None:
    from monai_sc.data import LabelStore

    store = LabelStore.open(arguments.store)
    if arguments.round is not None:
        if arguments.round not in store.rounds:
            known = ", ".join(map(str, store.rounds))
            raise ValueError(f"--round must be one of those in {store.root}, {known}, got {arguments.round}.")
        store.restore(arguments.round)
    result = {"store": str(Path(store.root).resolve()), "in_force": store.current, "classes": store.class_names}
    result["rounds"] = [_round(store, number) for number in store.rounds]
    show(arguments, result, lambda: _print_rounds(result))


def _round(store: LabelStore, number: int) -> dict[str, Any]:
    """Return what is known of a round, which for labels that are as they were given is next to nothing."""
    known = {"round": number, "in_force": store.current == number, "cases": len(store.cases)}
    if number == 0 and not store.is_simulated:
        return known | {"bias": None, "noise": None, "voxels_changed": None}
    record, lines = store.record(number), store.manifest(number)
    return known | {
        "bias": record.get("bias"),  # of the labels from which the round was made
        "noise": (record.get("noise") or {}).get("name"),
        "voxels_changed": [sum(line["voxels_changed"][k] for line in lines) for k in range(len(store.class_names))],
    }


def _print_rounds(result: dict[str, Any]) -> None:
    from rich.table import Table

    names = result["classes"]
    table = Table("round", "current", "labels", "cases", "bias before it, in voxels", "voxels changed")
    for row in result["rounds"]:
        corrected = f"made noisy ({row['noise']})" if row["noise"] else "corrected" if row["round"] else "as given"
        table.add_row(
            str(row["round"]),
            "yes" if row["in_force"] else "",
            corrected,
            str(row["cases"]),
            _by_class(names, row["bias"], "+.2f"),
            _by_class(names, row["voxels_changed"], "d"),
        )
    print_table(table)
    print(f"The current labels of {result['store']} are those of round {result['in_force']}.")


def _by_class(names: list[str], values: list[float | None] | None, form: str) -> str:
    if values is None:
        return "-"
    told = ["-" if value is None or value != value else format(value, form) for value in values]
    return told[0] if len(names) == 1 else ", ".join(f"{name} {text}" for name, text in zip(names, told, strict=True))
