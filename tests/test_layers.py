"""Imports point one way: a package uses those above it in the list, and never one below; and no module is long."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "monai_sc"

LAYERS = [  # words and names, then from the equations to the command line
    "wording",
    "names",
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


def lines_of_code(file):
    """Return how many lines of a file are neither blank, comment nor docstring."""
    text = file.read_text(encoding="utf-8")
    told = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            told.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    empty = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in empty]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - told)


def test_no_module_has_more_than_300_lines_of_code():
    assert {str(file): n for file in ROOT.rglob("*.py") if (n := lines_of_code(file)) > 300} == {}


def test_lines_of_code_are_counted(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""Two\nlines."""\n\n# one\nx = (\n    1\n)\n\n\ndef f():\n    """More."""\n    return """a\nb"""\n'
    )
    assert lines_of_code(file) == 6


def test_imports_are_found_wherever_they_stand(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "from monai_sc import data\n"
        "if TYPE_CHECKING:\n    from monai_sc.reports import x\n"
        "def f():\n    import monai_sc.handlers.resume\n"
    )
    assert imported(file) == [("data", 2), ("handlers", 6)]
