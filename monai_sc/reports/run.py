"""What is written and printed at the end of a run: results as JSON, tables and a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.handlers import IgniteMetricHandler
from monai.metrics import DiceMetric
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from monai_sc.correction.state import plain
from monai_sc.files.durable import replace_synced, replacing
from monai_sc.functional.masks import dice
from monai_sc.reports.figures import plot_correction
from monai_sc.reports.page import RESULTS, RunSource, write_page
from monai_sc.reports.page.contents import finite
from monai_sc.reports.shown_cases import ShownCases
from monai_sc.store.label_store import LabelStore

TEST_DICE = "_test_dice"


def dice_by_class(class_names: Sequence[str]) -> dict[str, IgniteMetricHandler]:
    """Return the metrics of an evaluator that a report needs: ``NAME_test_dice`` of each class.

    A case without the class counts, as in the Dice of the labels: 1 where nothing is predicted, else 0.

    Args:
        class_names: one per channel of ``pred`` and ``label``, which are 0 and 1.
    """

    def of_channel(k: int) -> Callable[[Sequence[Mapping[str, Any]]], list[list[Any]]]:
        return lambda output: [[case[key][k : k + 1] for case in output] for key in ("pred", "label")]

    return {
        f"{name}{TEST_DICE}": IgniteMetricHandler(
            metric_fn=DiceMetric(ignore_empty=False), output_transform=of_channel(k)
        )
        for k, name in enumerate(class_names)
    }


def summarise_run(
    store: LabelStore, history: Sequence[Mapping[str, Any]], *, reference: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the results of a run as JSON types.

    Args:
        store: of the run; clean labels, where they are known, serve to report the Dice of the labels.
        history: the records of :py:class:`monai_sc.handlers.SpatialCorrectionHandler`. If their ``metrics`` hold
            ``NAME_test_dice`` of each class, the results compare the networks.
        reference: metrics of the same network trained on clean labels.

    Returns:
        ``classes``, ``rounds`` (the history), ``kept_round``, ``label_dice`` and ``test_dice`` (by name, one value per
        class; nothing of corrected labels if no correction was kept), ``recovered``: the part of the mean test Dice
        lost to label noise that the correction gave back, ``None`` where a network to compare with is missing or
        nothing was lost; and ``skipped``: why cases were left out, by id.

    Raises:
        ValueError: when ``history`` is empty, or shorter than the current round.
    """
    if not history:
        raise ValueError("history must hold at least one round, got none; train for at least epochs_per_round epochs.")
    kept = store.current
    by_round = {int(record["round"]): record for record in history}
    if kept > max(by_round):
        raise ValueError(f"history must reach the current round, {kept}, got {len(history)} rounds.")
    measured = {
        "trained on given labels": _test_dice(by_round.get(0, {}).get("metrics") or {}, store.class_names),
        "trained on corrected labels": (
            _test_dice(by_round.get(kept, {}).get("metrics") or {}, store.class_names) if kept else None
        ),
        "trained on clean labels": _test_dice(reference or {}, store.class_names),
    }
    test = {name: values for name, values in measured.items() if values is not None}
    recovered = None
    if len(test) == 3:
        noisy, corrected, best = (float(np.mean(value)) for value in test.values())
        recovered = (corrected - noisy) / (best - noisy) if best > noisy else None
    return {
        "classes": store.class_names,
        "rounds": list(history),
        "kept_round": kept,
        "label_dice": label_dice(store),
        "test_dice": test,
        "recovered": recovered,
        "skipped": store.skipped,
    }


def label_dice(store: LabelStore) -> dict[str, list[float]]:
    """Return the mean Dice of labels and clean labels, by class, over the cases whose clean labels are known.

    Returns:
        ``given``, of round 0, and ``corrected``, of the current round if that is a later one; nothing if no clean
        label is known.
    """
    scores: dict[str, list[np.ndarray]] = {"given": [], "corrected": []}
    for case in store.cases:
        clean = store.read_clean(str(case["id"]))
        if clean is not None:
            scores["given"].append(dice(store.read(str(case["id"]), 0), clean))
            if store.current:
                scores["corrected"].append(dice(store.read(str(case["id"]), store.current), clean))
    return {name: np.mean(values, axis=0).tolist() for name, values in scores.items() if values}


