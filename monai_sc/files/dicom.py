"""A label as a Segmentation object of DICOM, over the series of images that it was drawn on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data import MetaTensor
from monai.data.utils import to_affine_nd
from monai.utils import MetaKeys, SpaceKeys, optional_import

from monai_sc.files.durable import naming, replacing
from monai_sc.files.read import reason_of

TOLERANCE = 0.1
"""How far a pixel of the series may lie from the centre of its voxel, in voxels: headers hold rounded numbers."""

UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "FrameOfReferenceUID")
GEOMETRY = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns")
# What DICOM lets be empty, but not absent; a series without it is completed in memory.
MAY_BE_EMPTY = (
    "PatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
    "AccessionNumber",
    "StudyID",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
)
LONGEST_NAME = 64  # characters of a segment's label
SERIES_NUMBER = 1000
RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def export_dicom_seg(
    label: MetaTensor,
    series: PathLike,
    file: PathLike,
    *,
    class_names: Sequence[str],
    codes: Mapping[str, tuple[Any, Any]] | None = None,
) -> Path:
    """Write a label as a DICOM Segmentation (binary segments, one per class) over the series that it belongs to.

    Each slice of the series finds its voxels by its position and orientation in the patient, whatever the order of the
    files, and whatever the order and the direction of the label's axes. Classes may overlap. Needs the extra ``dicom``.

    Args:
        label: ``(classes, *spatial)`` of 0 and 1, with an affine, as :py:class:`~monai_sc.transforms.LoadLabel` loads
            it; in 2D for a series of one slice.
        series: folder with the files of one series of single slices, such as CT or MR, only read; other files than
            those of DICOM are passed over.
        file: a new file outside of ``series``; it is there whole, or not at all.
        class_names: one per class, of at most 64 characters; the labels of the segments.
        codes: what the classes are, as pairs of a property category and a property type (``Code`` of pydicom or
            highdicom), by the name of the class; tissue for those that are left out.

    Returns:
        The file.

    Raises:
        ImportError: when highdicom is not installed.
        TypeError: when ``label`` has no affine.
        ValueError: when the series is not one, the label lies on another grid, or names, values or ``file`` are unfit.
        FileNotFoundError: when ``series`` is not a folder.
        OSError: when the file cannot be written; nothing is left.
    """
    highdicom, is_installed = optional_import("highdicom")
    if not is_installed:
        raise ImportError("export_dicom_seg needs highdicom, which is not installed; pip install 'monai-sc[dicom]'.")
    masks = _masks(label)
    _check_names(class_names, len(masks), codes or {})
    folder, target = Path(series), Path(file).resolve()
    if target.exists() or target.parent == folder.resolve():
        raise ValueError(f"file must be a new file outside of {folder}, got {file}.")
    headers = _headers(folder)
    frames, ordered = _on_slices(masks, _lps_affine(label), headers, folder)
    software = version("monai-sc")
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="monai_sc", version=software, family=_code("DCM", "ArtificialIntelligence")
    )
    tissue = _code("SCT", "Tissue")
    segments = []
    for number, name in enumerate(class_names, start=1):
        category, kind = (codes or {}).get(name, (tissue, tissue))
        segments.append(
            highdicom.seg.SegmentDescription(
                segment_number=number,
                segment_label=name,
                segmented_property_category=category,
                segmented_property_type=kind,
                algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.SEMIAUTOMATIC,
                algorithm_identification=algorithm,
            )
        )
    with warnings.catch_warnings():
        # highdicom wants names of several parts; pseudonyms have one
        warnings.filterwarnings(
            "ignore", "The string .* is unlikely to represent the intended person name", UserWarning
        )
        written = highdicom.seg.Segmentation(
            source_images=ordered,
            pixel_array=frames,
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=segments,
            series_instance_uid=highdicom.UID(),
            series_number=SERIES_NUMBER,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer="monai_sc",
            manufacturer_model_name="monai_sc",
            software_versions=software,
            device_serial_number="0",
            content_label="LABELS",
            series_description="Corrected labels",
            specific_character_set="ISO_IR 192",  # that of any name
        )
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        written.save_as(partial)
    return target


def _code(scheme: str, name: str) -> Any:
    codes, _ = optional_import("pydicom.sr.codedict", name="codes")
    return getattr(getattr(codes, scheme), name)


def _masks(label: MetaTensor) -> np.ndarray:
    """Return a label as booleans ``(classes, x, y, z)``.

    Raises:
        TypeError: when it has no affine.
        ValueError: when its shape or its values are unfit.
    """
    if not isinstance(label, MetaTensor):
        raise TypeError(f"label must be a MetaTensor, whose affine says where it lies, got {type(label).__name__}.")
    values = label.numpy()
    if values.ndim not in (3, 4):
        raise ValueError(f"label must have the shape (classes, *spatial) in 2D or 3D, got {values.shape}.")
    if not np.isin(values, (0, 1)).all():
        raise ValueError("label must hold 0 and 1 only, in one channel per class; LoadLabel splits label maps.")
    return np.asarray(values.reshape(*values.shape, 1) if values.ndim == 3 else values, dtype=bool)


def _lps_affine(label: MetaTensor) -> np.ndarray:
    """Return the matrix ``(4, 4)`` from the indices of a label to mm in the patient, as DICOM has them."""
    affine = to_affine_nd(3, np.asarray(label.affine, dtype=float))
    is_lps = label.meta.get(MetaKeys.SPACE) == SpaceKeys.LPS
    return affine if is_lps else RAS_TO_LPS @ affine


def _check_names(names: Sequence[str], number: int, codes: Mapping[str, Any]) -> None:
    if isinstance(names, str) or len(names) != number or len(set(names)) != number:
        raise ValueError(f"class_names must be one name per class ({number}), all different, got {names!r}.")
    unfit = [name for name in names if not 0 < len(name) <= LONGEST_NAME or "\\" in name]
    if unfit:
        raise ValueError(
            f"class_names must be of 1 to {LONGEST_NAME} characters without a backslash, got {unfit[0]!r}."
        )
    unknown = [name for name in codes if name not in names]
    if unknown:
        raise ValueError(f"codes must be of classes, {list(names)}, got {unknown[0]!r}.")


def _headers(folder: Path) -> list[Any]:
    """Return the headers of the slices in a folder, complete enough for a Segmentation.

    Raises:
        ValueError: when a file cannot be read or lacks an entry, or they are not of one series.
        FileNotFoundError: when there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"series must be a folder with DICOM files, got {folder}, which is not a folder.")
    dcmread, _ = optional_import("pydicom", name="dcmread")
    no_dicom, _ = optional_import("pydicom.errors", name="InvalidDicomError")
    headers = []
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            header = dcmread(file, stop_before_pixels=True)
        except no_dicom:
            continue
        except Exception as error:  # pydicom has many
            raise ValueError(f"DICOM file {file} cannot be read: {reason_of(error)}; copy it again.") from error
        if "SeriesInstanceUID" not in header:  # the index of a medium
            continue
        missing = [name for name in (*UIDS, *GEOMETRY) if header.get(name) in (None, "")]
        if missing or int(header.get("NumberOfFrames") or 1) > 1:
            what = f"lacks {missing[0]}" if missing else "holds more than one"
            raise ValueError(f"series must hold files of single slices in the patient, but {file} {what}.")
        for name in MAY_BE_EMPTY:
            if name not in header:
                setattr(header, name, "")
        headers.append(header)
    found = sorted({str(header.SeriesInstanceUID) for header in headers})
    if len(found) != 1:
        raise ValueError(f"series must be a folder with DICOM files of one series, got {len(found)} in {folder}.")
    return headers


