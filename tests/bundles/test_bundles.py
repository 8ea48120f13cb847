"""Every bundle has the properties that MONAI asks for, and runs from training to inference."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from PIL import Image

from tests.bundles.conftest import BUNDLES, EPOCHS, NUM_CASES, overrides_of, run, workflow
from tests.forked import ended_well, run_ranks

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


@pytest.mark.parametrize(
    ("kind", "configs"), [("train", ["train"]), ("train", ["train", "evaluate"]), ("infer", ["inference"])]
)
def test_bundle_has_every_property(name, kind, configs, overrides):
    given = {key: value for key, value in overrides().items() if kind == "train" or key != "num_cases"}
    made = workflow(name, *configs, kind=kind, **given)
    made.initialize()
    assert made.check_properties() == []


# The others have the same configs for several devices as the first (test_consistency.py).
@pytest.mark.parametrize("name", ["phantom", "brats2020"], indirect=True)
@pytest.mark.parametrize("configs", [["train"], ["train", "reference"]], ids="-".join)
def test_bundle_for_several_devices_has_every_property(name, configs, overrides, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for variable, value in group.items():
        monkeypatch.setenv(variable, str(value))
    made = workflow(name, *configs, "multi_gpu_train", **overrides())
    made.initialize()
    try:
        assert made.check_properties() == []
        assert isinstance(made.trainer.network, torch.nn.parallel.DistributedDataParallel)
    finally:
        made.finalize()


@pytest.fixture(scope="module")
def trained(name, prepared, tmp_path_factory):
    """Return the folder, the overrides and the results of a short training, with a reference before it."""
    folder = tmp_path_factory.mktemp(f"{name}-trained")
    quick = overrides_of(name, prepared, folder) | {"epochs_per_round": EPOCHS.get(name, 1), "max_rounds": 1}
    reference = {"ckpt_dir": str(folder / "reference"), "epochs_per_round": 1}
    run(workflow(name, "train", "reference", **quick | reference))
    run(workflow(name, "train", *(["tensorboard"] if HAS_TENSORBOARD else []), **quick))
    results = json.loads((folder / "output" / "results.json").read_text())
    return SimpleNamespace(folder=folder, output=folder / "output", overrides=quick, results=results)


def test_training_measures_corrects_and_reports(trained):
    results = trained.results
    assert 1 <= len(results["rounds"]) <= 2
    kinds = ["given", "corrected", "clean"] if results["kept_round"] else ["given", "clean"]
    assert list(results["test_dice"]) == [f"trained on {kind} labels" for kind in kinds]
    assert (trained.output / "report.png").is_file()
    pictures = sorted((trained.output / "rounds").iterdir())
    assert [file.name for file in pictures] == [f"round-{k:03d}.png" for k in range(len(results["rounds"]))]


def test_evaluation_finds_what_training_found(name, trained):
    evaluated = workflow(name, "train", "evaluate", **trained.overrides)
    run(evaluated)
    assert evaluated.parser["validate::evaluator"] is not None
    measured = [values for kind, values in trained.results["test_dice"].items() if "clean" not in kind]
    metrics = (trained.output / "metrics.csv").read_text()
    assert float(re.search(r"test_mean_dice,([0-9.]+)", metrics)[1]) == pytest.approx(np.mean(measured[-1]), abs=1e-4)


def test_inference_writes_labels_on_the_grid_of_the_images(name, source, prepared, trained, tmp_path):
    folder = {"phantom": trained.folder / "data", "brats2020": source}.get(name, prepared / "images")
    end = {"phantom": "_image.nii.gz", "brats2020": "_flair.nii.gz"}.get(name, "")
    images = sorted(file for file in folder.rglob(f"*{end}") if file.is_file())
    given = {key: value for key, value in trained.overrides.items() if key in ("bundle_root", "ckpt_dir", "device")}
    if name != "phantom":  # which is padded, not resized
        given["image_size"] = trained.overrides["image_size"]
    run(workflow(name, "inference", kind="infer", **given, dataset_dir=str(folder), output_dir=str(tmp_path)))
    written = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    stems = [str(file.relative_to(folder)).removesuffix(".nii.gz").removesuffix(".png") for file in images]
    assert [str(file.relative_to(tmp_path)).rpartition("_label.")[0] for file in written] == stems
    assert len(written) >= sum(NUM_CASES.values())
    for file, image in zip(written, images, strict=True):
        if file.suffix == ".png":
            with Image.open(file) as label, Image.open(image) as picture:
                assert label.size == picture.size
                assert set(np.unique(np.asarray(label))) <= {0, 255}
            continue
        label = nib.load(file)
        assert set(np.unique(np.asarray(label.dataobj))) <= {0, 1}
        if image.suffix == ".png":  # several classes do not fit into one picture
            np.testing.assert_allclose(np.abs(np.diag(label.affine)), 1)
            with Image.open(image) as picture:
                assert label.shape[:2] == picture.size
        else:
            grid = nib.load(image)
            np.testing.assert_allclose(label.affine, grid.affine, atol=1e-4)
            assert label.shape[: len(grid.shape)] == grid.shape


def tracked_metrics(name, results):
    """Return the names of the numbers that a run logs."""
    ends = ["bias", "clean_dice", "test_dice"]
    if name not in ("cityscapes", "isic2017"):  # photographs, whose pixels have no size in mm
        ends.append("bias_mm")
    own = {f"{class_name}_{end}" for class_name in results["classes"] for end in ends}
    return own | {"round", "train_loss", "train_mean_dice", "test_mean_dice"}


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="TensorBoard is not installed")
def test_tensorboard_shows_numbers_and_picture_of_every_round(name, trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained.output / "tensorboard")).Reload()
    rounds = trained.results["rounds"]
    assert set(events.Tags()["scalars"]) == tracked_metrics(name, trained.results)
    assert [image.step for image in events.Images("labels")] == [one["epoch"] for one in rounds]
    for number, class_name in enumerate(trained.results["classes"]):
        shown = {event.step: event.value for event in events.Scalars(f"{class_name}_bias")}
        assert min(shown) == rounds[0]["epoch"]
        for one in rounds:
            assert shown[one["epoch"]] == pytest.approx(one["bias"][number], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")  # it uses what SQLAlchemy 2.1 deprecates
@pytest.mark.parametrize("name", ["phantom"], indirect=True)  # the settings of all bundles are the same
@pytest.mark.parametrize("settings", ["default", "own"])
def test_mlflow_gets_numbers_and_picture_of_a_round(name, settings, overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("DO_NOT_TRACK", "true")  # MLflow reports its use over the network
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("sqlalchemy", reason="MLflow is installed without its database")
    tracking = "mlflow" if settings == "default" else str(BUNDLES / name / "configs" / "mlflow.json")
    run(workflow(name, "train", **overrides(epochs_per_round=2, max_rounds=0, tracking=tracking)))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'output' / 'mlruns.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "monai_experiment"]
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED"
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert set(made.data.metrics) == tracked_metrics(name, results) | {"lr_group_0"}
    pictures = [file.path for file in client.list_artifacts(made.info.run_id)]
    assert pictures == ([] if settings == "default" else ["round-000.png"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phantom"], indirect=True)  # whose configs for this all bundles have
def test_bundle_trains_in_two_processes(name, overrides, tmp_path):
    configs = [str(BUNDLES / name / "configs" / f"{config}.json") for config in ("train", "multi_gpu_train")]
    given = overrides(epochs_per_round=1, max_rounds=1)
    command = ["-m", "monai.bundle", "run", "--config_file", str(configs)]
    command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BUNDLES.parent)}
    # What torchrun does, without the imports of three new Pythons.
    ended = run_ranks(command, 2, env={**environment, "PYTHONWARNINGS": "ignore"}, timeout=250)
    assert all(map(ended_well, ended)), ended
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert (tmp_path / "output" / "report.png").is_file()
    assert sum(done.stdout.count("Stopped after round") for done in ended) == 1
    made = workflow(name, "train", "evaluate", **given)
    run(made)
    cases = [case["id"] for case in made.parser.get_parsed_content("train_cases")]
    rounds = sorted((tmp_path / "output" / "labels").glob("round-*"))
    assert [folder.name for folder in rounds] == [f"round-{k:03d}" for k in range(len(rounds))]
    for folder in rounds:
        manifest = (folder / "manifest.jsonl").read_text().splitlines()
        assert [json.loads(line)["case"] for line in manifest] == cases
    # The test cases were split: together they gave what one process finds.
    (measured,) = list(results["test_dice"].values())[-1:]
    found = made.parser.get_parsed_content("validate::evaluator").state.metrics
    np.testing.assert_allclose(measured, [found[f"{one}_test_dice"] for one in results["classes"]], atol=1e-4)


def test_rounds_know_the_version_of_the_bundle(name, overrides):
    metadata = BUNDLES / name / "configs" / "metadata.json"
    made = workflow(name, "train", **overrides())
    made.initialize()
    store = made.parser.get_parsed_content("store")
    assert store.config_version == json.loads(metadata.read_text())["version"]
    without = ConfigParser()
    without.read_config(BUNDLES / name / "configs" / "train.json")
    without.update(overrides())
    assert without.get_parsed_content("store").config_version is None
