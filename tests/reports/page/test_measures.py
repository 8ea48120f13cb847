import numpy as np
import pytest
from scipy.spatial.distance import cdist

from monai_sc.reports.page.measures import PageCase, measure_case, size_unit


def square(low, high, size=20):
    mask = np.zeros((1, size, size), dtype=bool)
    mask[:, low:high, low:high] = True
    return mask


def case(given, corrected, clean=None, spacing=None, in_mm=True):
    spacing = spacing or (1.0,) * (given.ndim - 1)
    return PageCase("a", None, given, corrected, clean, spacing, in_mm)


def measured(*args, **options):
    return measure_case(case(*args, **options), ["x"])


def warnings_of(given, corrected):
    return {w["what"] for w in measured(given, corrected)["warnings"]}


def test_a_square_that_was_drawn_two_pixels_too_wide():
    found = measured(square(5, 15), square(7, 13), square(7, 13), spacing=(0.5, 0.5))
    own = found["classes"]["x"]
    assert own["size_given"] == pytest.approx(100 * 0.25 / 100)  # cm²
    assert own["size_corrected"] == own["size_clean"] == pytest.approx(36 * 0.25 / 100)
    assert own["voxels_changed"] == 64
    assert own["changed"] == found["changed"] == pytest.approx(0.64)
    assert own["displacement"] == pytest.approx(-1.0, abs=0.15)  # mm; negative: it was too large
    assert own["dice_given"] == pytest.approx(2 * 36 / 136)
    assert own["dice_corrected"] == 1


def test_surface_distances_agree_with_all_pairs_of_boundary_voxels():
    rng = np.random.default_rng(3)
    given, corrected = (np.pad(rng.random((1, 6, 7, 5)) > 0.4, [(0, 0), *[(2, 2)] * 3]) for _ in range(2))
    spacing = (1.0, 2.0, 0.7)

    def edge(mask):
        inside = np.argwhere(mask)
        faces = [np.roll(np.eye(3, dtype=int)[a] * s, 0) for a in range(3) for s in (1, -1)]
        on_edge = [any(not mask[tuple(voxel + face)] for face in faces) for voxel in inside]
        return inside[np.array(on_edge)] * spacing

    distances = cdist(edge(given[0]), edge(corrected[0]))
    ways = distances.min(axis=1), distances.min(axis=0)
    own = measured(given, corrected, spacing=spacing)["classes"]["x"]
    assert own["surface_distance"] == pytest.approx(np.concatenate(ways).mean(), rel=1e-5)
    assert own["hausdorff95"] == pytest.approx(max(np.percentile(way, 95) for way in ways), rel=1e-5)


def test_a_volume_of_one_slice_is_measured_as_the_picture_that_it_is():
    flat = measured(square(5, 15), square(7, 13))
    volume = measured(square(5, 15)[..., None], square(7, 13)[..., None])
    for key in ("displacement", "surface_distance", "hausdorff95"):
        assert volume["classes"]["x"][key] == pytest.approx(flat["classes"]["x"][key])
    assert volume["warnings"] == flat["warnings"] == [{"class": "x", "what": "large change", "how": "64 %"}]


def test_without_a_correction_labels_are_compared_with_the_clean_ones():
    own = measured(square(5, 15), None, square(7, 13))["classes"]["x"]
    assert own["size_corrected"] is None
    assert own["dice_corrected"] is None
    assert own["changed"] == pytest.approx(0.64)


def test_nothing_to_compare_with():
    found = measured(square(5, 15), None)
    assert (found["changed"], found["warnings"]) == (0, [])
    assert found["classes"]["x"]["dice_given"] is None


def test_empty_labels_have_no_distance():
    own = measured(square(0, 0), square(0, 0))["classes"]["x"]
    assert (own["displacement"], own["surface_distance"], own["changed"]) == (None, None, 0)


TWO = square(2, 8) | square(12, 16)
SPECK = square(2, 17) | square(18, 19)


@pytest.mark.parametrize(
    ("given", "corrected", "expected"),
    [
        pytest.param(square(5, 15), square(6, 14), set(), id="nothing"),
        pytest.param(square(5, 15), square(0, 0), {"vanished"}, id="vanished"),
        pytest.param(square(0, 0), square(5, 15), {"appeared"}, id="appeared"),
        pytest.param(square(2, 18), square(6, 14), {"large change"}, id="large change"),
        pytest.param(TWO, square(2, 8), {"component lost"}, id="component lost"),
        pytest.param(SPECK, square(2, 17), set(), id="a speck is no component"),
        pytest.param(square(5, 8), square(5, 7), {"thin structure", "large change"}, id="thin"),
        pytest.param(square(0, 12), square(0, 11), {"touches border"}, id="border"),
        pytest.param(square(0, 20), square(0, 20), {"touches border"}, id="full"),
        pytest.param(square(0, 0), square(0, 0), set(), id="empty"),
    ],
)
def test_warnings(given, corrected, expected):
    assert warnings_of(given, corrected) == expected


def test_a_speck_apart_from_all_that_was_labelled_is_warned_of():
    corrected = square(7, 13)
    assert "component appeared" not in warnings_of(square(5, 15), corrected)
    corrected[0, 2, 2] = corrected[0, 17, 2] = corrected[0, 17, 3] = True
    warnings = measured(square(5, 15), corrected)["warnings"]
    told = {warning["what"]: warning["how"] for warning in warnings}
    assert told["component appeared"] == "2, together 0.03 cm²"


def test_the_label_of_an_expert_needs_no_check():
    given, clean = square(5, 15), square(8, 10)
    assert "large change" in warnings_of(given, clean)
    expert = PageCase("a", None, given, clean, clean, (1.0, 1.0), True, source="clean")
    assert measure_case(expert, ["x"])["warnings"] == []


def test_units_of_sizes():
    assert [size_unit(2, True)[0], size_unit(3, True)[0], size_unit(2, False)[0], size_unit(3, False)[0]] == [
        "cm²",
        "ml",
        "pixels",
        "voxels",
    ]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_volume_of_one_slice_is_measured_as_a_picture(axis):
    masks = square(5, 15), square(7, 13), square(7, 13)
    picture = measured(*masks, spacing=(0.5, 0.7))
    spacing = [0.5, 0.7]
    spacing.insert(axis, 5.0)
    volume = measured(*(np.expand_dims(mask, axis + 1) for mask in masks), spacing=tuple(spacing))
    assert volume["warnings"] == picture["warnings"]
    own, expected = volume["classes"]["x"], picture["classes"]["x"]
    assert own.pop("size_given") == pytest.approx(100 * 0.5 * 0.7 * 5 / 1000)  # ml
    for key in [key for key in own if not key.startswith("size")]:
        assert own[key] == pytest.approx(expected[key]), key
