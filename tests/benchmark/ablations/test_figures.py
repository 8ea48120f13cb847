import numpy as np
import pytest

from monai_sc.benchmark.ablations.figures import plot_confidence, plot_holes, plot_noise_level, plot_validation_size


def level_rows(methods=("noisy", "sc"), levels=(180, 240, 320), seeds=(0, 1)):
    return [
        {
            "steps": steps,
            "method": method,
            "seed": seed,
            "test_dice": [0.9 - k * steps / 1000 - 0.01 * seed, 0.8],
            "label_dice": [0.85, 0.8 - 0.01 * seed] if method != "sc" else [],
        }
        for k, method in enumerate(methods)
        for steps in levels
        for seed in seeds
    ]


def test_noise_level_has_a_curve_and_a_band_for_each_method():
    figure = plot_noise_level(level_rows())
    networks, labels = figure.axes
    assert [line.get_label() for line in networks.lines] == ["noisy", "sc"]
    assert networks.lines[1].get_xdata() == pytest.approx([180, 240, 320])
    assert networks.lines[1].get_ydata() == pytest.approx([0.85 - s / 2000 - 0.0025 for s in (180, 240, 320)])
    edges = networks.collections[1].get_paths()[0].vertices[:, 1]
    assert edges.min() == pytest.approx((0.9 - 0.32 - 0.01 + 0.8) / 2)
    assert edges.max() == pytest.approx((0.9 - 0.18 + 0.8) / 2)
    assert [line.get_label() for line in labels.lines] == ["noisy"]  # the labels of sc are not known here
    assert "2 seeds" in figure.get_suptitle()


def test_a_level_that_is_not_done_yet_is_left_out():
    rows = [row for row in level_rows() if (row["method"], row["steps"]) != ("sc", 320)]
    assert plot_noise_level(rows).axes[0].lines[1].get_xdata() == pytest.approx([180, 240])


def size_rows():
    return [
        {
            "clean_cases": size,
            "seed": 0,
            "classes": ["large", "small"],
            "test_dice": [0.9, 0.8],
            "bias": [-3.0, None if size == 1 else -1.0],
            "interval": [[None, None] if size == 1 else [-3.5, -2.0], [None, None] if size == 1 else [-2.0, 0.5]],
            "needed": [None, None] if size == 1 else [40, 12],
        }
        for size in (6, 1)
    ]


def test_bias_of_each_class_has_an_interval_where_there_is_one():
    dice, large, small = plot_validation_size(size_rows()).axes
    assert [line.get_label() for line in dice.lines] == ["large", "small"]
    assert "40 clean cases" in large.get_title()
    assert "12 clean cases" in small.get_title()
    ends = [bar.get_segments()[0][:, 1].tolist() for bar in large.collections]
    assert ends == [[-3.5, -2.0], [-3.0, -3.0]]
    assert [bar.get_segments()[0][:, 1].tolist() for bar in small.collections] == [[-2.0, 0.5]]


def test_a_class_that_is_predicted_in_no_clean_case_has_no_bias():
    _, large, small = plot_validation_size(size_rows()[1:]).axes
    assert [text.get_text() for text in large.texts] == ["grey: within a voxel of that of 1 cases"]
    assert not small.texts
    assert not small.collections
    assert "not known clean cases" not in small.get_title()


def confidence_row(seed=0, given=True):
    history = [
        {"epoch": e, "right": [0.5 + 0.1 * e, 0.9], "wrong": [0.2 * e, None], "voxel": 0.2 * e} for e in range(1, 5)
    ]
    voxel = {"case": "case-1", "class_name": "large", "index": [2, 30], "given": given, "clean": False}
    return {"seed": seed, "classes": ["large", "small"], "band": 8.0, "history": history, "voxel": voxel}


def test_confidence_has_curves_of_right_and_wrong_labels_and_of_the_voxel():
    arrays = {name: np.random.default_rng(0).random((60, 70)) > 0.5 for name in ("image", "given", "clean")}
    curves, single, picture = plot_confidence([confidence_row(), confidence_row(1)], arrays).axes
    drawn = {line.get_label(): line.get_ydata() for line in curves.lines}
    assert drawn["large, right labels"] == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert drawn["large, wrong labels"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert "small, wrong labels" not in drawn  # there is none
    assert [line.get_label() for line in single.lines[:2]] == ["given label: inside", "clean label: outside"]
    assert single.lines[1].get_ydata() == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert (picture.lines[-1].get_xdata()[0], picture.lines[-1].get_ydata()[0]) == (2, 24)  # in the window


@pytest.mark.parametrize("kept", [0, 1])
def test_holes_show_each_round_and_the_clean_label(kept):
    rng = np.random.default_rng(0)
    arrays = {
        f"{n}/{name}": rng.random((20, 24)) if name == "image" else rng.random((20, 24)) > 0.5
        for n in ("large", "small")
        for name in ("image", "round-0", "round-1", "clean")
    }
    row = {
        "classes": ["large", "small"],
        "round_dice": [[0.8, 0.6], [0.9, 1.0]],
        "cases": ["a", "b"],
        "kept_round": kept,
        "stop_reason": "the last round is over",
    }
    figure = plot_holes(row, arrays)
    assert len(figure.axes) == 6
    mark = "" if kept else " (not kept)"
    assert [axes.get_title() for axes in figure.axes[3:]] == [
        "label as given\nsmall of all cases: Dice 0.600",
        f"after round 1{mark}\nsmall of all cases: Dice 1.000",
        "clean label",
    ]
    assert figure.axes[3].texts[0].get_text() == "small, b"
