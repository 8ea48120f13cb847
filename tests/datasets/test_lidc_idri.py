from __future__ import annotations

import math
import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from monai_sc.datasets.lidc_idri.dicom import Contour, CtSlice, Reading
from monai_sc.datasets.lidc_idri.forms import cut
from monai_sc.datasets.lidc_idri.layout import LidcIdriLayout
from monai_sc.datasets.lidc_idri.nodules import Nodule, drawn_pixels, fill, match, nodules_of
from monai_sc.datasets.lidc_idri.stand_in import write_lidc_crops, write_lidc_idri, write_lidc_slices

NS = "{http://www.nih.gov}"
SQUARE = [(1, 1), (4, 1), (4, 4), (1, 4)]


def slow_fill(points):
    """The definition, pixel by pixel: on a segment, or else the angles at which the corners are seen sum to a turn."""
    inside, on = set(), set()
    edges = list(zip(points, [*points[1:], points[0]], strict=True))
    for x in range(min(p[0] for p in points) - 1, max(p[0] for p in points) + 2):
        for y in range(min(p[1] for p in points) - 1, max(p[1] for p in points) + 2):
            if any(math.dist(a, (x, y)) + math.dist((x, y), b) - math.dist(a, b) < 1e-9 for a, b in edges):
                on.add((x, y))
                continue
            total = 0.0
            for a, b in edges:
                turn = math.atan2(b[1] - y, b[0] - x) - math.atan2(a[1] - y, a[0] - x)
                total += (turn + math.pi) % (2 * math.pi) - math.pi
            if round(total / (2 * math.pi)) % 2:
                inside.add((x, y))
    return inside, on


FILLED = [
    pytest.param(SQUARE, {(2, 2), (3, 2), (2, 3), (3, 3)}, 12, id="the-line-is-not-inside"),
    pytest.param([*SQUARE, (1, 1)], {(2, 2), (3, 2), (2, 3), (3, 3)}, 12, id="the-first-point-again-at-the-end"),
    pytest.param([(0, 0), (5, 0)], set(), 6, id="a-line-back-and-forth-has-no-inside"),
    pytest.param([(2, 0), (4, 2), (2, 4), (0, 2)], {(2, 1), (1, 2), (2, 2), (3, 2), (2, 3)}, 8, id="diagonal"),
    pytest.param([(0, 0), (1, 0), (1, 1), (0, 1)], set(), 4, id="nothing-fits-inside"),
    pytest.param([(0, 0), (4, 4), (4, 0), (0, 4)], {(1, 2), (3, 2)}, None, id="a-bow-tie-has-two-insides"),
]


@pytest.mark.parametrize(("points", "expected", "length"), FILLED)
def test_the_inside_of_a_line_is_filled(points, expected, length):
    inside, on = fill(points)
    assert inside == expected
    assert length is None or len(on) == length


@pytest.mark.parametrize("seed", range(30))
def test_filling_agrees_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    points = [tuple(p) for p in rng.integers(0, 14, (int(rng.integers(2, 10)), 2)).tolist()]
    assert fill(points) == slow_fill(points)


def ring(low, high, uid="a", z=0.0, inclusion=True):
    """A contour whose inside is the square of the pixels from low to high."""
    low, high = low - 1, high + 1
    return Contour(uid, z, inclusion, ((low, low), (high, low), (high, high), (low, high)))


def test_an_exclusion_takes_its_inside_and_its_line():
    drawn = drawn_pixels((ring(1, 5), ring(3, 3, inclusion=False)))
    assert drawn == {"a": {(x, y) for x in range(1, 6) for y in range(1, 6) if x in (1, 5) or y in (1, 5)}}


def test_two_outlines_in_a_slice_are_both_of_the_nodule():
    assert drawn_pixels((ring(1, 1), ring(5, 5))) == {"a": {(1, 1), (5, 5)}}


