import json
from errno import ENOSPC

import pytest

from monai_sc import __main__ as command_line
from monai_sc.datasets import prepared_cases
from monai_sc.datasets.stand_ins import STAND_INS

NUM_CASES = {"train": 1, "clean": 1, "test": 1}


def run(*arguments):
    return command_line.main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name in ("isic2017", "brats2020", "cityscapes", "lidc_idri"):
        STAND_INS[name](folder / name, num_cases=NUM_CASES)
    return folder


@pytest.fixture
def isic(written, tmp_path):
    return ["prepare", "isic2017", "--source", written / "isic2017", "--out", tmp_path / "out", "--partial"]


def test_table_tells_what_was_made(isic, tmp_path, capsys):
    assert run(*isic) == 0
    told = capsys.readouterr().out
    for split in NUM_CASES:
        assert f"│ {split:5} │ 1     │" in told
    assert "Not in the source: 1999 of the 2000 images of ISIC-2017_Training_Data; 149 of the " in told
    assert f"The prepared data set is in {tmp_path / 'out'}, with its splits in prepared.json." in told
    assert run(*isic) == 0
    assert capsys.readouterr().out.startswith(f"Nothing to do: {tmp_path / 'out'} is complete.\n")


def test_result_as_json(isic, tmp_path, capsys):
    assert run(*isic, "--json") == 0
    output = capsys.readouterr()
    told = json.loads(output.out)
    assert "Traceback" not in output.err
    assert told == {
        "out": str(tmp_path / "out"),
        "counts": NUM_CASES,
        "left_out": {},
        "missing": told["missing"],
        "was_complete": False,
    }
    assert len(told["missing"]) == 3


OPTIONS = [
    (
        "brats2020",
        ["--modalities", "t1", "t2", "--size", "8", "9", "10", "--seed", "4"],
        {"options": {"modalities": ["t1", "t2"]}, "size": [8, 9, 10], "seed": 4, "on_bad_case": "raise"},
    ),
    (
        "cityscapes",
        ["--min-car-share", "0.5", "--native", "--on-bad-case", "skip"],
        {"options": {"min_car_share": 0.5}, "size": None, "on_bad_case": "skip"},
    ),
    (
        "lidc_idri",
        ["--agreement", "2", "--noisy", "annotator-1", "--gaps", "--size", "16", "16"],
        {"options": {"agreement": 2, "noisy": "annotator-1", "gaps": True}, "size": [16, 16], "partial": True},
    ),
]


@pytest.mark.parametrize(("name", "given", "expected"), OPTIONS, ids=[name for name, _, _ in OPTIONS])
def test_every_option_reaches_the_preparation(written, tmp_path, name, given, expected, capsys):
    arguments = ["--source", written / name, "--out", tmp_path / "out", "--partial", "--quiet", *given]
    code = run("prepare", name, *arguments)
    if name == "cityscapes":  # none of its cars is that large
        assert code == 2
        assert "with a share of car pixels of at least 0.5, got none" in capsys.readouterr().err
        assert run("prepare", name, *["0.001" if a == "0.5" else a for a in arguments]) == 0
        expected = {**expected, "options": {"min_car_share": 0.001}}
    else:
        assert code == 0
    record = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert {key: record[key] for key in expected} == expected
    assert prepared_cases(tmp_path / "out", "train")


REFUSED = [
    (["--size", "8"], "Error: size must be 2 whole numbers over 0 for isic2017, got (8,).\n"),
    (["--size", "8", "8", "--native"], "Error: size must be left out where images keep their own, got (8, 8).\n"),
    (["--agreement", "2"], "Error: agreement is not an option of isic2017, which has none; omit it.\n"),
    (["--gaps"], "Error: gaps is not an option of isic2017, which has none; omit it.\n"),
    (["--min-car-share", "0"], "Error: min_car_share is not an option of isic2017, which has none; omit it.\n"),
    (["--modalities", "t1"], "Error: modalities is not an option of isic2017, which has none; omit it.\n"),
    (["--seed=-1"], "Error: seed must be a whole number of at least 0, got -1.\n"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_wrong_argument_is_one_sentence(isic, tmp_path, capsys, arguments, message):
    assert run(*isic, *arguments) == 2
    assert capsys.readouterr().err == message
    assert list(tmp_path.iterdir()) == []


def test_incomplete_source_and_absent_source_are_refused(isic, tmp_path, capsys):
    assert run(*isic[:-1]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "pass partial (--partial) to prepare what is there." in told
    assert run("prepare", "isic2017", "--source", tmp_path / "absent", "--out", tmp_path / "out") == 2
    assert "Error: source must be the folder of the data set, got" in capsys.readouterr().err


def test_bad_file_fails_or_is_left_out(tmp_path, capsys):
    STAND_INS["isic2017"](tmp_path / "source", num_cases=NUM_CASES)
    bad = tmp_path / "source" / "ISIC-2017_Training_Data" / "ISIC_0000000.jpg"
    bad.write_bytes(b"nonsense")
    call = ["prepare", "isic2017", "--source", tmp_path / "source", "--out", tmp_path / "out", "--partial"]
    assert run(*call, "--quiet") == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"Error: Picture {bad} cannot be read: ")
    assert "\n" not in told
    call[5] = tmp_path / "skipped"
    assert run(*call, "--on-bad-case", "skip") == 0
    assert f"Left out: ISIC_0000000. Picture {bad} cannot be read: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Stopped; the same call goes on from there.\n"),
        (OSError(ENOSPC, "No space left on device"), 1, "Error: OSError: [Errno 28] No space left on device.\n"),
        (ZeroDivisionError("division by zero"), 1, "Error: ZeroDivisionError: division by zero.\n"),
    ],
    ids=["ctrl-c", "disk", "bug"],
)
def test_exit_status(isic, capsys, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("monai_sc.datasets.prepare", fail)
    assert run(*isic) == code
    assert capsys.readouterr().err == message
