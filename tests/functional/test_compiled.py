from __future__ import annotations

import pickle
import runpy

import numba
import numpy as np
import pytest
from numba.core import caching

from monai_sc.functional import noise as boundary_list
from monai_sc.functional.compiled import compiled


def fill(array):
    """Fill with 1."""
    array[:] = 1


def njit_that_raises(made, *, error, at_the_call):
    """Return a stand-in for ``numba.njit`` whose cache raises ``error``; what it makes is noted in ``made``."""

    def njit(*, nogil, cache=False):
        def decorate(function):
            made.append((nogil, cache))
            if cache and not at_the_call:
                raise error

            def run(*arguments):
                if cache:
                    raise error
                function(*arguments)

            return run

        return decorate

    return njit


@pytest.mark.parametrize(
    ("error", "at_the_call"),
    [
        pytest.param(OSError, True, id="full-disk"),
        pytest.param(EOFError, True, id="file-that-was-cut-off"),
        pytest.param(pickle.UnpicklingError, True, id="damaged-file"),
        pytest.param(RuntimeError, False, id="no-folder-to-write-to"),
    ],
)
def test_a_function_whose_cache_fails_runs_without_it(monkeypatch, error, at_the_call):
    made = []
    monkeypatch.setattr(numba, "njit", njit_that_raises(made, error=error, at_the_call=at_the_call))
    array = np.zeros(2)
    compiled(fill)(array)
    assert array.tolist() == [1, 1]
    assert sorted(made) == [(True, False), (True, True)]


def test_other_errors_are_not_hidden(monkeypatch):
    monkeypatch.setattr(numba, "njit", njit_that_raises([], error=ValueError("of its own"), at_the_call=True))
    with pytest.raises(ValueError, match=r"^of its own$"):
        compiled(fill)(np.zeros(2))


def test_a_compiled_function_keeps_its_name_and_docstring():
    assert compiled(fill).__name__ == "fill"
    assert compiled(fill).__doc__ == "Fill with 1."


@pytest.fixture
def in_a_new_folder(tmp_path, monkeypatch):
    """Return a function that compiles as a new process does, whose compiled code is kept in a new folder."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "module.py"
    file.write_text("def fill(array):\n    array[:] = 1\n")

    def compile_and_fill():
        array = np.zeros(2)
        compiled(runpy.run_path(str(file))["fill"])(array)
        return array.tolist()

    return compile_and_fill


def test_a_full_disk_does_not_matter(in_a_new_folder, monkeypatch, tmp_path):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    assert in_a_new_folder() == [1, 1]
    assert not [*tmp_path.rglob("*.nbc")]


def test_compiled_code_that_was_cut_off_does_not_matter(in_a_new_folder, tmp_path):
    assert in_a_new_folder() == [1, 1]
    (file,) = tmp_path.rglob("*.nbc")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        pickle.loads(file.read_bytes())
    assert in_a_new_folder() == [1, 1]


def test_march_is_compiled_once_whatever_the_arguments_are(monkeypatch):
    kinds = []
    monkeypatch.setattr(boundary_list, "_march_list", lambda *arguments: kinds.append([*map(numba.typeof, arguments)]))
    mask, steps, rng = np.ones((3, 4), dtype=bool), np.array([True, False, True, True]), np.random.default_rng(0)
    fixed = np.array(steps)
    fixed.flags.writeable = False
    for expands, prob in ((steps, 0.5), (steps[::-1], 1), (steps[::2], np.float32(0.5)), (fixed, np.float64(0.5))):
        boundary_list.march(mask, expands, prob, rng)
    boundary_list.march(mask[:, ::-1], steps, 0.5, rng)
    boundary_list.march(np.ones((2, 3, 4), dtype=bool), [True], 0.5, rng)
    assert all(kind == kinds[0] for kind in kinds)