def test_a_single_point_and_a_line_without_inside_give_no_mask():
    assert drawn_pixels((Contour("a", 0, True, ((3, 3),)), Contour("b", 0, True, ((3, 3), (4, 3))))) == {}


PIXEL, OTHER, FAR = (frozenset({p}) for p in [(1, 1), (2, 2), (9, 9)])
MATCHED = [
    pytest.param([(0, {"a": PIXEL}), (1, {"a": PIXEL})], [0, 0], id="a-shared-pixel"),
    pytest.param([(0, {"a": PIXEL}), (1, {"a": OTHER})], [0, 1], id="neighbours-share-none"),
    pytest.param([(0, {"a": PIXEL}), (1, {"b": PIXEL})], [0, 1], id="the-same-pixel-of-another-slice"),
    pytest.param([(0, {"a": PIXEL}), (0, {"a": PIXEL})], [0, 1], id="one-reader-alone-joins-nothing"),
    pytest.param(
        [(0, {"a": PIXEL}), (1, {"a": PIXEL | OTHER}), (2, {"a": OTHER}), (3, {"a": FAR})],
        [0, 0, 0, 1],
        id="a-chain",
    ),
    pytest.param([(0, {"a": PIXEL}), (0, {"a": OTHER}), (1, {"a": PIXEL | OTHER})], [0, 0, 0], id="joined-by-another"),
]


@pytest.mark.parametrize(("drawn", "expected"), MATCHED)
def test_drawings_of_different_readers_that_overlap_are_of_one_nodule(drawn, expected):
    assert match(drawn) == expected


def test_nodules_are_ordered_by_height_and_hold_what_each_reader_drew():
    high, low = ring(1, 2, "h", 5.0), ring(1, 2, "l", -5.0)
    reading = Reading(
        "file", "1", (((high,), (low,)), ((ring(2, 3, "h", 5.0),),), (), ((Contour("l", -5, True, ((1, 1),)),),))
    )
    first, second = nodules_of(reading)
    square, shifted = ({(x, y) for x in side for y in side} for side in ((1, 2), (2, 3)))
    assert first.slices == {"l": (square, frozenset(), frozenset(), frozenset())}
    assert second.slices == {"h": (square, shifted, frozenset(), frozenset())}
    assert [corner.tolist() for corner in second.box()] == [[1, 1], [3, 3]]


