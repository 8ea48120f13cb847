"""Words that several modules print."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 case"``, ``"2 cases"``.

    Args:
        number: of things.
        noun: in the singular; its plural ends with ``s``, or with ``es`` behind ``s``.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def class_called(name: str) -> str:
    """Return what a class is called in a sentence: its name, or ``"class 1"`` where that is its value only."""
    return f"class {name}" if name.isdigit() else name


def signed(value: float) -> str:
    """Return a number with its sign and two decimals; with two digits where it is under a tenth, as in microscopy."""
    return f"{value:+.2f}" if value == 0 or not abs(value) < 0.1 else f"{value:+.2g}"
