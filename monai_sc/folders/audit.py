"""Folders of labels, some of which were drawn again: is there a bias, and how large?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data.utils import to_affine_nd
from rich.progress import track

from monai_sc.correction.cases import in_voxels, unit_of
from monai_sc.correction.fitting import ClassBias
from monai_sc.correction.presence import presence_rates
from monai_sc.correction.state import half_widths
from monai_sc.files.axes import CHECKED, AxesCheck
from monai_sc.files.durable import naming
from monai_sc.files.grids import Grid, check_affine, check_same_grid, states_unit
from monai_sc.files.names import find_in, find_masks, named_alike
from monai_sc.files.values import MAX_CLASSES, ValueJudge, masks_apart, values_in, why_no_label
from monai_sc.files.write import PICTURES, file_suffix, without_suffix
from monai_sc.folders.parts import Exchange, Part, key_of
from monai_sc.folders.simulated_case import load_values
from monai_sc.functional.bias import boundary_displacement
from monai_sc.functional.masks import dice, filled
from monai_sc.transforms.distance import voxel_size

EXCHANGE = ".audit."  # how the hidden folder of the parts begins
# Dice, displacement (in voxels), drawn and present of a class that neither label holds
ABSENT = (1.0, np.nan, False, False)


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
        """Return the values of the classes it holds.

        Args:
            ignore_value: that of unknown voxels.
            judge: refuses values that are those of an image, or of a label that was smoothed.

        Raises:
            ValueError: when a value is not a whole number, or negative, there are too many, or they are refused.
        """
        distinct = values_in(self.values, MAX_CLASSES + 2)
        found = [v for v in distinct if v not in (0, ignore_value)]
        wrong = [v for v in found if v < 0 or v != round(float(v))]
        if wrong:
            raise ValueError(
                f"Label {self.path} must hold whole numbers from 0, got {wrong[0]:g}; an image is no label, and a mask "
                "that was smoothed or resampled linearly needs a threshold."
            )
        if len(found) > MAX_CLASSES:
            raise ValueError(f"Label {self.path} cannot be used: {why_no_label(self.values, found=distinct)}.")
        if judge is not None and (reason := judge.why_no_label(self.values, distinct, ignore_value)):
            raise ValueError(f"Label {self.path} cannot be used: {reason}; if these are classes, name them.")
        return [round(float(v)) for v in found]

    def masks(self, classes: Sequence[int | Sequence[int]], ignore_value: float | None = None) -> np.ndarray:
        """Return a boolean mask ``(classes, *spatial)`` for each class; an unknown voxel is like the nearest other.

        Args:
            classes: of each its value, or its values.
            ignore_value: of unknown voxels.
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
    """Return a label of a folder, on the grid of another one.

    Raises:
        ValueError: when it cannot be read, or lies on another grid.
    """
    label = LabelFile(find_in(folder, name))
    if like is not None:
        check_same_grid(label.grid, like.grid)
    return label


def pairs_of(labels: Path, clean: Path) -> tuple[list[str], list[str]]:
    """Return the names that both folders hold, as the first writes them, and the clean ones that the first lacks.

    Raises:
        ValueError: when there is none, or a folder holds no label.
        FileNotFoundError: when a folder does not exist.
    """
    own = find_masks(labels)[0]
    other = set(named_alike(find_masks(clean)[0], own))
    refuse_other_types(own, other)
    both = [name for name in own if name in other]
    if not both:
        raise ValueError(
            f"{labels} and {clean} must have files of the same names, got {own[0]} there and {min(other)} here; a "
            "clean label is compared with the label of the same case."
        )
    return both, sorted(other - set(own))


def refuse_other_types(labels: Iterable[str], clean: Iterable[str]) -> None:
    """Refuse a clean label whose case has a label of another file type: it would be taken for another case.

    Raises:
        ValueError: when there is one.
    """
    types = {without_suffix(name): name for name in labels}
    for name in sorted(clean):
        own = types.get(without_suffix(name), name)
        if own != name:
            raise ValueError(f"The label and the clean label of a case must have one file type, got {own} and {name}.")


