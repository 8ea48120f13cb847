import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_sc.datasets.jsrt import (
    CHEST,
    NOISY_FOLDERS,
    ORGANS,
    JsrtLayout,
    official_names,
    write_jsrt,
    write_jsrt_ready,
)
from tests.contents import picture

FIRST = "JPCLN001"
IMAGE = f"All247images/{FIRST}.IMG"
MASKS = "scratch/fold1/masks"
HEART = f"{MASKS}/heart/{FIRST}.gif"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jsrt") / "official"
    write_jsrt(folder, num_cases={"train": 1, "test": 1})
    return folder


@pytest.fixture(scope="module")
def written_ready(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jsrt") / "ready"
    write_jsrt_ready(folder, num_cases={"train": 2, "clean": 1, "test": 1})
    return folder


@pytest.fixture
def source(written, tmp_path):
    """Return a copy that a test may break: files are links to the first ones, so a test must not write into them."""
    return Path(shutil.copytree(written, tmp_path / "source", copy_function=lambda a, b: Path(b).hardlink_to(a)))


@pytest.fixture
def ready(written_ready, tmp_path):
    """Return a copy that a test may break."""
    return Path(shutil.copytree(written_ready, tmp_path / "ready"))


def save(file, array):
    file.unlink(missing_ok=True)
    Image.fromarray(array).save(file)


def read(source):
    layout = JsrtLayout(source)
    return [layout.read(case) for case in layout.cases()]


def test_official_numbers_are_big_endian_12_bits_and_turned_round(source):
    raw = np.zeros((2048, 2048), np.uint16)
    raw[3, 5], raw[2047, 0], raw[0, 1] = 4095, 256, 1
    (source / IMAGE).unlink()
    (source / IMAGE).write_bytes(b"".join(bytes((value >> 8, value & 255)) for value in raw.ravel().tolist()))
    image = read(source)[0].image
    assert image.shape == (1, 2048, 2048)
    assert image.dtype == np.float32
    image = image[0].T  # rows, columns
    assert image[3, 5] == 0
    assert image[2047, 0] == pytest.approx(255 * (4095 - 256) / 4095)
    assert image[0, 1] == pytest.approx(255 * 4094 / 4095)
    assert image[0, 0] == pytest.approx(255)
    assert image.min() >= 0
    assert image.max() < 255.001


def test_official_masks_join_the_sides_and_the_folds(written):
    layout = JsrtLayout(written)
    cases = layout.cases()
    assert [(case.id, case.group, case.split) for case in cases] == [(n, n, None) for n in ("JPCLN001", "JPCLN002")]
    for fold, case in enumerate(cases, 1):
        content = layout.read(case)
        assert content.labels.shape == (3, 1024, 1024)
        assert content.labels.dtype == bool
        assert content.noisy is None
        assert content.affine is None
        for name, mask in zip(CHEST, content.labels, strict=True):
            folder = written / "scratch" / f"fold{fold}" / "masks"
            sides = [picture(folder / side / f"{case.id}.gif", "L") == 255 for side in ORGANS[name]]
            np.testing.assert_array_equal(mask.T, np.logical_or.reduce(sides))
            assert mask.any()


def test_official_files_may_lie_anywhere_in_any_case(source):
    (source / IMAGE).rename(source / f"All247images/{FIRST}.img")
    (source / HEART).rename(source / MASKS / "heart" / f"{FIRST}.GIF")
    (source / "deep down").mkdir()
    (source / "scratch" / "fold1").rename(source / "deep down" / "Fold1")
    (source / "deep down" / "Fold1" / "masks" / "heart").rename(source / "deep down" / "Fold1" / "masks" / "Heart")
    (source / "scratch" / "fold2").rename(source / "scratch" / "FOLD2")
    for file in (f"All247images/._{FIRST}.IMG", f"deep down/Fold1/masks/Heart/._{FIRST}.gif"):
        (source / file).write_bytes(b"macOS")
    assert [case.id for case in JsrtLayout(source).cases()] == [FIRST, "JPCLN002"]


def test_official_folders_may_be_links(written, tmp_path):
    (tmp_path / "source").mkdir()
    for name in ("All247images", "scratch"):
        (tmp_path / "source" / name).symlink_to(written / name)
    (tmp_path / "source" / "round").symlink_to(tmp_path / "source")
    assert [case.id for case in JsrtLayout(tmp_path / "source").cases()] == [FIRST, "JPCLN002"]


def test_missing_cases_are_counted_and_named(source):
    layout = JsrtLayout(source)
    assert layout.missing(layout.cases()) == [
        "245 of the 247 images or all their masks: JPCLN003, JPCLN004, JPCLN005, ..."
    ]
    (source / IMAGE).unlink()
    assert [case.id for case in layout.cases()] == ["JPCLN002"]
    assert "246 of the 247 images or all their masks: JPCLN001, JPCLN003, " in layout.missing(layout.cases())[0]


def test_image_without_any_mask_is_missing(source):
    shutil.rmtree(source / "scratch" / "fold1")
    assert [case.id for case in JsrtLayout(source).cases()] == ["JPCLN002"]


def test_nothing_is_missing_of_the_official_names(written):
    names = official_names()
    assert (len(names), len(set(names)), names[0], names[153], names[154], names[-1]) == (
        247, 247, "JPCLN001", "JPCLN154", "JPCNN001", "JPCNN093",
    )  # fmt: skip
    layout = JsrtLayout(written)
    cases = layout.cases()
    assert layout.missing([type(cases[0])(name, {}, name) for name in names]) == []


def replace_bytes(change):
    def broken(source):
        content = change((source / IMAGE).read_bytes())
        (source / IMAGE).unlink()
        (source / IMAGE).write_bytes(content)

    return broken


def copy_to_other_fold(source):
    (source / "scratch/fold2/masks/heart" / f"{FIRST}.gif").write_bytes((source / HEART).read_bytes())


def copy_image(source):
    (source / "again").mkdir()
    (source / "again" / f"{FIRST}.img").hardlink_to(source / IMAGE)


def stray_mask(source):
    (source / MASKS / "heart" / "mine.gif").hardlink_to(source / HEART)


BROKEN = [
    pytest.param(
        replace_bytes(lambda b: b[:-2]),
        rf"Image .*{IMAGE} must have 8388608 bytes, 2048 x 2048 numbers of 16 bits, got 8388606; copy it again",
        id="truncated",
    ),
    pytest.param(
        replace_bytes(lambda b: b"\x10\x00" + b[2:]),
        rf"Image .*{IMAGE} must hold numbers of 12 bits, 0 to 4095, got 4096\.$",
        id="over-12-bits",
    ),
    pytest.param(
        lambda s: save(s / HEART, picture(s / HEART, "L")[:, :-8]),
        r"The masks of a case must have one size, got .*JPCLN001\.gif \(1016, 1024\)",
        id="another-size",
    ),
    pytest.param(
        lambda s: [save(file, picture(file, "L")[:, :-8]) for file in s.glob(f"{MASKS}/*/{FIRST}.gif")],
        r"Mask .*/JPCLN001\.gif must be square, as its image is, got 1016 x 1024; unpack SCR again\.$",
        id="not-square",
    ),
    pytest.param(
        lambda s: save(s / HEART, picture(s / HEART, "L") // 255),
        rf"Mask .*{HEART} must hold the values 0 and 255 only, got 1",
        id="another-value",
    ),
    pytest.param(
        lambda s: (s / HEART).unlink(),
        rf"Image .*{IMAGE} must have a mask masks/heart/{FIRST}.gif in fold1 or fold2 of SCR, got none; unpack SCR",
        id="organ-is-missing",
    ),
    pytest.param(
        lambda s: shutil.rmtree(s / MASKS / "left lung"),
        rf"Image .*{IMAGE} must have a mask masks/left lung/{FIRST}.gif in fold1 or fold2",
        id="folder-is-missing",
    ),
    pytest.param(
        copy_to_other_fold, r"fold1.*JPCLN001.gif and .*fold2.*JPCLN001.gif must be one file, not two", id="two-folds"
    ),
    pytest.param(copy_image, r"JPCLN001.IMG and .*JPCLN001.img must be one file, not two; delete one", id="two-images"),
    pytest.param(stray_mask, r"Mask .*mine.gif must have an image mine.IMG under .*, got none", id="stray-mask"),
    pytest.param(
        lambda s: shutil.rmtree(s / "scratch"), r"must hold the .IMG files of JSRT and .*, got no masks", id="no-masks"
    ),
    pytest.param(lambda s: shutil.rmtree(s / "All247images"), r"got no \.IMG file; give the folder", id="no-images"),
    pytest.param(
        lambda s: [(s / f"All247images/JPCLN00{k}.IMG").rename(s / f"All247images/JPCLN10{k}.IMG") for k in (1, 2)],
        r"must hold an image with all its masks, got none; unpack both again",
        id="no-pair",
    ),
]


@pytest.mark.parametrize(("make_broken", "wording"), BROKEN)
def test_broken_official_source_is_refused(source, make_broken, wording):
    make_broken(source)
    with pytest.raises(ValueError, match=wording):
        read(source)


def test_ready_folders_are_the_splits(written_ready):
    layout = JsrtLayout(written_ready)
    cases = layout.cases()
    assert Counter(case.split for case in cases) == {"train": 2, "clean": 1, "test": 1}
    assert layout.missing(cases) == [
        "146 of the 148 images of the train cases",
        "23 of the 24 images of the clean cases",
        "74 of the 75 images of the test cases",
    ]
    for case in cases:
        content = layout.read(case)
        folder = {"train": "train", "clean": "val", "test": "test"}[case.split]
        file = f"{case.id}.png"
        np.testing.assert_array_equal(content.image[0].T, picture(written_ready / f"images_{folder}" / file, "L"))
        masks = [picture(written_ready / f"{name}_gts_{folder}" / file, "L") == 255 for name in CHEST]
        np.testing.assert_array_equal(content.labels.swapaxes(1, 2), masks)
        if case.split == "train":
            noisy = [picture(written_ready / name / file, "L") == 255 for name in NOISY_FOLDERS]
            np.testing.assert_array_equal(content.noisy.swapaxes(1, 2), noisy)
            assert (content.noisy != content.labels).any()
        else:
            assert content.noisy is None


def test_ready_layout_needs_no_noisy_masks(ready):
    for name in NOISY_FOLDERS:
        shutil.rmtree(ready / name)
    assert all(content.noisy is None for content in read(ready))


def change_mask(change):
    def broken(ready):
        file = ready / "heart_gts_train" / f"{FIRST}.png"
        save(file, change(picture(file, "L")))

    return broken


READY_BROKEN = [
    pytest.param(
        change_mask(lambda m: m.astype(np.uint16)),
        rf"Picture .*heart_gts_train/{FIRST}.png must be of mode L or P or 1 of Pillow, got I.*; convert it\.$",
        id="16-bits",
    ),
    pytest.param(
        change_mask(lambda m: m // 2), r"must hold the values 0 and 255 only, got 127; unpack it again", id="values"
    ),
    pytest.param(
        change_mask(lambda m: m[:-6]),
        rf"must have one size, got .*, the image .*images_train/{FIRST}.png \(256, 256\)\.$",
        id="another-size",
    ),
    pytest.param(
        lambda r: (r / "heart_gts_val" / "JPCLN003.png").unlink(),
        r"Image .*JPCLN003.png must have a mask in .*heart_gts_val, got none",
        id="no-mask",
    ),
    pytest.param(
        lambda r: (r / "images_test" / "JPCLN004.png").unlink(),
        r"Folder .*images_test must hold images with their official names, got none",
        id="no-image",
    ),
    pytest.param(
        lambda r: (r / "images_train" / "JPCLN001.png").unlink(),
        r"Mask .*JPCLN001.png must have an image in .*images_train, got none",
        id="mask-alone",
    ),
    pytest.param(
        lambda r: shutil.rmtree(r / "images_val"), r"Folder .*images_val does not exist; unpack", id="no-folder"
    ),
    pytest.param(
        lambda r: shutil.rmtree(r / NOISY_FOLDERS[1]), rf"Folder .*{NOISY_FOLDERS[1]} does not exist", id="one-noise"
    ),
    pytest.param(
        lambda r: Image.open(r / "images_val" / "JPCLN003.png").convert("RGB").save(r / "images_val" / "JPCLN003.png"),
        r"images_val/JPCLN003.png must be of mode L of Pillow, got RGB; convert it",
        id="rgb-image",
    ),
    pytest.param(
        lambda r: (r / "images_val" / "JPCLN003.png").write_bytes(b"nonsense"),
        r"Picture .*images_val/JPCLN003.png cannot be read: ",
        id="damaged",
    ),
]


@pytest.mark.parametrize(("make_broken", "wording"), READY_BROKEN)
def test_broken_ready_source_is_refused(ready, make_broken, wording):
    make_broken(ready)
    with pytest.raises(ValueError, match=wording):
        read(ready)


@pytest.mark.parametrize("write", [write_jsrt, write_jsrt_ready])
def test_stand_in_of_more_cases_than_there_are_is_refused(tmp_path, write):
    with pytest.raises(ValueError, match=r"^num_cases must be 247 in all or fewer, got 248\.$"):
        write(tmp_path / "out", num_cases={"train": 246, "clean": 1, "test": 1})
