from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monai_sc.functional import markov_label_noise
from monai_sc.functional.fit import MarkovFit
from monai_sc.functional.pair_statistics import SCALARS, CleanMask, pair_statistics
from monai_sc.reports.figures import plot_noise_fit


def statistics(seed, march_prob):
    clean = CleanMask(((np.indices((32, 32)) - 15.5) ** 2).sum(axis=0) <= 81)
    noise = {"num_steps": 5, "expansion_prob": 0.8, "march_prob": march_prob}
    return pair_statistics(
        [clean.compare(markov_label_noise(clean.mask[None], **noise, seed=seed + k)[0]) for k in range(40)]
    )


@pytest.fixture(scope="module")
def fit():
    return MarkovFit(
        parameters={"num_steps": 5, "expansion_prob": 0.8, "march_prob": 0.3, "flip_prob": 1e-4, "smoothing": None},
        step_spread=0.0,
        intervals={
            "num_steps": (4.0, 7.0),
            "expansion_prob": (0.74, 0.86),
            "march_prob": (0.22, 0.38),
            "flip_prob": (1e-6, 4e-4),
            "smooth_sigma": (0.0, 0.8),
        },
        draws={},
        real=statistics(0, 0.3),
        simulated=statistics(100, 0.35),
        standard_errors=dict.fromkeys(SCALARS, 0.01),
        distance=6.2,
        p_value=0.21,
        num_used=40,
        num_skipped=2,
        num_groups=20,
        vanished=0.0,
    )


def texts_of(figure):
    figure.draw_without_rendering()
    texts = [axes.get_title() + axes.get_title(loc="left") for axes in figure.axes]
    for axes in figure.axes:
        texts += [cell.get_text().get_text() for table in axes.tables for cell in table.get_celld().values()]
    return texts


def test_axes_are_labelled_and_tables_say_the_parameters(fit):
    figure = plot_noise_fit(fit)
    charts = figure.axes[:3]
    assert [axes.get_xlabel() for axes in charts] == [
        "too large  ←  voxels  →  too small",
        "distance of two positions, voxels",
        "Dice",
    ]
    assert all(axes.get_ylabel() and axes.get_title() for axes in charts)
    for axes in charts:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["real", "simulated"]
    texts = texts_of(figure)
    assert {"0.800", "0.740 to 0.860", f"{fit.real.dice:.3f}", f"{fit.simulated.dice:.3f}"} <= set(texts)
    assert "40 pairs of masks from 20 groups (2 empty" in figure.get_suptitle()
    assert any("p = 0.210" in text for text in texts)


def test_figure_is_written_with_the_spread_of_steps_smoothing_and_mm(fit, tmp_path):
    varied = replace(
        fit,
        parameters={**fit.parameters, "smoothing": "before_flips", "smooth_sigma": 1.25},
        step_spread=0.7,
        intervals={**fit.intervals, "step_spread": (0.4, 1.1)},
        p_value=0.0002,
    )
    figure = plot_noise_fit(varied, unit="mm")
    texts = texts_of(figure)
    assert {"0.70", "0.40 to 1.10", "1.25"} <= set(texts)
    assert any("mm" in text and "p < 0.001" in text for text in texts)
    figure.savefig(tmp_path / "fit.png", dpi=60)
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_displacement_that_does_not_vary_can_be_drawn(fit):
    clean = CleanMask(np.indices((20, 8))[0] < 10)
    constant = pair_statistics([clean.compare(np.indices((20, 8))[0] < 12)])
    texts_of(plot_noise_fit(replace(fit, real=constant, simulated=constant)))
