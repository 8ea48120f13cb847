import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from monai_sc.reports.page.measures import PageCase
from monai_sc.reports.page.overlays import SCALE, TIERS, Detail, _path, pictures_of


def area(path):
    """Return the area that a path encloses, in pixels, holes less: by the shoelace formula, from the text."""
    total = 0.0
    for line in path.split("z")[:-1]:
        start, moves = line[1:].split("l")
        numbers = [int(n) for n in re.findall(r"[+-]?\d+", moves)]
        points = np.cumsum([[int(n) for n in start.split()], *np.reshape(numbers, (-1, 2)).tolist()], axis=0)
        x, y = points.T
        total += float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
    return abs(total) / SCALE**2


@pytest.mark.parametrize("full", [False, True], ids=["inside", "to the border"])
def test_a_path_runs_around_the_voxels(full):
    mask = np.zeros((12, 9), dtype=np.float32)
    mask[(slice(None), slice(None)) if full else (slice(2, 8), slice(3, 7))] = 1
    corners = 4 * 0.125  # the corners are cut
    assert area(_path(mask)) == pytest.approx(mask.sum() - corners)
    x = [int(n) for n in re.match(r"M(\d+) (\d+)", _path(mask)).groups()]
    assert 0 <= x[0] <= 12 * SCALE
    assert 0 <= x[1] <= 9 * SCALE


def test_a_hole_is_left_out():
    mask = np.ones((11, 11), dtype=np.float32)
    mask[3:8, 3:8] = 0
    assert area(_path(mask)) == pytest.approx(121 - 25, abs=1.1)


def test_no_structure_has_no_path():
    assert _path(np.zeros((4, 5), dtype=np.float32)) == ""


def volume(shape=(20, 24, 10), affine=None, spacing=(1, 1, 3)):
    given = np.zeros((1, *shape), dtype=bool)
    given[0, 4:12, 5:15, 2:8] = True
    corrected = given.copy()
    corrected[0, 8:12, :, 5] = False
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(1, *shape)
    return PageCase("v", image, given, corrected, None, spacing, True, affine=affine)


def test_planes_and_slices_go_through_the_largest_change():
    drawn = pictures_of(volume(affine=np.diag([-1.0, -1, 3, 1])), TIERS[0])
    assert drawn["slices"][drawn["main"]].title == "axial, slice 5 of 10"  # counted from the head: 10 - 5
    assert [p.title.split(",")[0] for p in drawn["planes"]] == ["coronal", "sagittal"]
    assert len(drawn["slices"]) == 6


def test_the_main_slice_is_shown_even_where_few_are():
    drawn = pictures_of(volume(), Detail(64, 2))
    assert len(drawn["slices"]) == 2
    assert drawn["slices"][drawn["main"]].title == "third axis, slice 6 of 10"


def test_a_volume_turns_as_radiologists_look_at_it():
    # The object lies to the right of the patient, in front and at the feet, whatever the order of the file.
    mask = np.zeros((1, 10, 12, 14), dtype=bool)
    mask[0, 6:9, 8:11, 1:4] = True  # RAS: right and front are high, feet are low
    ras = PageCase("r", None, mask, None, None, (1, 1, 1), True, affine=np.eye(4))
    turned = np.ascontiguousarray(mask[:, ::-1].transpose(0, 2, 1, 3))  # axes A, L, S
    affine = np.array([[0, -1, 0, 9], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    other = PageCase("o", None, turned, None, None, (1, 1, 1), True, affine=affine)
    pictures = [pictures_of(case, Detail(96, 3)) for case in (ras, other)]
    first, second = ([(p.title, p.svg) for key in ("slices", "planes") for p in drawn[key]] for drawn in pictures)
    assert first == second
    axial = next(svg for title, svg in first if title.startswith("axial"))
    x, y = (int(n) for n in re.search(r'd="M(\d+) (\d+)', axial).groups())
    width, height = (int(n) for n in re.search(r'viewBox="0 0 (\d+) (\d+)"', axial).groups())
    assert x < width / 2  # the right of the patient is on the left
    assert y < height / 2  # the front is on top


def test_pictures_are_wellformed_and_keep_the_shape_of_the_body():
    drawn = pictures_of(volume(spacing=(1, 1, 3)), Detail(96, 4))
    for picture in [*drawn["slices"], *drawn["planes"]]:
        root = ElementTree.fromstring(picture.svg)
        assert root[0].get("href").startswith("data:image/webp;base64,")
    width, height = (int(n) for n in re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn["planes"][0].svg).groups())
    assert width / height == pytest.approx(20 / 30, rel=0.05)


@pytest.mark.parametrize("image", [np.nan, 7.0, "colours", None], ids=str)
def test_images_of_any_kind_are_drawn(image):
    given = np.zeros((2, 16, 12), dtype=bool)
    given[0, 4:8, 4:8] = True
    if isinstance(image, str):
        values = np.random.default_rng(0).integers(0, 256, (3, 16, 12)).astype(np.float32)
    else:
        values = None if image is None else np.full((1, 16, 12), image, dtype=np.float32)
    drawn = pictures_of(PageCase("a", values, given, None, None, (1, 1), False), TIERS[0])
    assert drawn["slices"] == []
    assert len(drawn["planes"]) == 1
