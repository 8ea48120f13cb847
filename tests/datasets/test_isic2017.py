import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_sc.datasets.isic2017 import Isic2017Layout, write_isic2017
from tests.contents import contents, picture

DATA, TRUTH = "ISIC-2017_Training_Data", "ISIC-2017_Training_Part1_GroundTruth"
IMAGE, MASK = f"{DATA}/ISIC_0000000.jpg", f"{TRUTH}/ISIC_0000000_segmentation.png"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("isic2017")
    write_isic2017(folder, num_cases={"train": 4, "clean": 2, "test": 3})
    return folder


@pytest.fixture
def source(written, tmp_path):
    """Return a copy that a test may break."""
    return Path(shutil.copytree(written, tmp_path / "source"))


def read(source):
    layout = Isic2017Layout(source)
    return [layout.read(case) for case in layout.cases()]


def test_official_parts_are_the_splits(written):
    cases = Isic2017Layout(written).cases()
    assert [case.id for case in cases] == [f"ISIC_{k:07d}" for k in range(9)]
    assert Counter(case.split for case in cases) == {"train": 4, "clean": 2, "test": 3}
    assert all(case.group == case.id for case in cases)


@pytest.mark.parametrize("part", ["Training", "Validation", "Test_v2"])
def test_part_that_is_alone_has_no_split(source, part):
    for folder in source.iterdir():
        if not folder.name.startswith(f"ISIC-2017_{part}_"):
            shutil.rmtree(folder)
    assert {case.split for case in Isic2017Layout(source).cases()} == {None}


def test_content_is_that_of_the_files(written):
    layout = Isic2017Layout(written)
    shapes = set()
    for case in layout.cases():
        content = layout.read(case)
        image, mask = picture(case.files["image"]), picture(case.files["mask"])
        assert np.array_equal(content.image, image.transpose(2, 1, 0))
        assert np.array_equal(content.labels, (mask == 255).T[None])
        assert content.labels.any()
        assert content.labels.dtype == bool
        assert content.noisy is None
        assert content.affine is None
        shapes.add(content.image.shape)
    assert len(shapes) > 1


def test_missing_images_are_counted_part_by_part(source):
    assert Isic2017Layout(source).missing(Isic2017Layout(source).cases()) == [
        "1996 of the 2000 images of ISIC-2017_Training_Data",
        "148 of the 150 images of ISIC-2017_Validation_Data",
        "597 of the 600 images of ISIC-2017_Test_v2_Data",
    ]


def test_nothing_is_missing_of_the_official_counts(written, monkeypatch):
    monkeypatch.setattr(Isic2017Layout, "split_sizes", {"train": 4, "clean": 2, "test": 3})
    layout = Isic2017Layout(written)
    assert layout.missing(layout.cases()) == []


def test_endings_in_capitals_and_files_of_macos_are_no_matter(source):
    (source / IMAGE).rename(source / DATA / "ISIC_0000000.JPG")
    (source / MASK).rename(source / TRUTH / "ISIC_0000000_segmentation.PNG")
    (source / DATA / "._ISIC_0000001.jpg").write_bytes(b"macOS")
    (source / TRUTH / "._ISIC_0000001_segmentation.png").write_bytes(b"macOS")
    assert len(read(source)) == 9


def test_mask_of_1_bit_is_read(source):
    expected = read(source)[0].labels
    Image.fromarray(picture(source / MASK)).convert("1").save(source / MASK)
    assert np.array_equal(read(source)[0].labels, expected)


def repeat_case(source):
    for folder, file in ((DATA, IMAGE), (TRUTH, MASK)):
        name = folder.replace("Training", "Validation")
        shutil.copy(source / file, source / name / Path(file).name)


def save_mask(change):
    def broken(source):
        Image.fromarray(change(picture(source / MASK))).save(source / MASK)

    return broken


def save_palette(source):
    Image.fromarray(picture(source / MASK)).convert("P").save(source / MASK)


def empty_part(source):
    for file in (source / DATA).iterdir():
        file.unlink()


BROKEN = [
    pytest.param(
        save_mask(lambda m: m.astype(np.uint16) * 257), rf"{MASK} must be of mode L or 1 of Pillow, got I", id="16-bits"
    ),
    pytest.param(save_palette, rf"{MASK} must be of mode L or 1 of Pillow, got P; convert it\.$", id="palette"),
    pytest.param(
        save_mask(lambda m: m[:-1, :-2]),
        rf"{MASK} must have the size of its image, 96 x 64, got 94 x 63; unpack both again\.$",
        id="another-size",
    ),
    pytest.param(
        save_mask(lambda m: m // 255),
        rf"{MASK} must hold the values 0 and 255 only, got 1; unpack it again\.$",
        id="another-value",
    ),
    pytest.param(
        lambda source: (source / MASK).unlink(),
        rf"Image .*{IMAGE} must have a mask in .*{TRUTH}, got none; unpack the masks again, or delete the image\.$",
        id="no-mask",
    ),
    pytest.param(
        lambda source: (source / IMAGE).unlink(),
        rf"Mask .*{MASK} must have an image in .*{DATA}, got none; unpack the images again, or delete the mask\.$",
        id="no-image",
    ),
    pytest.param(
        lambda source: (source / IMAGE).write_bytes((source / IMAGE).read_bytes()[:900]),
        rf"Picture .*{IMAGE} cannot be read: .*; copy it again",
        id="damaged-image",
    ),
    pytest.param(
        lambda source: Image.fromarray(picture(source / IMAGE)[..., 0]).save(source / IMAGE),
        rf"{IMAGE} must be of mode RGB of Pillow, got L",
        id="grey-image",
    ),
    pytest.param(
        lambda source: shutil.copy(source / IMAGE, source / DATA / "ISIC_0000000.jpeg"),
        r"ISIC_0000000.jpeg and .*ISIC_0000000.jpg must be one file, not two",
        id="image-twice",
    ),
    pytest.param(repeat_case, rf"{IMAGE} and .*Validation.* must be one case; delete one of them\.$", id="case-twice"),
    pytest.param(
        lambda source: shutil.rmtree(source / TRUTH), rf"Folder .*{TRUTH} does not exist; unpack", id="no-masks"
    ),
    pytest.param(empty_part, rf"Folder .*{DATA} must hold images with their official names, got none", id="no-images"),
    pytest.param(
        lambda source: [shutil.rmtree(folder) for folder in source.glob("*Validation*")],
        r"must hold one part of ISIC 2017 or all three, but lacks ISIC-2017_Validation_Data; unpack it beside",
        id="two-parts",
    ),
    pytest.param(
        lambda source: [shutil.rmtree(folder) for folder in source.iterdir()],
        rf"must hold {DATA} and {TRUTH}, got neither; give the folder that ISIC 2017 was unpacked in\.$",
        id="another-folder",
    ),
]


@pytest.mark.parametrize(("make_broken", "wording"), BROKEN)
def test_broken_source_is_refused(source, make_broken, wording):
    make_broken(source)
    with pytest.raises(ValueError, match=wording):
        read(source)


def test_stand_in_has_the_official_files(tmp_path):
    write_isic2017(tmp_path, num_cases={"train": 1, "clean": 0})
    assert set(contents(tmp_path)) == {
        IMAGE,
        f"{DATA}/ISIC_0000000_superpixels.png",
        f"{DATA}/{DATA}_metadata.csv",
        MASK,
    }
    with Image.open(tmp_path / IMAGE) as image:
        assert image.format == "JPEG"
