import json
import os
import shutil
import signal
import stat
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from monai_sc.files.durable import claim_folder
from monai_sc.store import LabelStore
from monai_sc.store.contents import read_contents
from monai_sc.store.usable_cases import UsableCases


def make_cases(folder, number=2, classes=1):
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for k in range(number):
        array = np.zeros((8, 9), np.uint8)
        array[2 : 5 + k, 3:6] = 1
        files = []
        for c in range(classes):
            files.append(folder / f"case {k} {c}.nii.gz")
            nib.save(nib.Nifti1Image(array, np.eye(4)), files[-1])
        cases.append({"id": f"case {k}", "image": files[0], "label": files[0] if classes == 1 else files})
    return cases


def write_round(store, number):
    with store.write_round(number, {"why": "test"}) as writer:
        for case in store.cases:
            writer.write(case["id"], ~store.read(case["id"], 0))


def as_text(case):
    return {key: [str(v) for v in value] if isinstance(value, list) else str(value) for key, value in case.items()}


def test_store_is_opened_without_its_cases(tmp_path):
    cases = UsableCases(make_cases(tmp_path / "in", classes=2), skipped={"case 9": "It is damaged."})
    made = LabelStore(tmp_path / "store", cases, class_names=["a", "b"], config_version="0.3.0")
    write_round(made, 1)
    store = LabelStore.open(tmp_path / "store")
    assert store.cases == [as_text(case) for case in cases]
    assert (store.class_names, store.values, store.config_version) == (["a", "b"], None, "0.3.0")
    assert store.skipped == {"case 9": "It is damaged."}
    assert (store.rounds, store.current) == ([0, 1], 1)
    np.testing.assert_array_equal(store.read("case 1"), ~store.read("case 1", 0))
    store.restore(0)
    assert made.current == 0


def test_label_maps_stay_label_maps(tmp_path):
    LabelStore(tmp_path / "store", make_cases(tmp_path / "in"), class_names=["whole"], values=np.array([1]))
    assert LabelStore.open(tmp_path / "store").values == [1]


def test_store_of_a_run_is_found_in_its_output_folder(tmp_path):
    LabelStore(tmp_path / "run" / "labels", make_cases(tmp_path / "in"))
    assert LabelStore.open(tmp_path / "run").root == tmp_path / "run" / "labels"


def test_paths_are_absolute_and_links_stay_links(tmp_path, monkeypatch):
    (case, _) = make_cases(tmp_path / "in")
    (tmp_path / "link.nii.gz").symlink_to(case["label"])
    monkeypatch.chdir(tmp_path)
    LabelStore("store", [{**case, "label": Path("link.nii.gz")}])
    monkeypatch.chdir("/")
    (opened,) = LabelStore.open(tmp_path / "store").cases
    assert opened["label"] == str(tmp_path / "link.nii.gz")


def test_what_json_cannot_hold_is_left_out(tmp_path):
    others = {"reader": "B", "foreground": np.uint8(1), "weight": float("nan"), "map": np.ones(2), "site": (1, 2)}
    (case, _) = make_cases(tmp_path / "in")
    LabelStore(tmp_path / "store", [{**case, **others}])
    (opened,) = LabelStore.open(tmp_path / "store").cases
    assert opened == {**as_text(case), "reader": "B", "foreground": 1, "site": [1, 2]}
    assert type(opened["foreground"]) is int


def test_what_the_store_is_follows_its_cases(tmp_path):
    cases = make_cases(tmp_path / "in")
    LabelStore(tmp_path / "store", cases)
    file = tmp_path / "store" / "store.json"
    before = file.stat()
    LabelStore(tmp_path / "store", cases)
    LabelStore.open(tmp_path / "store")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    shutil.move(tmp_path / "in", tmp_path / "moved")
    moved = [{**c, "image": tmp_path / "moved" / c["image"].name} for c in cases]
    moved = [{**c, "label": c["image"]} for c in moved]
    LabelStore(tmp_path / "store", moved)
    assert LabelStore.open(tmp_path / "store").cases == [as_text(case) for case in moved]


