"""Exports of a label store: a plain folder, a data list of MONAI, and the layouts of nnU-Net and MONAI Label."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike

from monai_sc.files.cases import Case, file_keys, files_of
from monai_sc.files.durable import naming, replace_synced, sync_file, sync_folder, write_synced
from monai_sc.files.read import read_image
from monai_sc.files.write import ONE_FILE, PICTURES, file_suffix, name_suffix, write_map_like, write_values_like
from monai_sc.store.label_store import LabelStore


@contextmanager
def new_folder(store: LabelStore, target: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``target`` to write into, which takes its name at the end, or is gone after an error.

    Raises:
        ValueError: when ``target`` is not a new or empty folder, or lies in the store.
        OSError: when it cannot be written.
    """
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken or target.is_relative_to(store.root.resolve()):
        raise ValueError(f"out must be a new or an empty folder outside of {store.root}, got {target}.")
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


def export_folder(store: LabelStore, out: PathLike, number: int | None = None) -> Path:
    """Copy the labels of a round into a plain folder: ``ID.nii.gz``, in a folder for each class if there are more.

    Args:
        store: of the labels.
        out: a new or empty folder; it is there whole, or not at all.
        number: of the round, by default the current one.

    Returns:
        The folder.

    Raises:
        ValueError: when there is no such round, or ``out`` is not a new or empty folder.
        OSError: when it cannot be written; nothing is left.
    """
    number = store.chosen(number)
    target = Path(out).resolve()
    with new_folder(store, target) as partial:
        for case in store.cases:
            files = store.label_files(number, case)
            for k, file in enumerate(files):
                folder = partial / store.class_names[k] if len(files) > 1 else partial
                folder.mkdir(exist_ok=True)
                copy = folder / f"{case['id']}{name_suffix(file)}"
                with naming(target / copy.relative_to(partial)):
                    if file_suffix(file) in ONE_FILE:
                        copy_file(file, copy)
                    else:  # a header names the file of its voxels, which a copy of it would look for
                        write_values_like(read_image(file, f"Label file {file}").numpy()[0], copy, file)
    return target


def export_datalist(store: LabelStore, file: PathLike, number: int | None = None) -> Path:
    """Write the cases with the labels of a round as a data list of MONAI, for ``load_decathlon_datalist``.

    Args:
        store: of the labels.
        file: a new JSON file; its list is ``training``, its paths are absolute.
        number: of the round, by default the current one.

    Raises:
        ValueError: when there is no such round, the file exists, or a case holds what JSON cannot.
    """
    file = Path(file)
    if file.exists():
        raise ValueError(f"file must be a new file, got {file}, which exists.")
    cases = store.datalist(number)
    for case in cases:
        for key in file_keys(case):
            paths = [str(path.resolve()) for path in files_of(case, key)]
            case[key] = paths[0] if isinstance(case[key], (str, os.PathLike)) else paths
    try:
        text = json.dumps({"training": cases}, indent=1)
    except TypeError as error:
        raise ValueError(f"A data list must be JSON, but a case is not: {error}.") from error
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(file, text + "\n")
    return file


NNUNET_TYPES = (".nii.gz", ".nii", ".nrrd", ".mha", ".gipl", ".png", ".bmp", ".tif")
NNUNET_RESERVED = ("background", "ignore")
MONAI_LABEL_TYPES = (".nii.gz", ".nii", ".nrrd", ".jpg", ".png", ".tif")  # those it looks for without further settings


