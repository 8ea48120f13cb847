"""The bundle of BraTS takes real scans: it trains on a prepared case, and segments scans as they were downloaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.data import DataLoader, Dataset
from monai.transforms import Compose

from monai_sc.datasets import prepare, prepared_cases

pytestmark = pytest.mark.realdata
BUNDLE = Path(__file__).parents[2] / "bundles" / "brats2020"
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
    made = ConfigWorkflow(
        config_file=str(BUNDLE / "configs" / "inference.json"),
        meta_file=str(BUNDLE / "configs" / "metadata.json"),
        logging_file=str(BUNDLE / "configs" / "logging.conf"),
        workflow_type="infer",
        dataset_dir=str(brats),
        output_dir=str(out),
        ckpt_dir=str(trained.folder / "models"),
        **BASIC,
        **overrides,
    )
    made.initialize()
    made.run()
    made.finalize()
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
