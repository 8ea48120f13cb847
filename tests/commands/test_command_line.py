"""Every command as a user calls it: its outputs and its exit status.

One does its work in a new Python, others are forked. ``tests/test_package.py`` tests the imports.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import itk
import numpy as np
import pytest
from PIL import Image
from rich.table import Table

from monai_sc.__main__ import main
from monai_sc.commands.common import print_table
from monai_sc.datasets.stand_ins import STAND_INS
from tests.contents import contents
from tests.forked import run_forked

ROOT = Path(__file__).parents[2]

HAPPY = {  # the arguments of a call in the folder `workplace`, and what its result is to hold
    "ablate": (
        ["noise-level", "--bundle=bundle", "--out=level", "--steps=3", "--methods=noisy"],
        {"ablation": "noise-level"},
    ),
    "audit": (["--labels=labels", "--clean=clean", "--out=audit"], {"unit": "mm"}),
    "compare": (["--bundle=bundle", "--out=comparison", "--methods=noisy,sc"], {"against": "sc", "classes": ["lung"]}),
    "correct": (["--predictions=predictions", "--labels=labels", "--clean=clean", "--out=corrected"], {"cases": 4}),
    "prepare": (["jsrt", "--source=raw", "--out=data", "--partial", "--size", "16", "16"], {"was_complete": False}),
    "report": (["audited", "--out=page"], {"schema": "monai_sc report 1", "subject": "the labels"}),
    "restore": (["run", "--round=0"], {"current": 0, "classes": ["lung"]}),
    "simulate": (["masks", "noisy", "--num-steps=2", "--expansion-prob=0.8", "--march-prob=0.5"], {"cases": 2}),
    "stand-in": (["isic2017", "--out=made", "--cases", "1", "1", "1"], {"name": "isic2017"}),
}

# What is wrong for the parser comes first, which refuses it at once; then what is wrong with files.
WRONG = {
    "ablate": [
        (["noise"], "Argument NAME: invalid choice: 'noise'"),
        (["holes", "--out=o"], "The following arguments are required: --bundle; see "),
        (["holes", "--bundle=bundle", "--out=o", "--number=1,2,3"], "--number must be low,high, got 1,2,3."),
    ],
    "audit": [
        (["--labels=labels"], "The following arguments are required: --clean; see "),
        (["--labels=labels", "--clean=clean", "--tolerance=x"], "Argument --tolerance: invalid float value: 'x'; see "),
        (["--labels=labels", "--clean=absent"], "absent is not a folder."),
    ],
    "compare": [
        (["--bundle=bundle"], "The following arguments are required: --out; see "),
        (["--bundle=bundle", "--out=o", "--set=rate"], "Argument --set: must be ID=VALUE, got rate; see "),
        (["--bundle=bundle", "--out=o", "--methods=magic"], "method must be one of noisy, gce, "),
    ],
    "correct": [
        (["labels"], "The following arguments are required: --labels, --clean, --out; see "),
        ([*HAPPY["correct"][0], "--kind=mask"], "Argument --kind: invalid choice: 'mask'"),
        ([*HAPPY["correct"][0], "--clean=absent"], "absent is not a folder."),
    ],
    "prepare": [
        (["coco", "--source=raw", "--out=data"], "Argument NAME: invalid choice: 'coco'"),
        (["jsrt", "--source=raw", "--out=data", "--split", "6", "2"], "Argument --split: expected 3 arguments; see "),
        (["jsrt", "--source=absent", "--out=data"], "source must be the folder of the data set, got "),
    ],
    "report": [
        ([], "The following arguments are required: RUN; see "),
        (["run", "--images"], "Argument --images: expected one argument; see "),
        (["masks"], "masks must be the folder of a run that has ended, with results.json, or one that "),
    ],
    "restore": [
        ([], "The following arguments are required: STORE; see "),
        (["run", "--round=last"], "Argument --round: invalid int value: 'last'; see "),
        (["masks"], "masks must be a label store, or a folder with one as labels, but has no store.json; "),
    ],
    "simulate": [
        (["masks"], "The following arguments are required: OUT; see "),
        (["masks", "noisy", "--unit=cm"], "Argument --unit: invalid choice: 'cm'"),
        (["masks", "noisy", "--preset=x"], "preset must be one of jsrt-expand, "),
    ],
    "stand-in": [
        (["jsrt"], "The following arguments are required: --out; see "),
        (["jsrt", "--out=made", "--cases", "1"], "Argument --cases: expected 3 arguments; see "),
        (["jsrt", "--out=masks"], "out must be a folder that is empty or does not exist, got masks."),
    ],
    "completion": [
        ([], "The following arguments are required: SHELL; see "),
        (["fish"], "Argument SHELL: invalid choice: 'fish'"),
        (["bash", "--json"], "Unrecognized arguments: --json; see "),
    ],
}


def call(folder, *arguments, code=None):
    """Call the command line from a folder."""
    command = [sys.executable, *(["-m", "monai_sc"] if code is None else ["-c", code]), *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=280, check=False
    )


def forked(folder, *arguments):
    return run_forked(["-m", "monai_sc", *arguments], cwd=folder)


KINDS = ["noise-level", "validation-size", "confidence", "holes"]


@pytest.mark.parametrize(
    "words", [*([command] for command in WRONG), *(["ablate", kind] for kind in KINDS)], ids=" ".join
)
def test_help_has_an_example(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    told, noted = capsys.readouterr()
    assert (ended.value.code, noted) == (0, "")
    assert told.startswith(f"usage: python -m monai_sc {' '.join(words)} [-h] ")
    assert "\nexample:\n" in told
    if words not in (["ablate"], ["completion"]):  # the kinds have the options of the first
        assert re.search(r"^output:\n  --json .*\n  --quiet .*\n  --debug ", told, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", HAPPY)
def test_standard_output_is_json_alone(workplace, command):
    arguments, expected = HAPPY[command]
    if command == "prepare":
        STAND_INS["jsrt"](workplace / "raw", num_cases={"train": 1, "clean": 1, "test": 1})
    words = [command, *arguments, "--json"]
    start = call if command == "correct" else forked
    done = start(workplace, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {key: told[key] for key in expected} == expected
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


ALL_QUIET = """
import io, sys
import monai_sc  # before all others, as in a notebook
from monai_sc.__main__ import main
from monai_sc.transforms import LoadLabel
LoadLabel()("masks/" + sorted(__import__("os").listdir("masks"))[0])
for call in sys.argv[1:]:
    assert main([*call.split(), "--quiet"]) == 0
