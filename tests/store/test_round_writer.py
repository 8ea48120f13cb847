import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from monai_sc.store import LabelStore
from monai_sc.store import rounds as round_writer
from monai_sc.store.rounds import RoundWriter
from tests.store.test_label_store import make_cases, write_nifti, write_round


@pytest.fixture
def store(tmp_path):
    return LabelStore(tmp_path / "store", make_cases(tmp_path / "in", classes=2), config_version="0.3.1")


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_processes_of_a_training_meet_before_and_after_each_step(store, monkeypatch):
    seen = []
    monkeypatch.setattr(round_writer, "gather", lambda: seen.append(names(store.root)))
    write_round(store, 1)
    new = ["store.json", ".lock", ".round-001.partial"]
    before, begun, written, done = seen
    assert not [name for name in before if "round-001" in name]
    assert set(begun) == set(new)
    assert len([name for name in written if name.endswith(".nii.gz")]) == 6
    assert "round-001" not in written
    assert {"round-001/manifest.jsonl", "round-001/round.json", "current.json"} <= set(done)
    assert [name for name in done if "partial" in name or ".manifest" in name] == []


def test_round_of_two_processes_has_one_manifest(store, tmp_path, monkeypatch):
    folder = tmp_path / "round"
    folder.mkdir()
    monkeypatch.setattr(round_writer, "world_size", lambda: 3)  # of which one has no case
    writers = [RoundWriter(store, folder, 0, {"config": "0.3.1"}) for _ in range(2)]
    for rank, own in ((1, ["case 2", "case 0"]), (0, ["case 1"])):
        monkeypatch.setattr(round_writer, "rank", lambda rank=rank: rank)
        for case_id in own:
            writers[rank].write(case_id, store.read(case_id), why=rank)
    assert sorted(file.name for file in folder.glob(".*")) == [".manifest-0.jsonl", ".manifest-1.jsonl"]
    writers[0].finish({"why": "test"})
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert [(line["case"], line["why"], line["config"]) for line in lines] == [
        ("case 0", 1, "0.3.1"),
        ("case 1", 0, "0.3.1"),
        ("case 2", 1, "0.3.1"),
    ]
    assert json.loads((folder / "round.json").read_text()) == {"why": "test"}
    assert list(folder.glob(".*")) == []


def test_case_that_two_processes_wrote_is_refused(store, tmp_path, monkeypatch):
    monkeypatch.setattr(round_writer, "world_size", lambda: 2)
    for rank in range(2):
        (tmp_path / f".manifest-{rank}.jsonl").write_text('{"case": "case 0"}\n')
    with pytest.raises(ValueError, match=r"^Every case is written once, got 'case 0' of two processes\.$"):
        RoundWriter(store, tmp_path, 0, {}).finish({})


def test_line_of_the_manifest_tells_all(store):
    with store.write_round(1, {"why": "test"}) as writer:
        for case in store.cases:
            label = store.read(case["id"])
            label[1, :2] = ~label[1, :2]
            assert writer.write(case["id"], label.astype(np.uint8), shift=[1.5, 0.0]) == [0, 28]
    line = store.manifest(1)[1]
    files = [store.root / "round-001" / name for name in line["files"]]
    sources = [Path(file) for file in store.cases[1]["label"]]
    before = store.read("case 1", 0)[1]
    after = store.read("case 1", 1)[1]
    dice = 2 * (before & after).sum() / (before.sum() + after.sum())
    assert line == {
        "case": "case 1",
        "files": ["case 1/class_0.nii.gz", "case 1/class_1.nii.gz"],
        "sha256": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
        "sources": [
            {
                "path": str(source),
                "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
                "size": source.stat().st_size,
                "mtime_ns": source.stat().st_mtime_ns,
            }
            for source in sources
        ],
        "voxels_changed": [0, 28],
        "dice_to_previous": [1.0, round(dice, 6)],
        "shift": [1.5, 0.0],
        "monai_sc": version("monai-sc"),
        "config": "0.3.1",
    }
    assert store.record(1) == {
        "why": "test",
        "round": 1,
        "previous": 0,
        "classes": ["class_0", "class_1"],
        "monai_sc": version("monai-sc"),
        "config": "0.3.1",
    }


