import json
import multiprocessing
import re

import pytest

from monai_sc import __main__ as command_line
from monai_sc.store import LabelStore
from monai_sc.transforms import RandMarkovLabelNoise


def run(*arguments):
    return command_line.main([str(a) for a in arguments])


@pytest.fixture
def store(workplace):
    return LabelStore.open(workplace / "run")


def test_rounds_are_listed_and_none_is_restored(store, capsys):
    assert run("restore", store.root) == 0
    told = capsys.readouterr().out
    assert "│ 0     │         │ as given  │ 2     │ -                         │ -              │" in told
    assert "│ 1     │ yes     │ corrected │ 2     │ -1.50                     │ 2 (0.9 %)      │" in told
    assert f"The current labels of {store.root} are those of round 1." in told
    assert store.current == 1


def test_round_is_put_in_force(store, workplace, capsys):
    assert run("restore", workplace / "run", "--round", 0) == 0
    assert f"The current labels of {store.root} are those of round 0." in capsys.readouterr().out
    assert store.current == 0
    assert run("restore", workplace / "run", "--round", 1, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert store.current == 1


def test_result_as_json(store, capsys):
    assert run("restore", store.root, "--json") == 0
    told, noted = capsys.readouterr()
    first = {"round": 0, "current": False, "cases": 2, **dict.fromkeys(("bias", "noise", "voxels_changed", "changed"))}
    second = {"round": 1, "current": True, "cases": 2, "bias": [-1.5], "noise": None, "voxels_changed": [2]}
    second["changed"] = [pytest.approx((1 / 111 + 1 / 122) / 2, abs=1e-6)]  # a voxel more than 110, and than 121
    expected = {"store": str(store.root), "current": 1, "classes": ["lung"], "rounds": [first, second]}
    assert (json.loads(told), noted) == (expected, "")


def test_noise_of_round_0_is_named(workplace, capsys):
    masks = sorted((workplace / "masks").glob("*"))
    cases = [{"id": f.stem, "image": f, "label": [f, f], "foreground": 255} for f in masks]
    store = LabelStore(workplace / "noisy", cases, class_names=["a", "b"])
    store.simulate(RandMarkovLabelNoise(1.0, num_steps=2, expansion_prob=1.0, march_prob=1.0), progress=False)
    assert run("restore", store.root) == 0
    told = capsys.readouterr().out
    assert "made noisy" in told
    assert "RandMarkovLabelNoise" in told
    changed = [sum(line["voxels_changed"][k] for line in store.manifest(0)) for k in range(2)]
    last = " ".join(line.split("│")[-2].strip() for line in told.splitlines() if line.startswith("│"))  # of each row
    assert re.search(rf"a {changed[0]} \([\d.]+ %\), b {changed[1]} \([\d.]+ %\)", last)


def test_round_that_is_not_there_is_refused(store, capsys):
    assert run("restore", store.root, "--round", 7) == 2
    assert capsys.readouterr().err == f"Error: --round must be one of those in {store.root}, 0, 1, got 7.\n"
    assert store.current == 1


def test_damaged_store_and_lost_files_are_refused(store, workplace, capsys):
    (workplace / "masks" / "1.png").rename(workplace / "1.png")
    assert run("restore", store.root) == 2
    told = capsys.readouterr().err
    assert told == f"Error: {workplace / 'masks' / '1.png'} of case '1' does not exist or is not a file.\n"
    (store.root / "store.json").write_text("{")
    assert run("restore", store.root) == 2
    assert capsys.readouterr().err.startswith(f"Error: {store.root / 'store.json'} is damaged; ")


def hold(root, held, end):
    LabelStore.open(root).claim()
    held.set()
    end.wait()


def test_store_of_a_run_that_goes_on_is_left_alone(store, capsys):
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(store.root, held, end))
    process.start()
    try:
        held.wait()
        assert run("restore", store.root, "--round", 0) == 2
        assert capsys.readouterr().err.startswith("Error: Another process writes into ")
        assert run("restore", store.root) == 0
    finally:
        end.set()
        process.join()
    assert store.current == 1
