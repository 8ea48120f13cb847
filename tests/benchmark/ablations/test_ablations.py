import json
from pathlib import Path

import numpy as np
import pytest
from monai.bundle import ConfigParser
from scipy import stats

from monai_sc.__main__ import main
from monai_sc.benchmark.ablations import Setup, confidence, draw_cases, holes, noise_level, validation_size
from monai_sc.benchmark.ablations.noise_level import steps_of
from monai_sc.benchmark.ablations.validation_size import needed_cases
from monai_sc.benchmark.grid import SHIPPED_CONFIGS, ComparedBundle
from monai_sc.functional import required_validation_size

BUNDLES = Path(__file__).parents[3] / "bundles"
TOY = {"image_size": 48, "epochs_per_round": 2, "num_cases": {"train": 5, "clean": 3, "test": 3}}


def sets(*without):
    return [part for name in TOY if name not in without for part in ("--set", f"{name}={json.dumps(TOY[name])}")]


def setup_of(tmp_path, bundle="phantom", **options):
    return Setup(ComparedBundle(BUNDLES / bundle), tmp_path / "out", tmp_path / "data", **options)


def overrides_of(cell):
    return cell.record["overrides"]


def configs_of(cell):
    return [name for name, _ in cell.record["configs"]]


@pytest.mark.parametrize(("bundle", "most"), [("phantom", 70), ("jsrt", 180)])
def test_steps_are_those_of_the_class_with_most(tmp_path, bundle, most):
    assert steps_of(setup_of(tmp_path, bundle)) == most


def test_levels_are_those_of_the_paper_for_jsrt(tmp_path):
    cells = noise_level(setup_of(tmp_path, "jsrt", seeds=[0, 1]), with_clean=True).cells
    assert [cell.labels["steps"] for cell in cells[:8:2]] == [180, 240, 320, 400]
    assert [(cell.labels["method"], cell.labels["seed"]) for cell in cells[::8]] == [("noisy", 0), ("noisy", 1)]
    assert len({cell.folder for cell in cells}) == len(cells) == 16
    noisy, sc = cells[2:4]
    assert configs_of(noisy) == ["train.json", "noisy.json", "clean_cases.json"]
    assert configs_of(sc) == ["train.json", "sc.json"]
    assert sc.resumes
    parser = ConfigParser()
    parser.read_config(BUNDLES / "jsrt" / "configs" / "train.json")
    parser.update({"noise_model": overrides_of(sc)["noise_model"], "noise": overrides_of(sc)["noise"]})
    noise = parser.get_parsed_content("noise_model")
    assert noise.parameters["num_steps"] == [240, 240, 133]


def test_levels_and_methods_are_as_asked(tmp_path):
    cells = noise_level(setup_of(tmp_path), steps=[10, 20, 10], methods=["noisy", "noisy"]).cells
    assert [cell.labels for cell in cells] == [{"steps": n, "method": "noisy", "seed": 0} for n in (10, 20)]
    assert configs_of(cells[0]) == ["train.json", "noisy.json"]


def test_what_is_given_twice_is_trained_once(tmp_path):
    setup = setup_of(tmp_path, seeds=[3, 3])
    assert [cell.labels["steps"] for cell in noise_level(setup, steps=[10, 20], methods=["sc", "sc"]).cells] == [10, 20]
    assert [len(make(setup).cells) for make in (confidence, holes)] == [1, 1]


