import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_sc.datasets.cityscapes import CityscapesLayout, write_cityscapes
from tests.contents import contents, picture

FRAME = "aachen/aachen_000002_000019"
IMAGE = f"leftImg8bit/train/{FRAME}_leftImg8bit.png"
FINE, COARSE = (f"{kind}/train/{FRAME}_{kind}_labelIds.png" for kind in ("gtFine", "gtCoarse"))
WITHOUT_CARS = {"aachen_000000_000019", "frankfurt_000000_000019"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cityscapes")
    write_cityscapes(folder, num_cases={"train": 6, "clean": 1, "test": 3})
    return folder


@pytest.fixture
def source(written, tmp_path):
    """Return a copy that a test may break."""
    return Path(shutil.copytree(written, tmp_path / "source"))


def read(source):
    layout = CityscapesLayout(source)
    return [layout.read(case) for case in layout.cases()]


def car_shares(folder):
    files = [file for part in ("train", "val") for file in (folder / "gtFine" / part).rglob("*_labelIds.png")]
    return {file.name.removesuffix("_gtFine_labelIds.png"): np.mean(picture(file) == 26) for file in files}


def test_official_parts_are_the_splits(written):
    cases = CityscapesLayout(written).cases()
    assert [case.id for case in cases] == sorted(case.id for case in cases)
    assert Counter(case.split for case in cases) == {"train": 6, "clean": 1, "test": 3}
    assert all((case.split == "test") == case.id.startswith("frankfurt") for case in cases)
    assert all(case.group == case.id for case in cases)


@pytest.mark.parametrize("part", ["train", "val"])
def test_part_that_is_alone_has_no_split(source, part):
    shutil.rmtree(source / "leftImg8bit" / {"train": "val", "val": "train"}[part])
    assert {case.split for case in CityscapesLayout(source).cases()} == {None}


@pytest.mark.parametrize("share", [0, 0.01, 0.04])
def test_images_with_too_few_cars_are_dropped(written, share):
    shares = car_shares(written)
    kept = {case.id for case in CityscapesLayout(written, min_car_share=share).cases()}
    assert kept == {name for name, found in shares.items() if found >= share}
    assert (kept >= WITHOUT_CARS) == (share == 0)


def test_share_of_a_case_is_enough(written):
    share = sorted(car_shares(written).values())[4]
    assert share in car_shares(written).values()
    assert len(CityscapesLayout(written, min_car_share=share).cases()) == len(car_shares(written)) - 4


def test_clean_cases_are_drawn_by_the_seed(written):
    def clean(seed):
        return [case.id for case in CityscapesLayout(written, seed=seed).cases() if case.split == "clean"]

    assert clean(0) == clean(0)
    assert len({clean(seed)[0] for seed in range(20)}) > 3


def test_a_hundred_cases_of_the_whole_training_set_are_clean(written, monkeypatch):
    monkeypatch.setattr(CityscapesLayout, "split_sizes", {"train": 4, "clean": 3, "test": 3})
    monkeypatch.setattr(CityscapesLayout, "parts", {"train": 8, "val": 4})
    layout = CityscapesLayout(written)
    cases = layout.cases()
    assert Counter(case.split for case in cases) == {"train": 4, "clean": 3, "test": 3}
    assert layout.missing(cases) == []  # though one of each part has no car


def test_content_is_that_of_the_files(written):
    layout = CityscapesLayout(written)
    for case in layout.cases():
        part, city = "val" if case.split == "test" else "train", case.id.split("_")[0]
        content = layout.read(case)
        image = picture(written / "leftImg8bit" / part / city / f"{case.id}_leftImg8bit.png")
        fine, coarse = (
            picture(written / kind / part / city / f"{case.id}_{kind}_labelIds.png") == 26
            for kind in ("gtFine", "gtCoarse")
        )
        assert np.array_equal(content.image, image.transpose(2, 1, 0))
        assert np.array_equal(content.labels, fine.T[None])
        assert np.array_equal(content.noisy, coarse.T[None])
        assert content.labels.dtype == content.noisy.dtype == bool
        assert 0.7 < 2 * np.sum(fine & coarse) / (fine.sum() + coarse.sum()) < 0.95
        assert content.affine is None


def test_missing_images_are_counted_part_by_part(source):
    shutil.rmtree(source / "leftImg8bit" / "val")
    layout = CityscapesLayout(source)
    assert layout.missing(layout.cases()) == [
        "2967 of the 2975 images of leftImg8bit/train, with their gtFine and gtCoarse",
        "500 of the 500 images of leftImg8bit/val, with their gtFine and gtCoarse",
    ]


def test_options_name_the_share_of_cars(written):
    assert CityscapesLayout(written, min_car_share=0.02).options() == {"min_car_share": 0.02}


def test_endings_in_capitals_and_files_of_macos_are_no_matter(source):
    (source / IMAGE).rename((source / IMAGE).with_suffix(".PNG"))
    (source / "gtFine/train/aachen/._aachen_000002_000019_gtFine_labelIds.png").write_bytes(b"macOS")
    (source / "leftImg8bit/train/.DS_Store").write_bytes(b"macOS")
    assert len(read(source)) == 10


def save(file, change):
    def broken(source):
        Image.fromarray(change(picture(source / file))).save(source / file)

    return broken


def copy_city(source):
    folder = source / "leftImg8bit/train"
    shutil.copytree(folder / "aachen", folder / "aachen copy")


BROKEN = [
    pytest.param(
        save(FINE, lambda m: m.astype(np.uint16)), rf"{FINE} must be of mode L of Pillow, got I", id="fine-16-bits"
    ),
    pytest.param(
        save(COARSE, lambda m: m.astype(np.uint16)),
        rf"{COARSE} must be of mode L of Pillow, got I",
        id="coarse-16-bits",
    ),
    pytest.param(
        save(COARSE, lambda m: m[::2, ::2]),
        rf"{COARSE} must have the size of its image, 256 x 128, got 128 x 64; unpack both again\.$",
        id="another-size",
    ),
    pytest.param(
        save(FINE, lambda m: np.where(m == 26, np.uint8(255), np.uint8(0))),
        rf"{FINE} must hold the values 0 to 33 only, got 255; unpack it again\.$",
        id="another-value",
    ),
    pytest.param(
        lambda source: (source / FINE).unlink(),
        rf"Image .*{IMAGE} must have a mask in .*gtFine/train, got none; unpack the masks again",
        id="no-fine-label",
    ),
    pytest.param(
        lambda source: (source / COARSE).unlink(),
        rf"Image .*{IMAGE} must have a mask in .*gtCoarse/train, got none; unpack the masks again",
        id="no-coarse-label",
    ),
    pytest.param(
        lambda source: (source / IMAGE).unlink(),
        rf"Mask .*{FINE} must have an image in .*leftImg8bit/train, got none; unpack the images again",
        id="no-image",
    ),
    pytest.param(
        lambda source: (source / FINE).write_bytes((source / FINE).read_bytes()[:200]),
        rf"Picture .*{FINE} cannot be read: .*; copy it again",
        id="damaged-label",
    ),
    pytest.param(
        lambda source: shutil.rmtree(source / "gtCoarse"),
        r"Folder .*gtCoarse/train does not exist; unpack gtCoarse of Cityscapes beside the other packages\.$",
        id="no-coarse-labels",
    ),
    pytest.param(copy_city, r"aachen/.* and .*aachen copy/.* must be one file, not two; delete one", id="city-twice"),
    pytest.param(
        lambda source: shutil.rmtree(source / "leftImg8bit"),
        r"must hold leftImg8bit/train, got neither that nor leftImg8bit/val; give the folder that leftImg8bit, gtFine",
        id="another-folder",
    ),
]


@pytest.mark.parametrize(("make_broken", "wording"), BROKEN)
def test_broken_source_is_refused(source, make_broken, wording):
    make_broken(source)
    with pytest.raises(ValueError, match=wording):
        read(source)


def test_share_that_no_image_has_is_refused(written):
    with pytest.raises(ValueError, match=r"gtFine/train must hold an image with a share .* 0\.9, got none; lower"):
        CityscapesLayout(written, min_car_share=0.9).cases()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_share_out_of_range_is_refused(tmp_path, share):
    with pytest.raises(ValueError, match=rf"min_car_share must be a share of the pixels, in \[0, 1\], got {share}\.$"):
        CityscapesLayout(tmp_path, min_car_share=share)


def test_stand_in_has_what_the_layout_does_not_read(written):
    names = contents(written)
    assert "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png" in names
    assert "gtCoarse/train_extra/augsburg/augsburg_000000_000000_gtCoarse_labelIds.png" in names
    assert FINE.replace("labelIds.png", "polygons.json") in names
    instances = picture(written / FINE.replace("labelIds", "instanceIds"))
    labels = picture(written / FINE)
    assert len(np.unique(labels)) > 3
    assert np.array_equal(np.where(instances < 1000, instances, instances // 1000), labels)
