"""Files as people have them: what they mean, in every command that reads them."""

from __future__ import annotations

import gzip
import io
import os
import shlex
import subprocess
import sys
import unicodedata

import itk
import nibabel as nib
import numpy as np
import pytest
from PIL import Image, ImageOps

from monai_sc.datasets.layout import open_picture
from monai_sc.folders import audit_folder, correct_folder, simulate_folder
from monai_sc.folders.words import file_notes
from monai_sc.reports.shown_cases import find_image
from monai_sc.store import LabelStore, export_folder, export_nnunet, usable_cases
from monai_sc.transforms import LoadLabel, RandMarkovLabelNoise


def disc(radius, ndim=2, size=40):
    centre = np.indices((size,) * ndim) - (size - 1) / 2
    return np.sqrt((centre**2).sum(axis=0)) <= radius


def put(path, mask, save):
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, mask)


def nifti(unit=None, voxel=1.0, moved=0.0):
    def save(path, mask):
        affine = np.diag([voxel] * 3 + [1])
        affine[0, 3] = moved * voxel
        image = nib.Nifti1Image(mask.astype(np.uint8), affine)
        if unit is not None:
            image.header.set_xyzt_units(unit)
        nib.save(image, path)

    return save


def folders(tmp_path, suffix, save, ndim=3, clean=None):
    """Write five labels two voxels too large, of which an expert has drawn four again."""
    for k in range(5):
        put(tmp_path / "labels" / f"{k}{suffix}", disc(9 + k / 2, ndim, 30 if ndim == 3 else 40), save)
        if k < 4:
            put(tmp_path / "clean" / f"{k}{suffix}", disc(7 + k / 2, ndim, 30 if ndim == 3 else 40), clean or save)
    return tmp_path / "labels", tmp_path / "clean"


def markov(classes):
    return RandMarkovLabelNoise(1.0, num_steps=3, expansion_prob=0.9, march_prob=0.3)


@pytest.mark.parametrize(("unit", "mm"), [("micron", 1e-3), ("mm", 1.0), ("meter", 1e3), (None, 1.0)])
def test_lengths_are_in_mm_whatever_the_unit_of_the_file(tmp_path, unit, mm):
    labels, clean = folders(tmp_path, ".nii.gz", nifti(unit, 5.0))
    audit = audit_folder(labels, clean, progress=False)
    assert (audit["unit"], audit["unit_stated"]) == ("mm", unit is not None)
    assert ("Some files state no unit of length; mm is assumed." in file_notes(audit)) == (unit is None)
    assert audit["voxel"] == pytest.approx(5 * mm)
    assert audit["classes"]["1"]["bias"] == pytest.approx(-10 * mm, rel=0.05)
    assert audit["classes"]["1"]["bias_voxels"] == pytest.approx(-2, rel=0.05)
    report = correct_folder(labels, clean, tmp_path / "out", progress=False)
    assert report["classes"]["1"]["move"]["shift"] == pytest.approx(-10 * mm, rel=0.1)
    assert report["unit_stated"] == (unit is not None)
    assert nib.load(tmp_path / "out" / "4.nii.gz").header.get_xyzt_units()[0] == (unit or "unknown")
    rows = simulate_folder(labels, tmp_path / "noisy", markov, seed=0, progress=False)
    del rows
    assert (nib.load(tmp_path / "noisy" / "4.nii.gz").affine == nib.load(labels / "4.nii.gz").affine).all()


def picture(**options):
    def save(path, mask):
        mode = options.get("mode", "L")
        image = Image.fromarray(mask if mode == "1" else mask.astype(np.uint8) * (1 if mode == "P" else 255))
        if mode == "P":
            image.putpalette([0, 0, 0, 200, 0, 0] + [0] * 762)
        image.save(path, **{key: value for key, value in options.items() if key != "mode"})

    return save


WHITE = {"tiffinfo": {262: 0}}
PICTURES = {
    "white-is-0": WHITE,
    "bits": {"mode": "1"},
    "bits-white-is-0": {"mode": "1", **WHITE},
    "fax": {"mode": "1", "compression": "group4"},
    "palette": {"mode": "P"},
}


