"""Whatever a case, a class or a file is called: what is written lies in the folder that was named for it."""

import json
import re

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from monai_sc.benchmark.grid import find_method
from monai_sc.benchmark.methods import CaseMemory
from monai_sc.datasets import phantom_cases, prepare
from monai_sc.datasets.isic2017 import Isic2017Layout
from monai_sc.datasets.layout import SourceCase
from monai_sc.datasets.prepare import LAYOUTS
from monai_sc.files import check_cases
from monai_sc.folders import audit_folder, correct_folder, simulate_folder
from monai_sc.reports import write_audit
from monai_sc.reports.page import open_source, write_page
from monai_sc.store import LabelStore, export_datalist, export_folder, export_monai_label, export_nnunet, usable_cases
from monai_sc.transforms import RandTranslateLabel
from tests.contents import contents

REFUSED = {
    "up": "../x",
    "up-from-within": "a/../../b",
    "root": "/abs",
    "backslash": "a\\b",
    "windows-up": "..\\x",
    "drive": "C:x",
    "parent": "..",
    "here": ".",
    "empty": "",
    "nul": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b[2Jx",
    "delete": "x\x7f",
    "no-character": "x\udc80",
    "long": "x" * 300,
    "number": 7,
}
KEPT = ["-rf", "%2e%2e%2fx", "~", "$HOME", "*", "`x`", "ab:c", "x..", "<img src=x onerror=alert(1)>", "=1+1", "a;b|c&d"]
refused = pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
UNFIT = "must be a string that can name a file: without slashes and control characters, "


def ball(radius, shape=(12, 14, 10)):
    centre = np.reshape(np.array(shape) / 2, (3, 1, 1, 1))
    return np.sqrt(((np.indices(shape) - centre) ** 2).sum(axis=0)) - radius


def write(file, array):
    file.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.diag([1.0, 1, 2, 1])), file)
    return str(file)


@pytest.fixture
def make_cases(tmp_path):
    """Return a function that makes a case of one file for each id."""

    def make(*ids):
        file = write(tmp_path / "given" / "0.nii.gz", (ball(3) <= 0).astype(np.uint8))
        return [{"id": name, "image": file, "label": file} for name in ids]

    return make


@refused
def test_unfit_id_is_refused(make_cases, tmp_path, name):
    cases = make_cases(name)
    before = contents(tmp_path)
    for refuses in (check_cases, usable_cases, lambda cases: LabelStore(tmp_path / "store", cases)):
        with pytest.raises(ValueError, match=rf"^The id of a case {UNFIT}[^\n]*, got [^\n]*\.$"):
            refuses(cases)
    assert contents(tmp_path) == before
    assert not (tmp_path / "store").exists()


@refused
def test_unfit_id_gets_no_map(tmp_path, name):
    one = MetaTensor(torch.ones(1, 2, 2), affine=torch.eye(4))
    memory = CaseMemory(tmp_path / "maps")
    with pytest.raises(ValueError, match=rf"^The id of a case {UNFIT}"):
        memory.replace([(name, one)])
    with pytest.raises(ValueError, match=rf"^The id of a case {UNFIT}"):
        memory.read(name)
    assert not contents(tmp_path)


@refused
def test_unfit_class_name_is_refused(make_cases, tmp_path, name):
    with pytest.raises(ValueError, match=rf"^A class name {UNFIT}"):
        LabelStore(tmp_path / "store", make_cases("a"), class_names=[name])
    assert not (tmp_path / "store").exists()


@refused
def test_unfit_id_of_a_data_set_is_refused(tmp_path, monkeypatch, name):
    class HostileLayout(Isic2017Layout):
        def cases(self):
            return [SourceCase(name, {}, str(name), "train")]

        def missing(self, cases):
            return []

    monkeypatch.setitem(LAYOUTS, "isic2017", HostileLayout)
    (tmp_path / "source").mkdir()
    with pytest.raises(ValueError, match=rf"^The id of a case {UNFIT}"):
        prepare("isic2017", tmp_path / "source", tmp_path / "out", progress=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


@refused
def test_unfit_split_of_the_phantom_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=rf"^split {UNFIT}"):
        phantom_cases(tmp_path / "data", name, 1, size=(48, 48))
    assert not list(tmp_path.iterdir())


