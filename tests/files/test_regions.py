from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

from monai_sc.files.regions import Regions, described_regions, read_regions
from monai_sc.folders import correct_folder
from monai_sc.functional.masks import dice

NESTED = [[1, 2, 3], [2, 3], [3]]  # as BraTS
PARTS = [[1, 2], [1], [2]]


def test_masks_of_regions_are_unions_of_values():
    regions = Regions(PARTS)
    assert regions.names == ["1+2", "1", "2"]
    assert regions.values == [1, 2]
    assert regions.masks(np.array([0, 1, 2, -1])).astype(int).tolist() == [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("sets", [NESTED, PARTS, [[1], [2]], [[5, 9], [9]]])
def test_masks_that_fit_together_give_their_values(sets):
    regions = Regions(sets)
    rng = np.random.default_rng(0)
    true, given = rng.integers(0, len(regions.values) + 1, (2, 9, 8))
    assert np.array_equal(regions.codes(regions.masks(true), given), true)


@pytest.mark.parametrize("sets", [NESTED, PARTS, [[5, 9], [9]]])
@pytest.mark.parametrize("known", [True, False])
def test_each_voxel_has_the_value_with_the_fewest_wrong_regions(sets, known):
    """Against a search voxel by voxel."""
    regions = Regions(sets)
    rng = np.random.default_rng(1)
    given = rng.integers(-1, len(regions.values) + 1, (12, 10))
    masks = rng.random((len(sets), 12, 10)) < 0.5
    scores = [0.9, 0.6, None][: len(sets)] if known else None
    weights = {0.9: np.log(10), 0.6: np.log(2.5), None: np.log(4)}  # the mean of both is 0.75
    if len(sets) < 3:
        weights[None] = 0
    found = regions.codes(masks, given, scores)
    for place in np.ndindex(given.shape):
        now = masks[(slice(None), *place)]
        if (regions.masks(given[place][None])[:, 0] == now).all():
            assert found[place] == given[place]
            continue
        costs = []
        for code in range(len(regions.values) + 1):
            inside = [code > 0 and regions.values[code - 1] in own for own in sets]
            wrong = [k for k in range(len(sets)) if inside[k] != now[k]]
            costs.append(sum(weights[scores[k]] if scores else 1.0 for k in wrong))
        assert costs[found[place]] == pytest.approx(min(costs))
        if given[place] >= 0 and costs[given[place]] == pytest.approx(min(costs)):
            assert found[place] == given[place]


@pytest.mark.parametrize("sets", [[], [[]], [[0, 1]], [[1], [1]], [[1, 1]], [["a"]], [[1.5]], 3, [[True]]])
def test_what_is_no_region_is_refused(sets):
    with pytest.raises(ValueError, match=r"^regions must be the values of each channel"):
        Regions(sets)


@pytest.mark.parametrize("text", ["", "1+", "a", "1;2"])
def test_text_that_names_no_regions_is_refused(text):
    with pytest.raises(ValueError, match=r"^regions must be the values of each channel"):
        read_regions(text)


def test_text_names_regions():
    assert read_regions("1+2,1,2") == PARTS


@pytest.mark.parametrize("place", [".", ".."])
def test_regions_of_nnunet_are_those_of_its_description(tmp_path, place):
    labels = {"background": 0, "whole": [1, 2], "penumbra": 1, "core": 2, "ignore": 3}
    folder = tmp_path / "predictions"
    folder.mkdir()
    (folder / place / "dataset.json").write_text(json.dumps({"labels": labels}))
    found = described_regions(folder)
    assert found is not None
    assert (found.names, found.sets) == (["whole", "penumbra", "core"], [(1, 2), (1,), (2,)])


def test_description_without_regions_says_nothing(tmp_path):
    assert described_regions(tmp_path) is None
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "lung": 1}}))
    assert described_regions(tmp_path) is None
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(ValueError, match=r"dataset\.json must be the JSON of nnU-Net, got .*; correct it"):
        described_regions(tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write eight strokes, of which four are drawn too large, and the regions that a network has learnt from such."""
    root = tmp_path_factory.mktemp("regions")
    place = np.indices((28, 28, 14)) - np.array([14, 13, 7]).reshape(3, 1, 1, 1)
    distance = np.sqrt((place**2).sum(axis=0))
    rng = np.random.default_rng(0)
    for name in ("labels", "clean", "predictions"):
        (root / name).mkdir()
    for k in range(8):
        outer, inner = 7 + 0.2 * k, 3 + 0.2 * k
        truth = np.where(distance <= inner, 2, distance <= outer).astype(np.uint8)
        drawn = np.where(distance <= inner + 1.2, 2, distance <= outer + 1.5).astype(np.uint8)
        np.save(root / f"{k}.npy", truth)
        folder, shown = ("clean", truth) if k < 4 else ("labels", drawn)
        nib.save(nib.Nifti1Image(shown, np.eye(4)), root / folder / f"{k}.nii.gz")
        whole, core = outer + 1.5 - distance, inner + 1.2 - distance
        logits = np.stack([whole, np.minimum(whole, -core), core]) + rng.normal(0, 0.15, (3, *truth.shape))
        channels = (1 / (1 + np.exp(-1.5 * logits))).astype(np.float32)
        np.savez_compressed(root / "predictions" / f"{k}.npz", probabilities=channels.transpose(0, 3, 2, 1))
    return root


def corrected(folders, out, **options):
    report = correct_folder(
        folders / "labels", folders / "clean", out, predictions=folders / "predictions", progress=False, **options
    )
    scores = {}
    for k in range(4, 8):
        truth = np.load(folders / f"{k}.npy")
        for name, folder in (("given", folders / "labels"), ("corrected", out)):
            label = np.asarray(nib.load(folder / f"{k}.nii.gz").dataobj)
            assert set(np.unique(label)) == {0, 1, 2}
            scores.setdefault(name, []).append([float(dice((label == v)[None], (truth == v)[None])[0]) for v in (1, 2)])
    return report, np.array(scores["given"]), np.array(scores["corrected"])


def test_regions_are_corrected_as_regions(folders, tmp_path):
    report, given, after = corrected(folders, tmp_path / "out", regions=PARTS)
    assert report["output"] == "sigmoid"
    assert report["values"] == PARTS
    assert list(report["classes"]) == ["1+2", "1", "2"]
    assert (after > given + 0.1).all()
    assert after.mean() > 0.85


def test_description_beside_the_predictions_is_enough(folders, tmp_path):
    file = folders / "predictions" / "dataset.json"
    file.write_text(json.dumps({"labels": {"background": 0, "whole": [1, 2], "penumbra": 1, "core": 2}}))
    try:
        report, given, after = corrected(folders, tmp_path / "out")
    finally:
        file.unlink()
    assert list(report["classes"]) == ["whole", "penumbra", "core"]
    assert report["settings"]["regions"] == PARTS
    assert (after > given).all()


def test_description_of_other_channels_is_of_no_matter(folders, tmp_path):
    """As of a softmax, whose labels lie beside a description with regions."""
    for k in range(8):
        truth = np.load(folders / f"{k}.npy")
        channels = np.stack([truth == v for v in range(3)]).astype(np.float32)
        (tmp_path / "predictions").mkdir(exist_ok=True)
        np.savez(tmp_path / "predictions" / f"{k}.npz", probabilities=channels.transpose(0, 3, 2, 1))
    labels = {"background": 0, "whole": [1, 2], "core": 2}
    (tmp_path / "predictions" / "dataset.json").write_text(json.dumps({"labels": labels}))
    options = {"predictions": tmp_path / "predictions", "progress": False}
    report = correct_folder(folders / "labels", folders / "clean", tmp_path / "out", **options)
    assert (report["output"], report["values"], report["settings"]["regions"]) == ("softmax", [1, 2], None)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (None, r"which sum to 1 in each voxel, got sums from .*; .*say which values each holds: --regions="),
        ([[1, 2], [2]], r"^regions must name the values of each channel, 3 in .*\.npz, got 2: 1\+2, 2\.$"),
        ([[1, 3], [1], [3]], r"must hold 0 and 1, 3 only, got 2"),
    ],
)
def test_regions_that_do_not_fit_are_refused(folders, tmp_path, regions, message):
    with pytest.raises(ValueError, match=message):
        corrected(folders, tmp_path / "out", regions=regions)
    assert not (tmp_path / "out").exists()


def test_regions_need_predictions(folders, tmp_path):
    with pytest.raises(ValueError, match=r"^regions needs predictions"):
        correct_folder(folders / "clean", folders / "clean", tmp_path / "out", regions=PARTS, progress=False)
