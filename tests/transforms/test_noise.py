from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, PersistentDataset
from monai.transforms import Compose

from monai_sc import transforms
from monai_sc.functional import case_seed, markov_label_noise, shift_boundary
from monai_sc.transforms import (
    MarkovLabelNoise,
    MarkovLabelNoised,
    RandCoarsenContour,
    RandDilateErodeLabel,
    RandDilateErodeLabeld,
    RandDropComponents,
    RandMarkovLabelNoise,
    RandMarkovLabelNoised,
)
from tests.transforms.test_label_noise import NOISES

NOISE = {"num_steps": 3, "expansion_prob": 0.6, "march_prob": 0.5, "flip_prob": 0.02}
FIXED = pytest.param(MarkovLabelNoised, NOISE, id="MarkovLabelNoised")
OPTIONS = {noise: {"prob": 1.0, **options} for noise, options in NOISES.items()}
OPTIONS[RandMarkovLabelNoise] = {"prob": 1.0, **NOISE}
OPTIONS[RandDropComponents] = {"prob": 1.0, "drop_prob": 0.9}
RANDOM_ARRAY = [pytest.param(noise, options, id=noise.__name__) for noise, options in OPTIONS.items()]
RANDOM = [
    pytest.param(getattr(transforms, f"{noise.__name__}d"), options, id=f"{noise.__name__}d")
    for noise, options in OPTIONS.items()
]
DICTIONARY = [FIXED, *RANDOM]


def values(x):
    return np.asarray(x).tolist()


def make_cases(number):
    """Return cases with equal labels, so that only the draw tells them apart."""
    label = np.zeros((1, 24, 24), dtype=np.uint8)
    label[:, 7:17, 7:17] = 1
    return [{"id": f"case-{i}", "label": label} for i in range(number)]


def check_kept(out, given, original):
    assert isinstance(out, torch.Tensor)
    assert tuple(out.shape) == original.shape
    assert out.dtype == torch.as_tensor(np.zeros(1, dtype=original.dtype)).dtype
    assert set(np.unique(out)) <= {0, 1}
    assert np.any(np.asarray(out) != original)
    assert np.array_equal(np.asarray(given), original)
    if isinstance(given, MetaTensor):
        assert torch.equal(out.affine, given.affine)
        assert out.meta["filename_or_obj"] == "case-1.nii.gz"


@pytest.mark.parametrize(("transform", "options"), DICTIONARY)
def test_any_array_becomes_a_tensor_with_its_dtype_and_metadata_and_is_not_written_to(
    label, as_kind, transform, options
):
    for dtype in (bool, np.uint8, np.int64, np.float32):
        original = label.astype(dtype)
        case = {"id": "case-1", "label": as_kind(original), "image": "untouched"}
        noise = transform("label", **options)
        if hasattr(noise, "set_random_state"):
            noise.set_random_state(0)
        given = dict(case)
        out = noise(case)
        assert out is not case
        assert all(case[key] is given[key] for key in given)
        assert out["image"] == "untouched"
        check_kept(out["label"], case["label"], original)


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_random_array_version_keeps_dtype_and_metadata_and_does_not_write(label, as_kind, transform, options):
    given = as_kind(label)
    check_kept(transform(**options).set_random_state(0)(given), given, label)


def test_fixed_array_version_keeps_dtype_and_metadata_and_does_not_write(label, as_kind):
    given = as_kind(label)
    check_kept(MarkovLabelNoise(**NOISE)(given, case_id="case-1"), given, label)


def test_fixed_noise_is_the_law_with_the_seed_of_the_case(label):
    out = MarkovLabelNoise(**NOISE, seed=7)(label, case_id="case-1")
    assert np.array_equal(out, markov_label_noise(label, **NOISE, seed=case_seed(7, "case-1")))


def test_fixed_noise_depends_on_seed_and_case_alone(label):
    first = values(MarkovLabelNoise(**NOISE, seed=7)(label, case_id="case-1"))
    noise = MarkovLabelNoise(**NOISE, seed=7)
    other_case = values(noise(label, case_id="case-2"))
    assert values(noise(label, case_id="case-1")) == first
    assert other_case != first
    assert values(MarkovLabelNoise(**NOISE, seed=8)(label, case_id="case-1")) != first


