from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tracemalloc
import zipfile

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.__main__ import main
from monai_sc.files.predictions import find_prediction, load_prediction
from monai_sc.folders import audit_folder, correct, correct_folder
from tests.contents import contents

AFFINE = np.array([[-0.8, 0, 0, 10], [0, 0.8, 0, 20], [0, 0, 2.0, 30], [0, 0, 0, 1]])
SIZE = np.array([0.8, 0.8, 2.0])
SHAPE = (40, 36, 14)


def distance(radius, centre=(16.0, 14.0, 13.0)):
    """Return the signed distance to a ball in mm, negative inside."""
    grid = np.indices(SHAPE) * SIZE.reshape(3, 1, 1, 1) - np.reshape(centre, (3, 1, 1, 1))
    return np.sqrt((grid**2).sum(axis=0)) - radius


@pytest.fixture
def folders(tmp_path):
    """Two classes, of which the first is drawn and predicted 2 mm too large; nnU-Net's files of probabilities."""
    for name in ("labels", "clean", "predictions", "truth"):
        (tmp_path / name).mkdir()
    for k in range(6):
        outer, inner = distance(9 + 0.3 * k), distance(2.5, (16.0, 3.0, 13.0))
        true = np.where(inner <= 0, 2, np.where(outer <= 0, 1, 0)).astype(np.uint8)
        given = np.where(inner <= 0, 2, np.where(outer <= 2, 1, 0)).astype(np.uint8)
        logits = np.stack([np.zeros(SHAPE), 2 - outer, np.where(inner <= 0, 30, -30)])
        odds = np.exp(logits - logits.max(axis=0))
        name = f"case{k}.nii.gz"
        nib.save(nib.Nifti1Image(given, AFFINE), tmp_path / "labels" / name)
        nib.save(nib.Nifti1Image(true, AFFINE), tmp_path / "truth" / name)
        if k < 3:
            nib.save(nib.Nifti1Image(true, AFFINE), tmp_path / "clean" / name)
        np.savez(
            tmp_path / "predictions" / f"case{k}.npz",
            probabilities=(odds / odds.sum(axis=0)).transpose(0, 3, 2, 1).astype(np.float32),
        )
    return tmp_path


def corrected(folders, *, labels="labels", clean="clean", out="out", predictions="predictions", **options):
    """Correct the labels of a folder of folders."""
    if predictions is not None:
        options["predictions"] = str(folders / predictions)
    return correct_folder(*(str(folders / name) for name in (labels, clean, out)), progress=False, **options)


def mean_dice(first, second, value=1):
    scores = []
    for file in sorted(second.glob("*.nii.gz")):
        a, b = (np.asarray(nib.load(folder / file.name).dataobj) == value for folder in (first, second))
        scores.append(2 * (a & b).sum() / (a.sum() + b.sum()))
    return float(np.mean(scores))


def test_labels_that_are_too_large_are_corrected_and_keep_their_headers(folders):
    before = contents(folders)
    report = corrected(folders)
    assert {f: h for f, h in contents(folders).items() if not f.startswith("out/")} == before
    assert mean_dice(folders / "labels", folders / "truth") < 0.8
    assert mean_dice(folders / "out", folders / "truth") > 0.93
    assert mean_dice(folders / "out", folders / "truth", 2) == 1
    for file in (folders / "labels").glob("*.nii.gz"):
        written, given = nib.load(folders / "out" / file.name), nib.load(file)
        assert written.header == given.header
        assert set(np.unique(written.dataobj)) <= {0, 1, 2}
    one = report["classes"]["1"]
    assert one["verdict"] == "biased"
    assert one["bias"] == pytest.approx(-2, abs=0.4)
    assert report["unit"] == "mm"
    assert (report["pairs"], report["redrawn"]) == (3, 3)
    assert one["bias_of"] == "labels"
    assert one["held_out"]["after"] > one["held_out"]["before"] + 0.1
    assert report["moved"]["1"] == "move"
    assert report["moved"]["2"] == "keep"  # it would not gain
    assert report["to_check"] == []
    assert report["settings"]["shape_weight"] == 0.5
    assert json.loads((folders / "out" / "report.json").read_text()) == report
    entries = [json.loads(line) for line in (folders / "out" / "manifest.jsonl").read_text().splitlines()]
    assert [entry["source"] for entry in entries] == ["clean"] * 3 + ["corrected"] * 3
    for entry in entries:
        assert entry["label"]["sha256"] == hashlib.sha256(before[f"labels/{entry['case']}"]).hexdigest()


