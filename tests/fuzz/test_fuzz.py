"""Whatever comes in, out comes a right result or one sentence that says what is wrong, and the input is as it was.

``make fuzz`` tries many more inputs than the tests do, and counts.
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

from .inputs import fingerprint
from .targets import TARGETS

NUMBER = int(os.environ.get("MONAI_SC_FUZZ", "60"))
SLOW = {"LabelStore": 4, "audit": 4}  # that many times fewer
PACKAGE = str(Path(monai_sc.__file__).parent)
ALLOWED = (ValueError, TypeError)


def outcome(name: str, seed: int) -> str:
    """Return ``"right"`` or ``"refused"``; raise an ``AssertionError`` for anything else."""
    rng = np.random.default_rng([seed, *name.encode()])
    given, call, is_right = TARGETS[name](rng)
    before = [fingerprint(values) for values in given]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*NvImgCodec", UserWarning)  # of MONAI, as in pyproject.toml
        try:
            result = call()
        except ALLOWED as error:
            result = error
    assert [fingerprint(values) for values in given] == before, "an input was changed"
    if isinstance(result, ALLOWED):
        told, source = str(result), traceback.extract_tb(result.__traceback__)[-1].filename
        assert source.startswith(PACKAGE) or name == "audit", f"{type(result).__name__} from {source}: {told}"
        assert told.endswith("."), told
        assert "\n" not in told, told
        return "refused"
    assert is_right(result), f"the result is wrong: {result!r:.300}"
    return "right"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_every_input_gives_a_right_result_or_one_sentence(name, capsys):
    counts: Counter[str] = Counter()
    failures = []
    for seed in range(max(NUMBER // SLOW.get(name, 1), 1)):
        try:
            counts[outcome(name, seed)] += 1
        except Exception as error:
            counts["failed"] += 1
            failures.append(f"{name}, seed {seed}: {str(error).partition(chr(10))[0][:250] or repr(error)}")
    if "MONAI_SC_FUZZ" in os.environ:
        with capsys.disabled():
            print(f"\n{name}: {counts.total()} inputs, {counts['right']} right, {counts['refused']} refused", end=" ")
    assert not failures, "\n".join(failures[:20])
