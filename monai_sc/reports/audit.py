"""The picture of an audit: the bias of every class, and the cases that differ most."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from monai.config import PathLike

from monai_sc.correction.state import plain
from monai_sc.files.durable import naming, partial_of, write_synced
from monai_sc.folders.correct import refuse_source_folders
from monai_sc.folders.labels import load_label
from monai_sc.reports.figures import BOUNDARY_COLOURS, draw_boundaries, shown_name
from monai_sc.reports.page import REPORT_FILES
from monai_sc.reports.page.folder import AUDIT
from monai_sc.reports.shown_cases import find_image

RESULTS = (AUDIT, "audit.png")

SHOWN = 6


def check_audit_folder(out: PathLike, sources: Sequence[PathLike]) -> None:
    """Refuse a folder for an audit that holds anything else, or lies within or around a folder that is audited.

    Raises:
        ValueError: when it does.
        FileNotFoundError: when one of ``sources`` does not exist.
    """
    refuse_source_folders(Path(out), [Path(source) for source in sources])
    folder = Path(out)
    if folder.exists() and (
        not folder.is_dir()
        or any(file.name not in (*RESULTS, *REPORT_FILES) and not _is_partial(file) for file in folder.iterdir())
    ):
        raise ValueError(f"out must be a folder for audits only, new or that of an earlier one, got {out}.")


def write_audit(
    result: Mapping[str, Any],
    labels: PathLike,
    clean: PathLike,
    out: PathLike,
    *,
    images: PathLike | None = None,
) -> None:
    """Write ``audit.json`` and ``audit.png`` into the folder ``out``: both or, where something fails, none of them.

    ``audit.json`` holds ``labels``, ``clean`` and ``images`` too: the absolute paths of the folders.

    Args:
        result: of :py:func:`monai_sc.folders.audit_folder`, called with ``labels`` and ``clean``.
        labels: folder.
        clean: folder.
        out: folder, made if need be.
        images: as for :py:func:`plot_audit`.
    """
    figure = plot_audit(result, labels, clean, images=images)
    sources = {"labels": labels, "clean": clean, "images": images}
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    partial = [folder / f".{os.getpid()}-{name}" for name in RESULTS]
    try:
        folders = {name: None if path is None else str(Path(path).resolve()) for name, path in sources.items()}
        write_synced(partial[0], json.dumps(plain({**result, **folders}, nan=False), indent=2) + "\n")
        with naming(partial[1]):
            figure.savefig(partial[1], dpi=110, format="png")
    except BaseException:
        for file in partial:
            file.unlink(missing_ok=True)
        raise
    for file, name in zip(partial, RESULTS, strict=True):
        file.replace(folder / name)
    for file in filter(_is_partial, folder.iterdir()):  # of an audit that was killed
        file.unlink(missing_ok=True)


def _is_partial(file: Path) -> bool:
    if file.name in [partial_of(file.with_name(name)).name for name in REPORT_FILES]:
        return True
    return re.fullmatch(rf"\.\d+-({'|'.join(map(re.escape, RESULTS))})", file.name) is not None


def plot_audit(
    result: Mapping[str, Any], labels: PathLike, clean: PathLike, *, images: PathLike | None = None
) -> Figure:
    """Return a figure with the displacement of every case by class, and the cases with the lowest Dice.

    Args:
        result: of :py:func:`monai_sc.folders.audit_folder`.
        labels: the folder it was called with.
        clean: the same.
        images: folder of images of the same names (any type that MONAI loads); without it the masks lie on white.
    """
    classes = list(result["classes"])
    worst = sorted(result["cases"], key=lambda case: float(np.mean(list(case["dice"].values()))))[:SHOWN]
    columns = min(3, len(worst))
    rows = -(-len(worst) // columns)
    figure = Figure(figsize=(4 * columns + 5, max(3.6 * rows, 4)), layout="constrained")
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[1] * columns + [1.2])
    for place, case in enumerate(worst):
        axes = figure.add_subplot(grid[place // columns, place % columns])
        _draw_case(axes, case, [row["value"] for row in result["classes"].values()], Path(labels), Path(clean), images)
    _draw_displacements(figure.add_subplot(grid[:, columns]), result, classes)
    names = {"clean": "clean label", "given": "label"}
    lines = [Line2D([], [], color=BOUNDARY_COLOURS[n], lw=3, label=text) for n, text in names.items()]
    figure.legend(handles=lines, loc="outside upper left", ncols=2, facecolor="#404040", labelcolor="white")
    return figure


def _draw_case(
    axes: Axes, case: Mapping[str, Any], classes: list[int], labels: Path, clean: Path, images: PathLike | None
) -> None:
    given, true = load_label(labels, case["name"]), load_label(clean, case["name"])
    masks = {"clean": true.masks(classes), "given": given.masks(classes)}
    image = find_image(case["name"], given.values.shape, images)
    background = np.full(given.values.shape, 0.35, dtype=np.float32) if image is None else image
    if given.values.ndim == 3:
        change = (masks["clean"] ^ masks["given"]).sum(axis=(0, 1, 2))
        best = int(np.argmax(change))
        background = background[..., best]
        masks = {name: mask[..., best] for name, mask in masks.items()}
    draw_boundaries(axes, background, masks, width=1.2)
    scores = ", ".join(f"{score:.2f}" for score in case["dice"].values())
    axes.set_title(f"{shown_name(case['name'])}: Dice {scores}", fontsize=9)


def _draw_displacements(axes: Axes, result: Mapping[str, Any], classes: list[str]) -> None:
    limit = result["tolerance"]
    axes.axhspan(-limit, limit, color="0.9")
    axes.axhline(0, color="0.5", lw=0.8)
    rng = np.random.default_rng(0)
    for k, name in enumerate(classes):
        values = np.array([case["displacement"][name] for case in result["cases"]], dtype=np.float64)
        values = values[np.isfinite(values)]
        axes.plot(k + rng.uniform(-0.15, 0.15, len(values)), values, "o", color="#0072B2", alpha=0.4, ms=4)
        row = result["classes"][name]
        if np.isfinite(row["interval"]).all():
            error = np.abs(np.array(row["interval"]) - row["bias"])[:, None]
            axes.errorbar([k], [row["bias"]], yerr=error, fmt="s", color="#D55E00", capsize=5, lw=2, ms=7)
    axes.set_xticks(
        range(len(classes)), [f"{shown_name(name)}\n{result['classes'][name]['verdict']}" for name in classes]
    )
    axes.set_xlim(-0.6, len(classes) - 0.4)
    axes.set_ylabel("too large  ←  bias  →  too small")
    axes.set_title(f"Displacement of the labels, in {result['unit']}", fontsize=11)
    axes.text(0.99, 0.02, "grey: tolerance", transform=axes.transAxes, ha="right", fontsize=8, color="0.4")
