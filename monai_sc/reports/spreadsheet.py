"""Tables as CSV, which people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

BEGIN_A_FORMULA = ("=", "+", "-", "@")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""Return rows as CSV, in which no name is a formula to a spreadsheet.

    Text that begins like a formula, or with white space before one, gets an apostrophe in front. Numbers stay as they
    are; ``None`` and nan are empty.

    Example:
        >>> csv_text([["case", "displacement"], ["=1+1", -0.5]])
        "case,displacement\n'=1+1,-0.5\n"
    """
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return written.getvalue()


def _cell(value: Any) -> Any:
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # which Python does not quote, and other programs take for the end of a line
    return f"'{text}" if text.lstrip().startswith(BEGIN_A_FORMULA) else text
