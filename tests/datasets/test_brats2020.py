import csv
import gzip
import re
import shutil

import nibabel as nib
import numpy as np
import pytest

from monai_sc.datasets.brats2020 import Brats2020Layout, write_brats2020
from monai_sc.datasets.layout import SPLITS

FIRST = "BraTS20_Training_001"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a stand-in that no test changes."""
    out = tmp_path_factory.mktemp("brats") / "official"
    write_brats2020(out, num_cases={"train": 1, "clean": 1, "test": 1})
    return out


@pytest.fixture
def source(made, tmp_path):
    """Return a copy of the stand-in, and the folder of its first case."""
    shutil.copytree(made, tmp_path / "official")
    return tmp_path / "official", tmp_path / "official" / "MICCAI_BraTS2020_TrainingData" / FIRST


def rewrite(file, change, affine=None):
    image = nib.load(file)
    array = change(np.asarray(image.dataobj))
    nib.save(nib.Nifti1Image(array, image.affine if affine is None else affine), file)


def test_stand_in_looks_like_the_official_data(made):
    (data,) = made.iterdir()
    assert data.name == "MICCAI_BraTS2020_TrainingData"
    names = [f"BraTS20_Training_{k:03d}" for k in (1, 2, 3)]
    assert sorted(file.name for file in data.iterdir()) == [*names, "name_mapping.csv", "survival_info.csv"]
    with (data / "name_mapping.csv").open(newline="") as table:
        assert [row["BraTS_2020_subject_ID"] for row in csv.DictReader(table)] == names
    for name in names:
        kinds = ("flair", "seg", "t1", "t1ce", "t2")
        assert sorted(file.name for file in (data / name).iterdir()) == [f"{name}_{kind}.nii.gz" for kind in kinds]
        images = [nib.load(data / name / f"{name}_{kind}.nii.gz") for kind in kinds]
        for image in images:
            assert image.get_data_dtype() == np.int16
            assert image.affine.tolist() == [[-1, 0, 0, 0], [0, -1, 0, 239], [0, 0, 1, 0], [0, 0, 0, 1]]
        mask = np.asarray(images[1].dataobj)
        assert np.unique(mask).tolist() == [0, 1, 2, 4]
        assert 0.01 < (mask > 0).mean() < 0.2
        assert np.asarray(images[0].dataobj)[mask > 0].min() > 0  # in the brain


def test_sizes_of_the_splits_are_those_of_the_paper():
    assert list(Brats2020Layout.split_sizes) == list(SPLITS)
    assert sum(Brats2020Layout.split_sizes.values()) == 369


@pytest.mark.parametrize("below", ["", "MICCAI_BraTS2020_TrainingData"])
def test_cases_are_found_below_the_folder(made, below):
    cases = Brats2020Layout(made / below).cases()
    assert [case.id for case in cases] == [f"BraTS20_Training_{k:03d}" for k in (1, 2, 3)]
    assert [case.group for case in cases] == [case.id for case in cases]
    assert {case.split for case in cases} == {None}
    assert {name: file.name for name, file in cases[0].files.items()} == {
        "flair": f"{FIRST}_flair.nii.gz",
        "seg": f"{FIRST}_seg.nii.gz",
    }


def test_folder_of_one_case_is_that_case(source):
    assert [case.id for case in Brats2020Layout(source[1]).cases()] == [FIRST]


@pytest.mark.parametrize("modalities", [["flair"], ["t2"], ["t1ce", "flair"], ["flair", "t1", "t1ce", "t2"]])
def test_content_is_that_of_the_files(made, modalities):
    layout = Brats2020Layout(made, modalities=modalities)
    assert layout.options() == {"modalities": modalities}
    for case in layout.cases():
        content = layout.read(case)
        folder = made / "MICCAI_BraTS2020_TrainingData" / case.id
        images = [nib.load(folder / f"{case.id}_{modality}.nii.gz") for modality in modalities]
        assert content.image.dtype == np.float32
        np.testing.assert_array_equal(content.image, [image.get_fdata() for image in images])
        assert content.labels.dtype == bool
        mask = nib.load(folder / f"{case.id}_seg.nii.gz").get_fdata()
        np.testing.assert_array_equal(content.labels, [(mask == 1) | (mask == 2) | (mask == 4)])
        assert content.noisy is None
        np.testing.assert_array_equal(content.affine, images[0].affine)


@pytest.mark.parametrize("modalities", [[], ["flair", "flair"], ["pet"], "flair,t1"])
def test_unknown_modalities_are_refused(made, modalities):
    with pytest.raises(ValueError, match=r"modalities must be one or more of flair, t1, t1ce, t2, each once, got \["):
        Brats2020Layout(made, modalities=modalities)


def test_one_modality_may_be_given_as_its_name(made):
    assert Brats2020Layout(made, modalities="t1").options() == {"modalities": ["t1"]}


def test_plain_files_are_read_like_packed_ones(source):
    whole, folder = source
    expected = Brats2020Layout(whole).read(Brats2020Layout(whole).cases()[0])
    for file in list(folder.iterdir()):
        file.with_name(file.name.removesuffix(".nii.gz") + ".NII").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    found = Brats2020Layout(whole).read(Brats2020Layout(whole).cases()[0])
    np.testing.assert_array_equal(found.image, expected.image)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_mask_of_case_355_is_found(source):
    whole, folder = source
    mask = folder / f"{FIRST}_seg.nii.gz"
    (folder / "W39_1998.09.19_Segm.nii").write_bytes(gzip.decompress(mask.read_bytes()))
    assert Brats2020Layout(whole).cases()[0].files["seg"] == mask
    mask.unlink()
    layout = Brats2020Layout(whole)
    assert layout.cases()[0].files["seg"].name == "W39_1998.09.19_Segm.nii"
    assert layout.read(layout.cases()[0]).labels.any()


def test_other_folders_and_files_are_left_out(source):
    whole, folder = source
    expected = Brats2020Layout(whole).cases()
    (folder / f"._{FIRST}_flair.nii.gz").write_bytes(b"Mac OS X")
    (folder / "notes.txt").touch()
    for name in ("BraTS20_Validation_001", "deepmedic", "BraTS20_Training_x", ".hidden/BraTS20_Training_009"):
        (whole / name).mkdir(parents=True)
    assert Brats2020Layout(whole).cases() == expected


def test_cases_of_2021_are_found(source):
    whole, folder = source
    renamed = whole / "BraTS2021_00006"
    for file in list(folder.iterdir()):
        file.rename(file.with_name(file.name.replace(FIRST, renamed.name)))
    folder.rename(renamed)
    shutil.rmtree(whole / "MICCAI_BraTS2020_TrainingData")
    layout = Brats2020Layout(whole)
    (case,) = layout.cases()
    assert case.id == "BraTS2021_00006"
    assert layout.read(case).labels.any()
    assert layout.missing([case]) == ["1250 of the 1251 cases of BraTS2021"]


def test_missing_cases_are_named(made, tmp_path):
    layout = Brats2020Layout(made)
    cases = layout.cases()
    names = "BraTS20_Training_001, BraTS20_Training_003, BraTS20_Training_004, ..."
    assert layout.missing(cases[1:2]) == [f"368 of the 369 cases of BraTS20_Training: {names}"]
    assert layout.missing([]) == []
    for k in range(1, 370):
        if k != 355:
            shutil.copytree(
                made / "MICCAI_BraTS2020_TrainingData" / FIRST,
                tmp_path / f"BraTS20_Training_{k:03d}",
                copy_function=lambda old, new, k=k: open(new.replace(FIRST, f"BraTS20_Training_{k:03d}"), "w").close(),
            )
    grown = Brats2020Layout(tmp_path)
    assert grown.missing(grown.cases()) == ["1 of the 369 cases of BraTS20_Training: BraTS20_Training_355"]


def refused(source, message):
    with pytest.raises(ValueError, match=message) as error:
        Brats2020Layout(source).cases()
    assert re.fullmatch(r"[^\n]*[^.\n]\.", str(error.value))


def test_folder_without_cases_is_refused(tmp_path):
    (tmp_path / "deepmedic").mkdir()
    refused(tmp_path, "must hold folders of cases, named as BraTS20_Training_001 or BraTS2021_00000, got none")
    refused(tmp_path / "absent", "absent does not exist")


def test_case_in_two_folders_is_refused(source):
    whole, folder = source
    shutil.copytree(folder, whole / "copy" / FIRST)
    refused(whole, f"{FIRST} and .*copy/{FIRST} must be one folder, not two")


def test_two_years_in_one_folder_are_refused(source):
    (source[0] / "BraTS2021_00000").mkdir()
    refused(source[0], "must hold one year of BraTS, since they share patients, got .*2021_00000 and .*_003;")


@pytest.mark.parametrize("kind", ["flair", "seg"])
def test_case_without_a_file_is_refused(source, kind):
    whole, folder = source
    (folder / f"{FIRST}_{kind}.nii.gz").unlink()
    others = ", ".join(f"{FIRST}_{k}.nii.gz" for k in ("flair", "seg", "t1", "t1ce", "t2") if k != kind)
    refused(whole, f"Folder .*{FIRST} must hold {FIRST}_{kind}.nii.gz or {FIRST}_{kind}.nii, got {others}; copy")


def test_empty_case_is_refused(source):
    whole, folder = source
    shutil.rmtree(folder)
    folder.mkdir()
    refused(whole, "got neither; copy")


def test_file_both_packed_and_plain_is_refused(source):
    whole, folder = source
    (folder / f"{FIRST}_flair.nii").touch()
    refused(whole, r"_flair.nii and .*_flair.nii.gz must be one file, not two")


def truncate(file):
    file.write_bytes(file.read_bytes()[:-200])


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)


BROKEN = [
    pytest.param("flair", truncate, "is truncated or damaged: .*; copy it again", id="truncated"),
    pytest.param("seg", truncate, "is truncated or damaged: .*; copy it again", id="truncated-mask"),
    pytest.param("flair", damage, "is truncated or damaged: .*; copy it again", id="damaged"),
    pytest.param("flair", lambda file: file.write_bytes(b""), "is empty, of 0 bytes", id="empty"),
    pytest.param("flair", lambda file: file.write_bytes(b"<html>" * 99), "truncated or damaged", id="web-page"),
    pytest.param("flair", lambda file: file.unlink(), "does not exist", id="gone-since"),
    pytest.param("seg", lambda file: rewrite(file, lambda a: np.where(a == 4, 3, a).astype(np.int16)),
                 r"must hold 0, 1, 2 and 4 only, got 3; take the masks of BraTS 2020 or 2021", id="labels-of-2023"),
    pytest.param("seg", lambda file: rewrite(file, lambda a: a * np.float32(0.5)), "got 0.5; take", id="half-labels"),
    pytest.param("flair", lambda file: rewrite(file, lambda a: a[1:]),
                 r"must have the shape of label file .*, \(48, 48, 32\), got \(47, 48, 32\)", id="shape"),
    pytest.param("flair", lambda file: rewrite(file, lambda a: a, np.diag([-1.0, -1, 1, 1])),
                 "must lie where label file .* lies, but their corners", id="affine"),
    pytest.param("flair", lambda file: rewrite(file, lambda a: np.stack([a, a], -1)),
                 r"must hold one volume of three axes, got shape \(48, 48, 32, 2\);", id="channels"),
    pytest.param("flair", lambda file: rewrite(file, lambda a: a[..., 0]),
                 r"must hold one volume of three axes, got shape \(48, 48\);", id="slice"),
    pytest.param("flair", lambda file: rewrite(file, lambda a: np.where(a > 0, a, np.nan).astype(np.float32)),
                 "must hold finite numbers, got nan or infinity", id="nan"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "break_file", "message"), BROKEN)
def test_file_that_cannot_be_used_is_refused_by_name(source, kind, break_file, message):
    whole, folder = source
    layout = Brats2020Layout(whole)
    case = layout.cases()[0]
    file = folder / f"{FIRST}_{kind}.nii.gz"
    break_file(file)
    with pytest.raises(ValueError, match=message) as error:
        layout.read(case)
    assert str(file) in str(error.value)
    assert re.fullmatch(r"[^\n]*[^.\n]\.", str(error.value))


def test_case_without_tumour_is_empty(source):
    whole, folder = source
    rewrite(folder / f"{FIRST}_seg.nii.gz", np.zeros_like)
    layout = Brats2020Layout(whole)
    assert not layout.read(layout.cases()[0]).labels.any()
