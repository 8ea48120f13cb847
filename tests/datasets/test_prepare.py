import json
import os
import shutil
from errno import EACCES, ENOSPC
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from monai_sc.datasets import PreparationError, prepare, prepared_cases
from monai_sc.datasets.isic2017 import Isic2017Layout, write_isic2017
from monai_sc.datasets.layout import SPLITS, Content, SourceCase
from monai_sc.datasets.prepare import LAYOUTS
from monai_sc.store import usable_cases
from monai_sc.transforms import LoadLabel
from tests.contents import contents
from tests.forked import run_forked

ISIC = "ISIC-2017_Training_Data/ISIC_0000000.jpg"
MASK = "ISIC-2017_Training_Part1_GroundTruth/ISIC_0000000_segmentation.png"


def make(name, source, out, **options):
    return prepare(name, source, out, **{"partial": True, "progress": False, "size": (16, 12), **options})


def times(folder):
    return {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in folder.rglob("*")}


@pytest.fixture
def source(stand_in, tmp_path):
    """Return a copy of ISIC 2017 that a test may break."""
    return Path(shutil.copytree(stand_in("isic2017"), tmp_path / "source"))


def saved(file):
    """Return what a prepared file holds, ``(channels, *spatial)``."""
    if file.suffix == ".png":
        with Image.open(file) as picture:
            array = np.asarray(picture)
        return array.T[None] if array.ndim == 2 else array.transpose(2, 1, 0)
    array = np.asarray(nib.load(file).dataobj)
    return np.moveaxis(array, -1, 0) if array.ndim == 4 else array[None]


def nearest(masks, size):
    """Return masks in another size: each new voxel is the old one that its centre lies in."""
    index = [np.floor((np.arange(n) + 0.5) * old / n).astype(int) for n, old in zip(size, masks.shape[1:], strict=True)]
    return masks[np.ix_(range(len(masks)), *index)]


