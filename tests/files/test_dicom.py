"""DICOM Segmentations over generated CT series, read again by pydicom and highdicom."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
from monai.data import MetaTensor
from monai.transforms import Flip, LoadImage
from scipy.spatial.transform import Rotation

from monai_sc.files import dicom as dicom_seg
from monai_sc.files import export_dicom_seg
from monai_sc.transforms import LoadLabel

highdicom = pytest.importorskip("highdicom")
pydicom = pytest.importorskip("pydicom")
from pydicom.dataset import FileMetaDataset  # noqa: E402 - pydicom is there
from pydicom.sr.codedict import codes  # noqa: E402
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid  # noqa: E402

SIZE = COLUMNS, ROWS, SLICES = 12, 9, 5
PIXEL, STEP = (0.7, 1.25), 2.5  # PixelSpacing, whose first number is the step to the next row
ORIGIN = np.array([-31.25, 40.5, -812.0])  # LPS, of the first pixel of the first slice
TURNED = Rotation.from_euler("xyz", [25, -15, 40], degrees=True).as_matrix()
COSINES = {  # of the steps to the next column and row, LPS
    "axial": [[1, 0, 0], [0, 1, 0]],
    "prone": [[-1, 0, 0], [0, -1, 0]],
    "sagittal": [[0, 1, 0], [0, 0, -1]],
    "coronal": [[1, 0, 0], [0, 0, -1]],
    "oblique": (TURNED @ [[1, 0], [0, 1], [0, 0]]).T.tolist(),
}
LPS_TO_RAS = np.diag([-1, -1, 1, 1])


def affine_of(orientation):
    """Return the matrix from ``(column, row, slice)`` to mm in LPS."""
    right, down = np.array(COSINES[orientation], dtype=float)
    steps = np.stack([right * PIXEL[1], down * PIXEL[0], np.cross(right, down) * STEP], axis=1)
    return nib.affines.from_matvec(steps, ORIGIN)


def write_series(folder, orientation="axial", *, size=SIZE, change=lambda header, number: None):
    """Write a CT series whose file names and instance numbers are not in the order of the slices."""
    folder.mkdir()
    columns, rows, slices = size
    study, series, frame = generate_uid(), generate_uid(), generate_uid()
    affine = affine_of(orientation)
    for place, number in enumerate(np.random.RandomState(3).permutation(slices)):
        header = pydicom.Dataset()
        header.file_meta = FileMetaDataset()
        header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = CTImageStorage
        header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        header.SpecificCharacterSet = "ISO_IR 100"
        header.StudyInstanceUID, header.SeriesInstanceUID, header.FrameOfReferenceUID = study, series, frame
        header.Modality, header.PatientID, header.PatientName = "CT", "7", "Grün^Jörg"
        header.PatientBirthDate, header.PatientSex, header.StudyDate, header.StudyTime = "", "O", "20200101", "120000"
        header.SeriesNumber, header.InstanceNumber = 4, place + 1
        header.ImagePositionPatient = [round(float(v), 6) for v in (affine @ [0, 0, number, 1])[:3]]
        header.ImageOrientationPatient = [round(v, 8) for vector in COSINES[orientation] for v in vector]
        header.PixelSpacing, header.SliceThickness = list(PIXEL), STEP
        header.Rows, header.Columns = rows, columns
        header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
        header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 1
        header.RescaleSlope, header.RescaleIntercept = 1, -1024
        header.PixelData = np.full((rows, columns), number, dtype=np.int16).tobytes()
        change(header, number)
        header.save_as(folder / f"{place:03d}.dcm", enforce_file_format=True)
    (folder / "LICENSE").write_text("no DICOM")
    return folder


def masks_of(classes=2, size=SIZE, seed=0):
    """Return masks ``(classes, columns, rows, slices)`` that overlap, of which one slice is empty."""
    masks = np.random.RandomState(seed).rand(classes, *size) < 0.4
    masks[..., -1] = False
    return masks


def write_nifti(file, mask, orientation, axcodes):
    image = nib.Nifti1Image(mask.astype(np.uint8), LPS_TO_RAS @ affine_of(orientation))
    wanted = nib.orientations.axcodes2ornt(axcodes)
    nib.save(image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(image.affine), wanted)), file)
    return file


def points(affine, indices):
    """Return sorted points in mm, rounded to 0.01 mm."""
    found = nib.affines.apply_affine(affine, indices).round(2) + 0.0
    return sorted(map(tuple, found.tolist()))


def points_of_segment(file, number):
    """Return where the pixels of a segment lie, in mm of LPS, frame by frame as DICOM says."""
    seg = pydicom.dcmread(file)
    shared = seg.SharedFunctionalGroupsSequence[0]
    right, down = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
    row_step, column_step = shared.PixelMeasuresSequence[0].PixelSpacing
    pixels = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    found = []
    for frame, groups in zip(pixels, seg.PerFrameFunctionalGroupsSequence, strict=True):
        segment = groups if "SegmentIdentificationSequence" in groups else shared  # shared if there is one
        if segment.SegmentIdentificationSequence[0].ReferencedSegmentNumber != number:
            continue
        position = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, dtype=float)
        for row, column in np.argwhere(frame):
            found.append(position + column * column_step * right + row * row_step * down)
    return points(np.eye(4), np.reshape(found, (-1, 3)))


@pytest.mark.parametrize("axcodes", ["RAS", "LPS", "PIR", "SLA"])
@pytest.mark.parametrize("orientation", COSINES)
def test_every_voxel_lies_where_it_was(tmp_path, orientation, axcodes):
    series = write_series(tmp_path / "ct", orientation)
    masks = masks_of()
    files = [write_nifti(tmp_path / f"{k}.nii.gz", m, orientation, axcodes) for k, m in enumerate(masks)]
    out = export_dicom_seg(LoadLabel()(files), series, tmp_path / "out" / "seg.dcm", class_names=["lung", "heart"])
    assert out == tmp_path / "out" / "seg.dcm"
    assert [f.name for f in out.parent.iterdir()] == ["seg.dcm"]
    for number, file in enumerate(files, start=1):
        given = nib.load(file)
        expected = points(LPS_TO_RAS @ given.affine, np.argwhere(np.asarray(given.dataobj) > 0))
        assert points_of_segment(out, number) == expected


def test_frames_refer_to_their_slices(tmp_path):
    series = write_series(tmp_path / "ct")
    masks = masks_of()
    files = [write_nifti(tmp_path / f"{k}.nii.gz", m, "axial", "RAS") for k, m in enumerate(masks)]
    out = export_dicom_seg(LoadLabel()(files), series, tmp_path / "seg.dcm", class_names=["lung", "heart"])
    slices = [pydicom.dcmread(file) for file in series.glob("*.dcm")]
    slices.sort(key=lambda header: float(header.ImagePositionPatient[2]))
    seg = highdicom.seg.segread(out)
    pixels = seg.get_pixels_by_source_instance(
        [header.SOPInstanceUID for header in slices],
        ignore_spatial_locations=True,
        assert_missing_frames_are_empty=True,
    )
    np.testing.assert_array_equal(pixels, masks.transpose(3, 2, 1, 0))


def test_segments_are_described(tmp_path):
    series = write_series(tmp_path / "ct")
    label = LoadLabel()([write_nifti(tmp_path / f"{k}.nii.gz", m, "axial", "RAS") for k, m in enumerate(masks_of())])
    lung = codes.SCT.AnatomicalStructure, codes.SCT.Lung
    out = export_dicom_seg(label, series, tmp_path / "seg.dcm", class_names=["lung", "心"], codes={"lung": lung})
    seg = highdicom.seg.segread(out)
    assert (seg.SegmentationType, seg.Modality) == ("BINARY", "SEG")
    first, second = (seg.get_segment_description(number) for number in (1, 2))
    assert [first.segment_label, second.segment_label] == ["lung", "心"]
    assert (first.segmented_property_category, first.segmented_property_type) == lung
    assert second.segmented_property_type == codes.SCT.Tissue
    assert first.algorithm_type.value == "SEMIAUTOMATIC"
    assert first.algorithm_identification.name == "monai_sc"
    source = pydicom.dcmread(series / "000.dcm")
    assert (seg.StudyInstanceUID, seg.FrameOfReferenceUID) == (source.StudyInstanceUID, source.FrameOfReferenceUID)
    assert str(pydicom.dcmread(out).PatientName) == "Grün^Jörg"


def test_empty_label_has_no_pixels(tmp_path):
    series = write_series(tmp_path / "ct")
    file = write_nifti(tmp_path / "label.nii.gz", np.zeros(SIZE), "axial", "RAS")
    export_dicom_seg(LoadLabel()(file), series, tmp_path / "seg.dcm", class_names=["lung"])
    assert points_of_segment(tmp_path / "seg.dcm", 1) == []


def test_label_in_2d_goes_with_one_slice(tmp_path):
    series = write_series(tmp_path / "ct", size=(COLUMNS, ROWS, 1))
    mask = np.random.RandomState(0).rand(COLUMNS, ROWS, 1) < 0.4
    file = write_nifti(tmp_path / "label.nii.gz", mask, "axial", "LPS")
    label = LoadLabel()(file)[..., 0]
    assert label.shape == (1, COLUMNS, ROWS)
    export_dicom_seg(label, series, tmp_path / "seg.dcm", class_names=["lung"])
    assert points_of_segment(tmp_path / "seg.dcm", 1) == points(affine_of("axial"), np.argwhere(mask))


@pytest.mark.parametrize("lps_to_ras", [True, False])
def test_label_may_be_flipped_or_in_lps(tmp_path, lps_to_ras):
    series = write_series(tmp_path / "ct", "oblique")
    image = LoadImage(image_only=True, ensure_channel_first=True, reader="ITKReader", affine_lps_to_ras=lps_to_ras)(
        series
    )
    label = (image == 1 - 1024).float()  # the second slice
    label = Flip([0, 2])(label) if lps_to_ras else label
    export_dicom_seg(label, series, tmp_path / "seg.dcm", class_names=["slice"])
    expected = np.argwhere(np.arange(SLICES) * np.ones((COLUMNS, ROWS, 1)) == 1)
    assert points_of_segment(tmp_path / "seg.dcm", 1) == points(affine_of("oblique"), expected)


def test_pseudonym_is_kept_without_a_warning(tmp_path):
    series = write_series(tmp_path / "ct", change=lambda header, number: setattr(header, "PatientName", "patient-1"))
    out = export_dicom_seg(label_on(AXIAL), series, tmp_path / "seg.dcm", class_names=["lung"])
    assert str(pydicom.dcmread(out).PatientName) == "patient-1"


def test_series_without_what_may_be_empty_is_taken(tmp_path):
    def strip(header, number):
        for name in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyDate", "SliceThickness"):
            delattr(header, name)

    series = write_series(tmp_path / "ct", change=strip)
    file = write_nifti(tmp_path / "label.nii.gz", masks_of(1)[0], "axial", "RAS")
    export_dicom_seg(LoadLabel()(file), series, tmp_path / "seg.dcm", class_names=["lung"])
    assert points_of_segment(tmp_path / "seg.dcm", 1) == points(affine_of("axial"), np.argwhere(masks_of(1)[0]))


def label_on(affine, shape=SIZE):
    return MetaTensor(np.ones((1, *shape), dtype=np.uint8), affine=LPS_TO_RAS @ affine)


AXIAL = affine_of("axial")
TILT = nib.affines.from_matvec(Rotation.from_euler("z", 4, degrees=True).as_matrix())
OTHER_GRIDS = [
    pytest.param(label_on(AXIAL, (12, 9, 4)), r"the label has 12, 9 and 4 voxels along these", id="fewer-slices"),
    pytest.param(label_on(AXIAL, (9, 12, 5)), r"the label has 9, 12 and 5 voxels", id="transposed"),
    pytest.param(
        label_on(AXIAL + np.eye(4)[:, [3, 3, 3, 0]] * 0.2), r"voxels off the voxels of the label", id="shifted"
    ),
    pytest.param(label_on(AXIAL @ np.diag([1.1, 1, 1, 1])), r"its pixels lie up to 1 voxels off", id="other-spacing"),
    pytest.param(label_on(TILT @ AXIAL), r"voxels off the voxels of the label", id="tilted"),
    pytest.param(label_on(affine_of("oblique")), r"the label is turned against it", id="turned"),
    pytest.param(
        label_on(AXIAL @ nib.affines.from_matvec(np.eye(3), [0, 0, 1])), r"its slices are not those", id="next-slice"
    ),
]


@pytest.mark.parametrize(("label", "reason"), OTHER_GRIDS)
def test_label_of_another_grid_is_refused(tmp_path, label, reason):
    series = write_series(tmp_path / "ct")
    grid = r"^label must lie on the grid of .*ct, of 12 columns, 9 rows and 5 slices, but .*"
    with pytest.raises(ValueError, match=grid + reason + ".*; resample it onto that grid\\.$"):
        export_dicom_seg(label, series, tmp_path / "seg.dcm", class_names=["lung"])
    assert not (tmp_path / "seg.dcm").exists()


LABEL = label_on(AXIAL)
UNFIT = [
    pytest.param(LABEL.numpy(), ["a"], {}, TypeError, r"label must be a MetaTensor, .* got ndarray\.", id="no-affine"),
    pytest.param(LABEL * 2, ["a"], {}, ValueError, r"label must hold 0 and 1 only", id="label-map"),
    pytest.param(LABEL[0], ["a"] * 12, {}, ValueError, r"class_names must be one name per class", id="no-channel"),
    pytest.param(LABEL, ["a", "b"], {}, ValueError, r"class_names must be one name per class \(1\)", id="names"),
    pytest.param(LABEL, ["a" * 65], {}, ValueError, r"class_names must be of 1 to 64 characters", id="long-name"),
    pytest.param(LABEL, ["a"], {"b": 1}, ValueError, r"codes must be of classes, \['a'\], got 'b'", id="codes"),
]


@pytest.mark.parametrize(("label", "names", "meanings", "error", "message"), UNFIT)
def test_unfit_arguments_are_refused(tmp_path, label, names, meanings, error, message):
    with pytest.raises(error, match=message):
        export_dicom_seg(label, tmp_path, tmp_path / "seg.dcm", class_names=names, codes=meanings)


def test_unfit_files_are_refused(tmp_path):
    series = write_series(tmp_path / "ct")
    for file in (series / "seg.dcm", series / "000.dcm"):
        with pytest.raises(ValueError, match=r"file must be a new file outside of .*ct, got"):
            export_dicom_seg(LABEL, series, file, class_names=["a"])
    with pytest.raises(FileNotFoundError, match=r"series must be a folder with DICOM files, got .*none, which is no"):
        export_dicom_seg(LABEL, tmp_path / "none", tmp_path / "seg.dcm", class_names=["a"])
    with pytest.raises(ValueError, match=r"DICOM files of one series, got 0 in"):
        export_dicom_seg(LABEL, tmp_path, tmp_path / "out" / "seg.dcm", class_names=["a"])


CHANGES = [
    pytest.param("SeriesInstanceUID", "1.2.3", r"of one series, got 2 in", id="two-series"),
    pytest.param("NumberOfFrames", 2, r"files of single slices in the patient, but .*dcm holds more", id="multi-frame"),
    pytest.param("ImagePositionPatient", None, r"but .*dcm lacks ImagePositionPatient", id="no-position"),
    pytest.param("ImagePositionPatient", [-31.25, 40.5, -812.0], r"its slices are not those of the label", id="twice"),
    pytest.param("Rows", 8, r"its slices differ in size", id="sizes"),
]


@pytest.mark.parametrize(("name", "value", "message"), CHANGES)
def test_unfit_series_are_refused(tmp_path, name, value, message):
    def change(header, number):
        if number == 2:
            setattr(header, name, value)

    series = write_series(tmp_path / "ct", change=change)
    with pytest.raises(ValueError, match=message):
        export_dicom_seg(LABEL, series, tmp_path / "seg.dcm", class_names=["a"])


def test_missing_extra_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(dicom_seg, "optional_import", lambda *args, **options: (None, False))
    with pytest.raises(
        ImportError, match=r"needs highdicom, which is not installed; pip install 'monai-sc\[dicom\]'\.$"
    ):
        export_dicom_seg(LABEL, tmp_path, tmp_path / "seg.dcm", class_names=["a"])
