"""How a run of several trainings shows how far it is: bars on a terminal, and log lines."""

from __future__ import annotations

import logging
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from monai_sc.parallel import is_main

LOGGER = logging.getLogger("monai_sc")
"""Of all that the handlers say, apart from the engines' own loggers, which say several lines in each epoch."""


class RunProgress:
    """The bars of the round and of the run, each with the time left, on a terminal only.

    Args:
        shown: show bars; without a terminal or in other processes than the first there are none anyway.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown
        self._bars: Progress | None = None
        self._started = (0, 0.0)  # epoch, and when

    def show(self, name: str, done: int, epochs: int, epoch: int, max_epochs: int) -> None:
        """Show how far the run is.

        Args:
            name: of the round.
            done: epochs of it that are over.
            epochs: of a round.
            epoch: of the run that is over.
            max_epochs: of the run.
        """
        if not self._started[1]:
            self._started = epoch, time.monotonic()
        if self._bars is None and self.shown and is_main() and Console().is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bars = Progress(*columns, transient=True)
            self._bars.start()
            for own, total in ((name, epochs), ("Run, at most", max_epochs)):
                self._bars.add_task(own, total=total)
        if self._bars is not None:
            of_round, of_run = self._bars.task_ids
            if self._bars.tasks[0].description != name or done < self._bars.tasks[0].completed:
                self._bars.reset(of_round, description=name)
            self._bars.update(of_round, completed=done)
            self._bars.update(of_run, completed=epoch)

    def time_left(self, epoch: int, epochs: int) -> str:
        """Return about how long some more epochs will take, in words, by those of this process; nothing if unknown."""
        first, start = self._started
        if epoch <= first:
            return ""
        seconds = epochs * (time.monotonic() - start) / (epoch - first)
        for limit, unit in ((5400, 3600), (90, 60)):
            if seconds > limit:
                return f"{seconds / unit:.0f} {'h' if unit == 3600 else 'min'}"
        return f"{seconds:.0f} s"

    def stop(self) -> None:
        """Take the bars away."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._started = None, (0, 0.0)

    def tell(self, text: str) -> None:
        """Say something once: in the log, or on the console where nothing is logged."""
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info(text)
        elif self.shown and is_main():
            (Console() if self._bars is None else self._bars.console).print(text, markup=False, highlight=False)
