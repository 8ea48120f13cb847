"""A link in the folder of a result is replaced by the result: the file that it leads to stays as it is."""

import numpy as np
import pytest

from monai_sc.benchmark.ablations.ablation import _write
from monai_sc.benchmark.cells import CellResult
from monai_sc.benchmark.methods import CaseMemory
from monai_sc.benchmark.summary import Run, summarise
from monai_sc.benchmark.tables import write_tables
from monai_sc.datasets import phantom_cases
from monai_sc.folders import audit_folder, correct_folder, simulate_folder
from monai_sc.handlers import ResumeHandler
from monai_sc.reports import write_audit, write_reference
from monai_sc.store import LabelStore, export_folder, export_monai_label
from monai_sc.transforms import RandTranslateLabel

ORIGINAL = b"drawn by an expert"


def translate(classes):
    return RandTranslateLabel(1.0, distance=(1, 1))


@pytest.fixture
def link(tmp_path):
    """Return a function that makes a link to an original, which the test must leave as it was."""
    original = tmp_path / "originals" / "label.nii.gz"
    original.parent.mkdir()
    original.write_bytes(ORIGINAL)

    def make(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(original)
        return path

    yield make
    assert original.read_bytes() == ORIGINAL
    assert [file.name for file in original.parent.iterdir()] == ["label.nii.gz"]


def test_tables_and_arrays_take_the_place_of_links(tmp_path, link):
    for name in ("results.csv", "results.json", "results.md", "results.png", "x.npz", "x.json", "reference.json"):
        link(tmp_path / "out" / name)
    runs = [Run("grow", "sc", 0, CellResult(("lung",), ("a", "b"), np.array([[0.5], [0.7]])))]
    write_tables(tmp_path / "out", runs, summarise(runs), {"bundle": "x"})
    _write(tmp_path / "out", "x", {"a": 1}, {"b": np.ones(2)})
    write_reference({"lung_test_dice": 0.5}, tmp_path / "out")
    assert not [file for file in (tmp_path / "out").iterdir() if file.is_symlink()]


def test_store_is_not_written_through_links(tmp_path, link):
    cases = phantom_cases(tmp_path / "data", "train", 1, size=(48, 48))
    link(tmp_path / "store" / "store.json")
    link(tmp_path / "store" / "current.json")
    (tmp_path / "store" / ".round-001.partial").symlink_to(tmp_path / "originals")
    with pytest.raises(ValueError, match=r"current\.json is damaged"):
        LabelStore(tmp_path / "store", cases).datalist()
    store = LabelStore(tmp_path / "store", cases)
    store.restore(0)
    with pytest.raises(OSError, match=r"could not be written"), store.write_round(1, {}) as writer:
        writer.write("train_000", store.read("train_000"))
    assert not (store.root / "store.json").is_symlink()
    assert not (store.root / "current.json").is_symlink()
    assert store.rounds == [0]


def test_folders_that_are_links_are_not_taken(tmp_path, link):
    cases = phantom_cases(tmp_path / "data", "train", 2, size=(48, 48))
    link(tmp_path / "first")
    (tmp_path / "out").symlink_to(tmp_path / "originals")
    store = LabelStore(tmp_path / "store", cases)
    for export in (export_folder, export_monai_label):
        with pytest.raises(ValueError, match=r"^out must be a new or an empty folder"):
            export(store, tmp_path / "out")
    (tmp_path / "labels").mkdir()
    for case in cases:
        (tmp_path / "labels" / f"{case['id']}.nii.gz").symlink_to(case["label"][0])
    labels = tmp_path / "data" / "train_48x48_seed0"
    simulate_folder(tmp_path / "labels", tmp_path / "noisy", translate, progress=False)  # read through, never written
    assert not any(file.is_symlink() for file in (tmp_path / "noisy").iterdir())
    with pytest.raises(ValueError, match=r"holds label\.nii\.gz, which this simulation did not write"):
        simulate_folder(labels, tmp_path / "out", translate, progress=False)
    with pytest.raises(ValueError, match=r"out must be a new or empty folder"):
        correct_folder(labels, labels, tmp_path / "out", predictions=labels, kind="logits", progress=False)


def test_audit_is_not_written_through_links(tmp_path, link):
    phantom_cases(tmp_path / "data", "train", 2, size=(48, 48))
    labels = tmp_path / "masks"
    labels.mkdir()
    for file in (tmp_path / "data").rglob("*_large.nii.gz"):
        (labels / file.name).write_bytes(file.read_bytes())
    (tmp_path / "clean").symlink_to(labels)
    link(tmp_path / "audit" / "audit.json")
    link(tmp_path / "audit" / "audit.png")
    result = audit_folder(labels, tmp_path / "clean", progress=False)
    write_audit(result, labels, tmp_path / "clean", tmp_path / "audit")
    assert not [file for file in (tmp_path / "audit").iterdir() if file.is_symlink()]


def test_checkpoint_is_not_written_through_a_link(tmp_path, link):
    link(tmp_path / "run" / ".model.pt.partial")
    handler = ResumeHandler(tmp_path / "run" / "model.pt", {})
    handler._save()
    assert not (tmp_path / "run" / "model.pt").is_symlink()


def test_only_maps_that_a_memory_wrote_are_deleted(tmp_path):
    for name in ("maps-1", "maps-7", "maps-original", "maps-"):
        (tmp_path / name).mkdir()
    CaseMemory(tmp_path).replace([])
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["maps-", "maps-1", "maps-original"]