def linear(image, size):
    """Return an image in another size: smoothed where it shrinks, then read at the centres of the new voxels."""
    old = image.shape[1:]
    sigma = [max(0.0, (a / b - 1) / 2) for a, b in zip(old, size, strict=True)]
    axes = [(np.arange(n) + 0.5) * a / n - 0.5 for n, a in zip(size, old, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    channels = (ndimage.gaussian_filter(c.astype(float), sigma, mode="nearest") for c in image)
    return np.stack([ndimage.map_coordinates(c, grid, order=1, mode="nearest") for c in channels])


LAYOUT_CASES = [
    *(pytest.param(name, name, {}, (64, 40, 24)[: len(LAYOUTS[name].default_size)], id=name) for name in LAYOUTS),
    pytest.param("brats2020", "brats2020", {"modalities": ["t1ce", "flair"]}, None, id="brats2020-two-native"),
    pytest.param("cityscapes", "cityscapes", {"min_car_share": 0}, None, id="cityscapes-native"),
    pytest.param("isic2017", "isic2017", {}, None, id="isic2017-native"),
    pytest.param("jsrt", "jsrt-ready", {}, (256, 256), id="jsrt-ready"),
    pytest.param("lidc_idri", "lidc_idri", {"agreement": 2, "noisy": "intersection"}, None, id="lidc-native"),
    pytest.param("lidc_idri", "lidc_idri-crops", {"noisy": "annotator-2"}, (64, 128), id="lidc-crops"),
    pytest.param("lidc_idri", "lidc_idri-slices", {"agreement": 4}, (128, 128), id="lidc-slices"),
]


@pytest.mark.parametrize(("name", "layout", "options", "size"), LAYOUT_CASES)
def test_prepared_files_hold_what_the_source_holds(stand_in, tmp_path, name, layout, options, size):
    source, out = stand_in(layout), tmp_path / "out"
    before = contents(source), times(source)
    done = make(name, source, out, size=size, native=size is None, **options)
    assert (contents(source), times(source)) == before
    read = LAYOUTS[name](source, **options)
    cases = {case.id: case for case in read.cases()}
    held = {name: read.read(case) for name, case in cases.items()}
    assert sum(done.counts.values()) == len(cases)
    assert min(done.counts.values()) > 0
    seen = set()
    for split in SPLITS:
        prepared = prepared_cases(out, split)
        assert usable_cases(prepared, progress=False) == prepared
        assert len(prepared) == done.counts[split]
        for case in prepared:
            assert cases[case["id"]].split in (None, split)
            content = held[case["id"]]
            wanted = content.image.shape[1:] if size is None else size
            label = LoadLabel(foreground=case.get("foreground", 1))(case["label"])
            np.testing.assert_array_equal(label.numpy(), nearest(content.labels, wanted))
            image = saved(Path(case["image"]))
            if content.affine is None:
                assert {Path(file).suffix for file in (case["image"], *case["label"])} == {".png"}
                assert np.abs(image - linear(content.image, wanted)).max() < 0.51
            else:
                np.testing.assert_allclose(image, linear(content.image, wanted), atol=0.01)
            if wanted == content.image.shape[1:]:
                exact = np.rint(content.image) if content.affine is None else content.image
                np.testing.assert_array_equal(image, exact)
            seen.add(case["id"])
        if any(held[case["id"]].noisy is None for case in prepared):
            continue
        for case, plain in zip(prepared_cases(out, split, noisy=True), prepared, strict=True):
            assert case["reference_label"] == plain["label"]
            label = LoadLabel(foreground=case.get("foreground", 1))(case["label"])
            np.testing.assert_array_equal(label.numpy(), nearest(held[case["id"]].noisy, label.shape[1:]))
    assert seen == set(cases)
    record = json.loads((out / "prepared.json").read_text())
    assert record["classes"] == list(read.classes)
    named = {
        f for rows in record["cases"].values() for r in rows for f in [r["image"], *r["label"], *r.get("noisy", [])]
    }
    assert set(contents(out)) == named | {"prepared.json"}


class RampLayout(Isic2017Layout):
    """Two cases with an image that is known everywhere."""

    affine = None
    shape: tuple[int, ...] = (40, 30)

    def cases(self):
        return [SourceCase(name, {}, name) for name in "abc"]

    def missing(self, cases):
        return []

    def read(self, case):
        grid = np.indices(self.shape)
        weights = np.arange(1, len(self.shape) + 1).reshape(-1, *[1] * len(self.shape))
        mask = (grid == 0).all(axis=0) if case.id == "a" else np.zeros(self.shape, bool)
        return Content((grid * weights).sum(axis=0)[None].astype(np.float32), mask[None], affine=self.affine)


@pytest.fixture
def ramp(monkeypatch, tmp_path):
    """Return a function that prepares the known images, and returns the folder."""
    (tmp_path / "source").mkdir()
    monkeypatch.setitem(LAYOUTS, "isic2017", RampLayout)

    def run(shape, size, affine=None):
        monkeypatch.setattr(RampLayout, "shape", shape)
        monkeypatch.setattr(RampLayout, "affine", affine)
        monkeypatch.setattr(RampLayout, "default_size", size)
        make("isic2017", tmp_path / "source", tmp_path / "out", size=size)
        return tmp_path / "out"

    return run


def test_resized_voxels_lie_where_the_affine_says(ramp):
    """A ramp along the axes is still one after it was smoothed, so its value tells where a voxel lies."""
    affine = np.array([[-2, 0.2, 0, 30], [0.1, -1.5, 0, 239], [0, 0.3, 4, -17], [0, 0, 0, 1]])
    out = ramp((48, 40, 30), (12, 20, 60), affine)
    image = nib.load(out / "images" / "b.nii.gz")
    inner = np.indices(image.shape).reshape(3, -1).T
    inner = inner[((inner >= 3) & (inner < np.array(image.shape) - 3)).all(axis=1)]
    mm = nib.affines.apply_affine(image.affine, inner)
    old = nib.affines.apply_affine(np.linalg.inv(affine), mm)
    values = np.asarray(image.dataobj)[tuple(inner.T)]
    np.testing.assert_allclose(values, old @ [1, 2, 3], atol=1e-2)
    corners = np.array([[-0.5] * 3, np.array(image.shape) - 0.5])  # the image covers the same space
    np.testing.assert_allclose(
        nib.affines.apply_affine(image.affine, corners),
        nib.affines.apply_affine(affine, np.array([[-0.5] * 3, [47.5, 39.5, 29.5]])),
        atol=1e-4,
    )
    np.testing.assert_array_equal(nib.load(out / "labels" / "lesion" / "b.nii.gz").affine, image.affine)
    assert nib.load(out / "labels" / "lesion" / "b.nii.gz").get_data_dtype() == np.uint8


def test_rim_of_an_image_that_shrinks_is_not_darkened(ramp, monkeypatch):
    flat = Content(np.full((1, 64, 48), 200.0, np.float32), np.ones((1, 64, 48), bool))
    monkeypatch.setattr(RampLayout, "read", lambda self, case: flat)
    assert (saved(ramp((64, 48), (8, 12)) / "images" / "a.png") == 200).all()


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 1), (5, 7)), ((31, 1), (1, 31)), ((7, 5), (1, 1))], ids=["1-pixel", "line", "to-1-pixel"]
)
def test_odd_shapes_and_empty_masks_are_prepared(ramp, shape, size):
    out = ramp(shape, size)
    cases = [case for split in SPLITS for case in prepared_cases(out, split)]
    for case in usable_cases(cases, progress=False):
        assert saved(Path(case["image"])).shape == (1, *size)
        label = LoadLabel(foreground=255)(case["label"])
        assert case["id"] == "a" or not label.any()


