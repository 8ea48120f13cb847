import subprocess
import sys

import pytest

import monai_sc

# The modules import one another, so that the order counts.
CODE = """
import importlib
import sys
import monai_sc
assert not {"torch", "monai", "numpy"} & set(sys.modules)
assert monai_sc.parallel.is_main()  # as configs of bundles call it, which import the package alone
assert monai_sc.store.LabelStore and monai_sc.transforms.RandMarkovLabelNoise
for name in sorted(sys.argv[1:]):
    for module in [module for module in sys.modules if module.split(".")[0] == "monai_sc"]:
        del sys.modules[module]
    importlib.import_module(f"monai_sc.{name}")
"""


def test_modules_are_imported_when_they_are_asked_for_in_any_order():
    command = [sys.executable, "-c", CODE, *monai_sc._MODULES]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_is_listed():
    assert {*monai_sc.__all__, "parallel"} <= set(dir(monai_sc))
    for name in dir(monai_sc):
        assert getattr(monai_sc, name) is not None


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"^module 'monai_sc' has no attribute 'absent'$"):
        monai_sc.absent  # noqa: B018 # the access is what is tested