def test_round_is_compared_with_the_one_before(store):
    write_round(store, 1)
    assert write_round(store, 2, previous=1) == [[0, 0]] * 3
    assert store.record(2)["previous"] == 1
    assert write_round(store, 3) == [[168, 168]] * 3


WRITERS = {
    "fails-in-itk": (
        lambda *_: (_ for _ in ()).throw(RuntimeError("a place in its code\n" + "no room " * 50)),
        r"The label of case 'case 0' could not be written to .*; is the disk full\? \((no room ){25}\)\.",
    ),
    "writes-a-part": (
        lambda channel, file, *_: file.write_bytes(b"\0" * 9),
        r".*/class_0\.nii\.gz could not be written whole; is the disk full\?",
    ),
}


@pytest.mark.parametrize(("write", "message"), WRITERS.values(), ids=WRITERS)
def test_disk_that_cannot_take_a_label_is_told(store, monkeypatch, write, message):
    monkeypatch.setattr(round_writer, "write_label_like", write)
    told = r"^Round 1 could not be written to .*/store: {} Nothing was kept and the current labels are "
    with pytest.raises(OSError, match=told.format(message)):
        write_round(store, 1)
    assert store.rounds == [0]
    assert [name for name in names(store.root) if "round" in name] == []


def test_reason_ends_with_one_full_stop(store):
    def fail(error):
        with store.write_round(1, {}):
            raise error

    for error, reason in (
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("Gone."), "Gone"),
    ):
        with pytest.raises(OSError, match=rf"store: {reason}\. Nothing was kept") as caught:
            fail(error)
        assert caught.value.__cause__ is error


def test_type_that_does_not_hold_a_mask_is_refused(store, monkeypatch):
    monkeypatch.setattr(round_writer, "write_label_like", lambda channel, file, *_: write_nifti(file, ~channel | True))
    with pytest.raises(
        ValueError, match=r"case 0\.nii\.gz of case 'case 0' must be of a type that holds a mask without"
    ):
        write_round(store, 1)


def test_what_the_store_is_is_kept_with_a_round_at_the_latest(store):
    for content in (None, "{}"):
        if content is None:
            (store.root / "store.json").unlink()
        else:
            (store.root / "store.json").write_text(content)
        write_round(store, len(store.rounds))
        assert LabelStore.open(store.root).config_version == "0.3.1"


def test_other_processes_only_write_their_cases(store, monkeypatch):
    partial = store.root / ".round-001.partial"
    partial.mkdir()
    monkeypatch.setattr(round_writer, "is_main", lambda: False)
    monkeypatch.setattr(round_writer, "rank", lambda: 1)
    with store.write_round(1, {}) as writer:
        writer.write("case 1", store.read("case 1"))
    assert names(partial) == [".manifest-1.jsonl", "case 1", "case 1/class_0.nii.gz", "case 1/class_1.nii.gz"]
    assert store.rounds == [0]


@pytest.mark.parametrize("cleared", [False, True])
def test_other_processes_hear_why_the_first_one_has_failed(store, monkeypatch, cleared):
    partial = store.root / ".round-001.partial"
    partial.mkdir()
    monkeypatch.setattr(round_writer, "is_main", lambda: False)
    met = []
    monkeypatch.setattr(round_writer, "gather", lambda: met.append(None))

    def fail():
        with store.write_round(1, {}):
            if cleared:
                partial.rmdir()
            raise OSError("gone")

    with pytest.raises(OSError, match="Round 1 could not be written"):
        fail()
    assert len(met) == 2 + cleared
    assert partial.exists() != cleared