@pytest.mark.parametrize("name", ["up/there", ".hidden", "", "a\\b", "x" * 201, "round.json"])
def test_id_that_cannot_name_a_file_is_refused(ramp, tmp_path, monkeypatch, name):
    monkeypatch.setattr(RampLayout, "cases", lambda self: [SourceCase(name, {}, "g")])
    with pytest.raises(ValueError, match=r"The id of a case must "):
        ramp((4, 4), (4, 4))
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_ids_that_differ_in_case_only_are_refused(ramp, monkeypatch):
    monkeypatch.setattr(RampLayout, "cases", lambda self: [SourceCase(name, {}, name) for name in "aA"])
    with pytest.raises(ValueError, match=r"The ids of cases must be unique, got 'a' twice or more\."):
        ramp((4, 4), (4, 4))


def test_same_call_makes_the_same_bytes_and_the_seed_counts(stand_in, tmp_path):
    source = stand_in("brats2020")
    for name, seed in (("a", 0), ("b", 0), ("c", 1), ("d", 2)):
        make("brats2020", source, tmp_path / name, size=(12, 12, 8), seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    names = [json.dumps(json.loads((tmp_path / n / "prepared.json").read_text())["cases"]) for n in "acd"]
    assert len(set(names)) > 1


def test_incomplete_source_is_named_and_accepted_in_part(source, tmp_path):
    lacking = (
        "1999 of the 2000 images of ISIC-2017_Training_Data; 149 of the 150 images of ISIC-2017_Validation_Data; "
        "599 of the 600 images of ISIC-2017_Test_v2_Data"
    )
    way_out = r"Download the rest, or pass partial \(--partial\) to prepare what is there\."
    with pytest.raises(ValueError, match=rf"^.*source is not complete: {lacking}\. {way_out}$"):
        make("isic2017", source, tmp_path / "out", partial=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["source"]
    done = make("isic2017", source, tmp_path / "out")
    assert [phrase.split()[0] for phrase in done.missing] == ["1999", "149", "599"]
    assert done.counts == {"train": 1, "clean": 1, "test": 1}


def test_complete_source_needs_no_partial(source, tmp_path, monkeypatch):
    monkeypatch.setattr(Isic2017Layout, "split_sizes", {"train": 1, "clean": 1, "test": 1})
    assert make("isic2017", source, tmp_path / "out", partial=False).missing == []


ARGUMENTS = [
    pytest.param(
        {"modalities": ["t1"]}, r"^modalities is not an option of isic2017, which has none; omit it\.$", id="o"
    ),
    pytest.param(
        {"size": (16,)}, r"^size must be 2 whole numbers over 0 for isic2017, got \(16,\)\.$", id="one-number"
    ),
    pytest.param({"size": 16}, r"^size must be 2 whole numbers over 0 for isic2017, got \(16,\)\.$", id="a-number"),
    pytest.param({"size": (16, 0)}, r"^size must be 2 whole numbers over 0 .*, got \(16, 0\)\.$", id="zero"),
    pytest.param({"size": (16.5, 8)}, r"^size must be 2 whole numbers over 0 .*, got \(16.5, 8\)\.$", id="a-fraction"),
    pytest.param(
        {"native": True}, r"^size must be left out where images keep their own, got \(16, 12\)\.$", id="native"
    ),
    pytest.param({"seed": -1}, r"^seed must be a whole number of at least 0, got -1\.$", id="seed"),
    pytest.param({"seed": None}, r"^seed must be a whole number of at least 0, got None\.$", id="no-seed"),
    pytest.param({"on_bad_case": "stop"}, r"^on_bad_case must be ", id="bad-case"),
]


@pytest.mark.parametrize(("options", "wording"), ARGUMENTS)
def test_wrong_argument_is_refused(stand_in, tmp_path, options, wording):
    with pytest.raises(ValueError, match=wording):
        make("isic2017", stand_in("isic2017"), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_layouts_have_the_names_of_their_modules():
    assert {name: layout.name for name, layout in LAYOUTS.items()} == {name: name for name in LAYOUTS}


def test_unknown_data_set_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^name must be one of .*brats2020.*, got 'coco'"):
        make("coco", tmp_path, tmp_path / "out")


@pytest.mark.parametrize("name", sorted({*LAYOUTS} - {"lidc_idri"}))
def test_options_of_another_data_set_are_refused(tmp_path, name):
    (tmp_path / "source").mkdir()
    with pytest.raises(ValueError, match=rf"^agreement is not an option of {name}, which has .*; omit it\.$"):
        make(name, tmp_path / "source", tmp_path / "out", agreement=2)


def fill(folder):
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")


PLACES = [
    pytest.param(
        "source/out", None, r"^out must lie outside of source, which is only read, got .*source/out", id="inside"
    ),
    pytest.param("source", None, r"^out must lie outside of source", id="equal"),
    pytest.param(".", None, r"^out must lie outside of source", id="around"),
    pytest.param("link/out", lambda t: (t / "link").symlink_to(t / "source"), r"^out must lie outside", id="link"),
    pytest.param("file", lambda t: (t / "file").touch(), r"^out must be a folder, got the file .*/file\.$", id="file"),
    pytest.param(
        "out",
        lambda t: fill(t / "out"),
        r"^.*/out holds other files; choose a folder that is empty or does not exist\.$",
        id="other-files",
    ),
    pytest.param(
        "out",
        lambda t: fill(t / "out.partial"),
        r"^.*/out.partial holds thesis.txt, which prepare did not write; move it elsewhere\.$",
        id="other-files-beside",
    ),
]


@pytest.mark.parametrize(("place", "before", "wording"), PLACES)
def test_place_that_is_not_free_is_refused(source, tmp_path, place, before, wording):
    if before:
        before(tmp_path)
    files = contents(tmp_path)
    with pytest.raises(ValueError, match=wording):
        make("isic2017", source, tmp_path / place)
    assert contents(tmp_path) == files


def test_source_where_the_files_would_grow_is_refused(stand_in, tmp_path):
    source = shutil.copytree(stand_in("isic2017"), tmp_path / "data.partial")
    before = contents(tmp_path)
    for place in (source, source / "ISIC-2017_Training_Data"):
        with pytest.raises(
            ValueError, match=r"^source must lie outside of .*data.partial, where files are written first; choose"
        ):
            make("isic2017", place, tmp_path / "data")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_source_that_is_no_folder_is_refused(tmp_path, kind):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=rf"^source must be the folder of the data set, got .*{kind}, which is not a folder"
    ):
        make("isic2017", tmp_path / kind, tmp_path / "out")


def test_top_of_a_disk_is_refused(source, tmp_path, monkeypatch):
    """It cannot be replaced by the finished folder, and what is beside it is another disk."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(
        ValueError, match=r"^out must not be the top of a mounted disk, got .*/out; choose a folder in it"
    ):
        make("isic2017", source, tmp_path / "out")


def test_empty_folder_and_a_link_to_it_are_filled(source, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make("isic2017", source, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "prepared.json").is_file()


def test_paths_with_spaces_and_other_letters(stand_in, tmp_path):
    source = shutil.copytree(stand_in("isic2017"), tmp_path / "Übung 1 数据" / "quelle")
    done = make("isic2017", source, tmp_path / "Übung 1 数据" / "noch nicht da" / "fertig ß")
    assert usable_cases(prepared_cases(done.out, "train"), progress=False)


def test_files_of_the_source_may_be_links(stand_in, tmp_path):
    shutil.copytree(stand_in("isic2017"), tmp_path / "linked", copy_function=lambda a, b: Path(b).symlink_to(a))
    make("isic2017", tmp_path / "linked", tmp_path / "a")
    make("isic2017", stand_in("isic2017"), tmp_path / "b")
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    a.pop("prepared.json"), b.pop("prepared.json")
    assert a == b


def test_complete_preparation_is_left_alone(source, tmp_path):
    first = make("isic2017", source, tmp_path / "out")
    before = times(tmp_path)
    again = make("isic2017", source, tmp_path / "out")
    assert times(tmp_path) == before
    assert again.was_complete
    assert not first.was_complete
    assert (again.counts, again.missing, again.left_out) == (first.counts, first.missing, first.left_out)


CHANGES = [
    ({"size": (8, 8)}, r"size \[16, 12\], not \[8, 8\]"),
    ({"size": None, "native": True}, r"size \[16, 12\], not None"),
    ({"seed": 3}, "seed 0, not 3"),
    ({"on_bad_case": "skip"}, "on_bad_case 'raise', not 'skip'"),
]


@pytest.mark.parametrize(("change", "difference"), CHANGES, ids=["size", "native", "seed", "bad-case"])
def test_another_call_is_refused_and_the_difference_named(source, tmp_path, change, difference):
    make("isic2017", source, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(
        ValueError, match=rf"out was prepared otherwise \({difference}\); choose another folder, or delet"
    ):
        make("isic2017", source, tmp_path / "out", **change)
    assert contents(tmp_path / "out") == before


def test_another_option_is_refused(stand_in, tmp_path):
    make("brats2020", stand_in("brats2020"), tmp_path / "out", size=(8, 8, 8))
    with pytest.raises(ValueError, match=r"\(options \{'modalities': \['flair'\]\}, not \{'modalities': \['t1'\]\}\)"):
        make("brats2020", stand_in("brats2020"), tmp_path / "out", size=(8, 8, 8), modalities=["t1"])


def test_preparation_that_lost_a_file_is_not_called_complete(source, tmp_path):
    make("isic2017", source, tmp_path / "out")
    (tmp_path / "out" / "images" / "ISIC_0000001.png").unlink()
    with pytest.raises(
        ValueError, match=r"out was complete, but lacks images/ISIC_0000001\.png now; delete the folder"
    ):
        make("isic2017", source, tmp_path / "out")


def test_bad_case_stops_and_the_same_call_goes_on_when_it_is_mended(source, tmp_path):
    make("isic2017", source, tmp_path / "whole")
    last = source / "ISIC-2017_Test_v2_Part1_GroundTruth" / "ISIC_0000002_segmentation.png"
    good = last.read_bytes()
    last.write_bytes(good[:60])
    with pytest.raises(PreparationError, match=rf"^Picture {last} cannot be read: .*; copy it again"):
        make("isic2017", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    unfinished = tmp_path / "out.partial"
    made = {file: when for file, when in times(unfinished).items() if file.suffix == ".png"}
    assert len(made) == 4
    with pytest.raises(
        ValueError, match=r"unfinished preparation with other options \(seed 0, not 1\); delete it, or choose anoth"
    ):
        make("isic2017", source, tmp_path / "out", seed=1)
    last.write_bytes(good)
    make("isic2017", source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert {
        unfinished / f.relative_to(tmp_path / "out"): t for f, t in times(tmp_path / "out").items()
    }.items() >= made.items()
    assert not unfinished.exists()


def test_bad_case_is_left_out_and_listed(source, tmp_path):
    (source / MASK).write_bytes((source / MASK).read_bytes()[:60])
    done = make("isic2017", source, tmp_path / "out", on_bad_case="skip")
    assert done.counts == {"train": 0, "clean": 1, "test": 1}
    assert list(done.left_out) == ["ISIC_0000000"]
    assert done.left_out["ISIC_0000000"].startswith(f"Picture {source / MASK} cannot be read: ")
    assert not any("ISIC_0000000" in name for name in contents(tmp_path / "out"))
    assert make("isic2017", source, tmp_path / "out", on_bad_case="skip").left_out == done.left_out
    with pytest.raises(ValueError, match=r"out has no case in its split 'train', having 2 in all; prepare more cases"):
        prepared_cases(tmp_path / "out", "train")


def test_nothing_but_bad_cases_is_an_error(source, tmp_path):
    for file in source.rglob("*.jpg"):
        file.write_bytes(b"nonsense")
    with pytest.raises(PreparationError, match=r"^No case can be used; the first: Picture .* cannot be read"):
        make("isic2017", source, tmp_path / "out", on_bad_case="skip")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("on_bad_case", ["raise", "skip"])
def test_file_that_may_not_be_read_is_a_bad_case(source, tmp_path, monkeypatch, on_bad_case):
    def read(self, case):
        if case.id == "ISIC_0000000":
            raise PermissionError(EACCES, "Permission denied", str(source / ISIC))
        return original(self, case)

    original = Isic2017Layout.read
    monkeypatch.setattr(Isic2017Layout, "read", read)
    wording = rf"^Case ISIC_0000000 cannot be read: \[Errno 13\] Permission denied: '.*{ISIC}'; copy it again"
    if on_bad_case == "raise":
        with pytest.raises(PreparationError, match=wording):
            make("isic2017", source, tmp_path / "out")
    else:
        assert len(make("isic2017", source, tmp_path / "out", on_bad_case="skip").left_out) == 1


def test_case_that_is_gone_when_the_call_goes_on_leaves_no_files(source, tmp_path):
    last = source / "ISIC-2017_Test_v2_Part1_GroundTruth" / "ISIC_0000002_segmentation.png"
    good = last.read_bytes()
    last.write_bytes(b"")
    write_isic2017(tmp_path / "more", num_cases={"train": 2}, seed=1)
    for name in (ISIC, MASK):
        more = name.replace("0000000", "0000009")
        shutil.copy(tmp_path / "more" / name, source / more)
    with pytest.raises(PreparationError, match=r"ISIC_0000002_segmentation\.png cannot be read"):
        make("isic2017", source, tmp_path / "out")
    assert (tmp_path / "out.partial" / "images" / "ISIC_0000009.png").is_file()
    for name in (ISIC, MASK):
        (source / name.replace("0000000", "0000009")).unlink()
    last.write_bytes(good)
    make("isic2017", source, tmp_path / "out")
    make("isic2017", source, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_damaged_record_is_another_preparation(source, tmp_path, text):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "preparation.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"out.partial holds an unfinished preparation with other options \(name None, not 'isic"
    ):
        make("isic2017", source, tmp_path / "out")


@pytest.mark.parametrize(("layout", "size"), [("isic2017", (16, 12)), ("brats2020", (8, 8, 8))])
def test_full_disk_names_the_file_and_the_call_goes_on(stand_in, tmp_path, monkeypatch, layout, size):
    source = stand_in(layout)
    make(layout, source, tmp_path / "whole", size=size)
    where = (Image.Image, "save") if layout == "isic2017" else (nib, "save")
    original, left = getattr(*where), [4]

    def save(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return original(*args, **options)

    monkeypatch.setattr(*where, save)
    with pytest.raises(OSError, match=r"/out\.partial/.* could not be written: No space left on device\.$"):
        make(layout, source, tmp_path / "out", size=size)
    assert not (tmp_path / "out").exists()
    make(layout, source, tmp_path / "out", size=size)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("writes", ["preparation.json", "rows/", "prepared.json"])
def test_full_disk_at_a_small_file(source, tmp_path, monkeypatch, writes):
    def fsync(descriptor):
        if writes in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        told = rf"/out\.partial/{writes}\S* could not be written: No space left on device\.$"
        with pytest.raises(OSError, match=told):
            make("isic2017", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    make("isic2017", source, tmp_path / "out")
    make("isic2017", source, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_source_that_cannot_be_written_to_is_enough(source, tmp_path):
    for folder in (source, *source.iterdir()):
        folder.chmod(0o555)
    try:
        assert make("isic2017", source, tmp_path / "out").counts["train"] == 1
    finally:
        for folder in (source, *source.iterdir()):
            folder.chmod(0o755)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_may_not_be_written_to_is_named(source, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(OSError, match=r"closed/out\.partial could not be written: Permission denied\.$"):
        make("isic2017", source, tmp_path / "closed" / "out")


def test_ctrl_c_leaves_what_was_made(source, tmp_path, monkeypatch):
    calls = []

    def read(self, case):
        calls.append(case.id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, case)

    original = Isic2017Layout.read
    monkeypatch.setattr(Isic2017Layout, "read", read)
    with pytest.raises(KeyboardInterrupt):
        make("isic2017", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    make("isic2017", source, tmp_path / "out")
    assert sorted(calls) == ["ISIC_0000000", "ISIC_0000001", "ISIC_0000001", "ISIC_0000002"]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_second_process_is_refused(source, tmp_path, monkeypatch):
    told = []

    def read(self, case):
        if not told:
            pid = os.fork()
            if pid == 0:
                try:
                    make("isic2017", source, tmp_path / "out")
                except ValueError as error:
                    os._exit(3 if "Another process writes into" in str(error) else 4)
                os._exit(5)
            told.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return original(self, case)

    original = Isic2017Layout.read
    monkeypatch.setattr(Isic2017Layout, "read", read)
    assert make("isic2017", source, tmp_path / "out").counts["train"] == 1
    assert told == [3]


def test_process_that_comes_late_finds_the_work_done(source, tmp_path, monkeypatch):
    def missing(self, cases):
        monkeypatch.setattr(Isic2017Layout, "missing", original)
        make("isic2017", source, tmp_path / "out")  # as another process would, while this one looks
        return original(self, cases)

    original = Isic2017Layout.missing
    monkeypatch.setattr(Isic2017Layout, "missing", missing)
    assert make("isic2017", source, tmp_path / "out").was_complete
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "source"]


def test_prepared_folder_may_be_moved(source, tmp_path):
    make("isic2017", source, tmp_path / "out")
    shutil.rmtree(source)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (case,) = usable_cases(prepared_cases(tmp_path / "elsewhere", "train"), progress=False)
    assert case["image"] == str(tmp_path / "elsewhere" / "images" / "ISIC_0000000.png")


KILL = """
import os, random, signal, sys, time
from pathlib import Path
from monai_sc.datasets import prepare

source, killed, first = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
CASES = {f"ISIC_000000{k}" for k in range(2)}
os.fsync = lambda descriptor: None  # what is killed needs none, and it takes long
seen = []
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")

def call(out):
    prepare("isic2017", source, out, size=(16, 12), partial=True, progress=False)

def child(out, kill_at):
    left = [kill_at]
    def hook(event, args):
        if event in EVENTS and (str(out) in str(args[0]) or event in ("os.remove", "os.rmdir")):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        sys.addaudithook(hook)
        call(out)
        os._exit(0)
    return pid

def pictures(folder, cases):
    return {f.relative_to(folder): f.stat().st_ino for f in folder.rglob("*.png") if f.stem in cases}

def go_on(out):
    unfinished = out.with_name(out.name + ".partial")
    rows = {row.stem for row in unfinished.glob("rows/*.json")}
    if not (unfinished / "preparation.json").exists() and (unfinished / "prepared.json").exists():
        rows = CASES  # which is written when all are
    made = pictures(unfinished, rows) or pictures(out, CASES)
    seen.append(len(made))
    complete = out.exists()
    assert not complete or (out / "prepared.json").is_file(), "it had its name too early"
    call(out)
    assert pictures(out, CASES).items() >= made.items(), "made again"

start = time.perf_counter()
call(first)  # to load everything once
call(first + "-again")
duration = (time.perf_counter() - start) / 2
for kill_at in range(1, 1000):
    out = killed / f"{kill_at:03d}"
    status = os.waitpid(child(out, kill_at), 0)[1]
    if status == 0:
        break
    assert status == signal.SIGKILL, status
    go_on(out)
moments = random.Random(0)
for number in range(8):
    out = killed / f"any-{number}"
    pid = child(out, 0)
    time.sleep(moments.uniform(0, duration))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    go_on(out)
assert set(seen) == {0, 2, 4}, seen
"""


def test_call_that_was_killed_goes_on_to_the_same_bytes(tmp_path):
    """Killed before each thing that it does to a file, and at any moment, and called again."""
    source = tmp_path / "source"
    write_isic2017(source, num_cases={"train": 2})
    make("isic2017", source, tmp_path / "whole")
    arguments = [source, tmp_path / "killed", tmp_path / "first"]
    run_forked(["-c", KILL, *arguments], timeout=120).check_returncode()
    folders = sorted((tmp_path / "killed").iterdir())
    assert len(folders) > 40
    expected = contents(tmp_path / "whole")
    for folder in folders:
        assert contents(folder) == expected, folder