def test_logits_as_nifti_give_what_probabilities_give(folders):
    corrected(folders)
    (folders / "logits").mkdir()
    for file in (folders / "predictions").glob("*.npz"):
        probabilities = np.load(file)["probabilities"].transpose(0, 3, 2, 1)
        logits = np.moveaxis(np.log(np.clip(probabilities, 1e-6, 1 - 1e-6)), 0, -1)
        nib.save(nib.Nifti1Image(logits.astype(np.float32), AFFINE), folders / "logits" / f"{file.stem}.nii.gz")
    with pytest.raises(ValueError, match=r"^kind must be 'logits' or 'probabilities' for predictions such as .*case0"):
        corrected(folders, predictions="logits", out="second")
    corrected(folders, predictions="logits", out="second", kind="logits")
    assert mean_dice(folders / "out", folders / "second") > 0.999


def test_classes_that_would_be_worse_stay(folders):
    # On the cases with both labels, the labels are already right; the predictions are not.
    for k in range(3):
        true = nib.load(folders / "truth" / f"case{k}.nii.gz")
        nib.save(true, folders / "labels" / f"case{k}.nii.gz")
    report = corrected(folders)
    assert report["moved"]["1"] == "keep"
    assert "no correction makes held-out labels clearly better" in report["classes"]["1"]["done"]
    for k in range(3, 6):
        a, b = (nib.load(folders / part / f"case{k}.nii.gz").get_fdata() for part in ("labels", "out"))
        np.testing.assert_array_equal(a, b)


def test_trusted_and_ignored_voxels_stay(folders):
    (folders / "trusted").mkdir()
    trust = np.zeros(SHAPE, dtype=np.uint8)
    trust[:20] = 1
    nib.save(nib.Nifti1Image(trust, AFFINE), folders / "trusted" / "case4.nii.gz")
    label = nib.load(folders / "labels" / "case5.nii.gz")
    values = np.asarray(label.dataobj).copy()
    values[:, 20:] = 255
    nib.save(nib.Nifti1Image(values, AFFINE, label.header), folders / "labels" / "case5.nii.gz")
    corrected(folders, trusted=folders / "trusted", ignore_value=255)
    given, out = (nib.load(folders / part / "case4.nii.gz").get_fdata() for part in ("labels", "out"))
    np.testing.assert_array_equal(given[:20], out[:20])
    assert (given[20:] != out[20:]).any()
    out = nib.load(folders / "out" / "case5.nii.gz").get_fdata()
    np.testing.assert_array_equal(out[:, 20:], 255)
    assert (out[:, :20] != values[:, :20]).any()
    assert (out[:, :20] != 255).all()


