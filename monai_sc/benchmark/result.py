"""The result of one training, as one file that a comparison reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Events
from monai.config import PathLike
from monai.engines import Evaluator, Trainer

from monai_sc.correction.state import plain
from monai_sc.files.durable import replace_synced
from monai_sc.parallel import gather, is_main
from monai_sc.reports.run import label_dice
from monai_sc.store.label_store import LabelStore

RESULT = "result.json"
"""The file of a result: it is there when the training has come to its end, and only then."""


def write_result(
    trainer: Trainer,
    evaluator: Evaluator,
    output_dir: PathLike,
    *,
    class_names: Sequence[str],
    image_size: Sequence[int],
    store: LabelStore | None = None,
) -> Path:
    """Measure the trained network on the test cases, write ``result.json``, and return its path.

    The file holds ``classes``; ``cases``, the ids of the test cases, and ``dice``, for each a list with the Dice of
    each class (1 where neither label nor prediction has it); ``epochs`` and ``seconds`` of the training, of its last
    part where it was resumed; ``image_size``; and ``label_dice``, of the training labels that were ``given`` and of
    those that were ``corrected``, by class, where clean ones are known.

    Args:
        trainer: that has run.
        evaluator: over the test cases, whose key metric is a MONAI ``DiceMetric`` in an ``IgniteMetricHandler``. Its
            batches hold ``id``.
        output_dir: of the file.
        class_names: one per channel of the predictions.
        image_size: that the network works on.
        store: of the training labels.

    Raises:
        ValueError: when the key metric has no Dice of each case and class.
    """
    ids: list[str] = []
    with evaluator.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: ids.extend(str(case["id"]) for case in evaluator.state.batch)
    ):
        evaluator.run()
    name = evaluator.state.key_metric_name
    details = evaluator.state.metric_details.get(name)
    everyone = list(itertools.chain.from_iterable(gather(ids)))  # process after process, as a metric puts them together
    if details is None or tuple(details.shape) != (len(everyone), len(class_names)):
        raise ValueError(
            f"The key metric of evaluator must be a DiceMetric with one value for each of {len(everyone)} cases and "
            f"{len(class_names)} classes, got {None if details is None else tuple(details.shape)}."
        )
    result: dict[str, Any] = {
        "classes": list(class_names),
        "cases": everyone,
        "dice": details.tolist(),
        "epochs": trainer.state.epoch,
        "seconds": trainer.state.times[Events.COMPLETED.name],
        "image_size": list(image_size),
        "label_dice": label_dice(store) if store is not None else {},
    }
    file = Path(output_dir) / RESULT
    if is_main():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(file, json.dumps(plain(result, nan=False)) + "\n")
    return file
