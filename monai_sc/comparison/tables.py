"""The tables of a comparison, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_sc.comparison.paper import PAPER_ITERATIONS
from monai_sc.comparison.picture import plot_comparison
from monai_sc.comparison.summary import MEAN, SIGNIFICANT, Run, run_rows, size_text
from monai_sc.correction.state import plain
from monai_sc.data.durable import replace_synced, replacing
from monai_sc.reports.spreadsheet import csv_text


def write_tables(
    out: Path,
    runs: Sequence[Run],
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    paper_size: Sequence[int] = (),
) -> None:
    """Write ``results.csv``, ``results.json``, ``results.md`` and ``results.png``, each whole or not at all.

    Args:
        out: folder.
        runs: of the comparison.
        summary: of them, from :py:func:`monai_sc.comparison.summarise`.
        settings: of the comparison; ``bundle`` is its title.
        paper_size: of the paper's images, if it is known.
    """
    rows = run_rows(runs)
    if not rows:
        return
    replace_synced(out / "results.csv", csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
    content = {"settings": dict(settings), **summary, "runs": rows}
    replace_synced(out / "results.json", json.dumps(plain(content, nan=False), indent=2) + "\n")
    replace_synced(out / "results.md", markdown(summary, str(settings["bundle"]), paper_size=paper_size))
    with replacing(out / "results.png") as picture:
        plot_comparison(summary, str(settings["bundle"])).savefig(picture, dpi=120, format="png")


def markdown(summary: Mapping[str, Any], title: str, *, paper_size: Sequence[int] = ()) -> str:
    """Return a Markdown table for each noise, the best value of a column in bold; no noise is no competitor.

    Args:
        summary: see :py:func:`monai_sc.comparison.summarise`.
        title: of the page.
        paper_size: of the paper's images, if it is known.
    """
    against = summary["against"]
    names = [*summary["classes"], MEAN]
    lines = [
        f"# {title}",
        "",
        "Dice on the test cases: the mean over cases, then over seeds, ± the standard deviation over seeds. In bold "
        f"the best of those trained on noisy labels. The difference from `{against}` is that of the mean, with its "
        f"95 % interval over test cases (paired bootstrap); \\* p < {SIGNIFICANT}, adjusted for the number of methods "
        "(Holm).",
    ]
    for noise, methods in summary["noises"].items():
        with_paper = any(row["paper"] is not None for row in methods.values())
        head = ["method", "seeds", *names, f"difference from {against}", *(["paper"] if with_paper else [])]
        lines += ["", f"## {noise}", "", _line(head), _line(["---"] * len(head))]
        best = {n: max((_rounded(r, n) for m, r in methods.items() if m != "clean"), default=None) for n in names}
        for method, row in methods.items():
            cells = [
                f"**{dice_text(row, n)}**" if method != "clean" and _rounded(row, n) == best[n] else dice_text(row, n)
                for n in names
            ]
            paper = [""] if row["paper"] is None else [f"{row['paper']:.3f}"]
            values = [
                method,
                str(len(row["seeds"])),
                *cells,
                difference_text(row).replace("*", r"\*"),
                *(paper if with_paper else []),
            ]
            lines.append(_line(values))
        lines += _note(methods, paper_size) if with_paper else []
    return "\n".join(lines) + "\n"


def dice_text(row: Mapping[str, Any], name: str) -> str:
    """Return the Dice of a class, with its standard deviation if there are several seeds."""
    if row["dice"][name] != row["dice"][name]:
        return "undefined"
    std = row["std"][name]
    return f"{row['dice'][name]:.3f}" + ("" if std != std else f" ± {std:.3f}")


def difference_text(row: Mapping[str, Any]) -> str:
    """Return the difference from the method of reference, marked if it is significant."""
    difference = row["difference"]
    if difference is None:
        return ""
    text = f"{difference['mean']:+.3f}"
    low, high = difference["interval"]
    if low == low:
        text += f" [{low:+.3f}, {high:+.3f}]"
    return text + ("*" if difference["significant"] else "")


def _rounded(row: Mapping[str, Any], name: str) -> float:
    """Return Dice as it is shown, so that equals look equal; an undefined one is the worst."""
    value = row["dice"][name]
    return -1.0 if value != value else round(value, 3)


def _note(methods: Mapping[str, Mapping[str, Any]], paper_size: Sequence[int]) -> list[str]:
    """Return how these trainings differ from those of the paper."""
    known = size_text(paper_size)
    ours: dict[tuple[str, str], list[str]] = {}
    for method, row in methods.items():
        size = ", ".join(filter(None, row["image_size"])) or "an unknown size"
        epochs = ", ".join(map(str, row["epochs"])) or "unknown"
        ours.setdefault((size, epochs), []).append(method)
    parts = [f"{size} and {epochs} epochs ({', '.join(names)})" for (size, epochs), names in ours.items()]
    paper = f"{PAPER_ITERATIONS} iterations{f' on images of {known}' if known else ''}"
    return [
        "",
        f"Paper: the mean of five networks after {paper} (Yao et al., ICLR 2023), with another "
        f"training than here; compare methods, not values. Here: {'; '.join(parts)}.",
    ]


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
