"""What every stand-in must do, whatever its layout."""

from __future__ import annotations

import pytest

from tests.contents import contents
from tests.datasets.writers import WRITERS

every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@every_writer
def test_stand_in_depends_on_its_seed_alone(tmp_path, write):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, num_cases={"train": 1, "clean": 0, "test": 0}, seed=seed)
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert first == again
    assert first != other


@every_writer
def test_stand_in_is_not_written_over_other_files(tmp_path, write):
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match=r"^out must be a folder that is empty or does not exist, got .*\.$"):
            write(out, num_cases={"train": 1, "clean": 0, "test": 0})
    assert list(contents(tmp_path)) == ["file"]