def test_another_process_keeps_what_it_wrote_until_it_ends(tmp_path):
    cases = make_cases(tmp_path / "in")
    LabelStore(tmp_path / "store", cases)
    before = (tmp_path / "store" / "store.json").read_bytes()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        claim_folder(tmp_path / "store")
        os.write(write, b"x")
        signal.pause()
    os.read(read, 1)
    try:
        LabelStore(tmp_path / "store", cases, config_version="2")
        assert (tmp_path / "store" / "store.json").read_bytes() == before
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    write_round(LabelStore(tmp_path / "store", cases, config_version="2"), 1)
    assert LabelStore.open(tmp_path / "store").config_version == "2"


def test_store_of_an_older_version_gets_it_with_the_next_round(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    (store.root / "store.json").unlink()
    write_round(store, 1)
    assert LabelStore.open(store.root).rounds == [0, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_store_that_nobody_may_write_to_is_opened(tmp_path):
    cases = make_cases(tmp_path / "in")
    store = LabelStore(tmp_path / "store", cases)
    (store.root / "store.json").unlink()
    store.root.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert LabelStore(store.root, cases).rounds == [0]
    finally:
        store.root.chmod(stat.S_IRWXU)


def test_folder_that_cannot_be_written_to_is_no_reason_to_fail(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("monai_sc.store.contents.replace_synced", refuse)
    assert LabelStore(tmp_path / "store", make_cases(tmp_path / "in")).rounds == [0]


def test_folder_without_a_store_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must be a label store, or a folder with one as labels, but has no "):
        LabelStore.open(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"absent is not a folder\.$"):
        LabelStore.open(tmp_path / "absent")


DAMAGED = {
    "empty": "",
    "torn": '{"cases": [',
    "list": "[]",
    "no-cases": '{"cases": [], "class_names": ["a"], "values": null, "config_version": null, "skipped": {}}',
    "no-label": '{"cases": [{"id": "a", "image": "b"}], "class_names": ["a"], "values": null, "config_version": null, '
    '"skipped": {}}',
    "text-for-cases": '{"cases": "a", "class_names": ["a"], "values": null, "config_version": null, "skipped": {}}',
    "lacks-names": '{"cases": [{"id": "a", "image": "b", "label": "c"}]}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_named(tmp_path, text):
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(ValueError, match=r"store\.json is damaged; put it back from a copy, or write it anew by "):
        LabelStore.open(tmp_path)


def test_file_that_is_gone_is_named(tmp_path):
    cases = make_cases(tmp_path / "in")
    LabelStore(tmp_path / "store", cases)
    cases[1]["label"].unlink()
    with pytest.raises(
        FileNotFoundError, match=r"case 1 0\.nii\.gz of case 'case 1' does not exist or is not a file\.$"
    ):
        LabelStore.open(tmp_path / "store")


def test_file_is_json_that_others_can_read(tmp_path):
    LabelStore(tmp_path / "store", make_cases(tmp_path / "in", 1))
    file = str(tmp_path / "in" / "case 0 0.nii.gz")
    text = (tmp_path / "store" / "store.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1) + "\n"  # and people
    assert json.loads(text) == {
        "cases": [{"id": "case 0", "image": file, "label": file}],
        "class_names": ["class_0"],
        "values": None,
        "config_version": None,
        "skipped": {},
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("class_names", "a"),
        ("values", 1),
        ("config_version", 2),
        ("skipped", []),
        ("class_names", None),
        ("cases", {"a": 1}),
    ],
)
def test_entry_of_another_type_is_damage(tmp_path, key, value):
    LabelStore(tmp_path / "store", make_cases(tmp_path / "in", 1))
    file = tmp_path / "store" / "store.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(ValueError, match=r"store\.json is damaged") as caught:
        read_contents(tmp_path / "store")
    assert str(caught.value.__cause__) == key


def test_contents_are_the_arguments_of_the_store(tmp_path):
    LabelStore(tmp_path / "store", make_cases(tmp_path / "in", 1), class_names=["x"], values=[1], config_version="2")
    contents = read_contents(tmp_path / "store")
    assert set(contents) == {"cases", "class_names", "values", "config_version", "skipped"}
    assert (contents["class_names"], contents["values"], contents["config_version"]) == (["x"], [1], "2")
