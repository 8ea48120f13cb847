import gzip
import logging
import os
import pickle
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage
from PIL import Image

from monai_sc.files.grids import check_whole, image_grid
from monai_sc.functional import correct_boundary
from monai_sc.store import LabelStore, UsableCases, usable_cases

SHAPE = (12, 10, 8)
AFFINE = np.array([[-2, 0, 0, 5], [0, 0.5, 0, 6], [0, 0, 3, 7], [0, 0, 0, 1]], dtype=float)
OBLIQUE = nib.affines.from_matvec(nib.eulerangles.euler2mat(0.1, 0.2, 0.3) @ np.diag([1, 2, 3]), [4, 5, 6])
SHEARED = OBLIQUE @ np.array([[1, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def blob(shape=SHAPE):
    mask = np.zeros(shape, dtype=np.uint8)
    mask[tuple(slice(n // 4, n // 2 + 1) for n in shape)] = 1
    return mask


def write_nifti(path, array, affine=AFFINE):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine, dtype=array.dtype), path)
    return str(path)


def write_header(path, shape=SHAPE, **fields):
    """Write an image of float32 whose header nibabel would not write."""
    header = nib.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.float32)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header["pixdim"][:4] = 1
    for key, value in fields.items():
        header[key] = value
    content = header.binaryblock + bytes(4 + 4 * int(np.prod(shape)))
    Path(path).write_bytes(gzip.compress(content) if str(path).endswith(".gz") else content)
    return str(path)


def rows(affine, code=1):
    return {"sform_code": code, "srow_x": affine[0], "srow_y": affine[1], "srow_z": affine[2]}


def quaternion(affine, code=1):
    rotation = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    b, c, d = nib.quaternions.mat2quat(rotation)[1:]
    x, y, z = affine[:3, 3]
    own = {"qoffset_x": x, "qoffset_y": y, "qoffset_z": z, "quatern_b": b, "quatern_c": c, "quatern_d": d}
    return {"qform_code": code, **own}


def write_png(path, array):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.swapaxes(array, 0, 1).copy()).save(path)
    return str(path)


def write_itk(path, array, spacing=1.0, origin=0.0):
    image = itk.image_from_array(np.ascontiguousarray(array.T))
    image.SetSpacing([spacing] * array.ndim)
    image.SetOrigin([origin] * array.ndim)
    itk.imwrite(image, str(path))
    return str(path)


def make_case(folder, case_id="a", label=None, image=None, affine=AFFINE, suffix=".nii.gz"):
    label = blob() if label is None else label
    image = np.zeros(label.shape, np.float32) if image is None else image
    return {
        "id": case_id,
        "image": write_nifti(folder / f"{case_id}-image{suffix}", image, affine),
        "label": write_nifti(folder / f"{case_id}-label{suffix}", label, affine),
    }


@pytest.fixture
def case(tmp_path):
    return make_case(tmp_path)


def cut(case, key, size):
    content = Path(case[key]).read_bytes()
    Path(case[key]).write_bytes(content[:size])


def replaced(key, content):
    def spoil(case, folder):
        Path(case[key]).write_bytes(content)

    return spoil


def truncated(key, size, suffix=".nii.gz"):
    def spoil(case, folder):
        case.update(make_case(folder, suffix=suffix, image=noise(np.float32), label=noise(np.uint8)))
        cut(case, key, size)

    return spoil


def noise(dtype):
    return np.random.default_rng(0).integers(0, 2, SHAPE).astype(dtype)


def flipped_bit(key, place):
    def spoil(case, folder):
        content = bytearray(Path(case[key]).read_bytes())
        content[place] ^= 1
        Path(case[key]).write_bytes(content)

    return spoil


def with_label(array, affine=AFFINE, key="label", **changes):
    def spoil(case, folder):
        case[key] = write_nifti(folder / "other.nii.gz", np.asarray(array), affine)
        case.update(changes)

    return spoil


def with_value(value):
    label = blob().astype(np.float32)
    label[0, 0, 0] = value
    return with_label(label)


def with_header(key, **fields):
    def spoil(case, folder):
        case[key] = write_header(folder / "header.nii", **fields)

    return spoil


def with_files(key, *arrays):
    def spoil(case, folder):
        case[key] = [write_nifti(folder / f"{k}.nii.gz", array) for k, array in enumerate(arrays)]

    return spoil


def without(key):
    def spoil(case, folder):
        Path(case[key]).unlink()

    return spoil


def of_a_folder(key):
    def spoil(case, folder):
        case[key] = str(folder)

    return spoil


def of_other_type(write, name, content=None):
    def spoil(case, folder):
        write(folder / name, noise(np.uint8)[..., 0] if write is write_png else noise(np.uint8))
        for key in ("image", "label"):
            case[key] = str(folder / name)
        if content is not None:
            cut(case, "image", content)

    return spoil


def shifted(by):
    affine = AFFINE.copy()
    affine[0, 3] += by
    return affine


COPY = r"; copy it again from its source\."
BAD = [
    pytest.param(
        without("image"), r"Image file .*a-image\.nii\.gz does not exist or is not a file; correct", id="no-image"
    ),
    pytest.param(
        without("label"), r"Label file .*a-label\.nii\.gz does not exist or is not a file; correct", id="no-label"
    ),
    pytest.param(
        of_a_folder("label"), r"Label file .* does not exist or is not a file; correct its path\.", id="folder"
    ),
    pytest.param(
        replaced("image", b""), rf"Image file .*a-image\.nii\.gz is empty, of 0 bytes{COPY}", id="empty-image"
    ),
    pytest.param(
        replaced("label", b""), rf"Label file .*a-label\.nii\.gz is empty, of 0 bytes{COPY}", id="empty-label"
    ),
    pytest.param(
        replaced("image", b"garbage " * 99),
        r"Image file .*a-image\.nii\.gz is truncated or damaged: Not a gzipped file .*; copy it",
        id="garbage-image",
    ),
    pytest.param(
        replaced("label", b"garbage " * 99),
        r"Label file .*a-label\.nii\.gz is truncated or damaged: Not a gzipped file .*; copy it",
        id="garbage-label",
    ),
    pytest.param(
        replaced("label", gzip.compress(b"garbage " * 99)),
        r"Label file .*a-label\.nii\.gz cannot be read: ",
        id="no-nifti",
    ),
    pytest.param(
        truncated("image", -20), rf"Image file .*a-image\.nii\.gz is truncated or damaged: .*{COPY}", id="cut-image"
    ),
    pytest.param(
        truncated("image", 60), r"Image file .* is truncated or damaged: Compressed file ended", id="cut-header"
    ),
    pytest.param(
        truncated("label", 60), r"Label file .* is truncated or damaged: Compressed file ended", id="cut-label"
    ),
    pytest.param(
        truncated("label", -3), r"Label file .* is truncated or damaged: Compressed file ended", id="cut-trailer"
    ),
    pytest.param(
        truncated("image", 1000, ".nii"),
        rf"Image file .*a-image\.nii is truncated: 1000 of the 4192 bytes that its header states{COPY}",
        id="cut-nii-image",
    ),
    pytest.param(
        truncated("label", 1000, ".nii"),
        rf"Label file .*a-label\.nii is truncated: 1000 of the 1312 bytes that its header states{COPY}",
        id="cut-nii-label",
    ),
    pytest.param(truncated("image", 300, ".nii"), r"Image file .*a-image\.nii cannot be read: ", id="cut-nii-header"),
    pytest.param(flipped_bit("label", -6), r"Label file .* is truncated or damaged: CRC check failed", id="checksum"),
    pytest.param(flipped_bit("image", -2), r"Image file .* is truncated or damaged: Incorrect length", id="length"),
    pytest.param(of_other_type(write_png, "a.png", 60), r"Image file .*a\.png cannot be read: ", id="cut-png"),
    pytest.param(
        of_other_type(write_itk, "a.nrrd", -400), r"Image file .*a\.nrrd cannot be read: Read: ", id="cut-nrrd"
    ),
    pytest.param(
        of_other_type(write_itk, "a.mha", -400), r"Image file .*a\.mha cannot be read: File cannot", id="cut-mha"
    ),
    pytest.param(
        with_value(3), r"Label file .*other\.nii\.gz must hold 0 and one other value, got 1, 3; state", id="value"
    ),
    pytest.param(with_value(np.nan), r"Label file .*other\.nii\.gz must hold numbers, got nan or inf", id="nan"),
    pytest.param(with_value(np.inf), r"Label file .*other\.nii\.gz must hold numbers, got nan or inf", id="infinity"),
    pytest.param(
        with_label(blob(), foreground=255),
        r"Label file .*other\.nii\.gz must hold 0 and 255 only, got 1;",
        id="foreground",
    ),
    pytest.param(
        with_label(np.stack([blob()] * 2, -1)),
        r"Label file .*other\.nii\.gz must hold one channel, got 2\.",
        id="channels",
    ),
    pytest.param(
        with_label(blob((12, 10, 7))),
        r"Label file .*other\.nii\.gz must have the shape of image file .*a-image\.nii\.gz, \(12, 10, 8\), got "
        r"\(12, 10, 7\); resample or reorient one of them\.",
        id="shape",
    ),
    pytest.param(
        with_files("label", blob(), blob((12, 10, 7))),
        r"Label file .*1\.nii\.gz must have the shape of .*, got \(12, 10, 7\);",
        id="shape-of-second-class",
    ),
    pytest.param(
        with_label(blob(), shifted(1)),
        r"Label file .*other\.nii\.gz must lie where image file .*a-image\.nii\.gz lies, but their corners are up to "
        r"[\d.]+ voxels apart; resample or reorient one of them\.",
        id="affine",
    ),
    pytest.param(
        with_label(blob(), shifted(1), key="reference_label"),
        r"Label file .*other\.nii\.gz must lie where image file",
        id="clean-label",
    ),
    pytest.param(
        with_label(blob() + blob()[::-1], key="reference_label"),
        r"Label file .*other\.nii\.gz must hold 0 and one other value, got 1, 2;",
        id="clean-value",
    ),
    pytest.param(
        with_label(blob(), np.eye(4), key="trusted"),
        r"Trusted mask .*other\.nii\.gz must lie where image file",
        id="trusted",
    ),
    pytest.param(
        with_label(np.stack([blob()] * 2, -1), key="trusted"),
        r"Trusted mask .*other\.nii\.gz must hold one channel, got 2\.",
        id="trusted-channels",
    ),
    pytest.param(
        with_files("trusted", blob(), blob()),
        r"Trusted mask .*0\.nii\.gz must be one file for all classes, or there must be one per class, 1, got 2\.",
        id="trusted-number",
    ),
    pytest.param(
        with_files("image", blob(), blob((12, 10, 7))),
        r"Image file .*1\.nii\.gz must have the shape of image file",
        id="channel",
    ),
    pytest.param(
        with_header("image", **rows(np.zeros((4, 4)))),
        r"Image file .*header\.nii must have an affine that has an inverse, got \[\[0\.0, .*; correct its header",
        id="zero-affine",
    ),
    pytest.param(
        with_header("image", **rows(np.diag([1, 1, 0, 1]))),
        r"Image file .*header\.nii must have an affine that has an inverse",
        id="flat-affine",
    ),
    pytest.param(
        with_header("image", **rows(np.full((4, 4), np.nan))),
        r"Image file .*header\.nii must have a finite affine, got \[\[nan, .*; correct its header, or convert it again",
        id="nan-affine",
    ),
    pytest.param(
        with_header("label", **rows(np.full((4, 4), np.nan))),
        r"Label file .*header\.nii must have a finite affine",
        id="nan-label",
    ),
    pytest.param(
        with_header("image", pixdim=[1, 1, 0, 1, 0, 0, 0, 0]),
        r"Image file .*header\.nii must have a positive voxel size, got \[1\.0, 0\.0, 1\.0\] mm; correct its header",
        id="voxel-size",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_bad_case_is_refused_or_left_out(case, tmp_path, caplog, spoil, message):
    spoil(case, tmp_path)
    good = make_case(tmp_path / "good", "b")
    if isinstance(case["label"], list):  # all cases have the same number of label files
        good["label"] = [good["label"]] * 2
    with pytest.raises(ValueError, match=rf"^Case 'a' cannot be used: {message}.* on_bad_case='skip' skips bad cases"):
        usable_cases([case, good], progress=False)
    with caplog.at_level(logging.WARNING):
        usable = usable_cases([case, good], on_bad_case="skip", progress=False)
    assert usable == [good]
    assert list(usable.skipped) == ["a"]
    assert usable.skipped["a"].endswith(".")
    assert "\n" not in usable.skipped["a"]
    warnings = [record.getMessage() for record in caplog.records if record.name == "monai_sc.store.usable_cases"]
    assert warnings == [f"Case 'a' is skipped: {usable.skipped['a']}"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("key", ["image", "label"])
def test_file_without_permission_is_refused(case, key):
    Path(case[key]).chmod(0)
    with pytest.raises(
        ValueError,
        match=rf"{key.capitalize()} file .*a-{key}\.nii\.gz cannot be read: Permission denied; make it readable\.",
    ):
        usable_cases([case], progress=False)


def test_error_tells_how_many_more_are_bad(tmp_path):
    cases = [make_case(tmp_path, case_id) for case_id in "abcd"]
    for case in cases[1:3]:
        Path(case["label"]).write_bytes(b"")
    message = (
        r"^Case 'b' cannot be used: Label file .*b-label.* 1 more of 4 cases cannot be used\. on_bad_case='skip' skips"
    )
    with pytest.raises(ValueError, match=message):
        usable_cases(cases, progress=False)


def test_list_of_bad_cases_only_is_refused_with_skip_too(tmp_path):
    cases = [make_case(tmp_path, case_id) for case_id in "ab"]
    for case in cases:
        Path(case["label"]).write_bytes(b"")
    with pytest.raises(ValueError, match=r"^Case 'a' cannot be used: .* source\. 1 more of 2 cases cannot be used\.$"):
        usable_cases(cases, on_bad_case="skip", progress=False)


def test_sound_cases_are_returned_and_nothing_is_written(tmp_path):
    cases = [make_case(tmp_path, case_id) for case_id in "ba"]
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*")}
    usable = usable_cases(cases, clean=[make_case(tmp_path / "clean", "c")], progress=False)
    assert isinstance(usable, UsableCases)
    assert usable == cases
    assert usable.skipped == {}
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if "clean" not in f.parts} == before
    copy = pickle.loads(pickle.dumps(UsableCases(cases, {"c": "why"})))
    assert (copy, copy.skipped) == (cases, {"c": "why"})


def link(file, target):
    file.symlink_to(target)
    return str(file)


@pytest.mark.parametrize(
    ("kind", "as_link"), [("image", False), ("image", True), ("label", False)], ids=["image", "link", "label"]
)
def test_file_of_two_cases_is_refused_in_the_second(tmp_path, kind, as_link):
    cases = [make_case(tmp_path, case_id) for case_id in "ab"]
    cases[1][kind] = link(tmp_path / "link.nii.gz", cases[0][kind]) if as_link else cases[0][kind]
    usable = usable_cases(cases, on_bad_case="skip", progress=False)
    assert usable == cases[:1]
    expected = f"{kind.capitalize()} file {cases[1][kind]} already belongs to case 'a'; remove one of them."
    assert usable.skipped == {"b": expected}


def test_file_of_a_bad_case_may_be_used_by_the_next(tmp_path):
    cases = [make_case(tmp_path, case_id) for case_id in "ab"]
    cases[1]["image"] = cases[0]["image"]
    Path(cases[0]["label"]).write_bytes(b"")
    assert usable_cases(cases, on_bad_case="skip", progress=False) == cases[1:]


@pytest.mark.parametrize("same", ["id", "image"])
def test_clean_case_among_the_training_cases_is_refused(tmp_path, same):
    cases = [make_case(tmp_path, case_id) for case_id in "ab"]
    clean = make_case(tmp_path / "clean", "A" if same == "id" else "c")
    if same == "image":
        clean["image"] = link(tmp_path / "link.nii.gz", cases[0]["image"])
    message = (
        r"^Case 'a' cannot be used: Image file .*a-image.* is also a clean case: the bias would be measured on what the"
    )
    with pytest.raises(ValueError, match=message):
        usable_cases(cases, clean=[clean], progress=False)
    assert usable_cases(cases, clean=[clean], on_bad_case="skip", progress=False) == cases[1:]


LABEL_MAP = blob() + np.uint8(3) * np.roll(blob(), 6, axis=0)


def test_label_maps_are_checked_by_their_values(tmp_path):
    cases = [make_case(tmp_path, "a", LABEL_MAP), make_case(tmp_path, "b", LABEL_MAP * 2)]
    cases[0]["reference_label"] = cases[0]["label"]
    cases[0]["trusted"] = [write_nifti(tmp_path / f"trusted{k}.nii.gz", blob()) for k in range(2)]
    usable = usable_cases(cases, values=[1, 3], on_bad_case="skip", progress=False)
    assert usable == cases[:1]
    (reason,) = usable.skipped.values()
    assert reason.endswith(
        "b-label.nii.gz must hold 0, 1 and 3 only, got 2, 6; values must list every class of the file."
    )


ODD_LABELS = [
    *(
        pytest.param(blob().astype(dtype), id=dtype)
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
    ),
    pytest.param(blob().astype(">i2"), id="big-endian"),
    pytest.param(blob()[..., None], id="last-axis-of-length-1"),
    pytest.param(np.zeros(SHAPE, np.uint8), id="empty"),
    pytest.param(np.ones(SHAPE, np.uint8), id="full"),
    pytest.param(blob((40, 40)), id="2d"),
    pytest.param(blob((40, 40, 1)), id="one-slice"),
    pytest.param(blob((40, 40, 2)), id="two-slices"),
]


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("label", ODD_LABELS)
def test_odd_label_is_fine(tmp_path, label, suffix):
    shape = label.shape[:3]
    cases = [make_case(tmp_path, label=label, image=np.zeros(shape, np.float32), suffix=suffix)]
    assert usable_cases(cases, progress=False) == cases


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.float64])
def test_label_with_a_scale_is_fine(case, tmp_path, dtype):
    image = nib.Nifti1Image(blob().astype(dtype) * 255, AFFINE)
    image.header.set_slope_inter(0.0039215683, 0)
    nib.save(image, tmp_path / "scaled.nii")
    assert 0.999 < nib.load(tmp_path / "scaled.nii").get_fdata().max() < 1
    cases = [case | {"label": str(tmp_path / "scaled.nii")}]
    assert usable_cases(cases, progress=False) == cases


@pytest.mark.parametrize("affine", [OBLIQUE, SHEARED], ids=["oblique", "sheared"])
def test_oblique_and_sheared_grids_are_fine_where_image_and_label_agree(tmp_path, affine):
    cases = [make_case(tmp_path, affine=affine)]
    assert usable_cases(cases, progress=False) == cases
    write_nifti(cases[0]["label"], blob(), AFFINE)
    with pytest.raises(ValueError, match=r"a-label\.nii\.gz must lie where image file .*a-image\.nii\.gz lies"):
        usable_cases(cases, progress=False)


HEADERS = [
    pytest.param(rows(OBLIQUE), [1, 2, 3], id="sform-only"),
    pytest.param(quaternion(OBLIQUE), [1, 2, 3], id="qform-only"),
    pytest.param(rows(OBLIQUE) | quaternion(OBLIQUE), [1, 2, 3], id="both"),
    pytest.param(rows(OBLIQUE, 2) | quaternion(np.diag([1, 2, 3, 1])), [1, 2, 3], id="both-different"),
    pytest.param({}, [1, 2, 3], id="neither"),
    pytest.param(rows(np.diag([4, 4, 4, 1])) | quaternion(OBLIQUE), [1, 2, 3], id="sform-against-voxel-size"),
    pytest.param(rows(OBLIQUE), [1, 1, 1], id="sform-only-against-voxel-size"),
    pytest.param(rows(SHEARED), np.linalg.norm(SHEARED[:3, :3], axis=0), id="sheared"),
]


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(("fields", "sizes"), HEADERS)
def test_affine_of_the_header_is_that_of_the_loaded_image(tmp_path, fields, sizes, suffix):
    path = write_header(tmp_path / f"a{suffix}", **fields, pixdim=[1, *sizes, 0, 0, 0, 0])
    loaded = LoadImage(ensure_channel_first=True)(path)
    grid = image_grid(Path(path), "Image")
    assert grid.shape == tuple(loaded.shape[1:])
    np.testing.assert_array_equal(grid.affine, loaded.meta["original_affine"])
    label = write_nifti(tmp_path / "label.nii.gz", blob(), grid.affine)
    cases = [{"id": "a", "image": path, "label": label}]
    assert usable_cases(cases, progress=False) == cases


def test_third_axis_of_a_2d_file_may_have_no_size(tmp_path):
    affine = np.diag([2.0, 3.0, 0.0, 1.0])
    image, label = (
        write_header(tmp_path / name, (12, 10), **rows(affine), pixdim=[1, 2, 3, 0, 0, 0, 0, 0])
        for name in ("i.nii", "l.nii")
    )
    cases = [{"id": "a", "image": image, "label": label}]
    assert usable_cases(cases, progress=False) == cases


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 1), (9, 8, 7, 3), (9, 8, 7, 1, 3)], ids=str)
def test_shape_of_the_header_is_that_of_the_loaded_image(tmp_path, shape):
    path = write_nifti(tmp_path / "a.nii.gz", np.zeros(shape, np.float32))
    loaded = LoadImage(ensure_channel_first=True)(path)
    assert image_grid(Path(path), "Image").shape == tuple(loaded.shape[1:])


