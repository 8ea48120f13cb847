"""Which files of a folder are masks that can be simulated, and which folder may take the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from monai_sc.files.cases import composed, same_name
from monai_sc.files.write import ONE_FILE, WRITABLE, file_suffix


def find_masks(source: Path) -> tuple[list[str], list[str]]:
    """Return the names of the masks in a folder, relative, with slashes and sorted; and those of all other files.

    Hidden files and folders are in neither list.

    A file may be a link, as in data sets of DataLad, git-annex, DVC and Hugging Face: it is only read.

    Raises:
        FileNotFoundError: when there is no such folder.
        ValueError: when there is no mask, a mask would need two files, a link leads to a folder, or two names differ in
            upper and lower case only.
    """
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is not a folder.")
    masks, others = [], []
    for folder, folders, files in os.walk(source, onerror=_raise):
        where = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [name for name in folders if (where / name).is_symlink()]:
            raise ValueError(f"{where / name} is a link to a folder, which is not followed; give that folder itself.")
        for file in [where / name for name in sorted(files) if not name.startswith(".")]:
            if file_suffix(file) not in WRITABLE or not file.is_file():
                others.append(file.relative_to(source).as_posix())
                continue
            if file_suffix(file) not in ONE_FILE:
                raise ValueError(
                    f"{file} keeps header and voxels in two files, which simulate does not support; convert it, for "
                    "example to .nrrd, .mha or .nii.gz."
                )
            masks.append(file.relative_to(source).as_posix())
    if not masks:
        got = f", got {others[0]}" if others else ""
        raise ValueError(f"{source} holds no mask file, {', '.join(ONE_FILE)}{got}.")
    seen: dict[str, str] = {}
    for name in masks:
        if name.encode(errors="ignore").decode() != name:
            raise ValueError(f"{source} holds {name!r}, whose name is not valid UTF-8; rename it.")
        key = same_name(name)
        if key in seen:
            raise ValueError(f"{seen[key]} and {name} in {source} are one name on some systems; rename one of them.")
        seen[key] = name
    return sorted(masks), others


def find_in(folder: Path, name: str) -> Path:
    """Return the file of a folder with a name, however its accents are written; where there is none, as if it were."""
    path = folder / name
    if path.exists() or name.isascii():
        return path
    here = folder
    for part in Path(name).parts:
        found = here / part
        if not found.exists() and here.is_dir():
            found = next((own for own in here.iterdir() if composed(own.name) == composed(part)), found)
        here = found
    return here


def named_alike(names: Iterable[str], like: Iterable[str]) -> list[str]:
    """Return names as ``like`` writes them, where they differ only in how accents are written."""
    known = {composed(name): name for name in like}
    return [known.get(composed(name), name) for name in names]


def refuse_names(source: Path, names: Sequence[str], taken: Sequence[str]) -> None:
    """Refuse masks in a folder that is called as a file of the result.

    Raises:
        ValueError: naming the first of them.
    """
    for name in names:
        if name.split("/")[0] in taken:
            raise ValueError(f"{source} must not hold a folder {name}, which is the name of a result file.")


def refuse_shared_folders(source: Path, root: Path) -> None:
    """Refuse to write into the folder of the clean masks, or around it.

    Raises:
        ValueError: when one of the two resolved paths holds the other, or ``root`` is a file.
    """
    if root == source or root.is_relative_to(source) or source.is_relative_to(root):
        raise ValueError(
            f"The noisy masks must not go into the folder of the clean ones or around it, got {root} for {source}; "
            "choose another folder."
        )
    if root.exists() and not root.is_dir():
        raise ValueError(f"{root} must be a folder, but is a file.")


def _raise(error: OSError) -> None:
    raise error
