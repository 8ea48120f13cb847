import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from PIL import Image

from monai_sc.data import phantom_cases, phantom_image
from monai_sc.data.jsrt import NOISY_FOLDERS
from monai_sc.functional import shift_boundary
from monai_sc.functional.dice import dice

BUNDLES = Path(__file__).parents[2] / "bundles"
NAMES = sorted(folder.name for folder in BUNDLES.iterdir() if folder.is_dir())
PHANTOM_WEIGHTS = str(BUNDLES / "phantom" / "models")
QUICK = {
    "phantom": {"image_size": 48, "num_cases": {"train": 4, "clean": 2, "test": 2}},
    "jsrt": {"image_size": 32},
}


def write_jsrt(root):
    """Write a small stand-in for JSRT: the same folders and names of files, masks of 0 and 255."""
    for split, number in (("train", 4), ("val", 2), ("test", 2)):
        for k in range(number):
            image, masks = phantom_image((64, 64), k + 10 * number)
            masks = np.stack([masks[0], masks[1], masks.any(axis=0)])
            grey = 255 * (image - image.min()) / np.ptp(image)
            files = {f"images_{split}": grey}
            for name, mask in zip(("lung", "heart", "clavicle"), masks, strict=True):
                files[f"{name}_gts_{split}"] = 255 * mask
            if split == "train":
                files |= dict(zip(NOISY_FOLDERS, 255 * shift_boundary(masks, 3), strict=True))
            for folder, array in files.items():
                (root / folder).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array.T.astype(np.uint8)).save(root / folder / f"{split.upper()}{k:03d}.png")


@pytest.fixture
def data(tmp_path):
    """Return the overrides that point a bundle at data, by name of the bundle."""

    def overrides(name, **more):
        folder = tmp_path / "data"
        if name == "jsrt" and not folder.exists():
            write_jsrt(folder)
        return {
            "bundle_root": str(BUNDLES / name),
            "dataset_dir": str(folder),
            "output_dir": str(tmp_path / "output"),
            "ckpt_dir": str(tmp_path / "models"),
            "device": "$torch.device('cpu')",
            **more,
        }

    return overrides


def workflow(name, *configs, kind="train", **overrides):
    folder = BUNDLES / name / "configs"
    return ConfigWorkflow(
        config_file=[str(folder / f"{config}.json") for config in configs],
        meta_file=str(folder / "metadata.json"),
        logging_file=str(folder / "logging.conf"),
        workflow_type=kind,
        **overrides,
    )


def run(made):
    made.initialize()
    made.run()
    made.finalize()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "configs"), [("train", ["train"]), ("train", ["train", "evaluate"]), ("infer", ["inference"])]
)
def test_bundle_has_every_property(name, kind, configs, data):
    quick = QUICK[name] if kind == "train" else {}
    made = workflow(name, *configs, kind=kind, **data(name, **quick))
    made.initialize()
    assert made.check_properties() == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("configs", [["train"], ["train", "reference"]], ids="-".join)
