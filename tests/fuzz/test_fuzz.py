"""Whatever comes in, out comes a right result or one sentence that says what is wrong, and the input is as it was.

``make fuzz`` tries many more inputs than the tests do, large ones among them, and counts.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import monai_sc
from monai_sc import functional, transforms
from monai_sc.benchmark import methods

from .command_targets import ToldError
from .inputs import LARGE, Draw, fingerprint
from .targets import NO_TARGETS, SLOW, TARGETS, WITH_LARGE

IS_LONG = "MONAI_SC_FUZZ" in os.environ
NUMBER = int(os.environ.get("MONAI_SC_FUZZ", "6"))
PACKAGE = str(Path(monai_sc.__file__).parent)
REFUSALS = (ValueError, TypeError, KeyError, FileNotFoundError)
MISSING_KEY = "was missing in the data and allow_missing_keys==False."  # as MONAI's key_iterator says it


def outcome(name: str, seed: int, size: tuple[int, ...] | None = None) -> str:
    """Return ``"right"`` or ``"refused"``; raise an ``AssertionError`` for anything else."""
    call = TARGETS[name](Draw(np.random.default_rng([seed, *name.encode()]), size))
    before = fingerprint(call.given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*NvImgCodec", UserWarning)  # of MONAI, as in pyproject.toml
        try:
            result = call.run()
        except REFUSALS as error:
            result = error
    assert fingerprint(call.given) == before, "an input was changed"
    if isinstance(result, REFUSALS):
        told = str(result.args[0]) if isinstance(result, KeyError) else str(result)
        source = traceback.extract_tb(result.__traceback__)[-1].filename
        known = source.startswith(PACKAGE) or isinstance(result, ToldError) or MISSING_KEY in told
        assert known, f"{type(result).__name__} from {source}: {told}"
        assert told.endswith("."), f"{type(result).__name__}: {told}"
        assert "\n" not in told, told
        return "refused"
    assert call.is_right(result), f"the result is wrong: {result!r:.300}"
    return "right"


def inputs_of(name: str) -> list[tuple[int, tuple[int, ...] | None]]:
    """Return seeds and sizes."""
    number = NUMBER // SLOW.get(name, 1)
    large = LARGE if IS_LONG and name in WITH_LARGE else ()
    return [*((number + k, size) for k, size in enumerate(large)), *((seed, None) for seed in range(number))]


@pytest.fixture(scope="module")
def totals(request):
    """Return the counts of all targets, which are printed in the end."""
    counts: Counter[str] = Counter()
    yield counts
    if IS_LONG:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nIn all {counts.total()} inputs: {told(counts)}")


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[key]} {key}" for key in ("right", "refused", "failed"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in TARGETS if inputs_of(name)])
def test_every_input_gives_a_right_result_or_one_sentence(name, totals, capsys):
    counts: Counter[str] = Counter()
    failures = []
    for seed, size in inputs_of(name):
        try:
            counts[outcome(name, seed, size)] += 1
        except Exception as error:
            counts["failed"] += 1
            text = str(error).partition("\n")[0][:250] or repr(error)
            failures.append(f"{name}, seed {seed}, size {size}: {type(error).__name__}: {text}")
    if IS_LONG:
        with capsys.disabled():
            print(f"\n{name}: {counts.total()} inputs, {told(counts)}", end=" ")
    totals.update(counts)
    assert not failures, "\n".join(failures[:20])


PUBLIC = {
    **{name: getattr(module, name) for module in (functional, transforms) for name in module.__all__},
    **{name: getattr(methods, name) for name in methods.__all__ if not name.endswith(("Handler", "Trainer"))},
}


def test_everything_public_has_a_target_or_a_reason():
    objects = PUBLIC
    names = {getattr(one, "__name__", name) for name, one in objects.items()}  # aliases are one object
    assert not names - TARGETS.keys() - NO_TARGETS.keys()


def test_no_reason_is_left_over():
    assert NO_TARGETS.keys() <= PUBLIC.keys()
    assert not NO_TARGETS.keys() & TARGETS.keys()
    assert TARGETS.keys() >= {*SLOW, *WITH_LARGE}
