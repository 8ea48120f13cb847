import re

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.folders import audit_folder, correct_folder
from monai_sc.folders.inputs import UNKNOWN, CorrectionFolders


def save(folder, name, values, size=None):
    """Save a label map, as a picture or with voxels of a size in mm."""
    folder.mkdir(parents=True, exist_ok=True)
    values = np.asarray(values, dtype=np.uint8)
    if size is None:
        Image.fromarray(values.T).save(folder / name)
    else:
        nib.save(nib.Nifti1Image(values, np.diag([*size, 1.0])), folder / name)


def rings(k, wider, values=(50, 100)):
    """Return a map of a core within a ring, whose outer boundary lies wider by some voxels."""
    x, y = np.mgrid[:64, :60]
    radius = np.hypot(x - 30, y - 28)
    return np.where(radius <= 6 + k / 2, values[1], np.where(radius <= 14 + k + wider, values[0], 0))


@pytest.fixture
def folders(tmp_path):
    """Maps of the values 50 and 100, the ring of which is three pixels too wide; the last one holds a 7 as well."""
    for k in range(6):
        given = rings(k, 3)
        if k == 5:
            given[:4] = 7
            given[40:43, 28] = 1
        save(tmp_path / "labels", f"{k}.png", given)
        if k < 3:
            save(tmp_path / "clean", f"{k}.png", rings(k, 0))
    save(tmp_path / "clean", "other.png", rings(0, 0))
    return tmp_path


def test_classes_are_the_values_of_the_cases_with_both_labels(folders):
    report = correct_folder(folders / "labels", folders / "clean", folders / "out", progress=False)
    assert (report["values"], report["output"]) == ([50, 100], "softmax")
    assert list(report["classes"]) == ["50", "100"]
    assert report["moved"] == {"50": "move", "100": "keep"}
    assert (report["clean_cases"], report["pairs"], report["unused"]) == (3, 3, ["other.png"])
    assert report["other_values"] == {"1": 1, "7": 1}
    for k in range(6):
        given, out = (np.asarray(Image.open(folders / part / f"{k}.png")).T for part in ("labels", "out"))
        free = ~np.isin(given, (1, 7))
        np.testing.assert_array_equal(out[~free], given[~free])
        wrong = [(part != rings(k, 0))[free].sum() for part in (out, given)]
        assert wrong[0] < 0.3 * wrong[1]  # the boundary with the core, which is right, makes the shift a bit too small
        assert not (out == 0)[free & (rings(k, 0) > 0)].any()  # nothing retreats from a value of no class
        assert set(np.unique(out)) <= {0, 1, 7, 50, 100}


def test_unknown_value_may_be_the_number_of_a_class(folders):
    report = correct_folder(folders / "labels", folders / "clean", folders / "out", ignore_value=1, progress=False)
    assert report["other_values"] == {"7": 1}
    assert report["settings"]["ignore_value"] == report["options"]["ignore_value"] == 1
    out = np.asarray(Image.open(folders / "out" / "5.png")).T
    assert (out[40:43, 28] == 1).all()
    assert (out == 1).sum() == 3


def test_map_is_read_as_classes_and_written_as_it_was(folders):
    read = CorrectionFolders(folders / "labels", folders / "clean", ignore=1)
    label = read.label("5.png")
    assert label.values.dtype == np.int16
    assert set(np.unique(label.values)) == {UNKNOWN, 0, 1, 2}
    assert label.others.sum() == 4 * 60
    np.testing.assert_array_equal(read.as_file(label.values, label), label.file.values)
    np.testing.assert_array_equal(read.as_file(0 * label.values, label), label.file.values * label.stays)


def test_voxels_that_stay_get_the_class_beside_them_while_others_are_moved(folders):
    label = CorrectionFolders(folders / "labels", folders / "clean", ignore=1).label("5.png")
    filled = label.filled()
    assert (filled[40:43, 28] == 1).all()
    np.testing.assert_array_equal(filled[~label.stays], label.values[~label.stays])
    nothing = CorrectionFolders(folders / "labels", folders / "clean").label("0.png")
    assert nothing.stays is None
    assert nothing.filled() is nothing.values