def test_nifti_image_is_not_decompressed(case):
    write_nifti(case["image"], noise(np.float32))
    flipped_bit("image", -99)(case, None)
    with pytest.raises(Exception, match=r"Error -3|CRC"):
        gzip.decompress(Path(case["image"]).read_bytes())
    assert usable_cases([case], progress=False) == [case]


def test_size_of_an_image_over_4_gib_is_known_modulo_2_to_the_32(tmp_path):
    header = nib.Nifti1Header()
    header.set_data_shape((2048, 2048, 1024))
    header.set_data_dtype(np.uint8)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    path = tmp_path / "large.nii.gz"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4)))  # 2**32 bytes less than the header tells
    check_whole(path, "Image", to_end=False)
    with pytest.raises(ValueError, match=r"^Image is truncated: 352 of the 4294967648 bytes that its header states;"):
        check_whole(path, "Image", to_end=True)


def test_gzip_file_of_several_parts_is_whole(case):
    for key in ("image", "label"):
        content = gzip.decompress(Path(case[key]).read_bytes())
        Path(case[key]).write_bytes(gzip.compress(content[:500]) + gzip.compress(content[500:]))
    assert usable_cases([case], progress=False) == [case]
    Path(case["image"]).write_bytes(gzip.compress(content[:400]) + gzip.compress(content[400:500]))
    with pytest.raises(ValueError, match=r"a-image\.nii\.gz is truncated: 500 of the "):
        usable_cases([case], progress=False)


