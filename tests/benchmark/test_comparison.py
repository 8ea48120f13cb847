import csv
import json
import re
import shlex

import pytest

from monai_sc import __main__ as command_line
from monai_sc.benchmark import CellsFailedError, compare
from monai_sc.benchmark import cells as cells_module
from monai_sc.benchmark import grid as grid_module
from monai_sc.commands.common import seeds
from monai_sc.names import METHODS


@pytest.fixture
def methods(tmp_path, monkeypatch):
    """Put small configs in the place of those of the methods; trainings are fake ones."""
    folder = tmp_path / "methods"
    folder.mkdir()
    for name in METHODS:
        run = ["$@resume.attach(1)"] if name == "sc" else ["$1"]
        (folder / f"{name}.json").write_text(json.dumps({"run": run}))
    (tmp_path / "clean_cases.json").write_text('{"clean_pretrain_epochs": 1}')
    monkeypatch.setattr(grid_module, "METHODS_FOLDER", folder)
    monkeypatch.setattr(grid_module, "CLEAN_CASES", tmp_path / "clean_cases.json")
    monkeypatch.setattr(cells_module, "MODULE", "fake_training")
    return folder


@pytest.fixture
def run(bundle, methods, tmp_path, control):
    """Return a function that compares in a folder."""

    def run(*names, noises=("grow",), progress=False, **options):
        return compare(bundle, tmp_path / "out", methods=names, noises=noises, progress=progress, **options)

    return run


def lines_of(out):
    with (out / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_grid_runs_by_seed_then_noise_and_clean_once_a_seed(run, started, tmp_path):
    found = run("sc", "clean", noises=("grow", "shrink"), seeds=(0, 1))
    assert started() == [
        *("grow/sc/seed-0", "none/clean/seed-0", "shrink/sc/seed-0"),
        *("grow/sc/seed-1", "none/clean/seed-1", "shrink/sc/seed-1"),
    ]
    assert list(found["noises"]) == ["grow", "shrink"]
    assert all(list(rows) == ["sc", "clean"] for rows in found["noises"].values())
    assert len(lines_of(tmp_path / "out")) == 2 * 2 * 2 * 3  # noises, methods, seeds, classes and their mean


def test_grid_grows(run, started, tmp_path):
    run("noisy", seeds=(0,))
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("result.json")}
    found = run("sc", noises=("shrink",), seeds=(3,))
    assert started() == ["grow/noisy/seed-0", "shrink/sc/seed-3"]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert {noise: list(rows) for noise, rows in found["noises"].items()} == {"shrink": ["sc"], "grow": ["noisy"]}


def test_command_of_a_training(run, bundle, methods, tmp_path):
    run("gce", "sc", dataset_dir=tmp_path / "data", quick=True, overrides={"rate": "[1,2]"})
    cells = tmp_path / "out" / "cells" / "grow"
    told = {m: (cells / m / "seed-0" / "log.txt").read_text().splitlines()[0] for m in ("gce", "sc")}
    configs = [bundle / "configs" / "train.json", methods / "gce.json", tmp_path / "clean_cases.json"]
    assert shlex.split(told["gce"]) == [
        *("python", "-m", "fake_training", "run"),
        f"--config_file={[str(config) for config in configs]}",
        f"--meta_file={bundle}/configs/metadata.json",
        f"--logging_file={bundle}/configs/logging.conf",
        f"--bundle_root={bundle}",
        f"--output_dir={cells}/gce/seed-0",
        f"--ckpt_dir={cells}/gce/seed-0/models",
        f"--dataset_dir={tmp_path}/data",
        *("--noise=grow", "--seed=0", "--quick=True", "--rate=[1,2]"),
    ]
    assert "clean_cases" not in told["sc"]


@pytest.mark.parametrize("method", ["sc", "clean"])
def test_ours_and_the_clean_one_are_not_trained_on_clean_cases(run, tmp_path, method):
    run(method)
    (log,) = (tmp_path / "out").rglob("log.txt")
    assert "clean_cases" not in log.read_text()


