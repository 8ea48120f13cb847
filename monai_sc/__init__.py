"""Simulate annotation error in segmentation labels, and correct it: a MONAI plugin."""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from monai_sc import (
        benchmark,
        correction,
        datasets,
        files,
        folders,
        functional,
        handlers,
        reports,
        store,
        transforms,
    )

__all__ = [
    "__version__",
    "benchmark",
    "correction",
    "datasets",
    "files",
    "folders",
    "functional",
    "handlers",
    "reports",
    "store",
    "transforms",
]

# MONAI 1.6 says in every LoadImage that it has no GPU decoder of DICOM files, where pydicom is installed.
warnings.filterwarnings("ignore", "NvImgCodecPydicomReader: nvImageCodec decoder plugin did not register")
logging.getLogger("monai.data.nvimgcodec_pydicom_plugin").setLevel(logging.ERROR)

_MODULES = {*__all__, "parallel"} - {"__version__"}


def __getattr__(name: str) -> Any:
    """Import a module when it is first asked for: all of them take seconds, with PyTorch and MONAI."""
    if name == "__version__":
        from importlib.metadata import version

        return version("monai-sc")
    if name in _MODULES:
        return import_module(f"monai_sc.{name}")
    raise AttributeError(f"module 'monai_sc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