def test_fixed_noise_is_the_same_for_every_key_and_as_the_array_version(label):
    out = MarkovLabelNoised(["first", "second"], **NOISE, seed=7, id_key="name")(
        {"first": label, "second": label, "name": "case-1"}
    )
    expected = MarkovLabelNoise(**NOISE, seed=7)(label, case_id="case-1")
    assert values(out["first"]) == values(out["second"]) == values(expected)


@pytest.mark.parametrize("smoothing", [None, "before_flips", "after_flips"])
@pytest.mark.parametrize("name", ["array", "dictionary", "random-array", "random-dictionary"])
def test_every_parameter_reaches_the_law(label, name, smoothing):
    parameters = {
        "num_steps": (2, 5),
        "expansion_prob": (0.9, 0.2),
        "march_prob": (0.7, 0.6),
        "flip_prob": (0.0, 0.1),
        "smoothing": smoothing,
        "smooth_sigma": 1.5,
        "smooth_radius": 2,
    }
    if name == "array":
        out, seed = MarkovLabelNoise(**parameters, seed=3)(label, "a"), case_seed(3, "a")
    elif name == "dictionary":
        noise = MarkovLabelNoised("label", **parameters, seed=3)
        out, seed = noise({"label": label, "id": "a"})["label"], case_seed(3, "a")
    elif name == "random-array":
        noise = RandMarkovLabelNoise(1.0, **parameters).set_random_state(3)
        out, seed = noise(label), noise.seed
    else:
        noise = RandMarkovLabelNoised("label", 1.0, **parameters).set_random_state(3)
        out, seed = noise({"label": label})["label"], noise.noise.seed
    assert np.array_equal(out, markov_label_noise(label, **parameters, seed=seed))


@pytest.fixture(params=["cache", "persistent", "workers", "shuffled-workers", "threads"])
def loader_of(request, tmp_path):
    """Return a function that makes a loader of one case a batch, in one of MONAI's ways of loading."""

    def make(cases, transform):
        if request.param == "cache":
            return DataLoader(CacheDataset(cases, transform, progress=False), num_workers=0)
        if request.param == "persistent":
            return DataLoader(PersistentDataset(cases, transform, cache_dir=tmp_path), num_workers=0)
        if request.param == "threads":
            return DataLoader(CacheDataset(cases, transform, num_workers=2, progress=False), num_workers=0)
        shuffle = request.param == "shuffled-workers"
        return DataLoader(Dataset(cases, transform), num_workers=2, shuffle=shuffle, persistent_workers=shuffle)

    return make


def read_epoch(loader):
    return {batch["id"][0]: values(batch["label"][0]) for batch in loader}


def test_fixed_noise_is_the_same_in_every_epoch_worker_order_and_cache(loader_of):
    cases = make_cases(6)
    transform = Compose([MarkovLabelNoised("label", **NOISE, seed=1)])
    expected = {case["id"]: values(transform(case)["label"]) for case in reversed(cases)}
    assert len({str(label) for label in expected.values()}) == len(cases)
    loader = loader_of(cases, transform)
    assert read_epoch(loader) == expected
    assert read_epoch(loader) == expected
    assert read_epoch(loader_of(cases[::-1], transform)) == expected


