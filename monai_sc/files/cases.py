"""Case lists: what a case dictionary holds, and its checks."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

__all__ = ["Case", "LazyCases", "check_cases", "check_list", "check_name", "file_keys", "files_of"]

Case = dict[str, Any]
"""``id``, ``image`` (file, or one per channel), ``label`` (file, or one per class); ``clean_label``, where an expert
has drawn the case again; ``reference_label``, the truth, for reports only; ``foreground``, the value of the foreground
in the label files, by default the one that a file holds; ``trusted``, a mask file, or one per class, of voxels whose
label stays."""
LABELS = ("label", "clean_label", "reference_label")

UNFIT_NAME = re.compile(r"^\.|^[A-Za-z]:|[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
RESERVED = ("round.json", "manifest.jsonl")  # file names beside the folders of the cases in a label store


def files_of(case: Mapping[str, Any], key: str = "label") -> list[Path]:
    """Return the files of one entry of a case; of its label, one per class."""
    files = case[key]
    return [Path(files)] if isinstance(files, (str, os.PathLike)) else [Path(f) for f in files]


def check_name(name: object, what: str) -> None:
    """Refuse what cannot name a file or a folder.

    Raises:
        ValueError: when ``name`` is not a string, or cannot be one part of a path.
    """
    fits = isinstance(name, str) and UNFIT_NAME.search(name) is None
    if not fits or not 0 < len(str(name).encode()) <= 200:
        raise ValueError(
            f"{what} must be a string that can name a file: without slashes and control characters, not starting with "
            f"a dot or a drive such as C:, of at most 200 bytes, got {name!r}."
        )


def composed(name: str) -> str:
    """Return a file name as most systems write it; macOS keeps accents apart from their letters."""
    return unicodedata.normalize("NFC", name)


def same_name(name: str) -> str:
    """Return what names share that are one on some systems: written in another case, or composed otherwise."""
    return composed(name).casefold()


def check_cases(cases: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a case list that lacks a key or a file, or has an id that cannot name a folder or stands twice.

    Raises:
        ValueError: when the list is empty, an id is unfit or repeated (upper and lower case count as the same), or
            cases differ in their number of label files.
        TypeError: when a case is not a dictionary, names no files, or its foreground is not a number.
        KeyError: when a case lacks ``id``, ``image`` or ``label``.
        FileNotFoundError: when a file does not exist.
    """
    check_list(cases)
    for case in cases:
        for key in file_keys(case):
            for file in files_of(case, key):
                if not file.is_file():
                    raise FileNotFoundError(f"{file} of case {case['id']!r} does not exist or is not a file.")


def file_keys(case: Mapping[str, Any]) -> list[str]:
    """Return the keys of a case that hold files."""
    return ["image", "label", *(key for key in (*LABELS[1:], "trusted") if case.get(key) is not None)]


def check_list(cases: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what :py:func:`check_cases` refuses, but without a look at the disk.

    Raises:
        ValueError: when the list is empty, an id is unfit or repeated, or cases differ in their number of label files.
        TypeError: when a case is not a dictionary, names no files, or its foreground is not a number.
        KeyError: when a case lacks ``id``, ``image`` or ``label``.
    """
    if not cases:
        raise ValueError("cases must hold at least one case, got none.")
    counts = set()
    for case in cases:
        if not isinstance(case, Mapping):
            raise TypeError(f"cases must be a list of dictionaries, got {case!r} in it.")
        for key in ("id", "image", "label"):
            if key not in case:
                raise KeyError(f"Every case needs 'id', 'image' and 'label'; {case.get('id', case)!r} has no {key!r}.")
        check_name(case["id"], "The id of a case")
        if same_name(case["id"]) in RESERVED:
            raise ValueError(f"The id of a case must not be one of {RESERVED}, got {case['id']!r}.")
        if not isinstance(case.get("foreground", 1), Real):
            raise TypeError(f"'foreground' of case {case['id']!r} must be a number, got {case['foreground']!r}.")
        for key in file_keys(case):
            try:
                files = files_of(case, key)
            except TypeError:
                files = []
            if not files or any("\0" in str(file) for file in files):
                raise TypeError(f"{key!r} of case {case['id']!r} must be a file or a list of files, got {case[key]!r}.")
            if key in LABELS:
                counts.add(len(files))
    repeated = [name for name, count in Counter(same_name(case["id"]) for case in cases).items() if count > 1]
    if repeated:
        raise ValueError(f"The ids of cases must be unique, got {repeated[0]!r} twice or more.")
    if len(counts) > 1:
        raise ValueError(f"All cases must have the same number of label files, one per class, got {sorted(counts)}.")


class LazyCases(Sequence[Any]):
    """What is loaded of some cases, each when it is asked for."""

    def __init__(self, load: Callable[[Any], Any], cases: Sequence[Any]) -> None:
        self.load = load
        self.cases = cases

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: Any) -> Any:
        return self.load(self.cases[index])
