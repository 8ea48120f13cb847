import hashlib
import json
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import Lambda
from PIL import Image

from monai_sc.functional import case_seed, markov_label_noise
from monai_sc.functional.masks import dice
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabel, RandDilateErodeLabel, RandMarkovLabelNoise


def write_nifti(path, array, dtype=np.int16):
    image = nib.Nifti1Image(array.astype(dtype), np.diag([-0.7, -0.7, 3.0, 1.0]))
    image.header["descrip"] = b"resident 3"
    image.set_sform(image.affine, code=1)
    image.set_qform(image.affine, code=0)
    nib.save(image, path)


def write_png(path, array):
    Image.fromarray((array.T * 255).astype(np.uint8)).save(path)


def write_itk(path, array):
    image = itk.image_from_array(np.ascontiguousarray(array.T.astype(np.uint16)))
    image.SetSpacing([0.5 + k for k in range(array.ndim)])
    image.SetOrigin([3.0] * array.ndim)
    itk.imwrite(image, str(path))


def blob(shape, seed=0):
    array = np.zeros(shape, dtype=np.uint8)
    corner = np.random.RandomState(seed).randint(2, 5, len(shape))
    array[tuple(slice(c, c + 6) for c in corner)] = 1
    return array


FORMATS = [
    pytest.param(".nii.gz", write_nifti, (12, 14, 11), 1, id="nifti-gz"),
    pytest.param(".nii", write_nifti, (12, 14), 1, id="nifti-2d"),
    pytest.param(".png", write_png, (12, 14), 255, id="png"),
    pytest.param(".nrrd", write_itk, (12, 14, 11), 1, id="nrrd"),
    pytest.param(".mha", write_itk, (12, 14, 11), 1, id="mha"),
]


def make_cases(folder, number=3, *, suffix=".nii.gz", write=write_nifti, shape=(12, 14), foreground=1, classes=1):
    cases = []
    for k in range(number):
        files = []
        for c in range(classes):
            file = folder / f"structure{c}" / f"case {k}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, blob(shape, 10 * k + c))
            files.append(str(file))
        case = {"id": f"case {k}", "image": files[0], "label": files[0] if classes == 1 else files}
        if foreground != 1:
            case["foreground"] = foreground
        cases.append(case)
    return cases


