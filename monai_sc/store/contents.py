"""What a label store is, kept in its folder, so that it can be opened without its case list."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_sc.files.cases import Case, check_list, file_keys, files_of
from monai_sc.files.durable import replace_synced

if TYPE_CHECKING:
    from monai_sc.store.label_store import LabelStore

STORE_FILE = "store.json"
IN_A_RUN = "labels"  # the folder of the store in the output folder of a bundle's run
TYPES: dict[str, tuple[type, ...]] = {
    "cases": (list,),
    "class_names": (list,),
    "values": (list, type(None)),
    "config_version": (str, type(None)),
    "skipped": (dict,),
}


def has_contents(store: LabelStore) -> bool:
    """Say whether the folder of a store says already what it is."""
    try:
        return (store.root / STORE_FILE).read_text(encoding="utf-8") == _contents(store)
    except (OSError, ValueError):
        return False


def write_contents(store: LabelStore) -> None:
    """Write ``store.json``: the arguments of a store.

    The paths of files are absolute, and what JSON cannot hold of a case is left out.

    Raises:
        OSError: when the disk cannot take it; a file that was there stays.
    """
    replace_synced(store.root / STORE_FILE, _contents(store))


def find_store(folder: Path) -> Path:
    """Return the folder of a label store: ``folder`` itself, or ``labels`` in it, where runs of the bundles have it.

    Raises:
        FileNotFoundError: when neither has a ``store.json``.
    """
    for root in (folder, folder / IN_A_RUN):
        if (root / STORE_FILE).is_file():
            return root
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder.")
    raise FileNotFoundError(
        f"{folder} must be a label store, or a folder with one as {IN_A_RUN}, but has no {STORE_FILE}; to undo "
        "`correct`, delete its folder; for a store of an older version, LabelStore(root, cases) creates one."
    )


def read_contents(root: Path) -> dict[str, Any]:
    """Return what ``store.json`` says: ``cases`` and the other arguments of the store, and ``skipped``.

    Raises:
        ValueError: when it is damaged.
    """
    file = root / STORE_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        for key, types in TYPES.items():
            if not isinstance(content[key], types):
                raise TypeError(key)
        check_list(content["cases"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged; put it back from a copy, or write it anew by LabelStore(root, cases)."
        ) from error
    return {key: content[key] for key in TYPES}


def _contents(store: LabelStore) -> str:
    content = {
        "cases": [_plain(case) for case in store.cases],
        "class_names": store.class_names,
        "values": None if store.values is None else [int(value) for value in store.values],
        "config_version": store.config_version,
        "skipped": store.skipped,
    }
    return json.dumps(content, indent=1) + "\n"


def _plain(case: Case) -> Case:
    """Return what JSON can hold of a case, with absolute paths."""
    plain = {}
    for key, value in case.items():
        if key in file_keys(case):
            # not resolved, since the name of a link may say of what type the file is, and its target not
            paths = [str(file.absolute()) for file in files_of(case, key)]
            plain[key] = paths[0] if isinstance(value, (str, os.PathLike)) else paths
            continue
        value = value.item() if isinstance(value, np.generic) else value
        with suppress(TypeError, ValueError):
            json.dumps(value, allow_nan=False)
            plain[key] = value
    return plain