def test_channels_in_one_file_or_in_several_are_fine(case, tmp_path):
    stacked = write_nifti(tmp_path / "stacked.nii.gz", np.zeros((*SHAPE, 3), np.float32))
    channels = [case["image"], write_nifti(tmp_path / "second.nii", np.zeros(SHAPE, np.int16))]
    for image in (stacked, channels):
        assert usable_cases([case | {"image": image}], progress=False) == [case | {"image": image}]


def test_pictures_have_no_geometry(tmp_path):
    mask = blob((12, 10)) * 255
    image = write_png(tmp_path / "image.png", np.stack([mask] * 3, -1))
    labels = [write_png(tmp_path / "label.png", mask), write_nifti(tmp_path / "label.nii.gz", mask)]
    cases = [{"id": "a", "image": image, "label": labels, "foreground": 255}]
    assert usable_cases(cases, progress=False) == cases
    write_png(image, mask[:8])
    with pytest.raises(
        ValueError, match=r"label\.png must have the shape of image file .*image\.png, \(8, 10\), got \(12, 10\)"
    ):
        usable_cases(cases, progress=False)


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_geometry_of_other_formats_is_that_of_nifti(tmp_path, suffix):
    image = write_itk(tmp_path / f"image{suffix}", np.zeros(SHAPE, np.float32), spacing=2.0, origin=3.0)
    affine = np.diag([-2.0, -2.0, 2.0, 1.0])
    affine[:3, 3] = -3, -3, 3
    cases = [{"id": "a", "image": image, "label": write_nifti(tmp_path / "label.nii.gz", blob(), affine)}]
    assert usable_cases(cases, progress=False) == cases
    write_nifti(cases[0]["label"], blob(), np.diag([2.0, 2.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match=rf"label\.nii\.gz must lie where image file .*image\{suffix} lies"):
        usable_cases(cases, progress=False)


def test_volume_of_two_slices_is_corrected(tmp_path):
    label = np.zeros((40, 40, 2), np.uint8)
    label[10:30, 10:30] = 1
    cases = usable_cases([make_case(tmp_path, label=label)], progress=False)
    store = LabelStore(tmp_path / "store", cases)
    logits = np.where(store.read("a"), 1.0, -1.0)
    with store.write_round(1, {}) as writer:
        writer.write("a", np.asarray(correct_boundary(logits, -2.0)) >= 0)
    expected = np.zeros_like(label)
    expected[12:28, 12:28] = 1
    np.testing.assert_array_equal(store.read("a")[0], expected)
    assert usable_cases(store.datalist(), progress=False) == store.datalist()


STRUCTURE = [
    pytest.param([], ValueError, r"cases must hold at least one case, got none\.", id="empty"),
    pytest.param(["a"], TypeError, r"cases must be a list of dictionaries", id="no-dictionary"),
    pytest.param([{"id": "a", "image": "b"}], KeyError, r"'a' has no 'label'", id="no-label"),
    pytest.param([{"id": "../a", "image": "b", "label": "c"}], ValueError, r"must be a string that can name", id="id"),
    pytest.param([{"id": "a", "image": "b", "label": "c"}] * 2, ValueError, r"ids of cases must be unique", id="twice"),
    pytest.param(
        [{"id": "a", "image": "b", "label": []}], TypeError, r"'label' of case 'a' must be a file", id="no-file"
    ),
]


@pytest.mark.parametrize("on_bad_case", ["raise", "skip"])
@pytest.mark.parametrize(("cases", "error", "message"), STRUCTURE)
def test_unsound_list_is_always_refused(case, cases, error, message, on_bad_case):
    with pytest.raises(error, match=message):
        usable_cases(cases, on_bad_case=on_bad_case, progress=False)
    if cases:
        with pytest.raises(error, match=message):
            usable_cases([case], clean=cases, on_bad_case=on_bad_case, progress=False)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"on_bad_case": "drop"}, r"on_bad_case must be one of .*, got 'drop'"),
        ({}, {"values": [0]}, r"values must be distinct whole numbers"),
        (
            {"label": ["a", "b"]},
            {"values": [1, 2]},
            r"With values a label must be one file, a label map, got 2 in every case",
        ),
        ({"foreground": 255}, {"values": [1]}, r"foreground must be omitted if values give the classes"),
        ({"foreground": 0}, {}, r"foreground must be the value of the foreground in the files, over 0, got 0\."),
    ],
    ids=["on-bad-case", "values", "files-and-values", "foreground-and-values", "foreground"],
)
def test_wrong_option_is_always_refused(case, changes, options, message):
    with pytest.raises(ValueError, match=message):
        usable_cases([case | changes], **{"on_bad_case": "skip", **options}, progress=False)
