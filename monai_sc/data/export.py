"""Labels of a store for use without it: a plain folder, or a data list of MONAI."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monai_sc.data.cases import files_of
from monai_sc.data.durable import naming, replace_synced, sync_file, sync_folder
from monai_sc.data.label_files import name_suffix

if TYPE_CHECKING:
    from monai_sc.data.label_store import LabelStore


@contextmanager
def new_folder(store: LabelStore, out: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``out`` to write into, which takes its name at the end, or is gone after an error.

    Raises:
        ValueError: when ``out`` is no new or empty folder, or lies in the store.
        OSError: when it cannot be written.
    """
    target = out.resolve()
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken or target.is_relative_to(store.root.resolve()):
        raise ValueError(f"out must be a new or an empty folder outside of {store.root}, got {out}.")
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o755)
        with naming(target):
            partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(target.parent)


def copy_file(source: Path, copy: Path) -> None:
    """Copy a file, and flush it to the disk."""
    shutil.copyfile(source, copy)
    sync_file(copy)


def export_labels(store: LabelStore, out: Path, number: int) -> Path:
    """Copy the labels of a round, as :py:meth:`LabelStore.export <monai_sc.data.LabelStore.export>` says."""
    target = out.resolve()
    with new_folder(store, out) as partial:
        for case in store.cases:
            files = store.label_files(number, case)
            for k, file in enumerate(files):
                folder = partial / store.class_names[k] if len(files) > 1 else partial
                folder.mkdir(exist_ok=True)
                copy = folder / f"{case['id']}{name_suffix(file)}"
                with naming(target / copy.relative_to(partial)):
                    copy_file(file, copy)
    return target


def export_datalist(store: LabelStore, file: Path, number: int) -> Path:
    """Write a data list, as :py:meth:`LabelStore.export_datalist <monai_sc.data.LabelStore.export_datalist>` says."""
    if file.exists():
        raise ValueError(f"file must be a new file, got {file}, which exists.")
    cases = []
    for case in store.datalist(number):
        for key in ("image", "label", "clean_label", "reference_label", "trusted"):
            if case.get(key) is not None:
                paths = [str(path.resolve()) for path in files_of(case, key)]
                case[key] = paths[0] if isinstance(case[key], (str, os.PathLike)) else paths
        cases.append(case)
    try:
        text = json.dumps({"training": cases}, indent=1)
    except TypeError as error:
        raise ValueError(f"A data list holds what JSON can hold only, but a case does not: {error}.") from error
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(file, text + "\n")
    return file
