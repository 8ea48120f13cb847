import hashlib
import json
from pathlib import Path

import pytest
from monai.bundle import ConfigWorkflow

from monai_sc.datasets import prepare

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.realdata


def checksum(folder):
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.png")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@pytest.mark.timeout(900)
def test_released_expansion_noise_is_corrected_at_64_pixels(jsrt, tmp_path):
    before = checksum(jsrt)
    prepare("jsrt", jsrt, tmp_path / "data", partial=True, progress=False)  # it lacks half of the test cases
    configs = ROOT / "bundles" / "jsrt" / "configs"
    workflow = ConfigWorkflow(
        config_file=str(configs / "train.json"),
        meta_file=str(configs / "metadata.json"),
        logging_file=str(configs / "logging.conf"),
        workflow_type="train",
        bundle_root=str(ROOT / "bundles" / "jsrt"),
        dataset_dir=str(tmp_path / "data"),
        output_dir=str(tmp_path / "output"),
        ckpt_dir=str(tmp_path / "models"),
        noise="files",
        image_size=[64, 64],
        epochs_per_round=8,
        max_rounds=1,
    )
    workflow.initialize()
    workflow.run()
    workflow.finalize()
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    given, corrected = results["label_dice"]["given"], results["label_dice"]["corrected"]
    assert given == pytest.approx([0.784, 0.772, 0.828], abs=0.001)
    assert min(corrected[:2]) > 0.92
    assert corrected[2] > 0.7  # a clavicle is two pixels wide here
    first = results["rounds"][0]
    assert all(bias < -1 for bias in first["bias"][:2])
    assert first["bias_mm"][0] == pytest.approx(1.4 * first["bias"][0])
    assert checksum(jsrt) == before
