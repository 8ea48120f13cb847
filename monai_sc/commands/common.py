"""What several commands share."""

from __future__ import annotations

from typing import Any

from monai_sc.data import Part

__all__ = ["list_of", "print_part"]


def print_part(part: Part, quiet: bool) -> None:
    """Tell the user that the result is the matter of another process."""
    if not quiet:
        print(f"{part} is done; the last one to end writes the result.")


def list_of(kind: type) -> Any:
    """Return what reads one value of a kind, or several between commas."""

    def parse(text: str) -> Any:
        values = [kind(part) for part in text.split(",")]
        return values if len(values) > 1 else values[0]

    parse.__name__ = f"{kind.__name__} or list of {kind.__name__}"  # which argparse names when it is none
    return parse
