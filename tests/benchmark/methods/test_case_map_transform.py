from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import CacheDataset, DataLoader, MetaTensor, PersistentDataset
from monai.transforms import (
    Compose,
    EnsureTyped,
    Lambdad,
    RandAffined,
    RandAxisFlipd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandRotate90d,
    RandRotated,
    RandSpatialCropd,
    RandZoomd,
    Resized,
    SpatialPadd,
)

from monai_sc.benchmark.methods import CaseMemory, LoadCaseMapd

AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1]])
SAGITTAL = np.array([[0, 0, 3.0, 10], [0, -2, 0, -4], [1.5, 0, 0, 7], [0, 0, 0, 1]])  # first two axes: no x among them


def scene(shape, affine=AFFINE):
    """Return two soft masks, which no flip or rotation leaves as they are."""
    grid = np.indices(shape)
    size = np.array(shape).reshape(-1, *[1] * len(shape))
    radii = np.array([0.2, 0.3, 0.25][: len(shape)]).reshape(size.shape) * size
    ellipsoid = 1 - np.sqrt((((grid - 0.45 * size) / radii) ** 2).sum(0))
    cut = np.minimum(ellipsoid, (grid[0] - 0.4 * shape[0] + 0.3 * grid[1]) / shape[0])
    return MetaTensor(1 / (1 + np.exp(-10 * np.stack([ellipsoid, cut]).astype(np.float32))), affine=affine)


def filled(label, dtype):
    memory = CaseMemory(dtype=dtype)
    memory.replace([("a", label > 0.5 if dtype == "bool" else label)])
    return memory


def dice(a, b):
    a, b = (x.as_tensor() > 0.5 for x in (a, b))
    return float(2 * (a * b).sum() / (a.sum() + b.sum()))


MOVES = {
    "flip": lambda n: [RandFlipd("label", prob=1, spatial_axis=0)],
    "axis-flip": lambda n: [RandAxisFlipd("label", prob=1)],
    "rotate-90": lambda n: [RandRotate90d("label", prob=1, max_k=3)],
    "rotate": lambda n: [RandRotated("label", prob=1, range_x=0.6, range_y=0.2, keep_size=False)],
    "affine": lambda n: [RandAffined("label", prob=1, rotate_range=[0.5] * 3, scale_range=0.2, translate_range=4)],
    "zoom": lambda n: [RandZoomd("label", prob=1, min_zoom=0.7, max_zoom=1.4, mode="bilinear")],
    "crop": lambda n: [RandSpatialCropd("label", roi_size=(30, 28, 26)[:n], random_size=False)],
    "pad-and-resize": lambda n: [
        SpatialPadd("label", (65, 61, 50)[:n]),
        Resized("label", (44, 52, 36)[:n], mode="bilinear"),
    ],
}
MOVES["all"] = lambda n: [t for name in ("flip", "rotate-90", "affine", "zoom", "crop") for t in MOVES[name](n)]


@pytest.mark.parametrize("shape", [(56, 50), (40, 36, 32)], ids=["2D", "3D"])
@pytest.mark.parametrize("name", MOVES)
def test_map_follows_the_label(name, shape):
    label = scene(shape)
    loads = [
        LoadCaseMapd("soft", filled(label, "float16"), channels=2),
        LoadCaseMapd("mask", filled(label, "bool"), channels=2),
    ]
    for seed in range(3):
        chain = Compose([*MOVES[name](len(shape)), *loads])
        chain.set_random_state(seed)
        moved = chain({"id": "a", "label": label})
        assert moved["soft"].shape == moved["mask"].shape == moved["label"].shape
        assert (moved["label"] > 0.5).sum() > 100
        assert dice(moved["soft"], moved["label"]) > 0.99
        assert dice(moved["mask"], moved["label"]) > 0.9  # the nearest voxel, of small structures
        assert set(moved["mask"].unique().tolist()) == {0.0, 1.0}


def test_map_that_stays_in_place_is_what_was_not_followed():
    label = scene((56, 50))
    moved = Compose(MOVES["flip"](2))({"label": label})["label"]
    assert dice(label, moved) < 0.8


def test_plane_in_any_orientation_follows():
    label = scene((56, 50), SAGITTAL)
    load = LoadCaseMapd("map", filled(label, "float16"), channels=2)
    chain = Compose([*MOVES["rotate"](2), *MOVES["flip"](2), load]).set_random_state(0)
    moved = chain({"id": "a", "label": label})
    assert dice(moved["map"], moved["label"]) > 0.99


def test_every_sample_of_a_case_has_its_own_map():
    label = (scene((32, 28, 24)) > 0.5).float()
    crop = RandCropByPosNegLabeld("label", "label", spatial_size=(12, 12, 12), num_samples=3)
    chain = Compose([crop, LoadCaseMapd("map", filled(label, "bool"), channels=2)]).set_random_state(0)
    samples = chain({"id": "a", "label": label})
    assert len({tuple(one["label"].affine[:3, 3].tolist()) for one in samples}) == 3
    for one in samples:
        assert torch.equal(one["map"].as_tensor(), one["label"].as_tensor())


def test_lazy_chain_follows():
    label = scene((56, 50))
    load = LoadCaseMapd("map", filled(label, "float16"), channels=2)
    chain = Compose([*MOVES["flip"](2), *MOVES["affine"](2), load], lazy=True).set_random_state(0)
    moved = chain({"id": "a", "label": label})
    assert dice(moved["map"], moved["label"]) > 0.98