@pytest.mark.parametrize("options", PICTURES.values(), ids=PICTURES)
def test_tiff_holds_what_a_viewer_shows_and_is_written_as_it_was(tmp_path, options):
    labels, clean = folders(tmp_path, ".tif", picture(**options), ndim=2)
    audit = audit_folder(labels, clean, progress=False)
    (row,) = audit["classes"].values()
    assert row["bias"] == pytest.approx(-2, abs=0.15)
    assert row["verdict"] == "biased"
    value = row["value"]
    assert LoadLabel(foreground=value)(labels / "4.tif").sum() == disc(11).sum()
    correct_folder(labels, clean, tmp_path / "out", progress=False)
    simulate_folder(labels, tmp_path / "noisy", markov, seed=0, progress=False)
    for folder, larger in (("out", False), ("noisy", True)):
        with Image.open(tmp_path / folder / "4.tif") as written, Image.open(labels / "4.tif") as source:
            assert (written.mode, written.tag_v2[262]) == (source.mode, source.tag_v2[262])
            assert written.info.get("compression") == source.info.get("compression")
            shown = np.asarray(written) > 0
        assert (shown.sum() > disc(11).sum()) == larger
        assert shown[20, 20]
        assert not shown[0, 0]
    with Image.open(tmp_path / "out" / "4.tif") as written:
        assert ((np.asarray(written) > 0) != disc(9)).sum() < 25


def test_pages_that_readers_show_in_different_ways_are_refused(tmp_path):
    page = Image.fromarray(disc(9))
    page.save(tmp_path / "a.tif", save_all=True, append_images=[page])
    with pytest.raises(ValueError, match=r"a\.tif cannot be .*pages are bits, .*; convert it to grey values"):
        LoadLabel()(tmp_path / "a.tif")


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_are_one_however_their_accents_are_written(tmp_path, forms):
    names = ["Müller", "Bérénice", "c"]
    for k, name in enumerate(names):
        for folder, form, radius in zip(("labels", "clean"), forms, (9, 7), strict=True):
            put(tmp_path / folder / f"{unicodedata.normalize(form, name)}.nii.gz", disc(radius + k, 3, 30), nifti())
    put(tmp_path / "clean" / "lonely.nii.gz", disc(7, 3, 30), nifti())
    audit = audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)
    assert audit["classes"]["1"]["cases_used"] == 3
    assert audit["unused"] == ["lonely.nii.gz"]
    report = correct_folder(tmp_path / "labels", tmp_path / "clean", tmp_path / "out", progress=False)
    assert (report["pairs"], report["redrawn"], report["unused"]) == (3, 3, ["lonely.nii.gz"])
    # as the labels are called
    written = {name for name in os.listdir(tmp_path / "out") if name.endswith(".nii.gz")}
    assert written == set(os.listdir(tmp_path / "labels"))


@pytest.mark.parametrize("voxel", [0.0008, 1.0, 300.0])
@pytest.mark.parametrize(("moved", "fits"), [(0.04, True), (1.0, False)])
def test_grids_are_compared_in_voxels(tmp_path, voxel, moved, fits):
    labels, clean = folders(tmp_path, ".nii.gz", nifti(None, voxel), clean=nifti(None, voxel, moved))
    case = {"id": "a", "image": str(labels / "0.nii.gz"), "label": str(clean / "0.nii.gz")}
    if fits:
        assert audit_folder(labels, clean, progress=False)["classes"]["1"]["bias_voxels"] == pytest.approx(-2, abs=0.2)
        assert len(usable_cases([case], progress=False)) == 1
        return
    for compare in (
        lambda: audit_folder(labels, clean, progress=False),
        lambda: correct_folder(labels, clean, tmp_path / "out", progress=False),
        lambda: usable_cases([case], progress=False),
    ):
        with pytest.raises(ValueError, match=r"corners are up to 1 voxels apart; resample or reorient one of them"):
            compare()
    assert not (tmp_path / "out").exists()


