"""The labels that a bundle trains on: every noise, those of the data set itself, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from monai.bundle import ConfigParser

from tests.bundles.conftest import BUNDLES, NUM_CASES

NOISES = ["none", "markov_expand", "markov_shrink", "dilate_erode"]
WITHOUT_OWN_NOISE = ("brats2020", "isic2017")


@pytest.fixture
def parsed(name, overrides):
    """Return a function that returns one item of the parsed configs of a training."""

    def parsed(key, *configs, **more):
        parser = ConfigParser()
        parser.read_config([BUNDLES / name / "configs" / f"{config}.json" for config in ("train", *configs)])
        parser.update(overrides(**more))
        return parser.get_parsed_content(key)

    return parsed


def labels_of(cases, key="label"):
    return [[Path(file) for file in case[key]] for case in cases]


@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_can_be_chosen(name, noise, parsed):
    store = parsed("store", noise=noise)
    datalist = store.simulate(parsed("noise_model", noise=noise), seed=0).datalist()
    assert len(datalist) == NUM_CASES["train"]
    if noise == "none":
        assert datalist == store.cases
        return
    clean, noisy = (
        np.array([read(case["id"]).reshape(len(store.class_names), -1).sum(axis=1) for case in datalist])
        for read in (store.read_clean, store.read)
    )
    assert (clean.sum(axis=0) > 100).all()
    assert (noisy != clean).any(axis=0).all()
    growth = np.sum(noisy, axis=0, where=clean > 0) / clean.sum(axis=0)  # an empty label can only grow
    if noise == "markov_expand":
        assert (growth > 1.3).all()
    if noise == "markov_shrink":
        assert (growth < (0.95 if name == "lidc_idri" else 0.5)).all()  # small nodules have a weaker noise


def test_labels_of_the_data_set_are_taken_or_refused(name, prepared, parsed):
    if name == "phantom":
        pytest.skip("its labels are made, not read")
    if name in WITHOUT_OWN_NOISE:
        with pytest.raises(RuntimeError) as error:
            parsed("store", noise="files")
        message = f"{prepared} has no noisy labels of its own for the split 'train'; choose another noise than 'files'."
        assert str(error.value.__cause__) == message
        return
    data = parsed("train::dataset::data", noise="files")
    assert len(data) == NUM_CASES["train"]
    for key, folder in (("label", "noisy"), ("reference_label", "labels")):
        for files in labels_of(data, key):
            assert {file.parents[1] for file in files} == {prepared / folder}
    store = parsed("store", noise="files")
    assert not store.is_simulated
    assert any((store.read(case["id"]) != store.read_clean(case["id"])).any() for case in data)


@pytest.mark.parametrize("noise", ["files", "markov_expand"])
def test_reference_is_trained_on_clean_labels(name, noise, prepared, parsed, tmp_path):
    if noise == "files" and name in ("phantom", *WITHOUT_OWN_NOISE):
        pytest.skip("there are no noisy labels in files")
    data = parsed("train::dataset::data", "reference", noise=noise)
    assert len(data) == NUM_CASES["train"]
    assert not any("reference_label" in case for case in data)  # of which the label would be the noisy one
    for files in labels_of(data):
        if name != "phantom":  # whose files are those of no data set
            assert {file.parents[1] for file in files} == {prepared / "labels"}
    assert not (tmp_path / "output" / "labels").exists()


def test_unknown_noise_is_refused_by_name(name, parsed):
    with pytest.raises(RuntimeError) as error:
        parsed("noise_model", noise="salt")
    known = NOISES if name == "phantom" else ["files", *NOISES]
    assert str(error.value.__cause__) == f"noise must be one of {', '.join(map(repr, known))}, got 'salt'."


def test_damaged_cases_are_refused_or_left_out(name, prepared, parsed, tmp_path):
    more = {}
    if name != "phantom":  # which writes its files for this test alone
        more = {"dataset_dir": str(shutil.copytree(prepared, tmp_path / "data"))}
    bad = [parsed(f"{kind}_cases", **more)[1] for kind in ("train", "clean")]
    for case in bad:
        file = Path(case["label"][0])
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RuntimeError) as error:
        parsed("store", **more)
    assert re.match(r"Case '.*' cannot be used: Label file ", str(error.value.__cause__))
    store = parsed("store", on_bad_case="skip", **more)
    assert len(store.cases) == NUM_CASES["train"] - 1
    assert list(store.skipped) == [bad[0]["id"]]
    assert Path(bad[0]["label"][0]).name in store.skipped[bad[0]["id"]]
    assert bad[1]["id"] not in [case["id"] for case in parsed("clean_cases", on_bad_case="skip", **more)]
