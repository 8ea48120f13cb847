"""Imports point one way: a package uses those above it in the list, and never one below."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "monai_sc"

LAYERS = [  # words, then from the equations to the command line
    "wording",
    "functional",
    "parallel",
    "losses",
    "networks",
    "engines",
    "correction",
    "transforms",
    "data",
    "handlers",
    "reports",
    "comparison",
    "commands",
    "__main__",
]


def imported(file):
    """Return the packages of ours that a file imports at run time, each with the line."""
    found = []

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "monai_sc":
            names = [f"monai_sc.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found.extend((name.split(".")[1], node.lineno) for name in names if name.startswith("monai_sc."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found


def layer(file):
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_package_has_a_layer():
    assert {layer(file) for file in ROOT.rglob("*.py")} == {*LAYERS, "__init__"}


@pytest.mark.parametrize("name", LAYERS)
def test_imports_point_one_way(name):
    allowed = {*LAYERS[: LAYERS.index(name) + 1]}
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {package}"
        for file in ROOT.rglob("*.py")
        if layer(file) == name
        for package, line in imported(file)
        if package not in allowed
    ]
    assert not wrong


def test_imports_are_found_wherever_they_stand(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "from monai_sc import data\n"
        "if TYPE_CHECKING:\n    from monai_sc.reports import x\n"
        "def f():\n    import monai_sc.handlers.resume\n"
    )
    assert imported(file) == [("data", 2), ("handlers", 6)]