def test_files_may_be_links_out_of_their_folder(tmp_path):
    """As in DataLad, where equal files are links to one."""
    store = tmp_path / "annex"
    labels, clean = folders(store, ".nii.gz", nifti())
    put(store / "empty.nii.gz", np.zeros((30, 30, 30), bool), nifti())  # without the structure
    for folder in (labels, clean):
        shown = tmp_path / folder.name
        shown.mkdir()
        for file in folder.iterdir():
            (shown / file.name).symlink_to(file)
        for k in (5, 6):
            (shown / f"{k}.nii.gz").symlink_to(store / "empty.nii.gz")
    before = {file: file.read_bytes() for file in store.rglob("*.nii.gz")}
    audit = audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)
    assert audit["classes"]["1"]["cases_used"] == 4
    correct_folder(tmp_path / "labels", tmp_path / "clean", tmp_path / "out", progress=False)
    assert not any(file.is_symlink() for file in (tmp_path / "out").iterdir())
    cases = []
    for k in (4, 5, 6):
        image = tmp_path / f"image{k}.nii.gz"
        nifti()(image, disc(k, 3, 30))
        cases.append({"id": str(k), "image": str(image), "label": str(tmp_path / "labels" / f"{k}.nii.gz")})
    assert len(usable_cases(cases, progress=False)) == 3
    assert {file: file.read_bytes() for file in before} == before


def test_channels_that_overlap_are_no_softmax(tmp_path):
    labels, clean = folders(tmp_path, ".nii.gz", nifti())
    (tmp_path / "predictions").mkdir()
    for k in range(5):
        whole = disc(9, 3, 30).astype(np.float32)
        channels = np.stack([whole, whole])  # two regions, of which one holds the other
        np.savez_compressed(tmp_path / "predictions" / f"{k}.npz", probabilities=channels.transpose(0, 3, 2, 1))
    with pytest.raises(
        ValueError, match=r"which sum to 1 in each voxel, got sums from 0 to 2; .*say which values each holds"
    ):
        correct_folder(labels, clean, tmp_path / "out", predictions=tmp_path / "predictions", progress=False)
    assert not (tmp_path / "out").exists()


def test_layers_are_told_as_what_they_are(tmp_path):
    array = np.zeros((2, 6, 6, 4), np.uint8)
    head = (
        "NRRD0004\ntype: unsigned char\ndimension: 4\nspace: left-posterior-superior\nsizes: 2 6 6 4\n"
        "space directions: none (1,0,0) (0,1,0) (0,0,2)\nkinds: list domain domain domain\nencoding: raw\n"
        "space origin: (0,0,0)\n\n"
    )
    for folder in ("labels", "clean"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.seg.nrrd").write_bytes(head.encode() + array.tobytes())
    with pytest.raises(ValueError, match=r"several values in each voxel, such as colours or layers; export it as one"):
        audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)
    with pytest.raises(ValueError, match=r"a\.seg\.nrrd cannot be used: it holds several values in each voxel"):
        LoadLabel()(tmp_path / "labels" / "a.seg.nrrd")


