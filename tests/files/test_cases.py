import nibabel as nib
import numpy as np
import pytest

from monai_sc.datasets import phantom_cases, phantom_image
from monai_sc.files import check_cases
from monai_sc.functional import case_seed
from monai_sc.transforms import LoadLabel


@pytest.fixture
def case(tmp_path):
    for name in ("image", "label", "clean"):
        (tmp_path / name).write_bytes(b"")
    return {"id": "a", "image": str(tmp_path / "image"), "label": str(tmp_path / "label")}


def test_sound_list_passes(case, tmp_path):
    check_cases([case, case | {"id": "b ü", "reference_label": str(tmp_path / "clean")}])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"id": "../up"},
            ValueError,
            r"can name a file: without slashes and .*, got '\.\./up'\.",
        ),
        ({"id": ".hidden"}, ValueError, r"not starting with a dot or .*got '\.hidden'"),
        ({"id": ""}, ValueError, r"must be a string that can name a file.*got ''"),
        ({"id": "a\\b"}, ValueError, r"without slashes"),
        ({"image": "missing.png"}, FileNotFoundError, r"missing\.png of case 'a' does not exist or is not a file\."),
        ({"label": ["gone.png"]}, FileNotFoundError, r"gone\.png of case 'a' does not exist or is not a file\."),
        (
            {"reference_label": "gone.png"},
            FileNotFoundError,
            r"gone\.png of case 'a' does not exist or is not a file\.",
        ),
        ({"id": 3}, ValueError, r"must be a string that can name a file.*got 3\."),
        ({"id": "x" * 201}, ValueError, r"of at most 200 bytes"),
        ({"id": "round.json"}, ValueError, r"must not be one of \('round\.json', 'manifest\.jsonl'\)"),
        ({"label": []}, TypeError, r"'label' of case 'a' must be a file or a list of files, got \[\]\."),
        ({"image": None}, TypeError, r"'image' of case 'a' must be a file or a list of files, got None\."),
        ({"label": ["a", "b\0c"]}, TypeError, r"'label' of case 'a' must be a file or a list of files, got \['a', 'b"),
        ({"foreground": [1]}, TypeError, r"'foreground' of case 'a' must be a number, got \[1\]\."),
    ],
    ids=[
        "path-trick",
        "hidden",
        "empty-id",
        "backslash",
        "image",
        "label",
        "clean-label",
        "number",
        "long",
        "reserved",
        "no-file",
        "none",
        "nul",
        "foreground",
    ],
)
def test_unsound_case_is_refused(case, change, error, message):
    with pytest.raises(error, match=message):
        check_cases([case | change])


def test_unsound_list_is_refused(case):
    with pytest.raises(ValueError, match=r"cases must hold at least one case, got none\."):
        check_cases([])
    with pytest.raises(ValueError, match=r"ids of cases must be unique, got 'a' twice or more\."):
        check_cases([case, case])
    with pytest.raises(ValueError, match=r"ids of cases must be unique"):
        check_cases([case, case | {"id": "A"}])
    with pytest.raises(ValueError, match=r"same number of label files, one per class, got \[1, 2\]\."):
        check_cases([case | {"reference_label": [case["label"]] * 2}])
    with pytest.raises(TypeError, match=r"cases must be a list of dictionaries, got 'abc'"):
        check_cases(["abc"])
    with pytest.raises(KeyError, match=r"'a' has no 'label'"):
        check_cases([{"id": "a", "image": case["image"]}])
    with pytest.raises(ValueError, match=r"same number of label files, one per class, got \[1, 2\]\."):
        check_cases([case, case | {"id": "b", "label": [case["label"]] * 2}])


@pytest.mark.parametrize("size", [(96, 80), (48, 56, 50)], ids=["2d", "3d"])
def test_phantom_depends_on_its_seed_alone(size):
    image, masks = phantom_image(size, 5)
    again, same = phantom_image(size, 5)
    other, _ = phantom_image(size, 6)
    assert image.shape == size
    assert masks.shape == (2, *size)
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(masks, same)
    assert not np.array_equal(image, other)
    for mask in masks:
        assert 0.003 < mask.mean() < 0.5
        assert image[mask].mean() > image[~masks.any(axis=0)].mean() + 0.2


def test_phantom_cases_are_written_once(tmp_path):
    cases = phantom_cases(tmp_path, "train", 3, size=(48, 48), seed=1)
    times = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nii.gz")}
    assert len(times) == 9
    assert phantom_cases(tmp_path, "train", 3, size=(48, 48), seed=1) == cases
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nii.gz")} == times
    check_cases(cases)
    _, masks = phantom_image((48, 48), case_seed(1, "train_000"))
    np.testing.assert_array_equal(LoadLabel()(cases[0]["label"]).numpy(), masks)
    assert nib.load(cases[0]["image"]).header.get_zooms()[:2] == pytest.approx((0.8, 0.8))
    test = phantom_cases(tmp_path, "test", 1, size=(48, 48), seed=1)
    assert not np.array_equal(nib.load(test[0]["image"]).get_fdata(), nib.load(cases[0]["image"]).get_fdata())


def test_phantom_cases_may_be_written_by_two_processes_at_once(tmp_path, monkeypatch):
    save, others = nib.save, []

    def save_while_another_writes(image, file):
        save(image, file)
        if not others:
            others.append(None)
            others[0] = phantom_cases(tmp_path, "train", 1, size=(48, 48))

    monkeypatch.setattr(nib, "save", save_while_another_writes)
    assert phantom_cases(tmp_path, "train", 1, size=(48, 48)) == others[0]
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 3


def test_phantom_errors():
    with pytest.raises(ValueError, match=r"size must be 2 or 3 axes of at least 48 voxels, got \(20, 20\)\."):
        phantom_image((20, 20), 0)
    with pytest.raises(ValueError, match=r"num_cases must be at least 1, got 0\."):
        phantom_cases("unused", "train", 0)
