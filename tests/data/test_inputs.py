"""Files as people have them: what they mean, in every command that reads them."""

from __future__ import annotations

import os
import unicodedata

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.data import audit_folder, correct_folder, simulate_folder, usable_cases
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
    assert audit["unit"] == "mm"
    assert audit["voxel"] == pytest.approx(5 * mm)
    assert audit["classes"]["1"]["bias"] == pytest.approx(-10 * mm, rel=0.05)
    assert audit["classes"]["1"]["bias_voxels"] == pytest.approx(-2, rel=0.05)
    report = correct_folder(labels, clean, tmp_path / "out", progress=False)
    assert report["classes"]["1"]["move"]["shift"] == pytest.approx(-10 * mm, rel=0.1)
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
    with pytest.raises(ValueError, match=r"which sum to 1 in each voxel, got sums from 0 to 2; .*correct each region"):
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
