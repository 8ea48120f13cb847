"""Case lists: what a case dictionary holds, and its checks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Case", "check_cases", "label_files"]

Case = dict[str, Any]
"""``id``, ``image`` (file), ``label`` (file, or one per class); where known ``clean_label``, for reports only;
``foreground``, the value of the foreground in the label files, where it is not 1."""


def label_files(case: Mapping[str, Any], key: str = "label") -> list[Path]:
    """Return the files of the case's label, one per class."""
    files = case[key]
    return [Path(files)] if isinstance(files, (str, Path)) else [Path(f) for f in files]


def check_cases(cases: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a case list that lacks a key or a file, or has an id that cannot name a folder or stands twice.

    Raises:
        ValueError: when the list is empty, an id is unfit or repeated, or cases differ in their number of label files.
        KeyError: when a case lacks ``id``, ``image`` or ``label``.
        FileNotFoundError: when a file does not exist.
    """
    if not cases:
        raise ValueError("cases must hold at least one case, got none.")
    for case in cases:
        for key in ("id", "image", "label"):
            if key not in case:
                raise KeyError(f"Every case needs 'id', 'image' and 'label'; {case.get('id', case)!r} has no {key!r}.")
        if not re.fullmatch(r"[^./\\\x00][^/\\\x00]*", str(case["id"])):
            raise ValueError(
                f"The id of a case must be usable as a folder name, without slashes and not starting with a dot, "
                f"got {case['id']!r}."
            )
        files = [Path(case["image"]), *label_files(case)]
        files += label_files(case, "clean_label") if "clean_label" in case else []
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"{file} of case {case['id']!r} does not exist.")
    repeated = [name for name, count in Counter(str(case["id"]) for case in cases).items() if count > 1]
    if repeated:
        raise ValueError(f"The ids of cases must be unique, got {repeated[0]!r} twice or more.")
    counts = {len(label_files(case)) for case in cases}
    if len(counts) > 1:
        raise ValueError(f"All cases must have the same number of label files, one per class, got {sorted(counts)}.")
