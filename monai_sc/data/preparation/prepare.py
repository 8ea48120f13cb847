"""A data set as it was downloaded made into the folder that its bundle reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike

from monai_sc.data.cases import check_list
from monai_sc.data.preparation.layout import SPLITS, Layout, SourceCase
from monai_sc.data.preparation.prepared import PREPARED, read_prepared
from monai_sc.data.preparation.splits import draw_splits
from monai_sc.data.preparation.workplace import Workplace, difference_of, unfinished
from monai_sc.functional.checks import check_choice
from monai_sc.names import DATA_SETS

LAYOUTS: dict[str, type[Layout]] = {
    name: import_module(f"monai_sc.data.preparation.{name}").LAYOUT for name in DATA_SETS
}
"""The data sets by name."""


@dataclass
class Preparation:
    """What was prepared.

    Attributes:
        out: the folder.
        counts: number of cases by split.
        left_out: why cases were left out, by their id.
        missing: what the official data set has and the source lacks.
        was_complete: nothing was to be done.
    """

    out: Path
    counts: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    was_complete: bool = False


def prepare(
    name: str,
    source: PathLike,
    out: PathLike,
    *,
    size: Sequence[int] | None = None,
    native: bool = False,
    split: Sequence[int] | None = None,
    seed: int = 0,
    partial: bool = False,
    on_bad_case: str = "raise",
    progress: bool = True,
    **options: Any,
) -> Preparation:
    """Make the folder ``out`` that the bundle of a data set reads, from the data set as it was downloaded.

    Images are resized linearly, smoothed first where they shrink, masks to the nearest voxel. Files without
    geometry are written as PNG, masks with 0 and 255, others as NIfTI, whose affine fits the new size. Nothing is
    written into ``source``. The files grow in ``out`` + ``.partial``, which becomes ``out`` when it is complete; the
    same call goes on where one was stopped. One case is in memory at a time.

    Args:
        name: of the data set, such as ``"isic2017"``; ``python -m monai_sc prepare --help`` lists them.
        source: the folder as it was unpacked.
        out: a folder that does not exist yet, or that the same call made.
        size: spatial size of the prepared files, in the order of MONAI's axes: width, height, (depth).
        native: keep the size of each image; ``size`` is then left out.
        split: shares of training, clean and test cases, such as ``(6, 2, 2)``, where the data set does not have its own
            splits; by default those of the whole data set.
        seed: of the draw of the splits.
        partial: prepare what is there when the data set is not complete; its splits are then smaller in proportion.
        on_bad_case: ``"raise"``, or ``"skip"``, which leaves a case out whose files cannot be used.
        progress: show a progress bar.
        options: of the data set, see its class.

    Raises:
        ValueError: when an argument is wrong, ``source`` is no such data set or not complete, or ``out`` holds
            something else.
        PreparationError: when a file cannot be used; in one sentence.
        OSError: naming the file, when the disk cannot take it.
    """
    layout_type = LAYOUTS[check_choice(name, list(LAYOUTS), "name")]
    check_choice(on_bad_case, ("raise", "skip"), "on_bad_case")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}.")
    source, out = Path(source).resolve(), Path(out).resolve()
    _check_folders(source, out)
    if "seed" in signature(layout_type).parameters:  # the layout itself draws something
        options = {"seed": seed, **options}
    layout = _made(layout_type, source, options)
    size = _checked_size(size, native, layout)
    record = {
        "name": name,
        "monai_sc": version("monai-sc"),
        "source": str(source),
        "size": size,
        "split": None if split is None else list(split),
        "seed": seed,
        "options": layout.options(),
        "partial": partial,
        "on_bad_case": on_bad_case,
    }
    if _holds_files(out):
        return _finished(out, record)
    cases = layout.cases()
    missing = layout.missing(cases)
    if missing and not partial:
        raise ValueError(
            f"{source} is not complete: {'; '.join(missing)}. Download the rest, or pass partial (--partial) to "
            "prepare what is there."
        )
    check_list([{"id": case.id, "image": source, "label": source} for case in cases])
    splits = draw_splits(cases, _shares(split, cases, layout), seed)
    work = Workplace(out)
    try:
        if _holds_files(out):  # another process made it while this one looked through the source
            work.leave()
            return _finished(out, record)
        if not work.begin(record):
            rows, left_out = work.write(layout, splits, size, on_bad_case, progress)
            work.finish({**record, "classes": list(layout.classes), "missing": missing, "left_out": left_out}, rows)
        work.hand_over()
    finally:
        work.release()
    return _preparation(out, read_prepared(out))


def _holds_files(out: Path) -> bool:
    return out.exists() and any(out.iterdir())


def _made(layout_type: type[Layout], source: Path, options: dict[str, Any]) -> Layout:
    known = [name for name in signature(layout_type).parameters if name != "source"]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(
            f"{unknown[0]} is no option of {layout_type.name}, which has {', '.join(known) or 'none'}; leave it out."
        )
    return layout_type(source, **options)


def _check_folders(source: Path, out: Path) -> None:
    if not source.is_dir():
        raise ValueError(f"source must be the folder of the data set, got {source}, which is no folder.")
    if source == out or source in out.parents or out in source.parents:
        raise ValueError(f"out must lie outside of source, which is only read, got {out} and {source}.")
    if source == unfinished(out) or unfinished(out) in source.parents:
        raise ValueError(f"source must lie outside of {unfinished(out)}, where the files grow; choose another out.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}.")
    if out.is_mount():
        raise ValueError(f"out must not be the top of a mounted disk, got {out}; choose a folder in it.")


def _checked_size(size: Sequence[int] | None, native: bool, layout: Layout) -> tuple[int, ...] | None:
    if native:
        if size is not None:
            raise ValueError(f"size must be left out where images keep their own, got {tuple(size)}.")
        return None
    default = layout.default_size
    checked = default if size is None else tuple(size) if isinstance(size, Iterable) else (size,)
    if len(checked) != len(default) or not all(isinstance(n, (int, np.integer)) and n > 0 for n in checked):
        raise ValueError(f"size must be {len(default)} whole numbers over 0 for {layout.name}, got {checked}.")
    return tuple(int(n) for n in checked)


def _shares(split: Sequence[int] | None, cases: Sequence[SourceCase], layout: Layout) -> dict[str, int]:
    if split is None:
        return layout.split_sizes
    if len(split) != len(SPLITS) or min(split) < 0 or not sum(split):
        raise ValueError(f"split must be three shares of at least 0, not all 0, such as 6 2 2, got {tuple(split)}.")
    if all(case.split for case in cases):
        raise ValueError(f"split must be left out, since the files of {layout.name} have their own splits.")
    return dict(zip(SPLITS, split, strict=True))


def _finished(out: Path, record: dict[str, Any]) -> Preparation:
    """Return what was prepared earlier, if it is what is asked for."""
    if not (out / PREPARED).is_file():
        raise ValueError(f"{out} holds other files; choose a folder that is empty or does not exist.")
    content = read_prepared(out)
    if difference := difference_of(content, {key: value for key, value in record.items() if key != "monai_sc"}):
        raise ValueError(f"{out} was prepared otherwise{difference}; choose another folder, or delete it.")
    for row in (row for split in SPLITS for row in content["cases"][split]):
        for file in (row["image"], *row["label"], *row.get("noisy", ())):
            if not (out / file).is_file():
                raise ValueError(
                    f"{out} was complete, but lacks {file} now; delete the folder, and prepare the data set again."
                )
    return _preparation(out, content, was_complete=True)


def _preparation(out: Path, content: dict[str, Any], was_complete: bool = False) -> Preparation:
    counts = {split: len(content["cases"][split]) for split in SPLITS}
    return Preparation(out, counts, content.get("left_out", {}), content.get("missing", []), was_complete)
