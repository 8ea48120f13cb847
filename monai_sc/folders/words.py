"""Sentences on a corrected folder, for the console and for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_sc.wording import class_called, counted, signed

Row = Mapping[str, Any]

BY_NETWORK = ("blend", "predict")
MOST_NAMES = 5  # that a sentence lists
SINGLE = "based on a single case; no held-out case confirms it"


def source_of(row: Row) -> str:
    """Return where the labels of a class come from: a shift by nothing leaves them where they are."""
    still = row["move"]["representation"] == "none" or not row["move"]["shift"]
    return "keep" if row["source"] == "move" and still else str(row["source"])


def dice_words(value: float) -> str:
    """Return a Dice as ``".957"``."""
    return f"{value:.3f}".removeprefix("0")


def done_words(row: Row, unit: str, num_pairs: int) -> str:
    """Return what was done to the labels of a class of a report, and by which rule; a sentence without a stop."""
    source = source_of(row)
    if source == "keep":
        return f"labels stay: {_why_kept(row, num_pairs)}"
    if source == "move":
        shift = row["move"]["shift"]
        return f"labels moved by {shift:+.3g} {unit} (rule: {_rule(row)})"
    own = row["correction"]
    asked = own["note"] == "as asked"
    by = "labels replaced by the network's, as asked" if asked else "labels corrected by the network"
    if own["representation"] != "none" and own["shift"]:
        by += f", whose boundaries were moved by {own['shift']:+.3g} {unit} (rule: {own['note']})"
    return f"{by}, blended with the drawn shape" if source == "blend" else f"{by}, without the drawn shape"


def _rule(row: Row) -> str:
    note = str(row["move"]["note"])
    cases = counted(row["cases_used"], "case")
    if note.startswith("a shift by the bias"):
        return f"the bias of {cases} with both labels"
    if note.startswith("this shift"):
        return f"the shift with the best Dice on {cases} with both labels"
    return note


def _why_kept(row: Row, num_pairs: int) -> str:
    held_out = row["held_out"]
    if num_pairs == 1 and not held_out["note"]:
        return "a single case has both labels, so no other case can judge a shift; have one more drawn again"
    if not num_pairs and not row["learnt"]:
        return "the network has not learnt the class, and no case has both labels"
    if row["bias_of"] == "labels" and held_out["cases"]:
        return str(held_out["note"])
    notes = [held_out["note"] if num_pairs else "", row["move"]["note"], row["correction"]["note"]]
    return next((note for note in notes if note), "no correction makes them clearly better")


def held_out_words(row: Row) -> str:
    """Return what the correction of a class is worth on held-out cases; empty where there is nothing to say."""
    own, kept = row["held_out"], source_of(row) == "keep"
    if own["cases"]:
        where = f"on {counted(own['cases'], 'held-out case')}"
        before, after = (dice_words(own[key]) for key in ("before", "after"))
        if own["of"] == "labels":
            told = f"{where} with both labels, each judged by the others: Dice {before} as given"
            return told if kept else f"{told}, {after} corrected"
        told = f"{where}, each judged by the others: Dice of the predictions {before} uncorrected, {after} corrected"
        return f"{told}; the gain of the labels is unknown, since no case has both labels"
    return "" if kept else SINGLE if not own["note"] or "single" in own["note"] else f"made {own['note']}, not judged"


def class_notes(row: Row, unit: str) -> list[str]:
    """Return more sentences on a class, without stops: what it is worth, and what the network is like."""
    notes = [held_out_words(row)]
    network = row["network"]
    if network is not None and row["bias_of"] == "labels" and network["bias"] is not None:
        ends = network["interval"]
        low_high = "" if ends[0] is None else f" [{signed(ends[0])}, {signed(ends[1])}]"
        notes.append(
            f"the network's own bias, which is not that of the labels: {signed(network['bias'])} {unit}{low_high}, "
            f"{network['verdict']}"
        )
    if not row["learnt"]:
        notes.append("the network has not learnt the class (Dice under 0.5 on the clean cases)")
    return [note for note in notes if note]


def existence_words(refused: int, existence: Mapping[str, Any] | None) -> list[str]:
    """Return the sentences on shifts that were refused, and on objects that a rule has dropped, without stops."""
    notes = []
    if refused:
        stay = "stays" if refused == 1 else "stay"
        notes.append(f"{counted(refused, 'object')} {stay}, since the shift would have left too little")
    rule = (existence or {}).get("rule")
    if rule is not None:
        drawn = "drawn ones too" if rule.get("drops_given") else "unless they were drawn"
        feature = str(rule["feature"]).replace("_", " ")
        notes.append(
            f"the false-positive filter dropped predicted objects with a {feature} under {rule['threshold']:.3g}, "
            f"{drawn}"
        )
    return notes


def folder_notes(report: Mapping[str, Any]) -> list[str]:
    """Return the sentences on files that say nothing or not all, and on values that stay."""
    notes = file_notes(report)
    for value, number in report["other_values"].items():
        notes.append(f"Value {value} is not a class and stays in {counted(number, 'label')}.")
    return notes


def file_notes(result: Mapping[str, Any]) -> list[str]:
    """Return the sentences on a unit that is not stated, and on clean labels without a label of the same name."""
    notes = []
    if result["unit"] == "mm" and not result.get("unit_stated", True):
        notes.append("Some files state no unit of length; mm is assumed.")
    if names := result.get("unused"):
        told = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if (more := len(names) - MOST_NAMES) > 0 else "")
        label = counted(len(names), "clean label")
        notes.append(f"{label} without a label of the same name did not count for the bias: {told}.")
    return notes


def bias_sentence(found: Sequence[tuple[str, str, float | None]], *, of: str = "labels") -> str:
    """Return which classes are biased, and which way; ``found`` has name, verdict and bias of each."""
    biased = [(name, bias) for name, verdict, bias in found if verdict == "biased"]
    if biased:
        words = ", ".join(
            f"{class_called(name)} too {'large' if (bias or 0) < 0 else 'small'}" for name, bias in biased
        )
        number = f"{len(biased)} of {counted(len(found), 'class')}"
        if of == "network":
            return f"No case has both labels; the network that learnt from them is biased in {number} ({words})."
        return f"The labels of {number} are biased ({words})."
    if all(verdict == "unbiased" for _, verdict, _ in found):
        if of == "network":
            return "No case has both labels; the network that learnt from them is biased in no class."
        return "No class is biased: the labels are as large as the clean ones, within the tolerance."
    return "These clean cases do not show whether the labels are biased."


def headline(report: Mapping[str, Any], *, listed: str) -> str:
    """Return the verdict on a corrected folder; ``listed`` says where the cases to check are, such as ``"below"``."""
    rows = report["classes"]
    of = next(row["bias_of"] for row in rows.values())
    told = [bias_sentence([(name, row["verdict"], row["bias"]) for name, row in rows.items()], of=of)]
    told.append(_what_was_done(report))
    changed = [row for name, row in rows.items() if report["moved"][name] != "keep"]
    if any(held_out_words(row) == SINGLE for row in changed):
        told.append("This is based on a single case; no held-out case confirms it.")
    if number := len({entry["case"] for entry in report["to_check"]}):
        told.append(f"{counted(number, 'case')} to check, listed {listed}.")
    return " ".join(told)


def _what_was_done(report: Mapping[str, Any]) -> str:
    moved = report["moved"]
    if all(source == "keep" for source in moved.values()):
        redrawn = report["redrawn"]
        but = f", but those of the {counted(redrawn, 'case')} with a clean label, which have that" if redrawn else ""
        return f"All labels were left as they were given{but}."
    asked = report["settings"]["representation"] != "auto"
    words = {
        "move": "were moved",
        "network": "were replaced by the network's, as asked" if asked else "were corrected by the network",
        "keep": "stay as they were given",
    }
    names: dict[str, list[str]] = {}
    for name, source in moved.items():
        names.setdefault("network" if source in BY_NETWORK else source, []).append(class_called(name))
    parts = [(", ".join(names[kind]), text) for kind, text in words.items() if kind in names]
    if len(parts) == 1:
        whose = "The labels" if len(moved) == 1 else "The labels of all classes"
        return f"{whose} {parts[0][1]}; the originals are untouched."
    first, *others = [f"{who} {text}" for who, text in parts]
    return f"The labels of {', those of '.join([first, *others])}; the originals are untouched."
