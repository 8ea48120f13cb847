"""The bundles are copies of one, but for what is listed here: a change in one of them belongs into all."""

from __future__ import annotations

import json

import pytest

from tests.bundles.conftest import BUNDLES, FOLDERS

BASE = "isic2017"
CONFIGS = ["train", "inference", "evaluate", "reference", "multi_gpu_train", "tensorboard", "mlflow"]

# What the images, the labels and their noise ask for, in 2D. An id stands for all below it.
OF_THE_DATA = {
    "train": {
        "image_size", "noise", "noises", "classes", "gamma", "epochs_per_round", "max_rounds", "batch_size",
        "pixel_mm", "train::handlers::3::voxel_mm",  # of JSRT, whose PNG files do not tell the size of a pixel
        "network_def::in_channels", "network_def::out_channels",
        "image_preprocessing::1",  # how intensities are scaled
        "train::random_transforms",  # a chest has a left side, a street has a top; a lesion has neither
    },
    "inference": {
        "image_size", "pattern", "network_def::in_channels", "network_def::out_channels",
        "preprocessing::transforms::1",
        "postprocessing::transforms::2",  # a label is a picture where that can hold it: one class, and no geometry
    },
}  # fmt: skip

# Volumes: another network, whose heads for deep supervision are trained with it, and cut off where weights are saved.
OF_BRATS = {
    "train": {
        "image_size", "size", "noises", "classes", "epochs_per_round", "max_rounds", "batch_size", "learning_rate",
        "num_channels", "network_def", "deep_supervision", "network_without_heads", "loss", "loss_of_heads",
        "image_preprocessing::1", "image_preprocessing::2::mode",
        "train::random_transforms", "train::postprocessing", "train::handlers::5::save_dict",
    },
    "inference": {
        "dataset_dir", "pattern",  # the scans of a case lie in its own folder
        "modalities", "num_channels", "dataset::data",  # one file for each kind of scan
        "image_size", "size", "network_def", "deep_supervision",
        "preprocessing::transforms::1", "preprocessing::transforms::2::mode", "postprocessing::transforms::2",
    },
    "evaluate": {"deep_supervision"},
    "reference": {"train::handlers::3::save_dict"},
}  # fmt: skip

# Its images are generated, of any size and so padded instead of resized, and it is quick as it is.
OF_THE_PHANTOM = {
    "train": {
        "quick", "image_size", "size", "noises", "classes", "epochs_per_round", "max_rounds",
        "num_cases", "make_cases", "clean_cases", "train_cases", "validate::dataset::data",
        "network_def::in_channels", "network_def::out_channels", "network_def::channels", "network_def::strides::3",
        "image_preprocessing::1", "image_preprocessing::2", "label_preprocessing::1", "train::random_transforms",
    },
    "inference": {
        "quick", "image_size", "size", "dataset_dir", "pattern",
        "network_def::in_channels", "network_def::out_channels", "network_def::channels", "network_def::strides::3",
        "preprocessing::transforms::1", "preprocessing::transforms::2", "postprocessing::transforms::2",
    },
    "reference": {"train::dataset::data"},
}  # fmt: skip

OF_THE_METADATA = {
    "name", "task", "description", "data_source", "data_type", "image_classes", "label_classes", "pred_classes",
    "network_data_format", "references", "eval_metrics", "intended_use",
}  # fmt: skip


def read(name, config):
    content = json.loads((BUNDLES / name / "configs" / f"{config}.json").read_text(encoding="utf-8"))
    if name == "lidc_idri" and "network_def" in content:  # the same network, which starts in another way
        content["network_def"] = content["network_def"]["network"]
    return content


def leaves(content, prefix=""):
    """Return the values of a config by their ids, such as ``train::handlers::3::voxel_mm``."""
    if not isinstance(content, (dict, list)) or not content:
        return {prefix: content}
    items = content.items() if isinstance(content, dict) else enumerate(content)
    found = {}
    for key, value in items:
        found |= leaves(value, f"{prefix}::{key}" if prefix else str(key))
    return found


def differences(name, config, listed):
    """Return the ids that differ from the first bundle; of those below a listed one, the listed one."""
    own, base = leaves(read(name, config)), leaves(read(BASE, config))
    differing = {key for key in own.keys() | base.keys() if own.get(key, ...) != base.get(key, ...)}
    return {next((one for one in listed if key == one or key.startswith(f"{one}::")), key) for key in differing}


@pytest.mark.parametrize("config", CONFIGS)
def test_bundles_of_pictures_differ_in_what_is_listed(config):
    listed = OF_THE_DATA.get(config, set())
    names = [folder.name for folder in FOLDERS if folder.name not in ("brats2020", "phantom")]
    assert len(names) == 4
    assert set().union(*(differences(name, config, listed) for name in names)) == listed


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("name", "of_the_bundle"), [("brats2020", OF_BRATS), ("phantom", OF_THE_PHANTOM)])
def test_other_bundles_differ_in_what_is_listed(name, of_the_bundle, config):
    listed = of_the_bundle.get(config, set())
    assert differences(name, config, listed) == listed


def test_metadata_differ_in_what_is_listed():
    names = [folder.name for folder in FOLDERS]
    found = set().union(*(differences(name, "metadata", OF_THE_METADATA) for name in names))
    assert found == OF_THE_METADATA


def test_logging_is_the_same():
    assert len({(folder / "configs" / "logging.conf").read_bytes() for folder in FOLDERS}) == 1


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_training_and_inference_share_network_and_preprocessing(folder):
    train, inference = (read(folder.name, config) for config in ("train", "inference"))
    assert train["network_def"] == inference["network_def"]
    assert train["image_preprocessing"] == inference["preprocessing"]["transforms"]
    assert train.get("quick") == inference.get("quick")
    if folder.name != "phantom":  # whose inference takes images of any size
        assert train["image_size"] == inference["image_size"]