@pytest.mark.parametrize(
    ("transform", "options"), [(RandMarkovLabelNoised, NOISE), (RandDilateErodeLabeld, {"radius": (0, 9)})]
)
def test_random_noise_is_drawn_anew_for_every_case_and_epoch(loader_of, transform, options):
    torch.manual_seed(0)  # the seed of the workers
    cases = make_cases(6)
    loader = loader_of(cases, Compose([transform("label", 1.0, **options)]).set_random_state(0))
    epochs = [read_epoch(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    draws = {str(label) for epoch in epochs for label in epoch.values()}
    # erosion of a square of 10 voxels has six results only, so some of the 18 draws agree
    assert len(draws) == 18 if transform is RandMarkovLabelNoised else len(draws) > 6


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_same_random_state_gives_the_same_draws(label, transform, options):
    first, again, other = (transform(**options).set_random_state(seed) for seed in (4, 4, 5))
    draws = [[values(noise(label)) for _ in range(6)] for noise in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]
    assert any(a != b for a, b in itertools.pairwise(draws[0]))


@pytest.mark.parametrize(("transform", "options"), RANDOM)
def test_same_random_state_gives_the_same_draws_in_compose(label, transform, options):
    draws = []
    for seed in (4, 4, 5):
        compose = Compose([transform("label", **options)]).set_random_state(seed)
        draws.append([values(compose({"label": label})["label"]) for _ in range(6)])
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(("transform", "options"), RANDOM)
def test_random_state_of_another_object_is_drawn_from(label, transform, options):
    states = [np.random.RandomState(4) for _ in range(2)]
    first, again = (transform("label", **options).set_random_state(state=state) for state in states)
    for _ in range(3):
        assert values(first({"label": label})["label"]) == values(again({"label": label})["label"])
    assert states[0].randint(2**31) == states[1].randint(2**31) != np.random.RandomState(4).randint(2**31)


@pytest.mark.parametrize(("transform", "options"), RANDOM)
def test_two_transforms_in_compose_draw_independently(label, transform, options):
    pipeline = [transform("first", **options), transform("second", **options)]
    compose = Compose(pipeline).set_random_state(0)
    outputs = [compose({"first": label, "second": label}) for _ in range(4)]
    assert any(values(out["first"]) != values(out["second"]) for out in outputs)


@pytest.mark.parametrize(("transform", "options"), RANDOM)
def test_one_draw_serves_every_key(label, transform, options):
    noise = transform(["first", "second"], **options).set_random_state(0)
    outputs = [noise({"first": label, "second": label}) for _ in range(5)]
    assert all(values(out["first"]) == values(out["second"]) for out in outputs)
    assert any(values(outputs[0]["first"]) != values(out["first"]) for out in outputs)


@pytest.mark.parametrize(("transform", "options"), RANDOM)
def test_absent_key_does_not_change_the_draw(label, transform, options):
    both, one = (
        transform(["first", "second"], **options, allow_missing_keys=True).set_random_state(0) for _ in range(2)
    )
    for _ in range(3):
        expected = both({"first": label, "second": label})["second"]
        assert values(one({"second": label})["second"]) == values(expected)


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_number_of_draws_does_not_depend_on_the_outcome(transform, options):
    states = []
    for prob in (0.0, 0.5, 1.0):
        noise = transform(**{**options, "prob": prob}).set_random_state(0)
        for shape in ((1, 5, 5), (3, 9, 8, 7)):
            noise(np.ones(shape, dtype=np.uint8))
        states.append(noise.R.randint(2**31))
    assert len(set(states)) == 1


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_prob_is_the_share_of_changed_labels(label, transform, options):
    never = transform(**{**options, "prob": 0.0}).set_random_state(0)
    assert all(np.array_equal(never(label), label) for _ in range(20))
    sometimes = transform(**{**options, "prob": 0.3}).set_random_state(0)
    changed = np.mean([not np.array_equal(sometimes(label), label) for _ in range(400)])
    assert changed == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 400))


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_last_draw_is_repeated_without_randomize(label, transform, options):
    noise = transform(**options).set_random_state(0)
    first = values(noise(label))
    assert values(noise(label, randomize=False)) == first


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_global_random_state_is_neither_read_nor_set(label, transform, options):
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
    first = values(transform(**options).set_random_state(0)(label))
    assert (np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()) == before
    np.random.seed(2)
    assert values(transform(**options).set_random_state(0)(label)) == first