def test_scan_without_outline_has_no_nodule():
    assert nodules_of(Reading("file", "1", ((), (), (), ()))) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two patients as scans and as slices, three as crops."""
    root = tmp_path_factory.mktemp("lidc")
    for name, write in (("scans", write_lidc_idri), ("slices", write_lidc_slices)):
        write(root / name, num_cases={"train": 1, "test": 1})
    write_lidc_crops(root / "crops", num_cases={"train": 1, "clean": 1, "test": 1})
    return root


@pytest.fixture
def scans(made, tmp_path):
    """A copy of the scans to break."""
    return shutil.copytree(made / "scans", tmp_path / "scans")


def series_folders(root):
    return sorted({file.parent for file in root.glob("*/*/*/*.xml")})


def edit(file, **entries):
    content = dcmread(file)
    for name, value in entries.items():
        setattr(content, name, value)
    content.save_as(file)


def edit_xml(folder, pattern, replacement, count=0):
    (file,) = folder.glob("*.xml")
    text, found = re.subn(pattern, replacement, file.read_text(encoding="utf-8"), count=count)
    assert found
    file.write_text(text, encoding="utf-8")


def test_cases_are_the_slices_of_nodules_that_a_reader_drew(made):
    cases = LidcIdriLayout(made / "scans").cases()
    assert [case.id for case in cases] == sorted(case.id for case in cases)
    assert {case.group for case in cases} == {"LIDC-IDRI-0001", "LIDC-IDRI-0002"}
    assert {case.id.split("_")[1] for case in cases} == {"nodule-0", "nodule-1"}
    assert {case.split for case in cases} == {None}
    for case in cases:
        heights = sorted(float(dcmread(f).ImagePositionPatient[2]) for f in case.files["image"].parent.glob("*.dcm"))
        position = float(dcmread(case.files["image"]).ImagePositionPatient[2])
        assert case.id.endswith(f"_slice-{heights.index(position)}")


def test_masks_are_those_of_the_contours_in_the_file(made):
    layout = LidcIdriLayout(made / "scans")
    union = {}
    for case in layout.cases():
        content = layout.read(case)
        header = dcmread(case.files["image"])
        corner = window(content, header)
        pixels = np.argwhere(content.noisy[0]) + corner
        union.setdefault(header.SOPInstanceUID, set()).update(map(tuple, pixels.tolist()))
        part = header.pixel_array.T[corner[0] : corner[0] + 128, corner[1] : corner[1] + 128]
        assert content.image.dtype == np.float32
        np.testing.assert_array_equal(content.image[0], part * 1.0 - 1024)
    expected = {}
    for folder in series_folders(made / "scans"):
        (file,) = folder.glob("*.xml")
        for nodule in ElementTree.parse(file).iter(f"{NS}unblindedReadNodule"):
            drawn, holes = {}, {}
            for roi in nodule.iter(f"{NS}roi"):
                points = [
                    (int(e.find(f"{NS}xCoord").text), int(e.find(f"{NS}yCoord").text)) for e in roi.iter(f"{NS}edgeMap")
                ]
                inside, on = slow_fill(points) if len(points) > 1 else (set(), set())
                uid = roi.find(f"{NS}imageSOP_UID").text
                is_hole = roi.find(f"{NS}inclusion").text == "FALSE"
                (holes if is_hole else drawn).setdefault(uid, set()).update(inside | on if is_hole else inside)
            for uid, pixels in drawn.items():
                expected.setdefault(uid, set()).update(pixels - holes.get(uid, set()))
    assert union == {uid: pixels for uid, pixels in expected.items() if pixels}


def window(content, header):
    """Return the column and row of the first pixel of a crop, from its affine."""
    place = content.affine @ [0, 0, 0, 1] * [-1, -1, 1, 1]
    x, y, z = header.ImagePositionPatient
    assert place[2] == z
    return np.rint((place[:2] - [x, y]) / header.PixelSpacing[0]).astype(int)


def test_slices_of_a_nodule_share_a_window_around_it(made):
    layout = LidcIdriLayout(made / "scans")
    cases = [case for case in layout.cases() if case.id.startswith("LIDC-IDRI-0002_nodule-0")]
    contents = [layout.read(case) for case in cases]
    corners = {
        tuple(window(content, dcmread(case.files["image"]))) for case, content in zip(cases, contents, strict=True)
    }
    pixels = np.argwhere(np.any([content.noisy[0] for content in contents], axis=0))
    (corner,) = corners
    middle = (pixels.min(axis=0) + pixels.max(axis=0) + 1) // 2
    # in the middle, but for 32 columns and rows that a slice of 160 pixels leaves to move in
    assert all(m == 64 or (c in (0, 32)) for m, c in zip(middle, corner, strict=True))
    assert len(contents) > 4


def test_affine_has_the_spacing_of_the_file_and_is_ras(made):
    layout = LidcIdriLayout(made / "scans")
    case = layout.cases()[0]
    header = dcmread(case.files["image"])
    affine = layout.read(case).affine
    spacing = float(header.PixelSpacing[0])
    np.testing.assert_allclose(affine[:3, :3], np.diag([-spacing, -spacing, float(header.SliceThickness)]))


def test_pixels_that_are_not_square_keep_both_sizes(scans):
    file = LidcIdriLayout(scans).cases()[0].files["image"]
    edit(file, PixelSpacing=[0.5, 0.75])  # DICOM has the step between rows first
    layout = LidcIdriLayout(scans)
    assert np.diag(layout.read(layout.cases()[0]).affine)[:2].tolist() == [-0.75, -0.5]


def test_patient_on_the_front_turns_the_affine_only(made, scans):
    for file in scans.glob("*/*/*/*.dcm"):
        if dcmread(file).Modality == "CT":
            edit(file, ImageOrientationPatient=[-1, 0, 0, 0, -1, 0])
    layout, turned = LidcIdriLayout(made / "scans"), LidcIdriLayout(scans)
    before, after = (part.read(part.cases()[0]) for part in (layout, turned))
    np.testing.assert_array_equal(before.image, after.image)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_allclose(np.diag(after.affine), np.diag(before.affine) * [-1, -1, 1, 1])


def test_xml_files_may_lie_in_a_folder_of_their_own(made, scans):
    expected = [case.id for case in LidcIdriLayout(made / "scans").cases()]
    for file in scans.glob("*/*/*/*.xml"):
        target = scans / "tcia-lidc-xml" / "157" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    other = '<IdriReadMessage xmlns="http://www.nih.gov"><ResponseHeader/></IdriReadMessage>'
    (scans / "tcia-lidc-xml" / "1.xml").write_text(other, encoding="utf-8")
    layout = LidcIdriLayout(scans)
    cases = layout.cases()
    assert [case.id for case in cases] == expected
    assert layout.read(cases[-1]).noisy.any()


def test_patients_may_lie_one_folder_down(made, tmp_path):
    shutil.copytree(made / "scans", tmp_path / "LIDC-IDRI")
    assert len(LidcIdriLayout(tmp_path).cases()) == len(LidcIdriLayout(made / "scans").cases())


def test_a_second_scan_of_a_patient_has_ids_of_its_own(scans):
    first, second = series_folders(scans)
    shutil.move(second, first.parents[1] / "study" / second.name)
    cases = LidcIdriLayout(scans).cases()
    assert {case.group for case in cases} == {"LIDC-IDRI-0001"}
    assert len({case.id for case in cases}) == len(cases)
    assert {case.id.split("_")[1] for case in cases} == {"nodule-0", "nodule-1", "scan-1"}


def test_an_object_that_listed_no_cases_reads_them(made):
    case = LidcIdriLayout(made / "scans").cases()[-1]
    assert LidcIdriLayout(made / "scans").read(case).noisy.any()


def test_what_is_missing_of_the_official_scans_is_counted(made):
    layout = LidcIdriLayout(made / "scans")
    assert layout.missing([]) == ["1016 of 1018 CT scans", "1008 of 1010 patients"]


def test_crops_have_the_splits_of_their_folders(made):
    layout = LidcIdriLayout(made / "crops")
    cases = layout.cases()
    assert {(case.group, case.split) for case in cases} == {
        ("LIDC-IDRI-0001", "train"),
        ("LIDC-IDRI-0002", "clean"),
        ("LIDC-IDRI-0003", "test"),
    }
    number = sum(case.split == "test" for case in cases)
    assert layout.missing(cases)[2] == f"{1980 - number} of 1980 slices of test"
    content = layout.read(cases[0])
    assert content.image.shape == content.labels.shape == content.noisy.shape == (1, 128, 128)
    assert content.affine is None


def test_the_middle_of_a_crop_is_taken(made):
    layout = LidcIdriLayout(made / "crops")
    case = layout.cases()[0]
    picture = np.asarray(Image.open(case.files["image"]))
    assert picture.shape == (180, 180)
    np.testing.assert_array_equal(layout.read(case).image[0], picture[26:154, 26:154].T)


def test_crops_may_be_numbered_from_1_and_lie_as_their_archives_do(made, tmp_path):
    for name in ("train", "val", "test"):
        shutil.copytree(made / "crops" / name, tmp_path / f"lidc_crops_{name}" / name)
    for file in sorted(tmp_path.rglob("*_l?.png"), reverse=True):
        file.rename(file.with_name(file.name[:-5] + f"{int(file.name[-5]) + 1}.png"))
    ours, theirs = LidcIdriLayout(tmp_path), LidcIdriLayout(made / "crops")
    for mine, other in zip(ours.cases(), theirs.cases(), strict=True):
        assert (mine.id, mine.split) == (other.id, other.split)
        np.testing.assert_array_equal(ours.read(mine).labels, theirs.read(other).labels)


def test_crops_without_folders_of_splits_have_none(made, tmp_path):
    layout = LidcIdriLayout(shutil.copytree(made / "crops" / "train", tmp_path / "crops"))
    cases = layout.cases()
    assert {case.split for case in cases} == {None}
    assert layout.missing(cases) == [f"{12816 - len(cases)} of 12816 slices of all splits"]


def test_slices_are_cases_by_nodule(made):
    layout = LidcIdriLayout(made / "slices")
    cases = layout.cases()
    assert cases[0].id == "LIDC-IDRI-0001_nodule-0_slice-0"
    assert len(cases) == len(list((made / "slices").glob("*/*/images/*.png")))
    assert layout.missing(cases) == []
    assert {case.split for case in cases} == {None}


CORNERS = {0: [1, 1, 1, 0], 1: [1, 1, 0, 0], 2: [1, 0, 0, 0], 3: [1, 1, 1, 1]}  # of column k: who drew it
OPTIONS = [
    pytest.param({}, [1, 0, 0, 1], [1, 1, 1, 1], id="default"),
    pytest.param({"agreement": 1}, [1, 1, 1, 1], [1, 1, 1, 1], id="one-is-enough"),
    pytest.param({"agreement": 2}, [1, 1, 0, 1], [1, 1, 1, 1], id="half"),
    pytest.param({"agreement": 4}, [0, 0, 0, 1], [1, 1, 1, 1], id="all"),
    pytest.param({"noisy": "intersection"}, [1, 0, 0, 1], [0, 0, 0, 1], id="intersection"),
    pytest.param({"noisy": "annotator-1"}, [1, 0, 0, 1], [1, 1, 1, 1], id="first"),
    pytest.param({"noisy": "annotator-3"}, [1, 0, 0, 1], [1, 0, 0, 1], id="third"),
    pytest.param({"noisy": "annotator-4"}, [1, 0, 0, 1], [0, 0, 0, 1], id="fourth"),
]


@pytest.mark.parametrize(("options", "truth", "noisy"), OPTIONS)
def test_labels_are_what_enough_readers_drew(tmp_path, options, truth, noisy):
    nodule = tmp_path / "LIDC-IDRI-0001" / "nodule-0"
    for name in ("images", *(f"mask-{reader}" for reader in range(4))):
        (nodule / name).mkdir(parents=True)
        picture = np.zeros((128, 128), np.uint8)
        if name != "images":
            picture[0, :4] = [255 * CORNERS[k][int(name[-1])] for k in range(4)]  # of a row: x comes first in MONAI
        Image.fromarray(picture).save(nodule / name / "slice-0.png")
    layout = LidcIdriLayout(tmp_path, **options)
    content = layout.read(layout.cases()[0])
    assert content.labels.dtype == content.noisy.dtype == bool
    assert content.labels[0, :4, 0].astype(int).tolist() == truth
    assert content.noisy[0, :4, 0].astype(int).tolist() == noisy
    assert layout.options() == {"agreement": 3, "noisy": "union", "gaps": False, **options}


@pytest.mark.parametrize(
    ("option", "value"), [("agreement", 0), ("agreement", 5), ("noisy", "annotator-0"), ("noisy", "all")]
)
def test_unknown_options_are_refused(tmp_path, option, value):
    with pytest.raises(ValueError, match=rf"^{option} must be one of .*, got {value!r}\.$"):
        LidcIdriLayout(tmp_path, **{option: value})


def drop_middle(folder):
    (folder / "000006.dcm").unlink()


def drop_named(folder):
    for file in list(folder.glob("*.dcm"))[1:]:
        file.unlink()


def cut_file(folder):
    file = folder / "000006.dcm"
    file.write_bytes(file.read_bytes()[:300])


def drop_xml(folder):
    next(folder.glob("*.xml")).unlink()


def second_xml(folder):
    shutil.copy(next(folder.glob("*.xml")), folder / "copy.xml")


def shrink(folder):
    content = dcmread(folder / "000006.dcm")
    pixels = content.pixel_array[:150].copy()
    edit(folder / "000006.dcm", Rows=150, PixelData=pixels.tobytes())


BROKEN = [
    pytest.param(drop_middle, r"^Series \S+ must have evenly spaced slices, got a step of .* with gaps\.$", id="gap"),
    pytest.param(
        drop_named, r"^XML file \S+067\.xml must name slices of series \S+, got 2\.25\.\S+, which", id="absent-slice"
    ),
    pytest.param(
        cut_file,
        r"^DICOM file \S+000006\.dcm (cannot be read: .+|must have an entry .+); download it again\.$",
        id="cut",
    ),
    pytest.param(drop_xml, r"^Series \S+ must have its XML file, got none; .*tcia-lidc-xml into \S+\.$", id="no-xml"),
    pytest.param(second_xml, r"067\.xml and \S+copy\.xml must be about two series, got one; delete one", id="two-xml"),
    pytest.param(shrink, r"^The files of series \S+ must have one size, got \(160, 150\) and \(160, 160\)", id="sizes"),
    pytest.param(
        lambda folder: edit(folder / "000006.dcm", SeriesInstanceUID="2.25.9"),
        r"^The files of series \S+ must be of one series, got 2\.25\.",
        id="two-series",
    ),
    pytest.param(
        lambda folder: edit(folder / "000006.dcm", ImageOrientationPatient=[1, 0, 0, 0, 0, -1]),
        r"^DICOM file \S+000006\.dcm must be an axial slice, .*got 1, 0, 0, 0, 0, -1; leave this series out\.$",
        id="coronal",
    ),
    pytest.param(
        lambda folder: edit(folder / "000006.dcm", ImagePositionPatient=None),
        r"^DICOM file \S+000006\.dcm must have an entry ImagePositionPatient, got none; download it again\.$",
        id="no-position",
    ),
    pytest.param(
        lambda folder: shutil.copy(folder / "000006.dcm", folder / "copy.dcm"),
        r"^Series \S+ must hold each slice once, got one twice; download the folder again\.$",
        id="copy",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, "</LidcReadMessage>", ""),
        r"^XML file \S+067\.xml cannot be read: .*; download it again\.$",
        id="cut-xml",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"(?<=SeriesInstanceUid>)[\d.]+", "1.2"),
        r"^XML file \S+067\.xml must be about the series of its folder, 2\.25\.\d+, got 1\.2; download it again\.$",
        id="xml-of-another-series",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"<SeriesInstanceUid>.*</SeriesInstanceUid>", ""),
        r"^XML file \S+067\.xml must name the series in SeriesInstanceUid, got none; download it again\.$",
        id="xml-without-series",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"(?s)<readingSession>.*</readingSession>", ""),
        r"^XML file \S+067\.xml must hold a readingSession for each reader, got none; download it again\.$",
        id="no-reader",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"<xCoord>\d+", "<xCoord>170", 1),
        r"^XML file \S+067\.xml must have contours inside its slices of 160 x 160 pixels, got x up to 170 and y up to",
        id="contour-outside",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"<xCoord>\d+", "<xCoord>x", 1),
        r"^XML file \S+067\.xml must have a number as xCoord, got 'x'; download it again\.$",
        id="no-number",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, r"<xCoord>\d+</xCoord>", "", 1),
        r"^XML file \S+067\.xml must have xCoord in each edgeMap, got none; download it again\.$",
        id="no-coordinate",
    ),
    pytest.param(
        lambda folder: edit_xml(folder, "<inclusion>TRUE", "<inclusion>YES", 1),
        r"^XML file \S+067\.xml must have TRUE or FALSE as inclusion, got 'YES'; download it again\.$",
        id="inclusion",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN)
def test_broken_scans_are_refused_in_one_sentence(scans, spoil, message):
    spoil(series_folders(scans)[0])
    with pytest.raises(ValueError, match=message):
        LidcIdriLayout(scans).cases()


def test_slices_with_gaps_are_taken_if_asked_for(scans):
    folder = series_folders(scans)[0]
    (folder / "000001.dcm").rename(folder / "x")
    edit(folder / "x", ImagePositionPatient=[0, 0, 0])
    (folder / "x").rename(folder / "000001.dcm")
    with pytest.raises(ValueError, match="must have evenly spaced slices"):
        LidcIdriLayout(scans).cases()
    assert LidcIdriLayout(scans, gaps=True).cases()


def test_pixels_that_are_cut_off_are_refused(scans):
    layout = LidcIdriLayout(scans)
    case = layout.cases()[0]
    file = case.files["image"]
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"^DICOM file \S+ cannot be read: .+; download it again\.$"):
        layout.read(case)


def test_slices_smaller_than_the_crop_are_refused(scans):
    folder = series_folders(scans)[0]
    for file in folder.glob("*.dcm"):
        edit(file, Rows=120, PixelData=dcmread(file).pixel_array[:120].tobytes())
    layout = LidcIdriLayout(scans)
    case = layout.cases()[0]
    with pytest.raises(
        ValueError, match=r"must have at least 128 x 128 pixels, got 160 x 120; leave this series out\.$"
    ):
        layout.read(case)


def test_xml_file_that_changed_since_the_cases_were_listed_is_refused(scans):
    case = LidcIdriLayout(scans).cases()[-1]
    edit_xml(case.files["annotations"].parent, r"(?s)<unblindedReadNodule>.*?</unblindedReadNodule>", "")
    with pytest.raises(
        ValueError, match=r"must hold case LIDC-IDRI-0002\S+, got another file; list the cases again\.$"
    ):
        LidcIdriLayout(scans).read(case)


def test_scans_without_any_outline_are_refused(scans):
    for folder in series_folders(scans):
        edit_xml(folder, r"(?s)<unblindedReadNodule>.*?</unblindedReadNodule>", "")
    with pytest.raises(ValueError, match=r"must hold a nodule with an outline, got none; unpack it again\.$"):
        LidcIdriLayout(scans).cases()


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"^Folder \S+ must hold LIDC-IDRI, folders of patients such as LIDC-IDRI-0001"
    ):
        LidcIdriLayout(tmp_path).cases()
    with pytest.raises(ValueError, match=r"^Folder \S+ does not exist"):
        LidcIdriLayout(tmp_path / "none").cases()


def grey(file):
    Image.fromarray(np.full((180, 180), 7, np.uint8)).save(file)


PICTURES = [
    pytest.param(
        "crops", "*_l2.png", lambda f: f.unlink(), r"must have masks of 4 readers in \S+, got 3", id="crop-mask"
    ),
    pytest.param(
        "crops", "*_c0.png", lambda f: f.unlink(), r"must have an image in \S+, got none; unpack", id="crop-image"
    ),
    pytest.param(
        "crops",
        "*_l2.png",
        lambda f: f.rename(f.with_name("x.png")),
        r"a name that ends in _l0 to _l3, got x;",
        id="name",
    ),
    pytest.param(
        "slices", "mask-2/*.png", lambda f: f.unlink(), r"must hold the same slices, but only one", id="slice-mask"
    ),
    pytest.param(
        "slices", "images/*.png", lambda f: f.unlink(), r"must hold the same slices, but only one", id="slice-image"
    ),
    pytest.param(
        "crops",
        "*_l2.png",
        grey,
        r"^Mask \S+_l2\.png must hold 0 and 255 only, or 0 and 1, got 7; unpack it again\.$",
        id="grey",
    ),
    pytest.param(
        "crops",
        "*_c0.png",
        lambda f: Image.new("L", (180, 100)).save(f),
        r"^Picture \S+_c0\.png must have at least 128 x 128 pixels, got 180 x 100; unpack it again\.$",
        id="small",
    ),
    pytest.param(
        "crops",
        "*_l2.png",
        lambda f: Image.new("L", (200, 200)).save(f),
        r"must have the size of its image",
        id="sizes",
    ),
    pytest.param(
        "crops", "*_c0.png", lambda f: f.write_bytes(b"PNG"), r"^Picture \S+_c0\.png cannot be read", id="no-png"
    ),
]


@pytest.mark.parametrize(("form", "pattern", "spoil", "message"), PICTURES)
def test_broken_pictures_are_refused_in_one_sentence(made, tmp_path, form, pattern, spoil, message):
    root = shutil.copytree(made / form, tmp_path / form)
    spoil(sorted(root.rglob(pattern))[0])
    layout = LidcIdriLayout(root)
    with pytest.raises(ValueError, match=message):
        [layout.read(case) for case in layout.cases()]


def test_stand_in_has_readers_who_differ_and_slices_of_which_the_truth_is_empty(made):
    layout = LidcIdriLayout(made / "scans")
    contents = [layout.read(case) for case in layout.cases()]
    assert any(not content.labels.any() for content in contents)
    assert all((content.noisy & ~content.labels).any() for content in contents)
    modalities = {str(dcmread(file, stop_before_pixels=True).Modality) for file in (made / "scans").rglob("*.dcm")}
    assert modalities == {"CT", "DX"}


def ct(size=(200, 160)):
    values = np.arange(np.prod(size), dtype=np.float32).reshape(size)
    return CtSlice("a", values, np.diag([-0.5, -0.5, 2.0, 1.0]))


WINDOWS = [
    pytest.param((80, 79), (84, 83), (18, 17), id="in-the-middle"),
    pytest.param((2, 3), (2, 3), (0, 0), id="at-the-first-corner"),
    pytest.param((199, 150), (199, 159), (72, 32), id="at-the-last-corner"),
    pytest.param((10, 10), (180, 140), (31, 11), id="larger-than-the-window"),
]


@pytest.mark.parametrize(("low", "high", "corner"), WINDOWS)
def test_window_is_around_the_box_and_inside_the_slice(low, high, corner):
    nodule = Nodule({"a": (frozenset({low}), frozenset({high}), frozenset(), frozenset())})
    content = ct()
    drawing = cut(content, nodule, "file")
    x, y = corner
    np.testing.assert_array_equal(drawing.image, content.values[x : x + 128, y : y + 128])
    np.testing.assert_array_equal(drawing.affine[:3, 3], [-0.5 * x, -0.5 * y, 0])
    for mask, pixel in zip(drawing.masks, (low, high), strict=False):
        place = pixel[0] - x, pixel[1] - y
        inside = max(place) < 128 and min(place) >= 0
        assert np.argwhere(mask).tolist() == ([list(place)] if inside else [])
    assert not drawing.masks[2:].any()


@pytest.mark.parametrize(("sessions", "readers"), [(1, 4), (4, 4), (5, 5)])
def test_there_are_four_readers_or_more_if_the_file_has_more(sessions, readers):
    (nodule,) = nodules_of(Reading("file", "1", (((ring(1, 2),),),) * sessions))
    assert len(nodule.slices["a"]) == readers
    assert sum(map(bool, nodule.slices["a"])) == sessions
