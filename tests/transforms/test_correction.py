from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.transforms import AsDiscreted, Compose, Spacingd

from monai_sc.correction import SpatialCorrector
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


def fitted(output="sigmoid", spacing=None, groups=None):
    """Return a correction of discs that are predicted three voxels too large, beside false specks, and a case."""
    y, x = np.mgrid[:64, :64] - 32

    def case(radius, k, speck=True):
        logit = radius + k - np.hypot(y, x)
        speck = 2 - np.hypot(y - 24, x - 24) if speck else logit
        return np.maximum(logit, np.minimum(speck, 0.3))[None].astype(np.float32), (np.hypot(y, x) <= radius)[None]

    cases = [case(9 + i % 4, 3) for i in range(8)]
    predictions, labels = [p for p, _ in cases], [m.astype(np.uint8) for _, m in cases]
    if output == "softmax":
        predictions = [np.concatenate([0 * p, p]) for p in predictions]
    found = SpatialCorrector(["disc"], output=output).fit(predictions, labels, spacing=spacing, groups=groups)
    return found, predictions[0], labels[0]


@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
@pytest.mark.parametrize("as_file", [False, True])
def test_fitted_corrector_moves_boundaries_and_drops_false_objects(tmp_path, output, as_file):
    corrector, prediction, label = fitted(output)
    assert corrector.rules[0] is not None
    corrector.save(tmp_path / "corrector.json")
    given = tmp_path / "corrector.json" if as_file else corrector
    logits = MetaTensor(torch.from_numpy(prediction), affine=np.diag([2.0, 2, 1, 1]))
    out = SpatialCorrectiond("pred", corrector=given)({"pred": logits})["pred"]
    assert isinstance(out, MetaTensor)
    assert (out.dtype, out.shape) == (logits.dtype, (1, 64, 64))
    assert torch.equal(out.affine, logits.affine)
    np.testing.assert_array_equal(out, corrector.transform(prediction))
    assert (np.asarray(out) != label).mean() < 0.01
    scores = SpatialCorrection(corrector=corrector, as_label=False)(prediction)
    np.testing.assert_array_equal(np.asarray(scores) >= 0, np.asarray(out) == 1)


def test_fitted_corrector_measures_in_the_voxels_of_the_image():
    corrector, prediction, label = fitted(spacing=(0.5, 0.5))
    logits = MetaTensor(torch.from_numpy(prediction), affine=np.diag([0.5, 0.5, 1, 1]))
    out = SpatialCorrection(corrector=corrector)(logits)
    np.testing.assert_array_equal(out, SpatialCorrection(corrector=corrector, spacing=(0.5, 0.5))(prediction))
    assert (np.asarray(out) != label).mean() < 0.01
    with pytest.raises(ValueError, match=r"^spacing must be given for an array without an affine, since the corrector"):
        SpatialCorrection(corrector=corrector)(prediction)


def test_fitted_corrector_has_the_shift_of_the_group():
    y, x = np.mgrid[:64, :64] - 32
    shifts, groups = [4, 4, 4, 4, 0, 0, 0, 0], ["wide"] * 4 + ["right"] * 4
    predictions = [(10 + i % 3 + k - np.hypot(y, x))[None] for i, k in enumerate(shifts)]
    labels = [(np.hypot(y, x) <= 10 + i % 3)[None] for i in range(8)]
    corrector = SpatialCorrector(["disc"]).fit(predictions, labels, groups=groups)
    correction = SpatialCorrectiond("pred", corrector=corrector, group_key="site")
    for i in (0, 5):
        out = correction({"pred": predictions[i], "site": groups[i]})["pred"]
        np.testing.assert_array_equal(out, corrector.transform(predictions[i], group=groups[i]))
    wide, right = (correction({"pred": predictions[0], "site": site})["pred"] for site in ("wide", "right"))
    assert wide.sum() < right.sum()


@pytest.mark.parametrize(("options", "got"), [({}, "neither"), ({"bias": 1.0, "corrector": "x"}, "both")])
def test_bias_or_corrector_must_be_given(options, got):
    with pytest.raises(ValueError, match=rf"^bias or corrector must be given, got {got}\.$"):
        SpatialCorrectiond("pred", **options)


def test_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "corrector.json").write_text("{}")
    with pytest.raises(ValueError, match=r"corrector\.json must hold a correction that Fitted\.save wrote: "):
        SpatialCorrection(corrector=tmp_path / "corrector.json")
