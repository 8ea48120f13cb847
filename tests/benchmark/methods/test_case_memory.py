from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor

from monai_sc.benchmark.methods import CaseMemory

AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1]])


@pytest.fixture(params=["memory", "folder"])
def make(request, tmp_path):
    """Return a function that makes a memory of either kind, in the same folder if called again."""
    return lambda **options: CaseMemory(tmp_path / "maps" if request.param == "folder" else None, **options)


def one(value, shape=(2, 3, 4)):
    return MetaTensor(torch.full(shape, value), affine=AFFINE)


def test_case_without_a_map_gives_none(make):
    memory = make()
    assert memory.read("a") is None
    memory.replace([("a", one(0.5))])
    assert memory.read("b") is None


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4, 5)], ids=["2D", "3D"])
def test_map_comes_back_with_its_affine(make, shape):
    memory = make()
    memory.replace([("a", one(0.25, shape)), ("b", one(0.5, shape))])
    found = memory.read("b")
    assert found.dtype == torch.float16
    assert torch.equal(found.as_tensor(), torch.full(shape, 0.5, dtype=torch.float16))
    np.testing.assert_array_equal(found.affine, AFFINE)


def test_masks_stay_masks(make):
    memory = make(dtype="bool")
    memory.replace([("a", MetaTensor(torch.tensor([[[1.0, 0, 1]]])))])
    assert memory.read("a").dtype == torch.bool
    assert memory.read("a").tolist() == [[[True, False, True]]]


def test_new_maps_may_be_made_from_the_old_ones(make):
    memory = make()
    memory.replace([("a", one(0.5)), ("b", one(0.25))])
    memory.replace((name, memory.read(name) * 2) for name in ("a", "b"))
    assert [float(memory.read(name).max()) for name in ("a", "b")] == [1.0, 0.5]
    assert memory.version == 2


def test_maps_that_could_not_all_be_made_change_nothing(make):
    memory = make()
    memory.replace([("a", one(0.5))])

    def fail():
        yield "a", one(1.0)
        raise RuntimeError("the scanner is on fire")

    with pytest.raises(RuntimeError, match="fire"):
        memory.replace(fail())
    assert float(memory.read("a").max()) == 0.5
    memory.replace([("a", one(0.75))])
    assert float(memory.read("a").max()) == 0.75


def test_state_goes_on_in_another_object(make):
    memory = make()
    memory.replace([("a", one(0.5))])
    again = make()
    again.load_state_dict(memory.state_dict())
    assert torch.equal(again.read("a"), memory.read("a"))
    np.testing.assert_array_equal(again.read("a").affine, AFFINE)
    assert again.version == 1


def test_state_of_the_replacement_before_is_still_there(make):
    memory = make()
    memory.replace([("a", one(0.5))])
    state = memory.state_dict()
    memory.replace([("a", one(0.75))])
    again = make()
    again.load_state_dict(state)
    assert float(again.read("a").max()) == 0.5


def test_folder_holds_two_versions_at_most(tmp_path):
    memory = CaseMemory(tmp_path / "maps")
    for value in (0.1, 0.2, 0.3, 0.4):
        memory.replace([("a", one(value))])
    assert sorted(file.name for file in (tmp_path / "maps").iterdir()) == ["maps-3", "maps-4"]
    with pytest.raises(ValueError, match="must hold version 1 of the maps of cases, but it is gone"):
        CaseMemory(tmp_path / "maps").load_state_dict({"version": 1})


def test_maps_of_an_earlier_run_are_not_seen_and_go(tmp_path):
    old = CaseMemory(tmp_path)
    for _ in range(3):
        old.replace([("a", one(0.5)), ("b", one(0.5))])
    (tmp_path / "notes.txt").touch()
    memory = CaseMemory(tmp_path)
    assert memory.read("a") is None
    memory.replace([("a", one(0.25))])
    assert memory.read("b") is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["maps-1", "notes.txt"]


def test_maps_that_vanish_are_no_maps_that_never_were(tmp_path):
    stale = CaseMemory(tmp_path)
    stale.replace([("a", one(0.5))])
    now = pickle.loads(pickle.dumps(stale))
    for _ in range(2):
        now.replace([("a", one(0.75))])
    with pytest.raises(FileNotFoundError, match="maps-1 must hold the maps of cases, but it is gone"):
        stale.read("a")


def test_pickled_memory_reads_the_same(make):
    memory = make()
    memory.replace([("a", one(0.5))])
    assert torch.equal(pickle.loads(pickle.dumps(memory)).read("a"), memory.read("a"))


def test_workers_see_what_was_replaced_between_epochs(make):
    memory = make()
    loader = DataLoader(Dataset(["a", "b"], lambda name: float(memory.read(name).max())), num_workers=1)
    for value in (0.5, 0.25):
        memory.replace([("a", one(value)), ("b", one(value))])
        assert [float(batch) for batch in loader] == [value, value]


@pytest.mark.parametrize(
    ("maps", "error", "wording"),
    [
        ([("a/b", one(1.0))], ValueError, "The id of a case must be a string that can name a file"),
        ([("a", one(1.0)), ("A", one(1.0))], ValueError, "must be unique, got 'A' twice or more"),
        ([("a", torch.zeros(1, 2, 2))], TypeError, "must be a MetaTensor, whose affine says .* got Tensor for 'a'"),
    ],
    ids=["no-file-name", "repeated", "no-affine"],
)
def test_unfit_map_is_refused(make, maps, error, wording):
    with pytest.raises(error, match=wording):
        make().replace(maps)


def test_state_of_the_other_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must keep its maps of cases in a folder, .* got them in memory"):
        CaseMemory().load_state_dict(CaseMemory(tmp_path).state_dict())
    with pytest.raises(ValueError, match=r"must keep its maps of cases in memory, .* got them in a folder"):
        CaseMemory(tmp_path).load_state_dict(CaseMemory().state_dict())
