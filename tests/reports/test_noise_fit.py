from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional import MarkovFit
from monai_sc.functional.pair_statistics import CleanMask, pair_statistics
from monai_sc.reports import plot_noise_fit


@pytest.fixture
def fit():
    """Return a fit that was not made by fitting."""
    clean = np.zeros((20, 20), dtype=bool)
    clean[5:15, 5:15] = True
    statistics = [pair_statistics([CleanMask(clean).compare(np.roll(clean, k, axis=0))] * 3) for k in (1, 2)]
    parameters = {"num_steps": 5, "expansion_prob": 0.5, "march_prob": 0.1, "flip_prob": 0.0, "smoothing": None}
    intervals = {name: (0.0, 1.0) for name in ("num_steps", "expansion_prob", "march_prob", "smooth_sigma")}
    return MarkovFit(
        parameters=parameters,
        step_spread=0.0,
        intervals=intervals,
        draws={},
        real=statistics[0],
        simulated=statistics[1],
        standard_errors={},
        distance=3.0,
        p_value=0.4,
        num_used=3,
        num_skipped=1,
        vanished=0.0,
        num_groups=3,
    )


def test_distributions_correlation_and_tables_are_shown_with_their_units(fit, tmp_path):
    figure = plot_noise_fit(fit, unit="mm")
    histogram, correlation, dice, *tables = figure.axes
    assert histogram.get_xlabel() == "displacement in mm (negative: too large)"
    assert correlation.get_xlabel() == "distance in mm"
    assert dice.get_xlabel() == "Dice"
    assert [text.get_text() for text in histogram.get_legend().get_texts()] == ["real", "simulated"]
    assert "3 pairs of 3 groups (1 skipped)" in figure.get_suptitle()
    cells = [[cell.get_text().get_text() for cell in t.tables[0].get_celld().values()] for t in tables]
    assert f"{fit.real.dice:.3g}" in cells[0]
    assert f"{fit.simulated.dice:.3g}" in cells[0]
    assert {"num_steps", "5", "0 to 1"} <= set(cells[1])
    figure.savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000
