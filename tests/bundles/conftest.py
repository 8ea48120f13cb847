"""What the tests of the bundles share: each test that takes ``bundle`` or ``name`` runs once for every bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from monai.bundle import ConfigWorkflow

from monai_sc.datasets import prepare
from monai_sc.datasets.jsrt import write_jsrt_ready
from monai_sc.datasets.stand_ins import STAND_INS

BUNDLES = Path(__file__).parents[2] / "bundles"
FOLDERS = sorted(folder for folder in BUNDLES.iterdir() if folder.is_dir())
NUM_CASES = {"train": 5, "clean": 2, "test": 3}
# The size of the prepared files, half of the usual one, so that labels have another grid than training.
PREPARED_SIZE = {
    "brats2020": (64, 64, 32),
    "cityscapes": (256, 128),
    "isic2017": (128, 128),
    "jsrt": (128, 128),
    "lidc_idri": (128, 128),
}
# Of training: as small as the networks take, which halve their input four times.
QUICK = {
    "brats2020": {"image_size": [32, 32, 16]},
    "cityscapes": {"image_size": [64, 32]},
    "isic2017": {"image_size": [32, 32]},
    "jsrt": {"image_size": [32, 32]},
    "lidc_idri": {"image_size": [32, 32], "batch_size": 2},
    "phantom": {"image_size": 48, "num_cases": NUM_CASES},
}

# Epochs of a round; the network of LIDC-IDRI begins with little foreground, and at first predicts nothing.
EPOCHS = {"lidc_idri": 12}


@pytest.fixture(params=[pytest.param(folder, id=folder.name) for folder in FOLDERS])
def bundle(request, tmp_path):
    """Return a copy of a bundle, without what its runs have written into its folder."""
    return shutil.copytree(
        request.param, tmp_path / request.param.name, ignore=shutil.ignore_patterns("data", "output", "try")
    )


@pytest.fixture(scope="session", params=[folder.name for folder in FOLDERS])
def name(request):
    """Return the name of a bundle."""
    return request.param


@pytest.fixture(scope="session")
def source(name, tmp_path_factory):
    """Return a folder with the stand-in of a bundle's data set, as it is downloaded; the phantom needs none."""
    folder = tmp_path_factory.mktemp(f"{name}-source")
    if name == "jsrt":
        write_jsrt_ready(folder, num_cases=NUM_CASES)  # the official form has larger files, and no noisy labels
    elif name == "lidc_idri":
        STAND_INS[name](folder, num_cases={"train": 1, "clean": 1, "test": 1})  # of about 14 cases each
    elif name != "phantom":
        STAND_INS[name](folder, num_cases=NUM_CASES)
    return folder


@pytest.fixture(scope="session")
def prepared(name, source, tmp_path_factory):
    """Return the folder that a bundle reads, with ``NUM_CASES``; the phantom writes its own."""
    folder = tmp_path_factory.mktemp(f"{name}-prepared") / "data"
    if name == "phantom":
        return folder
    prepare(name, source, folder, size=PREPARED_SIZE[name], partial=True, progress=False)
    # Of so few cases, the shares of the official splits would leave one clean case.
    content = json.loads((folder / "prepared.json").read_text())
    rows = [row for cases in content["cases"].values() for row in cases]
    rows = iter(rows[3::3] if name == "lidc_idri" else rows)  # slices with and without a nodule, in each split
    content["cases"] = {split: [next(rows) for _ in range(number)] for split, number in NUM_CASES.items()}
    (folder / "prepared.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def overrides(name, prepared, tmp_path):
    """Return a function that returns what a quick training overrides; it writes into ``tmp_path`` only."""
    return lambda **more: overrides_of(name, prepared, tmp_path) | more


def overrides_of(name, prepared, folder):
    """Return what a quick training of a bundle overrides, so that it writes into a folder only."""
    return {
        "bundle_root": str(BUNDLES / name),
        "dataset_dir": str(folder / "data" if name == "phantom" else prepared),
        "output_dir": str(folder / "output"),
        "ckpt_dir": str(folder / "models"),
        "device": "$torch.device('cpu')",
        **QUICK[name],
    }


def workflow(name, *configs, kind="train", **overrides):
    """Return the workflow of a bundle."""
    folder = BUNDLES / name / "configs"
    return ConfigWorkflow(
        config_file=[str(folder / f"{config}.json") for config in configs],
        meta_file=str(folder / "metadata.json"),
        logging_file=str(folder / "logging.conf"),
        workflow_type=kind,
        **overrides,
    )


def run(made):
    """Run a workflow to its end."""
    made.initialize()
    made.run()
    made.finalize()