@refused
def test_record_of_a_store_with_an_unfit_id_is_damaged(make_cases, tmp_path, name):
    store = LabelStore(tmp_path / "store", make_cases("a"))
    record = json.loads((store.root / "store.json").read_text())
    record["cases"][0]["id"] = name
    (store.root / "store.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"^.*store\.json is damaged; "):
        LabelStore.open(store.root)


def test_method_whose_folder_would_be_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "...json").write_text('{"run": []}')
    with pytest.raises(ValueError, match=rf"^The name of a method {UNFIT}.* got '\.\.'\.$"):
        find_method("...json")


def test_odd_names_stay_in_the_folders_of_a_store(make_cases, tmp_path):
    cases = make_cases(*KEPT)
    store = LabelStore(tmp_path / "out" / "store", cases, class_names=["<b>$x"])
    with store.write_round(1, {}) as writer:
        for name in KEPT:
            writer.write(name, ~store.read(name, 0))
    before = contents(tmp_path / "given")
    export_folder(store, tmp_path / "out" / "plain")
    export_nnunet(store, tmp_path / "out" / "Dataset001_x", channel_names=["CT"])
    export_monai_label(store, tmp_path / "out" / "studies")
    export_datalist(store, tmp_path / "out" / "list.json")
    assert contents(tmp_path / "given") == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["given", "out"]
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == sorted(
        ["Dataset001_x", "list.json", "plain", "store", "studies"]
    )
    names = {f"{name}.nii.gz" for name in KEPT}
    assert {file.name for file in (tmp_path / "out" / "plain").rglob("*")} == names
    assert {file.name for file in (tmp_path / "out" / "Dataset001_x" / "labelsTr").iterdir()} == names
    assert {file.name for file in (tmp_path / "out" / "studies" / "labels" / "final").iterdir()} == names
    assert {folder.name for folder in (store.root / "round-001").iterdir() if folder.is_dir()} == set(KEPT)


FILES = [f"{name}.nii.gz" for name in [*KEPT, "C:x", "a\\b", "..\\..\\x", "a\nb", "..x"] if not name.startswith(".")]


@pytest.fixture
def folders(tmp_path):
    """Folders of labels, clean labels and predictions whose files have odd names."""
    for k, name in enumerate(FILES):
        write(tmp_path / "in" / "labels" / name, (ball(3.5) <= 0).astype(np.uint8))
        write(tmp_path / "in" / "predictions" / name, -ball(3.5).astype(np.float32))
        if k % 2:
            write(tmp_path / "in" / "clean" / name, (ball(2.5) <= 0).astype(np.uint8))
    return tmp_path / "in"


def test_odd_file_names_stay_in_the_folder_of_a_command(folders, tmp_path):
    before = contents(folders)
    out = tmp_path / "out"
    labels, clean = folders / "labels", folders / "clean"
    simulate_folder(labels, out / "noisy", lambda classes: RandTranslateLabel(1.0, distance=(1, 1)), progress=False)
    correct_folder(labels, clean, out / "corrected", predictions=folders / "predictions", kind="logits", progress=False)
    write_audit(audit_folder(labels, clean, progress=False), labels, clean, out / "audit")
    for folder in ("corrected", "audit"):
        write_page(open_source(out / folder), out / folder, progress=False)
    assert contents(folders) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "out"]
    assert sorted(entry.name for entry in out.iterdir()) == ["audit", "corrected", "noisy"]
    for folder in ("noisy", "corrected"):
        assert {file.name for file in (out / folder).glob("*.nii.gz")} == set(FILES)
    page = (out / "corrected" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<img|onerror=a", page.replace("&lt;img src=x onerror=alert(1)&gt;", ""))
