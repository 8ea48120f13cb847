"""The commands of the section "Try it" in the README of each bundle, run in order in a copy of the bundle's folder."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.bundles.conftest import EPOCHS, NUM_CASES

SECTION = re.compile(r"^## Try it.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SMALLER = {"--num_cases": NUM_CASES}
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text):
    """Return the commands of the one block of the section, as lists of words."""
    sections = SECTION.findall(text)
    assert len(sections) == 1, "the README must have one section whose heading begins with 'Try it'"
    blocks = BLOCK.findall(sections[0])
    assert len(blocks) == 1, "the section must have one block of bash"
    return [shlex.split(line) for line in blocks[0].replace("\\\n", "").splitlines()]


@pytest.mark.slow
def test_commands_of_the_readme_run_in_a_copy_of_the_folder(bundle, run_module, monkeypatch):
    monkeypatch.chdir(bundle)
    shipped = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    for command in commands((bundle / "docs" / "README.md").read_text(encoding="utf-8")):
        for option, value in SMALLER.items():  # in a test, commands need only run
            if option in command:
                command[command.index(option) + 1] = str(value)
        if "--epochs_per_round" in command:
            command[command.index("--epochs_per_round") + 1] = str(EPOCHS.get(bundle.name, 2))
        run_module(command)
    assert {file: file.read_bytes() for file in shipped} == shipped

    def written(name):
        (file,) = bundle.rglob(name)
        assert file.stat().st_size > 0
        return file

    results = json.loads(written("results.json").read_text(encoding="utf-8"))
    rounds = [one["round"] for one in results["rounds"]]
    assert rounds in ([0], [0, 1])
    written("report.png")
    assert "test_mean_dice" in written("metrics.csv").read_text(encoding="utf-8")
    predictions = [file for file in bundle.rglob("predictions/**/*") if file.is_file()]
    assert predictions
    assert all(file.stat().st_size > 0 for file in predictions)