def _on_slices(
    masks: np.ndarray, affine: np.ndarray, headers: Sequence[Any], folder: Path
) -> tuple[np.ndarray, list[Any]]:
    """Return a label as frames ``(slices, rows, columns, classes)``, uint8, and the headers of their slices.

    Raises:
        ValueError: when the pixels of the slices are not the voxels of the label.
    """
    inverse = np.linalg.inv(affine)
    rows, columns = int(headers[0].Rows), int(headers[0].Columns)
    grid = f"{columns} columns, {rows} rows and {len(headers)} slices"

    def other_grid(reason: str) -> ValueError:
        return ValueError(
            f"label must lie on the grid of {folder}, of {grid}, but {reason}; resample it onto that grid."
        )

    def to_index(header: Any) -> np.ndarray:
        """Return where the first pixel lies, and the steps to the next column and row, as voxels ``(3, 3)``."""
        position = np.array(header.ImagePositionPatient, dtype=float)
        cosines = np.array(header.ImageOrientationPatient, dtype=float).reshape(2, 3)
        down, right = (float(step) for step in header.PixelSpacing)
        return np.stack(
            [inverse[:3, :3] @ position + inverse[:3, 3], *(inverse[:3, :3] @ (cosines * [[right], [down]]).T).T]
        )

    if any((int(header.Rows), int(header.Columns)) != (rows, columns) for header in headers):
        raise other_grid("its slices differ in size")
    placed = np.stack([to_index(header) for header in headers])  # (slices, 3, 3)
    across, down = (int(axis) for axis in np.abs(placed[0, 1:]).argmax(axis=1))
    if across == down:
        raise other_grid("the label is turned against it")
    along = 3 - across - down
    shape = masks.shape[1:]
    if (shape[across], shape[down], shape[along]) != (columns, rows, len(headers)):
        found = f"{shape[across]}, {shape[down]} and {shape[along]}"
        raise other_grid(f"the label has {found} voxels along these")
    backwards = placed[0, 1, across] < 0, placed[0, 2, down] < 0
    levels = np.rint(placed[:, 0, along]).astype(int)
    worst = 0.0
    for far_column in (0, 1):
        for far_row in (0, 1):
            corner = placed[:, 0] + far_column * (columns - 1) * placed[:, 1] + far_row * (rows - 1) * placed[:, 2]
            expected = np.empty_like(corner)
            expected[:, across] = (columns - 1) * (far_column != backwards[0])
            expected[:, down] = (rows - 1) * (far_row != backwards[1])
            expected[:, along] = levels
            worst = max(worst, float(np.abs(corner - expected).max()))
    if worst > TOLERANCE:
        raise other_grid(f"its pixels lie up to {worst:.2g} voxels off the voxels of the label")
    if sorted(levels) != list(range(len(headers))):
        raise other_grid("its slices are not those of the label, each once")
    frames = masks.transpose(along + 1, down + 1, across + 1, 0)
    frames = frames[:, :: -1 if backwards[1] else 1, :: -1 if backwards[0] else 1]
    for header in headers:
        if header.get("SliceThickness") in (None, ""):  # which may be empty, but not in a Segmentation
            header.SliceThickness = round(float(np.linalg.norm(affine[:3, along])), 6)
    return np.ascontiguousarray(frames, dtype=np.uint8), [headers[k] for k in np.argsort(levels)]
