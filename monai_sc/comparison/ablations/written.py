"""What the trainings of an ablation write beside their result, for its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike

from monai_sc.correction.state import plain
from monai_sc.data.durable import replace_synced, replacing
from monai_sc.data.label_store import LabelStore
from monai_sc.functional.dice import dice
from monai_sc.handlers.confidence import ConfidenceHandler
from monai_sc.transforms.load import read_image

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
        raise ValueError("The clean labels of the store must be known, to say how good a round is.")
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
