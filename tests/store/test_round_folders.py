import json
import os

import pytest

from monai_sc.files.durable import sha256
from monai_sc.store import rounds as round_folders
from monai_sc.store.rounds import RoundFolders
from tests.files.test_durable import claim_elsewhere

# Python 3.12 warns of threads; the children here use none of their parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "store").mkdir()
    return RoundFolders(tmp_path / "store")


def make_round(folders, number, *sources):
    """Write a round with one case per source, whose label says the number of the round."""
    folder = folders.root / f"round-{number:03d}"
    folder.mkdir()
    lines = []
    for k, source in enumerate(sources):
        file = folder / f"{k}.txt"
        file.write_text(f"label {number}")
        state = source.stat()
        noted = {"path": str(source), "sha256": sha256(source), "size": state.st_size, "mtime_ns": state.st_mtime_ns}
        line = {"case": str(k), "files": [file.name], "sha256": [sha256(file)], "sources": [noted]}
        lines.append(line | {"voxels_changed": [0], "dice_to_previous": [1.0]})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "round.json").write_text(json.dumps({"round": number, "classes": ["disc"]}))


@pytest.fixture
def sources(tmp_path):
    files = [tmp_path / f"source{k}" for k in range(3)]
    for file in files:
        file.write_text("given")
    return files


def test_empty_folder_holds_what_was_given(folders):
    assert (folders.rounds, folders.current, folders.is_simulated, folders.changed_sources()) == ([0], 0, False, [])
    folders.refuse_changed_sources()


def test_rounds_are_those_that_are_whole(folders):
    for number in (7, 10, 1000):
        make_round(folders, number)
    (folders.root / "round-003").mkdir()  # without a record
    (folders.root / "round-004").write_text("a file")
    assert folders.rounds == [0, 7, 10, 1000]
    assert folders.record(1000) == {"round": 1000, "classes": ["disc"]}
    for number in (1, 3):
        with pytest.raises(
            ValueError, match=rf"^number must be one of the rounds \[0, 7, 10, 1000\] in .*, got {number}"
        ):
            folders.record(number)


def test_round_0_is_simulated_where_it_has_a_folder(folders):
    make_round(folders, 0)
    assert folders.is_simulated
    assert folders.rounds == [0]


def test_round_in_force_is_the_one_that_was_restored(folders):
    make_round(folders, 1)
    folders.restore(1)
    assert folders.current == 1
    assert (folders.root / "current.json").read_text() == '{"round": 1}\n'
    with pytest.raises(ValueError, match="got 2"):
        folders.restore(2)
    assert folders.current == 1


@pytest.mark.parametrize("text", ['{"round": "1"}', "{}", '{"round": 1.5}'])
def test_round_in_force_that_is_no_number_is_damage(folders, text):
    (folders.root / "current.json").write_text(text)
    with pytest.raises(ValueError, match=r"current\.json is damaged; delete it, and choose a round with restore\.$"):
        _ = folders.current


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_damaged_record_and_manifest_are_named(folders, sources, text):
    make_round(folders, 1, *sources)
    for name, read in (("round.json", folders.record), ("manifest.jsonl", folders.manifest)):
        if text == "[]" and name == "manifest.jsonl":
            continue
        file = folders.root / "round-001" / name
        whole = file.read_bytes()
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(
            ValueError, match=rf"{name} is damaged; put it back from a copy, or choose another folder\.$"
        ):
            read(1)
        file.write_bytes(whole)


def test_manifest_has_one_line_per_case(folders, sources):
    make_round(folders, 1, *sources)
    assert [line["case"] for line in folders.manifest(1)] == ["0", "1", "2"]
    make_round(folders, 2, sources[0])
    assert [line["case"] for line in folders.manifest(2)] == ["0"]


def test_source_that_changed_since_the_last_round_is_found(folders, sources):
    first, second, third = sources
    make_round(folders, 1, *sources)
    first.write_text("other before the last round")
    assert folders.changed_sources() == [first]
    make_round(folders, 2, *sources)
    assert folders.changed_sources() == []
    # With its size and its time, a file is taken for unchanged.
    state = second.stat()
    second.write_text("other")
    os.utime(second, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert folders.changed_sources() == []
    os.utime(second, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert folders.changed_sources() == [second]
    state = third.stat()
    third.write_text("longer than it was")
    os.utime(third, ns=(state.st_atime_ns, state.st_mtime_ns))
    first.unlink()
    assert folders.changed_sources() == [first, second, third]
    message = (
        r"when labels were made from them, but .*source{} {}, and {} more; put the old ones back, or choose another"
    )
    with pytest.raises(ValueError, match=message.format(0, "is gone", 2)):
        folders.refuse_changed_sources()
    make_round(folders, 3, second, third)
    second.write_text("once more")
    with pytest.raises(ValueError, match=message.format(1, "has changed", 0)):
        folders.refuse_changed_sources()


def test_label_that_changed_is_found(folders, sources):
    make_round(folders, 1, *sources)
    assert folders.changed_labels(1) == []
    first, second = (folders.root / "round-001" / f"{k}.txt" for k in (0, 2))
    first.write_text("label x")
    second.unlink()
    assert folders.changed_labels(1) == [first, second]


def test_discarded_round_leaves_the_others(folders):
    for number in (1, 2, 3):
        make_round(folders, number)
    folders.restore(1)
    folders.discard(3)
    assert (folders.rounds, folders.current) == ([0, 1, 2], 1)
    folders.restore(2)
    folders.discard(2)
    assert (folders.rounds, folders.current) == ([0, 1], 1)
    assert {entry.name for entry in folders.root.iterdir()} == {"round-001", "current.json", ".lock"}
    for number, message in ((0, r"at least 1, got 0: round 0 is the labels that were given\."), (2, "got 2")):
        with pytest.raises(ValueError, match=message):
            folders.discard(number)


def test_one_process_writes_at_a_time(folders, monkeypatch):
    make_round(folders, 1)
    seen = []
    replace = round_folders.replace_synced
    monkeypatch.setattr(
        round_folders, "replace_synced", lambda *args: (seen.append(claim_elsewhere(folders.root)), replace(*args))
    )
    rmtree = round_folders.shutil.rmtree
    monkeypatch.setattr(
        round_folders.shutil, "rmtree", lambda *args: (seen.append(claim_elsewhere(folders.root)), rmtree(*args))
    )
    folders.restore(1)
    folders.restore(0)
    folders.discard(1)
    assert seen == [False] * 3
    assert claim_elsewhere(folders.root)
    folders.claim()
    assert not claim_elsewhere(folders.root)
    folders.release()
    assert claim_elsewhere(folders.root)


def test_claim_ends_with_an_error(folders):
    with pytest.raises(KeyError), folders.claimed():
        raise KeyError
    assert claim_elsewhere(folders.root)


def test_other_processes_of_a_training_claim_nothing(folders, monkeypatch):
    monkeypatch.setattr(round_folders, "is_main", lambda: False)
    with folders.claimed():
        assert claim_elsewhere(folders.root)


def test_every_source_of_a_case_is_looked_at(folders, sources):
    make_round(folders, 1, *sources)
    line, *others = folders.manifest(1)
    line["sources"] += [source for other in others for source in other["sources"]]
    (folders.root / "round-001" / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    assert folders.changed_sources() == []
    sources[0].unlink()
    sources[2].write_text("other content")
    assert folders.changed_sources() == [sources[0], sources[2]]
