from __future__ import annotations

import numba
import numpy as np
import pytest

from monai_sc.functional.compiled import compiled


def fill(array):
    array[:] = 1


@pytest.mark.parametrize("error", [OSError, EOFError])
def test_a_function_whose_cache_fails_runs_without_it(monkeypatch, error):
    made = []

    def njit(*, nogil, cache=False):
        made.append((nogil, cache))

        def decorate(function):
            def run(*arguments):
                if cache:
                    raise error
                function(*arguments)

            return run

        return decorate

    monkeypatch.setattr(numba, "njit", njit)
    array = np.zeros(2)
    compiled(fill)(array)
    assert array.tolist() == [1, 1]
    assert sorted(made) == [(True, False), (True, True)]
