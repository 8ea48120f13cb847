"""A prepared data set: what its folder holds, and the case lists of its splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monai.config import PathLike

from monai_sc.datasets.layout import SPLITS
from monai_sc.files.cases import Case
from monai_sc.functional.checks import check_choice

PREPARED = "prepared.json"
"""The file of a prepared folder: ``cases`` by split, with paths from the folder; and what they were made of."""


def prepared_cases(
    dataset_dir: PathLike, split: str, *, noisy: bool = False, class_names: Sequence[str] | None = None
) -> list[Case]:
    """Return the cases of one split of a folder that ``python -m monai_sc prepare`` made.

    Args:
        dataset_dir: the folder, which may have been moved.
        split: ``"train"``, ``"clean"`` (to measure the bias) or ``"test"``.
        noisy: take the labels with error that the data set itself has, and the others as ``reference_label``.
        class_names: that the folder must hold, in this order; ``None``: any.

    Raises:
        ValueError: when the folder is not a prepared one or has other classes, or a split is empty or has no noisy
            labels.
    """
    check_choice(split, SPLITS, "split")
    root = Path(dataset_dir).absolute()
    content = read_prepared(root)
    if class_names is not None and list(class_names) != content["classes"]:
        raise ValueError(
            f"{root} must hold masks of {', '.join(class_names)}, got {', '.join(content['classes'])} of "
            f"{content.get('name')}; correct dataset_dir."
        )
    rows = content["cases"][split]
    if not rows:
        number = sum(len(cases) for cases in content["cases"].values())
        raise ValueError(
            f"{root} has no case in its split {split!r}, having {number} in all; prepare more cases of the data set, "
            "or with another split (--split)."
        )
    if noisy and not all("noisy" in row for row in rows):
        raise ValueError(
            f"{root} has no noisy labels of its own for the split {split!r}; choose another noise than 'files'."
        )
    cases: list[Case] = []
    for row in rows:
        label = [str(root / file) for file in row["label"]]
        case: Case = {"id": row["id"], "image": str(root / row["image"]), "label": label}
        if noisy:
            case |= {"label": [str(root / file) for file in row["noisy"]], "reference_label": label}
        if content["foreground"] != 1:
            case["foreground"] = content["foreground"]
        cases.append(case)
    return cases


def read_prepared(root: Path) -> dict[str, Any]:
    """Return what the file of a prepared folder says.

    Raises:
        ValueError: when there is none, or it is damaged.
    """
    file = root / PREPARED
    if not file.is_file():
        raise ValueError(
            f"{root} is not a prepared data set: it has no {PREPARED}; python -m monai_sc prepare makes one of the "
            "downloaded files."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        is_sound = content["foreground"] > 0 and isinstance(content["classes"], list)
        is_sound = is_sound and all(isinstance(name, str) for name in content["classes"])
        is_sound = is_sound and all(isinstance(rows, list) for rows in content["cases"].values())
        is_sound = is_sound and all(map(_is_row, (r for s in SPLITS for r in content["cases"][s])))
    except (ValueError, KeyError, TypeError, AttributeError):
        is_sound = False
    if not is_sound:
        raise ValueError(f"{file} is damaged; delete its folder, and prepare the data set again.")
    return dict(content)


def _is_row(row: Any) -> bool:
    """Return whether this is what a case of the file looks like."""
    named = isinstance(row["id"], str) and isinstance(row["image"], str)
    files = [row["label"], *([row["noisy"]] if "noisy" in row else [])]
    return named and all(isinstance(f, list) and f and all(isinstance(name, str) for name in f) for f in files)