def checksums(folder):
    files = (f for f in sorted(Path(folder).rglob("*")) if f.is_file() and f.name != ".lock")
    return {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def write_round(store, number, change=lambda mask: ~mask, **options):
    with store.write_round(number, {"why": "test"}, **options) as writer:
        return [writer.write(case["id"], change(store.read(case["id"], 0))) for case in store.cases]


@pytest.mark.parametrize(("suffix", "write", "shape", "foreground"), FORMATS)
def test_round_has_the_form_of_its_sources(tmp_path, suffix, write, shape, foreground):
    cases = make_cases(tmp_path / "in", suffix=suffix, write=write, shape=shape, foreground=foreground, classes=2)
    before = checksums(tmp_path / "in")
    store = LabelStore(tmp_path / "store", cases, class_names=["a", "b"])
    write_round(store, 1)
    assert checksums(tmp_path / "in") == before
    for case, new in zip(cases, store.datalist(), strict=True):
        assert new["id"] == case["id"]
        np.testing.assert_array_equal(store.read(case["id"], 1), ~store.read(case["id"], 0))
        for source, file in zip(case["label"], new["label"], strict=True):
            assert file.endswith(suffix)
            if "nii" in suffix:
                a, b = nib.load(source), nib.load(file)
                assert a.header == b.header
                np.testing.assert_array_equal(np.asarray(b.dataobj), 1 - np.asarray(a.dataobj))
            elif suffix == ".png":
                a, b = Image.open(source), Image.open(file)
                assert (a.mode, a.size) == (b.mode, b.size)
                np.testing.assert_array_equal(np.asarray(b), 255 - np.asarray(a))
            else:
                a, b = itk.imread(source), itk.imread(file)
                assert itk.array_from_image(a).dtype == itk.array_from_image(b).dtype
                assert list(a.GetSpacing()) == list(b.GetSpacing())
                assert list(a.GetOrigin()) == list(b.GetOrigin())
                np.testing.assert_array_equal(itk.array_from_image(b), 1 - itk.array_from_image(a))


def test_manifest_tells_what_changed(tmp_path):
    cases = make_cases(tmp_path / "in", classes=2)
    store = LabelStore(tmp_path / "store", cases)

    def grow(mask):
        mask = mask.copy()
        mask[0, 0, :4] = True
        return mask

    assert write_round(store, 1, grow) == [[4, 0]] * 3
    entry = store.manifest(1)[0]
    assert entry["case"] == "case 0"
    assert entry["files"] == ["case 0/class_0.nii.gz", "case 0/class_1.nii.gz"]
    assert entry["voxels_changed"] == [4, 0]
    assert entry["dice_to_previous"] == [pytest.approx(2 * 36 / 76, abs=1e-6), 1.0]
    source = entry["sources"][0]
    assert source["sha256"] == hashlib.sha256(Path(source["path"]).read_bytes()).hexdigest()
    record = store.record(1)
    assert (record["round"], record["previous"], record["why"]) == (1, 0, "test")
    assert record["classes"] == ["class_0", "class_1"]


def test_labels_that_change_after_a_round_are_found(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", classes=2))
    write_round(store, 1)
    assert store.changed_labels(1) == []
    first, second = (Path(file) for case in store.datalist()[:2] for file in case["label"][1:])
    first.unlink()
    second.write_bytes(second.read_bytes() + b"\0")
    assert store.changed_labels(1) == [first, second]
    manifest = store.root / "round-001" / "manifest.jsonl"
    lines = [{key: line[key] for key in line.keys() - {"sha256"}} for line in store.manifest(1)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert store.changed_labels(1) == []  # an older version has noted no checksums


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content + b"\0", r"must stay as they were .*case 0\.nii\.gz has changed, and 0 more"),
        (lambda content: content[:-9], r"^Label file .*case 0\.nii\.gz cannot be read: .*; copy it again"),
    ],
    ids=["other", "truncated"],
)
def test_round_is_not_made_from_a_label_that_changes_meanwhile(tmp_path, change, message):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    label = Path(store.cases[0]["label"])
    content = label.read_bytes()

    def damage(mask):
        label.write_bytes(change(content))
        return mask

    with pytest.raises(ValueError, match=message):
        write_round(store, 2, damage, previous=1)
    assert store.rounds == [0, 1]
    label.write_bytes(content)
    write_round(store, 2, previous=1)
    assert store.changed_sources() == []