"""


@pytest.mark.slow
def test_quiet_commands_print_nothing_at_all(workplace):
    """Nor do MONAI, pydicom, ITK and Pillow, in this process or in its workers."""
    for k in range(2):
        (workplace / "pictures").mkdir(exist_ok=True)
        Image.fromarray(np.eye(20, dtype=np.uint8)).save(workplace / "pictures" / f"{k}.png")
        itk.imwrite(itk.image_from_array(np.eye(20, dtype=np.uint8)), str(workplace / "pictures" / f"{k}.tif"))
        itk.imwrite(itk.image_from_array(np.ones((5, 6, 7), np.uint8)), str(workplace / "pictures" / f"{k}.nrrd"))
    calls = [" ".join([command, *HAPPY[command][0]]) for command in ("audit", "correct")]
    calls += ["report audit --out=page"]
    calls += ["simulate pictures others --num-steps=2 --expansion-prob=0.8 --march-prob=0.5 --workers=2"]
    done = call(workplace, *calls, code=ALL_QUIET)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


CALLS = [
    pytest.param(command, *one, id=f"{command} {' '.join(one[0])}"[:60]) for command in WRONG for one in WRONG[command]
]


@pytest.mark.parametrize(("command", "arguments", "message"), CALLS)
def test_wrong_use_is_one_sentence(tmp_path, monkeypatch, capsys, request, command, arguments, message):
    reads_files = (arguments, message) in WRONG[command][2:]
    folder = request.getfixturevalue("workplace") if reads_files else tmp_path
    monkeypatch.chdir(folder)
    before = contents(folder)
    assert main([command, *arguments]) == 2
    told, noted = capsys.readouterr()
    assert told == ""
    assert noted.startswith(f"Error: {message}")
    assert noted.endswith(".\n")
    assert noted.count("\n") == 1
    assert contents(folder) == before


def test_debug_shows_where_an_error_came_from(capsys):
    assert main(["audit", *WRONG["audit"][0][0], "--debug"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last):\n")
    assert f"\nError: {WRONG['audit'][0][1]}" in told


def test_help_lists_every_command_and_exit_status(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    for name in [*WRONG, "0 ", "1 ", "2 ", "130 "]:
        assert re.search(rf"^ +{name}", told, re.MULTILINE), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The following arguments are required: COMMAND; see python -m monai_sc --help."),
        (["correkt"], "Argument COMMAND: invalid choice: 'correkt'"),
    ],
    ids=["none", "unknown"],
)
def test_call_without_a_command_is_refused(capsys, arguments, message):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"Error: {message}")


def test_help_loads_neither_pytorch_nor_monai(tmp_path):
    code = """
import sys
from monai_sc.__main__ import main
for command in sys.argv[1:]:
    try:
        main([command, "--help"])
    except SystemExit:
        pass
sys.exit(" ".join({"torch", "monai", "numpy", "scipy", "matplotlib"} & set(sys.modules)))
"""
    done = call(tmp_path, *WRONG, code=code)
    assert done.stderr.strip() == ""


def test_script_is_the_module(monkeypatch, capsys):
    assert '[project.scripts]\nmonai-sc = "monai_sc.__main__:main"\n' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(sys, "argv", ["/bin/monai-sc", "restore"])
    assert main() == 2
    told = "Error: The following arguments are required: STORE; see monai-sc restore --help.\n"
    assert capsys.readouterr().err == told


def test_page_names_every_command():
    page = (ROOT / "docs" / "command_line.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) >= set(WRONG)


@pytest.mark.parametrize("command", [["--help"], ["completion", "bash"]], ids=["short", "long"])
def test_reader_who_has_enough_is_no_error(command):
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, "-m", "monai_sc", *command]
    with os.fdopen(write, "w") as output:
        done = subprocess.run(call, stdout=output, stderr=subprocess.PIPE, text=True, timeout=280, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_words_that_the_terminal_has_not_are_no_error(monkeypatch):
    written = io.BytesIO()
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=lambda _: print("2 cm²"), when_stopped="")
    monkeypatch.setattr("monai_sc.commands.parser.make_parser", lambda _: parser)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main([]) == 0
    assert written.getvalue() == b"2 cm\\xb2\n"


def test_cells_of_a_table_are_no_markup(capsys):
    table = Table("[/a]", title=":smile:")
    table.add_row("[b]x")
    print_table(table)
    told = capsys.readouterr().out
    assert all(text in told for text in ("[/a]", ":smile:", "[b]x"))
