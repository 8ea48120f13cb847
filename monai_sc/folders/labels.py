"""Label files of folders, read and checked."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.data import PILReader
from monai.data.utils import to_affine_nd
from monai.transforms import LoadImage
from PIL import Image

from monai_sc.files.axes import AxesCheck
from monai_sc.files.grids import Grid, check_affine, check_same_grid, in_mm, mm_per_unit
from monai_sc.files.names import find_in, find_masks, named_alike
from monai_sc.files.read import LAYERS, has_layers, is_picture_tiff, reason_of, why_turned
from monai_sc.files.values import MAX_CLASSES, ValueJudge, masks_apart, values_in, why_no_label
from monai_sc.files.write import PICTURES, file_suffix, without_suffix
from monai_sc.functional.masks import filled
from monai_sc.transforms.distance import voxel_size


def load_values(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of a label file ``(*spatial)``, and its affine; ``None`` for a picture, which has no geometry.

    Raises:
        ValueError: when the file cannot be read, viewers turn it, or it holds more than one channel.
    """
    if turned := why_turned(path):
        raise ValueError(turned)
    if has_layers(path):
        raise ValueError(LAYERS)
    try:
        pictures = PILReader(converter=_whole)
        reader = pictures if is_picture_tiff(path) or pictures.verify_suffix(path) else None
        load = LoadImage(image_only=True, ensure_channel_first=True, dtype=None)
        if path.name.lower().endswith(".gz"):
            with gzip.open(path) as file:  # to its end, where the checksum is, which nibabel does not read
                while file.read(1 << 20):
                    pass
        try:
            image: Any = load(path, reader)
        except ValueError:  # torch has no arrays in the byte order of other machines
            load.dtype = np.float64
            image = load(path, reader)
    except Exception as error:  # each of MONAI's readers has its own
        raise ValueError(f"it cannot be read: {reason_of(error)[:300]}") from error
    if len(image) != 1:
        raise ValueError(f"it must hold one channel, got {len(image)}")
    if not image.numel():
        raise ValueError("it holds no voxel")
    values = image.numpy()[0]
    values = values.astype(np.uint8) if values.dtype == bool else values
    return values, None if file_suffix(path) in PICTURES else in_mm(np.asarray(image.affine), mm_per_unit(path))


def _whole(picture: Image.Image) -> Image.Image:
    """Return a picture with its pixels, or close its file, which MONAI 1.6 leaves open where it is truncated."""
    try:
        picture.load()
    except BaseException:
        picture.close()
        raise
    return picture


