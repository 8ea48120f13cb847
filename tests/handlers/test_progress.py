from __future__ import annotations

import logging

import pytest
from ignite.engine import Engine, Events

from monai_sc.handlers import ProgressHandler
from monai_sc.handlers import progress as module
from monai_sc.handlers.progress import LOGGER, RunProgress


@pytest.fixture
def console(monkeypatch):
    """Return a terminal on which the bars are drawn, and what it has been given."""
    from rich.console import Console

    console = Console(force_terminal=True, record=True, width=100)
    monkeypatch.setattr(module, "Console", lambda: console)
    monkeypatch.setattr(module, "Progress", lambda *c, **o: PROGRESS(*c, console=console, **o))
    return console


PROGRESS = module.Progress


def trained(epochs, handler, update=lambda engine, batch: [{"loss": 0.25}]):
    engine = Engine(update)
    handler.attach(engine)
    engine.run([0], max_epochs=epochs)
    return engine


@pytest.mark.parametrize(("epochs", "lines"), [(3, 3), (10, 10), (40, 10), (95, 10)])
def test_a_training_logs_ten_lines_at_most(caplog, epochs, lines):
    with caplog.at_level(logging.INFO):
        trained(epochs, ProgressHandler())
    told = [record.getMessage() for record in caplog.records if record.name == LOGGER.name]
    assert len(told) == lines
    assert told[-1] == f"Epoch {epochs} of {epochs}, loss 0.25."
    assert all(text.endswith(" left.") for text in told[:-1])


def test_nothing_is_shown_beside_a_handler_that_shows_its_rounds(caplog):
    engine = Engine(lambda engine, batch: [{"loss": 0.25}])
    ProgressHandler().attach(engine)
    engine.add_event_handler(Events.STARTED, lambda: setattr(engine.state, "shows_rounds", True))
    with caplog.at_level(logging.INFO):
        engine.run([0], max_epochs=5)
    assert not [record for record in caplog.records if record.name == LOGGER.name]


def test_an_error_of_the_training_is_raised_and_ends_the_bars(console):
    def fail(engine, batch):
        raise RuntimeError("out of memory")

    handler = ProgressHandler()
    with pytest.raises(RuntimeError, match="out of memory"):
        trained(3, handler, fail)
    assert handler._bars._bars is None


def test_bars_of_round_and_run_go_on_and_start_anew_with_a_round(console):
    bars = RunProgress()
    for epoch in range(1, 8):
        bars.show(f"Round {(epoch - 1) // 4}", (epoch - 1) % 4 + 1, 4, epoch, 12)
        of_round, of_run = bars._bars.tasks
        assert (of_round.description, of_round.completed) == (f"Round {(epoch - 1) // 4}", (epoch - 1) % 4 + 1)
        assert (of_run.completed, of_run.total) == (epoch, 12)
    bars.stop()
    assert bars._bars is None


def test_there_are_no_bars_without_a_terminal():
    bars = RunProgress()
    bars.show("Round 0", 1, 4, 1, 12)
    assert bars._bars is None


@pytest.mark.parametrize(("seconds", "told"), [(2, "20 s"), (30, "5 min"), (1200, "3 h")])
def test_time_left_is_told_in_a_unit_of_its_size(monkeypatch, seconds, told):
    bars, times = RunProgress(), iter([100.0, 100.0 + 5 * seconds])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    bars.show("Round 0", 0, 20, 3, 20)
    assert bars.time_left(3, 10) == ""
    assert bars.time_left(8, 10) == told


@pytest.mark.parametrize("logged", [False, True])
def test_a_message_appears_once(caplog, capsys, logged):
    with caplog.at_level(logging.INFO if logged else logging.WARNING):
        RunProgress().tell("Round 0: [trained].")
    assert [record.getMessage() for record in caplog.records] == ["Round 0: [trained]."] * logged
    assert capsys.readouterr().out == ("" if logged else "Round 0: [trained].\n")
