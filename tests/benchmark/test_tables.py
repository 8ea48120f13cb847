import json
from pathlib import Path

import numpy as np
import pytest

from monai_sc.benchmark.cells import CellResult
from monai_sc.benchmark.summary import Run, summarise
from monai_sc.benchmark.tables import PAPER_SIZES, PAPER_TOTALS, markdown, plot_comparison, write_tables
from monai_sc.names import METHODS

BUNDLES = Path(__file__).parents[2] / "bundles"


def result(dice, cases=None, **details):
    dice = np.array(dice, dtype=float)
    names = tuple(f"c{k}" for k in range(len(dice))) if cases is None else cases
    return CellResult(("lung", "heart")[: dice.shape[1]], names, dice, **details)


RUNS = [
    Run("grow", "noisy", 0, result([[0.5, 0.3], [0.7, 0.5]], epochs=30, seconds=60, image_size=(32, 32))),
    Run("grow", "noisy", 1, result([[0.7, 0.3], [0.9, 0.5]], epochs=30, seconds=120, image_size=(32, 32))),
    Run("grow", "sc", 0, result([[0.9, 0.7], [0.9, 0.9]], epochs=60, seconds=90, image_size=(32, 32))),
    Run("grow", "clean", 0, result([[0.95, 0.9], [0.95, 0.9]], epochs=30, seconds=60, image_size=(32, 32))),
]


def test_values_by_hand():
    found = summarise(RUNS, paper={"grow": {"sc": 0.86}})
    assert (found["classes"], found["against"]) == (["lung", "heart"], "sc")
    noisy, sc = found["noises"]["grow"]["noisy"], found["noises"]["grow"]["sc"]
    assert noisy["dice"] == pytest.approx({"lung": 0.7, "heart": 0.4, "mean": 0.55})
    # over seeds: lung 0.6 and 0.8, heart 0.4 twice, mean 0.5 and 0.6
    assert noisy["std"] == pytest.approx({"lung": 0.2 / 2**0.5, "heart": 0, "mean": 0.1 / 2**0.5})
    assert noisy["dice_by_seed"] == pytest.approx([0.5, 0.6])
    assert (noisy["seconds"], noisy["epochs"], noisy["image_size"], noisy["paper"]) == (90, [30], ["32x32"], None)
    assert sc["dice"]["mean"] == pytest.approx(0.85)
    assert np.isnan(sc["std"]["mean"])
    assert (sc["paper"], sc["difference"]) == (0.86, None)


def test_only_seeds_of_both_are_compared():
    difference = summarise(RUNS)["noises"]["grow"]["noisy"]["difference"]
    assert difference["seeds"] == [0]
    # by case: 0.4 against 0.8, 0.6 against 0.9
    assert difference["mean"] == pytest.approx(-0.35)
    assert difference["num_cases"] == 2
    assert difference["interval"] == pytest.approx([-0.4, -0.3])


def test_seeds_are_averaged_before_cases_are_compared():
    runs = [
        *(Run("grow", "gce", seed, result([[0.5 + d], [0.6 - d]])) for seed, d in ((0, 0.1), (1, -0.1))),
        *(Run("grow", "sc", seed, result([[0.6], [0.7]])) for seed in (0, 1)),
    ]
    difference = summarise(runs)["noises"]["grow"]["gce"]["difference"]
    assert difference["interval"] == pytest.approx([-0.1, -0.1])


def test_cases_are_paired_by_name():
    runs = [
        Run("grow", "gce", 0, result([[0.1], [0.2], [0.9]], cases=("a", "b", "only here"))),
        Run("grow", "sc", 0, result([[0.4], [0.2]], cases=("b", "a"))),
    ]
    difference = summarise(runs)["noises"]["grow"]["gce"]["difference"]
    assert difference["mean"] == pytest.approx(((0.1 - 0.2) + (0.2 - 0.4)) / 2)
    assert difference["num_cases"] == 2


def test_p_values_are_adjusted_within_a_noise():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.6, 0.8, (20, 1))
    runs = [Run("grow", "sc", 0, result(base))]
    runs += [Run("grow", f"m{k}", 0, result(base + rng.normal(0.01 * k, 0.04, base.shape))) for k in range(4)]
    runs += [Run("shrink", run.method, 0, run.result) for run in runs[:2]]
    found = summarise(runs)["noises"]
    raw = [found["grow"][f"m{k}"]["difference"]["p"] for k in range(4)]
    smallest = min(range(4), key=lambda k: raw[k])
    assert found["grow"][f"m{smallest}"]["difference"]["p_holm"] == pytest.approx(min(1, 4 * raw[smallest]))
    assert found["shrink"]["m0"]["difference"]["p_holm"] == found["shrink"]["m0"]["difference"]["p"] == raw[0]


