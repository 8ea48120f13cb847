"""A data set as it was downloaded, made into the folder that its bundle reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.config import PathLike
from monai.data import MetaTensor
from monai.transforms import Resize
from PIL import Image
from rich.progress import Progress
from scipy import ndimage

from monai_sc.datasets.layout import SPLITS, Content, Layout, SourceCase
from monai_sc.datasets.prepared import PREPARED, read_prepared
from monai_sc.files.cases import check_list
from monai_sc.files.durable import (
    LOCK,
    claim_folder,
    json_object,
    naming,
    partial_of,
    release_folder,
    replace_synced,
    sync_file,
    sync_folder,
    write_synced,
)
from monai_sc.files.read import unreadable
from monai_sc.functional.checks import check_choice
from monai_sc.names import DATA_SETS


def draw_splits(cases: Sequence[SourceCase], sizes: Mapping[str, int], seed: int) -> dict[str, list[SourceCase]]:
    """Return the cases of each split, in their order; those that the data set gives to a split stay there.

    The others are drawn by group, in proportion to ``sizes``: of groups of one case, as many as the proportion says; of
    larger ones, about as many. No split whose size is over 0 stays empty where there are enough groups.
    """
    split_of = {case.group: case.split for case in cases if case.split is not None}
    given = {case.split for case in cases}
    drawn: dict[str, list[SourceCase]] = {}
    for case in cases:
        if case.group not in split_of:
            drawn.setdefault(case.group, []).append(case)
    groups = sorted(drawn)
    wanted = _sizes(sum(len(group) for group in drawn.values()), sizes)
    wanted_splits = [split for split in SPLITS if sizes[split]]
    order = [groups[k] for k in np.random.default_rng(seed).permutation(len(groups))]
    for number, group in enumerate(order):
        empty = [split for split in wanted_splits if split not in given and split not in split_of.values()]
        must = len(groups) >= len(wanted_splits) and len(groups) - number <= len(empty)
        split_of[group] = max(empty if must else wanted_splits, key=lambda split: wanted[split])
        wanted[split_of[group]] -= len(drawn[group])
    return {split: [case for case in cases if (case.split or split_of[case.group]) == split] for split in SPLITS}


def _sizes(number: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return whole shares of a number in proportion to the sizes: the largest remainders are rounded up."""
    exact = {split: number * sizes[split] / sum(sizes.values()) for split in SPLITS}
    shares = {split: int(share) for split, share in exact.items()}
    for split in sorted(SPLITS, key=lambda split: shares[split] - exact[split])[: number - sum(shares.values())]:
        shares[split] += 1
    return shares


RECORD = "preparation.json"


class PreparationError(RuntimeError):
    """A file of the data set cannot be used; nothing but the unfinished folder was written."""


