"""Functions that are compiled on their first call."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any, cast

import numba


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile ``function`` on its first call, and keep the result on disk where that can be written and read."""
    plain = numba.njit(nogil=True)(function)
    try:
        cached = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the folder of the package nor that of the user can be written to
        return cast("Callable[..., None]", plain)

    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        try:
            cached(*arguments)
        except (OSError, EOFError, pickle.UnpicklingError):  # a full disk, or files that were damaged
            plain(*arguments)

    return call
