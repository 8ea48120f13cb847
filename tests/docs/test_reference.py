"""The reference holds what is public: every name that a package exports, and no other of that package."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import monai_sc

PAGES = sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.rst"))
DIRECTIVE = re.compile(r"^\.\. auto(module|class|function|data):: ([\w.]+)", re.MULTILINE)
PACKAGES = [*sorted({*dir(monai_sc)} & monai_sc._MODULES), "benchmark.ablations", "benchmark.methods"]


def found(name):
    """Return what a dotted name stands for."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def exported(package):
    """Return what a package exports by name, but for its modules and for the other names of a transform."""
    module = import_module(f"monai_sc.{package}")
    values = {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in values.items()
        if not inspect.ismodule(value) and not (inspect.isclass(value) and value.__name__ != name)
    }


LISTED = [(kind, name, page) for page in PAGES for kind, name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_in_the_reference(package):
    modules = [name for kind, name, _ in LISTED if kind == "module"]
    assert modules.count(f"monai_sc.{package}") == 1
    by_themselves = [found(name) for kind, name, _ in LISTED if kind != "module"]
    missing = [
        name
        for name, value in exported(package).items()
        # the members of a module: classes and functions with a docstring of their own; constants need their line
        if not ((inspect.isclass(value) or inspect.isroutine(value)) and value.__doc__)
        and not any(value is other for other in by_themselves)
    ]
    assert not missing


def test_what_the_reference_lists_by_itself_is_public_and_of_its_kind():
    for kind, name, _ in LISTED:
        if kind != "module":
            assert not name.rpartition(".")[2].startswith("_")
            is_type = "class" if inspect.isclass(found(name)) else "function" if callable(found(name)) else "data"
            assert kind == is_type or name.endswith(".Case"), name


def test_every_package_and_every_page_is_listed():
    assert sorted(name for kind, name, _ in LISTED if kind == "module") == sorted(f"monai_sc.{n}" for n in PACKAGES)
    index = (Path(__file__).parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^api/(\w+)$", index, re.MULTILINE)) == [page.stem for page in PAGES]
