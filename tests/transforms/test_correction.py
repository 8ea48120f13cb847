from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.transforms import AsDiscreted, Compose, Spacingd

from monai_sc.functional import correct_boundary, signed_distance
from monai_sc.transforms import SpatialCorrection, SpatialCorrectionD, SpatialCorrectiond, SpatialCorrectionDict


def logits_of(label):
    return -0.7 * signed_distance(label, origin="face").astype(np.float64)


@pytest.mark.parametrize("as_label", [True, False], ids=["label", "scores"])
@pytest.mark.parametrize("representation", ["distance", "logit"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_array_becomes_a_tensor_with_its_dtype_and_metadata_and_is_not_written_to(
    label, as_kind, dtype, representation, as_label
):
    logits = logits_of(label).astype(dtype)
    given = as_kind(logits)
    case = {"pred": given, "other": given}
    options = {"representation": representation, "as_label": as_label}
    out = SpatialCorrectiond("pred", (-1.5, 1), **options)(case)
    assert case["pred"] is given
    assert out["other"] is given
    expected = correct_boundary(logits, (-1.5, 1), representation=representation)
    for corrected in (out["pred"], SpatialCorrection((-1.5, 1), **options)(given)):
        assert isinstance(corrected, torch.Tensor)
        assert corrected.dtype == torch.as_tensor(logits).dtype
        assert np.array_equal(corrected, expected >= 0 if as_label else expected)
        if isinstance(given, MetaTensor):
            assert torch.equal(corrected.affine, given.affine)
            assert corrected.meta["filename_or_obj"] == "case-1.nii.gz"
    assert np.array_equal(np.asarray(given), logits)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.bfloat16], ids=str)
def test_label_has_the_dtype_of_the_logits(dtype):
    corrected = SpatialCorrection(-1.0)(torch.tensor([[-3, -1, 1, 3, 1, -1]], dtype=dtype))
    assert corrected.dtype == dtype
    assert corrected.tolist() == [[0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    "options",
    [{}, {"representation": "logit", "gamma": 0.8}, {"metric": "taxicab"}, {"spacing": (0.7,) * 3}, {"max_shift": 1.2}],
)
def test_options_reach_the_equation(options):
    logits = logits_of(np.pad(np.ones((1, 5, 6, 7)), [(0, 0)] + [(4, 4)] * 3))
    expected = correct_boundary(logits, -2, **options)
    assert np.array_equal(SpatialCorrection(-2, as_label=False, **options)(logits), expected)
    out = SpatialCorrectiond("pred", -2, as_label=False, **options)({"pred": logits})
    assert np.array_equal(out["pred"], expected)


def test_scores_can_be_resampled_before_the_threshold(as_meta):
    label = np.zeros((1, 20, 24), dtype=np.uint8)
    label[:, 6:14, 4:20] = 1
    compose = Compose(
        [
            SpatialCorrectiond("pred", -2, as_label=False),
            Spacingd("pred", pixdim=(1.0, 0.5), mode="bilinear", padding_mode="border"),
            AsDiscreted("pred", threshold=0),
        ]
    )
    out = compose({"pred": as_meta(logits_of(label).astype(np.float32))})["pred"]
    expected = np.zeros((20, 24))
    expected[8:12, 6:18] = 1
    # the first axis has twice the resolution, so every second voxel lies on one of the input
    assert tuple(out.shape) == (1, 39, 24)
    assert np.array_equal(out[0, ::2], expected)


def test_missing_key_is_refused_unless_allowed(label):
    case = {"pred": logits_of(label)}
    with pytest.raises(KeyError, match="absent"):
        SpatialCorrectiond(["pred", "absent"], -1)(case)
    assert set(SpatialCorrectiond(["pred", "absent"], -1, allow_missing_keys=True)(case)) == {"pred"}


def test_every_key_is_corrected_alike(label):
    out = SpatialCorrectiond(["first", "second"], -1)({"first": logits_of(label), "second": logits_of(label)})
    assert torch.equal(out["first"], out["second"])


def test_aliases_are_the_dictionary_version():
    assert SpatialCorrectionD is SpatialCorrectionDict is SpatialCorrectiond
    assert SpatialCorrectiond.backend == SpatialCorrection.backend


def test_pickled_transform_does_the_same(label):
    correction = SpatialCorrectiond("pred", (-1, 2), representation="logit", gamma=0.5)
    copy = pickle.loads(pickle.dumps(correction))
    case = {"pred": logits_of(label)}
    assert torch.equal(copy(case)["pred"], correction(case)["pred"])


@pytest.mark.parametrize("prefix", ["monai_sc.transforms.", ""], ids=["full-path", "bare-name"])
def test_transform_is_parsed_from_a_bundle_config(label, prefix):
    config = {"_target_": f"{prefix}SpatialCorrectiond", "keys": "pred", "bias": [-1.0, 2.0], "metric": "taxicab"}
    correction = ConfigParser({"correction": config}).get_parsed_content("correction")
    assert type(correction) is SpatialCorrectiond
    expected = SpatialCorrection((-1.0, 2.0), metric="taxicab")(logits_of(label))
    assert torch.equal(correction({"pred": logits_of(label)})["pred"], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"representation": "auto"}, r"^representation must be one of 'distance', 'logit', got 'auto'", id="kind"
        ),
        pytest.param({"metric": "l1"}, r"^metric must be one of 'euclidean', 'taxicab', got 'l1'\.$", id="metric"),
        pytest.param({"gamma": 0}, r"^gamma must be in \(0, 1\], got 0\.$", id="gamma-0"),
        pytest.param({"gamma": 2}, r"^gamma must be in \(0, 1\], got 2\.$", id="gamma-2"),
        pytest.param({"max_shift": -1}, r"^max_shift must be at least 0 or None, got -1\.$", id="max-shift"),
    ],
)
def test_wrong_option_is_refused_by_the_constructor(options, message):
    with pytest.raises(ValueError, match=message):
        SpatialCorrection(-1, **options)
    with pytest.raises(ValueError, match=message):
        SpatialCorrectiond("pred", -1, **options)


def test_boundary_moves_no_farther_than_the_cap():
    logits = (10 - np.hypot(*np.indices((40, 40)) - 20))[None]
    for uncorrected in (SpatialCorrection(-5.0, max_shift=0)(logits), SpatialCorrection(0.0)(logits)):
        np.testing.assert_array_equal(uncorrected, logits >= 0)
    capped = SpatialCorrectiond("pred", -5.0, max_shift=2.0, spacing=(2.0, 1.0))({"pred": logits})["pred"]
    np.testing.assert_array_equal(capped, SpatialCorrection(-2.0, spacing=(2.0, 1.0))(logits))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(">f4"), lambda x: x[:, ::-1], lambda x: np.broadcast_to(x, x.shape)],
    ids=["big-endian", "negative-stride", "read-only"],
)
def test_arrays_that_cannot_be_tensors_as_they_are_are_corrected(label, change):
    given = change(logits_of(label))
    corrected = SpatialCorrection(-1.0, as_label=False)(given)
    assert np.array_equal(corrected, correct_boundary(np.array(given, given.dtype.newbyteorder("=")), -1.0))