def export_nnunet(
    store: LabelStore,
    out: PathLike,
    number: int | None = None,
    *,
    channel_names: Sequence[str],
    link_images: bool = False,
) -> Path:
    """Write images and the labels of a round as a raw data set of nnU-Net, version 2.

    The label of a case becomes one map, 0 for the background and 1, 2, ... for the classes in their order. Classes
    that lie within others (in all cases) become regions of nnU-Net, the outer ones first.

    Args:
        store: of the labels.
        out: a new or empty folder whose name nnU-Net understands, such as ``nnUNet_raw/Dataset101_Lung``; it is
            there whole, or not at all.
        number: of the round, by default the current one.
        channel_names: one per channel of an image, in the order of its files; nnU-Net chooses by it how to
            normalize: ``"CT"`` by the intensities of the data set, most others by those of the image.
        link_images: link to the images instead of copying them.

    Returns:
        The folder, with ``imagesTr/ID_0000.EXT``, ``labelsTr/ID.EXT`` and ``dataset.json``.

    Raises:
        ValueError: when there is no such round, ``out`` is not such a folder, the images have other channels, nnU-Net
            cannot read the files (images and labels must be of one type), a class has a name that it reserves, or
            classes overlap and are not nested.
        TypeError: when ``channel_names`` is not a list.
        OSError: when it cannot be written; nothing is left.
    """
    number = store.chosen(number)
    target = Path(out).resolve()
    if not re.fullmatch(r"Dataset\d{3}_.+", target.name):
        raise ValueError(f"out must be a folder with a name of nnU-Net, such as Dataset101_Lung, got {out}.")
    reserved = [name for name in store.class_names if name in NNUNET_RESERVED]
    if reserved:
        raise ValueError(f"class_names must not hold {reserved[0]!r}, which nnU-Net reserves.")
    _check_channels(store, channel_names)
    suffix = _nnunet_type(store)
    with new_folder(store, target) as partial:
        inside = _nesting(store, number)
        order = _outer_first(inside)
        for folder in ("imagesTr", "labelsTr"):
            (partial / folder).mkdir()
        for case in store.cases:
            for k, file in enumerate(files_of(case, "image")):
                image = Path("imagesTr") / f"{case['id']}_{k:04d}{suffix}"
                with naming(target / image):
                    if link_images:
                        (partial / image).symlink_to(file.resolve())
                    else:
                        copy_file(file, partial / image)
            label = Path("labelsTr") / f"{case['id']}{suffix}"
            with naming(target / label):
                _write_map(store, number, case, order, partial / label)
        content: dict[str, Any] = {
            "channel_names": {str(k): name for k, name in enumerate(channel_names)},
            "labels": {"background": 0, **_labels(store.class_names, order, inside)},
            "numTraining": len(store.cases),
            "file_ending": suffix,
        }
        if inside.any():
            content["regions_class_order"] = list(range(1, len(order) + 1))
        write_synced(partial / "dataset.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return target


def export_monai_label(store: LabelStore, out: PathLike, number: int | None = None) -> Path:
    """Write images and the labels of a round as a folder of studies for the server of MONAI Label.

    The label of a case becomes one map, 0 for the background and 1, 2, ... for the classes in their order, which must
    be those that the app of MONAI Label has. Images are copied, for MONAI Label can delete them.

    Args:
        store: of the labels.
        out: a new or empty folder, for ``monailabel start_server --studies``; it is there whole, or not at all.
        number: of the round, by default the current one.

    Returns:
        The folder, with the images ``ID.EXT`` and the labels ``labels/final/ID.EXT``.

    Raises:
        ValueError: when there is no such round, ``out`` is not a new or empty folder, MONAI Label does not look for
            files of their type, a case has several image files, or classes overlap.
        OSError: when it cannot be written; nothing is left.
    """
    number = store.chosen(number)
    target = Path(out).resolve()
    for case in store.cases:
        images = files_of(case, "image")
        if len(images) > 1:
            raise ValueError(f"MONAI Label takes one image file per case, got {len(images)} of case {case['id']!r}.")
        _check_type([images[0], files_of(case)[0]], MONAI_LABEL_TYPES, "MONAI Label", case)
    with new_folder(store, target) as partial:
        inside = _nesting(store, number)
        if inside.any():
            inner, outer = (store.class_names[k] for k in np.argwhere(inside)[0])
            raise ValueError(
                f"Classes must not overlap in the label maps of MONAI Label, but {inner!r} lies within {outer!r}; "
                "export the labels as files of one class each."
            )
        (partial / "labels" / "final").mkdir(parents=True)
        for case in store.cases:
            file = files_of(case, "image")[0]
            image = Path(f"{case['id']}{file_suffix(file)}")
            with naming(target / image):
                copy_file(file, partial / image)
            label = Path("labels") / "final" / f"{case['id']}{file_suffix(files_of(case)[0])}"
            with naming(target / label):
                _write_map(store, number, case, list(range(len(inside))), partial / label)
    return target


def _check_type(files: Sequence[Path], known: Sequence[str], tool: str, case: Case) -> None:
    for file in files:
        if file_suffix(file) not in known:
            raise ValueError(
                f"{tool} reads files of the types {', '.join(known)}, got {file} of case {case['id']!r}; convert it "
                "first."
            )


def _check_channels(store: LabelStore, channel_names: Sequence[str]) -> None:
    """Refuse names that are not one per channel; of the first case the image is read, of the others files are counted.

    Raises:
        TypeError: when they are not a list.
        ValueError: when they are not one per channel, or files have several.
    """
    if isinstance(channel_names, str):
        raise TypeError(f"channel_names must be a list with one name per channel, got {channel_names!r}.")
    first = files_of(store.cases[0], "image")
    number = sum(len(read_image(file, f"Image file {file}")) for file in first)
    if len(channel_names) != number:
        raise ValueError(
            f"channel_names must be one per channel of an image, {number} in case {store.cases[0]['id']!r}, got "
            f"{list(channel_names)}."
        )
    pictures = number in (3, 4) and len(first) == 1 and file_suffix(first[0]) in PICTURES
    if number > len(first) and not pictures:
        raise ValueError(
            f"nnU-Net takes one image file per channel, got {number} channels in {len(first)} of case "
            f"{store.cases[0]['id']!r}; split them first."
        )
    for case in store.cases:
        files = files_of(case, "image")
        if len(files) != len(first):
            raise ValueError(
                f"All cases must have the same number of image files, got {len(first)} and {len(files)} of case "
                f"{case['id']!r}."
            )


def _nnunet_type(store: LabelStore) -> str:
    """Return the suffix that all images and labels share.

    Raises:
        ValueError: when they share none, or nnU-Net does not read such files.
    """
    suffix = file_suffix(files_of(store.cases[0])[0])
    for case in store.cases:
        files = [*files_of(case, "image"), files_of(case)[0]]
        _check_type(files, NNUNET_TYPES, "nnU-Net", case)
        other = [file for file in files if file_suffix(file) != suffix]
        if other:
            raise ValueError(
                f"nnU-Net takes images and labels of one file type, got {suffix} and {other[0]} of case "
                f"{case['id']!r}; convert them first."
            )
    return suffix


def _nesting(store: LabelStore, number: int) -> np.ndarray:
    """Return which class ``(classes, classes)`` of a round lies within which, as booleans ``[inner, outer]``.

    Of two classes that are the same everywhere, the later one lies within the earlier.

    Raises:
        ValueError: when classes overlap otherwise.
    """
    names = store.class_names
    inside = np.zeros((len(names), len(names)), dtype=bool)
    if store.values is not None or len(names) == 1:
        return inside
    sizes, shared = np.zeros(len(names)), np.zeros(inside.shape)
    first: dict[tuple[int, int], str] = {}
    for case in store.cases:
        masks = store.read(case["id"], number).reshape(len(names), -1)
        sizes += masks.sum(axis=1)
        crowded = masks[:, masks.sum(axis=0) > 1].astype(np.float64)
        overlap = crowded @ crowded.T
        shared += overlap
        for i, j in np.argwhere(np.triu(overlap, 1)):
            first.setdefault((i, j), case["id"])
    for (i, j), case_id in first.items():
        if shared[i, j] == sizes[j]:
            inside[j, i] = True
        elif shared[i, j] == sizes[i]:
            inside[i, j] = True
        else:
            raise ValueError(
                "Overlapping classes fit into a label map only if one lies within the other in all cases; "
                f"{names[i]!r} and {names[j]!r} do not, for example in case {case_id!r}; export the labels as files "
                "of one "
                "class each."
            )
    return inside


def _outer_first(inside: np.ndarray) -> list[int]:
    """Return the classes in their order, but each behind those that it lies within."""
    return sorted(range(len(inside)), key=lambda k: (int(inside[k].sum()), k))


def _labels(names: Sequence[str], order: Sequence[int], inside: np.ndarray) -> dict[str, int | list[int]]:
    """Return the value of each class in the label maps; of one that holds others, all their values too."""
    labels: dict[str, int | list[int]] = {}
    for k in order:
        values = [value for value, other in enumerate(order, start=1) if other == k or inside[other, k]]
        labels[names[k]] = values if len(values) > 1 else values[0]
    return labels


def _write_map(store: LabelStore, number: int, case: Case, order: Sequence[int], path: Path) -> None:
    """Write the label of a case as a map, in which later classes of ``order`` lie over earlier ones."""
    masks = store.read(case["id"], number)
    values = np.zeros(masks.shape[1:], dtype=np.uint8 if len(order) < 256 else np.uint16)
    for value, k in enumerate(order, start=1):
        values[masks[k]] = value
    names = [store.class_names[k] for k in order]
    write_map_like(values, path, store.label_files(number, case)[0], names)