class LabelFile:
    """A label map as a file holds it.

    Attributes:
        path: of the file.
        values: ``(*spatial)``.
        affine: ``None`` where the file has no geometry.
        spacing: size of a voxel in mm; of 1 without geometry.
        in_mm: whether the file says how large a voxel is.
        grid: on which it lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.values, self.affine = load_values(path)
        except ValueError as error:
            raise ValueError(f"Label {path} cannot be used: {error}.") from error
        if np.iscomplexobj(self.values) or not np.isfinite(self.values).all():
            raise ValueError(f"Label {path} must hold whole numbers, got complex, nan or infinite values.")
        if self.values.dtype.kind == "f":  # a scale in the header makes a 1 read 0.99999998
            whole = np.rint(self.values)
            self.values = np.where(np.abs(self.values - whole) < 1e-3, whole, self.values)
        affine = None if self.affine is None else to_affine_nd(3, self.affine)
        self.grid = Grid(f"Label {path}", self.values.shape, affine)
        if affine is not None:
            check_affine(affine, self.values.ndim, self.grid.name)
        self.in_mm = self.affine is not None
        self.spacing = (1.0,) * self.values.ndim if self.affine is None else voxel_size(self.affine, self.values.ndim)

    def classes(self, ignore_value: float | None, judge: ValueJudge | None = None) -> list[int]:
        """Return the values of its classes.

        Raises:
            ValueError: when a value is not a whole number, or negative, there are too many, or ``judge`` refuses them.
        """
        distinct = values_in(self.values, MAX_CLASSES + 2)
        found = [v for v in distinct if v not in (0, ignore_value)]
        wrong = [v for v in found if v < 0 or v != round(float(v))]
        if wrong:
            raise ValueError(
                f"Label {self.path} must hold whole numbers from 0, got {wrong[0]:g}; this is an image, or a mask "
                "that was smoothed or resampled linearly and needs a threshold."
            )
        if len(found) > MAX_CLASSES:
            raise ValueError(f"Label {self.path} cannot be used: {why_no_label(self.values, found=distinct)}.")
        if judge is not None and (reason := judge.why_no_label(self.values, distinct, ignore_value)):
            raise ValueError(f"Label {self.path} cannot be used: {reason}; if these are classes, name them.")
        return [round(float(v)) for v in found]

    def masks(self, classes: Sequence[int | Sequence[int]], ignore_value: float | None = None) -> np.ndarray:
        """Return a boolean mask ``(classes, *spatial)`` of each class, which has one value or several.

        An unknown voxel is like the nearest other one.
        """
        ignored = self.ignored(ignore_value)
        values = self.values if ignored is None else filled(self.values, ignored)
        return np.stack([values == own if np.isscalar(own) else np.isin(values, own) for own in classes])

    def known(self, ignore_value: float | None) -> np.ndarray:
        """Return the values ``(*spatial)``, -1 where the label is unknown."""
        ignored = self.ignored(ignore_value)
        return self.values if ignored is None else np.where(ignored, np.int16(-1), self.values)

    def ignored(self, ignore_value: float | None) -> np.ndarray | None:
        """Return where the label is unknown ``(*spatial)``, ``None`` where it is known everywhere."""
        if ignore_value is None:
            return None
        ignored = self.values == ignore_value
        return ignored if ignored.any() else None


def load_label(folder: Path, name: str, like: LabelFile | None = None) -> LabelFile:
    """Return a label of a folder; refuse it where it is not on the grid of another one."""
    label = LabelFile(find_in(folder, name))
    if like is not None:
        check_same_grid(label.grid, like.grid)
    return label


class LabelPairs:
    """The labels and the clean labels of a folder each, whose cases have the same names.

    Args:
        labels: folder.
        clean: folder.
        ignore_value: of unknown voxels.
        judged: whether to refuse values of an image, or of a label that was smoothed.

    Attributes:
        names: of the labels.
        clean_names: of the clean labels, sorted, with accents as in ``names``.
        both: names of the cases that have both.
        drawn: values of the classes in each label that :py:meth:`read` has read.
        true: the same of the clean labels.

    Raises:
        ValueError: when a folder holds no label, or a label and its clean label have different file types.
        FileNotFoundError: when a folder does not exist.
    """

    def __init__(self, labels: Path, clean: Path, *, ignore_value: float | None, judged: bool) -> None:
        self.labels, self.clean, self.ignore_value = labels, clean, ignore_value
        self.judge = ValueJudge() if judged else None
        self.names = find_masks(labels)[0]
        self.clean_names = sorted(named_alike(find_masks(clean)[0], self.names))
        types = {without_suffix(name): name for name in self.names}
        for name in self.clean_names:
            if (own := types.get(without_suffix(name), name)) != name:
                raise ValueError(
                    f"The label and the clean label of a case must have one file type, got {own} and {name}."
                )
        known = set(self.clean_names)
        self.both = [name for name in self.names if name in known]
        self.drawn: dict[str, list[int]] = {}
        self.true: dict[str, list[int]] = {}
        self._axes = AxesCheck()

    def read(self, name: str) -> tuple[LabelFile, LabelFile]:
        """Return both labels of a case, and note what they hold.

        Raises:
            ValueError: when one cannot be read, holds values of no label, or they lie on different grids.
        """
        given = load_label(self.labels, name)
        true = self.read_clean(name, given)
        self.drawn[name] = given.classes(self.ignore_value, self.judge)
        if not self._axes.is_full:
            self._axes.add(given.known(self.ignore_value), true.known(self.ignore_value))
        return given, true

    def read_clean(self, name: str, given: LabelFile | None = None) -> LabelFile:
        """Return the clean label of a case, on the grid of the given one, and note what it holds."""
        true = load_label(self.clean, name, given)
        self.true[name] = true.classes(self.ignore_value, self.judge)
        return true

    def refuse_turned(self, name: str) -> None:
        """Refuse clean labels that fit the labels much better with other axes; ``name`` is one of them."""
        self._axes.refuse_turned(f"The labels of {self.clean}", f"those of {self.labels}", name)

    def refuse_masks_apart(self) -> None:
        """Refuse masks of different foregrounds, if values are judged."""
        if self.judge is not None:
            folders = ((self.labels, self.drawn), (self.clean, self.true))
            refuse_masks_apart({folder / name: own for folder, found in folders for name, own in found.items()})

    def values(self) -> tuple[set[int], set[int]]:
        """Return the values of the classes in the labels that were read, and in the clean ones.

        Raises:
            ValueError: when they have none in common.
        """
        drawn, true = ({value for own in found.values() for value in own} for found in (self.drawn, self.true))
        if not drawn & true:
            raise ValueError(
                f"{self.labels} and {self.clean} must hold the same classes, got the values {sorted(drawn)} and "
                f"{sorted(true)} in the cases that both have."
            )
        return drawn, true


def refuse_masks_apart(found: Mapping[Path, Sequence[int]]) -> None:
    """Refuse masks of 0 and 1 beside masks of 0 and 255, given the values of the classes in each file."""
    apart = masks_apart(found)
    if apart is not None:
        one, other = apart
        raise ValueError(
            f"All masks must have one value beside 0, got {found[one][0]} in {one} and {found[other][0]} in {other}; "
            "write one of them in all files."
        )
