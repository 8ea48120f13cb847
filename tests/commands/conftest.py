import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.folders import audit_folder
from monai_sc.reports import write_audit
from monai_sc.store import LabelStore

PHANTOM = Path(__file__).parents[2] / "bundles" / "phantom"


def write_masks(folder):
    folder.mkdir()
    for k in range(2):
        mask = np.zeros((30, 32), np.uint8)
        mask[8 : 18 + k, 9:20] = 255
        Image.fromarray(mask).save(folder / f"{k}.png")


def write_pairs(folder):
    """Write balls of which the labels are 1 mm too large, as the predictions are, and clean ones of three cases."""
    for name in ("labels", "clean", "predictions"):
        (folder / name).mkdir()
    grid = np.indices((20, 20, 16)) - np.reshape((10, 9, 8), (3, 1, 1, 1))
    for k in range(4):
        outside = np.sqrt((grid**2).sum(axis=0)) - (5 + 0.3 * k)
        for name, margin in {"labels": 1, "clean": 0}.items():
            if name == "labels" or k < 3:
                file = folder / name / f"case{k}.nii.gz"
                nib.save(nib.Nifti1Image((outside <= margin).astype(np.uint8), np.eye(4)), file)
        chance = 1 / (1 + np.exp(outside - 1))
        np.savez(
            folder / "predictions" / f"case{k}.npz", probabilities=np.stack([1 - chance, chance]).transpose(0, 3, 2, 1)
        )


def write_store(root, masks):
    """Write a label store with a round 1, in which one voxel of each case is another."""
    cases = [{"id": file.stem, "image": str(file), "label": str(file), "foreground": 255} for file in masks.glob("*")]
    store = LabelStore(root, cases, class_names=["lung"])
    with store.write_round(1, {"bias": [-1.5]}) as writer:
        for case in store.cases:
            label = store.read(case["id"], 0)
            label[0, 0, 0] = True
            writer.write(case["id"], label)
    return store


@pytest.fixture
def workplace(tmp_path, write_cells):
    """Return a folder with all that the commands work on, tiny."""
    write_masks(tmp_path / "masks")
    write_pairs(tmp_path)
    write_store(tmp_path / "run" / "labels", tmp_path / "masks")
    folders = tmp_path / "labels", tmp_path / "clean"
    write_audit(audit_folder(*folders, progress=False), *folders, tmp_path / "audited")
    shutil.copytree(PHANTOM / "configs", tmp_path / "bundle" / "configs")
    bundle = tmp_path / "bundle"
    write_cells(
        tmp_path / "comparison",
        bundle,
        "comparison.json",
        ["markov_expand/noisy", "markov_expand/sc"],
        protocol="paper",
    )
    level = {"ablation": "noise-level", "noise": "markov_expand", "with_clean": True}
    write_cells(tmp_path / "level", bundle, "settings.json", ["steps-3/noisy"], **level)
    return tmp_path
