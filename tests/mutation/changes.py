"""The small changes that are made to a source file: the operators of mutmut, and three more."""

from __future__ import annotations

import ast
import collections
import difflib
import random
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

__all__ = ["Change", "sample_changes"]


@dataclass
class Change:
    """A changed source, and where it differs."""

    code: str
    span: range  # lines of the expression that was changed
    before: str
    after: str


def negated(node: cst.If | cst.While):
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(operator=cst.Not(), expression=test))


def left_out(node: cst.Raise | cst.Expr):
    if isinstance(node, cst.Raise) or m.matches(node, m.Expr(m.Call())):
        yield cst.Pass()


def without_else(node: cst.If):
    if node.orelse:
        yield node.with_changes(orelse=None)


OPERATORS = [
    *mutation_operators,
    (cst.If, negated),
    (cst.While, negated),
    (cst.If, without_else),
    (cst.Raise, left_out),
    (cst.Expr, left_out),
]

# What no test can be asked to notice: types, texts of errors, docstrings, and what says only what holds anyway.
SKIPPED = (
    m.Annotation()
    | m.Decorator()
    | m.ImportFrom()
    | m.Expr(m.SimpleString() | m.ConcatenatedString())
    | m.Arg(keyword=m.Name("strict"))
    | m.Assign(targets=[m.AssignTarget(m.Name("__all__"))])
    | m.Assign(value=m.Call(func=m.Name("TypeVar")))
    | m.If(test=m.Name("TYPE_CHECKING"))
    | m.Param(default=~(m.Name() | m.BaseNumber() | m.BaseString()) & m.BaseExpression())
)
ONLY_INSIDE = m.Call(func=m.Name("zip") | m.Name("len") | m.Name("isinstance"))


class Finder(cst.CSTVisitor):
    """Collect ``(kind, node, changed node, lines)`` of all changes."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found = []

    def on_visit(self, node):
        if m.matches(node, SKIPPED):
            return False
        if m.matches(node, m.Call(func=m.Name("cast"))):
            node.args[1].visit(self)
            return False
        if not m.matches(node, ONLY_INSIDE):
            place = self.get_metadata(PositionProvider, node, None)
            for kind, operator in OPERATORS:
                if isinstance(node, kind):
                    head = place.start.line if isinstance(node, (cst.If, cst.While)) else place.end.line
                    lines = range(place.start.line, head + 1)
                    self.found += [(operator.__name__, node, changed, lines) for changed in operator(node)]
        return not isinstance(node, cst.Raise)


def sample_changes(path: Path, number: int, seed: str) -> tuple[int, list[Change]]:
    """Return how many changes there are, and ``number`` of them (all for 0); the kinds of change take turns."""
    source = path.read_text()
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = Finder()
    wrapper.visit(finder)
    kinds = collections.defaultdict(list)
    for change in finder.found:
        kinds[change[0]].append(change)
    for changes in kinds.values():
        random.Random(seed).shuffle(changes)
    sample = []
    seen = {source}
    while any(kinds.values()) and not 0 < number <= len(sample):
        for kind in [kind for kind in sorted(kinds) if kinds[kind]]:
            _, node, changed, lines = kinds[kind].pop()
            code = wrapper.module.deep_replace(node, changed).code
            if code not in seen and _is_python(code) and not 0 < number <= len(sample):
                diff = list(difflib.ndiff(source.splitlines(), code.splitlines()))
                before, after = (" ".join(d[2:].strip() for d in diff if d.startswith(sign)) for sign in ("- ", "+ "))
                sample.append(Change(code, lines, before, after))
            seen.add(code)
    return len(finder.found), sample


def _is_python(code: str) -> bool:
    try:
        compile(ast.parse(code), "", "exec")
    except SyntaxError:
        return False
    return True
