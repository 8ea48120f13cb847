import json

import numpy as np
import pytest
from PIL import Image

from monai_sc import __main__ as command_line
from monai_sc.folders.noise_choice import NoiseChoice

NOISE = ["--num-steps=3", "--expansion-prob=0.8", "--march-prob=0.6"]


@pytest.fixture
def masks(tmp_path):
    source = tmp_path / "the masks"
    source.mkdir()
    for k in range(3):
        array = np.zeros((30, 32), np.uint8)
        array[8 : 18 + k, 9:20] = 255
        Image.fromarray(array).save(source / f"Ärztin {k}.png")
    return source


def run(*arguments):
    return command_line.main([str(a) for a in arguments])


def written(folder):
    return {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_simulate_tells_what_it_did(masks, tmp_path, capsys):
    assert run("simulate", masks, tmp_path / "out", *NOISE) == 0
    told = capsys.readouterr().out
    assert "mean Dice" in told
    assert "│ 255   │ 3     │" in told
    assert f"3 noisy masks in {tmp_path / 'out'}, listed in manifest.jsonl." in told
    before = written(tmp_path / "out")
    assert run("simulate", masks, tmp_path / "out", *NOISE) == 0
    assert f"Nothing to do: {tmp_path / 'out'} is complete." in capsys.readouterr().out
    assert written(tmp_path / "out") == before


def test_summary_as_json(masks, tmp_path, capsys):
    (masks / "readme.txt").write_text("")
    assert run("simulate", masks, tmp_path / "out", *NOISE, "--seed=4", "--json") == 0
    output = capsys.readouterr()
    told = json.loads(output.out)
    assert "Simulating" in output.err
    assert (told["cases"], told["was_complete"], told["left_out"]) == (3, False, ["readme.txt"])
    (row,) = told["classes"]
    assert (row["class"], row["cases"], row["displacement_mm"]) == (255, 3, None)
    assert row["displacement_voxels"] < 0 < row["dice"] < 1
    assert json.loads((tmp_path / "out" / "simulation.json").read_text())["seed"] == 4


def test_every_option_reaches_the_noise(masks, tmp_path, capsys):
    options = {
        "flip_prob": 0.1,
        "smoothing": "after_flips",
        "smooth_sigma": 1.5,
        "smooth_radius": 2,
        "unit": "voxel",
    }
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert run("simulate", masks, tmp_path / "out", *NOISE, *given, "--overlap=priority", "--quiet") == 0
    noise = json.loads((tmp_path / "out" / "simulation.json").read_text())["noise"]
    assert noise["parameters"] == {"num_steps": 3, "expansion_prob": 0.8, "march_prob": 0.6, **options}
    assert noise["overlap"] == "priority"


def test_lists_are_one_value_per_class(masks, tmp_path):
    lists = ["--num-steps=3,0", "--expansion-prob=0.8", "--march-prob=0.6,0.5", "--classes=255,1"]
    assert run("simulate", masks, tmp_path / "out", *lists, "--quiet") == 0
    (tmp_path / "out" / "manifest.jsonl").read_text()
    record = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert (record["classes"], record["noise"]["parameters"]["num_steps"]) == ([255, 1], [3, 0])


def test_steps_for_a_target(masks, tmp_path, capsys):
    arguments = ("simulate", masks, tmp_path / "out", "--expansion-prob=0.9", "--march-prob=0.5", "--target-dice=0.8")
    assert run(*arguments) == 0
    calibration = json.loads((tmp_path / "out" / "simulation.json").read_text())["calibration"]
    assert calibration["num_steps"] > 1
    assert calibration["dice"] == pytest.approx(0.8, abs=0.1)
    assert f"Steps for the target: {calibration['num_steps']}." in capsys.readouterr().out


def test_preset(masks, tmp_path):
    given = ("--preset=jsrt-shrink", "--structure=heart", "--num-steps=4", "--quiet")
    assert run("simulate", masks, tmp_path / "out", *given) == 0
    noise = json.loads((tmp_path / "out" / "simulation.json").read_text())["noise"]
    assert (noise["preset"], noise["structure"], noise["kind"]) == ("jsrt-shrink", "heart", "markov")
    assert (noise["parameters"]["num_steps"], noise["parameters"]["march_prob"]) == (4, 0.05)


REFUSED = [
    (["--num-steps=3"], r"Error: Without a preset, expansion_prob and march_prob must be given."),
    ([*NOISE, "--flip-prob=2"], "Error: flip_prob must be a probability in [0, 1], got 2.0."),
    ([*NOISE, "--target-dice=0.8"], "Error: Give num_steps or a target, not both."),
    ([*NOISE, "--structure=lung"], "Error: structure is of a preset, got 'lung' without one."),
    ([*NOISE, "--workers=0"], "Error: workers must be at least 1 and seed at least 0, got 0 and 0."),
    (["--num-steps=3,4", *NOISE[1:]], "Error: num_steps must have one value per class (1), got 2."),
    (["--preset=x"], "Error: preset must be one of jsrt-expand, "),
    (["--preset=jsrt-expand"], "Error: preset 'jsrt-expand' has a num_steps for each of its 3 structures; choose one"),
    (["--preset=isic-mixed", "--march-prob=1"], "Error: march_prob is not a parameter of preset 'isic-mixed', which"),
    (["--preset=isic-mixed", "--target-dice=1"], "Error: A target needs a noise with steps, which preset 'isic-mixed'"),
    ([*NOISE[1:], "--target-dice=0.8", "--target-displacement=2"], "Error: target_dice and target_displacement must n"),
    ([*NOISE[1:], "--target-displacement=-2", "--unit=mm"], "Error: unit='mm', and in_plane without slice_axis, need"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(a)[-40:] for a, _ in REFUSED])
def test_wrong_argument_is_one_sentence(masks, tmp_path, capsys, arguments, message):
    assert run("simulate", masks, tmp_path / "out", *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--march-prob=x", "Error: Argument --march-prob: invalid float or list of float value: 'x'; see "),
        ("--classes=a", "Error: Argument --classes: invalid list of int value: 'a'; see "),
    ],
)
def test_argument_that_cannot_be_parsed(tmp_path, capsys, argument, message):
    assert run("simulate", tmp_path, tmp_path / "out", argument) == 2
    assert capsys.readouterr().err.startswith(message)


def test_bad_file_fails_without_a_traceback(masks, tmp_path, capsys):
    (masks / "x.png").write_bytes(b"nonsense")
    assert run("simulate", masks, tmp_path / "out", *NOISE, "--quiet") == 1
    told = capsys.readouterr().err
    assert told.startswith(f"Error: {masks / 'x.png'} cannot be simulated: it cannot be read")
    assert told.count("\n") == 1
    assert run("simulate", masks, tmp_path / "out", *NOISE, "--quiet", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_slices_that_lie_along_different_axes_need_one():
    choice = NoiseChoice({"expansion_prob": 0.8, "march_prob": 0.6, "in_plane": True}, target_dice=0.9)
    masks = [np.ones((1, 3, 3, 3), bool)] * 2
    with pytest.raises(ValueError, match=r"slice_axis must be given, since the slices of the masks lie along"):
        choice.calibrate(masks, [(5, 1, 1), (1, 1, 5)])