def test_bundle_for_several_devices_has_every_property(name, configs, data, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for variable, value in group.items():
        monkeypatch.setenv(variable, str(value))
    made = workflow(name, *configs, "multi_gpu_train", **data(name, **QUICK[name]))
    made.initialize()
    try:
        assert made.check_properties() == []
        assert isinstance(made.trainer.network, torch.nn.parallel.DistributedDataParallel)
    finally:
        made.finalize()


@pytest.mark.parametrize("name", NAMES)
def test_training_and_inference_share_network_and_preprocessing(name):
    train, inference = (
        json.loads((BUNDLES / name / "configs" / f"{config}.json").read_text()) for config in ("train", "inference")
    )
    assert train["network_def"] == inference["network_def"]
    assert train["image_preprocessing"] == inference["preprocessing"]["transforms"]


@pytest.mark.parametrize("name", NAMES)
def test_bundle_runs_from_training_to_inference(name, data, tmp_path):
    quick = {"epochs_per_round": 1, "max_rounds": 1, **QUICK[name]}
    reference = workflow(name, "train", "reference", **data(name, **quick, ckpt_dir=str(tmp_path / "reference")))
    run(reference)
    made = workflow(name, "train", **data(name, **quick))
    run(made)
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert 1 <= len(results["rounds"]) <= 2
    kinds = ["given", "corrected", "clean"] if results["kept_round"] else ["given", "clean"]
    assert list(results["test_dice"]) == [f"trained on {kind} labels" for kind in kinds]
    assert (tmp_path / "output" / "report.png").is_file()
    pictures = sorted((tmp_path / "output" / "rounds").iterdir())
    assert [file.name for file in pictures] == [f"round-{k:03d}.png" for k in range(len(results["rounds"]))]
    evaluated = workflow(name, "train", "evaluate", **data(name, **quick))
    run(evaluated)
    assert evaluated.parser["validate::evaluator"] is not None
    expected = np.mean(results["test_dice"][f"trained on {kinds[-2]} labels"])
    metrics = (tmp_path / "output" / "metrics.csv").read_text()
    assert float(re.search(r"test_mean_dice,([0-9.]+)", metrics)[1]) == pytest.approx(expected, abs=1e-4)
    images = {} if name == "phantom" else {"dataset_dir": str(tmp_path / "data" / "images_test")}
    size = {} if name == "phantom" else {"image_size": QUICK[name]["image_size"]}
    run(workflow(name, "inference", kind="infer", **data(name) | images | size))
    written = sorted((tmp_path / "output").rglob("*_label.nii.gz"))
    assert written
    for file in written:
        stem = file.name.removesuffix("_label.nii.gz")
        source = next((tmp_path / "data").rglob(f"{stem}.nii.gz" if name == "phantom" else f"images_test/{stem}.png"))
        label = nib.load(file)
        assert set(np.unique(np.asarray(label.dataobj))) <= {0, 1}
        if name == "phantom":
            np.testing.assert_allclose(label.affine, nib.load(source).affine)
            assert label.shape[:2] == nib.load(source).shape
        else:
            np.testing.assert_allclose(np.abs(np.diag(label.affine)), 1)
            with Image.open(source) as picture:
                assert label.shape[:2] == picture.size


def tracked_metrics(results):
    """Return the names of the numbers that a run logs."""
    own = {f"{name}_{end}" for name in results["classes"] for end in ("bias", "bias_mm", "clean_dice", "test_dice")}
    return own | {"round", "train_loss", "train_mean_dice", "test_mean_dice"}


@pytest.mark.parametrize("name", NAMES)
def test_tensorboard_shows_numbers_and_picture_of_a_round(name, data, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(workflow(name, "train", "tensorboard", **data(name, epochs_per_round=2, max_rounds=0, **QUICK[name])))
    events = EventAccumulator(str(tmp_path / "output" / "tensorboard")).Reload()
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert set(events.Tags()["scalars"]) == tracked_metrics(results)
    assert [image.step for image in events.Images("labels")] == [2]
    for class_name, bias in zip(results["classes"], results["rounds"][0]["bias"], strict=True):
        assert [(event.step, event.value) for event in events.Scalars(f"{class_name}_bias")] == [
            (2, pytest.approx(bias, rel=1e-6))
        ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")  # it uses what SQLAlchemy 2.1 deprecates
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("settings", ["default", "own"])
def test_mlflow_gets_numbers_and_picture_of_a_round(name, settings, data, tmp_path, monkeypatch):
    monkeypatch.setenv("DO_NOT_TRACK", "true")  # MLflow reports its use over the network
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("sqlalchemy", reason="MLflow is installed without its database")
    tracking = "mlflow" if settings == "default" else str(BUNDLES / name / "configs" / "mlflow.json")
    quick = {"epochs_per_round": 2, "max_rounds": 0, **QUICK[name]}
    run(workflow(name, "train", **data(name, **quick), tracking=tracking))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'output' / 'mlruns.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "monai_experiment"]
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED"
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert set(made.data.metrics) == tracked_metrics(results) | {"lr_group_0"}
    pictures = [file.path for file in client.list_artifacts(made.info.run_id)]
    assert pictures == ([] if settings == "default" else ["round-000.png"])


def test_weights_of_the_phantom_are_as_good_as_its_metadata_say(data):
    evaluated = workflow("phantom", "train", "evaluate", **data("phantom", ckpt_dir=PHANTOM_WEIGHTS))
    run(evaluated)
    found = evaluated.parser.get_parsed_content("validate::evaluator").state.metrics
    metadata = json.loads((BUNDLES / "phantom" / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert found == pytest.approx(metadata["eval_metrics"], abs=0.001)


def test_weights_of_the_phantom_predict_cases_that_nobody_has_seen(data, tmp_path):
    cases = phantom_cases(tmp_path / "data", "new", 8, seed=1)
    run(workflow("phantom", "inference", kind="infer", **data("phantom", ckpt_dir=PHANTOM_WEIGHTS)))
    scores = []
    for case in cases:
        file = tmp_path / "output" / Path(case["image"]).name.replace(".nii.gz", "_label.nii.gz")
        predicted = np.moveaxis(np.asarray(nib.load(file).dataobj).squeeze(), -1, 0)
        clean = np.stack([np.asarray(nib.load(mask).dataobj) for mask in case["label"]])
        scores.append(dice(predicted > 0, clean > 0))
    assert (np.mean(scores, axis=0) > [0.9, 0.8]).all()


@pytest.mark.slow
def test_bundle_trains_in_two_processes(data, tmp_path):
    configs = BUNDLES / "phantom" / "configs"
    sizes = {"image_size": 48, "num_cases": {"train": 5, "clean": 3, "test": 3}}
    command = [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
        *("-m", "monai.bundle", "run"),
        *("--config_file", str([str(configs / f"{name}.json") for name in ("train", "multi_gpu_train")])),
    ]
    overrides = data("phantom", **sizes, epochs_per_round=1, max_rounds=1)
    command += [part for name, value in overrides.items() for part in (f"--{name}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BUNDLES.parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=250, env=environment, check=False
    )
    # PyTorch 2.13 with gloo now and then aborts a process that has done all and ends.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert (tmp_path / "output" / "report.png").is_file()
    assert done.stdout.count("Stopped after round") == 1
    rounds = sorted((tmp_path / "output" / "labels").glob("round-*"))
    assert [folder.name for folder in rounds] == [f"round-{k:03d}" for k in range(len(rounds))]
    for folder in rounds:
        manifest = (folder / "manifest.jsonl").read_text().splitlines()
        assert [json.loads(line)["case"] for line in manifest] == [f"train_{k:03d}" for k in range(5)]
    # The test cases were split: together they gave what one process finds.
    evaluated = workflow("phantom", "train", "evaluate", **data("phantom", **sizes))
    run(evaluated)
    (measured,) = list(results["test_dice"].values())[-1:]
    found = evaluated.parser.get_parsed_content("validate::evaluator").state.metrics
    np.testing.assert_allclose(measured, [found[f"{name}_test_dice"] for name in ("large", "small")], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noise", ["none", "markov_expand", "markov_shrink", "dilate_erode"])
def test_every_noise_can_be_chosen(name, noise, data):
    made = workflow(name, "train", **data(name, noise=noise, **QUICK[name]))
    made.initialize()
    store = made.parser.get_parsed_content("store")
    datalist = made.parser.get_parsed_content("train::dataset::data")
    assert len(datalist) == 4
    if noise == "none":
        assert datalist == store.cases
        return
    changes = []
    for case in datalist:
        clean, noisy = store.read_clean(case["id"]), store.read(case["id"])
        changes.append(noisy.sum(axis=(1, 2)) / clean.sum(axis=(1, 2)))
    growth = np.mean(changes, axis=0)
    if noise == "markov_expand":
        assert (growth > 1.1).all()
    if noise == "markov_shrink":
        assert (growth < 0.9).all()


@pytest.mark.parametrize("name", NAMES)
def test_damaged_cases_are_refused_or_left_out(name, data):
    def parsed(key, **more):
        made = workflow(name, "train", **data(name, **QUICK[name], **more))
        made.initialize()
        return made.parser.get_parsed_content(key)

    bad = [parsed(f"{kind}_cases")[1] for kind in ("train", "clean")]
    for case in bad:
        file = Path(case["label"][0])
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RuntimeError) as error:
        parsed("store")
    assert re.match(r"Case '.*' cannot be used: Label file ", str(error.value.__cause__))
    store = parsed("store", on_bad_case="skip")
    assert len(store.cases) == 3
    assert list(store.skipped) == [bad[0]["id"]]
    assert Path(bad[0]["label"][0]).name in store.skipped[bad[0]["id"]]
    assert bad[1]["id"] not in [case["id"] for case in parsed("clean_cases", on_bad_case="skip")]


def test_rounds_know_the_version_of_the_bundle(data):
    made = workflow("phantom", "train", **data("phantom", **QUICK["phantom"]))
    made.initialize()
    version = json.loads((BUNDLES / "phantom" / "configs" / "metadata.json").read_text())["version"]
    assert made.parser.get_parsed_content("store").config_version == version
    without = ConfigParser()
    without.read_config(BUNDLES / "phantom" / "configs" / "train.json")
    without.update(data("phantom", **QUICK["phantom"]))
    assert without.get_parsed_content("store").config_version is None


def test_unknown_noise_is_refused_by_name(data):
    made = workflow("phantom", "train", **data("phantom", noise="salt", **QUICK["phantom"]))
    made.initialize()
    with pytest.raises(RuntimeError) as error:
        made.parser.get_parsed_content("noise_model")
    assert "noise must be one of 'none', 'markov_expand', 'markov_shrink', 'dilate_erode', got 'salt'." in str(
        error.value.__cause__
    )


def test_importing_the_package_changes_no_global_state():
    state = torch.random.get_rng_state()
    __import__("monai_sc")
    assert torch.equal(state, torch.random.get_rng_state())