@pytest.mark.parametrize("given", [(30, 60), (9, 9)], ids=["map", "mask"])
def test_folders_without_a_common_value_are_refused(tmp_path, given):
    save(tmp_path / "labels", "a.png", rings(0, 3, given))
    save(tmp_path / "clean", "a.png", rings(0, 0))
    message = f"must hold the same classes, got the values {sorted(set(given))} and [50, 100] in the cases"
    with pytest.raises(ValueError, match=re.escape(message)):
        correct_folder(tmp_path / "labels", tmp_path / "clean", tmp_path / "out", progress=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clean", "labels"]


def test_mask_whose_edge_was_smoothed_is_refused(tmp_path):
    for k in range(3):
        mask = (rings(k, 3) > 0) * 255
        mask[3, 3] = 127 * (k == 2)
        save(tmp_path / "labels", f"{k}.png", mask)
        if k < 2:
            save(tmp_path / "clean", f"{k}.png", (rings(k, 0) > 0) * 255)
    with pytest.raises(ValueError, match=r"2\.png must hold 0 and 255 only, got 127; give ignore_value"):
        correct_folder(tmp_path / "labels", tmp_path / "clean", tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_tolerance_that_is_none_is_refused(folders):
    for call in (audit_folder, lambda *given, **options: correct_folder(*given, folders / "out", **options)):
        for tolerance in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=rf"^tolerance must be at least 0, got {tolerance}\.$"):
                call(folders / "labels", folders / "clean", tolerance=tolerance, progress=False)


def balls(k, wider, shape=(30, 30, 12), flat=2.5):
    """Return a ball in voxels that are longer along the last axis, with an edge that wavers."""
    x, y, z = np.indices(shape) - np.reshape((15, 14, 6), (3, 1, 1, 1))
    radius = np.sqrt(x**2 + y**2 + (flat * z) ** 2) + 0.7 * np.sin(3 * np.arctan2(y, x) + k)
    return (radius <= 7 + k / 2 + wider) * 1


SIZES = {
    "mm": [(0.8, 0.8, 2.0)] * 4,
    "cm": [(0.08, 0.08, 0.2)] * 4,
    "micron": [(800.0, 800.0, 2000.0)] * 4,
    "each-its-own": [(0.7, 0.7, 1.75), (0.8, 0.8, 2.0), (0.9, 0.9, 2.25), (1.0, 1.0, 2.5)],
}


@pytest.mark.parametrize("tolerance", [None, 2.2], ids=["one-voxel", "more"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_audit_and_correct_agree_in_any_unit(tmp_path, sizes, tolerance):
    for k, size in enumerate(sizes):
        given, clean = balls(k, 2 + 0.1 * k), balls(k, 0)
        clean[:3], given[:, :4] = 9, 9
        save(tmp_path / "labels", f"{k}.nii.gz", given, size)
        save(tmp_path / "clean", f"{k}.nii.gz", clean, size)
    options = {
        "ignore_value": 9,
        "tolerance": None if tolerance is None else tolerance * sizes[0][0],
        "progress": False,
    }
    audit = audit_folder(tmp_path / "labels", tmp_path / "clean", **options)
    report = correct_folder(tmp_path / "labels", tmp_path / "clean", tmp_path / "out", **options)
    (name,) = audit["classes"]
    own, other = report["classes"][name], audit["classes"][name]
    for key in ("bias", "interval", "bias_voxels"):
        assert own[key] == pytest.approx(other[key], rel=1e-4)
    same = ("verdict", "cases_used", "cases_skipped")
    assert [own[key] for key in same] == [other[key] for key in same]
    assert own["verdict"] == ("biased" if tolerance is None else own["verdict"])
    assert report["settings"]["tolerance"] == pytest.approx(audit["tolerance"])
    assert audit["voxel"] == pytest.approx(np.median([size[0] for size in sizes]))


def test_masks_do_not_depend_on_the_unit(tmp_path):
    found = {}
    for unit in ("mm", "cm", "micron"):
        for k in range(6):
            save(tmp_path / unit / "labels", f"{k}.nii.gz", balls(k, 2), SIZES[unit][0])
            if k < 3:
                save(tmp_path / unit / "clean", f"{k}.nii.gz", balls(k, 0), SIZES[unit][0])
        correct_folder(*(tmp_path / unit / part for part in ("labels", "clean", "out")), progress=False)
        found[unit] = [np.asarray(nib.load(tmp_path / unit / "out" / f"{k}.nii.gz").dataobj) for k in range(6)]
    np.testing.assert_array_equal(found["cm"], found["mm"])
    np.testing.assert_array_equal(found["micron"], found["mm"])
    truth = [balls(k, 0) for k in range(6)]
    assert (np.stack(found["mm"]) != truth).mean() < 0.1 * (np.stack([balls(k, 2) for k in range(6)]) != truth).mean()
