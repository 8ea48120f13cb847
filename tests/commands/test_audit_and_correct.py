"""The two commands one after the other: an audit names the correction, which says what was done and what to check."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from monai_sc.__main__ import main

BAD = 9  # the case whose prediction is far off


def disc(k, wider=0.0, at=0.0):
    """Return the distance within a disc, in pixels, whose edge wavers where it is drawn wider."""
    y, x = np.mgrid[:72, :72] - 36.0
    x = x - at
    wave = 1.5 * np.sin(5 * np.arctan2(y, x) + k) if wider else 0.0
    return 13 + k % 4 + wider - (np.hypot(y, x) + wave)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Discs that were drawn four pixels too wide, and predictions that are right but for one case."""
    monkeypatch.chdir(tmp_path)
    for name in ("labels", "clean", "predictions"):
        (tmp_path / name).mkdir()
    for k in range(10):
        Image.fromarray(((disc(k, 4) >= 0) * 255).astype(np.uint8)).save(f"labels/{k}.png")
        if k < 6:
            Image.fromarray(((disc(k) >= 0) * 255).astype(np.uint8)).save(f"clean/{k}.png")
        logits = disc(k, at=9.0 if k == BAD else 0.0)
        np.savez(f"predictions/{k}.npz", logits=logits[None, None].astype(np.float32))
    return tmp_path


def test_audit_ends_with_a_correction_that_needs_no_network(here, capsys):
    audit = ["audit", "--labels", "labels", "--clean", "clean", "--names", "the disc", "--tolerance", "1.5"]
    assert main([*audit, "--ignore-value", "3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no network is needed" in line]
    words = shlex.split(line[line.index("python") :])
    assert words[:4] == ["python", "-m", "monai_sc", "correct"]
    assert main([*words[3:], "--no-report"]) == 0
    printed = capsys.readouterr().out
    assert "Class the disc: labels moved by -3." in printed
    assert " voxels (rule: the " in printed
    assert "Class the disc: on 6 held-out cases with both labels, each judged by the others: Dice ." in printed
    assert "network" not in printed
    settings = json.loads((here / "corrected" / "report.json").read_text())["settings"]
    assert (settings["tolerance"], settings["ignore_value"], settings["class_names"]) == (1.5, 3, ["the disc"])


def test_audit_of_sound_labels_names_no_correction(here, capsys):
    assert main(["audit", "--labels", "clean", "--clean", "clean"]) == 0
    assert "correct" not in capsys.readouterr().out


def test_a_case_that_is_not_believed_is_listed(here, capsys):
    correct = ["correct", "--labels=labels", "--clean=clean", "--predictions=predictions", "--out=out"]
    assert main(correct) == 0
    printed = capsys.readouterr().out
    assert "bias of the labels in voxels" in printed
    assert "Class 255: the network's own bias, which is not that of the labels: " in printed
    assert (
        " were corrected by the network; the originals are untouched. 1 case to check, listed in report.json.\n"
        in printed
    )
    report = json.loads((here / "out" / "report.json").read_text())
    (entry,) = report["to_check"]
    assert (entry["case"], entry["class"]) == (f"{BAD}.png", "255")
    assert entry["reason"].startswith("the network's label differs from the moved one by more than in any clean case")
    rows = {row["case"]: row for row in map(json.loads, (here / "out" / "manifest.jsonl").read_text().splitlines())}
    assert rows[f"{BAD}.png"]["to_check"] == {"255": entry["reason"]}
    assert rows[f"{BAD}.png"]["sources"] == {"255": "move"}
    assert rows["8.png"]["sources"] == {"255": report["moved"]["255"]}
    assert (rows["0.png"]["source"], rows["8.png"]["source"]) == ("clean", "corrected")
    out = np.asarray(Image.open(here / "out" / f"{BAD}.png")) > 0
    truth = disc(BAD) >= 0
    assert 2 * (out & truth).sum() / (out.sum() + truth.sum()) > 0.93
    page = json.loads((here / "out" / "report_data.json").read_text())
    assert page["headline"].endswith("1 case to check, listed below.")
    first = page["check"][0]
    assert (first["what"], first["why"], first["cases"]) == ("not believed", entry["reason"], [f"{BAD}.png"])
    assert "not believed" in (here / "out" / "report.html").read_text(encoding="utf-8")
    assert page["subject"] == "the labels"
    assert list(page["classes"]["255"]["dice"]) == ["6 held-out cases, labels given", "6 held-out cases, corrected"]
    assert page["provenance"]["shape weight"] == "0.5"


def test_network_alone_is_named_where_no_case_has_both_labels(here, capsys):
    for file in (here / "clean").iterdir():
        file.rename(file.with_name(f"other{file.name}"))
        prediction = here / "predictions" / f"{file.stem}.npz"
        prediction.rename(prediction.with_name(f"other{prediction.name}"))
    for k in range(6):
        (here / "labels" / f"{k}.png").unlink()
    correct = ["correct", "--labels=labels", "--clean=clean", "--out=out"]
    assert main(correct) == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: labels and clean must have at least one case in common if there are no predictions")
    assert told.count("\n") == 1
    assert main([*correct, "--predictions=predictions", "--no-report"]) == 0
    printed = capsys.readouterr().out
    assert "bias of the network in voxels" in printed
    assert "No case has both labels; the network that learnt from them is biased in no class." in printed


def test_one_case_with_both_labels_is_said_to_carry_nothing(here, capsys):
    for k in range(1, 6):
        (here / "clean" / f"{k}.png").unlink()
    assert main(["correct", "--labels=labels", "--clean=clean", "--out=out"]) == 0
    printed = capsys.readouterr().out
    assert "Class 255: labels stay: a single case has both labels, so no other case can judge a shift" in printed
    assert "All labels were left as they were given, but those of the 1 case with a clean label" in printed
    assert "corrected" not in printed.replace(str(here), "")
    cases = json.loads((here / "out" / "report_data.json").read_text())["cases"]
    assert {case["source"] for case in cases} == {"clean", "given"}
