from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from monai_sc.datasets.jsrt import JsrtLayout, official_names
from monai_sc.datasets.layout import SPLITS, SourceCase
from monai_sc.datasets.prepare import draw_splits

SIZES = {"train": 148, "clean": 24, "test": 75}


def case(name, group=None, split=None):
    return SourceCase(name, {"image": Path(name)}, name if group is None else group, split)


def sizes(splits):
    return {split: len(cases) for split, cases in splits.items()}


def ids(splits):
    return {split: [c.id for c in cases] for split, cases in splits.items()}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (247, (148, 24, 75)),
        (494, (296, 48, 150)),
        (100, (60, 10, 30)),
        (10, (6, 1, 3)),
        (4, (2, 1, 1)),
        (3, (1, 1, 1)),
        (2, (1, 0, 1)),
        (1, (1, 0, 0)),
    ],
)
def test_sizes_are_in_proportion(number, expected):
    drawn = draw_splits([case(f"{k:03d}") for k in range(number)], SIZES, 0)
    assert tuple(sizes(drawn).values()) == expected
    assert tuple(drawn) == SPLITS


def test_whole_jsrt_has_the_sizes_of_the_paper():
    cases = [case(name) for name in official_names()]
    assert len(cases) == 247
    assert sizes(draw_splits(cases, JsrtLayout.split_sizes, 5)) == {"train": 148, "clean": 24, "test": 75}


def test_draw_depends_on_the_seed_and_the_groups_alone():
    cases = [case(f"{k:03d}") for k in range(60)]
    first = ids(draw_splits(cases, SIZES, 3))
    assert ids(draw_splits(cases, SIZES, 3)) == first
    assert ids(draw_splits(cases, SIZES, 4)) != first
    turned = ids(draw_splits(cases[::-1], SIZES, 3))
    assert {split: names[::-1] for split, names in turned.items()} == first


@pytest.mark.parametrize("seed", range(40))
def test_groups_stay_whole_and_no_split_is_empty(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 12, int(rng.integers(3, 12)))
    cases = [case(f"{group}-{k}", str(group)) for group, count in enumerate(counts) for k in range(count)]
    drawn = draw_splits(cases, SIZES, seed)
    assert min(sizes(drawn).values()) > 0
    assert sorted(c.id for part in drawn.values() for c in part) == sorted(c.id for c in cases)
    homes = Counter(c.group for part in drawn.values() for c in {c.group: c for c in part}.values())
    assert set(homes.values()) == {1}
    for part in drawn.values():
        assert [c.id for c in part] == [c.id for c in cases if c in part]


@pytest.mark.parametrize("seed", range(20))
def test_many_groups_come_near_to_the_proportion(seed):
    counts = np.random.default_rng(seed).integers(1, 8, 200)
    cases = [case(f"{group}-{k}", str(group)) for group, count in enumerate(counts) for k in range(count)]
    for split, number in sizes(draw_splits(cases, SIZES, seed)).items():
        assert abs(number - len(cases) * SIZES[split] / 247) <= 7


def test_given_splits_stay_also_where_they_divide_a_group():
    cases = [case("a", "p", "train"), case("b", "p", "test"), case("c", "q", "clean")]
    assert ids(draw_splits(cases, SIZES, 0)) == {"train": ["a"], "clean": ["c"], "test": ["b"]}


def test_case_without_a_split_goes_where_its_group_was_given():
    cases = [case("a", "p", "test"), case("b", "p"), *(case(str(k)) for k in range(20))]
    for seed in range(5):
        assert {"a", "b"} <= set(ids(draw_splits(cases, SIZES, seed))["test"])
