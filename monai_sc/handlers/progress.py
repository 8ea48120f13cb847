"""How a run of several trainings shows how far it is: bars on a terminal, and log lines."""

from __future__ import annotations

import logging
import time

from ignite.engine import Engine, Events
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from monai_sc.parallel import is_main

LOGGER = logging.getLogger("monai_sc")
"""Of all that the handlers say, apart from the engines' own loggers, which say several lines in each epoch."""


class RunProgress:
    """The bars of the round and of the run, each with the time left, on a terminal only."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown
        self._bars: Progress | None = None
        self._started = (0, 0.0)  # epoch, and when

    def show(self, name: str, done: int, epochs: int, epoch: int, max_epochs: int) -> None:
        """Show how far the run is."""
        if not self._started[1]:
            self._started = epoch, time.monotonic()
        if self._bars is None and self.shown and is_main() and Console().is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bars = Progress(*columns, transient=True)
            self._bars.start()
            self._bars.add_task(name, total=epochs)
            if max_epochs > epochs:
                self._bars.add_task("Run, at most", total=max_epochs)
        if self._bars is not None:
            of_round, *of_run = self._bars.task_ids
            if self._bars.tasks[0].description != name or done < self._bars.tasks[0].completed:
                self._bars.reset(of_round, description=name)
            self._bars.update(of_round, completed=done)
            for task in of_run:
                self._bars.update(task, completed=epoch)

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


class ProgressHandler:
    """Show how far a training is, with the time left: a bar on a terminal, and ten log lines with the loss.

    A handler that trains in rounds shows this itself; then this one is silent.

    Args:
        progress: show the bar.
    """

    def __init__(self, *, progress: bool = True) -> None:
        self._bars = RunProgress(progress)

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.EPOCH_STARTED, self._show)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)
        engine.add_event_handler(Events.COMPLETED | Events.TERMINATE, lambda: self._bars.stop())
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def __call__(self, engine: Engine) -> None:
        epoch, last = engine.state.epoch, engine.state.max_epochs or 1
        if self._show(engine, epoch) and epoch * 10 // last > (epoch - 1) * 10 // last:
            output = engine.state.output
            loss = output[0].get("loss") if isinstance(output, list) and isinstance(output[0], dict) else None
            told = "" if loss is None else f", loss {float(loss):.3g}"
            left = f", about {self._bars.time_left(epoch, last - epoch)} left" if epoch < last else ""
            self._bars.tell(f"Epoch {epoch} of {last}{told}{left}.")

    def _show(self, engine: Engine, epoch: int | None = None) -> bool:
        if getattr(engine.state, "shows_rounds", False):
            return False
        done, last = engine.state.epoch - 1 if epoch is None else epoch, engine.state.max_epochs or 1
        self._bars.show("Training", done, last, done, last)
        return True

    def _fail(self, engine: Engine, error: BaseException) -> None:
        self._bars.stop()
        raise error  # as MONAI's StatsHandler does: ignite raises only where no handler listens
