"""The diffs in CONTRIBUTING.md fit the code as it is now."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## To add a (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
DIFFS = {title: "".join(re.findall(r"^```diff\n(.*?)^```$", body, re.M | re.S)) for title, body in SECTIONS.items()}
del DIFFS["command"]  # which has none


def files_of(diff):
    """Return for each file of a diff whether it is new, and its lines."""
    parts = re.findall(r"^--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", diff, re.MULTILINE | re.DOTALL)
    return {name: (before == "/dev/null", lines.splitlines()) for before, name, lines in parts}


@pytest.mark.parametrize("title", DIFFS)
def test_diff_fits_the_code(title):
    files = files_of(DIFFS[title])
    for name, (is_new, lines) in files.items():
        assert (ROOT / name).parent.is_dir()
        assert (ROOT / name).exists() != is_new, name
        context = [line[1:] for line in lines if not line.startswith("+") and line.strip() != "..."]
        assert not is_new or not context
        assert is_new or not {*context} - {*(ROOT / name).read_text(encoding="utf-8").splitlines()}, name
    new = {name.removesuffix(".py").replace("/", ".") for name, (is_new, _) in files.items() if is_new}
    imports = re.findall(r"^\+from (monai_sc\S+) import (.*)$", DIFFS[title], re.MULTILINE)
    assert imports
    for module, names in imports:
        assert module in new or not {*names.split(", ")} - {*dir(import_module(module))}, module
    counted = re.findall(r"^ (\S+) +\| +\d+ [+-]+$", SECTIONS[title], re.MULTILINE)
    assert sorted({*counted} - {"CHANGELOG.md"}) == sorted(files)
