from __future__ import annotations

import inspect
import sys

import pytest
from monai.bundle import ComponentLocator

from monai_sc import benchmark, correction, folders, handlers, store, transforms
from monai_sc.benchmark import ablations, methods

PACKAGES = (
    ablations,
    benchmark,
    correction,
    folders,
    handlers,
    methods,
    store,
    transforms,
)


def names_of(package):
    """Return what a package exports, but for its modules."""
    return {name for name in package.__all__ if not inspect.ismodule(getattr(package, name))}


NAMES = [(package, name) for package in PACKAGES for name in sorted(names_of(package))]


@pytest.fixture(scope="module")
def monai_names():
    """Return every name that a loaded module of MONAI itself has; importing MONAI loads all of its modules."""
    modules = [m for name, m in sys.modules.items() if name == "monai" or name.startswith("monai.")]
    assert len(modules) > 300
    return {name for module in modules for name in vars(module)}


@pytest.fixture(scope="module")
def locators():
    """Return the bundle parser's table of bare names, of MONAI alone and with this package."""
    return ComponentLocator(excludes="monai_sc"), ComponentLocator()


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[name for _, name in NAMES])
def test_no_public_name_is_one_of_monai(package, name, monai_names, locators):
    alone, together = locators
    assert name not in monai_names
    assert alone.get_component_module_name(name) is None
    # one module, not a list of two: a bare name in a bundle config has one meaning
    assert together.get_component_module_name(name) == getattr(package, name).__module__


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_lists_every_public_class_and_function(package):
    public = {name for name, value in vars(package).items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert names_of(package) == public


def test_names_are_compared_with_those_of_monai(monai_names, locators):
    assert {"LoadImaged", "RandFlipD", "StatsHandler"} <= monai_names
    assert locators[0].get_component_module_name("RandFlipd") == "monai.transforms.spatial.dictionary"
