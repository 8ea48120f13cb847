"""Words that several modules print."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 case"``, ``"2 cases"``.

    Args:
        number: of things.
        noun: in the singular; its plural ends with ``s``, or with ``es`` behind ``s``.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
