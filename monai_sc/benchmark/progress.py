"""How far a grid of trainings is: a table that follows them on a terminal, else a line as a cell starts and ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from monai_sc.benchmark.cells import LOG, CellResult, GridCell
from monai_sc.benchmark.runner import FailedCell


class GridProgress:
    """A watcher of ``run_cells`` that shows what it is told, as a context manager.

    On a terminal it is a table with a row for each method, each field with the cells that are done, running and failed,
    and their mean Dice so far; elsewhere one line for each cell that starts, with its log, and one when it ends.
    """

    def __init__(
        self,
        cells: Sequence[GridCell],
        *,
        columns: str = "noise",
        jobs: int = 1,
        console: Console | None = None,
    ) -> None:
        self.cells, self.columns, self.jobs = list(cells), columns, jobs
        self.console = Console(stderr=True) if console is None else console
        self.begin = time.monotonic()
        self.running: dict[str, float] = {}
        self.outcomes: dict[str, CellResult | FailedCell] = {}
        self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=2)

    def __enter__(self) -> GridProgress:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.running.clear()
        if self.console.is_terminal:
            self.live.stop()

    def started(self, cell: GridCell) -> None:
        self.running[cell.name] = time.monotonic()
        if not self.console.is_terminal:
            self._tell(f"{cell.name}: started, its log is {cell.folder / LOG}.")

    def ended(self, cell: GridCell, outcome: CellResult | FailedCell) -> None:
        begin = self.running.pop(cell.name, None)
        self.outcomes[cell.name] = outcome
        if begin is None or self.console.is_terminal:
            return
        if isinstance(outcome, FailedCell):
            told = f"failed, {outcome.reason} ({outcome.log})"
        else:
            told = f"Dice {outcome.mean:.3f}"
        minutes = (time.monotonic() - begin) / 60
        self._tell(f"{cell.name}: {told}; {minutes:.1f} minutes; {len(self.outcomes)} of {len(self.cells)} cells.")

    def _tell(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def remaining(self) -> float | None:
        """Return the seconds that the cells to come will take, as those done took; ``None`` before the first one."""
        done = [(cell, self.outcomes[cell.name]) for cell in self.cells if cell.name in self.outcomes]
        known = [(cell, one.seconds) for cell, one in done if isinstance(one, CellResult) and one.seconds]
        if not known:
            return None
        total = 0.0
        for cell in self.cells:
            if cell.name not in self.outcomes:
                alike = [s for other, s in known if other.labels.get("method") == cell.labels.get("method")]
                expected = float(np.mean(alike or [s for _, s in known]))
                passed = time.monotonic() - self.running.get(cell.name, time.monotonic())
                total += max(expected - passed, 0)
        return total / max(min(self.jobs, len(self.cells) - len(self.outcomes)), 1)

    def table(self) -> Table:
        """Return the table as it is now."""
        columns = list(dict.fromkeys(cell.labels.get(self.columns, "") for cell in self.cells))
        caption = f"{_duration(time.monotonic() - self.begin)} passed"
        remaining = self.remaining()
        if len(self.outcomes) < len(self.cells) and remaining is not None:
            caption += f", about {_duration(remaining)} left"
        table = Table(
            "method",
            *(escape(str(name)) for name in columns),
            title=f"{len(self.outcomes)} of {len(self.cells)} cells",
            caption=caption,
        )
        for row in dict.fromkeys(cell.labels.get("method", "") for cell in self.cells):
            own = [cell for cell in self.cells if cell.labels.get("method", "") == row]
            fields = [self._field([c for c in own if c.labels.get(self.columns, "") == column]) for column in columns]
            table.add_row(escape(str(row)), *fields)
        return table

    def _field(self, cells: Sequence[GridCell]) -> str:
        if not cells:
            return ""
        outcomes = [self.outcomes[cell.name] for cell in cells if cell.name in self.outcomes]
        done = [one for one in outcomes if isinstance(one, CellResult)]
        parts = [f"{len(done)}/{len(cells)}"]
        if done:
            parts.append(f"[bold]{np.mean([one.mean for one in done]):.3f}[/]")
        running = sum(cell.name in self.running for cell in cells)
        if running:
            parts.append(f"[cyan]{running} running[/]")
        if len(outcomes) > len(done):
            parts.append(f"[red]{len(outcomes) - len(done)} failed[/]")
        return " ".join(parts)


def _duration(seconds: float) -> str:
    """Return a time as users read it.

    Example:
        >>> _duration(59), _duration(3720)
        ('1 min', '1 h 2 min')
    """
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
