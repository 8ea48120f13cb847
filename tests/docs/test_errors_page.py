"""Every message that docs/errors.md quotes is one of the package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
TERM = re.compile(r"^`(.+)`\n: ", re.MULTILINE)
VALUE = "\0"  # what an f-string takes from a variable


def quoted(page):
    """Return the messages of a page: the terms of its definition lists."""
    return TERM.findall(page)


@cache
def messages():
    """Return every string of the package, with a mark in place of each value."""
    found = set()
    for file in (ROOT / "monai_sc").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def is_a_message(text):
    """Say whether a message begins as ``text``, or is it: ``<name>`` is a value, and ``…`` at the end is the rest."""
    beginning = text.removesuffix("…").rstrip()
    pattern = re.escape(VALUE).join(re.escape(part) for part in re.split(r"<[a-z]+>", beginning))
    match = re.compile(pattern).match if text.endswith("…") else re.compile(pattern).fullmatch
    return any(match(message) for message in messages())


def test_the_page_quotes_messages_of_the_package_once():
    texts = quoted(PAGE)
    assert [text for text in texts if not is_a_message(text)] == []
    assert len(texts) == len(set(texts)) >= 20
    for text in texts:  # one with another word would be noticed
        parts = re.split(r"(<[a-z]+>|[^\w<]+)", text)
        longest = parts.index(max((part for part in parts if part.isalpha()), key=len))
        assert not is_a_message("".join([*parts[:longest], "other", *parts[longest + 1 :]]))
