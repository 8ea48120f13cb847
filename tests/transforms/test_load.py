from __future__ import annotations

import pickle
import threading

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader, Dataset, MetaTensor, set_track_meta
from monai.transforms import Compose, LoadImage, SpatialPadd
from PIL import Image

from monai_sc.files.read import _Images
from monai_sc.transforms import LoadLabel, LoadLabelD, LoadLabeld, LoadLabelDict

AFFINE = np.array([[-2, 0, 0, 5], [0, 0.5, 0, 6], [0, 0, 3, 7], [0, 0, 0, 1]], dtype=float)


@pytest.fixture
def mask():
    """Return a boolean mask of 6 columns and 4 rows, as ``(x, y)``, that no flip or transpose maps to itself."""
    mask = np.zeros((6, 4), dtype=bool)
    mask[1:5, 1] = mask[1, 2] = True
    return mask


@pytest.fixture
def volume():
    return np.random.default_rng(0).random((5, 4, 3)) < 0.4


@pytest.fixture
def write_png(tmp_path):
    """Return a function that writes an array ``(x, y)`` or ``(x, y, channels)`` to a PNG file."""

    def write(array, name="label.png"):
        Image.fromarray(np.swapaxes(array, 0, 1).copy()).save(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def write_nifti(tmp_path):
    def write(array, name="label.nii.gz", affine=AFFINE):
        nib.save(nib.Nifti1Image(array, affine), tmp_path / name)
        return tmp_path / name

    return write


def check_label(label, expected):
    assert isinstance(label, MetaTensor)
    assert label.dtype == torch.uint8
    assert np.array_equal(label, expected)


@pytest.mark.parametrize(("value", "foreground"), [(1, 1), (255, 255), (7, 7)])
@pytest.mark.parametrize("as_path", [str, lambda path: path, lambda path: [path]], ids=["str", "path", "list"])
def test_png_becomes_zeros_and_ones(mask, write_png, value, foreground, as_path):
    path = write_png(mask.astype(np.uint8) * value)
    label = LoadLabel(foreground=foreground)(as_path(path))
    check_label(label, mask[None])
    assert label.meta["filename_or_obj"] == str(path)


def test_one_bit_png_holds_ones(mask, write_png):
    check_label(LoadLabel()(write_png(mask)), mask[None])


def test_axes_are_those_of_the_image_that_monai_loads(mask, write_png):
    path = write_png(mask.astype(np.uint8) * 255)
    image = LoadImage(ensure_channel_first=True)(path)
    label = LoadLabel(foreground=255)(path)
    assert torch.equal(label.as_tensor() * 255, image.as_tensor().to(torch.uint8))
    assert torch.equal(label.affine, image.affine)


def test_files_are_the_channels_in_their_order(mask, write_png):
    masks = [mask, ~mask, mask[::-1]]
    paths = [write_png(m.astype(np.uint8) * 255, f"{i}.png") for i, m in enumerate(masks)]
    label = LoadLabel(foreground=255)(paths)
    check_label(label, np.stack(masks))
    assert label.meta["filename_or_obj"] == str(paths[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_nifti_keeps_its_affine(volume, write_nifti, dtype):
    label = LoadLabel()(write_nifti(volume.astype(dtype)))
    check_label(label, volume[None])
    assert np.array_equal(label.affine, AFFINE)


def test_nifti_of_one_slice_is_2d(mask, write_nifti):
    check_label(LoadLabel()(write_nifti(mask.astype(np.uint8))), mask[None])


def test_value_that_is_rounded_counts_as_the_foreground(volume, write_nifti):
    almost = np.float32(0.99999997)
    assert almost != 1
    check_label(LoadLabel()(write_nifti(volume * almost)), volume[None])


def test_value_that_a_scale_makes_inexact_counts_as_the_foreground(volume, tmp_path):
    image = nib.Nifti1Image((volume * 255).astype(np.int16), AFFINE)
    image.header.set_slope_inter(0.0039215683, 0)
    nib.save(image, tmp_path / "scaled.nii")
    check_label(LoadLabel()(tmp_path / "scaled.nii"), volume[None])


@pytest.mark.parametrize("value", [0, 1], ids=["empty", "full"])
def test_empty_and_full_labels_are_read(write_nifti, value):
    check_label(LoadLabel()(write_nifti(np.full((3, 4, 2), value, dtype=np.uint8))), np.full((1, 3, 4, 2), value))


def test_label_is_loaded_without_metadata_where_monai_tracks_none(mask, write_png):
    path = write_png(mask.astype(np.uint8))
    set_track_meta(False)
    try:
        label = LoadLabel()([path, path])
    finally:
        set_track_meta(True)
    assert type(label) is torch.Tensor
    assert label.dtype == torch.uint8
    assert np.array_equal(label, [mask, mask])


def test_foreground_of_each_case_is_taken_from_its_key(mask, write_png):
    ones, twos = (write_png(mask.astype(np.uint8) * value, f"{value}.png") for value in (1, 2))
    check_label(LoadLabeld("label")({"label": ones})["label"], mask[None])
    check_label(LoadLabeld("label")({"label": twos, "foreground": 2})["label"], mask[None])
    load = LoadLabeld(["label", "second"], foreground_key="value")
    out = load({"label": twos, "second": [twos, twos], "value": 2, "foreground": 9})
    check_label(out["label"], mask[None])
    check_label(out["second"], [mask, mask])


def test_case_is_not_written_to(mask, write_png):
    case = {"label": write_png(mask.astype(np.uint8)), "id": "case-1"}
    before = dict(case)
    out = LoadLabeld("label")(case)
    assert case == before
    assert out["id"] == "case-1"


def test_labels_are_loaded_by_workers_in_compose(mask, write_png):
    path = write_png(mask.astype(np.uint8) * 255)
    cases = [{"id": str(i), "label": [path, path], "foreground": 255} for i in range(3)]
    transform = Compose([LoadLabeld("label"), SpatialPadd("label", (8, 8))])
    batches = list(DataLoader(Dataset(cases, transform), batch_size=3, num_workers=2))
    assert batches[0]["label"].shape == (3, 2, 8, 8)
    assert batches[0]["label"].sum() == 3 * 2 * mask.sum()


def test_missing_key_is_refused_unless_allowed(mask, write_png):
    case = {"label": write_png(mask.astype(np.uint8))}
    with pytest.raises(KeyError, match="absent"):
        LoadLabeld(["label", "absent"])(case)
    assert set(LoadLabeld(["label", "absent"], allow_missing_keys=True)(case)) == {"label"}


def test_aliases_are_the_dictionary_version():
    assert LoadLabelD is LoadLabelDict is LoadLabeld
    assert LoadLabeld.backend == LoadLabel.backend


def test_pickled_transform_does_the_same(mask, write_png):
    path = write_png(mask.astype(np.uint8) * 255)
    check_label(pickle.loads(pickle.dumps(LoadLabel(foreground=255)))(path), mask[None])
    check_label(
        pickle.loads(pickle.dumps(LoadLabeld("label")))({"label": path, "foreground": 255})["label"], mask[None]
    )


@pytest.mark.parametrize("prefix", ["monai_sc.transforms.", ""], ids=["full-path", "bare-name"])
def test_transform_is_parsed_from_a_bundle_config(mask, write_png, prefix):
    config = {"_target_": f"{prefix}LoadLabeld", "keys": "label", "foreground_key": "value"}
    load = ConfigParser({"load": config}).get_parsed_content("load")
    assert type(load) is LoadLabeld
    check_label(load({"label": write_png(mask.astype(np.uint8) * 3), "value": 3})["label"], mask[None])


@pytest.mark.parametrize("foreground", [0, -1, float("nan")])
def test_foreground_that_is_not_over_0_is_refused(foreground):
    with pytest.raises(
        ValueError, match=rf"^foreground must be the value of the foreground .*, over 0, got {foreground}\.$"
    ):
        LoadLabel(foreground=foreground)


@pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "path"])
def test_missing_file_is_named(tmp_path, as_path):
    with pytest.raises(FileNotFoundError, match=r"^Label file .*no-such-file\.png does not exist\.$"):
        LoadLabel()(as_path(tmp_path / "no-such-file.png"))


STRAY = [
    pytest.param(255, 1, r"gray\.png must hold 0 and 1 only, got 255; 'foreground' of", id="0-255-read-as-0-1"),
    pytest.param(1, 255, r"gray\.png must hold 0 and 255 only, got 1;", id="0-1-read-as-0-255"),
    pytest.param(254, 255, r"gray\.png must hold 0 and 255 only, got 254;", id="off-by-one"),
]


@pytest.mark.parametrize(("value", "foreground", "message"), STRAY)
def test_stray_value_is_refused_with_the_name_of_its_file(mask, write_png, value, foreground, message):
    good = write_png(mask.astype(np.uint8) * foreground, "good.png")
    stray = write_png(mask.astype(np.uint8) * value, "gray.png")
    with pytest.raises(ValueError, match=rf"^Label file .*{message}"):
        LoadLabel(foreground=foreground)([good, stray])
    with pytest.raises(ValueError, match=rf"^Label file .*{message}"):
        LoadLabeld("label")({"label": stray, "foreground": foreground})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, r"must hold 0 and one other value, got 0\.5, 1; state 'foreground' in its case, or values for"),
        (0.99, r"must hold 0 and one other value, got 0\.99, 1;"),
        (-1, r"must hold 0 and one other value, got -1, 1;"),
        (np.nan, r"must hold numbers, got nan or infinity\.$"),
        (-np.inf, r"must hold numbers, got nan or infinity\.$"),
    ],
)
def test_stray_value_of_a_volume_is_refused(volume, write_nifti, value, shown):
    array = volume.astype(np.float32)
    array[0, 0, 0] = value
    with pytest.raises(ValueError, match=rf"label\.nii\.gz {shown}"):
        LoadLabel()(write_nifti(array))