def _test_dice(metrics: Mapping[str, Any], class_names: Sequence[str]) -> list[float] | None:
    """Return the Dice of the test cases by class, ``None`` where it was not measured."""
    names = [f"{name}{TEST_DICE}" for name in class_names]
    return [float(metrics[name]) for name in names] if set(names) <= metrics.keys() else None


def print_results(results: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the results of :py:func:`summarise_run` as tables."""
    console = console or Console(width=None if Console().is_terminal else 110)
    names = [escape(name) for name in results["classes"]]
    table = Table("Dice", *names, "mean", title="Labels and networks")
    for what, scores in (("labels", results["label_dice"]), ("test cases", results["test_dice"])):
        for name, values in scores.items():
            table.add_row(f"{what}, {name}", *(f"{v:.3f}" for v in [*_numbers(values), np.mean(_numbers(values))]))
    if table.row_count:
        console.print(table)
    rounds = Table("round", *names, "Dice, clean cases", title="Boundary bias in voxels (negative: too large)")
    for record in results["rounds"]:
        cells = [
            (f"{mean:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if finite(low) is not None else ""))
            if finite(mean) is not None
            else "undefined"
            for mean, (low, high) in zip(record["bias"], record["bias_interval"], strict=True)
        ]
        kept = " (kept)" if record["round"] == results["kept_round"] else ""
        rounds.add_row(f"{record['round']}{kept}", *cells, f"{np.mean(_numbers(record['clean_dice'])):.3f}")
    console.print(rounds)
    console.print(f"Stopped after round {results['rounds'][-1]['round']}: {results['rounds'][-1]['stop_reason']}.")
    if not results["kept_round"]:
        console.print("No correction was kept: the current labels are those that were given.")
    if results["recovered"] is not None:
        console.print(
            f"The correction recovered {100 * results['recovered']:.0f} % of the test Dice that the noise cost."
        )
    if results["skipped"]:
        skipped = Table("case", "why", title="Skipped cases")
        for name, reason in results["skipped"].items():
            skipped.add_row(escape(name), escape(reason))
        console.print(skipped)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Return numbers as an array, with ``nan`` for what is not known."""
    return np.array(values, dtype=np.float64)


def write_reference(metrics: Mapping[str, Any], output_dir: PathLike) -> None:
    """Write the metrics of a network that was trained on clean labels, for :py:func:`write_report` to compare with.

    Args:
        metrics: of the evaluator, ``NAME_test_dice`` of each class among them.
        output_dir: of the run to compare with.

    Raises:
        KeyError: when there is no such metric.
    """
    found = {name: float(value) for name, value in metrics.items() if name.endswith(TEST_DICE)}
    if not found:
        raise KeyError(f"metrics must hold NAME{TEST_DICE} of each class, got {list(metrics)}.")
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    replace_synced(folder / "reference.json", json.dumps(found) + "\n")


def write_report(
    store: LabelStore,
    history: Sequence[Mapping[str, Any]],
    output_dir: PathLike,
    *,
    num_cases: int = 3,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Path:
    """Write the report of a run, print its tables, and return the path of the page.

    The files are ``report.html``, a page for itself, with ``report_data.json`` and ``report_cases.csv``;
    ``results.json``, which ``python -m monai_sc report`` makes the page from again; and ``report.png``, a picture of
    some cases.

    Args:
        store: of the run.
        history: the records of :py:class:`monai_sc.handlers.SpatialCorrectionHandler`.
        output_dir: for the files; ``reference.json`` there, of :py:func:`write_reference`, is compared with.
        num_cases: in the picture: those whose labels changed most, least, and evenly between.
        settings: of the run, by name, for the provenance on the page: JSON types.
        progress: show a progress bar.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    reference = folder / "reference.json"
    results = summarise_run(
        store, history, reference=json.loads(reference.read_text(encoding="utf-8")) if reference.is_file() else None
    )
    results = plain(results, nan=False)
    told = {"store": os.path.relpath(store.root.resolve(), folder.resolve()), "settings": plain(dict(settings or {}))}
    replace_synced(folder / RESULTS, json.dumps({**results, **told}, indent=2) + "\n")
    figure = plot_correction(ShownCases(store, num_cases), history, store.class_names)
    with replacing(folder / "report.png") as picture:
        figure.savefig(picture, dpi=110, format="png")
    page = write_page(RunSource(store, {**results, **told}, folder), folder, progress=progress)
    print_results(results)
    Console(soft_wrap=True).print(f"Report: {page}")
    return page
