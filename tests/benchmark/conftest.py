import json
import textwrap

import pytest

# Stands for ``monai.bundle``, whose import takes seconds: takes its arguments, and writes the result of a cell whose
# Dice follows from its labels. What lies in CONTROL tells it to fail or to wait.
TRAINING = """
import json, os, pathlib, sys, time

options = dict(argument[2:].split("=", 1) for argument in sys.argv[2:])
folder = pathlib.Path(options["output_dir"])
control = pathlib.Path(os.environ["FAKE_CONTROL"])
name = folder.relative_to(folder.parents[2]).as_posix()
with (control / "started.txt").open("a") as file:
    print(name, file=file)
print("training", name)
if (control / "fail at once").exists():
    raise RuntimeError("no data is there.")
(folder / "half.txt").write_text((folder / "half.txt").read_text() + "x" if (folder / "half.txt").exists() else "x")
if (control / "wait").exists():
    (control / f"pid-{os.getpid()}").touch()
    time.sleep(60)
if (control / "fail").exists() and (control / "fail").read_text() in name:
    raise RuntimeError("no memory is left.")
noise, method, seed = name.split("/")
base = {"sc": 0.9, "clean": 0.95}.get(method, 0.6) + 0.01 * int(seed.split("-")[1])
dice = [[base + 0.02 * (case % 2), base - 0.2] for case in range(6)]
result = {"classes": ["lung", "heart"], "cases": [f"c{case}" for case in range(6)], "dice": dice, "epochs": 3,
          "seconds": 60.0, "image_size": [32, 32]}
(folder / ".partial").write_text(json.dumps(result))
(folder / ".partial").replace(folder / "result.json")
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Return the folder of the fake training: its log of starts, and what it is told."""
    folder = tmp_path / "control"
    folder.mkdir()
    (folder / "fake_training.py").write_text(textwrap.dedent(TRAINING))
    monkeypatch.setenv("FAKE_CONTROL", str(folder))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def started(control):
    """Return a function that tells which cells were started, in order."""
    file = control / "started.txt"
    return lambda: file.read_text().split() if file.exists() else []


@pytest.fixture
def bundle(tmp_path):
    """Return the folder of a bundle that is just large enough."""
    configs = tmp_path / "bundle" / "configs"
    configs.mkdir(parents=True)
    train = {"noises": {"none": None, "grow": 1, "shrink": 2}, "noise": "grow", "quick": False, "rate": 0.1, "run": []}
    (configs / "train.json").write_text(json.dumps(train))
    (configs / "metadata.json").write_text(json.dumps({"name": "A bundle", "version": "0.1.0"}))
    (configs / "logging.conf").touch()
    return configs.parent
