"""What must hold for whatever users write down: names, lists, options, files of JSON; and for arrays, by slow oracles.

Hypothesis draws the inputs here, since of a nested one that fails it finds the smallest.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.extra import numpy as npst
from hypothesis.internal.conjecture import providers

from monai_sc.__main__ import main
from monai_sc.benchmark.grid import ComparedBundle, find_method
from monai_sc.correction.state import plain
from monai_sc.datasets import prepared_cases
from monai_sc.datasets.layout import SPLITS, SourceCase
from monai_sc.datasets.prepare import draw_splits
from monai_sc.files.cases import check_list, check_name
from monai_sc.folders import NoiseChoice
from monai_sc.functional import NOISE_PRESETS, markov_label_noise, merge_masks, signed_distance, split_label_map
from monai_sc.transforms import SignedDistanced
from tests.functional.test_distance import slow_euclidean, slow_taxicab
from tests.functional.test_noise import slow_markov_noise

STORAGE = tempfile.TemporaryDirectory(prefix="hypothesis-")  # where it keeps tables of its own; goes with the process
set_hypothesis_home_dir(STORAGE.name)
# Else it draws constants of all modules that were imported before, which depends on the tests that have run.
if hasattr(providers, "_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

REFUSALS = (ValueError, TypeError, KeyError, FileNotFoundError)

settings.register_profile(
    "monai_sc",
    max_examples=int(os.environ.get("MONAI_SC_FUZZ", "10")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("monai_sc")

SHAPES = npst.array_shapes(min_dims=1, max_dims=3, max_side=3)
MASKS = npst.arrays(bool, SHAPES)
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates among them, which file names may have
NUMBERS = st.one_of(st.integers(-2, 5), st.floats(), st.integers(-(2**70), 2**70))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(LEAVES, lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(TEXTS, one, max_size=3)))


def result_or_sentence(call: Any) -> Any:
    """Return a result, or the error that was raised, which must be of one sentence."""
    try:
        return call()
    except REFUSALS as error:
        told = str(error.args[0] if isinstance(error, KeyError) else error)
        assert told.endswith(".")
        assert "\n" not in told
        return error


@given(MASKS, st.lists(st.floats(0.1, 10), min_size=3, max_size=3), st.sampled_from(["voxel", "face"]))
def test_distance_is_that_of_the_slow_oracles(mask, spacing, origin):
    assume(mask.any() and not mask.all())
    own = spacing[: mask.ndim]
    phi = signed_distance(mask[None], spacing=own, origin=origin)[0]
    np.testing.assert_allclose(phi, slow_euclidean(mask, own, origin), rtol=1e-5)
    taxicab = signed_distance(mask[None], metric="taxicab", origin=origin)[0]
    np.testing.assert_array_equal(taxicab, slow_taxicab(mask, origin))


@given(MASKS, st.integers(0, 3), st.sampled_from([0, 1]), st.sampled_from([0, 1]))
def test_noise_of_certain_draws_is_that_of_the_slow_oracle(mask, steps, expansion, flip):
    options = {"num_steps": steps, "expansion_prob": expansion, "march_prob": 1, "flip_prob": flip}
    expected = slow_markov_noise(mask, **options, rng=random.Random(0))
    np.testing.assert_array_equal(markov_label_noise(mask[None], **options, seed=0)[0], expected)


@given(npst.arrays(st.sampled_from(["u1", "i2", ">i4", "f4"]), SHAPES, elements=st.integers(0, 4)), st.lists(NUMBERS))
def test_label_map_of_masks_that_did_not_change_is_what_it_was(values, classes):
    masks = result_or_sentence(lambda: split_label_map(values[None], classes))
    if not isinstance(masks, Exception):
        merged = result_or_sentence(lambda: merge_masks(masks, values[None], classes))
        assert isinstance(merged, Exception) or (np.array_equal(merged[0], values) and merged.dtype == values.dtype)


@given(MASKS, st.dictionaries(TEXTS, JSON, max_size=3))
def test_dictionary_transform_touches_nothing_else(mask, others):
    data = {**others, "label": mask[None]}
    before = repr(others)
    result = SignedDistanced("label")(data)
    assert all(result[key] is data[key] for key in others if key != "label")
    assert set(result) == set(data)
    assert repr(others) == before


@given(TEXTS)
@example("..")
@example("a/../../b")
def test_name_that_is_taken_stays_in_its_folder(name):
    if isinstance(result_or_sentence(lambda: check_name(name, "A name")), Exception):
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(b"")
        assert [one.resolve() for one in Path(folder).iterdir()] == [file.resolve()]
        assert file.resolve().parent == Path(folder).resolve()


CASES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(st.sampled_from(["a", "A", "b"]), LEAVES),
        **{key: st.one_of(st.just("x"), TEXTS, JSON) for key in ("image", "label", "reference_label", "trusted")},
    },
)


@given(st.lists(st.one_of(CASES, JSON), max_size=3))
def test_case_list_is_taken_or_refused_in_one_sentence(cases):
    if not isinstance(result_or_sentence(lambda: check_list(cases)), Exception):
        assert len({case["id"].casefold() for case in cases}) == len(cases) > 0


@given(st.dictionaries(st.sampled_from(["train", "clean", "test", "more"]), JSON), JSON, JSON, st.sampled_from(SPLITS))
@example({"test": [], "more": None}, ["a"], 1, "test")
def test_file_of_a_prepared_data_set_is_read_or_refused_in_one_sentence(splits, classes, foreground, split):
    row = {"id": "a", "image": "a.png", "label": ["b.png"]}
    content = {"cases": {"train": [row], "clean": [row], "test": [row], **splits}}
    content |= {"classes": classes, "foreground": foreground}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prepared.json").write_text(json.dumps(content))
        cases = result_or_sentence(lambda: prepared_cases(folder, split))
        assert isinstance(cases, Exception) or all(isinstance(case["id"], str) for case in cases)


CONFIGS = st.one_of(
    JSON,
    st.fixed_dictionaries({}, optional={"noise": JSON, "noises": JSON, "run": JSON, "name": JSON, "version": JSON}),
)


@given(CONFIGS, CONFIGS, TEXTS)
def test_config_is_taken_or_refused_in_one_sentence(config, metadata, name):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "configs").mkdir()
        for file, content in (("train.json", config), ("metadata.json", metadata)):
            (Path(folder) / "configs" / file).write_text(json.dumps(content))
        bundle = result_or_sentence(lambda: ComparedBundle(folder))
        if not isinstance(bundle, Exception):
            result_or_sentence(lambda: bundle.check_noises([name]))
        result_or_sentence(lambda: find_method(f"{folder}/configs/train.json"))
        result_or_sentence(lambda: find_method(name))


SOURCES = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([None, None, *SPLITS])), max_size=12)
SHARES = st.fixed_dictionaries({split: st.integers(0, 200) for split in SPLITS})


@given(SOURCES, SHARES, st.integers(0, 9))
def test_every_case_is_in_one_split_and_with_its_group(sources, sizes, seed):
    assume(any(sizes.values()))
    group_of = {group: split for group, split in sources}  # of cases of one group the data set names one split
    cases = [SourceCase(f"{k}", {}, group, group_of[group]) for k, (group, _) in enumerate(sources)]
    drawn = draw_splits(cases, sizes, seed)
    assert sorted(case.id for part in drawn.values() for case in part) == sorted(case.id for case in cases)
    for split, part in drawn.items():
        assert all(case.split in (None, split) for case in part)
        assert not {case.group for case in part} & {
            case.group for other in drawn if other != split for case in drawn[other]
        }


PARAMETERS = st.dictionaries(
    st.sampled_from(["num_steps", "expansion_prob", "march_prob", "flip_prob", "smooth_sigma", "step_size", "radius"]),
    st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3)),
)


@given(
    PARAMETERS,
    st.sampled_from([None, None, "x", *NOISE_PRESETS]),
    st.sampled_from([None, None, "lung", "x"]),
    st.one_of(st.none(), NUMBERS),
    st.one_of(st.none(), st.lists(st.integers(-1, 3), max_size=3)),
)
def test_noise_is_made_or_refused_in_one_sentence(parameters, preset, structure, target, classes):
    choice = result_or_sentence(lambda: NoiseChoice(parameters, preset, structure, None, target))
    if not isinstance(choice, Exception):
        more = {"num_steps": 1} if choice.has_target else {}
        noise = result_or_sentence(lambda: choice.make(classes, **more))
        assert isinstance(noise, Exception) or callable(noise)
        assert choice.description()["preset"] == preset


OPTIONS = {  # but for folders, of which a text might name a large one
    "simulate": ("num-steps", "expansion-prob", "preset", "structure", "classes", "seed", "slice-axis", "target-dice"),
    "audit": ("ignore-value", "names", "tolerance"),
    "correct": ("kind", "max-shift-mm", "shape-weight", "ignore-value", "names"),
}


@pytest.mark.parametrize("name", OPTIONS)
@given(st.data())
def test_wrong_command_is_refused_in_one_sentence(name, data):
    texts = st.one_of(
        TEXTS, st.floats().map(str), st.lists(st.integers(-3, 3)).map(lambda values: ",".join(map(str, values)))
    )
    options = data.draw(st.dictionaries(st.sampled_from(OPTIONS[name]), texts, max_size=3))
    told = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(told):
        places = [f"--{key}={folder}/{key}" for key in ("predictions", "labels", "clean", "out")]
        places = {"simulate": [f"{folder}/in", f"{folder}/out"], "audit": places[1:], "correct": places}[name]
        status = main([name, *places, *(f"--{key}={value}" for key, value in options.items())])
        assert not [*Path(folder).iterdir()]
    assert (status, told.getvalue()[:7], told.getvalue().count("\n")) == (2, "Error: ", 1), told.getvalue()


@given(
    st.recursive(
        st.one_of(LEAVES, NUMBERS.filter(lambda n: abs(n) < 2**60).map(np.float32)),
        lambda one: st.lists(one, max_size=3),
    )
)
def test_what_is_printed_is_json_without_nan(value):
    text = json.dumps(plain({"value": value, "array": np.array([1, np.nan])}, nan=False))
    assert "NaN" not in text.replace('"NaN"', "")
    json.loads(text, parse_constant=pytest.fail)