def test_radius_and_sign_of_dilation_follow_their_law():
    line = torch.zeros(1, 401)
    line[:, 150:251] = 1
    noise = RandDilateErodeLabel(1.0, radius=(10, 40)).set_random_state(0)
    shifts = np.array([(int(noise(line).sum()) - 101) / 2 for _ in range(600)])
    dilated, radius = shifts > 0, np.abs(shifts)
    assert dilated.mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(600))
    assert radius.min() >= 10
    assert radius.max() <= 40
    for side in (dilated, ~dilated):
        assert np.mean(radius[side]) == pytest.approx(24.5, abs=4 * 30 / math.sqrt(12 * side.sum()))


def test_dilation_and_erosion_are_the_shift_of_the_boundary(label):
    noise = RandDilateErodeLabel(1.0, radius=(1.5, 1.5)).set_random_state(0)
    allowed = [values(shift_boundary(label, signs)) for signs in itertools.product((-1.5, 1.5), repeat=2)]
    seen = {allowed.index(values(noise(label))) for _ in range(40)}
    assert seen == {0, 1, 2, 3}


def test_each_channel_has_its_own_radius(label):
    noise = RandDilateErodeLabel(1.0, radius=((0, 0), (2, 2))).set_random_state(0)
    for _ in range(5):
        out = noise(label)
        assert np.array_equal(out[0], label[0])
        assert np.any(np.asarray(out[1]) != label[1])


@pytest.mark.parametrize("transform", [RandDilateErodeLabel, RandDilateErodeLabeld])
def test_radius_in_mm_follows_the_affine(label, as_meta, transform):
    options = {"radius": (2, 2), "unit": "mm"}
    spacing = (2.0, 0.5, 3.0)[: label.ndim - 1]
    given = as_meta(label)
    allowed = [values(shift_boundary(label, s, spacing=spacing)) for s in itertools.product((-2, 2), repeat=2)]
    if transform is RandDilateErodeLabel:
        out = transform(1.0, **options).set_random_state(0)(given)
    else:
        out = transform("label", 1.0, **options).set_random_state(0)({"label": given})["label"]
    assert values(out) in allowed


def test_radius_in_mm_of_a_label_without_an_affine_is_refused(label):
    noise = RandDilateErodeLabel(1.0, radius=(1, 1), unit="mm")
    for given in (label, torch.from_numpy(label)):
        with pytest.raises(ValueError, match=r"^label must be a MetaTensor with an affine for unit='mm'.*unit='voxel'"):
            noise(given)


@pytest.mark.parametrize("transform", [RandMarkovLabelNoise, RandDilateErodeLabel, RandCoarsenContour])
def test_channel_without_a_boundary_is_changed_to_itself(transform):
    label = torch.stack([torch.zeros(6, 6), torch.ones(6, 6)])
    assert torch.equal(transform(1.0, **NOISES[transform])(label).as_tensor(), label)


@pytest.mark.parametrize(("transform", "options"), DICTIONARY)
def test_missing_key_is_refused_unless_allowed(label, transform, options):
    case = {"label": label, "id": "case-1"}
    with pytest.raises(KeyError, match="absent"):
        transform(["label", "absent"], **options)(case)
    assert set(transform(["label", "absent"], **options, allow_missing_keys=True)(case)) == {"label", "id"}


def test_missing_case_id_is_refused(label):
    with pytest.raises(KeyError, match=r"MarkovLabelNoised needs the case id under 'name', got the keys \['label'\]"):
        MarkovLabelNoised("label", **NOISE, id_key="name")({"label": label})


@pytest.mark.parametrize("name", ["MarkovLabelNoise", *(noise.__name__ for noise in NOISES)])
def test_aliases_are_the_dictionary_version(name):
    dictionary = getattr(transforms, f"{name}d")
    assert getattr(transforms, f"{name}D") is getattr(transforms, f"{name}Dict") is dictionary
    assert dictionary.backend == getattr(transforms, name).backend


@pytest.mark.parametrize(("transform", "options"), DICTIONARY)
def test_pickled_transform_goes_on_with_the_same_draws(label, transform, options):
    noise = Compose([transform("label", **options)]).set_random_state(0)
    case = {"label": label, "id": "case-1"}
    noise(case)
    copy = pickle.loads(pickle.dumps(noise))
    for _ in range(3):
        assert values(noise(case)["label"]) == values(copy(case)["label"])


