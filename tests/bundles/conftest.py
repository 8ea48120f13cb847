"""What the tests of the bundles share: each test that takes ``bundle`` runs once for every folder in ``bundles``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FOLDERS = sorted(folder for folder in (Path(__file__).parents[2] / "bundles").iterdir() if folder.is_dir())


@pytest.fixture(params=[pytest.param(folder, id=folder.name) for folder in FOLDERS])
def bundle(request, tmp_path):
    """Return a copy of a bundle, without what its runs have written into its folder."""
    return shutil.copytree(
        request.param, tmp_path / request.param.name, ignore=shutil.ignore_patterns("data", "output", "try")
    )
