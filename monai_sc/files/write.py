"""Writing a mask or a map of values as a label file that looks like another one."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
from nibabel.openers import ImageOpener
from PIL import Image

from monai_sc.files.durable import sync_file
from monai_sc.files.read import is_picture_tiff, unreadable

NIFTI = (".nii", ".nii.gz")
PICTURES = (".png", ".bmp", ".tif", ".tiff")
VOLUMES = (".nrrd", ".nhdr", ".mha", ".mhd", ".hdr", ".img", ".gipl", ".vtk")
WRITABLE = NIFTI + PICTURES + VOLUMES
"""The suffixes of the label files that can be written without loss: by nibabel, PIL and ITK."""

ONE_FILE = tuple(suffix for suffix in WRITABLE if suffix not in (".nhdr", ".mhd", ".hdr", ".img"))
"""Those of them that hold header and voxels in one file."""

HEADER = 2**20  # bytes of a file in which the fields of its header are looked for
DOUBLE = (".nii.gz", ".seg.nrrd")


def file_suffix(path: Path) -> str:
    """Return the suffix of a label file, which tells its type; ``.nii.gz`` counts as one."""
    return ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()


def name_suffix(path: Path) -> str:
    """Return how the name of a copy of a label file ends: ``.seg.nrrd`` tells 3D Slicer that it is not an image."""
    return next((suffix for suffix in DOUBLE if path.name.lower().endswith(suffix)), file_suffix(path))


def without_suffix(name: str) -> str:
    """Return a file name without its suffix, ``.nii.gz`` and ``.seg.nrrd`` counting as one; folders stay."""
    double = next((suffix for suffix in DOUBLE if name.lower().endswith(suffix)), None)
    return name[: -len(double)] if double is not None else str(Path(name).with_suffix(""))


def write_label_like(mask: np.ndarray, path: Path, source: Path, foreground: float = 1) -> None:
    """Write a boolean ``mask`` as ``foreground`` and 0, with the file type, shape, dtype and geometry of ``source``.

    Args:
        mask: ``(*spatial)``, its axes as MONAI's ``LoadImage`` orders them.
        path: of the new file, with the suffix of ``source``; flushed to the disk before the function returns.
        source: a label file that is only read.
        foreground: the value to write for the foreground.

    Raises:
        ValueError: when ``mask`` has another size than ``source``, or the dtype of ``source`` cannot hold
            ``foreground``.
    """
    write_values_like(np.where(mask, foreground, 0), path, source, name="mask")


def write_values_like(values: np.ndarray, path: Path, source: Path, *, name: str = "values") -> None:
    """Write ``values`` with the file type, shape, dtype and geometry of ``source``.

    The header of a NIfTI, NRRD or MetaImage file is copied as it is, with all that readers ignore; only the extents of
    segments of 3D Slicer become all of the file. The same call writes
    the same bytes, whatever the time and the name of the file.

    Args:
        values: ``(*spatial)``, as MONAI's ``LoadImage`` would give them: its order of axes, and any scale of the file
            applied.
        path: of the new file, with the suffix of ``source``; flushed to the disk before the function returns.
        source: a label file that is only read: NIfTI by nibabel, PNG and BMP by PIL, every other type by ITK.
        name: what an error calls ``values``.

    Raises:
        ValueError: when ``values`` have another size than ``source``, its dtype cannot hold them, or it is a damaged
            NIfTI file.
        OSError: when the disk cannot take the file.
    """
    suffix = file_suffix(source)
    if suffix in NIFTI:
        try:
            template: Any = nib.load(source)
            given = template.dataobj
            # Byte by byte, for nibabel does not write again all that it has read.
            with ImageOpener(os.fspath(source)) as file:
                header = file.read(given.offset)
        except Exception as error:  # of a file that was damaged since it was checked
            raise unreadable(f"Label file {source}", error) from error
        scaled = (given.slope, given.inter) != (1, 0)
        raw = _unscaled(values, given) if scaled else values
        stored = _stored_like(raw, given.shape, given.dtype, source, name)
        with ImageOpener(os.fspath(path), "wb") as file:
            file.write(header + stored.tobytes(order="F"))
    elif suffix in (".png", ".bmp") or is_picture_tiff(source):
        with Image.open(source) as picture:
            like = np.asarray(picture)
            written = Image.fromarray(_stored_like(values.T, like.shape, like.dtype, source, name))
            if picture.mode == "P":
                written.putpalette(picture.getpalette() or [])
            info: Any = picture.info
            kept: dict[str, Any] = {key: info[key] for key in ("dpi", "transparency", "compression") if key in info}
            if suffix in (".tif", ".tiff"):
                tags: Any = picture
                kept["tiffinfo"] = {262: tags.tag_v2[262]}
            written.save(path, **kept)
    else:
        image = itk.imread(os.fspath(source))
        like = itk.array_view_from_image(image)
        stored = np.ascontiguousarray(_stored_like(values.T, like.shape, like.dtype, source, name))
        content = _with_text_header(stored, source) if suffix in (".nrrd", ".mha") else None
        if content is not None:
            path.write_bytes(content)
        else:
            _write_by_itk(stored, path, image)
    sync_file(path)


def write_map_like(values: np.ndarray, path: Path, source: Path, class_names: Sequence[str]) -> None:
    """Write a label map with the file type, shape and geometry of ``source``, but a type of its own and no scale.

    If ``source`` is a segmentation of 3D Slicer, the classes are its segments.

    Args:
        values: ``(*spatial)`` of uint8 or uint16, as they shall stand in the file; the axes as MONAI's ``LoadImage``
            orders them.
        path: of the new file, with the suffix of ``source``; flushed to the disk before the function returns.
        source: a label file that is only read.
        class_names: of the values 1, 2, ...

    Raises:
        OSError: when the disk cannot take the file.
    """
    suffix = file_suffix(source)
    if suffix in NIFTI:
        template: Any = nib.load(source)
        header = template.header.copy()
        header.set_data_dtype(values.dtype)
        nib.save(type(template)(values.reshape(template.shape), template.affine, header), path)
    elif suffix in (".png", ".bmp") or is_picture_tiff(source):
        Image.fromarray(values.T).save(path)
    else:
        image = itk.imread(os.fspath(source))
        like = itk.array_view_from_image(image)
        _name_segments(image, class_names)
        _write_by_itk(np.ascontiguousarray(values.T.reshape(like.shape)), path, image)
        units = re.search(rb"^space units:[^\r\n]*\n", source.read_bytes()[:HEADER], re.MULTILINE)
        if suffix == ".nrrd" and units is not None:  # which ITK does not keep
            path.write_bytes(path.read_bytes().replace(b"\n\n", b"\n" + units.group() + b"\n", 1))
    sync_file(path)


def _name_segments(image: Any, class_names: Sequence[str]) -> None:
    """Give a segmentation of 3D Slicer, as ITK has read it, one segment per class instead of those it has."""
    fields = image.GetMetaDataDictionary()
    old = [key for key in fields.GetKeys() if re.match(r"Segment\d+_", key)]
    for key in old:
        fields.Erase(key)
    if old:
        extent = _extent(itk.size(image))
        for k, name in enumerate(class_names):
            segment = {"ID": f"Segment_{k + 1}", "Name": name, "LabelValue": k + 1, "Layer": 0, "Extent": extent}
            for key, value in segment.items():
                fields[f"Segment{k}_{key}"] = str(value)
    image.SetMetaDataDictionary(fields)


def _extent(sizes: Iterable[int]) -> str:
    """Return the extent of a segment in all of a file; 3D Slicer shows nothing of it outside of its extent."""
    return " ".join(f"0 {int(size) - 1}" for size in sizes)


def _write_by_itk(stored: np.ndarray, path: Path, like: Any) -> None:
    """Write an array with the geometry and the metadata of an image of ITK."""
    copy = itk.image_from_array(stored)
    copy.CopyInformation(like)
    copy.SetMetaDataDictionary(like.GetMetaDataDictionary())
    try:
        itk.imwrite(copy, os.fspath(path), compression=True)
    except RuntimeError as error:  # such as of a full disk; it begins with a place in ITK's own code
        raise OSError(" ".join(str(error).split()).split("): ", 1)[-1].rstrip(".")) from error
    if file_suffix(path) not in ONE_FILE:
        for file in path.parent.glob(f"{escape(path.stem)}.*"):  # the voxels
            sync_file(file)


def _with_text_header(stored: np.ndarray, source: Path) -> bytes | None:
    """Return an NRRD or MetaImage file with the header of ``source``, ``None`` if its voxels lie elsewhere or as text.

    ITK would lose fields of it, and its Python package cannot write each type that it reads.
    """
    found = re.match(rb"NRRD.*?\n\r?\n|.*?ElementDataFile *= *LOCAL *\r?\n", source.read_bytes(), re.DOTALL)
    if found is None:
        return None
    header = found.group()
    fields = dict(re.findall(rb"^([\w ]+?)(?:: | *= *)(.*?) *\r?$", header, re.MULTILINE))
    yes = (b"True", b"true", b"1")
    if header.startswith(b"NRRD"):
        encoding = fields.get(b"encoding", b"").lower()
        big = fields.get(b"endian") == b"big"
        inside = not {b"data file", b"datafile", b"line skip", b"lineskip", b"byte skip", b"byteskip"} & fields.keys()
    else:
        encoding = b"zlib" if fields.get(b"CompressedData") in yes else b"raw"
        big = (fields.get(b"BinaryDataByteOrderMSB") or fields.get(b"ElementByteOrderMSB")) in yes
        inside = fields.get(b"BinaryData", b"True") in yes and b"HeaderSize" not in fields
    voxels = stored.astype(stored.dtype.newbyteorder(">" if big else "<")).tobytes()
    if not inside or encoding not in (b"raw", b"gzip", b"gz", b"zlib"):
        return None
    if encoding == b"zlib":
        voxels = zlib.compress(voxels)
        header = re.sub(rb"(CompressedDataSize *= *)\d+", rb"\g<1>%d" % len(voxels), header)
    elif encoding != b"raw":
        voxels = gzip.compress(voxels, mtime=0)
    extent = _extent(stored.shape[::-1]).encode()
    return re.sub(rb"^(Segment\d+_Extent:=).*?(\r?)$", rb"\g<1>%s\g<2>" % extent, header, flags=re.MULTILINE) + voxels


def _unscaled(values: np.ndarray, given: Any) -> np.ndarray:
    """Return what the file of ``given``, an array proxy of nibabel, must hold to be read as ``values``."""
    raw: np.ndarray = (values - given.inter) / given.slope
    if np.issubdtype(given.dtype, np.integer):
        # Where the largest integer is read as 0.99999997, it is meant for 1.
        limits = np.iinfo(given.dtype)
        near = np.clip(raw, limits.min, limits.max)
        raw = np.where(np.abs((near - raw) * given.slope) < 1e-3, near, raw)
    return raw


def _stored_like(values: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, source: Path, name: str) -> np.ndarray:
    if values.size != np.prod(shape):
        raise ValueError(f"{name} must have the shape of {source}, {tuple(shape)}, got {values.shape}.")
    values = values.reshape(shape)
    if np.issubdtype(dtype, np.floating):
        return np.asarray(values, dtype=dtype)
    whole = np.rint(values) if np.issubdtype(values.dtype, np.floating) else values
    with np.errstate(invalid="ignore"):
        stored = np.asarray(whole, dtype=dtype)
    if not np.array_equal(stored, whole):
        worst = whole[stored != whole][0]
        raise ValueError(f"{name} must fit the type of {source}, {dtype.name}, which cannot hold {worst:g}.")
    return stored
