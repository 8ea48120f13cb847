"""What the ablations share: trainings of one bundle that differ in one thing, a table and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from monai.config import PathLike
from rich.table import Table

from monai_sc.benchmark.cells import RESULT, GridCell, cell_of_bundle, read_result
from monai_sc.benchmark.grid import CLEAN_CASES, SHIPPED_CONFIGS, WITHOUT_CLEAN_CASES, ComparedBundle, find_method
from monai_sc.benchmark.methods.confidence import ConfidenceHandler
from monai_sc.benchmark.progress import GridProgress
from monai_sc.benchmark.runner import claimed, run_cells, settle
from monai_sc.correction.state import plain
from monai_sc.files.durable import replace_synced, replacing
from monai_sc.files.read import read_image
from monai_sc.functional.masks import dice
from monai_sc.store.label_store import LabelStore

CONFIDENCE, ROUNDS = "confidence", "rounds"


def write_confidence(handler: ConfidenceHandler, output_dir: PathLike) -> None:
    """Write ``confidence.json``, what a handler has recorded, and ``confidence.npz``, the surroundings of its voxel.

    The arrays are ``image``, ``given`` and ``clean`` ``(height, width)``: the slice of the voxel and its class.

    Args:
        handler: of a training that has run.
        output_dir: of the training.

    Raises:
        ValueError: when it has recorded nothing.
    """
    voxel, store = handler.voxel, handler.store
    clean = None if voxel is None else store.read_clean(voxel.case)
    if voxel is None or clean is None:
        raise ValueError("handler must have recorded an epoch at least; the training has not run.")
    k = store.class_names.index(voxel.class_name)
    plane: Any = (slice(None), slice(None), *voxel.index[2:])
    given = store.read(voxel.case, 0)
    labels = {"given": bool(given[(k, *voxel.index)]), "clean": bool(clean[(k, *voxel.index)])}
    content = {
        "classes": store.class_names,
        "band": handler.band,
        "voxel": {**vars(voxel), **labels, "index": list(voxel.index)},
        "history": handler.history,
    }
    arrays = {"image": _image_of(store, voxel.case)[plane], "given": given[k][plane], "clean": clean[k][plane]}
    _write(Path(output_dir), CONFIDENCE, content, arrays)


def write_rounds(store: LabelStore, history: Sequence[Mapping[str, Any]], output_dir: PathLike) -> None:
    """Write ``rounds.json``, the Dice of the labels of each round, and ``rounds.npz``, labels of one case per class.

    Of each class it is the case whose given label is most in error. The arrays are ``CLASS/image``, ``CLASS/clean`` and
    ``CLASS/round-R`` ``(height, width)``; of a volume the slice where the given label is most in error.

    Args:
        store: of a correction that has run, whose clean labels are known.
        history: the records of its handler.
        output_dir: of the training.

    Raises:
        ValueError: when no clean label is known.
    """
    scores: dict[str, list[np.ndarray]] = {}
    for case in store.cases:
        clean = store.read_clean(str(case["id"]))
        if clean is not None:
            scores[str(case["id"])] = [dice(store.read(str(case["id"]), number), clean) for number in store.rounds]
    if not scores:
        raise ValueError("The clean labels of the store must be known, to measure a round.")
    arrays: dict[str, np.ndarray] = {}
    cases = []
    for k, name in enumerate(store.class_names):
        worst = min(scores, key=lambda case_id: float(scores[case_id][0][k]))
        masks = {f"round-{number}": store.read(worst, number)[k] for number in store.rounds}
        shown = {"image": _image_of(store, worst), "clean": np.asarray(store.read_clean(worst))[k], **masks}
        if shown["clean"].ndim == 3:
            best = int(np.argmax((shown["round-0"] ^ shown["clean"]).sum(axis=(0, 1))))
            shown = {key: array[..., best] for key, array in shown.items()}
        arrays |= {f"{name}/{key}": array for key, array in shown.items()}
        cases.append(worst)
    content = {
        "classes": store.class_names,
        "label_dice": np.mean(list(scores.values()), axis=0).tolist(),
        "kept_round": store.current,
        "stop_reason": history[-1]["stop_reason"],
        "cases": cases,
    }
    _write(Path(output_dir), ROUNDS, content, arrays)


def read_written(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the content and the arrays that a training has written under a name into its folder."""
    with np.load(folder / f"{name}.npz") as arrays:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), dict(arrays)


def _image_of(store: LabelStore, case_id: str) -> np.ndarray:
    image = read_image(store.case(case_id)["image"], f"Image of case {case_id!r}")
    return np.asarray(image.numpy()[0], dtype=np.float32)


