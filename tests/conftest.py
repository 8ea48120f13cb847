"""What several test files share.

The kinds of array that MONAI passes around, small labels in 2D and 3D, commands that are run in this process, and what
a comparison leaves when its trainings are done.
"""

from __future__ import annotations

import gc
import json
import logging
import runpy
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.utils import set_determinism

SPACING = (2.0, 0.5, 3.0)


def pytest_collection_finish():
    """Leave what was imported out of each search for garbage: PyTorch and MONAI are millions of objects."""
    gc.collect()
    gc.freeze()


def _meta_tensor(array):
    spacing = [*SPACING[: array.ndim - 1], 1.0, 1.0, 1.0]
    affine = np.diag([*spacing[:3], 1.0])
    return MetaTensor(torch.from_numpy(array.copy()), affine=affine, meta={"filename_or_obj": "case-1.nii.gz"})


@pytest.fixture(
    params=[
        pytest.param(np.copy, id="numpy"),
        pytest.param(lambda array: torch.from_numpy(array.copy()), id="tensor"),
        pytest.param(_meta_tensor, id="metatensor"),
    ]
)
def as_kind(request):
    """Return a function that copies a numpy array into one kind of array; the ``MetaTensor`` has an affine."""
    return request.param


@pytest.fixture
def as_meta():
    """Return a function that copies a numpy array into a ``MetaTensor`` with voxels of 2, 0.5 and, in 3D, 3 mm."""
    return _meta_tensor


@pytest.fixture(params=[pytest.param((14, 12), id="2d"), pytest.param((9, 8, 7), id="3d")])
def label(request):
    """Return a uint8 label ``(2, *spatial)``: a ball, and a box that touches the edge of the image."""
    grid = np.indices(request.param)
    centre = np.array(request.param).reshape(-1, *[1] * len(request.param)) // 2
    ball = ((grid - centre) ** 2).sum(axis=0) <= 3**2
    box = (grid < 4).all(axis=0)
    return np.stack([ball, box]).astype(np.uint8)


@pytest.fixture
def run_module(monkeypatch):
    """Return a function that runs ``python -m MODULE ...`` in this process; what that changes here is restored."""
    root = logging.getLogger()
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(command):
        python, option, module, *arguments = command
        assert (python, option) == ("python", "-m")
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, f"{module}.__main__", raising=False)  # runpy warns of one that was imported
        handlers, level, status = root.handlers[:], root.level, None
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
        assert not status, shlex.join(command)

    yield run
    set_determinism(None)


@pytest.fixture
def fork_cells(monkeypatch):
    """Fork the trainings of comparisons and ablations, instead of starting a new Python for each."""
    from monai_sc.benchmark import runner as processes
    from tests.forked import Forked

    monkeypatch.setattr(processes, "_start", lambda words, log, env: Forked(["-m", *words[2:]], env=env, log=log))


@pytest.fixture
def write_cells():
    """Return a function that writes what a comparison leaves when its trainings are done: none is left to run."""

    def write(out, bundle, file, names, *, seeds=(0,), **settings):
        content = {"classes": ["lung"], "cases": ["a", "b", "c"], "image_size": [30, 32]}
        for k, name in enumerate(names):
            for seed in seeds:
                cell = out / "cells" / name / f"seed-{seed}"
                cell.mkdir(parents=True)
                dice = [[(0.7 + 0.1 * k) % 1], [(0.72 + 0.1 * k) % 1], [0.71]]
                (cell / "result.json").write_text(json.dumps(content | {"dice": dice}))
        metadata = json.loads((Path(bundle) / "configs" / "metadata.json").read_text())
        common = {
            "bundle": metadata["name"],
            "bundle_version": metadata["version"],
            "dataset_dir": str(bundle / "data"),
            "quick": False,
            "overrides": {},
            "monai_sc": version("monai-sc"),
        }
        (out / file).write_text(json.dumps(common | settings))

    return write
