import json
import os

import pytest

from monai_sc.__main__ import main
from monai_sc.reports import page

CALLS = {
    "audit": ["audit", "--labels=labels", "--clean=clean", "--out=out", "--images=labels"],
    "correct": ["correct", "--predictions=predictions", "--labels=labels", "--clean=clean", "--out=out"],
}
WRITTEN = {"audit": "audit.json", "correct": "manifest.jsonl"}
FILES = {"report.html", "report_data.json", "report_cases.csv"}


@pytest.fixture
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    return workplace


@pytest.mark.parametrize("command", CALLS)
def test_a_command_ends_with_its_report(here, capsys, command):
    assert main(CALLS[command]) == 0
    assert capsys.readouterr().out.endswith(f"Report: {here / 'out' / 'report.html'}\n")
    before = (here / "out" / "report.html").read_text(encoding="utf-8")
    assert main(["report", "out"]) == 0
    assert (here / "out" / "report.html").read_text(encoding="utf-8") == before
    assert {file.name for file in (here / "out").iterdir()} >= FILES


@pytest.mark.parametrize("command", CALLS)
def test_output_is_json_alone_without_a_report(here, capsys, command):
    assert main([*CALLS[command], "--json", "--no-report"]) == 0
    assert "classes" in json.loads(capsys.readouterr().out)
    assert (here / "out" / WRITTEN[command]).is_file()
    assert not {file.name for file in (here / "out").iterdir()} & FILES


@pytest.mark.parametrize("command", CALLS)
def test_a_report_that_fails_leaves_the_result(here, capsys, monkeypatch, command):
    def full(*_, **__):
        raise OSError(f"{os.path.join('out', 'report.html')} could not be written: No space left on device.")

    monkeypatch.setattr(page, "write_page", full)
    assert main([*CALLS[command], "--quiet"]) == 1
    what = {"audit": "The results are in out", "correct": "The corrected labels are in out"}[command]
    assert capsys.readouterr().err == (
        f"Error: {what}, but no report: out/report.html could not be written: No space left on device; "
        "`python -m monai_sc report out` writes it.\n"
    )
    assert (here / "out" / WRITTEN[command]).is_file()
    monkeypatch.undo()
    assert main(["report", str(here / "out"), "--quiet"]) == 0


def test_images_that_are_not_there_are_noticed_before_anything_is_written(here, capsys):
    assert main([*CALLS["correct"], "--images=absent"]) == 2
    assert capsys.readouterr().err == "Error: absent is not a folder.\n"
    assert not (here / "out").exists()