@pytest.mark.parametrize("predictions", ["predictions", None])
def test_pictures_with_255_and_one_channel_are_corrected(tmp_path, predictions):
    for name in ("labels", "clean", "predictions"):
        (tmp_path / name).mkdir()
    y, x = np.mgrid[:60, :50]
    for k in range(6):
        phi = np.hypot(y - 30, x - 24) - 11 - k
        Image.fromarray(((phi <= 4) * 255).astype(np.uint8)).save(tmp_path / "labels" / f"p{k}.png")
        if k < 3:
            Image.fromarray(((phi <= 0) * 255).astype(np.uint8)).save(tmp_path / "clean" / f"p{k}.png")
        np.savez(tmp_path / "predictions" / f"p{k}.npz", logits=(4 - phi)[None, None].astype(np.float32))
    report = corrected(tmp_path, predictions=predictions, class_names=["disc"])
    assert report["unit"] == "voxels"
    assert report["classes"]["disc"]["bias"] == pytest.approx(-4, abs=0.25)
    for k in range(6):
        out = np.asarray(Image.open(tmp_path / "out" / f"p{k}.png"))
        assert set(np.unique(out)) == {0, 255}
        phi = np.hypot(y - 30, x - 24) - 11 - k
        assert ((out > 0) == (phi <= 0)).mean() > 0.98


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(
            lambda f: (f / "predictions" / "case4.npz").unlink(),
            FileNotFoundError,
            r"holds no prediction of case4\.nii\.gz",
            id="no-prediction",
        ),
        pytest.param(
            lambda f: np.savez(f / "predictions" / "case4.npz", probabilities=np.ones((3, 2, 2, 2))),
            ValueError,
            r"case4\.npz must lie on the grid of its label, \(40, 36, 14\), got \(2, 2, 2\)",
            id="other-grid",
        ),
        pytest.param(
            lambda f: np.savez(f / "predictions" / "case4.npz", other=np.ones(3)),
            ValueError,
            r"case4\.npz cannot be used: it must hold 'probabilities', 'softmax' or 'logits', got \['other'\]\.$",
            id="other-content",
        ),
        pytest.param(
            lambda f: (f / "predictions" / "case4.npz").write_bytes(b"PK"),
            ValueError,
            r"^Prediction .*case4\.npz cannot be ",
            id="broken",
        ),
        pytest.param(
            lambda f: nib.save(nib.Nifti1Image(np.full(SHAPE, 7, np.uint8), AFFINE), f / "labels" / "case4.nii.gz"),
            ValueError,
            r"Label .*case4\.nii\.gz must hold 0 and 1, 2 only, got 7; give ignore_value",
            id="unknown-value",
        ),
        pytest.param(
            lambda f: nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), AFFINE), f / "clean" / "case1.nii.gz"),
            ValueError,
            r"clean/case1\.nii\.gz must have the shape of label .*labels/case1\.nii\.gz",
            id="clean-of-another-shape",
        ),
        pytest.param(
            lambda f: (f / "clean" / "case0.nii.gz").rename(f / "clean" / "case0.nii"),
            ValueError,
            r"must have one file type, got case0\.nii\.gz and case0\.nii\.$",
            id="type-of-the-clean-label",
        ),
        pytest.param(
            lambda f: np.savez(f / "predictions" / "case4.npz", probabilities=np.full((3, 14, 36, 40), 1.5)),
            ValueError,
            r"case4\.npz must hold probabilities, in \[0, 1\], got values from 1\.5 to 1\.5; say kind='logits'",
            id="no-probabilities",
        ),
        pytest.param(
            lambda f: np.savez(f / "predictions" / "case4.npz", probabilities=np.full((3, 14, 36, 40), np.nan)),
            ValueError,
            r"case4\.npz must be finite, got nan",
            id="nan",
        ),
        pytest.param(
            lambda f: (f / "out").mkdir() or (f / "out" / "x").write_text("x"),
            ValueError,
            r"^out must be a new or empty folder, got .*out, which is not empty",
            id="out-in-use",
        ),
        pytest.param(
            lambda f: shutil.copytree(f / "truth", f / "labels" / "manifest.jsonl"),
            ValueError,
            r"labels must not hold a folder manifest\.jsonl/case0\.nii\.gz, which is the name of a result file\.$",
            id="folder-called-as-the-manifest",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_left(folders, change, error, message):
    change(folders)
    before = contents(folders)
    with pytest.raises(error, match=message):
        corrected(folders)
    assert contents(folders) == before
    assert not list(folders.glob(".out*"))


def test_folder_within_the_labels_is_refused(folders):
    with pytest.raises(ValueError, match=r"^out must be a folder of its own, not within or around .*labels"):
        corrected(folders, out="labels/out")


def test_names_and_kinds_that_do_not_fit_are_refused(folders):
    with pytest.raises(ValueError, match=r"^class_names must name 2 classes, of the values 1, 2, got \['a'\]\.$"):
        corrected(folders, class_names=["a"])
    with pytest.raises(ValueError, match=r"^kind must be that of the files, probabilities, got 'logits'\.$"):
        corrected(folders, kind="logits")
    with pytest.raises(ValueError, match=r"^kind must be 'logits' or 'probabilities', got 'votes'\.$"):
        corrected(folders, kind="votes")


def stopping(monkeypatch, at):
    """Stop the correction when it writes its label of a number, and return the list of what it writes."""
    write, calls = correct.write_values_like, []

    def stop(*args, **kwargs):
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        write(*args, **kwargs)

    monkeypatch.setattr(correct, "write_values_like", stop)
    return calls


def test_interruption_leaves_nothing(folders, monkeypatch):
    stopping(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        corrected(folders)
    assert not (folders / "out").exists()
    assert not list(folders.glob(".out*"))


def test_run_that_was_killed_goes_on(folders, monkeypatch):
    corrected(folders, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it had no time to clear up
        stopping(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            corrected(folders)
    (hidden,) = folders.glob(".out*")
    with (hidden / correct.ROWS).open("a") as rows:
        rows.write('{"case": "case')  # a torn line
    calls = stopping(monkeypatch, 0)
    corrected(folders)
    assert len(calls) == 4
    assert contents(folders / "out") == contents(folders / "whole")
    assert not list(folders.glob(".out*"))


def test_what_is_left_of_another_call_is_not_used(folders, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        stopping(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            corrected(folders)
    calls = stopping(monkeypatch, 0)
    corrected(folders, max_shift_mm=1.0)
    assert len(calls) == 6


def test_prediction_is_found_by_the_name_of_its_label(tmp_path):
    (tmp_path / "site").mkdir()
    np.savez(tmp_path / "site" / "a.npz", logits=np.zeros((1, 3, 2)))
    nib.save(nib.Nifti1Image(np.zeros((2, 3)), np.eye(4)), tmp_path / "site" / "a.nii.gz")  # nnU-Net's label map
    assert find_prediction(tmp_path, "site/a.nii.gz").name == "a.npz"
    found = load_prediction(tmp_path / "site" / "a.npz", (2, 3), None)
    assert found.values.shape == (1, 2, 3)
    assert found.are_probabilities is False
    with pytest.raises(FileNotFoundError, match=r"holds no prediction of b\.png: no b\.npz or \.nii\.gz or \.nii\.$"):
        find_prediction(tmp_path, "b.png")


def bomb(shape, descr="'<f4'"):
    """Return an npy file of any size as its header alone."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb((1, 90000, 90000, 90000)), r"must lie on the grid of its label, \(2, 3\), got \(90000, 90000, 90000\)"),
        (bomb((90000, 90000)), r"must lie on the grid of its label, \(2, 3\), got \(90000,\)"),
        (bomb((10**9, 3, 2)), r"cannot be used: it must hold 1 to 1024 channels, got 1000000000\.$"),
        (bomb((1, 3, 2), "'|V99999999'"), r"cannot be used: it must hold numbers, got \|V99999999\.$"),
        (bomb((1, 3, 2), "'|O'"), r"cannot be used: it must hold numbers, got object\.$"),
        (b"no array", r"cannot be used: "),
    ],
    ids=["volume", "axes", "channels", "voxels-of-many-bytes", "objects", "no-array"],
)
def test_prediction_that_would_fill_the_memory_is_refused_by_its_header(tmp_path, content, message):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"^Prediction .*a\.npz {message}"):
        load_prediction(tmp_path / "a.npz", (2, 3), None)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(30000, 30000, 30000), (2, 3, 4, 30000)], ids=["voxels", "channels"])
def test_volume_that_would_fill_the_memory_is_refused_by_its_header(tmp_path, shape):
    header = nib.Nifti1Header()
    header.set_data_shape(shape)
    header["magic"], header["vox_offset"] = b"n+1", 352
    with gzip.open(tmp_path / "a.nii.gz", "wb") as file:
        file.write(header.binaryblock + bytes(1000))
    with pytest.raises(ValueError, match=r"a\.nii\.gz (must lie on the grid of|cannot be used: it must hold 1) "):
        load_prediction(tmp_path / "a.nii.gz", (2, 3, 4), np.eye(4))


def test_prediction_with_another_affine_is_refused(tmp_path):
    nib.save(nib.Nifti1Image(np.zeros((2, 3, 4, 2), np.float32), np.eye(4)), tmp_path / "a.nii.gz")
    assert load_prediction(tmp_path / "a.nii.gz", (2, 3, 4), np.eye(4)).values.shape == (2, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"cannot be used: it must lie where its label lies, but .* voxels apart; export it"
    ):
        load_prediction(tmp_path / "a.nii.gz", (2, 3, 4), np.diag([2.0, 2, 2, 1]))


def test_audit_says_by_how_many_mm_the_labels_are_biased(folders):
    result = audit_folder(folders / "labels", folders / "truth", progress=False)
    assert result["unit"] == "mm"
    assert result["voxel"] == pytest.approx(0.8)
    one, two = result["classes"]["1"], result["classes"]["2"]
    assert one["bias"] == pytest.approx(-2, abs=0.3)
    assert one["bias_voxels"] == pytest.approx(one["bias"] / 0.8)
    assert one["interval"][0] <= one["bias"] <= one["interval"][1]
    assert (one["verdict"], two["verdict"]) == ("biased", "unbiased")
    assert two["dice"] == 1
    named = audit_folder(folders / "labels", folders / "truth", class_names=["ball", "dot"], progress=False)
    assert str(list(named["classes"].values())) == str(list(result["classes"].values()))  # with nan
    assert list(named["cases"][0]["dice"]) == list(named["classes"]) == ["ball", "dot"]
    assert (one["cases_used"], one["cases_skipped"]) == (6, 0)
    assert len(result["cases"]) == 6


@pytest.mark.parametrize("names", [["ball"], ["ball", "ball"], ["ball", "dot", "ring"]])
def test_audit_refuses_names_that_do_not_fit(folders, names):
    with pytest.raises(ValueError, match=r"^class_names must be different names for the values 1, 2 that the compared"):
        audit_folder(folders / "labels", folders / "truth", class_names=names, progress=False)


def test_audit_counts_objects_that_are_only_in_one_of_the_labels(folders):
    for k in (0, 1):
        file = folders / "clean" / f"case{k}.nii.gz"
        values = np.asarray(nib.load(file).dataobj).copy()
        values[values == 2] = 0
        nib.save(nib.Nifti1Image(values, AFFINE), file)
    result = audit_folder(folders / "labels", folders / "clean", progress=False)
    assert result["classes"]["2"]["spurious"] == [2, 2]
    assert result["classes"]["2"]["missed"] == [0, 1]
    assert result["classes"]["2"]["cases_skipped"] == 2


def test_audit_leaves_unknown_voxels_out(folders):
    file = folders / "clean" / "case0.nii.gz"
    values = np.asarray(nib.load(file).dataobj).copy()
    values[:20] = 255
    nib.save(nib.Nifti1Image(values, AFFINE), file)
    result = audit_folder(folders / "labels", folders / "clean", ignore_value=255, progress=False)
    assert list(result["classes"]) == ["1", "2"]
    assert result["classes"]["1"]["bias"] == pytest.approx(-2, abs=0.3)


def test_audit_of_folders_without_a_common_case_is_refused(folders, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    nib.save(nib.Nifti1Image(np.ones(SHAPE, np.uint8), AFFINE), other / "x.nii.gz")
    with pytest.raises(ValueError, match=r"must have files of the same names, got case0\.nii\.gz there and x\.nii\.gz"):
        audit_folder(folders / "labels", other, progress=False)
    with pytest.raises(FileNotFoundError, match=r"is not a folder\.$"):
        audit_folder(folders / "labels", tmp_path / "nowhere", progress=False)


def test_audit_of_unfit_labels_is_refused(folders):
    values = np.asarray(nib.load(folders / "clean" / "case0.nii.gz").dataobj)
    nib.save(nib.Nifti1Image(values, np.eye(4)), folders / "clean" / "case0.nii.gz")
    with pytest.raises(ValueError, match=r"must lie where label .* voxels apart; resample or reorient one of them\.$"):
        audit_folder(folders / "labels", folders / "clean", progress=False)
    nib.save(nib.Nifti1Image(np.full(SHAPE, np.nan, np.float32), AFFINE), folders / "labels" / "case0.nii.gz")
    with pytest.raises(ValueError, match=r"case0\.nii\.gz must hold whole numbers, got complex, nan or infinite"):
        audit_folder(folders / "labels", folders / "clean", progress=False)


def test_commands_print_write_and_end_with_their_status(folders, capsys):
    pair = [f"--labels={folders / 'labels'}", f"--clean={folders / 'clean'}"]
    assert main(["audit", *pair, "--out", str(folders / "audit"), "--names", "ball,dot", "--no-report"]) == 0
    printed = capsys.readouterr().out
    assert "ball" in printed
    assert "bias in mm (negative: too large)" in printed
    assert (folders / "audit" / "audit.png").stat().st_size > 10_000
    correct = ["correct", f"--predictions={folders / 'predictions'}", *pair, "--no-report", "--names", "organ,lesion"]
    assert main([*correct, "--out", str(folders / "out")]) == 0
    printed = capsys.readouterr().out
    assert "The labels of organ were moved, those of lesion stay as they were given" in printed
    assert "6 labels (3 of them drawn by the expert) in" in printed
    assert main([*correct, "--out", str(folders / "out")]) == 2
    assert "Error: out must be a new or empty folder" in capsys.readouterr().err
    assert main([*correct, "--out", str(folders / "third"), "--json", "--max-shift-mm", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"]["organ"]["correction"]["shift"] == 0


def test_folder_beside_the_result_is_never_deleted(folders):
    (folders / "labels").rename(folders / ".out.partial")
    (folders / ".out").mkdir()
    before = contents(folders)
    corrected(folders, labels=".out.partial")
    after = contents(folders)
    assert {file: after[file] for file in before} == before
    assert (folders / ".out").is_dir()


def test_result_of_another_run_that_was_faster_is_not_touched(folders, monkeypatch):
    put = correct._put_in_place

    def second(partial, target):
        target.mkdir()
        (target / "of the other run").write_text("x")
        put(partial, target)

    monkeypatch.setattr(correct, "_put_in_place", second)
    with pytest.raises(
        ValueError, match=r"^out must be a new or an empty folder that can be renamed, got .*another run"
    ):
        corrected(folders)
    assert [file.name for file in (folders / "out").iterdir()] == ["of the other run"]
    assert not list(folders.glob(".out*"))


def test_unknown_and_trusted_voxels_stay_also_where_there_is_a_clean_label(folders):
    def put(file, part, value):
        image = nib.load(file)
        values = np.asarray(image.dataobj).copy()
        values[part] = value
        nib.save(nib.Nifti1Image(values, AFFINE), file)

    (folders / "trusted").mkdir()
    trust = np.zeros(SHAPE, dtype=np.uint8)
    trust[:, :, :7] = 1
    nib.save(nib.Nifti1Image(trust, AFFINE), folders / "trusted" / "case0.nii.gz")
    put(folders / "labels" / "case0.nii.gz", np.s_[:, 30:], 200)
    put(folders / "clean" / "case0.nii.gz", np.s_[:, :10], 200)
    corrected(folders, ignore_value=200, trusted=folders / "trusted")
    given, out, true = (
        np.asarray(nib.load(folders / part / "case0.nii.gz").dataobj) for part in ("labels", "out", "truth")
    )
    for part in (np.s_[:, 30:], np.s_[:, :10], np.s_[:, :, :7]):
        np.testing.assert_array_equal(out[part], given[part])
    np.testing.assert_array_equal(out[:, 10:30, 7:], true[:, 10:30, 7:])


class TestWithoutPredictions:
    def test_labels_are_moved_by_the_bias_of_the_cases_with_both(self, folders):
        before = contents(folders)
        report = corrected(folders, predictions=None)
        assert {f: h for f, h in contents(folders).items() if not f.startswith("out/")} == before
        assert mean_dice(folders / "labels", folders / "truth") < 0.8
        assert mean_dice(folders / "out", folders / "truth") > 0.95
        assert mean_dice(folders / "out", folders / "truth", 2) > 0.97
        one = report["classes"]["1"]
        assert (one["bias_of"], one["network"], report["moved"]["1"]) == ("labels", None, "move")
        assert one["bias"] == pytest.approx(-2, abs=0.4)
        assert one["done"].startswith("labels moved by -")
        for file in (folders / "labels").glob("*.nii.gz"):
            written, given = nib.load(folders / "out" / file.name), nib.load(file)
            assert written.header == given.header
            assert set(np.unique(written.dataobj)) <= {0, 1, 2}

    def test_one_case_with_both_labels_moves_nothing_and_says_so(self, folders):
        for name in ("case1", "case2"):
            (folders / "clean" / f"{name}.nii.gz").unlink()
        report = corrected(folders, predictions=None)
        assert set(report["moved"].values()) == {"keep"}
        assert "a single case has both labels" in report["classes"]["1"]["done"]
        for k in range(1, 6):
            a, b = (nib.load(folders / part / f"case{k}.nii.gz").get_fdata() for part in ("labels", "out"))
            np.testing.assert_array_equal(a, b)

    def test_no_case_with_both_labels_is_refused(self, folders):
        (folders / "other").mkdir()
        shutil.copy(folders / "clean" / "case0.nii.gz", folders / "other" / "somebody.nii.gz")
        with pytest.raises(ValueError, match=r"must have at least one case in common if there are no predictions"):
            corrected(folders, clean="other", predictions=None)
        with pytest.raises(ValueError, match=r"^kind needs predictions, got 'logits' without"):
            corrected(folders, predictions=None, kind="logits")
        assert not (folders / "out").exists()


def test_trusted_masks_of_no_label_are_refused(folders):
    (folders / "trusted").mkdir()
    nib.save(nib.Nifti1Image(np.ones(SHAPE, np.uint8), AFFINE), folders / "trusted" / "case4.nii")
    with pytest.raises(ValueError, match=r"^trusted must hold masks with the names of labels, got case4\.nii\.$"):
        corrected(folders, trusted=folders / "trusted")


def test_masks_with_two_values_of_the_foreground_are_refused(tmp_path):
    for name in ("labels", "clean", "predictions"):
        (tmp_path / name).mkdir()
    disc = np.hypot(*np.mgrid[:30, :30] - 15) < 8
    for k in range(3):
        Image.fromarray((disc * 255).astype(np.uint8)).save(tmp_path / "clean" / f"p{k}.png")
        Image.fromarray(disc.astype(np.uint8)).save(tmp_path / "labels" / f"p{k}.png")
        np.savez(tmp_path / "predictions" / f"p{k}.npz", logits=np.where(disc, 4.0, -4.0).T[None, None])
    with pytest.raises(ValueError, match=r"All masks must have one value beside 0, got 1 in .*png and 255 in"):
        corrected(tmp_path)
    with pytest.raises(ValueError, match=r"All masks must have one value beside 0, got 1 in .*png and 255 in"):
        audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)


def test_label_that_is_empty_stays_empty(folders):
    empty = nib.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE)
    nib.save(empty, folders / "labels" / "case4.nii.gz")
    corrected(folders)
    assert not nib.load(folders / "out" / "case4.nii.gz").get_fdata().any()


@pytest.mark.parametrize("folder", ["labels", "labels/within", "."])
def test_audit_is_not_written_into_what_it_audits(folders, capsys, folder):
    before = contents(folders)
    audit = ["audit", "--labels", str(folders / "labels"), "--clean", str(folders / "clean"), "--quiet"]
    assert main([*audit, "--out", str(folders / folder)]) == 2
    assert "out must be a folder of its own, not within or around" in capsys.readouterr().err
    assert contents(folders) == before


def test_audit_may_be_written_again_but_over_nothing_else(folders, capsys):
    audit = ["audit", "--labels", str(folders / "labels"), "--clean", str(folders / "clean"), "--quiet"]
    assert main([*audit, "--out", str(folders / "audit")]) == 0
    assert (folders / "audit" / "report.html").is_file()
    assert main([*audit, "--out", str(folders / "audit")]) == 0
    (folders / "audit" / "mine.txt").write_text("x")
    assert main([*audit, "--out", str(folders / "audit")]) == 2
    assert "out must be a folder for audits only" in capsys.readouterr().err
    assert main([*audit, "--out", str(folders / "a"), "--images", str(folders / "nowhere")]) == 2


def test_picture_shows_the_image_of_its_own_case(tmp_path):
    from monai_sc.reports.shown_cases import find_image

    for name, value in (("c1", 5), ("c10", 7)):
        nib.save(nib.Nifti1Image(np.full((4, 4, 4), value, np.float32), AFFINE), tmp_path / f"{name}_0000.nii.gz")
    assert find_image("c1.nii.gz", (4, 4, 4), tmp_path).mean() == 5
    assert find_image("c2.nii.gz", (4, 4, 4), tmp_path) is None