def test_any_round_can_be_restored(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    assert (store.rounds, store.current) == ([0], 0)
    assert store.datalist() == store.cases
    write_round(store, 1)
    write_round(store, 2, lambda m: m, previous=1)
    assert (store.rounds, store.current) == ([0, 1, 2], 2)
    store.restore(1)
    again = LabelStore(tmp_path / "store", store.cases)
    assert again.current == 1
    assert again.datalist() == again.datalist(1)
    assert again.rounds == [0, 1, 2]
    again.restore(0)
    assert again.datalist() == store.cases
    with pytest.raises(ValueError, match=r"number must be one of the rounds \[0, 1, 2\] in .*, got 3\."):
        again.restore(3)


def test_new_round_is_a_new_path(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    write_round(store, 2)
    assert len({store.datalist(n)[0]["label"] for n in (0, 1, 2)}) == 3


def test_discarded_round_is_gone_and_the_one_before_is_in_force(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    write_round(store, 2)
    store.discard(2)
    assert (store.rounds, store.current) == ([0, 1], 1)
    with pytest.raises(ValueError, match=r"number must be at least 1, got 0"):
        store.discard(0)


@pytest.mark.parametrize("broken", [RuntimeError, KeyboardInterrupt])
def test_failed_round_leaves_nothing(tmp_path, broken):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    before = checksums(tmp_path)

    def half():
        with store.write_round(1, {}) as writer:
            writer.write("case 0", store.read("case 0"))
            raise broken

    with pytest.raises(broken):
        half()
    assert checksums(tmp_path) == before
    assert store.rounds == [0]


def test_leftovers_of_a_killed_run_are_not_a_round(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    leftover = tmp_path / "store" / ".round-001.partial" / "case 0"
    leftover.mkdir(parents=True)
    (leftover / "label.nii.gz").write_bytes(b"half")
    assert store.rounds == [0]
    write_round(store, 1)
    assert store.rounds == [0, 1]
    assert [file.name for file in (tmp_path / "store").glob(".*")] == [".lock"]


def test_round_without_every_case_is_refused(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    with (
        pytest.raises(ValueError, match=r"A round must hold every case, but 'case 1' and 1 more are missing\."),
        store.write_round(1, {}) as writer,
    ):
        writer.write("case 0", store.read("case 0"))
    assert store.rounds == [0]


def test_existing_round_is_not_overwritten(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    with pytest.raises(ValueError, match=r"number must be that of a new round, got 1, which .* holds already\."):
        write_round(store, 1)


@pytest.mark.parametrize(
    ("label", "case_id", "error", "message"),
    [
        (
            np.zeros((1, 12, 13)),
            "case 0",
            ValueError,
            r"must have the shape of its files, \(1, 12, 14\), got \(1, 12, 13\)",
        ),
        (np.full((1, 12, 14), 2), "case 0", ValueError, r"label must be binary, only 0 and 1 in every channel, got 2"),
        (np.zeros((1, 12, 14)), "case 9", KeyError, r"case_id must be that of a case in the store, got 'case 9'"),
    ],
    ids=["shape", "values", "case"],
)
def test_unfit_label_is_refused(tmp_path, label, case_id, error, message):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    with pytest.raises(error, match=message), store.write_round(1, {}) as writer:
        writer.write(case_id, label)
    assert store.rounds == [0]


NOISE = {"num_steps": 4, "expansion_prob": 0.7, "march_prob": 0.4, "flip_prob": 0.1}


def test_simulated_noise_is_drawn_once_by_case(tmp_path):
    cases = make_cases(tmp_path / "in", 4)
    originals = checksums(tmp_path / "in")
    noise = RandMarkovLabelNoise(1.0, **NOISE)
    first = LabelStore(tmp_path / "a", cases).simulate(noise, seed=3, progress=False)
    files = checksums(tmp_path / "a")
    assert first.simulate(RandMarkovLabelNoise(1.0, **NOISE), seed=3, progress=False) is first
    assert checksums(tmp_path / "a") == files
    turned = LabelStore(tmp_path / "b", cases[::-1]).simulate(noise, seed=3, progress=False)
    for case in cases:
        np.testing.assert_array_equal(first.read(case["id"]), turned.read(case["id"]))
        np.testing.assert_array_equal(first.read_clean(case["id"]), nib.load(case["label"]).get_fdata()[None] > 0)
        assert (first.read(case["id"]) != first.read_clean(case["id"])).any()
    assert first.datalist()[0]["reference_label"] == cases[0]["label"]
    assert checksums(tmp_path / "in") == originals


def test_simulated_noise_follows_the_law_of_its_seed(tmp_path):
    cases = make_cases(tmp_path / "in", 1)
    store = LabelStore(tmp_path / "a", cases).simulate(RandMarkovLabelNoise(1.0, **NOISE), seed=3, progress=False)
    state = np.random.RandomState(case_seed(3, "case 0") % 2**32)
    state.rand()
    expected = markov_label_noise(store.read_clean("case 0"), **NOISE, seed=int(state.randint(2**32, dtype=np.uint64)))
    np.testing.assert_array_equal(store.read("case 0", 0), expected)


@pytest.mark.parametrize(
    ("noise", "seed"),
    [
        (RandMarkovLabelNoise(1.0, **NOISE | {"num_steps": 5}), 0),
        (RandMarkovLabelNoise(1.0, **NOISE), 1),
        (RandDilateErodeLabel(1.0, radius=(1, 2)), 0),
        (None, 0),
    ],
    ids=["steps", "seed", "kind", "none"],
)
def test_store_keeps_to_one_noise(tmp_path, noise, seed):
    store = LabelStore(tmp_path / "a", make_cases(tmp_path / "in"))
    store.simulate(RandMarkovLabelNoise(1.0, **NOISE), seed=0, progress=False)
    with pytest.raises(ValueError, match=r"holds labels that were made with the noise \{.*choose another folder"):
        store.simulate(noise, seed=seed, progress=False)


def test_no_noise_leaves_the_given_labels(tmp_path):
    store = LabelStore(tmp_path / "a", make_cases(tmp_path / "in")).simulate(None)
    assert store.datalist() == store.cases
    assert store.read_clean("case 0") is None


def test_fixed_transform_is_refused_as_noise(tmp_path):
    store = LabelStore(tmp_path / "a", make_cases(tmp_path / "in"))
    with pytest.raises(TypeError, match=r"noise must be a Randomizable array transform or None, got Lambda\."):
        store.simulate(Lambda(lambda x: x))


def test_class_names_must_fit(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"class_names must be one name per label file of a case \(1\), all different, got \['a', 'b'\]",
    ):
        LabelStore(tmp_path / "a", make_cases(tmp_path / "in"), class_names=["a", "b"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], r"all different, got \['a', 'a'\]"),
        (["a", "../../data/y"], r"A class name must be a string that can name a file: .*got '\.\./\.\./data/y'"),
        (["a", "/etc/y"], r"A class name must be a string that can name a file"),
        (["a", 3], r"A class name must be a string that can name a file"),
    ],
    ids=["repeated", "path-trick", "absolute", "number"],
)
def test_unfit_class_name_is_refused(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        LabelStore(tmp_path / "a", make_cases(tmp_path / "in", classes=2), class_names=names)


@pytest.mark.parametrize(("slope", "intercept"), [(0.5, 0), (256, 0), (1 / 255, 0), (2, -2)])
def test_scaled_nifti_keeps_its_scale(tmp_path, slope, intercept):
    cases = make_cases(tmp_path / "in", 1)
    background = round(-intercept / slope)
    foreground = 200 * slope + intercept
    raw = np.where(blob((12, 14)), 200, background).astype(np.uint8)
    image = nib.Nifti1Image(raw, np.eye(4))
    image.header.set_slope_inter(slope, intercept)
    nib.save(image, cases[0]["label"])
    assert nib.load(cases[0]["label"]).dataobj.slope == pytest.approx(slope)
    store = LabelStore(tmp_path / "store", [cases[0] | {"foreground": foreground}])
    write_round(store, 1)
    np.testing.assert_array_equal(store.read("case 0", 1), ~store.read("case 0", 0))
    a, b = nib.load(cases[0]["label"]), nib.load(store.datalist(1)[0]["label"])
    assert (a.dataobj.slope, a.dataobj.inter) == (b.dataobj.slope, b.dataobj.inter)
    assert a.get_data_dtype() == b.get_data_dtype()


@pytest.mark.parametrize("suffix", [".npy", ".jpg", ".gif"])
def test_type_that_loses_labels_is_refused_before_anything_is_done(tmp_path, suffix):
    cases = make_cases(tmp_path / "in")
    file = tmp_path / f"label{suffix}"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"Label files must be of a type that can be written without loss, .*case 0"):
        LabelStore(tmp_path / "store", [cases[0] | {"label": str(file)}])


def test_store_is_not_opened_with_other_classes_or_cases(tmp_path):
    cases = make_cases(tmp_path / "in", classes=2)
    write_round(LabelStore(tmp_path / "store", cases, class_names=["a", "b"]), 1)
    with pytest.raises(ValueError, match=r"class_names must be those of the rounds .*\['a', 'b'\], got \['b', 'a'\]"):
        LabelStore(tmp_path / "store", cases, class_names=["b", "a"])
    with pytest.raises(
        ValueError, match=r"cases must be those of the rounds .*, but 'case 2' is in one only; choose another"
    ):
        LabelStore(tmp_path / "store", cases[:2], class_names=["a", "b"])


def test_stray_folders_are_no_rounds(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    for name in ("round-001 (copy)", "round-1", "round-x"):
        (store.root / name).mkdir()
        (store.root / name / "round.json").write_text("{}")
    assert store.rounds == [0, 1]


def test_grid_of_a_case_is_checked(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    affine = np.diag([-0.7, -0.7, 3.0, 1.0])
    store.check_grid("case 0", (12, 14), affine)
    with pytest.raises(ValueError, match=r"case 'case 0' must have the same shape, got \(12, 13\) and \(12, 14\)\."):
        store.check_grid("case 0", (12, 13), affine)
    with pytest.raises(
        ValueError, match=r"case 'case 0' must lie in one place, but their corners .*resample or reorient"
    ):
        store.check_grid("case 0", (12, 14), np.diag([0.7, -0.7, 3.0, 1.0]))
    with pytest.raises(KeyError, match=r"case_id must be that of a case in the store, got 'x'"):
        store.check_grid("x", (12, 14), affine)


def test_folder_with_originals_is_refused(tmp_path):
    cases = make_cases(tmp_path / "in")
    with pytest.raises(ValueError, match=r"root must be a folder without originals, but .* holds .*case 0"):
        LabelStore(tmp_path, cases)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(ValueError, match=r"root must be a folder without originals"):
        LabelStore(tmp_path / "link", cases)


def test_files_are_plain_json(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    write_round(store, 1)
    assert json.loads((tmp_path / "store" / "current.json").read_text()) == {"round": 1}
    lines = (tmp_path / "store" / "round-001" / "manifest.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in lines] == ["case 0", "case 1", "case 2"]


def test_dice_of_two_empty_masks_is_one():
    a, b = np.zeros((3, 2, 2), bool), np.zeros((3, 2, 2), bool)
    a[1, 0] = b[1, 0, 0] = a[2, 0, 0] = True
    assert dice(a, b).tolist() == [1.0, pytest.approx(2 / 3), 0.0]


def write_mask(path, mask):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_nifti(path, mask)
    return str(path)


def test_trusted_voxels_are_those_of_one_mask_or_of_one_per_class(tmp_path):
    cases = make_cases(tmp_path / "in", 4, classes=3)
    masks = [blob((12, 14), seed) * 5 for seed in range(3)]
    files = [write_mask(tmp_path / "trust" / f"{k}.nii.gz", mask) for k, mask in enumerate(masks)]
    for case, trusted in zip(cases[1:], (files[0], files, files[:2]), strict=True):
        case["trusted"] = trusted
    store = LabelStore(tmp_path / "store", cases)
    assert store.read_trusted("case 0") is None
    np.testing.assert_array_equal(store.read_trusted("case 1"), np.stack([masks[0] > 0] * 3))
    np.testing.assert_array_equal(store.read_trusted("case 2"), np.stack(masks) > 0)
    message = r"^trusted of case {} must be one mask file, or one per class, .* of its label \(12, 14\), got \[{}\]\.$"
    with pytest.raises(ValueError, match=message.format("'case 3'", r"\(12, 14\), \(12, 14\)")):
        store.read_trusted("case 3")
    store.cases[0]["trusted"] = write_mask(tmp_path / "trust" / "other.nii.gz", blob((12, 13)))
    with pytest.raises(ValueError, match=message.format("'case 0'", r"\(12, 13\)")):
        store.read_trusted("case 0")


def test_clean_label_is_what_was_given_as_such_or_made_noisy(tmp_path):
    cases = make_cases(tmp_path / "in", 2)
    clean = write_mask(tmp_path / "clean" / "0.nii.gz", blob((12, 14), 99))
    cases[0]["reference_label"] = clean
    store = LabelStore(tmp_path / "store", cases)
    assert [store.has_clean(case["id"]) for case in cases] == [True, False]
    assert store.read_clean("case 1") is None
    np.testing.assert_array_equal(store.read_clean("case 0")[0], blob((12, 14), 99))
    assert "reference_label" not in store.datalist()[1]
    store.simulate(RandDilateErodeLabel(1.0, radius=(1, 1)), progress=False)
    assert [store.has_clean(case["id"]) for case in cases] == [True, True]
    np.testing.assert_array_equal(store.read_clean("case 0")[0], blob((12, 14), 99))
    np.testing.assert_array_equal(store.read_clean("case 1")[0], blob((12, 14), 10))
    assert [case["reference_label"] for case in store.datalist()] == [clean, cases[1]["label"]]
    assert [case["label"] for case in store.datalist()] == [
        str(store.root / "round-000" / f"case {k}" / "class_0.nii.gz") for k in range(2)
    ]
    assert store.cases == cases  # what was given stays as it was


def test_data_list_has_a_file_where_one_was_given_and_a_list_where_there_was_one(tmp_path):
    cases = make_cases(tmp_path / "in", 3)
    cases[1]["label"] = Path(cases[1]["label"])
    cases[2]["label"] = [cases[2]["label"]]
    store = LabelStore(tmp_path / "store", cases)
    write_round(store, 1)
    files = [str(store.root / "round-001" / f"case {k}" / "class_0.nii.gz") for k in range(3)]
    assert [case["label"] for case in store.datalist(1)] == [files[0], files[1], [files[2]]]
    assert store.datalist(0) == cases


def test_places_of_cases_are_those_of_the_list(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    assert [store.position(f"case {k}") for k in range(3)] == [0, 1, 2]
    assert store.case("case 1") is store.cases[1]


def test_label_is_read_once_for_several_questions(tmp_path, monkeypatch):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in"))
    loaded = []
    load = LoadLabel.__call__
    monkeypatch.setattr(LoadLabel, "__call__", lambda self, files: loaded.append(files) or load(self, files))
    for _ in range(2):
        store.read("case 0")
    assert len(loaded) == 1
    store.read("case 1")
    store.read("case 0")
    assert len(loaded) == 3


def test_geometry_counts_to_a_tenth_of_a_voxel_and_only_where_there_is_one(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", 1))
    affine = np.diag([-0.7, -0.7, 3.0, 1.0])
    store.check_grid("case 0", (12, 14), affine + np.eye(4, k=3) * 0.065)
    with pytest.raises(ValueError, match=r"must lie in one place, but their corners are up to 0\.107 voxels apart"):
        store.check_grid("case 0", (12, 14), affine + np.eye(4, k=3) * 0.075)
    pictures = make_cases(tmp_path / "png", 1, suffix=".png", write=write_png, foreground=255)
    LabelStore(tmp_path / "pictures", pictures).check_grid("case 0", (12, 14), affine)


def test_files_must_hold_the_value_of_the_foreground_of_their_case(tmp_path):
    cases = make_cases(tmp_path / "in", 2, suffix=".png", write=write_png, foreground=255)
    write_png(Path(cases[1]["label"]), blob((12, 14), 10) * (2 / 255))
    cases[1]["foreground"] = 2
    store = LabelStore(tmp_path / "store", cases)
    write_round(store, 1)
    for k, value in enumerate((255, 2)):
        np.testing.assert_array_equal(store.read(f"case {k}", 1)[0], blob((12, 14), 10 * k) == 0)
        assert set(np.unique(Image.open(store.datalist(1)[k]["label"]))) == {0, value}


def test_classes_are_numbered_unless_they_have_names(tmp_path):
    cases = make_cases(tmp_path / "in", classes=2)
    assert LabelStore(tmp_path / "a", cases).class_names == ["class_0", "class_1"]
    assert LabelStore(tmp_path / "b", cases, class_names=("x", "y")).class_names == ["x", "y"]


def test_folder_that_cannot_be_made_is_named(tmp_path):
    cases = make_cases(tmp_path / "in")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/store could not be written: Not a directory\."):
        LabelStore(tmp_path / "file" / "store", cases)