@pytest.mark.parametrize(("transform", "options"), DICTIONARY)
@pytest.mark.parametrize("prefix", ["monai_sc.transforms.", ""], ids=["full-path", "bare-name"])
def test_transform_is_parsed_from_a_bundle_config(label, transform, options, prefix):
    parser = ConfigParser({"noise": {"_target_": f"{prefix}{transform.__name__}", "keys": "label", **options}})
    noise = parser.get_parsed_content("noise")
    assert type(noise) is transform
    assert tuple(noise({"label": label, "id": "case-1"})["label"].shape) == label.shape


@pytest.mark.parametrize("transform", [MarkovLabelNoise, RandMarkovLabelNoise])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"num_steps": -1}, r"^num_steps must be a whole number of at least 0, got -1\.$", id="steps"),
        pytest.param(
            {"expansion_prob": 2}, r"^expansion_prob must be a probability in \[0, 1\], got 2\.$", id="expansion"
        ),
        pytest.param(
            {"march_prob": (0, -1)}, r"^march_prob must be a probability in \[0, 1\], got \(0, -1\)", id="march"
        ),
        pytest.param({"flip_prob": 1.5}, r"^flip_prob must be a probability in \[0, 1\], got 1.5\.$", id="flip"),
        pytest.param(
            {"smoothing": "after"}, r"^smoothing must be one of None, 'before_flips', 'after_flips'", id="mode"
        ),
        pytest.param({"smooth_sigma": -1}, r"^smooth_sigma must be more than 0 voxels, got -1", id="sigma"),
        pytest.param(
            {"smooth_radius": 0},
            r"^smooth_radius must be at least 1 voxel, a whole number, or None, got 0",
            id="radius",
        ),
    ],
)
def test_parameter_out_of_range_is_refused_by_the_constructor(transform, parameters, message):
    with pytest.raises(ValueError, match=message):
        transform(**{**NOISE, **parameters})
    with pytest.raises(ValueError, match=message):
        getattr(transforms, f"{transform.__name__}d")("label", **{**NOISE, **parameters})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"radius": (3, 1)}, r"^radius must be \(low, high\) with 0 <= low <= high, .*, got \(3, 1\)\.$", id="order"
        ),
        pytest.param({"radius": (-1, 1)}, r"^radius must be \(low, high\) with 0 <= low", id="negative"),
        pytest.param({"radius": 2}, r"^radius must be \(low, high\)", id="one-number"),
        pytest.param({"radius": (1, 2, 3)}, r"^radius must be \(low, high\)", id="three-numbers"),
        pytest.param({"radius": ((1, 2), (1, 2, 3))}, r"^radius must be \(low, high\)", id="uneven-pairs"),
        pytest.param({"radius": (1, math.nan)}, r"^radius must be \(low, high\)", id="nan"),
        pytest.param({"radius": (1, math.inf)}, r"^radius must be \(low, high\)", id="infinite"),
        pytest.param({"radius": (1, 2), "unit": "cm"}, r"^unit must be one of 'voxel', 'mm', got 'cm'\.$", id="unit"),
    ],
)
def test_radius_or_unit_out_of_range_is_refused_by_the_constructor(options, message):
    with pytest.raises(ValueError, match=message):
        RandDilateErodeLabel(1.0, **options)
    with pytest.raises(ValueError, match=message):
        RandDilateErodeLabeld("label", 1.0, **options)


def test_radius_for_another_number_of_channels_is_refused(label):
    with pytest.raises(ValueError, match=r"^radius must be one value or one per channel \(2\), got 3\.$"):
        RandDilateErodeLabel(1.0, radius=((1, 2),) * 3)(label)


@pytest.mark.parametrize(("transform", "options"), RANDOM_ARRAY)
def test_label_that_is_not_binary_is_refused(label, transform, options):
    with pytest.raises(ValueError, match=r"^label must be binary, only 0 and 1 in every channel, got 255;"):
        transform(**options)(label * 255)
