"""The Python blocks of README and docs, run in order: those of one file share a namespace and a working directory.

In the files of ``WITH_SHELL`` the blocks for the shell run between them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_SHELL = {ROOT / "docs" / name for name in ("start.md", "tutorials/audit.md", "tutorials/nnunet.md")}
SHELL_OR_PYTHON = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(file):
    """Return the Python blocks of a file, each below as many empty lines as stand before it, for the traceback."""
    text = file.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "file", [pytest.param(f, id=str(f.relative_to(ROOT))) for f in FILES if blocks(f) and f not in WITH_SHELL]
)
def test_python_blocks_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(file):
        exec(compile(block, file, "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("file", [pytest.param(f, id=str(f.relative_to(ROOT))) for f in sorted(WITH_SHELL)])
def test_blocks_run_in_the_order_of_a_reader(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    namespace = {"__name__": "__main__"}
    for language, block in SHELL_OR_PYTHON.findall(file.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, file, "exec"), namespace)
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", block],
            env={**os.environ, **search},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    if "--out corrected" in file.read_text(encoding="utf-8"):
        report = (tmp_path / "corrected" / "report.html").read_text(encoding="utf-8")
        assert "boundaries moved inwards" in report


def test_blocks_are_found_with_their_lines(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("text\n```python\na = 1\n```\n```bash\nls\n```\n```python\nb = 2\n```\n")
    assert blocks(file) == ["\n\na = 1\n", "\n" * 8 + "b = 2\n"]