@pytest.mark.parametrize("default", [0.0, 1.0, 0.5])
def test_case_without_a_map_has_the_default(default):
    label = scene((6, 5))
    found = LoadCaseMapd("map", CaseMemory(), channels=3, default=default)({"id": "a", "label": label})["map"]
    assert isinstance(found, MetaTensor)
    assert found.dtype == torch.float32
    assert found.shape == (3, 6, 5)
    assert (found == default).all()
    np.testing.assert_array_equal(found.affine, AFFINE)


@pytest.mark.parametrize(("dtype", "default"), [("bool", 1.0), ("float16", 0.25)])
def test_padding_has_the_default(dtype, default):
    label = MetaTensor(torch.zeros(1, 2, 3), affine=AFFINE)
    chain = Compose(
        [SpatialPadd("label", (4, 3)), LoadCaseMapd("map", filled(label, dtype), channels=1, default=default)]
    )
    assert chain({"id": "a", "label": label})["map"].tolist() == [[[default] * 3, [0] * 3, [0] * 3, [default] * 3]]


def test_linear_between_voxels():
    label = MetaTensor(torch.tensor([[[0.0, 1.0, 0.5]]]), affine=np.eye(4))
    like = MetaTensor(
        torch.zeros(1, 1, 2), affine=np.array([[1, 0, 0, 0], [0, 1, 0, 0.25], [0, 0, 1, 0], [0, 0, 0, 1]])
    )
    found = LoadCaseMapd("map", filled(label, "float16"), channels=1)({"id": "a", "label": like})["map"]
    np.testing.assert_allclose(found, [[[0.25, 0.875]]], atol=1e-6)


def test_input_is_untouched():
    label = scene((6, 5))
    data, before = {"id": "a", "label": label}, label.clone()
    memory = filled(label, "float16")
    LoadCaseMapd("map", memory, channels=2)(data)["map"][:] = 7
    assert list(data) == ["id", "label"]
    assert torch.equal(label, before)
    assert torch.equal(memory.read("a").as_tensor(), before.half().as_tensor())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_caches_do_not_keep_maps(tmp_path, cache, workers):
    memory = CaseMemory()
    calls = []
    chain = Compose([Lambdad("label", lambda x: calls.append(0) or x), LoadCaseMapd("map", memory, channels=2)])
    cases = [{"id": "a", "label": scene((6, 5))}]
    if cache == "memory":
        dataset = CacheDataset(cases, chain, progress=False)
    else:
        dataset = PersistentDataset(cases, chain, tmp_path, track_meta=True, weights_only=False)
    loader = DataLoader(dataset, num_workers=workers)
    found = []
    for value in (0.0, 0.25, 0.5):
        memory.replace([("a", MetaTensor(torch.full((2, 6, 5), value), affine=AFFINE))])
        found += [float(batch["map"].max()) for batch in loader]
    assert found == [0.0, 0.25, 0.5]
    assert len(calls) <= 1  # what comes before it is cached


def test_bundle_config():
    parser = ConfigParser(
        {
            "memory": {"_target_": "monai_sc.benchmark.methods.CaseMemory", "dtype": "bool"},
            "load": {
                "_target_": "monai_sc.benchmark.methods.LoadCaseMapd",
                "key": "map",
                "memory": "@memory",
                "channels": 2,
                "default": 1,
            },
        }
    )
    load = parser.get_parsed_content("load")
    assert load.memory is parser.get_parsed_content("memory")
    assert load({"id": "a", "label": scene((6, 5))})["map"].sum() == 60


@pytest.mark.parametrize(
    ("data", "error", "wording"),
    [
        ({"label": scene((6, 5))}, KeyError, "but 'id' is missing"),
        ({"id": "a"}, KeyError, "must hold 'id' and 'label' for its map, but 'label' is missing"),
        ({"id": "a", "label": torch.zeros(2, 6, 5)}, TypeError, "'label' must be a MetaTensor, .* got Tensor"),
        ({"id": "a", "label": np.zeros((2, 6, 5))}, TypeError, "'label' must be a MetaTensor, .* got ndarray"),
        (
            {"id": "a", "label": scene((6, 5, 4))},
            ValueError,
            r"2 channels and 3 spatial axes, got the shape \(2, 6, 5\)",
        ),
    ],
    ids=["no-id", "no-label", "tensor", "array", "other-axes"],
)
def test_case_whose_map_cannot_be_placed_is_refused(data, error, wording):
    with pytest.raises(error, match=wording):
        LoadCaseMapd("map", filled(scene((6, 5)), "bool"), channels=2)(data)


def test_label_that_lost_its_affine_is_refused():
    chain = Compose([EnsureTyped("label", track_meta=False), LoadCaseMapd("map", CaseMemory(), channels=1)])
    with pytest.raises((TypeError, RuntimeError)) as caught:
        chain({"id": "a", "label": scene((6, 5))})
    assert "must be a MetaTensor" in str(caught.value.__cause__ or caught.value)


def test_other_number_of_channels_is_refused():
    with pytest.raises(ValueError, match=r"must have 1 channels and 2 spatial axes, got the shape \(2, 6, 5\)"):
        LoadCaseMapd("map", filled(scene((6, 5)), "bool"), channels=1)({"id": "a", "label": scene((6, 5))})
    with pytest.raises(ValueError, match=r"^'label' must have 2 or 3 spatial axes, got the shape \(1, 5\)\.$"):
        LoadCaseMapd("map", CaseMemory(), channels=1)({"id": "a", "label": MetaTensor(torch.zeros(1, 5))})
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        LoadCaseMapd("map", CaseMemory(), channels=0)
