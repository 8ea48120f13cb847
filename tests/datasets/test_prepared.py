import json

import pytest

from monai_sc.datasets import prepared_cases

ROWS = {
    "train": [
        {"id": "a", "group": "a", "image": "images/a.png", "label": ["l/a.png", "h/a.png"], "noisy": ["n/a.png"] * 2}
    ],
    "clean": [{"id": "b", "group": "b", "image": "images/b.png", "label": ["l/b.png", "h/b.png"]}],
    "test": [],
}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes what a prepared folder says of itself."""

    def to_file(content=None, **changes):
        content = (
            {"name": "jsrt", "classes": ["lung", "heart"], "foreground": 255, "cases": ROWS, **changes}
            if content is None
            else content
        )
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        (tmp_path / "prepared.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return to_file


def test_case_has_the_files_of_the_folder(write):
    root = write()
    assert prepared_cases(root, "clean") == [
        {
            "id": "b",
            "image": str(root / "images/b.png"),
            "label": [str(root / "l/b.png"), str(root / "h/b.png")],
            "foreground": 255,
        }
    ]


def test_noisy_files_are_the_label_and_the_others_are_clean(write):
    root = write()
    (case,) = prepared_cases(root, "train", noisy=True)
    assert case["label"] == [str(root / "n/a.png")] * 2
    assert case["reference_label"] == prepared_cases(root, "train")[0]["label"]
    assert "reference_label" not in prepared_cases(root, "train")[0]


def test_foreground_of_1_is_not_stated(write):
    assert "foreground" not in prepared_cases(write(foreground=1), "train")[0]


def test_paths_are_absolute_from_the_working_folder(write, monkeypatch):
    root = write()
    monkeypatch.chdir(root.parent)
    assert prepared_cases(root.name, "train") == prepared_cases(str(root), "train") == prepared_cases(root, "train")


def test_folder_of_other_classes_is_refused(write):
    assert prepared_cases(write(), "train", class_names=("lung", "heart")) == prepared_cases(write(), "train")
    with pytest.raises(ValueError, match=r"must hold masks of lesion, got lung, heart of jsrt; correct dataset_dir\.$"):
        prepared_cases(write(), "train", class_names=["lesion"])


def test_empty_split_is_refused(write):
    with pytest.raises(
        ValueError, match=r"has no case in its split 'test', having 2 in all; prepare more cases of the"
    ):
        prepared_cases(write(), "test")


def test_split_without_noisy_labels_is_refused(write):
    with pytest.raises(ValueError, match=r"has no noisy labels of its own for the split 'clean'; choose another noise"):
        prepared_cases(write(), "clean", noisy=True)


def test_other_split_is_refused(write):
    with pytest.raises(ValueError, match=r"split must be one of 'train', 'clean', 'test', got 'val'"):
        prepared_cases(write(), "val")


@pytest.mark.parametrize("kind", ["empty", "absent", "file", "unfinished"])
def test_folder_that_is_not_prepared_is_refused(tmp_path, kind):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "preparation.json").write_text("{}")
    wording = rf"{kind} is not a prepared data set: it has no prepared\.json; python -m monai_sc prepare makes one of"
    with pytest.raises(ValueError, match=wording):
        prepared_cases(tmp_path / kind, "train")


def with_row(**changes):
    row = {**ROWS["train"][0], **changes}
    return {
        "classes": ["lung", "heart"],
        "foreground": 1,
        "cases": {**ROWS, "train": [{k: v for k, v in row.items() if v != "absent"}]},
    }


DAMAGED = [
    pytest.param("", id="empty"),
    pytest.param('{"cases": ', id="cut-off"),
    pytest.param(b"\xff\xfe\x00", id="binary"),
    pytest.param("[]", id="list"),
    pytest.param("3", id="number"),
    pytest.param("null", id="null"),
    pytest.param({"cases": ROWS}, id="no-foreground"),
    pytest.param({"cases": ROWS, "foreground": 0}, id="foreground-0"),
    pytest.param({"cases": ROWS, "foreground": "255"}, id="foreground-text"),
    pytest.param({"foreground": 1}, id="no-cases"),
    pytest.param({"foreground": 1, "cases": {"train": [], "test": []}}, id="no-clean"),
    pytest.param({"foreground": 1, "cases": "train clean test"}, id="text"),
    pytest.param({"foreground": 1, "cases": dict.fromkeys(ROWS, "abc")}, id="text-as-rows"),
    pytest.param({"foreground": 1, "cases": {key: {"a": 1} for key in ROWS}}, id="dictionary-as-rows"),
    pytest.param(with_row(id="absent"), id="no-id"),
    pytest.param(with_row(image="absent"), id="no-image"),
    pytest.param(with_row(image=["a.png"]), id="image-list"),
    pytest.param(with_row(label="absent"), id="no-label"),
    pytest.param(with_row(label="a.png"), id="label-text"),
    pytest.param(with_row(label=[]), id="no-label-file"),
    pytest.param(with_row(noisy=[3]), id="noisy-number"),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_file_is_refused(write, content):
    root = write(content)
    with pytest.raises(
        ValueError, match=rf"^{root}/prepared\.json is damaged; delete its folder, and prepare the data"
    ):
        prepared_cases(root, "train")
