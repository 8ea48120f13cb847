"""What the bundle of BraTS does that others do not: heads for deep supervision, several kinds of scan."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.losses import DiceFocalLoss

from monai_sc.datasets.brats2020 import write_brats2020
from tests.bundles.conftest import BUNDLES, workflow

BUNDLE = BUNDLES / "brats2020"


def parsed(*configs, **overrides):
    parser = ConfigParser()
    parser.read_config([BUNDLE / "configs" / f"{name}.json" for name in configs])
    parser.update({"bundle_root": str(BUNDLE), "device": "$torch.device('cpu')", **overrides})
    return parser


def test_quick_run_is_smaller():
    keys = ("image_size", "epochs_per_round", "max_rounds")
    quick, full = ([parsed("train", quick=quick).get_parsed_content(key) for key in keys] for quick in (True, False))
    assert quick == [[64, 64, 32], 10, 1]
    assert full == [[128, 128, 64], 60, 3]
    assert parsed("inference", quick=True).get_parsed_content("image_size") == [64, 64, 32]


def test_loss_weighs_the_heads():
    parser = parsed("train")
    network, loss = (parser.get_parsed_content(key) for key in ("network", "loss"))
    torch.manual_seed(0)
    heads = network.train()(torch.rand(2, 1, 32, 32, 16))
    assert heads.shape == (2, 3, 1, 32, 32, 16)
    label = (torch.rand(2, 1, 32, 32, 16) > 0.5).float()
    one = DiceFocalLoss(sigmoid=True, gamma=0.0, batch=True)
    expected = sum(weight * one(heads[:, k], label) for k, weight in enumerate((1, 0.5, 0.25)))
    torch.testing.assert_close(loss(heads, label), expected)
    loss(heads, label).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())  # as several processes need it


def test_training_scores_the_head_of_full_resolution():
    heads = torch.tensor([[[-1.0, 2]], [[3, -4]]])
    assert parsed("train").get_parsed_content("train::postprocessing")({"pred": heads})["pred"].tolist() == [[0, 1]]


def test_bottleneck_may_be_one_voxel():
    network = parsed("inference").get_parsed_content("network").eval()
    with torch.no_grad():
        assert network(torch.rand(1, 1, 16, 16, 16)).shape == (1, 1, 16, 16, 16)


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves the weights of a network with heads as training does, and returns the network."""

    def save(num_channels):
        parser = parsed("train", num_channels=num_channels)
        torch.manual_seed(1)
        network = parser.get_parsed_content("network").eval()
        (tmp_path / "models").mkdir()
        weights = parser.get_parsed_content("network_without_heads").state_dict()
        torch.save(weights, tmp_path / "models" / "model.pt")
        return network

    return save


def test_evaluation_loads_the_saved_weights(saved, tmp_path):
    saved(1)
    parser = parsed("train", "evaluate")
    assert parser.get_parsed_content("network").load_state_dict(torch.load(tmp_path / "models" / "model.pt"))


@pytest.mark.parametrize("modalities", [["flair"], ["t1ce", "flair", "t2"]], ids=len)
def test_official_cases_are_segmented_on_their_own_grid(modalities, saved, tmp_path):
    saved(len(modalities))
    write_brats2020(tmp_path / "data", num_cases={"test": 2})
    given = {"dataset_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "output"), "modalities": modalities}
    given |= {"bundle_root": str(BUNDLE), "ckpt_dir": str(tmp_path / "models"), "image_size": [32, 32, 16]}
    made = workflow("brats2020", "inference", kind="infer", **given, device="$torch.device('cpu')")
    made.initialize()
    names = [f"BraTS20_Training_{k:03d}" for k in (1, 2)]
    files = [case["image"] for case in made.parser.get_parsed_content("dataset").data]
    folder = tmp_path / "data" / "MICCAI_BraTS2020_TrainingData"
    assert files == [[str(folder / name / f"{name}_{kind}.nii.gz") for kind in modalities] for name in names]
    made.run()
    made.finalize()
    for name in names:
        label = nib.load(tmp_path / "output" / folder.name / name / f"{name}_{modalities[0]}_label.nii.gz")
        scan = nib.load(folder / name / f"{name}_flair.nii.gz")
        assert label.shape == scan.shape
        np.testing.assert_allclose(label.affine, scan.affine)
        assert set(np.unique(np.asarray(label.dataobj))) <= {0, 1}