def test_plain_protocol_leaves_the_clean_cases_out(run, tmp_path):
    run("gce", protocol="plain")
    assert "clean_cases" not in (tmp_path / "out/cells/grow/gce/seed-0/log.txt").read_text()


def test_own_method_is_a_file(run, tmp_path, started):
    (tmp_path / "mine.json").write_text('{"run": ["$1"]}')
    found = run(str(tmp_path / "mine.json"), "sc")
    assert started() == ["grow/mine/seed-0", "grow/sc/seed-0"]
    assert list(found["noises"]["grow"]) == ["mine", "sc"]
    (tmp_path / "mine.json").write_text('{"run": ["$2"]}')
    with pytest.raises(ValueError, match=r"mine/seed-0 was made with other configs; delete it to train"):
        run(str(tmp_path / "mine.json"))


def test_own_method_that_failed_may_change(run, tmp_path, control, started):
    (control / "fail").write_text("mine")
    (tmp_path / "mine.json").write_text('{"run": ["$1"]}')
    with pytest.raises(CellsFailedError, match="1 of 1 cells failed"):
        run(str(tmp_path / "mine.json"))
    (control / "fail").unlink()
    (tmp_path / "mine.json").write_text('{"run": ["$2"]}')
    run(str(tmp_path / "mine.json"))
    assert started() == ["grow/mine/seed-0"] * 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(
            '{"rate": 0.2}', r"mine\.json must have an id 'run' that ends with monai_sc.*write_result", id="run"
        ),
        pytest.param('{"run": 1,}', r"mine\.json must hold JSON: ", id="json"),
        pytest.param("[]", r"mine\.json must hold the ids of a config, got a list", id="list"),
    ],
)
def test_own_method_that_is_none_is_refused(run, tmp_path, content, told):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ValueError, match=told):
        run(str(tmp_path / "mine.json"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({"quick": True}, "quick was False, not True", id="quick"),
        pytest.param({"protocol": "plain"}, "protocol was 'paper', not 'plain'", id="protocol"),
        pytest.param({"overrides": {"rate": "2"}}, "overrides was {}, not {'rate': '2'}", id="overrides"),
        pytest.param({"dataset_dir": "/elsewhere"}, "dataset_dir was '.*/data', not '/elsewhere'", id="data"),
    ],
)
def test_other_settings_are_refused(run, started, changes, told):
    run("noisy")
    with pytest.raises(ValueError, match=rf"out holds cells of other settings \({told}\); choose another folder\.$"):
        run("noisy", "sc", **changes)
    assert len(started()) == 1


@pytest.mark.parametrize(
    ("methods_", "options", "told"),
    [
        pytest.param(["guess"], {}, r"method must be one of noisy, .*, or the path of .* \.json, got 'guess'", id="m"),
        pytest.param(["sc"], {"noises": ["grew"]}, "noise must be among 'none', .*'shrink', got 'grew'", id="noise"),
        pytest.param(["sc"], {"protocol": "p"}, "protocol must be one of 'paper', 'plain', got 'p'", id="protocol"),
        pytest.param(
            ["sc"], {"overrides": {"rates": 1}}, "an id of the configs, got 'rates', which no config", id="id"
        ),
        pytest.param(["sc"], {"overrides": {"seed": 1}}, "'seed', which has its own option: --seeds", id="seed"),
        pytest.param(["sc"], {"overrides": {"output_dir": 1}}, "'output_dir', which differs per training", id="folder"),
        pytest.param([], {}, "at least one method, one noise and one seed", id="nothing"),
    ],
)
def test_mistake_is_refused_before_anything_runs(run, tmp_path, methods_, options, told):
    with pytest.raises(ValueError, match=told):
        run(*methods_, **options)
    assert not (tmp_path / "out").exists()


