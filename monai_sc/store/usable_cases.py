"""A case list checked file by file, before anything is trained or written."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.data import MetaTensor
from rich.progress import track

from monai_sc.files.axes import AxesCheck
from monai_sc.files.cases import Case, check_list, file_keys, files_of, same_name
from monai_sc.files.grids import check_same_grid, check_whole, grid_of, image_grid
from monai_sc.files.read import read_image
from monai_sc.functional.checks import check_choice
from monai_sc.parallel import is_main
from monai_sc.transforms.load import LoadLabel

NAMES = {
    "image": "Image file",
    "label": "Label file",
    "clean_label": "Label file",
    "reference_label": "Label file",
    "trusted": "Trusted mask",
}

logger = logging.getLogger(__name__)


class UsableCases(list[Case]):
    """The cases that can be used, as a list.

    Attributes:
        skipped: why each of the other cases cannot, by its id: one sentence that names the file.
    """

    def __init__(self, cases: Sequence[Case] = (), skipped: Mapping[str, str] | None = None) -> None:
        super().__init__(cases)
        self.skipped: dict[str, str] = dict(skipped or {})


def usable_cases(
    cases: Sequence[Mapping[str, Any]],
    *,
    clean: Sequence[Mapping[str, Any]] = (),
    values: Sequence[int] | None = None,
    on_bad_case: str = "raise",
    progress: bool = True,
) -> UsableCases:
    """Return the cases whose files are whole and fit each other; nothing is written.

    A case is bad when a file of it does not exist, cannot be read, is truncated or damaged, has voxels without size or
    an affine without inverse; when a label file holds other values than it should, or more than one channel; when a
    file of it does not lie on the grid of its image, by shape and, where the files have geometry, by affine (to 0.001);
    when an earlier case has the same image or label file; and when it is a clean case too. Files are compared as MONAI
    reads them. Labels are read to their end, of NIfTI images only the header and the size; one file is in memory at a
    time.

    Args:
        cases: training cases, or clean ones: dictionaries as of :py:data:`~monai_sc.files.cases.Case`.
        clean: with training cases, the clean ones, which must not be among them: by id, or by image file.
        values: of the classes, where each label is one label map (see :py:class:`~monai_sc.transforms.LoadLabel`).
        on_bad_case: ``"raise"``, or ``"skip"``, which skips bad cases and logs a warning for each.
        progress: show a progress bar.

    Returns:
        The usable cases in their order; its ``skipped`` says why the others are not.

    Raises:
        ValueError: when a case is bad, or with ``"skip"`` all are; when a list is not sound (see
            :py:func:`~monai_sc.files.check_cases`), or an option or the foreground of a case has no such value.
        TypeError: when a case is not a dictionary, or names no files.
        KeyError: when a case lacks ``id``, ``image`` or ``label``.
    """
    check_choice(on_bad_case, ("raise", "skip"), "on_bad_case")
    cases, clean = list(cases), list(clean)
    check_list(cases)
    if clean:
        check_list(clean)
    check_files = _FileCheck(cases, values)
    clean_ids = {same_name(case["id"]) for case in clean}
    clean_images = {file.resolve() for case in clean for file in files_of(case, "image")}
    taken: dict[tuple[str, Path], str] = {}
    usable = UsableCases()
    for case in track(cases, "Checking cases", disable=not (progress and is_main())):
        case_id, images = case["id"], files_of(case, "image")
        own = {("image", file.resolve()): file for file in images}
        # Empty masks are equal, and links of equal files lead to one (git-annex): that is no label twice.
        own |= {("label", Path(os.path.abspath(file))): file for file in files_of(case)}
        try:
            check_files(case)
            for (key, resolved), file in own.items():
                if (key, resolved) in taken:
                    raise ValueError(
                        f"{NAMES[key]} {file} already belongs to case {taken[key, resolved]!r}; remove one of them."
                    )
            if same_name(case_id) in clean_ids or any(file.resolve() in clean_images for file in images):
                raise ValueError(
                    f"Image file {images[0]} is also a clean case: the bias would be measured on what the network has "
                    "learnt from; leave it out of one of the two lists."
                )
        except ValueError as error:
            usable.skipped[case_id] = str(error)
            if on_bad_case == "skip":
                logger.warning("Case %r is skipped: %s", case_id, error)
        else:
            usable.append(dict(case))
            taken.update(dict.fromkeys(own, case_id))
    check_files.axes.refuse_turned("Clean labels", "the labels of the same cases", check_files.last)
    if usable.skipped and (on_bad_case == "raise" or not usable):
        (case_id, reason), *others = usable.skipped.items()
        more = f" {len(others)} more of {len(cases)} cases cannot be used." if others else ""
        way_out = " on_bad_case='skip' skips bad cases." if usable else ""
        raise ValueError(f"Case {case_id!r} cannot be used: {reason}{more}{way_out}")
    return usable


class _FileCheck:
    """Refuses a case whose files are not whole, or do not fit each other."""

    def __init__(self, cases: Sequence[Mapping[str, Any]], values: Sequence[int] | None) -> None:
        foregrounds = {case.get("foreground") for case in cases}
        self.load_label = {value: LoadLabel(foreground=value, values=values) for value in foregrounds}
        num_files = len(files_of(cases[0]))
        if values is not None and num_files > 1:
            raise ValueError(f"With values a label must be one file, a label map, got {num_files} in every case.")
        self.num_classes = num_files if values is None else len(values)
        self.axes = AxesCheck()
        self.last = Path()

    def __call__(self, case: Mapping[str, Any]) -> None:
        reference = None
        drawn: dict[str, list[Any]] = {}
        for key in file_keys(case):
            files = files_of(case, key)
            if key == "trusted" and len(files) not in (1, self.num_classes):
                raise ValueError(
                    f"Trusted mask {files[0]} must be one file for all classes, or there must be one per class, "
                    f"{self.num_classes}, got {len(files)}."
                )
            for file in files:
                name = f"{NAMES[key]} {file}"
                check_whole(file, name, to_end=key != "image")
                if key == "image":
                    grid = image_grid(file, name)
                else:
                    label = self._read(file, key, case, name)
                    grid = grid_of(label, name)
                    if "clean_label" in case and key in ("label", "clean_label"):
                        drawn.setdefault(key, []).append(np.any(label.numpy(), axis=0))
                        self.last = file  # a clean one, where both are compared
                reference = reference or grid
                check_same_grid(grid, reference)
        if "clean_label" in drawn and not self.axes.is_full:
            self.axes.add(*(np.any(drawn[key], axis=0) for key in ("label", "clean_label")))

    def _read(self, file: Path, key: str, case: Mapping[str, Any], name: str) -> MetaTensor:
        if key != "trusted":
            return self.load_label[case.get("foreground")](file)
        mask = read_image(file, name)
        if len(mask) != 1:
            raise ValueError(f"{name} must hold one channel, got {len(mask)}.")
        return mask