def write_values(path, values):
    """Write values ``(*spatial)`` as they are, in the type that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".nii.gz"):
        nib.save(nib.Nifti1Image(values, np.eye(4)), path)
    elif path.suffix in (".nrrd", ".mha"):
        itk.imwrite(itk.image_from_array(np.ascontiguousarray(values.T)), os.fspath(path))
    else:
        Image.fromarray(np.ascontiguousarray(values.T)).save(path)


def read_values(path):
    if path.name.endswith(".nii.gz"):
        return np.asarray(nib.load(path).dataobj)
    if path.suffix.lower() in (".nrrd", ".mha"):
        return itk.array_from_image(itk.imread(os.fspath(path))).T
    return np.asarray(Image.open(path)).T


FORMATS = (".png", ".tif", ".bmp", ".nii.gz", ".nrrd", ".mha")
formats = pytest.mark.parametrize("suffix", FORMATS)


def through_jpeg(mask):
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * 255).save(file, "JPEG", quality=80)
    return np.array(Image.open(file))


def linearly_resampled(mask):
    """Return a map of 0 and 2 on a finer grid, where every other value at the edge is 1."""
    values = mask.astype(np.uint8) * 2
    between = (values[:-1].astype(int) + values[1:] + 1) // 2
    return np.stack([values[:-1], between.astype(np.uint8)], axis=1).reshape(-1, values.shape[1])


def like_an_image(mask):
    noise = np.random.default_rng(0).normal(0, 10, mask.shape)
    return (60 + 90 * mask + noise).clip(0, 255).astype(np.uint8)


NO_LABELS = {
    "jpeg": (through_jpeg, r"near 0 and 255 or between them, as a mask that was saved as JPEG or smoothed; set values"),
    "resampled": (linearly_resampled, r"its value 1 occurs only at edges, .* resample it with nearest neighbours"),
    "image": (like_an_image, r"only between others; give the folder of the labels"),
}


@formats
@pytest.mark.parametrize(("change", "message"), NO_LABELS.values(), ids=NO_LABELS)
def test_values_of_no_label_are_refused_with_the_file(tmp_path, suffix, change, message):
    for k in range(3):
        write_values(tmp_path / "labels" / f"{k}{suffix}", change(disc(12 + k)))
        write_values(tmp_path / "clean" / f"{k}{suffix}", change(disc(10 + k)) // 128)
    for call, folders in (
        (audit_folder, ("labels", "clean")),
        (audit_folder, ("clean", "labels")),
        (correct_folder, ("labels", "clean", "out")),
        (lambda *given, progress: simulate_folder(*given, markov, progress=progress), ("labels", "noisy")),
    ):
        with pytest.raises((ValueError, RuntimeError), match=rf"labels/0{suffix} cannot be .*{message}.*\.$"):
            call(*(tmp_path / folder for folder in folders), progress=False)
    with pytest.raises(ValueError, match=rf"Label file .*0{suffix} must hold .*{message}"):
        LoadLabel()(tmp_path / "labels" / f"0{suffix}")
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob("noisy/*")]


def test_named_classes_are_classes(tmp_path):
    """A wall of one voxel, which is all edge."""
    for k in range(3):
        for folder, radius in (("labels", 13), ("clean", 11)):
            values = disc(radius + k).astype(np.uint8) + disc(radius + k - 1)
            write_values(tmp_path / folder / f"{k}.png", values)
    folders = tmp_path / "labels", tmp_path / "clean"
    with pytest.raises(ValueError, match=r"value 1 occurs only at edges, .*; if these are classes, name them"):
        audit_folder(*folders, progress=False)
    audit = audit_folder(*folders, class_names=["wall", "lumen"], progress=False)
    assert audit["classes"]["lumen"]["bias"] == pytest.approx(-2, abs=0.2)
    report = correct_folder(*folders, tmp_path / "out", class_names=["wall", "lumen"], progress=False)
    assert list(report["classes"]) == ["wall", "lumen"]
    with pytest.raises(RuntimeError, match=r"value 1 occurs only at edges"):
        simulate_folder(folders[0], tmp_path / "noisy", markov, progress=False)
    assert len(simulate_folder(folders[0], tmp_path / "noisy", maps, classes=[1, 2], progress=False)) == 3


def maps(classes):
    return RandMarkovLabelNoise(1.0, num_steps=3, expansion_prob=0.9, march_prob=0.3, classes=classes)


@formats
@pytest.mark.parametrize("folder", ["labels", "clean", "labels without a clean one"])
def test_masks_of_0_and_1_beside_0_and_255_are_refused(tmp_path, suffix, folder):
    for k in range(5):
        write_values(tmp_path / "labels" / f"{k}{suffix}", disc(12 + k).astype(np.uint8))
        if k < 3:
            write_values(tmp_path / "clean" / f"{k}{suffix}", disc(10 + k).astype(np.uint8))
    write_values(tmp_path / folder.split()[0] / f"{4 if ' ' in folder else 1}{suffix}", disc(12).astype(np.uint8) * 255)
    folders = tmp_path / "labels", tmp_path / "clean"
    message = r"^All masks must have one value beside 0, got 1 in .* and 255 in .*; write one of them in all files\.$"
    if " " not in folder:
        with pytest.raises(ValueError, match=message):
            audit_folder(*folders, progress=False)
    with pytest.raises(ValueError, match=message):
        correct_folder(*folders, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@formats
@pytest.mark.parametrize("value", [1, 255])
def test_store_takes_masks_of_any_value_and_writes_it_again(tmp_path, suffix, value):
    cases = []
    for k, mask in enumerate([disc(12), disc(9), disc(0)]):  # the last one is empty
        for name in ("image", "label"):
            content = mask.astype(np.uint8) * (value if name == "label" else 3)
            write_values(tmp_path / name / f"{k}{suffix}", content)
        cases.append({"id": str(k), **{name: str(tmp_path / name / f"{k}{suffix}") for name in ("image", "label")}})
    store = LabelStore(tmp_path / "store", usable_cases(cases, progress=False))
    assert store.read("0").sum() == disc(12).sum()
    larger = disc(14)[None]
    with store.write_round(1, {}) as writer:
        for case in cases:
            writer.write(case["id"], larger)
    for case in store.datalist():
        content = read_values(tmp_path / "store" / case["label"])
        assert set(np.unique(content)) == {0, value}
        assert np.array_equal(content > 0, larger[0])


TURNS = {
    "mirrored": lambda values: values[::-1],
    "upside-down": lambda values: values[:, ::-1],
    "transposed": lambda values: np.swapaxes(values, 0, 1),
    "turned-left": lambda values: np.swapaxes(values, 0, 1)[::-1],
    "turned-right": lambda values: np.swapaxes(values, 0, 1)[:, ::-1],
    "turned-over": lambda values: values[::-1, ::-1],
    "other-diagonal": lambda values: np.swapaxes(values, 0, 1)[::-1, ::-1],
}


def aside(radius, k):
    """Return an object that no turn maps to itself, somewhere on the left."""
    x, y = np.indices((40, 40)) - np.array([12 + k % 3, 17]).reshape(2, 1, 1)
    return ((x / radius) ** 2 + (y / (0.6 * radius)) ** 2 <= 1) | ((np.abs(x - 4) < radius / 3) & (np.abs(y + 6) < 3))


@formats
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_clean_labels_that_lie_otherwise_are_refused_with_the_way_to_turn_them(tmp_path, suffix, turn):
    for k in range(4):
        write_values(tmp_path / "labels" / f"{k}{suffix}", aside(10, k).astype(np.uint8))
        write_values(tmp_path / "clean" / f"{k}{suffix}", np.ascontiguousarray(turn(aside(8, k)).astype(np.uint8)))
    folders = tmp_path / "labels", tmp_path / "clean"
    for call in (
        lambda: audit_folder(*folders, progress=False),
        lambda: correct_folder(*folders, tmp_path / "out", progress=False),
    ):
        with pytest.raises(
            ValueError, match=r"^The labels of .* must lie as those of .* do, but fit them better"
        ) as told:
            call()
    way_out = str(told.value).split("turn copies of them with ")[1].rstrip(".")
    if suffix in (".png", ".tif", ".bmp"):
        (tmp_path / "clean").rename(tmp_path / "copies")
        command = way_out.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        (tmp_path / "copies").rename(tmp_path / "clean")
    else:
        for k in range(4):
            file = tmp_path / "clean" / f"{k}{suffix}"
            write_values(file, np.ascontiguousarray(eval(way_out, {"np": np, "a": read_values(file)})))
    (row,) = audit_folder(*folders, progress=False)["classes"].values()
    assert row["bias"] < -1
    case = {
        "id": "a",
        "image": str(tmp_path / "labels" / f"0{suffix}"),
        "label": str(tmp_path / "labels" / f"1{suffix}"),
    }
    assert len(usable_cases([case | {"clean_label": str(tmp_path / "clean" / f"1{suffix}")}], progress=False)) == 1


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_case_list_with_clean_labels_that_lie_otherwise_is_refused(tmp_path, turn):
    cases = []
    for k in range(3):
        shown = {"image": aside(10, k), "label": aside(10, k), "clean_label": np.ascontiguousarray(turn(aside(9, k)))}
        for name, mask in shown.items():
            write_values(tmp_path / name / f"{k}.png", mask.astype(np.uint8) * 255)
        cases.append({"id": str(k), **{name: str(tmp_path / name / f"{k}.png") for name in shown}})
    with pytest.raises(ValueError, match=r"^Clean labels must lie as the labels of the same cases do, but fit"):
        usable_cases(cases, progress=False)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_exchanged_height_and_width_are_told(tmp_path, suffix):
    write_values(tmp_path / "labels" / f"a{suffix}", aside(8, 0)[:, :30].astype(np.uint8))
    write_values(tmp_path / "clean" / f"a{suffix}", aside(8, 0)[:, :30].T.astype(np.uint8))
    with pytest.raises(ValueError, match=r"got \(30, 40\); height and width are exchanged: turn a copy of one of them"):
        audit_folder(tmp_path / "labels", tmp_path / "clean", progress=False)


def predictions(folder, radius, turn, *, volume):
    """Write what a network says of ten cases, four of which are clean, in axes of its own."""
    for k in range(10):
        mask = aside(radius, k).astype(float)
        mask = np.repeat(mask[..., None], 6, axis=2) if volume else mask
        inside = np.ascontiguousarray(turn(0.02 + 0.96 * mask))
        channels = np.stack([1 - inside, inside]).astype(np.float32)
        axes = (0, *range(channels.ndim - 1, 0, -1))
        content = channels.transpose(axes)
        np.savez_compressed(folder / f"{k}.npz", probabilities=content if volume else content[:, None])


@pytest.mark.parametrize(("suffix", "affine"), [(".nii.gz", (-1, -1, 2)), (".nii.gz", (1, -1, 2)), (".png", None)])
def test_predictions_in_other_axes_are_refused_and_read_when_told(tmp_path, suffix, affine):
    """As nnU-Net writes them with a reader that turns images to RAS."""
    volume = affine is not None
    turn = TURNS["transposed"]
    axes = "2,1"
    if affine is not None:
        turn = lambda values: values[:: affine[0], :: affine[1]]  # noqa: E731
        axes = "RAS"
    for name in ("labels", "clean", "predictions"):
        (tmp_path / name).mkdir()
    for k in range(10):
        mask = aside(10 if k >= 4 else 8, k).astype(np.uint8)
        file = tmp_path / ("labels" if k >= 4 else "clean") / f"{k}{suffix}"
        if affine is None:
            write_values(file, mask)
        else:
            nib.save(nib.Nifti1Image(np.repeat(mask[..., None], 6, axis=2), np.diag([*affine, 1.0])), file)
    predictions(tmp_path / "predictions", 10, turn, volume=volume)
    folders = [tmp_path / name for name in ("labels", "clean", "out")]
    options = {"predictions": tmp_path / "predictions", "progress": False}
    with pytest.raises(ValueError, match=rf"^Predictions must have the axes of the labels, .*; use --axes={axes} \("):
        correct_folder(*folders, **options)
    with pytest.raises(ValueError, match=r"fit better with their axes turned: .*; axes='.*' is not how they lie"):
        correct_folder(*folders, **options, axes="1,2,-3" if volume else "-1,2")
    assert not (tmp_path / "out").exists()
    report = correct_folder(*folders, **options, axes=axes)
    assert report["settings"]["axes"] == axes
    for k in range(4, 10):
        truth, given = aside(8, k), aside(10, k)
        found = read_values(tmp_path / "out" / f"{k}{suffix}") > 0
        found = found[..., 3] if volume else found
        assert (found != truth).sum() < 0.6 * (given != truth).sum()


@pytest.mark.parametrize("axes", ["", "RAX", "1,1", "0,1", "3,1", "RRS", "a"])
def test_axes_that_are_none_are_refused(tmp_path, axes):
    labels, clean = folders(tmp_path, ".nii.gz", nifti())
    (tmp_path / "predictions").mkdir()
    for k in range(5):
        np.savez(tmp_path / "predictions" / f"{k}.npz", logits=np.zeros((1, 30, 30, 30), np.float32))
    with pytest.raises(ValueError, match=r"^axes must be an orientation such as RAS, or the number of each axis"):
        correct_folder(labels, clean, tmp_path / "out", predictions=tmp_path / "predictions", axes=axes, progress=False)


def test_prediction_whose_axes_are_exchanged_names_the_option(tmp_path):
    for k in range(2):
        write_values(tmp_path / "labels" / f"{k}.png", aside(8, k)[:, :30].astype(np.uint8))
        (tmp_path / "predictions").mkdir(exist_ok=True)
        np.savez(tmp_path / "predictions" / f"{k}.npz", logits=np.zeros((1, 40, 30), np.float32))
    with pytest.raises(ValueError, match=r"export it in the geometry of the label, or say with --axes how its"):
        correct_folder(
            tmp_path / "labels",
            tmp_path / "labels",
            tmp_path / "out",
            predictions=tmp_path / "predictions",
            progress=False,
        )


def slicer(path, values, segments, encoding="gzip"):
    """Write a segmentation as 3D Slicer does."""
    extent = " ".join(f"{low} {high - 1}" for low, high in zip((1, 1, 1), values.shape, strict=True))
    fields = [f"Segment{k}_{key}:={value}" for k, segment in enumerate(segments) for key, value in segment.items()]
    fields += [f"Segment{k}_Extent:={extent}" for k in range(len(segments))]
    head = [
        "NRRD0004",
        "type: unsigned char",
        "dimension: 3",
        "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, values.shape))}",
        "space directions: (1,0,0) (0,1,0) (0,0,2)",
        "kinds: domain domain domain",
        f"encoding: {encoding}",
        "space origin: (0,0,0)",
        "Segmentation_ReferenceImageExtentOffset:=0 0 0",
        *fields,
    ]
    voxels = values.astype(np.uint8).tobytes(order="F")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join([*head, "", ""]).encode() + (gzip.compress(voxels) if encoding == "gzip" else voxels))


def segments_in(path):
    """Return the fields of a segmentation, by name."""
    head = path.read_bytes().split(b"\n\n")[0].decode()
    return dict(line.split(":=", 1) for line in head.splitlines() if ":=" in line)


LIVER = {"ID": "liver", "Name": "liver", "LabelValue": 1, "Layer": 0}


@pytest.mark.parametrize("encoding", ["gzip", "raw"])
@pytest.mark.parametrize("suffix", [".seg.nrrd", ".SEG.NRRD"])
def test_segmentations_of_slicer_stay_such(tmp_path, suffix, encoding):
    folders = tmp_path / "labels", tmp_path / "clean"
    for k in range(4):
        slicer(folders[0] / f"{k}{suffix}", disc(9 + k / 2, 3, 30), [LIVER], encoding)
        slicer(folders[1] / f"{k}{suffix}", disc(7 + k / 2, 3, 30), [LIVER], encoding)
        nib.save(nib.Nifti1Image(np.zeros((30, 30, 30), np.float32), np.diag([-1, -1, 2, 1.0])), tmp_path / f"{k}.nii")
    (row,) = audit_folder(*folders, progress=False)["classes"].values()
    assert row["bias"] < -1
    correct_folder(*folders, tmp_path / "out", progress=False)
    simulate_folder(folders[0], tmp_path / "noisy", markov, seed=0, progress=False)
    cases = [{"id": f"{k}.x", "image": tmp_path / f"{k}.nii", "label": folders[0] / f"{k}{suffix}"} for k in range(4)]
    store = LabelStore(tmp_path / "store", cases, class_names=["liver"])
    store.simulate(markov(None), seed=0, progress=False)
    exported = sorted(export_folder(store, tmp_path / "export").iterdir())
    assert [file.name for file in exported] == [f"{k}.x.seg.nrrd" for k in range(4)]
    written = [*exported, *(tmp_path / part / f"{k}{suffix}" for part in ("out", "noisy") for k in range(4))]
    written += [store.root / case["label"] for case in store.datalist()]
    for file in written:
        assert file.name.lower().endswith(".seg.nrrd")
        own = segments_in(file)
        assert own == segments_in(folders[0] / f"0{suffix}") | {"Segment0_Extent": "0 29 0 29 0 29"}
        assert read_values(file).any()


@pytest.mark.parametrize("as_map", [True, False])
def test_map_of_segments_names_all_of_them(tmp_path, as_map):
    masks = {"liver": disc(4, 3, 20), "spleen": np.roll(disc(3, 3, 20), 8, axis=0) & ~disc(4, 3, 20)}
    spleen = {"ID": "x", "Name": "a spleen", "LabelValue": 5, "Layer": 0, "Tags": "old"}
    itk.imwrite(itk.image_from_array(np.zeros((20, 20, 20), np.int16)), os.fspath(tmp_path / "ct.nrrd"))
    image = itk.imread(os.fspath(tmp_path / "ct.nrrd"))
    image.SetSpacing([1, 1, 2])
    itk.imwrite(image, os.fspath(tmp_path / "ct.nrrd"))
    case = {"id": "a", "image": tmp_path / "ct.nrrd"}
    if as_map:
        slicer(tmp_path / "both.seg.nrrd", masks["liver"] + 5 * masks["spleen"], [LIVER, spleen])
        case["label"] = tmp_path / "both.seg.nrrd"
    else:
        for name, segment in (("liver", LIVER), ("spleen", spleen | {"LabelValue": 1})):
            slicer(tmp_path / f"{name}.seg.nrrd", masks[name], [segment])
        case["label"] = [tmp_path / f"{name}.seg.nrrd" for name in masks]
    store = LabelStore(tmp_path / "store", [case], class_names=list(masks), values=[1, 5] if as_map else None)
    folder = export_nnunet(store, tmp_path / "Dataset101_A", channel_names=["CT"])
    file = folder / "labelsTr" / "a.nrrd"  # nnU-Net takes images and labels of one suffix
    own = segments_in(file)
    segments = {key: value for key, value in own.items() if key.startswith(("Segment0_", "Segment1_"))}
    assert segments == {
        f"Segment{k}_{key}": value
        for k, name in enumerate(masks)
        for key, value in {
            "ID": f"Segment_{k + 1}",
            "Name": name,
            "LabelValue": str(k + 1),
            "Layer": "0",
            "Extent": "0 19 0 19 0 19",
        }.items()
    }
    assert np.array_equal(read_values(file), masks["liver"] + 2 * masks["spleen"])


@pytest.mark.parametrize("name", ["{}.npz", "{}.seg.npz"])
def test_prediction_of_a_segmentation_has_its_name(tmp_path, name):
    (tmp_path / "predictions").mkdir()
    for k in range(5):
        slicer(tmp_path / "labels" / f"{k}.seg.nrrd", disc(9 + k / 2, 3, 30), [LIVER])
        slicer(tmp_path / "clean" / f"{k}.seg.nrrd", disc(7 + k / 2, 3, 30), [LIVER])
        logits = np.where(disc(9 + k / 2, 3, 30), 4.0, -4.0).astype(np.float32)
        np.savez(tmp_path / "predictions" / name.format(k), logits=logits.transpose(2, 1, 0)[None])
    folders = [tmp_path / part for part in ("labels", "clean", "out")]
    report = correct_folder(*folders, predictions=tmp_path / "predictions", progress=False)
    assert report["pairs"] == 5


def turned_picture(path, values, orientation):
    """Write a picture that viewers turn, as cameras do."""
    exif = Image.Exif()
    exif[274] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(values.T)).save(path, exif=exif)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_picture_that_viewers_turn_is_no_image_of_a_case(tmp_path, suffix):
    mask = disc(9).astype(np.uint8)
    write_values(tmp_path / "label.png", mask)
    case = {"id": "a", "image": str(tmp_path / f"image{suffix}"), "label": str(tmp_path / "label.png")}
    for orientation in (1, 6):
        turned_picture(tmp_path / f"image{suffix}", mask * 200, orientation)
        if orientation == 1:
            assert len(usable_cases([case], progress=False)) == 1
            LabelStore(tmp_path / "upright", [case])
            assert open_picture(tmp_path / f"image{suffix}", ["L"]).shape == (40, 40)
    message = rf"image{suffix} .*cannot be used: it must be upright, but its EXIF orientation, 6, turns it in viewers"
    for call in (
        lambda: usable_cases([case], progress=False),
        lambda: LabelStore(tmp_path / "store", [case]),
        lambda: open_picture(tmp_path / f"image{suffix}", ["L"]),  # of a downloaded data set
    ):
        with pytest.raises(ValueError, match=message.replace(r" .*", r".* ?")):
            call()


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_label_that_viewers_turn_is_refused(tmp_path, suffix):
    for k in range(2):
        turned_picture(tmp_path / "labels" / f"{k}{suffix}", disc(12).astype(np.uint8), 3)
        write_values(tmp_path / "clean" / f"{k}{suffix}", disc(10).astype(np.uint8))
    folders = tmp_path / "labels", tmp_path / "clean"
    for call in (
        lambda: audit_folder(*folders, progress=False),
        lambda: correct_folder(*folders, tmp_path / "out", progress=False),
        lambda: simulate_folder(folders[0], tmp_path / "noisy", markov, progress=False),
        lambda: LoadLabel()(folders[0] / f"0{suffix}"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=r"it must be upright, but its EXIF orientation, 3, turns"):
            call()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_reports_show_images_as_viewers_do(tmp_path, orientation):
    values = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4) * 10
    turned_picture(tmp_path / "a.png", values, orientation)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.png"))).T
    assert np.array_equal(find_image("a.png", shown.shape, tmp_path), shown)
