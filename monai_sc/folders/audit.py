"""Compare a folder of labels with clean ones: is there a bias, and how large?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from rich.progress import track

from monai_sc.correction.cases import in_voxels, unit_of
from monai_sc.correction.fitting import ClassBias
from monai_sc.correction.presence import presence_rates
from monai_sc.correction.state import half_widths
from monai_sc.files.axes import CHECKED
from monai_sc.files.grids import states_unit
from monai_sc.files.names import find_in
from monai_sc.files.write import PICTURES, file_suffix
from monai_sc.folders.labels import LabelFile, LabelPairs
from monai_sc.functional.bias import boundary_displacement
from monai_sc.functional.masks import dice

# Dice, displacement (in voxels), drawn and present of a class that neither label holds
ABSENT = (1.0, np.nan, False, False)


def audit_folder(
    labels: PathLike,
    clean: PathLike,
    *,
    class_names: Sequence[str] | None = None,
    ignore_value: float | None = None,
    tolerance: float | None = None,
    progress: bool = True,
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

    Returns:
        ``unit`` (``"mm"``, or ``"voxels"`` where no file says how large a voxel is), ``unit_stated`` (whether all files
        say it), ``voxel`` (the median of the smallest sides of all cases), ``tolerance``, ``ignore_value``, ``unused``
        (clean labels without a label of that name, which are not compared), ``cases`` (each with ``name``, ``dice`` and
        ``displacement`` by class), and ``classes``: by name its ``value``, the mean Dice, ``bias`` and ``interval`` in
        the unit, ``bias_voxels``, ``verdict``, ``cases_used``, ``cases_skipped``, ``half_width_by_cases`` (of the
        interval, for other numbers of cases), and how often an object is drawn where there is none, and the reverse.
        ``nan`` where something is not defined.

    Raises:
        ValueError: when there is nothing to compare, two labels of a case do not lie on one grid, ``class_names`` do
            not fit the values, or ``tolerance`` is negative.
        FileNotFoundError: when a folder does not exist.
    """
    check_tolerance(tolerance)
    source, reference = Path(labels), Path(clean)
    pairs = LabelPairs(source, reference, ignore_value=ignore_value, judged=class_names is None)
    if not pairs.both:
        raise ValueError(
            f"{source} and {reference} must have files of the same names, got {pairs.names[0]} there and "
            f"{pairs.clean_names[0]} here; a clean label is compared with the label of the same case."
        )
    in_mm = all(file_suffix(Path(name)) not in PICTURES for name in pairs.both)
    sizes, found = [], []  # of each case: the smallest side of a voxel, and what is measured by value
    for number, name in enumerate(track(pairs.both, "Comparing labels", disable=not progress), 1):
        given, true = pairs.read(name)
        sizes.append(float(min(true.spacing)) if in_mm else 1.0)
        values = sorted({*pairs.drawn[name], *pairs.true[name]})
        spacing = in_voxels(true.spacing, sizes[-1], true.values.ndim) if in_mm else None
        found.append(_compared(given, true, values, ignore_value, spacing))
        if number == min(CHECKED, len(pairs.both)):
            pairs.refuse_turned(name)
    classes = sorted({value for measured in found for value in measured})
    if not classes:
        raise ValueError(f"{source} and {reference} hold no class in the cases that both have: all is background.")
    pairs.refuse_masks_apart()
    pairs.values()
    voxel = unit_of([(size,) for size in sizes]) or 1.0
    limit = voxel if tolerance is None else tolerance
    names = [str(value) for value in classes] if class_names is None else list(class_names)
    if len(names) != len(classes) or len(set(names)) != len(names):
        raise ValueError(
            f"class_names must be different names for the values {', '.join(map(str, classes))} that the compared "
            f"labels hold, in this order, got {names}."
        )
    measured = [[case.get(value, ABSENT) for value in classes] for case in found]  # (cases, classes) of four each
    scores, displacements, drawn, present = (
        np.array([[own[k] for own in case] for case in measured]) for k in range(len(ABSENT))
    )
    if not np.isfinite(displacements).any():
        raise ValueError(f"No label of {source} overlaps its clean label, so there is no boundary to compare.")
    displacements *= np.array(sizes)[:, None] / voxel
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
            "name": name,
            "dice": dict(zip(names, score.tolist(), strict=True)),
            "displacement": dict(zip(names, displacement.tolist(), strict=True)),
        }
        for name, score, displacement in zip(pairs.both, scores, displacements * voxel, strict=True)
    ]
    return {
        "unit": "mm" if in_mm else "voxels",
        "voxel": voxel,
        "tolerance": limit,
        "ignore_value": ignore_value,
        "unit_stated": all(states_unit(find_in(folder, name)) for folder in (source, reference) for name in pairs.both),
        "unused": [name for name in pairs.clean_names if name not in pairs.both],
        "cases": cases,
        "classes": result,
    }


def check_tolerance(tolerance: float | None) -> None:
    """Refuse a tolerance that is negative or ``nan``."""
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}.")


def _compared(
    given: LabelFile,
    true: LabelFile,
    classes: Sequence[int],
    ignore_value: float | None,
    spacing: Sequence[float] | None,
) -> dict[int, tuple[float, float, bool, bool]]:
    """Return by class the Dice, the displacement in voxels, and whether it is drawn and present."""
    if not classes:
        return {}
    unknown = [m for m in (given.ignored(ignore_value), true.ignored(ignore_value)) if m is not None]
    ignore = np.any(unknown, axis=0)[None] if unknown else None
    pair = [label.masks(classes, ignore_value) for label in (given, true)]
    displacement = boundary_displacement(*pair, spacing=spacing, ignore=ignore)
    if ignore is not None:
        pair = [masks & ~ignore for masks in pair]
    drawn, present = (np.any(masks, axis=tuple(range(1, masks.ndim))) for masks in pair)
    measured = zip(dice(*pair).tolist(), displacement.tolist(), drawn.tolist(), present.tolist(), strict=True)
    return dict(zip(classes, measured, strict=True))