def test_integer_map_is_refused_and_at_most_five_of_its_values_are_listed(write_png):
    path = write_png(np.repeat(np.arange(6, dtype=np.uint8), 24).reshape(12, 12))
    with pytest.raises(ValueError, match=r"must hold 0 and one other value, got 1, 2, 3, 4, 5; state 'foreground' in"):
        LoadLabel()(path)


def test_image_is_told_from_a_label_map(write_png):
    path = write_png(np.arange(24, dtype=np.uint8).reshape(6, 4))
    with pytest.raises(ValueError, match=r"got 1, 2, 3, 4, 23; 23 of its values look like an image's, .*; give the fo"):
        LoadLabel()(path)


@pytest.mark.parametrize("value", [1, 7, 255])
def test_foreground_is_the_one_value_beside_0(mask, write_png, value):
    path = write_png(mask.astype(np.uint8) * value)
    check_label(LoadLabel()(path), mask[None])
    check_label(LoadLabeld("label")({"label": str(path)})["label"], mask[None])
    check_label(LoadLabel()(write_png(np.zeros_like(mask, np.uint8), "empty.png")), np.zeros_like(mask)[None])
    check_label(LoadLabel()(write_png(np.full_like(mask, value, np.uint8), "full.png")), np.ones_like(mask)[None])
    both = [path, write_png((~mask).astype(np.uint8) * 3, "other.png")]  # each file has its own
    check_label(LoadLabel()(both), np.stack([mask, ~mask]))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_picture_of_several_channels_is_refused(mask, write_png, channels):
    path = write_png(np.repeat(mask[..., None].astype(np.uint8), channels, axis=-1), "color.png")
    with pytest.raises(ValueError, match=rf"^Label file .*color\.png must hold one channel, got {channels}\.$"):
        LoadLabel()(path)


