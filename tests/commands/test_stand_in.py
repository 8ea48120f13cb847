import pytest

from monai_sc import __main__ as command_line
from monai_sc.datasets.prepare import LAYOUTS
from monai_sc.datasets.stand_ins import STAND_INS


def run(*arguments):
    return command_line.main([str(a) for a in arguments])


@pytest.mark.parametrize("name", sorted(STAND_INS))
def test_stand_in_can_be_prepared(tmp_path, capsys, name):
    assert run("stand-in", name, "--out", tmp_path / "raw", "--cases", 1, 1, 1) == 0
    told = capsys.readouterr().out
    assert told == (
        f"Wrote synthetic data in the layout of {name} to {tmp_path / 'raw'}; continue with python -m monai_sc "
        "prepare.\n"
    )
    size = ["--size", *([16] * len(LAYOUTS[name].default_size))]
    assert run("prepare", name, "--source", tmp_path / "raw", "--out", tmp_path / "data", "--partial", *size) == 0
    assert "│ train │" in capsys.readouterr().out


def test_numbers_and_seed_are_those_that_were_asked_for(tmp_path, capsys):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run("stand-in", "isic2017", "--out", tmp_path / name, "--cases", 3, 2, 1, "--seed", seed, "--quiet") == 0
    assert capsys.readouterr().out == ""
    a, b, c = (
        {f.relative_to(tmp_path / name): f.read_bytes() for f in (tmp_path / name).rglob("*.jpg")} for name in "abc"
    )
    assert a == b != c
    parts = ("Training", "Validation", "Test_v2")
    assert [len(list((tmp_path / "a" / f"ISIC-2017_{part}_Data").glob("*.jpg"))) for part in parts] == [3, 2, 1]


REFUSED = [
    (["--cases", "1", "0", "1"], "Error: --cases must be three numbers of at least 1, got 1 0 1.\n"),
    (["--seed=-1"], "Error: --seed must be at least 0, got -1.\n"),
    (["--cases", "200", "24", "75"], "Error: num_cases must be 247 in all or fewer, got 299.\n"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=["no-cases", "seed", "too-many"])
def test_wrong_argument_is_one_sentence(tmp_path, capsys, arguments, message):
    assert run("stand-in", "jsrt", "--out", tmp_path / "raw", *arguments) == 2
    assert capsys.readouterr().err == message
    assert not (tmp_path / "raw").exists()


def test_folder_with_files_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    for out in (tmp_path, tmp_path / "mine.txt"):
        assert run("stand-in", "jsrt", "--out", out) == 2
        assert capsys.readouterr().err == f"Error: out must be a folder that is empty or does not exist, got {out}.\n"


def test_ctrl_c_tells_to_delete_what_is_there(tmp_path, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(STAND_INS, "jsrt", stop)
    assert run("stand-in", "jsrt", "--out", tmp_path / "raw") == 130
    assert capsys.readouterr().err == "Stopped; delete what was written.\n"
