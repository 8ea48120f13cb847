"""Imports point one way: a room uses those above it in the list, never one below, and no modules import in a circle."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "monai_sc"

# Words and names, then from the equations to the command line.
LAYERS = ["wording", "names", "functional", "parallel", "correction", "files", "transforms", "store", "handlers"]
LAYERS += ["folders", "datasets", "reports", "benchmark", "commands", "__main__"]


def name_of(file, root):
    """Return the dotted name of the module in a file."""
    return ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(file, modules):
    """Return the modules of ours that a file imports at run time, wherever the import stands."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found & {*modules}


def graph_of(root):
    """Return for each module of a package those that it imports."""
    files = {name_of(file, root): file for file in root.rglob("*.py")}
    return {name: imported(file, files) - {root.name} for name, file in files.items()}


GRAPH = graph_of(ROOT)


def test_every_room_has_a_layer():
    assert {name.split(".")[1] for name in GRAPH if "." in name} == {*LAYERS}


def test_imports_point_one_way():
    layers = {name: LAYERS.index(name.split(".")[1]) for name in GRAPH if "." in name}
    assert not [(name, other) for name, others in GRAPH.items() for other in others if layers[other] > layers[name]]


def test_no_modules_import_in_a_circle():
    assert [*TopologicalSorter(GRAPH).static_order()]


def test_circles_are_found_wherever_the_imports_stand(tmp_path):
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("def f():\n    from house import b\n")
    (package / "b.py").write_text("from house.a import x\n")
    with pytest.raises(CycleError):
        [*TopologicalSorter(graph_of(package)).static_order()]
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import x\n")
    assert graph_of(package) == {"house": set(), "house.a": {"house.b"}, "house.b": set()}