class Workplace:
    """The unfinished folder: files get their names when they are whole, so that what has one need not be made again."""

    def __init__(self, out: Path) -> None:
        self.out, self.root = out, unfinished(out)
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        claim_folder(self.root)

    def begin(self, record: dict[str, Any]) -> bool:
        """Return whether nothing is left but to give the folder its name.

        Raises:
            ValueError: when the folder holds something else.
        """
        file = self.root / RECORD
        if file.is_file():
            self._check_begun(json_object(file.read_bytes()) or {}, record)
            return False
        if (self.root / PREPARED).is_file():  # the record goes when all else is there
            self._check_begun(read_prepared(self.root), record)
            return True
        # A record that was being written when the call was stopped counts as none.
        if others := sorted({entry.name for entry in self.root.iterdir()} - {LOCK, partial_of(file).name}):
            self.leave()
            raise ValueError(f"{self.root} holds {others[0]}, which prepare did not write; move it elsewhere.")
        replace_synced(file, json.dumps(record, indent=2) + "\n")
        return False

    def _check_begun(self, begun: dict[str, Any], record: dict[str, Any]) -> None:
        if difference := difference_of(begun, record):
            raise ValueError(
                f"{self.root} holds an unfinished preparation with other options{difference}; delete it, or choose "
                "another "
                "folder to prepare."
            )

    def write(
        self,
        layout: Layout,
        splits: dict[str, list[SourceCase]],
        size: tuple[int, ...] | None,
        on_bad_case: str,
        progress: bool,
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
        """Write the files of all cases; return a row for each, by split, and the cases that were left out."""
        rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        left_out: dict[str, str] = {}
        with Progress(disable=not progress, transient=True) as bar:
            task = bar.add_task(f"Preparing {layout.name}", total=sum(map(len, splits.values())))
            for split, cases in splits.items():
                for case in cases:
                    try:
                        rows[split].append(self._written(layout, case, size))
                    except ValueError as error:
                        if on_bad_case == "raise":
                            raise PreparationError(str(error)) from error
                        left_out[case.id] = str(error)
                    bar.advance(task)
        if not any(rows.values()):
            raise PreparationError(f"No case can be used; the first: {next(iter(left_out.values()))}")
        return rows, left_out

    def _written(self, layout: Layout, case: SourceCase, size: tuple[int, ...] | None) -> dict[str, Any]:
        row_file = self.root / "rows" / f"{case.id}.json"
        if row_file.is_file():
            return dict(json.loads(row_file.read_text(encoding="utf-8")))
        content = _resized(_read(layout, case), size)
        suffix = ".png" if content.affine is None else ".nii.gz"
        files = {"image": {f"images/{case.id}{suffix}": content.image}}
        for kind, folder, masks in (("label", "labels", content.labels), ("noisy", "noisy", content.noisy)):
            if masks is not None:
                named = zip(layout.classes, masks, strict=True)
                files[kind] = {f"{folder}/{name}/{case.id}{suffix}": mask[None] for name, mask in named}
        for arrays in files.values():
            for file, array in arrays.items():
                self._put(file, array, content.affine)
        row: dict[str, Any] = {"id": case.id, "group": case.group, "image": next(iter(files["image"]))}
        row |= {kind: list(arrays) for kind, arrays in files.items() if kind != "image"}
        with naming(row_file):
            row_file.parent.mkdir(exist_ok=True)
        replace_synced(row_file, json.dumps(row))
        return row

    def _put(self, file: str, array: np.ndarray, affine: np.ndarray | None) -> None:
        path = self.root / file
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".partial-{path.name}")
            if affine is None:
                _picture(array).save(partial, format="PNG")
            else:
                array = array.astype(np.uint8) if array.dtype == bool else array.astype(np.float32)
                content = array[0] if len(array) == 1 else np.moveaxis(array, 0, -1)
                nib.save(nib.Nifti1Image(content, affine), partial)  # type: ignore[no-untyped-call]
            sync_file(partial)
            partial.replace(path)

    def finish(self, content: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> None:
        """Write the case lists, and delete what is not of them."""
        foreground = 255 if _are_pictures(rows) else 1
        text = json.dumps({**content, "foreground": foreground, "cases": rows}, indent=2) + "\n"
        write_synced(self.root / PREPARED, text)
        named = {self.root / name for name in (PREPARED, RECORD, LOCK)}
        for row in (row for split in SPLITS for row in rows[split]):
            named |= {self.root / file for file in (row["image"], *row["label"], *row.get("noisy", ()))}
        with naming(self.root):
            for file in (entry for entry in self.root.rglob("*") if entry.is_file() and entry not in named):
                if file.parent != self.root / "rows":  # of a call that was stopped, or a case that is no longer there
                    file.unlink()
            sync_folder(self.root)
            (self.root / RECORD).unlink()

    def hand_over(self) -> None:
        """Give the folder its name, now that it is complete."""
        with naming(self.out):
            shutil.rmtree(self.root / "rows", ignore_errors=True)
            (self.root / LOCK).unlink(missing_ok=True)
            self.root.replace(self.out)
            sync_folder(self.out.parent)

    def leave(self) -> None:
        """Take the lock out of a folder in which nothing was begun, and delete it if it is empty."""
        with suppress(OSError):
            (self.root / LOCK).unlink()
            self.root.rmdir()

    def release(self) -> None:
        release_folder(self.root)


def unfinished(out: Path) -> Path:
    """Return the folder in which the files of another one grow."""
    return out.with_name(out.name + ".partial")


def difference_of(begun: dict[str, Any], record: dict[str, Any]) -> str:
    """Return what differs, in brackets."""
    plain = json.loads(json.dumps(record))
    other = [f"{key} {begun.get(key)!r}, not {plain[key]!r}" for key in plain if begun.get(key) != plain[key]]
    return f" ({'; '.join(other)})" if other else ""


def _read(layout: Layout, case: SourceCase) -> Content:
    """Return the content of a case; what the disk says of its files counts as a bad case.

    Raises:
        ValueError: when a file cannot be used.
    """
    try:
        return layout.read(case)
    except OSError as error:
        raise unreadable(f"Case {case.id}", error) from error


def _are_pictures(rows: dict[str, list[dict[str, Any]]]) -> bool:
    """Return whether the files are pictures, whose foreground is 255."""
    return all(row["image"].endswith(".png") for split in SPLITS for row in rows[split])


def _resized(content: Content, size: tuple[int, ...] | None) -> Content:
    """Return the content in another size, the native one by default: that of the image."""
    old = content.image.shape[1:]
    size = old if size is None else size
    affine = None if content.affine is None else torch.as_tensor(content.affine)
    values = content.image.astype(np.float32)
    if old != size:
        # The width is that of MONAI's anti_aliasing, which takes 0 for what is outside, so that the rim turns dark.
        sigma = [max(0.0, (was / now - 1) / 2) for was, now in zip(old, size, strict=True)]
        values = ndimage.gaussian_filter(values, (0, *sigma), mode="nearest")
    image: Any = MetaTensor(torch.as_tensor(values), affine=affine)
    if old != size:
        image = Resize(size, mode={2: "bilinear", 3: "trilinear"}[len(size)])(image)
    return Content(
        image.numpy(),
        _resized_masks(content.labels, size),
        None if content.noisy is None else _resized_masks(content.noisy, size),
        None if affine is None else image.affine.numpy(),
    )


def _resized_masks(masks: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    if masks.shape[1:] == size:
        return masks
    resized: Any = Resize(size, mode="nearest-exact")(torch.as_tensor(masks.astype(np.float32)))
    return np.asarray(resized) > 0.5


def _picture(array: np.ndarray) -> Image.Image:
    """Return a picture of ``(channels, width, height)``: a mask, grey, or RGB."""
    values = 255 * array if array.dtype == bool else array
    pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8).transpose(2, 1, 0)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


LAYOUTS: dict[str, type[Layout]] = {name: import_module(f"monai_sc.datasets.{name}").LAYOUT for name in DATA_SETS}
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
        ValueError: when an argument is wrong, ``source`` is not such a data set or not complete, or ``out`` holds
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
            f"{unknown[0]} is not an option of {layout_type.name}, which has {', '.join(known) or 'none'}; omit it."
        )
    return layout_type(source, **options)


def _check_folders(source: Path, out: Path) -> None:
    if not source.is_dir():
        raise ValueError(f"source must be the folder of the data set, got {source}, which is not a folder.")
    if source == out or source in out.parents or out in source.parents:
        raise ValueError(f"out must lie outside of source, which is only read, got {out} and {source}.")
    if source == unfinished(out) or unfinished(out) in source.parents:
        raise ValueError(
            f"source must lie outside of {unfinished(out)}, where files are written first; choose another out."
        )
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
