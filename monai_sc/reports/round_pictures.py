"""The handler that draws a picture at the end of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Engine
from monai.config import PathLike

from monai_sc.files.durable import replacing
from monai_sc.handlers import RoundEvents
from monai_sc.parallel import is_main
from monai_sc.reports.figures import plot_correction
from monai_sc.reports.shown_cases import ShownCases
from monai_sc.store.label_store import LabelStore


class RoundPictureHandler:
    """Draw the picture of :py:func:`~monai_sc.reports.plot_correction` at the end of each round.

    It is written to ``output_dir/rounds/round-NNN.png``: the labels that follow from the round, beside bias and Dice of
    the rounds so far. In a training of several processes the first one draws.

    The numbers of each round are in ``engine.state.metrics``, where MONAI's ``TensorBoardStatsHandler`` and
    ``MLFlowHandler`` find them if they are attached behind the :py:class:`~monai_sc.handlers.SpatialCorrectionHandler`.

    Args:
        store: of the run.
        output_dir: of the run; made if it does not exist.
        summary_writer: ``SummaryWriter`` of TensorBoard that gets the picture too, at the step of the trainer's epoch.
        num_cases: in the picture, at least 1: those whose labels changed most, least, and evenly between.

    Raises:
        ValueError: when ``num_cases`` is under 1.
    """

    def __init__(
        self, store: LabelStore, output_dir: PathLike, *, summary_writer: Any = None, num_cases: int = 3
    ) -> None:
        if num_cases < 1:
            raise ValueError(f"num_cases must be at least 1, got {num_cases}.")
        self.store = store
        self.folder = Path(output_dir) / "rounds"
        self.summary_writer = summary_writer
        self.num_cases = num_cases

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer that has a ``SpatialCorrectionHandler``, before or behind it."""
        engine.register_events(*RoundEvents)
        engine.add_event_handler(RoundEvents.ROUND_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        if not is_main():
            return
        history: Sequence[Mapping[str, Any]] = engine.state.spatial_correction  # type: ignore[attr-defined]
        figure = plot_correction(ShownCases(self.store, self.num_cases), history, self.store.class_names)
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"round-{history[-1]['round']:03d}.png"
        with replacing(self.folder / name) as picture:
            figure.savefig(picture, dpi=110, format="png")
        if self.summary_writer is not None:
            self.summary_writer.add_figure("labels", figure, engine.state.epoch)