def test_epochs_on_the_clean_cases_can_be_set_where_there_are_any(run, tmp_path):
    overrides = {"clean_pretrain_epochs": "5"}
    with pytest.raises(ValueError, match="an id of the configs, got 'clean_pretrain_epochs', which no config"):
        run("noisy", overrides=overrides, protocol="plain")
    run("noisy", overrides=overrides)
    record = json.loads((tmp_path / "out" / "cells/grow/noisy/seed-0/cell.json").read_text())
    assert record["overrides"]["clean_pretrain_epochs"] == "5"


@pytest.mark.parametrize("resumes", [False, True])
def test_settings_bind_nobody_before_something_is_trained(run, control, tmp_path, resumes):
    (control / "fail at once").touch()
    method = "sc" if resumes else "noisy"
    with pytest.raises(CellsFailedError, match="1 of 1 cells failed"):
        run(method, dataset_dir=tmp_path / "wrong")
    (control / "fail at once").unlink()
    run(method, dataset_dir=tmp_path / "data")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["dataset_dir"] == str(tmp_path / "data")
    with pytest.raises(ValueError, match="out holds cells of other settings"):
        run(method, dataset_dir=tmp_path / "wrong")


@pytest.mark.parametrize("content", ["", "[]", "null"])
def test_damaged_settings_are_refused(run, tmp_path, content):
    run("noisy")
    (tmp_path / "out" / "comparison.json").write_text(content)
    with pytest.raises(ValueError, match=r"comparison\.json is damaged; put it back from a copy, or choose another"):
        run("noisy")


@pytest.mark.parametrize("place", ["out", "out/below"])
def test_file_in_the_place_of_the_folder_is_refused(bundle, methods, tmp_path, place):
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match=rf"out must be a folder, got .*{place}, where .*/out is a file\."):
        compare(bundle, tmp_path / place, methods=["sc"], progress=False)


def test_ids_of_the_clean_cases_can_be_set_where_they_are_learnt_from(run, tmp_path):
    with pytest.raises(ValueError, match="an id of the configs, got 'clean_pretrain_epochs', which no config"):
        run("noisy", overrides={"clean_pretrain_epochs": "2"}, protocol="plain")
    with pytest.raises(ValueError, match="an id of the configs, got 'clean_pretrain_epochs', which no config"):
        run("sc", overrides={"clean_pretrain_epochs": "2"})
    run("noisy", overrides={"clean_pretrain_epochs": "2"})
    assert "--clean_pretrain_epochs=2" in (tmp_path / "out/cells/grow/noisy/seed-0/log.txt").read_text()


@pytest.mark.parametrize("missing", ["noise", "noises"])
def test_bundle_without_noises_is_refused(run, bundle, missing):
    file = bundle / "configs" / "train.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != missing}))
    with pytest.raises(ValueError, match=r"train\.json must have the ids 'noise' and 'noises', as the bundles of"):
        run("sc", noises=None)


def test_reference_must_be_a_method(run, tmp_path, started):
    with pytest.raises(ValueError, match=r"against must be one of noisy, .* your own method, got scc\."):
        run("noisy", against="scc")
    assert started() == []
    (tmp_path / "mine.json").write_text('{"run": ["$1"]}')
    run(str(tmp_path / "mine.json"), against="mine")
    assert run("noisy", against="mine")["noises"]["grow"]["noisy"]["difference"] is not None  # of an earlier call


def test_folder_of_something_else_is_refused(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"out must be a new or empty folder, or one with comparison\.json\."):
        run("sc")


def test_quick_needs_a_bundle_that_knows_it(run, bundle):
    file = bundle / "configs" / "train.json"
    file.write_text(file.read_text().replace('"quick": false, ', ""))
    with pytest.raises(ValueError, match="--quick needs a bundle with the id 'quick'"):
        run("sc", quick=True)


def test_tables_are_those_of_what_is_done_when_others_fail(run, control, tmp_path):
    (control / "fail").write_text("gce")
    with pytest.raises(CellsFailedError, match="1 of 2 cells failed"):
        run("gce", "sc")
    assert {line["method"] for line in lines_of(tmp_path / "out")} == {"sc"}
    assert (tmp_path / "out" / "results.png").stat().st_size > 0