def test_methods_of_one_name_are_refused(tmp_path):
    for folder, text in (("a", "$1"), ("b", "$2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.json").write_text(json.dumps({"run": [text]}))
    with pytest.raises(ValueError, match=r"methods must have different names, got two for steps-5/mine/seed-0\."):
        noise_level(setup_of(tmp_path), steps=[5], methods=[str(tmp_path / name / "mine.json") for name in "ab"])


def test_bundle_without_a_list_of_clean_cases_is_refused(tmp_path):
    setup = setup_of(tmp_path)
    del setup.bundle.train["clean_cases"]
    with pytest.raises(ValueError, match=r"train\.json must have the id 'clean_cases', of which fewer are"):
        validation_size(setup)


@pytest.mark.parametrize("bundle", ["phantom", "jsrt"])
def test_clean_cases_are_some_of_the_list_of_the_bundle_which_is_still_checked(tmp_path, bundle):
    setup = setup_of(tmp_path, bundle)
    cells = validation_size(setup, sizes=[1, 6, 3, 6]).cells
    assert [cell.labels["clean_cases"] for cell in cells] == [6, 3, 1]
    for cell in cells:
        expression = overrides_of(cell)["clean_cases"]
        assert expression.startswith("$monai_sc.benchmark.ablations.draw_cases(monai_sc.store.usable_cases(")
        assert expression.endswith(f", {cell.labels['clean_cases']}, seed=@seed)")
        assert setup.bundle.train["clean_cases"].removeprefix("$") in expression


def test_fewer_clean_cases_are_a_part_of_more():
    cases = [{"id": str(k)} for k in range(9)]
    for seed in range(3):
        drawn = [[case["id"] for case in draw_cases(cases, number, seed=seed)] for number in range(1, 10)]
        assert all(own == drawn[-1][: len(own)] for own in drawn)
        assert sorted(drawn[-1]) == [str(k) for k in range(9)]
    assert len({tuple(case["id"] for case in draw_cases(cases, 9, seed=seed)) for seed in range(5)}) == 5
    for number in (0, 10):
        with pytest.raises(ValueError, match=f"number must be one of 1 to 9 clean cases that there are, got {number}"):
            draw_cases(cases, number, seed=0)


def test_needed_cases_are_those_of_the_bound():
    assert needed_cases(0.5, (96, 96)) == required_validation_size(1.0, 1.5, 0.0, (96, 96), 0.05)
    assert needed_cases(1.0, (96, 96)) > needed_cases(0.5, (96, 96))


def test_confidence_watches_plain_training(tmp_path):
    (cell,) = confidence(setup_of(tmp_path), epochs=7).cells
    assert configs_of(cell) == ["train.json", "noisy.json", "confidence.json"]
    assert overrides_of(cell)["epochs_per_round"] == "7"


@pytest.mark.parametrize(("config", "method"), [("confidence", "noisy"), ("holes", "sc")])
def test_the_result_which_says_that_a_cell_is_done_is_written_last(config, method):
    own, run = (
        json.loads((SHIPPED_CONFIGS / file).read_text())["run"]
        for file in (f"ablations/{config}.json", f"methods/{method}.json")
    )
    assert own == [*run[:-1], own[-2], run[-1]]
    assert "monai_sc.benchmark.ablations.write_" in own[-2]
    assert "monai_sc.benchmark.write_result" in own[-1]


def test_holes_are_a_noise_of_two_rounds(tmp_path):
    (cell,) = holes(setup_of(tmp_path), number=(1, 4), radius=(1, 2.5)).cells
    assert configs_of(cell) == ["train.json", "sc.json", "holes.json"]
    assert overrides_of(cell)["max_rounds"] == "2"
    parser = ConfigParser()
    parser.read_config(BUNDLES / "phantom" / "configs" / "train.json")
    parser.update({name: overrides_of(cell)[name] for name in ("noises::holes", "noise")})
    noise = parser.get_parsed_content("noise_model")
    assert (noise.number, noise.radius, noise.prob) == ((1, 4), (1, 2.5), 1.0)


def write_result(cell, **more):
    content = {"classes": ["a", "b"], "cases": ["x", "y"], "dice": [[0.8, None], [0.6, 0.4]], "image_size": [96, 96]}
    cell.folder.mkdir(parents=True)
    (cell.folder / "result.json").write_text(json.dumps(content | more))


def test_rows_are_of_the_cells_that_are_done(tmp_path):
    ablation = noise_level(setup_of(tmp_path), steps=[10, 20])
    assert ablation.rows() == []
    write_result(ablation.cells[3], label_dice={"given": [0.7, 0.8], "corrected": [0.9, 0.95]})
    write_result(ablation.cells[0], label_dice={"given": [0.7, 0.8]})
    noisy, sc = ablation.rows()
    assert (noisy["steps"], noisy["method"], noisy["label_dice"]) == (10, "noisy", [0.7, 0.8])
    assert (sc["steps"], sc["method"], sc["label_dice"]) == (20, "sc", [0.9, 0.95])
    assert sc["test_dice"] == pytest.approx([0.7, 0.4])  # a case without the class does not count
    assert list(ablation.table([noisy, sc]).columns[3].cells) == ["0.550", "0.550"]


def test_spread_and_needed_cases_come_from_the_interval(tmp_path):
    ablation = validation_size(setup_of(tmp_path), sizes=[4, 1])
    widths = {"4": float(stats.t.ppf(0.975, 3) * 0.5 / 2)}  # of a spread of 0.5
    for cell, used in zip(ablation.cells, (4, 1), strict=True):
        write_result(cell)
        own = {"network": {"cases_used": used, "half_width_by_cases": widths if used > 1 else {}}}
        interval = [-4.0, -2.0] if used > 1 else [None, None]
        first = {"bias": [-3.0, -1.0], "bias_interval": [interval] * 2, "correction": {"a": own, "b": own}}
        (cell.folder / "results.json").write_text(json.dumps({"rounds": [first, {}]}))
    four, one = ablation.rows()
    assert four["needed"] == [needed_cases(0.5, (96, 96))] * 2
    assert one["needed"] == [None, None]
    table = ablation.table([one, four])
    assert list(table.columns[3].cells) == [r"-3.00 \[-4.00, -2.00]", "-3.00"]
    assert f"a {needed_cases(0.5, (96, 96))}, b" in table.caption
    assert "unknown, of one case" in ablation.table([one]).caption


REFUSED = [
    pytest.param(lambda s: noise_level(s, steps=[]), "noise-level needs steps of at least 0 and a method", id="steps"),
    pytest.param(lambda s: noise_level(s, steps=[-1]), "needs steps of at least 0", id="negative"),
    pytest.param(lambda s: noise_level(s, methods=["x"]), "method must be one of noisy", id="method"),
    pytest.param(lambda s: validation_size(s, sizes=[3, 0]), "--sizes must be numbers of at least 1, got", id="sizes"),
    pytest.param(lambda s: confidence(s, epochs=0), "--epochs must be at least 1, got 0", id="epochs"),
    pytest.param(lambda s: holes(s, radius=(3, 1)), r"radius must be \(low, high\)", id="radius"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_is_refused(tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        make(setup_of(tmp_path))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (holes, "max_rounds"),
        (lambda s: noise_level(s, steps=[10]), "noise_model"),
        (lambda s: confidence(s, epochs=3), "epochs_per_round"),
    ],
    ids=["holes", "noise-level", "confidence"],
)
def test_what_an_ablation_sets_itself_is_not_overridden(tmp_path, make, name):
    with pytest.raises(ValueError, match=f"^--set must not give '{name}', which this ablation sets itself"):
        make(setup_of(tmp_path, overrides={name: "1"}))
    (cell,) = confidence(setup_of(tmp_path, overrides={"epochs_per_round": "7"})).cells
    assert overrides_of(cell)["epochs_per_round"] == "7"


def test_a_noise_without_steps_has_no_level(tmp_path):
    with pytest.raises(
        ValueError, match="must be a Markov noise of the bundle, which has steps; 'dilate_erode' is none"
    ):
        noise_level(setup_of(tmp_path, noise="dilate_erode"))


COMMANDS = [
    pytest.param(["noise-level", "--steps", "5,20", "--protocol", "plain", "--methods", "noisy"], 2, id="noise-level"),
    pytest.param(["validation-size", "--sizes", "3,1"], 2, id="validation-size"),
    pytest.param(["confidence", "--epochs", "3"], 1, id="confidence"),
    pytest.param(["holes", "--number", "1,3", "--radius", "1,2"], 1, id="holes"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "number"), COMMANDS)
@pytest.mark.usefixtures("fork_cells")
def test_each_command_runs_on_generated_images_and_leaves_what_is_done(tmp_path, command, number, capsys):
    out = tmp_path / "out"
    arguments = ["ablate", *command, "--bundle", str(BUNDLES / "phantom"), "--dataset-dir", str(tmp_path / "data")]
    name = command[0]
    toy = sets("epochs_per_round") if name == "confidence" else sets()
    assert main([*arguments, "--out", str(out), *toy]) == 0
    content = json.loads((out / f"{name}.json").read_text())
    assert len(content["rows"]) == number
    assert all(np.isfinite(row["test_dice"]).all() for row in content["rows"])
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "and the picture" in capsys.readouterr().out
    if name == "validation-size":
        assert [row["clean_cases"] for row in content["rows"]] == [3, 1]
        assert content["rows"][0]["interval"][0][0] < content["rows"][0]["bias"][0]
        assert content["rows"][1]["interval"][0] == [None, None]
    if name == "confidence":
        assert [record["epoch"] for record in content["rows"][0]["history"]] == [1, 2, 3]
    if name == "holes":
        assert 0.5 < content["rows"][0]["round_dice"][0][0] < 1
    results = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    assert main([*arguments, "--out", str(out), *toy, "--quiet"]) == 0
    assert {file: file.stat().st_mtime_ns for file in out.rglob("result.json")} == results
    assert main([*arguments, "--out", str(out), "--set", "image_size=64"]) == 2
    assert "holds cells of other settings" in capsys.readouterr().err
