"""What several commands share."""

from __future__ import annotations

import argparse
from typing import Any

from monai_sc.data import Part

__all__ = ["list_of", "override", "print_part", "seeds"]


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


def seeds(text: str) -> list[int]:
    """Read how many seeds there are to be, or which."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise argparse.ArgumentTypeError(f"must be at least 1, or seeds between commas, got {text}")
    return list(dict.fromkeys(numbers)) if "," in text else list(range(numbers[0]))


def override(text: str) -> tuple[str, str]:
    """Read the value that an id of a config is to have."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"must be ID=VALUE, got {text}")
    return name, value