@pytest.mark.parametrize(("num_cases", "mark"), [(5, ""), (8, r"\*")])
def test_mark_of_what_is_significant(num_cases, mark):
    """No test of five pairs can tell p < 0.05 / 2."""
    runs = [Run("grow", m, 0, result([[d]] * num_cases)) for m, d in (("gce", 0.5), ("cdr", 0.7), ("sc", 0.6))]
    page = markdown(summarise(runs), "A bundle")
    assert f"| gce | 1 | 0.500 | 0.500 | -0.100 [-0.100, -0.100]{mark} |" in page
    assert f"| cdr | 1 | **0.700** | **0.700** | +0.100 [+0.100, +0.100]{mark} |" in page


def test_undefined_dice_is_left_out():
    runs = [Run("grow", "sc", 0, result([[0.5, np.nan], [0.7, 0.4], [np.nan, np.nan]]))]
    row = summarise(runs)["noises"]["grow"]["sc"]
    assert row["dice"] == pytest.approx({"lung": 0.6, "heart": 0.4, "mean": (0.5 + 0.55) / 2})


def test_other_classes_are_refused():
    runs = [Run("grow", "sc", 0, result([[0.5, 0.5]])), Run("grow", "gce", 0, result([[0.5]]))]
    with pytest.raises(ValueError, match="must have the same classes"):
        summarise(runs)


def test_page_by_hand():
    page = markdown(summarise(RUNS, paper={"grow": {"sc": 0.86}}), "A bundle", paper_size=(256, 256)).splitlines()
    table = page[page.index("## grow") + 2 :]
    assert table == [
        "| method | seeds | lung | heart | mean | difference from sc | paper |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| noisy | 2 | 0.700 ± 0.141 | 0.400 ± 0.000 | 0.550 ± 0.071 | -0.350 [-0.400, -0.300] |  |",
        "| sc | 1 | **0.900** | **0.800** | **0.850** |  | 0.860 |",
        "| clean | 1 | 0.950 | 0.900 | 0.925 | +0.075 [+0.025, +0.125] |  |",
        "",
        "Paper: the mean of five networks after 1500 iterations on images of 256x256 (Yao et al., ICLR 2023), with "
        "another training than here; compare methods, not values. Here: 32x32 and 30 epochs (noisy, clean); 32x32 and "
        "60 epochs (sc).",
    ]


def test_files_hold_every_value(tmp_path):
    write_tables(tmp_path, RUNS, summarise(RUNS), {"bundle": "A bundle"})
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[0] == "noise,method,seed,class,dice,std,epochs,seconds,image_size"
    assert lines[3].startswith("grow,noisy,0,mean,0.5,0.141421356237309")
    assert lines[3].endswith(",30,60,32x32")
    assert len(lines) == 1 + 3 * 4
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["settings"] == {"bundle": "A bundle"}
    assert content["noises"]["grow"]["sc"]["std"]["mean"] is None
    assert len(content["runs"]) == 12
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"results.{s}" for s in ("csv", "json", "md", "png")]


@pytest.mark.parametrize(("seeds", "told"), [((0,), 1), ((0, 1), 2)])
def test_legend_has_what_is_drawn(seeds, told):
    found = summarise([Run("grow", method, seed, result([[0.5], [0.6]])) for method in ("a", "sc") for seed in seeds])
    (legend,) = plot_comparison(found, "title").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("mean, 95 % interval over test cases", "each seed")[:told]
    ]


def test_nothing_done_writes_nothing(tmp_path):
    write_tables(tmp_path, [], summarise([]), {"bundle": "A bundle"})
    assert not list(tmp_path.iterdir())


def test_numbers_of_the_paper_are_of_bundles_noises_and_methods_there_are():
    metadata = {json.loads(f.read_text())["name"]: f.parent for f in BUNDLES.glob("*/configs/metadata.json")}
    for name, noises in PAPER_TOTALS.items():
        train = json.loads((metadata[name] / "train.json").read_text())
        assert set(noises) <= set(train["noises"])
        assert all(set(row) <= set(METHODS) for row in noises.values())
    assert set(PAPER_SIZES) <= set(metadata)
