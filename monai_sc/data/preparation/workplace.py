"""The unfinished folder of a preparation."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Resize
from PIL import Image
from rich.progress import Progress
from scipy import ndimage

from monai_sc.data.durable import (
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
from monai_sc.data.preparation.layout import SPLITS, Content, Layout, SourceCase
from monai_sc.data.preparation.prepared import PREPARED, read_prepared
from monai_sc.transforms.load import unreadable

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
            raise ValueError(f"{self.root} holds {others[0]}, which no preparation wrote; move it away.")
        replace_synced(file, json.dumps(record, indent=2) + "\n")
        return False

    def _check_begun(self, begun: dict[str, Any], record: dict[str, Any]) -> None:
        if difference := difference_of(begun, record):
            raise ValueError(
                f"{self.root} holds the beginning of another preparation{difference}; delete it, or choose another "
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
