"""The bundles take real images: they train on prepared cases, and segment scans as they were downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader, Dataset
from monai.transforms import Compose

from monai_sc.datasets import prepare, prepared_cases
from tests.bundles.conftest import BUNDLES, run, workflow
from tests.contents import contents

pytestmark = pytest.mark.realdata
BUNDLE = BUNDLES / "brats2020"
BASIC = {"bundle_root": str(BUNDLE), "device": "$torch.device('cpu')", "quick": True}


@pytest.fixture(scope="module", params=[["flair"], ["flair", "t1", "t1ce", "t2"]], ids=["flair", "four-kinds"])
def trained(request, brats, tmp_path_factory):
    """Return losses and weights of a few steps on the prepared case, and the folder with the weights."""
    folder, modalities = tmp_path_factory.mktemp("brats"), request.param
    prepare("brats2020", brats, folder / "data", partial=True, progress=False, modalities=modalities)
    parser = ConfigParser()
    parser.read_config(BUNDLE / "configs" / "train.json")
    parser.update({**BASIC, "num_channels": len(modalities)})
    torch.manual_seed(0)
    network, loss, optimizer, chain = (
        parser.get_parsed_content(key) for key in ("network", "loss", "optimizer", "deterministic_transforms")
    )
    (batch,) = DataLoader(Dataset(prepared_cases(folder / "data", "train"), Compose(chain)))
    before = [weight.detach().clone() for weight in network.parameters()]
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(network.train()(batch["image"]), batch["label"])
        value.backward()
        optimizer.step()
        losses.append(value.item())
    (folder / "models").mkdir()
    torch.save(parser.get_parsed_content("network_without_heads").state_dict(), folder / "models" / "model.pt")
    weights = list(zip(before, network.parameters(), strict=True))
    return SimpleNamespace(folder=folder, modalities=modalities, batch=batch, losses=losses, weights=weights)


def test_real_case_is_learnt_from(trained):
    assert trained.batch["image"].shape == (1, len(trained.modalities), 64, 64, 32)
    assert trained.batch["label"].shape == (1, 1, 64, 64, 32)
    assert trained.batch["label"].any()
    assert np.isfinite(trained.losses).all()
    assert trained.losses[-1] < trained.losses[0]
    assert not any(torch.equal(before, after) for before, after in trained.weights)


def segmented(trained, brats, out, **overrides):
    """Run inference over the files that lie under the folder of the data set; return what was written."""
    folders = {"dataset_dir": str(brats), "output_dir": str(out), "ckpt_dir": str(trained.folder / "models")}
    run(workflow("brats2020", "inference", kind="infer", **folders, **BASIC, **overrides))
    return sorted(file.relative_to(out) for file in out.rglob("*") if file.is_file())


def assert_on_the_grid_of(file, scan):
    label, scan = nib.load(file), nib.load(scan)
    assert label.shape == scan.shape == (240, 240, 155)
    np.testing.assert_allclose(label.affine, scan.affine, atol=1e-4)
    assert label.get_data_dtype() == np.uint8
    assert set(np.unique(np.asarray(label.dataobj))) <= {0, 1}


def test_real_case_is_segmented_on_its_own_grid(trained, brats, tmp_path):
    case = "BraTS2021_00006"
    written = segmented(trained, brats, tmp_path, modalities=trained.modalities)
    assert written == [Path(case, f"{case}_flair_label.nii.gz")]
    assert_on_the_grid_of(tmp_path / written[0], brats / case / f"{case}_flair.nii.gz")


@pytest.mark.parametrize("trained", [["flair"]], ids=["flair"], indirect=True)
def test_scans_of_one_name_in_several_folders_are_all_segmented(trained, brats, tmp_path):
    name = "Flair_subtrMeanDivStd"
    written = segmented(trained, brats, tmp_path, pattern=f"**/{name}.nii.gz")
    folders = [Path("deepmedic_brats2015", f"brats_2013_pat000{number}_1") for number in (4, 6)]
    assert written == [folder / f"{name}_label.nii.gz" for folder in folders]
    for file, folder in zip(written, folders, strict=True):
        assert_on_the_grid_of(tmp_path / file, brats / folder / f"{name}.nii.gz")


@pytest.mark.timeout(900)
def test_released_expansion_noise_is_corrected_at_64_pixels(jsrt, tmp_path):
    before = contents(jsrt)
    prepare("jsrt", jsrt, tmp_path / "data", partial=True, progress=False)  # it lacks half of the test cases
    folders = {name: str(tmp_path / name.removesuffix("_dir")) for name in ("output_dir", "ckpt_dir")}
    size = {"image_size": [64, 64], "epochs_per_round": 8, "max_rounds": 1}
    given = {"bundle_root": str(BUNDLES / "jsrt"), "dataset_dir": str(tmp_path / "data"), "noise": "files"}
    run(workflow("jsrt", "train", **folders, **size, **given))
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    given, corrected = results["label_dice"]["given"], results["label_dice"]["corrected"]
    assert given == pytest.approx([0.784, 0.772, 0.828], abs=0.001)
    assert min(corrected[:2]) > 0.92
    assert corrected[2] > 0.7  # a clavicle is two pixels wide here
    first = results["rounds"][0]
    assert all(bias < -1 for bias in first["bias"][:2])
    assert first["bias_mm"][0] == pytest.approx(1.4 * first["bias"][0])
    assert contents(jsrt) == before
