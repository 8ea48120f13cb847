"""What a store promises over its whole life: label maps, changed sources, exports, full disks, odd names."""

import hashlib
import json
import os
import re
import resource
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.data import load_decathlon_datalist
from PIL import Image

from monai_sc.functional.masks import dice
from monai_sc.store import LabelStore, export_datalist, export_folder
from monai_sc.transforms import RandMarkovLabelNoise

AFFINE = np.diag([-0.7, -0.7, 3.0, 1.0])
VALUES = [1, 2, 4]


def write_map(path, array, dtype=np.uint8):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array.astype(dtype), AFFINE, dtype=dtype), path)


def label_map(seed, shape=(12, 14, 6)):
    array = np.zeros(shape, dtype=np.uint8)
    for value, size in zip(VALUES, (8, 5, 2), strict=True):  # nested, as the parts of a tumour
        corner = np.random.RandomState(seed).randint(1, 3, len(shape))
        array[tuple(slice(c, c + size) for c in corner)] = value
    return array


def map_cases(folder, number=3, dtype=np.uint8):
    cases = []
    for k in range(number):
        file = folder / f"case {k}" / "seg.nii.gz"  # one base name in all folders
        write_map(file, label_map(k), dtype)
        cases.append({"id": f"case {k}", "image": str(file), "label": str(file)})
    return cases


def checksums(folder):
    return {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


def write_round(store, number, change=lambda mask: ~mask, **options):
    with store.write_round(number, {}, **options) as writer:
        for case in store.cases:
            writer.write(case["id"], change(store.read(case["id"], 0)))


def shrunk(masks):
    """Return exclusive masks without their first row of voxels."""
    masks = masks.copy()
    first = int(np.flatnonzero(masks.any(axis=(0, 2, 3)))[0])
    masks[:, first] = False
    return masks


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64])
def test_label_maps_stay_maps_with_their_values(tmp_path, dtype):
    cases = map_cases(tmp_path / "in", dtype=dtype)
    originals = checksums(tmp_path / "in")
    store = LabelStore(tmp_path / "store", cases, class_names=["edema", "core", "active"], values=VALUES)
    given = store.read("case 1")
    assert given.shape == (3, 12, 14, 6)
    for channel, value in zip(given, VALUES, strict=True):
        np.testing.assert_array_equal(channel, label_map(1) == value)
    write_round(store, 1, shrunk)
    for k, case in enumerate(store.datalist()):
        assert case["label"] == str(tmp_path / "store" / "round-001" / f"case {k}" / "label.nii.gz")
        written = nib.load(case["label"])
        expected = label_map(k)
        expected[int(np.flatnonzero(expected.any(axis=(1, 2)))[0])] = 0
        np.testing.assert_array_equal(np.asarray(written.dataobj), expected)
        assert written.get_data_dtype() == dtype
        np.testing.assert_array_equal(written.affine, nib.load(cases[k]["label"]).affine)
    np.testing.assert_array_equal(store.read("case 1"), shrunk(given))
    assert store.manifest(1)[0]["files"] == ["case 0/label.nii.gz"]
    assert len(store.manifest(1)[0]["voxels_changed"]) == 3
    assert checksums(tmp_path / "in") == originals


def test_label_maps_are_made_noisy_and_stay_maps(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    # One class at a time, so that no two classes want one voxel.
    noise = RandMarkovLabelNoise(prob=1.0, num_steps=3, expansion_prob=0.0, march_prob=0.5)
    store.simulate(noise, progress=False)
    for case in store.cases:
        noisy, clean = store.read(case["id"]), store.read_clean(case["id"])
        assert (noisy <= clean).all()
        assert (noisy != clean).any()


def test_overlapping_classes_cannot_go_into_a_map(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    with pytest.raises(ValueError, match=r"The classes of case 'case 0' must not overlap, .* use output='softmax'"):
        write_round(store, 1, np.ones_like)
    assert store.rounds == [0]


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        ([1, 2], None, r"Label file .*seg\.nii\.gz must hold 0, 1 and 2 only, got 4"),
        ([1, 2, 4], ["a", "b"], r"class_names must be one name per value \(3\), all different, got \['a', 'b'\]\."),
        ([1, 1], None, r"values"),
        ([0, 1], None, r"values"),
    ],
    ids=["unknown-value", "names", "twice", "background"],
)
def test_unfit_values_are_refused(tmp_path, values, names, message):
    with pytest.raises(ValueError, match=message):
        LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), class_names=names, values=values).read("case 0")


