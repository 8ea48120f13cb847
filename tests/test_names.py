from __future__ import annotations

import inspect
import sys

import pytest
from monai.bundle import ComponentLocator

from monai_sc import benchmark, correction, datasets, files, folders, functional, handlers, reports, store, transforms
from monai_sc.benchmark import ablations, methods

PACKAGES = [benchmark, correction, datasets, files, folders, functional, handlers, reports, store, transforms]
PACKAGES += [ablations, methods]


def names_of(package):
    """Return what a package exports, but for its modules."""
    return {name for name in package.__all__ if not inspect.ismodule(getattr(package, name))}


@pytest.fixture(scope="module")
def monai_names():
    """Return every name that a loaded module of MONAI itself has; importing MONAI loads all of its modules."""
    names = {name for key, module in sys.modules.items() if key.split(".")[0] == "monai" for name in vars(module)}
    assert {"LoadImaged", "RandFlipD", "StatsHandler"} <= names
    return names


@pytest.fixture(scope="module")
def locators():
    """Return the bundle parser's table of bare names, of MONAI alone and with this package."""
    alone, together = ComponentLocator(excludes="monai_sc"), ComponentLocator()
    assert alone.get_component_module_name("RandFlipd") == "monai.transforms.spatial.dictionary"
    return alone, together


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_names_are_listed_and_none_is_one_of_monai(package, monai_names, locators):
    alone, together = locators
    public = {name for name, value in vars(package).items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert public <= names_of(package)
    assert not names_of(package) & monai_names
    assert [name for name in public if alone.get_component_module_name(name) is not None] == []
    for name in public:  # one module, not a list of two: a bare name in a bundle config has one meaning
        assert together.get_component_module_name(name) == getattr(package, name).__module__
