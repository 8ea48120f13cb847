import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.functional import shift_boundary
from monai_sc.store import LabelStore

HOSTILE = 'case <img src=x onerror="alert(1)">&'


def ball(shape, radius, centre=None):
    grid = np.indices(shape) - np.reshape(np.array(shape) / 2 if centre is None else centre, (-1, *(1,) * len(shape)))
    return (np.sqrt((grid**2).sum(axis=0)) <= radius)[None]


def record(number, bias, reason="", voxel_mm=0.5):
    return {
        "round": number,
        "epoch": 10 * (number + 1),
        "bias": [bias, float("nan")],
        "bias_interval": [[bias - 0.5, bias + 0.5], [float("nan")] * 2],
        "bias_mm": [bias * voxel_mm, float("nan")],
        "voxel_mm": voxel_mm,
        "verdict": ["biased" if abs(bias) > 1.5 else "unbiased", "cannot tell"],
        "num_used": [4, 0],
        "num_skipped": [0, 4],
        "clean_dice": [0.8, 0.0],
        "learnt": [True, False],
        "voxels_changed": [] if reason else [10, 0],
        "metrics": {},
        "correction": {},
        "stop_reason": reason,
    }


@pytest.fixture(scope="session")
def history():
    return [record(0, -3.0), record(1, -0.2, "the bias of every class is under one voxel")]


@pytest.fixture(scope="session")
def make_store():
    """Return a function that makes a store of five cases with a disc that was drawn three voxels too wide, and an empty
    class; with one round of correction."""

    def make(folder, dimensions):
        shape = (40, 44) if dimensions == "2d" else (24, 26, 20)
        cases = []
        for k in range(5):
            clean = ball(shape, 6)
            case = {"id": HOSTILE if k == 2 else f"case {k}"}
            for name, mask in (("image", clean * 1.0), ("label", shift_boundary(clean, 3)), ("reference_label", clean)):
                files = []
                for c in range(1 if name == "image" else 2):
                    values = np.asarray(mask[0]) if c == 0 else np.zeros(shape)
                    if dimensions == "2d":
                        file = folder / f"{k}_{name}_{c}.png"
                        Image.fromarray((255 * values.T).astype(np.uint8)).save(file)
                    else:
                        file = folder / f"{k}_{name}_{c}.nii.gz"
                        nib.save(nib.Nifti1Image(values.astype(np.float32), np.diag([-0.5, -0.5, 2, 1])), file)
                    files.append(str(file))
                case[name] = files[0] if name == "image" else files
            if dimensions == "2d":
                case["foreground"] = 255
            cases.append(case)
        store = LabelStore(folder / "run" / "labels", cases, class_names=["disc", "ghost"])
        with store.write_round(1, {"shift": [-3.0, 0.0], "kept": [False, False]}) as writer:
            for k, case in enumerate(cases):
                label = store.read(case["id"])
                label[0] = shift_boundary(store.read_clean(case["id"])[:1], 0.5 * k)[0]
                writer.write(case["id"], label)
        return store

    return make


@pytest.fixture(params=["2d", "3d"])
def store(make_store, tmp_path, request):
    return make_store(tmp_path, request.param)
