"""The Python blocks of README and docs, run in order: those of one file share a namespace and a working directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(file):
    """Return the Python blocks of a file, each below as many empty lines as stand before it, for the traceback."""
    text = file.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("file", [pytest.param(f, id=str(f.relative_to(ROOT))) for f in FILES if blocks(f)])
def test_python_blocks_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(file):
        exec(compile(block, file, "exec"), namespace)


def test_blocks_are_found_with_their_lines(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("text\n```python\na = 1\n```\n```bash\nls\n```\n```python\nb = 2\n```\n")
    assert blocks(file) == ["\n\na = 1\n", "\n" * 8 + "b = 2\n"]
