"""A data set as it was downloaded made into the folder that its bundle reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
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

from monai_sc.data.cases import check_list
from monai_sc.data.durable import LOCK, claim_folder, naming, release_folder, sync_folder, write_synced
from monai_sc.data.preparation.brats2020 import Brats2020Layout
from monai_sc.data.preparation.cityscapes import CityscapesLayout
from monai_sc.data.preparation.isic2017 import Isic2017Layout
from monai_sc.data.preparation.jsrt import JsrtLayout
from monai_sc.data.preparation.layout import SPLITS, Content, Layout, SourceCase
from monai_sc.data.preparation.lidc_idri import LidcIdriLayout
from monai_sc.data.preparation.prepared import PREPARED, read_prepared
from monai_sc.data.preparation.splits import draw_splits
from monai_sc.functional.checks import check_choice

__all__ = ["LAYOUTS", "Preparation", "PreparationError", "prepare"]

KNOWN: Sequence[type[Layout]] = (Brats2020Layout, CityscapesLayout, Isic2017Layout, JsrtLayout, LidcIdriLayout)
LAYOUTS = {layout.name: layout for layout in KNOWN}
"""The data sets by name."""

RECORD = "preparation.json"


class PreparationError(RuntimeError):
    """A file of the data set cannot be used; nothing but the unfinished folder was written."""


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
        name: of the data set, one of :py:data:`LAYOUTS`.
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
    source, out = Path(source).resolve(), Path(out).resolve()
    _check_folders(source, out)
    if name == "cityscapes":
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
    if out.exists() and any(out.iterdir()):
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
    work = _Workplace(out, record)
    try:
        rows, left_out = work.write(layout, splits, size, on_bad_case, progress)
        work.finish({**record, "classes": list(layout.classes), "missing": missing, "left_out": left_out}, rows)
    finally:
        work.release()
    return Preparation(out, {split: len(rows[split]) for split in SPLITS}, left_out, missing)


class _Workplace:
    """The unfinished folder: files get their names when they are whole, so that what has one need not be made again."""

    def __init__(self, out: Path, record: dict[str, Any]) -> None:
        self.out, self.root = out, out.with_name(out.name + ".partial")
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        claim_folder(self.root)
        try:
            self._begin(record)
        except BaseException:
            self.release()
            raise

    def _begin(self, record: dict[str, Any]) -> None:
        file = self.root / RECORD
        try:
            begun = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        except ValueError:
            begun = {}
        if begun is None:
            if others := [entry.name for entry in self.root.iterdir() if entry.name != LOCK]:
                raise ValueError(f"{self.root} holds {others[0]}, which no preparation wrote; move it away.")
            write_synced(file, json.dumps(record, indent=2) + "\n")
        elif begun != record:
            raise ValueError(
                f"{self.root} holds the beginning of another preparation{_difference(begun, record)}; delete it, or "
                "choose another folder to prepare."
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
                    except (ValueError, FileNotFoundError) as error:
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
        content = _resized(layout.read(case), size)
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
        row_file.parent.mkdir(exist_ok=True)
        partial = self.root / ".row"
        write_synced(partial, json.dumps(row))
        partial.replace(row_file)
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
            partial.replace(path)

    def finish(self, content: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> None:
        """Give the folder its name, now that it is complete."""
        foreground = 255 if _are_pictures(rows) else 1
        text = json.dumps({**content, "foreground": foreground, "cases": rows}, indent=2) + "\n"
        write_synced(self.root / PREPARED, text)
        shutil.rmtree(self.root / "rows")
        (self.root / RECORD).unlink()
        with naming(self.out):
            (self.root / LOCK).unlink(missing_ok=True)
            self.root.replace(self.out)
            sync_folder(self.out.parent)

    def release(self) -> None:
        release_folder(self.root)


def _are_pictures(rows: dict[str, list[dict[str, Any]]]) -> bool:
    """Return whether the files are pictures, whose foreground is 255."""
    return all(row["image"].endswith(".png") for split in SPLITS for row in rows[split])


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
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}.")


def _checked_size(size: Sequence[int] | None, native: bool, layout: Layout) -> tuple[int, ...] | None:
    if native:
        if size is not None:
            raise ValueError(f"size must be left out where images keep their own, got {tuple(size)}.")
        return None
    default = layout.default_size
    checked = default if size is None else tuple(size)
    if len(checked) != len(default) or min(checked) < 1:
        raise ValueError(f"size must be {len(default)} numbers over 0 for {layout.name}, got {checked}.")
    return checked


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
    if difference := _difference(content, {key: value for key, value in record.items() if key != "monai_sc"}):
        raise ValueError(f"{out} was prepared otherwise{difference}; choose another folder, or delete it.")
    counts = {split: len(content["cases"][split]) for split in SPLITS}
    return Preparation(out, counts, content["left_out"], content["missing"], was_complete=True)


def _difference(begun: dict[str, Any], record: dict[str, Any]) -> str:
    """Return what differs, in brackets."""
    plain = json.loads(json.dumps(record))
    other = [f"{key} {begun.get(key)!r}, not {plain[key]!r}" for key in plain if begun.get(key) != plain[key]]
    return f" ({'; '.join(other)})" if other else ""


def _resized(content: Content, size: tuple[int, ...] | None) -> Content:
    """Return the content in another size, the native one by default: that of the image."""
    old = content.image.shape[1:]
    size = old if size is None else size
    affine = None if content.affine is None else torch.as_tensor(content.affine)
    image: Any = MetaTensor(torch.as_tensor(content.image.astype(np.float32)), affine=affine)
    if old != size:
        image = Resize(size, mode={2: "bilinear", 3: "trilinear"}[len(size)], anti_aliasing=True)(image)
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