def test_command_prints_the_comparison(run, bundle, tmp_path, capsys):
    command = ["compare", "--bundle", bundle, "--out", tmp_path / "out", "--methods", "noisy,sc", "--noise", "grow"]
    assert command_line.main([*map(str, command), "--seeds", "2", "--set", "rate=1"]) == 0
    told, progress = capsys.readouterr()
    assert re.search(r"^grow/noisy/seed-0: Dice 0\.505; 0\.\d minutes; 1 of 4 cells\.$", progress, re.MULTILINE)
    assert re.search(r"│ noisy  │ 2     │ 0\.615 ± 0\.007 │ 0\.405 ± 0\.007 │ 0\.510 ± 0\.007 │ -0\.300 \[", told)
    assert f"Results: {tmp_path / 'out' / 'results.md'}" in told
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["overrides"] == {"rate": "1"}


def test_failed_training_makes_status_1(run, bundle, tmp_path, control, capsys):
    (control / "fail").write_text("sc")
    command = ["compare", "--bundle", bundle, "--out", tmp_path / "out", "--methods", "sc", "--quiet"]
    assert command_line.main([*map(str, command)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Error: 1 of 1 cells failed:\n  grow/sc/seed-0: RuntimeError: no memory is left. (")


@pytest.mark.parametrize(("text", "found"), [("3", [0, 1, 2]), ("3,0,3", [3, 0]), ("1", [0])])
def test_seeds_are_so_many_or_those(text, found):
    assert seeds(text) == found


def test_all_methods_and_one_more(run, bundle, methods, tmp_path, capsys):
    (tmp_path / "my[b]own.json").write_text('{"run": ["$1"]}')
    command = ["compare", "--bundle", bundle, "--out", tmp_path / "out", "--methods", f"all,{tmp_path}/my[b]own.json"]
    assert command_line.main([*map(str, command), "--jobs", "4"]) == 0
    told = capsys.readouterr().out
    assert all(f"│ {name} " in told for name in (*METHODS, "my[b]own"))


@pytest.mark.parametrize("seeds", ["0", "-1", "x", "", "1,", "0,-2"])
def test_bad_seeds_are_refused(bundle, tmp_path, seeds, capsys):
    command = ["compare", "--bundle", str(bundle), "--out", str(tmp_path / "out"), f"--seeds={seeds}"]
    assert command_line.main(command) == 2
    said = f"Argument --seeds: must be at least 1 or a comma-separated list of seeds, got {seeds!r}"
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_bundle_runs_as_monai_runs_it(bundle, tmp_path, monkeypatch):
    """One real training, of a config that writes a result and nothing else."""
    method = tmp_path / "own.json"
    write = "pathlib.Path(@output_dir + '/result.json').write_text(json.dumps(dict("
    write += "classes=['a'], cases=['c', 'd'], dice=[[0.5], [0.25 + @rate]], epochs=@seed, seconds=1, image_size=[4])))"
    method.write_text(json.dumps({"imports": ["$import json", "$import pathlib"], "run": [f"${write}"]}))
    (tmp_path / "clean_cases.json").write_text("{}")
    monkeypatch.setattr(grid_module, "CLEAN_CASES", tmp_path / "clean_cases.json")
    (bundle / "configs" / "logging.conf").write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=\n[formatters]\nkeys=\n[logger_root]\nlevel=INFO\nhandlers=\n"
    )
    found = compare(
        bundle, tmp_path / "out", methods=[str(method)], seeds=[7], overrides={"rate": "0.5"}, progress=False
    )
    row = found["noises"]["grow"]["own"]
    assert (row["dice"]["mean"], row["epochs"], row["image_size"]) == (0.625, [7], ["4"])
    assert "parsing config_file" not in (tmp_path / "out/cells/grow/own/seed-7/log.txt").read_text()
