"""Exports for nnU-Net and MONAI Label, read by readers written from the descriptions of these layouts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage
from PIL import Image

from monai_sc.store import LabelStore, export_folder, export_monai_label, export_nnunet

AFFINE = nib.affines.from_matvec([[-0.6, 0.3, 0], [0.2, 0.7, 0.4], [0, -0.4, 2.5]], [-31.7, 12.3, 101.9])
GRID = np.stack(np.meshgrid(np.arange(10), np.arange(9), np.arange(6), indexing="ij"))


def ball(centre, radius):
    return np.sqrt(((GRID - np.reshape(centre, (3, 1, 1, 1))) ** 2).sum(axis=0)) <= radius


def write_nifti(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, AFFINE), path)
    return str(path)


def write_by_itk(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = itk.image_from_array(np.ascontiguousarray(array.T))
    image.SetSpacing([0.5, 2.0, 1.5])
    image.SetOrigin([4.0, -7.0, 11.0])
    itk.imwrite(image, str(path))
    return str(path)


def make_cases(folder, masks_of_cases, *, suffix=".nii.gz", write=write_nifti, channels=1):
    """Return a case for each list of masks, one per class, with images of random values."""
    cases = []
    for number, masks in enumerate(masks_of_cases):
        images = [
            write(folder / f"image {k}" / f"{number}{suffix}", np.random.RandomState(k).rand(*GRID.shape[1:]) * 200)
            for k in range(channels)
        ]
        labels = [write(folder / f"class {k}" / f"{number}{suffix}", m.astype(np.uint8)) for k, m in enumerate(masks)]
        cases.append({"id": f"scan {number}", "image": images, "label": labels})
    return cases


def read_nnunet(folder):
    """Return dataset.json, and each case as image files by channel and the values of its label."""
    content = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    ending = content["file_ending"]
    cases = {}
    for file in sorted((folder / "labelsTr").iterdir()):
        name = file.name.removesuffix(ending)
        pattern = re.compile(re.escape(name) + r"_\d{4}" + re.escape(ending))
        images = sorted(f for f in (folder / "imagesTr").iterdir() if pattern.fullmatch(f.name))
        cases[name] = images, LoadImage(image_only=True)(file)
    assert len(cases) == content["numTraining"]
    return content, cases


@pytest.mark.parametrize(
    ("suffix", "write"),
    [(".nii.gz", write_nifti), (".nii", write_nifti), (".nrrd", write_by_itk), (".mha", write_by_itk)],
)
def test_nnunet_gets_one_map_of_the_classes_on_the_grid_of_the_image(tmp_path, suffix, write):
    masks = [[ball((3, 3, 2), 2), ball((7, 6, 3), 2)], [ball((2, 5, 2), 1), ball((7, 2, 3), 2)]]
    cases = make_cases(tmp_path / "in", masks, suffix=suffix, write=write, channels=2)
    store = LabelStore(tmp_path / "store", cases, class_names=["leber", "夏"])
    with store.write_round(1, {}) as writer:
        for case, own in zip(cases, masks, strict=True):
            writer.write(case["id"], np.roll(own, 1, axis=1))
    out = export_nnunet(store, tmp_path / "raw" / "Dataset101_Leber", channel_names=["CT", "PET"])
    assert out == tmp_path / "raw" / "Dataset101_Leber"
    assert sorted(f.name for f in out.parent.iterdir()) == ["Dataset101_Leber"]
    content, found = read_nnunet(out)
    assert content == {
        "channel_names": {"0": "CT", "1": "PET"},
        "labels": {"background": 0, "leber": 1, "夏": 2},
        "numTraining": 2,
        "file_ending": suffix,
    }
    for case, own in zip(cases, masks, strict=True):
        images, label = found[case["id"]]
        assert [f.read_bytes() for f in images] == [Path(f).read_bytes() for f in case["image"]]
        first, second = np.roll(own, 1, axis=1)
        np.testing.assert_array_equal(label.numpy(), first + 2 * second)
        np.testing.assert_array_equal(label.affine, LoadImage(image_only=True)(images[0]).affine)


def test_nnunet_gets_consecutive_values_of_a_label_map(tmp_path):
    values = np.random.RandomState(0).choice(np.array([0, 1, 2, 4], dtype=np.int16), GRID.shape[1:])
    file = write_nifti(tmp_path / "in" / "seg.nii.gz", values)
    store = LabelStore(
        tmp_path / "store", [{"id": "a", "image": file, "label": file}], class_names=["x", "y", "z"], values=[1, 2, 4]
    )
    content, found = read_nnunet(export_nnunet(store, tmp_path / "Dataset002_T", channel_names=["T1"]))
    assert content["labels"] == {"background": 0, "x": 1, "y": 2, "z": 3}
    np.testing.assert_array_equal(found["a"][1].numpy(), np.where(values == 4, 3, values))
    assert nib.load(tmp_path / "Dataset002_T" / "labelsTr" / "a.nii.gz").get_data_dtype() == np.uint8


def test_nnunet_gets_nested_classes_as_regions(tmp_path):
    core, whole, apart, tip = ball((3, 3, 2), 1), ball((3, 3, 2), 3), ball((8, 7, 4), 1), ball((3, 3, 2), 0)
    empty = np.zeros_like(core)
    names = ["core", "whole", "apart", "tip", "empty"]
    masks = [[core, whole, apart, tip, empty], [empty, ball((5, 5, 3), 2), empty, empty, empty]]
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", masks), class_names=names)
    content, found = read_nnunet(export_nnunet(store, tmp_path / "Dataset003_N", channel_names=["CT"]))
    assert list(content["labels"]) == ["background", "whole", "apart", "empty", "core", "tip"]
    assert content["labels"] == {"background": 0, "whole": [1, 4, 5], "apart": 2, "empty": 3, "core": [4, 5], "tip": 5}
    assert content["regions_class_order"] == [1, 2, 3, 4, 5]
    for case, own in zip(store.cases, masks, strict=True):
        values = found[case["id"]][1].numpy()
        seen = {name: np.isin(values, value) for name, value in content["labels"].items()}
        for name, mask in zip(names, own, strict=True):
            np.testing.assert_array_equal(seen[name], mask)
        painted = np.zeros_like(values)  # as nnU-Net makes a label map of its predictions
        regions = list(content["labels"])[1:]
        for name, value in zip(regions, content["regions_class_order"], strict=True):
            painted[seen[name]] = value
        np.testing.assert_array_equal(painted, values)


def test_equal_classes_are_nested(tmp_path):
    same = ball((3, 3, 2), 2)
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", [[same, same]]), class_names=["a", "b"])
    content, found = read_nnunet(export_nnunet(store, tmp_path / "Dataset004_S", channel_names=["CT"]))
    assert content["labels"] == {"background": 0, "a": [1, 2], "b": 2}
    np.testing.assert_array_equal(found["scan 0"][1].numpy(), 2 * same)


def test_classes_that_overlap_otherwise_are_refused_and_nothing_is_left(tmp_path):
    nested = [ball((3, 3, 2), 1), ball((3, 3, 2), 3)]
    masks = [nested, [ball((7, 6, 3), 2), ball((6, 6, 3), 2)]]
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", masks), class_names=["a", "b"])
    message = r"'a' and 'b' do not, for example in case 'scan 0'; export the labels as files of one class each\."
    with pytest.raises(ValueError, match=message):
        export_nnunet(store, tmp_path / "out" / "Dataset005_O", channel_names=["CT"])
    with pytest.raises(ValueError, match=message):
        export_monai_label(store, tmp_path / "out" / "studies")
    assert not list((tmp_path / "out").iterdir())


def picture_cases(folder, *, colours=3, label_suffix=".png"):
    folder.mkdir()
    mask = (GRID[0, :, :, 0] > 4).astype(np.uint8) * 255
    shape = (9, 10, colours) if colours > 1 else (9, 10)
    Image.fromarray(np.random.RandomState(0).randint(0, 255, shape, dtype=np.uint8)).save(folder / "photo.PNG")
    Image.fromarray(mask.T).convert("1").save(folder / f"mask{label_suffix}")
    files = {"image": str(folder / "photo.PNG"), "label": str(folder / f"mask{label_suffix}")}
    return [{"id": "p", **files, "foreground": LoadImage(image_only=True)(files["label"]).max().item()}], mask > 0


def test_nnunet_takes_colours_in_one_picture(tmp_path):
    cases, mask = picture_cases(tmp_path / "in")
    store = LabelStore(tmp_path / "store", cases)
    out = export_nnunet(store, tmp_path / "Dataset006_P", channel_names=["R", "G", "B"])
    content, _ = read_nnunet(out)
    assert content["file_ending"] == ".png"
    with Image.open(out / "labelsTr" / "p.png") as written:
        assert written.mode == "L"
        np.testing.assert_array_equal(np.asarray(written), mask.T.astype(np.uint8))
    assert (out / "imagesTr" / "p_0000.png").read_bytes() == (tmp_path / "in" / "photo.PNG").read_bytes()
    with pytest.raises(
        ValueError, match=r"channel_names must be one per channel of an image, 3 in case 'p', got \['R'\]"
    ):
        export_nnunet(store, tmp_path / "Dataset007_P", channel_names=["R"])


def test_label_of_a_scaled_file_is_written_without_scale(tmp_path):
    mask = ball((3, 3, 2), 2)
    file = write_nifti(tmp_path / "label.nii", mask.astype(np.int16) * 30000)
    content = bytearray(Path(file).read_bytes())
    content[112:116] = np.float32(1 / 30000).tobytes()  # scl_slope, which nibabel chooses itself
    Path(file).write_bytes(content)
    assert 0.9 < nib.load(file).get_fdata().max() < 1.1
    store = LabelStore(tmp_path / "store", [{"id": "a", "image": file, "label": file}])
    export_nnunet(store, tmp_path / "Dataset008_S", channel_names=["CT"])
    written = nib.load(tmp_path / "Dataset008_S" / "labelsTr" / "a.nii")
    assert (written.dataobj.slope, written.dataobj.inter, written.get_data_dtype()) == (1, 0, np.uint8)
    np.testing.assert_array_equal(np.asarray(written.dataobj), mask)


def test_images_can_be_linked(tmp_path):
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", [[ball((3, 3, 2), 2)]]))
    out = export_nnunet(store, tmp_path / "Dataset009_L", channel_names=["CT"], link_images=True)
    image = out / "imagesTr" / "scan 0_0000.nii.gz"
    assert image.is_symlink()
    assert image.resolve() == Path(store.cases[0]["image"][0])


def test_unfit_nnunet_exports_are_refused(tmp_path):
    masks = [[ball((3, 3, 2), 2)]]
    cases = make_cases(tmp_path / "in", masks)
    store = LabelStore(tmp_path / "store", cases)
    out = tmp_path / "Dataset010_E"
    for name in ("lung", "Dataset1_Lung", "Dataset010"):
        with pytest.raises(ValueError, match=r"out must be a folder with a name of nnU-Net, such as Dataset101_Lung"):
            export_nnunet(store, tmp_path / name, channel_names=["CT"])
    with pytest.raises(TypeError, match=r"channel_names must be a list with one name per channel, got 'CT'"):
        export_nnunet(store, out, channel_names="CT")
    with pytest.raises(ValueError, match=r"number must be one of the rounds \[0\]"):
        export_nnunet(store, out, 3, channel_names=["CT"])
    ignored = LabelStore(tmp_path / "ignored", cases, class_names=["ignore"])
    with pytest.raises(ValueError, match=r"class_names must not hold 'ignore'"):
        export_nnunet(ignored, out, channel_names=["CT"])
    other = write_by_itk(tmp_path / "in" / "other.nrrd", np.zeros(GRID.shape[1:], dtype=np.float32))
    mixed = LabelStore(tmp_path / "mixed", [{**cases[0], "image": other}])
    with pytest.raises(
        ValueError, match=r"images and labels of one file type, got \.nii\.gz and .*other\.nrrd of case"
    ):
        export_nnunet(mixed, out, channel_names=["CT"])
    both = LabelStore(tmp_path / "both", [cases[0], {**cases[0], "id": "b", "image": cases[0]["image"] * 2}])
    with pytest.raises(ValueError, match=r"the same number of image files, got 1 and 2 of case 'b'"):
        export_nnunet(both, out, channel_names=["CT"])
    four = write_nifti(tmp_path / "in" / "four.nii.gz", np.zeros((*GRID.shape[1:], 4), dtype=np.float32))
    channels = LabelStore(tmp_path / "channels", [{**cases[0], "image": four}])
    with pytest.raises(ValueError, match=r"one image file per channel, got 4 channels in 1 of case 'scan 0'"):
        export_nnunet(channels, out, channel_names=["a", "b", "c", "d"])
    assert not out.exists()


def test_failed_nnunet_export_leaves_nothing(tmp_path):
    cases = make_cases(tmp_path / "in", [[ball((3, 3, 2), 2)]] * 2)
    store = LabelStore(tmp_path / "store", cases)
    Path(cases[1]["image"][0]).unlink()
    with pytest.raises(
        OSError, match=r"imagesTr/scan 1_0000\.nii\.gz could not be written: No such file or directory\."
    ):
        export_nnunet(store, tmp_path / "raw" / "Dataset011_F", channel_names=["CT"])
    assert not list((tmp_path / "raw").iterdir())


def test_monai_label_gets_images_and_final_labels_of_the_same_names(tmp_path):
    masks = [[ball((3, 3, 2), 2), ball((7, 6, 3), 2)], [ball((2, 5, 2), 1), ball((7, 2, 3), 2)]]
    cases = make_cases(tmp_path / "in", masks)
    store = LabelStore(tmp_path / "store", cases)
    out = export_monai_label(store, tmp_path / "studies")
    files = sorted(str(f.relative_to(out)) for f in out.rglob("*") if f.is_file())
    assert files == [
        "labels/final/scan 0.nii.gz",
        "labels/final/scan 1.nii.gz",
        "scan 0.nii.gz",
        "scan 1.nii.gz",
    ]
    for case, (first, second) in zip(cases, masks, strict=True):
        image = out / f"{case['id']}.nii.gz"
        assert image.read_bytes() == Path(case["image"][0]).read_bytes()
        assert not image.is_symlink()
        label = nib.load(out / "labels" / "final" / f"{case['id']}.nii.gz")
        np.testing.assert_array_equal(np.asarray(label.dataobj), first + 2 * second)
        np.testing.assert_array_equal(label.affine, nib.load(image).affine)


def test_unfit_monai_label_exports_are_refused(tmp_path):
    masks = [[ball((3, 3, 2), 1), ball((3, 3, 2), 3)]]
    nested = LabelStore(tmp_path / "nested", make_cases(tmp_path / "in", masks), class_names=["core", "whole"])
    with pytest.raises(ValueError, match=r"Classes must not overlap .* but 'core' lies within 'whole'; export"):
        export_monai_label(nested, tmp_path / "out")
    channels = LabelStore(tmp_path / "channels", make_cases(tmp_path / "in2", masks, channels=2))
    with pytest.raises(ValueError, match=r"MONAI Label takes one image file per case, got 2 of case 'scan 0'"):
        export_monai_label(channels, tmp_path / "out")
    other = LabelStore(tmp_path / "other", make_cases(tmp_path / "in3", masks, suffix=".mha", write=write_by_itk))
    with pytest.raises(ValueError, match=r"MONAI Label reads files of the types .*, got .*0\.mha of case 'scan 0'"):
        export_monai_label(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("export", ["nnunet", "monai_label"])
def test_space_units_of_an_nrrd_file_are_kept(tmp_path, export):
    cases = make_cases(tmp_path / "in", [[ball((3, 3, 2), 2)]], suffix=".nrrd", write=write_by_itk)
    file = Path(cases[0]["label"][0])
    file.write_bytes(file.read_bytes().replace(b"\n\n", b'\nspace units: "mm" "mm" "mm"\n\n', 1))
    store = LabelStore(tmp_path / "store", cases)
    if export == "nnunet":
        written = export_nnunet(store, tmp_path / "Dataset012_U", channel_names=["CT"]) / "labelsTr" / "scan 0.nrrd"
    else:
        written = export_monai_label(store, tmp_path / "studies") / "labels" / "final" / "scan 0.nrrd"
    assert b'\nspace units: "mm" "mm" "mm"\n' in written.read_bytes()
    label, given = (LoadImage(image_only=True)(f) for f in (written, file))
    np.testing.assert_array_equal(label, given)
    np.testing.assert_array_equal(label.affine, given.affine)


@pytest.mark.parametrize("suffix", [".nhdr", ".mhd", ".hdr", ".img"])
@pytest.mark.parametrize("number", [0, 1])
def test_export_of_two_files_holds_the_voxels_too(tmp_path, suffix, number):
    masks = [ball((3, 3, 2), 2), ball((7, 6, 3), 2)]
    store = LabelStore(tmp_path / "store", make_cases(tmp_path / "in", [masks], suffix=suffix, write=write_by_itk))
    with store.write_round(1, {}) as writer:
        writer.write("scan 0", np.roll(masks, 1, axis=1))
    out = export_folder(store, tmp_path / "out", number)
    given = [LoadImage(image_only=True)(f) for f in store.cases[0]["label"]]
    shutil.rmtree(store.root)
    shutil.rmtree(tmp_path / "in")
    for name, mask, like in zip(store.class_names, masks, given, strict=True):
        label = LoadImage(image_only=True)(out / name / f"scan 0{suffix}")
        np.testing.assert_array_equal(label, np.roll(mask, number, axis=0))
        np.testing.assert_array_equal(label.affine, like.affine)