def _write(folder: Path, name: str, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.npz") as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    replace_synced(folder / f"{name}.json", json.dumps(plain(content, nan=False)) + "\n")


ABLATION_CONFIGS = SHIPPED_CONFIGS / "ablations"


@dataclass(frozen=True)
class Setup:
    """What all trainings of an ablation share.

    Attributes:
        bundle: that is trained.
        out: folder of the ablation.
        dataset_dir: of the bundle's data.
        seeds: of noise and training.
        noise: id under ``noises`` of the bundle.
        quick: use the smaller settings of the bundle.
        overrides: values of ids of the configs.
    """

    bundle: ComparedBundle
    out: Path
    dataset_dir: Path
    seeds: Sequence[int] = (0,)
    noise: str = "markov_expand"
    quick: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)

    def folder_of(self, name: str) -> Path:
        """Return the folder of the cell of a name."""
        return self.out / "cells" / name

    def cell(
        self,
        method: str,
        seed: int,
        axis: str,
        value: int | str,
        *,
        changes: Mapping[str, Any] | None = None,
        configs: Sequence[Path] = (),
        with_clean: bool = False,
    ) -> GridCell:
        """Return one training.

        Args:
            method: name of a method, or the path of its config.
            seed: of noise and training.
            axis: name of what is varied.
            value: of it.
            changes: values of ids of the configs.
            configs: that are merged over that of the method.
            with_clean: the method learns from the clean cases first, as the compared ones do in the paper.

        Raises:
            ValueError: when ``overrides`` hold one of ``changes``.
        """
        if both := sorted(dict(self.overrides).keys() & dict(changes or {}).keys()):
            raise ValueError(f"--set must not give {both[0]!r}, which this ablation sets itself.")
        name, config = find_method(method)
        title = f"{axis}-{value}/{name}/seed-{seed}"
        first = [CLEAN_CASES] if with_clean and name not in WITHOUT_CLEAN_CASES else []
        parts = (self.bundle.train_file, config, *first, *configs)
        fixed = {"dataset_dir": self.dataset_dir.resolve(), "noise": self.noise, "seed": seed}
        return cell_of_bundle(
            self.bundle.folder,
            self.folder_of(title),
            name=title,
            labels={axis: value, "method": name, "seed": seed},
            configs=parts,
            overrides=fixed | ({"quick": True} if self.quick else {}) | dict(self.overrides) | dict(changes or {}),
            resumes=self.bundle.resumes(parts),
        )


@dataclass(frozen=True)
class Ablation:
    """An ablation: its trainings, and what is made of those that are done.

    Attributes:
        name: of its files.
        axis: name of what is varied, a label of each cell.
        cells: its trainings; one that is given several times is one.
        row: returns what is kept of a cell that is done, as JSON types, beside its labels.
        table: of the rows.
        draw: the picture of the rows.
        settings: beyond those of the setup that all its cells share.

    Raises:
        ValueError: when two different cells have one name, as those of two methods of one name.
    """

    name: str
    axis: str
    cells: Sequence[GridCell]
    row: Callable[[GridCell], dict[str, Any]]
    table: Callable[[Sequence[Mapping[str, Any]]], Table]
    draw: Callable[[Sequence[Mapping[str, Any]]], Figure]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cells: dict[str, GridCell] = {}
        for cell in self.cells:
            if cells.setdefault(cell.name, cell) != cell:
                raise ValueError(f"methods must have different names, got two for {cell.name}.")
        object.__setattr__(self, "cells", list(cells.values()))

    def rows(self) -> list[dict[str, Any]]:
        """Return what is known of each cell that is done, its name as ``cell``, in the order of the cells."""
        done = [cell for cell in self.cells if read_result(cell.folder) is not None]
        return [{"cell": cell.name} | dict(cell.labels) | self.row(cell) for cell in done]


def run_ablation(setup: Setup, ablation: Ablation, *, jobs: int = 1, progress: bool = True) -> list[dict[str, Any]]:
    """Run the trainings that are not done, and return the rows of all.

    ``NAME.json`` and ``NAME.png`` in the folder are written again after each training. A call that was stopped goes on
    when it is made again.

    Args:
        setup: of the ablation.
        ablation: whose cells are run.
        jobs: trainings at the same time.
        progress: whether to show it.

    Raises:
        ValueError: when the folder has other settings, or an id of the overrides is in no config.
        CellsFailedError: at the end, when trainings have failed.
    """
    rows: list[dict[str, Any]] = []
    settings = {
        "ablation": ablation.name,
        "bundle": setup.bundle.name,
        "bundle_version": setup.bundle.version,
        "dataset_dir": str(setup.dataset_dir.resolve()),
        "noise": setup.noise,
        "quick": setup.quick,
        "overrides": dict(setup.overrides),
        "monai_sc": version("monai-sc"),
        **ablation.settings,
    }

    def update() -> None:
        rows[:] = ablation.rows()
        if rows:
            content = {"settings": settings, "rows": rows}
            replace_synced(setup.out / f"{ablation.name}.json", json.dumps(plain(content, nan=False), indent=2) + "\n")
            with replacing(setup.out / f"{ablation.name}.png") as picture:
                ablation.draw(rows).savefig(picture, dpi=110, format="png")

    with claimed(setup.out), ExitStack() as stack:
        settle(setup.out / "settings.json", settings)
        watcher = None
        if progress:
            watcher = stack.enter_context(GridProgress(ablation.cells, columns=ablation.axis, jobs=jobs))
        run_cells(ablation.cells, setup.out, jobs=jobs, watcher=watcher, update=update)
    return rows


def scores_of(cell: GridCell) -> dict[str, Any]:
    """Return what every ablation keeps of a cell that is done: ``classes``, ``test_dice`` and ``label_dice`` by class.

    ``label_dice`` is that of the labels that the network learnt from in the end, empty where clean ones are not known.
    """
    content = json.loads((cell.folder / RESULT).read_text(encoding="utf-8"))
    scores, labels = np.array(content["dice"], dtype=np.float64), content.get("label_dice", {})
    return {
        "classes": content["classes"],
        "test_dice": np.nanmean(scores, axis=0).tolist(),
        "label_dice": labels.get("corrected", labels.get("given", [])),
    }
