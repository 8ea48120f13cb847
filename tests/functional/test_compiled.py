from __future__ import annotations

import pickle

import numba
import numpy as np
import pytest

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
    monkeypatch.setattr(numba, "njit", njit_that_raises([], error=ValueError, at_the_call=True))
    with pytest.raises(ValueError):  # noqa: PT011
        compiled(fill)(np.zeros(2))


def test_a_compiled_function_keeps_its_name_and_docstring():
    assert compiled(fill).__name__ == "fill"
    assert compiled(fill).__doc__ == "Fill with 1."