def test_files_of_different_shapes_are_refused(mask, write_png):
    paths = [write_png(mask.astype(np.uint8), "wide.png"), write_png(mask[:5].astype(np.uint8), "narrow.png")]
    message = r"^The label files of a case must have one shape, got .*wide\.png \(6, 4\), .*narrow\.png \(5, 4\)\.$"
    with pytest.raises(ValueError, match=message):
        LoadLabel()(paths)


def test_no_file_is_refused():
    with pytest.raises(ValueError, match="at least one file"):
        LoadLabel()([])


LABEL_MAP = np.array([[[0, 1, 2], [4, 4, 0]], [[2, 1, 0], [0, 0, 4]]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_values_are_the_channels_of_a_label_map(write_nifti, dtype):
    label = LoadLabel(values=[4, 1, 2])(write_nifti(LABEL_MAP.astype(dtype)))
    check_label(label, [LABEL_MAP == 4, LABEL_MAP == 1, LABEL_MAP == 2])
    assert np.array_equal(label.affine, AFFINE)


def test_value_that_no_voxel_has_is_an_empty_channel(write_nifti):
    label = LoadLabel(values=(1, 2, 3, 4))([write_nifti(LABEL_MAP.astype(np.uint8))])
    assert label.sum(dim=(1, 2, 3)).tolist() == [2, 2, 0, 3]


def test_label_map_of_a_picture_is_2d(write_png):
    array = np.arange(12, dtype=np.uint8).reshape(4, 3)
    check_label(LoadLabel(values=range(1, 12))(write_png(array)), [array == value for value in range(1, 12)])


def test_values_that_a_scale_makes_inexact_count(tmp_path):
    image = nib.Nifti1Image((LABEL_MAP * 255).astype(np.int16), AFFINE)
    image.header.set_slope_inter(0.0039215683, 0)
    nib.save(image, tmp_path / "scaled.nii")
    assert not np.isin(nib.load(tmp_path / "scaled.nii").get_fdata(), LABEL_MAP).all()
    check_label(LoadLabel(values=[1, 2, 4])(tmp_path / "scaled.nii"), [value == LABEL_MAP for value in (1, 2, 4)])


def test_last_axis_of_length_one_is_the_channel(write_nifti):
    path = write_nifti(LABEL_MAP[..., None].astype(np.uint8))
    check_label(LoadLabel(values=[1, 2, 4])(path), [value == LABEL_MAP for value in (1, 2, 4)])


@pytest.mark.parametrize(("value", "shown"), [(3, "3"), (1.5, "1.5"), (-1, "-1")])
def test_value_that_is_not_listed_is_refused_with_the_name_of_its_file(write_nifti, value, shown):
    array = LABEL_MAP.astype(np.float32)
    array[0, 0, 0] = value
    message = rf"^Label file .*label\.nii\.gz must hold 0, 1, 2 and 4 only, got {shown}; values must list every class"
    with pytest.raises(ValueError, match=message):
        LoadLabel(values=[1, 2, 4])(write_nifti(array))


def test_several_files_are_refused_with_values(write_png, mask):
    paths = [write_png(mask.astype(np.uint8), f"{i}.png") for i in range(2)]
    with pytest.raises(
        ValueError, match=r"With values a label must be one file, a label map, got 2: .*0\.png, .*1\.png"
    ):
        LoadLabel(values=[1])(paths)


@pytest.mark.parametrize(
    "values", [[], [0, 1], [1, 1], [1.5], ["a"], "12", [np.nan], [[1]], 1, [2**24]], ids=lambda values: repr(values)
)
@pytest.mark.parametrize("make", [LoadLabel, lambda **options: LoadLabeld("label", **options)], ids=["array", "dict"])
def test_values_that_are_not_distinct_whole_numbers_are_refused(make, values):
    with pytest.raises(
        ValueError, match=r"^values must be distinct whole numbers under 2\*\*24, one per class, none of .*, got "
    ):
        make(values=values)


def test_foreground_and_values_together_are_refused(write_png, mask):
    with pytest.raises(ValueError, match=r"^foreground must be omitted if values .*, got 255\.$"):
        LoadLabel(foreground=255, values=[1])
    path = write_png(mask.astype(np.uint8))
    with pytest.raises(ValueError, match="foreground must be omitted"):
        LoadLabeld("label", values=[1])({"label": path, "foreground": 255})
    check_label(LoadLabeld("label", values=[1])({"label": path, "foreground": 1})["label"], mask[None])


@pytest.mark.parametrize("values", [[1, 2, 4], np.array([1, 2, 4])], ids=["list", "numpy"])
def test_values_are_those_of_every_case_and_key(write_nifti, values):
    path = write_nifti(LABEL_MAP.astype(np.uint8))
    load = pickle.loads(pickle.dumps(LoadLabeld(["label", "reference_label"], values=values)))
    for key in ("label", "reference_label"):
        out = load({"label": path, "reference_label": path})
        check_label(out[key], [value == LABEL_MAP for value in (1, 2, 4)])


def test_values_are_parsed_from_a_bundle_config(write_nifti):
    config = {"_target_": "monai_sc.transforms.LoadLabeld", "keys": "label", "values": [2]}
    load = ConfigParser({"load": config}).get_parsed_content("load")
    check_label(load({"label": write_nifti((LABEL_MAP == 2) * np.uint8(2))})["label"], (LABEL_MAP == 2)[None])


@pytest.mark.parametrize("name", ["label.nii.gz", "label.nii", "label.png", "label.nrrd", "label.txt"])
def test_file_that_cannot_be_read_is_refused_in_one_line(tmp_path, name):
    (tmp_path / name).write_bytes(b"no label " * 100)
    with pytest.raises(ValueError, match=rf"^Label file .*{name} cannot be read: [^\n]+\.$"):
        LoadLabel()(tmp_path / name)


def test_one_loader_reads_all_files_of_a_thread(write_png, mask, monkeypatch):
    made = []
    monkeypatch.setattr("monai_sc.files.read._IMAGES", _Images())
    monkeypatch.setattr(
        "monai_sc.files.read.LoadImage", lambda **options: made.append(LoadImage(**options)) or made[-1]
    )
    path = write_png(mask.astype(np.uint8))

    def load():
        for value in (1, 1.0005, 1):
            check_label(LoadLabeld("label")({"label": path, "foreground": value})["label"], mask[None])

    load()
    assert len(made) == 1
    thread = threading.Thread(target=load)  # which may read other files at the same time
    thread.start()
    thread.join()
    assert len(made) == 2
