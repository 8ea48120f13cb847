import json

import nibabel as nib
import numpy as np
import pytest
from monai.data import DataLoader, Dataset

from monai_sc.benchmark.ablations import write_confidence, write_rounds
from monai_sc.benchmark.ablations.ablation import read_written
from monai_sc.benchmark.methods import ConfidenceHandler, WatchedVoxel
from monai_sc.store import LabelStore

CLASSES = ["large", "small"]


def write(file, array):
    nib.save(nib.Nifti1Image(array.astype(np.float32 if array.dtype.kind == "f" else np.uint8), np.eye(4)), file)
    return str(file)


def make_store(folder, shape, *, known=True):
    """Return a store of three cases; of the first class ``case1`` is most in error, of the second ``case2``."""
    rng = np.random.default_rng(0)
    cases = []
    for k in range(3):
        clean = np.zeros((2, *shape), dtype=bool)
        clean[0, 2:14, 2:14], clean[1, 4:8, 4:8] = True, True
        given = clean.copy()
        given[0, 5 : 5 + 3 * (k == 1), 5:9, ...] = False
        given[1, 5 : 5 + 2 * (k == 2), 5:7, ...] = False
        if len(shape) == 3:  # the slice with the largest error
            given[0, 9:12, 9:12, 3] = given[1, 4, 4, 3] = False
        case = {"id": f"case{k}", "image": write(folder / f"{k}.nii.gz", rng.random(shape))}
        keys = {"label": given} | ({"reference_label": clean} if known else {})
        for key, masks in keys.items():
            case[key] = [write(folder / f"{k}_{key}_{n}.nii.gz", m) for n, m in zip(CLASSES, masks, strict=True)]
        cases.append(case)
    return LabelStore(folder / "labels", cases, class_names=CLASSES)


@pytest.mark.parametrize("shape", [(16, 18), (16, 18, 6)], ids=["2d", "3d"])
def test_rounds_are_written_with_the_worst_case_of_each_class(tmp_path, shape):
    store = make_store(tmp_path, shape)
    with store.write_round(1, {}, previous=0) as writer:
        for case in store.cases:
            writer.write(case["id"], store.read_clean(case["id"]))
    write_rounds(store, [{"stop_reason": "it is done"}], tmp_path / "out")
    content, arrays = read_written(tmp_path / "out", "rounds")
    assert content["cases"] == ["case1", "case2"]
    assert (content["kept_round"], content["stop_reason"]) == (1, "it is done")
    assert content["label_dice"][1] == [1, 1]
    assert max(content["label_dice"][0]) < 1
    plane = (..., 3) if len(shape) == 3 else ...
    for k, name in enumerate(CLASSES):
        case = content["cases"][k]
        for key, number in (("round-0", 0), ("round-1", 1)):
            assert np.array_equal(arrays[f"{name}/{key}"], store.read(case, number)[k][plane])
        assert np.array_equal(arrays[f"{name}/clean"], store.read_clean(case)[k][plane])
        image = nib.load(store.case(case)["image"]).get_fdata()
        assert arrays[f"{name}/image"] == pytest.approx(image[plane])


def test_rounds_without_clean_labels_are_refused(tmp_path):
    with pytest.raises(ValueError, match="The clean labels of the store must be known"):
        write_rounds(make_store(tmp_path, (16, 18), known=False), [{"stop_reason": ""}], tmp_path / "out")


@pytest.mark.parametrize(("shape", "index"), [((16, 18), (5, 6)), ((16, 18, 6), (5, 6, 2))], ids=["2d", "3d"])
def test_confidence_is_written_with_the_slice_of_the_voxel(tmp_path, shape, index):
    store = make_store(tmp_path, shape)
    handler = ConfidenceHandler(
        store, DataLoader(Dataset(store.cases)), voxel=WatchedVoxel("case2", "small", index), band=3.0
    )
    handler.history.append({"epoch": 1, "right": [0.5, float("nan")], "wrong": [0.1, 0.2], "voxel": 0.3})
    write_confidence(handler, tmp_path / "out")
    content, arrays = read_written(tmp_path / "out", "confidence")
    assert json.loads(json.dumps(content)) == {
        "classes": CLASSES,
        "band": 3.0,
        "voxel": {"case": "case2", "class_name": "small", "given": False, "clean": True, "index": list(index)},
        "history": [{"epoch": 1, "right": [0.5, None], "wrong": [0.1, 0.2], "voxel": 0.3}],
    }
    plane = (..., 2) if len(shape) == 3 else ...
    assert np.array_equal(arrays["given"], store.read("case2", 0)[1][plane])
    assert np.array_equal(arrays["clean"], store.read_clean("case2")[1][plane])
    assert arrays["image"].shape == (16, 18)


def test_a_handler_that_has_recorded_nothing_is_refused(tmp_path):
    store = make_store(tmp_path, (16, 18))
    with pytest.raises(ValueError, match="handler must have recorded an epoch at least"):
        write_confidence(ConfidenceHandler(store, DataLoader(Dataset(store.cases))), tmp_path / "out")
