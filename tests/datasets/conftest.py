"""Stand-ins of every layout, each written once."""

from __future__ import annotations

import pytest

from tests.datasets.writers import WRITERS


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """Return a function of a layout that returns the folder of its stand-in of three cases, which no test changes."""
    folders = {}

    def get(layout):
        if layout not in folders:
            folders[layout] = tmp_path_factory.mktemp("stand-in") / layout
            WRITERS[layout](folders[layout], num_cases={"train": 1, "clean": 1, "test": 1})
        return folders[layout]

    return get
