"""Where the data sets are: in the folder that MONAI_SC_DATA names, else beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def data_set(name):
    """Return the folder of a data set, or skip the test; in CI beside the shared data its absence is a failure."""
    folder = Path(os.environ.get("MONAI_SC_DATA", SHARED / "data")) / name
    if not folder.is_dir():
        if os.environ.get("CI") == "true" and SHARED.is_dir():
            pytest.fail(f"{folder} does not exist.")
        pytest.skip(f"needs the data set in {folder}; MONAI_SC_DATA names another folder")
    return folder


@pytest.fixture(scope="module")
def jsrt():
    """Return the folder with JSRT as 256 x 256 PNG files."""
    return data_set("jsrt")


@pytest.fixture(scope="module")
def lidc():
    """Return the folder with the nodules of LIDC-IDRI as 128 x 128 PNG files, by four annotators."""
    return data_set("lidc_slices")


@pytest.fixture(scope="module")
def brats():
    """Return the folder with three cases of BraTS."""
    return data_set("brats")


@pytest.fixture(scope="module")
def ms_lesion():
    """Return the folder with a case of multiple sclerosis."""
    return data_set("ms_lesion")
