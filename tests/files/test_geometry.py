"""The geometry that a file states."""

import itertools

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage

from monai_sc.files.grids import mm_per_unit, mm_per_unit_of, voxels_apart


def nifti(path, unit):
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.uint8), np.diag([2.0, 2, 3, 1]))
    if unit is not None:
        image.header.set_xyzt_units(unit)
    nib.save(image, path)
    return path


def nrrd(path, units):
    line = b"" if units is None else b"space units: " + units.encode() + b"\n"
    path.write_bytes(
        b"NRRD0004\ntype: unsigned char\ndimension: 3\nspace: left-posterior-superior\nsizes: 3 4 5\n"
        b"space directions: (2,0,0) (0,2,0) (0,0,3)\nkinds: domain domain domain\nencoding: raw\n" + line
        + b"space origin: (0,0,0)\n\n" + bytes(60)
    )  # fmt: skip
    return path


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(("unit", "mm"), [(None, 1), ("unknown", 1), ("mm", 1), ("micron", 1e-3), ("meter", 1e3)])
def test_nifti_states_its_unit(tmp_path, suffix, unit, mm):
    path = nifti(tmp_path / f"a{suffix}", unit)
    assert mm_per_unit(path) == mm
    assert mm_per_unit_of(LoadImage(image_only=True)(path).meta) == mm


@pytest.mark.parametrize(
    ("units", "mm"),
    [(None, 1), ('"mm" "mm" "mm"', 1), ('"um" "um" "um"', 1e-3), ('"µm" "µm" "µm"', 1e-3), ('"cm" "cm" "cm"', 10)],
)
def test_nrrd_states_its_unit(tmp_path, units, mm):
    path = nrrd(tmp_path / "a.nrrd", units)
    assert mm_per_unit(path) == mm
    assert mm_per_unit_of(LoadImage(image_only=True)(path).meta) == mm


@pytest.mark.parametrize("units", ['"parsec" "parsec" "parsec"', '"mm" "mm" "um"'])
def test_unit_that_is_unknown_or_differs_is_refused(tmp_path, units):
    with pytest.raises(ValueError, match=r"must state one unit for its space, such as mm or um, got"):
        mm_per_unit(nrrd(tmp_path / "a.nrrd", units))


def test_file_that_is_written_anew_is_read_anew(tmp_path):
    path = nifti(tmp_path / "a.nii", "micron")
    assert mm_per_unit(path) == 1e-3
    path.unlink()
    assert mm_per_unit(path) == 1
    nrrd(tmp_path / "b.nrrd", None)
    assert mm_per_unit(tmp_path / "b.nrrd") == 1
    nrrd(tmp_path / "b.nrrd", '"um" "um" "um"')
    assert mm_per_unit(tmp_path / "b.nrrd") == 1e-3


def test_other_files_have_mm(tmp_path):
    (tmp_path / "a.nii").write_bytes(b"no NIfTI")
    for name in ("a.nii", "a.mha", "a.png", "none.nii.gz"):
        assert mm_per_unit(tmp_path / name) == 1


def slow_apart(affine, other, shape):
    worst = 0.0
    for corner in itertools.product(*((0, size - 1) for size in shape)):
        place = np.ones(4)
        place[:3] = [*corner, 0][:3]
        worst = max(worst, np.abs(np.linalg.solve(other, affine @ place) - place)[: len(shape)].max())
    return worst


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(6))
def test_corners_are_compared_in_voxels(seed, scale):
    random = np.random.RandomState(seed)
    other = np.eye(4)
    other[:3, :3] = random.uniform(-1, 1, (3, 3)) + np.diag([2, 1, 3])
    other[:3, 3] = random.uniform(-50, 50, 3)
    affine = other + np.pad(random.normal(0, 0.01, (3, 4)), ((0, 1), (0, 0)))
    affine[:3], other[:3] = affine[:3] * scale, other[:3] * scale
    shape = (9, 20, 4)
    assert voxels_apart(affine, other, shape) == pytest.approx(slow_apart(affine, other, shape), rel=1e-6)
    assert voxels_apart(other, other, shape) == 0


def test_slice_may_lie_aside():
    other, affine = np.diag([0.5, 0.5, 2.0, 1.0]), np.diag([0.5, 0.5, 7.0, 1.0])
    assert voxels_apart(affine, other, (8, 8)) == 0  # the third axis of a slice says nothing
    affine[2, 3] = 1.0
    assert voxels_apart(affine, other, (8, 8)) == pytest.approx(2)