def audit_folder(
    labels: PathLike,
    clean: PathLike,
    *,
    class_names: Sequence[str] | None = None,
    ignore_value: float | None = None,
    tolerance: float | None = None,
    progress: bool = True,
    part: Part | None = None,
    out: PathLike | None = None,
) -> dict[str, Any]:
    """Compare labels with clean ones of the same cases: no network, no training.

    Args:
        labels: folder of label maps, or of binary masks.
        clean: folder of clean ones, of the same names; a few are enough.
        class_names: one per value that the compared labels hold, in ascending order; by default the values themselves.
        ignore_value: value of unknown voxels, in either.
        tolerance: a bias up to it does no harm, in mm; one voxel by default, as for
            :py:func:`~monai_sc.folders.correct_folder`, which says the same of the same pairs.
        progress: show a progress bar.
        part: of several processes with the same call, which compare the cases between them; by default the only one.
        out: folder in which the parts leave for each other what they have measured, in a hidden one that
            :py:func:`monai_sc.reports.write_audit` deletes; only parts need it.

    Returns:
        ``unit`` (``"mm"``, or ``"voxels"`` where no file says how large a voxel is), ``unit_stated`` (whether all files
        say it), ``voxel`` (the median of the smallest sides of all cases), ``tolerance``, ``ignore_value``, ``unused``
        (clean labels without a label of that name, which are not compared), ``cases`` (each with ``name``, ``dice`` and
        ``displacement`` by class), and ``classes``: by name its ``value``, the mean Dice, ``bias`` and ``interval`` in
        the unit, ``bias_voxels``, ``verdict``, ``cases_used``, ``cases_skipped``, ``half_width_by_cases`` (of the
        interval, for other numbers of cases), and how often an object is drawn where there is none, and the reverse.
        ``nan`` where something is not defined. Empty for a part that ends before all cases are compared.

    Raises:
        ValueError: when there is nothing to compare, two labels of a case do not lie on one grid, ``class_names`` do
            not fit the values, ``tolerance`` is negative, or a part has no ``out``.
        FileNotFoundError: when a folder does not exist.
    """
    part = part or Part()
    check_tolerance(tolerance)
    source, reference = Path(labels), Path(clean)
    names, lone = pairs_of(source, reference)
    in_mm = all(file_suffix(Path(name)) not in PICTURES for name in names)

    def compared(chosen: Sequence[str]) -> Iterator[dict[str, Any]]:
        check, judge = AxesCheck(), ValueJudge() if class_names is None else None
        for name in track(chosen, "Comparing labels", disable=not progress):
            yield _compared(source, reference, name, ignore_value, in_mm, check, judge)
            if name == chosen[min(CHECKED, len(chosen)) - 1]:
                check.refuse_turned(f"The labels of {reference}", f"those of {source}", name)

    def result(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return _result(rows, source, reference, lone, in_mm, tolerance, ignore_value, class_names)

    if part.count > 1 and out is None:
        raise ValueError("out must be given for one of several parts, which exchange through it what they measure.")
    if not part.own(names):
        return {}  # there are more parts than cases
    if out is not None:
        asked = [version("monai-sc"), str(labels), str(clean), ignore_value, tolerance, list(class_names or [])]
        files = [find_in(folder, name) for folder in (source, reference) for name in names]
        exchange = Exchange(Path(out) / f"{EXCHANGE}{key_of(asked, files)}", part, Path(out))
        if exchange.is_needed:
            with exchange.claimed():
                done = exchange.rows()
                with exchange.noting() as note:
                    for row in compared([name for name in part.own(names) if name not in done]):
                        with naming(exchange.folder):
                            note(row)
                with exchange.gathered(names) as rows:
                    return result(rows) if rows else {}
    return result(list(compared(names)))


def refuse_masks_apart(found: Mapping[Path, Sequence[int]]) -> None:
    """Refuse masks of 0 and 1 beside such of 0 and 255: these are no two classes.

    Args:
        found: the values of the classes in each file.

    Raises:
        ValueError: naming one of each kind.
    """
    apart = masks_apart(found)
    if apart is not None:
        one, other = apart
        raise ValueError(
            f"All masks must have one value beside 0, got {found[one][0]} in {one} and {found[other][0]} in {other}; "
            "write one of them in all files."
        )


def check_tolerance(tolerance: float | None) -> None:
    """Refuse a tolerance that is none.

    Raises:
        ValueError: when it is negative, or ``nan``.
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}.")


def _compared(
    source: Path,
    reference: Path,
    name: str,
    ignore_value: float | None,
    in_mm: bool,
    check: AxesCheck,
    judge: ValueJudge | None,
) -> dict[str, Any]:
    """Return what is measured on a case: for each class in one of its labels, as JSON types.

    Distances are in voxels, of the smallest side of the case.
    """
    given = load_label(source, name)
    true = load_label(reference, name, given)
    values = [label.classes(ignore_value, judge) for label in (given, true)]
    classes = sorted({*values[0], *values[1]})
    voxel = float(min(true.spacing)) if in_mm else 1.0
    row: dict[str, Any] = {"case": name, "voxel": voxel, "given": values[0], "clean": values[1]}
    if not classes:
        return {**row, "classes": {}}
    if not check.is_full:
        check.add(given.known(ignore_value), true.known(ignore_value))
    unknown = [m for m in (given.ignored(ignore_value), true.ignored(ignore_value)) if m is not None]
    ignore = np.any(unknown, axis=0)[None] if unknown else None
    pair = [label.masks(classes, ignore_value) for label in (given, true)]
    size = in_voxels(true.spacing, voxel, true.values.ndim) if in_mm else None
    displacement = boundary_displacement(*pair, spacing=size, ignore=ignore)
    if ignore is not None:
        pair = [masks & ~ignore for masks in pair]
    drawn, present = (np.any(masks, axis=tuple(range(1, masks.ndim))) for masks in pair)
    measured = zip(dice(*pair).tolist(), displacement.tolist(), drawn.tolist(), present.tolist(), strict=True)
    return {**row, "classes": {str(value): list(found) for value, found in zip(classes, measured, strict=True)}}


def _result(
    rows: Sequence[Mapping[str, Any]],
    source: Path,
    reference: Path,
    lone: Sequence[str],
    in_mm: bool,
    tolerance: float | None,
    ignore_value: float | None,
    class_names: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the result of an audit, of the rows of all its cases.

    Raises:
        ValueError: when there is nothing to compare, or ``class_names`` do not fit what there is.
    """
    own_values, true_values = ({value for row in rows for value in row[key]} for key in ("given", "clean"))
    classes = sorted(own_values | true_values)
    if not classes:
        raise ValueError(f"{source} and {reference} hold no class in the cases that both have: all is background.")
    if class_names is None:
        folders = (("given", source), ("clean", reference))
        refuse_masks_apart({folder / row["case"]: row[key] for key, folder in folders for row in rows})
    if not own_values & true_values:
        raise ValueError(
            f"{source} and {reference} must hold the same classes, got the values {sorted(own_values)} and "
            f"{sorted(true_values)} in the cases that both have."
        )
    voxel = unit_of([(row["voxel"],) for row in rows]) or 1.0
    limit = voxel if tolerance is None else tolerance
    values = [str(value) for value in classes]
    names = values if class_names is None else list(class_names)
    if len(names) != len(values) or len(set(names)) != len(names):
        raise ValueError(
            f"class_names must be different names for the values {', '.join(values)} that the compared labels hold, in "
            f"this order, got {names}."
        )
    # (cases, classes) of four each
    measured = [[row["classes"].get(value, ABSENT) for value in values] for row in rows]
    scores, displacements, drawn, present = (
        np.array([[found[k] for found in case] for case in measured]) for k in range(len(ABSENT))
    )
    if not np.isfinite(displacements).any():
        raise ValueError(
            f"In no case do a label of {source} and its clean label overlap, so that there is a boundary to compare."
        )
    displacements *= np.array([row["voxel"] for row in rows])[:, None] / voxel
    result: dict[str, Any] = {}
    for k, name in enumerate(names):
        bias = ClassBias.of(displacements[:, k], limit / voxel)
        rates = presence_rates(drawn[:, k].tolist(), present[:, k].tolist())
        result[name] = {
            "value": classes[k],
            "dice": float(scores[:, k].mean()),
            "bias": bias.mean * voxel,
            "interval": [end * voxel for end in bias.interval],
            "bias_voxels": bias.mean,
            "verdict": bias.verdict,
            "cases_used": bias.num_used,
            "cases_skipped": bias.num_skipped,
            "half_width_by_cases": half_widths(bias.spread * voxel, bias.num_used),
            "spurious": [rates.num_spurious, rates.num_absent],
            "spurious_interval": list(rates.spurious_interval),
            "missed": [rates.num_missed, rates.num_present],
            "missed_interval": list(rates.missed_interval),
        }
    cases = [
        {
            "name": row["case"],
            "dice": dict(zip(names, score.tolist(), strict=True)),
            "displacement": dict(zip(names, displacement.tolist(), strict=True)),
        }
        for row, score, displacement in zip(rows, scores, displacements * voxel, strict=True)
    ]
    return {
        "unit": "mm" if in_mm else "voxels",
        "voxel": voxel,
        "tolerance": limit,
        "ignore_value": ignore_value,
        "unit_stated": all(states_unit(find_in(folder, row["case"])) for folder in (source, reference) for row in rows),
        "unused": list(lone),
        "cases": cases,
        "classes": result,
    }