def test_values_need_one_file_per_case(tmp_path):
    cases = [{**case, "label": [case["label"]] * 2} for case in map_cases(tmp_path / "in")]
    with pytest.raises(ValueError, match=r"values are of labels with one file per case, got 2 files\."):
        LabelStore(tmp_path / "store", cases, values=VALUES)


def test_diff_tells_what_two_rounds_differ_in(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    write_round(store, 2, lambda masks: masks, previous=1)
    for number, (entry, case) in enumerate(zip(store.diff(0, 1), store.cases, strict=True)):
        before, after = store.read(case["id"], 0), store.read(case["id"], 1)
        assert entry["case"] == f"case {number}"
        assert entry["voxels_changed"] == [int((b != a).sum()) for b, a in zip(before, after, strict=True)]
        assert entry["dice"] == pytest.approx(dice(before, after).tolist())
    assert [entry["voxels_changed"] for entry in store.diff(0)] == [[0, 0, 0]] * 3
    with pytest.raises(ValueError, match=r"number must be one of the rounds \[0, 1, 2\]"):
        next(store.diff(0, 7))


def two_class_cases(folder):
    cases = []
    for k in range(2):
        files = []
        for name in ("lung", "heart"):
            file = folder / name / f"scan {k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((label_map(k)[..., 0] > 0).astype(np.uint8) * 255).save(file)
            files.append(str(file))
        cases.append({"id": f"scan {k}", "image": files[0], "label": files, "foreground": 255})
    return cases


def test_export_is_a_plain_folder_of_the_labels(tmp_path):
    store = LabelStore(tmp_path / "maps", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    assert export_folder(store, tmp_path / "out" / "labelsTr") == tmp_path / "out" / "labelsTr"
    assert sorted(f.name for f in (tmp_path / "out").rglob("*")) == [
        "case 0.nii.gz",
        "case 1.nii.gz",
        "case 2.nii.gz",
        "labelsTr",
    ]
    for case in store.datalist(1):
        copy = tmp_path / "out" / "labelsTr" / f"{case['id']}.nii.gz"
        assert copy.read_bytes() == Path(case["label"]).read_bytes()
    export_folder(store, tmp_path / "given", 0)
    assert (tmp_path / "given" / "case 1.nii.gz").read_bytes() == Path(store.cases[1]["label"]).read_bytes()
    several = LabelStore(tmp_path / "pictures", two_class_cases(tmp_path / "png"), class_names=["lung", "heart"])
    export_folder(several, tmp_path / "both")
    found = sorted(str(f.relative_to(tmp_path / "both")) for f in (tmp_path / "both").rglob("*.png"))
    assert found == ["heart/scan 0.png", "heart/scan 1.png", "lung/scan 0.png", "lung/scan 1.png"]


def test_export_takes_no_folder_that_holds_something(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    for out in (tmp_path / "in", store.root / "export", Path(store.cases[0]["label"])):
        with pytest.raises(ValueError, match=r"out must be a new or an empty folder outside of"):
            export_folder(store, out)
    (tmp_path / "empty").mkdir()
    export_folder(store, tmp_path / "empty")
    with pytest.raises(ValueError, match=r"number must be one of the rounds \[0\]"):
        export_folder(store, tmp_path / "new", 4)


def test_failed_export_leaves_nothing(tmp_path, monkeypatch):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    Path(store.cases[2]["label"]).unlink()
    with pytest.raises(OSError, match=r"labels/case 2\.nii\.gz could not be written: No such file or directory\."):
        export_folder(store, tmp_path / "out" / "labels")
    assert not list((tmp_path / "out").iterdir())


def test_exported_data_list_is_one_of_monai(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LabelStore("store", map_cases(Path("in")), values=VALUES)
    write_round(store, 1, shrunk)
    export_datalist(store, tmp_path / "lists" / "round1.json")
    loaded = load_decathlon_datalist(tmp_path / "lists" / "round1.json", data_list_key="training")
    for case, own in zip(loaded, store.datalist(1), strict=True):
        assert case["id"] == own["id"]
        assert case["label"] == str(tmp_path / own["label"])
        assert case["image"] == str(tmp_path / own["image"])
    with pytest.raises(ValueError, match=r"file must be a new file, got .*round1\.json, which exists\."):
        export_datalist(store, tmp_path / "lists" / "round1.json")
    store.cases[0]["weight"] = np.ones(3)
    with pytest.raises(ValueError, match=r"must be JSON, but a case is not"):
        export_datalist(store, tmp_path / "other.json")


def test_changed_and_lost_sources_are_noticed(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    assert store.changed_sources() == []
    write_round(store, 1, shrunk)
    first, second, third = (Path(case["label"]) for case in store.cases)
    assert store.changed_sources() == []
    os.utime(first)  # copied with another time
    assert store.changed_sources() == []
    write_map(second, label_map(9))
    third.unlink()
    assert store.changed_sources() == [second, third]


def test_manifest_says_where_a_round_is_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LabelStore("store", map_cases(Path("in")), values=VALUES, config_version="0.3.1")
    with store.write_round(1, {"bias": [-2.0]}) as writer:
        for case in store.cases:
            writer.write(case["id"], store.read(case["id"], 0), bias=[-2.0, None, 0.5], shift=[-2.0, 0.0, 0.0])
    entry = store.manifest(1)[1]
    assert entry["bias"] == [-2.0, None, 0.5]
    assert entry["shift"] == [-2.0, 0.0, 0.0]
    assert entry["config"] == store.record(1)["config"] == "0.3.1"
    assert entry["monai_sc"] == store.record(1)["monai_sc"]
    assert entry["sources"][0]["path"] == str(tmp_path / "in" / "case 1" / "seg.nii.gz")


def test_case_is_written_once(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)

    def twice():
        with store.write_round(1, {}) as writer:
            for _ in range(2):
                writer.write("case 0", store.read("case 0", 0))

    with pytest.raises(ValueError, match=r"A case must be written once, got 'case 0' twice\."):
        twice()


@pytest.mark.parametrize("limit", [0, 40, 100], ids=["nothing-fits", "no-label-fits", "a-part-fits"])
def test_full_disk_leaves_the_labels_as_they_were(tmp_path, limit):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    before = checksums(tmp_path)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, allowed[1]))
    try:
        with pytest.raises(OSError, match=r"Round 2 could not be written to .*store: .*Nothing was kept"):
            write_round(store, 2, lambda masks: masks, previous=1)
        if limit == 0:
            with pytest.raises(OSError, match="File too large"):
                store.restore(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert store.current == 1
    assert store.rounds == [0, 1]
    store.read("case 0", 1)
    left = {file: own for file, own in checksums(tmp_path).items() if file.name != ".current.json.partial"}
    assert left == before
    write_round(store, 2, lambda masks: masks, previous=1)
    assert store.rounds == [0, 1, 2]


def test_read_only_sources_are_no_obstacle(tmp_path):
    cases = map_cases(tmp_path / "in")
    folders = [Path(case["label"]).parent for case in cases]
    for folder in folders:
        Path(folder, "seg.nii.gz").chmod(0o444)
        folder.chmod(0o555)
    try:
        store = LabelStore(tmp_path / "store", cases, values=VALUES)
        write_round(store, 1, shrunk)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert store.rounds == [0, 1]
    assert os.access(store.datalist(1)[0]["label"], os.W_OK)


@pytest.mark.parametrize(
    "name", ["Müller, Jürgen (2)", "患者 1", "a'b\"c", "percent%20", "x" * 150, "-rf", "CON", "ends with dot."]
)
def test_odd_names_are_kept(tmp_path, name):
    file = tmp_path / "in" / f"{name}.nii.gz"
    write_map(file, label_map(0))
    case = {"id": name, "image": str(file), "label": str(file)}
    store = LabelStore(tmp_path / "a store ü", [case], class_names=["Ödem", "core", "active 2"], values=VALUES)
    write_round(store, 1, shrunk)
    assert json.loads((store.root / "round-001" / "manifest.jsonl").read_text())["case"] == name
    assert Path(store.datalist(1)[0]["label"]).parent.name == name
    np.testing.assert_array_equal(store.read(name, 1), shrunk(store.read(name, 0)))


@pytest.mark.parametrize(
    "name", ["../out", "a/b", "..", ".", "", "a\\b", "/etc/passwd", "a\x00b", ".hidden", "é" * 101]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    case = {**map_cases(tmp_path / "in", 1)[0], "id": name}
    with pytest.raises(ValueError, match=r"The id of a case must be a string that can name a file"):
        LabelStore(tmp_path / "store", [case], values=VALUES)
    assert not (tmp_path / "store").exists()


DAMAGED = {"empty": "", "torn": "{", "list": "[1]", "text": '{"round": "one"}', "gone": '{"round": 7}'}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_record_is_named(tmp_path, content):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    (store.root / "current.json").write_text(content)
    with pytest.raises(ValueError, match=r"current\.json is damaged; "):
        store.datalist()
    store.restore(1)
    assert store.current == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "{",
        lambda text: "[1]\n",
        lambda text: text.replace('"case"', '"name"', 1),
        lambda text: re.sub(r'"voxels_changed": \[.*?\]', '"voxels_changed": [1]', text, count=1),
        lambda text: re.sub(r'"size": \d+', '"size": null', text, count=1),
    ],
    ids=["empty", "torn", "list", "no-case", "fewer-classes", "no-size"],
)
def test_damaged_manifest_is_named(tmp_path, damage):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    file = store.root / "round-001" / "manifest.jsonl"
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"manifest\.jsonl is damaged; put it back from a copy"):
        LabelStore(store.root, store.cases, values=VALUES)


def test_record_without_its_classes_is_named(tmp_path):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    (store.root / "round-001" / "round.json").write_text("{}")
    with pytest.raises(ValueError, match=r"round\.json is damaged; put it back from a copy"):
        LabelStore(store.root, store.cases, values=VALUES)


def test_round_that_could_not_be_put_in_force_is_taken_back(tmp_path, monkeypatch):
    store = LabelStore(tmp_path / "store", map_cases(tmp_path / "in"), values=VALUES)
    write_round(store, 1, shrunk)
    before = checksums(store.root)

    def fill(store, number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LabelStore, "restore", fill)
        with pytest.raises(OSError, match=r"Round 2 could not be .*: No space left on device\. Nothing was"):
            write_round(store, 2, shrunk)
    assert store.rounds == [0, 1]
    assert checksums(store.root) == before
    write_round(store, 2, shrunk)


def test_files_of_the_store_are_no_sources(tmp_path):
    (case,) = map_cases(tmp_path / "in", 1)
    write_map(tmp_path / "store" / "trust.nii.gz", label_map(0) > 0)
    trusted = {**case, "trusted": str(tmp_path / "store" / "trust.nii.gz")}
    with pytest.raises(ValueError, match=r"root must be a folder without originals, but .* holds .*trust\.nii\.gz"):
        LabelStore(tmp_path / "store", [trusted], values=VALUES)


@pytest.mark.parametrize("names", [["\u00e9", "e\u0301"], ["A", "a"]], ids=["composed-otherwise", "in-another-case"])
def test_names_that_are_one_on_some_systems_are_refused(tmp_path, names):
    cases = [{**case, "id": name} for case, name in zip(map_cases(tmp_path / "in", 2), names, strict=True)]
    with pytest.raises(ValueError, match=r"The ids of cases must be unique"):
        LabelStore(tmp_path / "store", cases, values=VALUES)
    with pytest.raises(ValueError, match=r"class_names must be different names on every system"):
        LabelStore(tmp_path / "store", cases[:1], values=[1, 4], class_names=names)


@pytest.mark.parametrize("name", ["Round.JSON", "bad\udc80name"])
def test_ids_that_no_folder_may_have_are_refused(tmp_path, name):
    case = {**map_cases(tmp_path / "in", 1)[0], "id": name}
    with pytest.raises(ValueError, match=r"The id of a case must"):
        LabelStore(tmp_path / "store", [case], values=VALUES)
