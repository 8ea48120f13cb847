from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.transforms import Compose, Flipd

from monai_sc.functional import signed_distance
from monai_sc.transforms import SignedDistance, SignedDistanceD, SignedDistanced, SignedDistanceDict
from monai_sc.transforms.distance import spacing_of

LINE = np.array([[0, 0, 1, 1, 1, 0]])
CASES = [
    pytest.param({}, [2, 1, -1, -2, -1, 1], id="default"),
    pytest.param({"origin": "face"}, [1.5, 0.5, -0.5, -1.5, -0.5, 0.5], id="face"),
    pytest.param({"metric": "taxicab"}, [2, 1, -1, -2, -1, 1], id="taxicab"),
    pytest.param({"unit": "mm"}, [4, 2, -2, -4, -2, 2], id="mm"),
    pytest.param({"unit": "mm", "origin": "face"}, [3, 1, -1, -3, -1, 1], id="mm-face"),
]


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_distance_is_negative_inside_and_positive_outside(as_meta, options, expected):
    given = as_meta(LINE)
    assert SignedDistance(**options)(given).tolist() == [expected]
    assert SignedDistanced("label", **options)({"label": given})["label"].tolist() == [expected]


def test_any_array_becomes_a_float32_tensor_with_its_metadata_and_is_not_written_to(label, as_kind):
    for dtype in (bool, np.uint8, np.int64, np.float32):
        given = as_kind(label.astype(dtype))
        case = {"label": given, "other": given}
        out = SignedDistanced("label")(case)
        assert case["label"] is given
        assert out["other"] is given
        for phi in (out["label"], SignedDistance()(given)):
            assert isinstance(phi, torch.Tensor)
            assert phi.dtype == torch.float32
            assert np.array_equal(phi, signed_distance(label))
            if isinstance(given, MetaTensor):
                assert torch.equal(phi.affine, given.affine)
                assert phi.meta["filename_or_obj"] == "case-1.nii.gz"
        assert np.array_equal(np.asarray(given), label.astype(dtype))


def test_mm_are_the_voxels_of_the_affine(label, as_meta):
    spacing = (2.0, 0.5, 3.0)[: label.ndim - 1]
    for origin in ("voxel", "face"):
        phi = SignedDistance(unit="mm", origin=origin)(as_meta(label))
        np.testing.assert_allclose(phi, signed_distance(label, spacing=spacing, origin=origin), rtol=1e-6)


def test_mm_do_not_depend_on_the_orientation_of_the_image(label):
    permuted = np.array([[0, -3, 0, 7], [2, 0, 0, 5], [0, 0, 4, 1], [0, 0, 0, 1]], dtype=float)
    phi = SignedDistance(unit="mm")(MetaTensor(torch.from_numpy(label), affine=permuted))
    spacing = (2, 3, 4)[: label.ndim - 1]
    np.testing.assert_allclose(phi, signed_distance(label, spacing=spacing), rtol=1e-6)


def test_channel_without_a_boundary_is_nan(label):
    phi = SignedDistance()(np.stack([label[0], np.zeros_like(label[0])]))
    assert torch.isfinite(phi[0]).all()
    assert torch.isnan(phi[1]).all()


def test_distance_in_compose_follows_the_flip_before_it(label):
    compose = Compose([Flipd("label", spatial_axis=0), SignedDistanced("label", metric="taxicab")])
    expected = np.flip(signed_distance(label, metric="taxicab"), axis=1)
    assert np.array_equal(compose({"label": label})["label"], expected)


def test_spacing_is_that_of_the_affine_and_none_without_one(label, as_meta):
    assert spacing_of(as_meta(label)) == (2.0, 0.5, 3.0)[: label.ndim - 1]
    assert spacing_of(label) is None
    assert spacing_of(torch.from_numpy(label)) is None


def test_missing_key_is_refused_unless_allowed(label):
    with pytest.raises(KeyError, match="absent"):
        SignedDistanced(["label", "absent"])({"label": label})
    assert set(SignedDistanced(["label", "absent"], allow_missing_keys=True)({"label": label})) == {"label"}


def test_aliases_are_the_dictionary_version():
    assert SignedDistanceD is SignedDistanceDict is SignedDistanced
    assert SignedDistanced.backend == SignedDistance.backend


def test_pickled_transform_does_the_same(label):
    distance = SignedDistanced("label", metric="taxicab", origin="face")
    copy = pickle.loads(pickle.dumps(distance))
    assert torch.equal(copy({"label": label})["label"], distance({"label": label})["label"])


@pytest.mark.parametrize("prefix", ["monai_sc.transforms.", ""], ids=["full-path", "bare-name"])
def test_transform_is_parsed_from_a_bundle_config(label, as_meta, prefix):
    config = {"_target_": f"{prefix}SignedDistanced", "keys": "label", "unit": "mm", "origin": "face"}
    distance = ConfigParser({"distance": config}).get_parsed_content("distance")
    assert type(distance) is SignedDistanced
    expected = SignedDistance(unit="mm", origin="face")(as_meta(label))
    assert torch.equal(distance({"label": as_meta(label)})["label"], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"metric": "l1"}, r"^metric must be one of 'euclidean', 'taxicab', got 'l1'\.$", id="metric"),
        pytest.param({"unit": "cm"}, r"^unit must be one of 'voxel', 'mm', got 'cm'\.$", id="unit"),
        pytest.param({"origin": "edge"}, r"^origin must be one of 'voxel', 'face', got 'edge'\.$", id="origin"),
        pytest.param(
            {"metric": "taxicab", "unit": "mm"}, r"^unit must be 'voxel' with metric 'taxicab'", id="taxicab-in-mm"
        ),
    ],
)
def test_wrong_option_is_refused_by_the_constructor(options, message):
    with pytest.raises(ValueError, match=message):
        SignedDistance(**options)
    with pytest.raises(ValueError, match=message):
        SignedDistanced("label", **options)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "tensor"])
def test_mm_of_a_label_without_an_affine_are_refused(convert):
    with pytest.raises(ValueError, match=r"^label must be a MetaTensor with an affine for unit='mm'.*use unit='voxel'"):
        SignedDistance(unit="mm")(convert(LINE))


def test_label_that_is_not_binary_is_refused():
    with pytest.raises(ValueError, match=r"^label must be binary, only 0 and 1 in every channel, got 3;"):
        SignedDistance()(LINE * 3)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(">i2"), lambda x: x[:, ::-1], lambda x: np.broadcast_to(x, x.shape)],
    ids=["big-endian", "negative-stride", "read-only"],
)
def test_arrays_that_cannot_be_tensors_as_they_are_have_a_distance(label, change):
    given = change(label)
    assert np.array_equal(SignedDistance()(given), signed_distance(np.array(given)), equal_nan=True)
