"""The blocks of README, CONTRIBUTING and docs, run page by page in order, in one folder for each page.

Python blocks share a namespace. Commands that need no bash run in this process, with their real arguments, since each
new process would import PyTorch and MONAI again; other blocks run in bash.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

import monai_sc
from monai_sc.datasets.stand_ins import STAND_INS
from monai_sc.names import METHODS
from tests.forked import ended_well, run_ranks

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(f.relative_to(ROOT)) for f in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<language>[^\s`]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```[ \t]*$", re.MULTILINE | re.DOTALL
)
UNKNOWN = {"", "console", "ipython", "py", "pycon", "python3", "sh", "shell", "shell-session", "zsh"}

# Commands that no test runs, and why.
NOT_RUN = {
    ("README.md", "make demo"): "makes an environment; the configs that it then runs are run by tests/bundles",
    ("README.md", "make test"): "is what runs this test, in CI too",
    ("README.md", 'pip install ".[bundle]"'): "needs the network; make, and so CI, installs in the same way",
}

# Options added to commands that contain the first words, to make them small or let them run with few files.
SMALL = "{'train': 4, 'clean': 3, 'test': 3}"
ADDED = [
    (
        ["monai.bundle", "run"],
        ["--image_size", "48", "--num_cases", SMALL, "--epochs_per_round", "1", "--max_rounds", "1"],
    ),
    (
        ["ablate", "holes"],
        [f"--set={part}" for part in ("image_size=48", f"num_cases={SMALL}", "epochs_per_round=1")],
    ),
    (["prepare", "isic2017"], ["--partial", "--size", "32", "32"]),
    (["prepare", "brats2020"], ["--partial", "--size", "16", "16", "16"]),
    (["prepare", "jsrt"], ["--size", "32", "32"]),
    (["stand-in"], ["--cases", "1", "1", "1"]),
]

# Files that the reader of a page has: labels and images, a clone, a data set, finished trainings.
ASSUMED = {
    "docs/command_line.md": ["labels", "expert", "output"],
    "docs/correction.md": ["labels", "expert", "images", "nnUNet_cv", "labelsTr", "imagesTr"],
    "docs/data_sets.md": ["ISIC", "MICCAI_BraTS2020_TrainingData"],
    "docs/methods.md": ["bundles", "comparison", "noise-level"],
    "docs/noise.md": ["masks", "scans"],
    "docs/report.md": ["corrected", "imagesTr"],
    "docs/workflow.md": ["bundles"],
}

# Texts that files contain after a page was run.
WRITTEN = {
    "README.md": {"audit/report.html": "biased", "corrected/report.html": "labels moved by -"},
    "docs/tutorials/audit.md": {"audit/report.html": "biased"},
    "docs/tutorials/nnunet.md": {"corrected/report.html": "held-out case"},
    "docs/tutorials/trainer.md": {"report/report.html": "disc"},
    "docs/methods.md": {"OUT/result.json": '"dice"', "comparison/results.md": "ct_plus"},
    "docs/workflow.md": {"bundles/phantom/output/results.json": '"rounds"'},
}


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def fences(text):
    """Return language, content and number of the line before it of each fenced block."""
    return [
        (match["language"], textwrap.dedent(match["body"]), text.count("\n", 0, match.start("body")))
        for match in FENCE.finditer(text)
    ]


def lines_of(block):
    """Return the lines of a block for the shell that are run, with continued ones as one."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def words_of(line):
    """Return the words of a command that runs one module of Python, or ``None`` where bash has to read the line."""
    if re.search(r"[$`\\*?~<>|&;(){}!]", re.sub(r"""'[^']*'|"[^"$`\\]*\"""", "", line)):
        return None
    words = shlex.split(line, comments=True)
    if words[0] == "monai-sc":
        words[:1] = ["python", "-m", "monai_sc"]
    return words if words[:2] == ["python", "-m"] or words[0] == "torchrun" else None


def added_to(line):
    """Return the line with the words that make it small."""
    for wanted, words in ADDED:
        if set(wanted) <= set(line.split()):
            line = shlex.join([*shlex.split(line, comments=True), *(w for w in words if w not in line.split())])
    return line


def is_run(page, line):
    return (page, line.split(" #")[0].strip()) not in NOT_RUN


def run_in_bash(block, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    if "~/" in block:
        environment["HOME"] = str(folder)
    if shutil.which("monai-sc", path=path) is None:  # an environment into which the package was not installed
        block = f'monai-sc() {{ python -m monai_sc "$@"; }}\n{block}'
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "Warning" not in done.stderr, done.stderr


def run_shell(block, page, folder, run_module):
    lines = [added_to(line) for line in lines_of(block) if is_run(page, line)]
    calls = [words_of(line) for line in lines]
    if None in calls:
        run_in_bash("\n".join(lines), folder)
        return
    for words in calls:
        if words[0] == "torchrun":
            count = next(word for word in words if word.startswith("--nproc_per_node=")).partition("=")[2]
            ended = run_ranks(words[words.index("-m") :], int(count), cwd=folder)
            assert all(map(ended_well, ended)), ended
        else:
            run_module(words)


def write_files(folder, wanted):
    """Write balls into the folders that are wanted; labels and predictions are two voxels too wide."""
    grid = np.indices((32, 32, 12)) - np.reshape((16, 15, 6), (3, 1, 1, 1))
    rng = np.random.default_rng(0)
    for k in range(4):
        outside = np.sqrt((grid**2).sum(axis=0)) - (6 + 0.3 * k)
        content = dict.fromkeys(("labels", "labelsTr"), outside <= 2)
        content |= dict.fromkeys(("images", "imagesTr"), 100 * (outside <= 0) + rng.normal(0, 9, outside.shape))
        content |= {"expert": outside <= 0, "scans": outside <= 0}
        for name in wanted & set(content):
            if name != "expert" or k < 3:
                (folder / name).mkdir(exist_ok=True)
                array = content[name].astype(np.float32 if content[name].dtype.kind == "f" else np.uint8)
                nib.save(nib.Nifti1Image(array, np.diag([0.8, 0.8, 2.5, 1])), folder / name / f"case{k}.nii.gz")
        if "nnUNet_cv" in wanted:
            (folder / "nnUNet_cv").mkdir(exist_ok=True)
            chance = 1 / (1 + np.exp(outside - 2))
            file = folder / "nnUNet_cv" / f"case{k}.npz"
            np.savez(file, probabilities=np.stack([1 - chance, chance]).transpose(0, 3, 2, 1))
        if "masks" in wanted:
            (folder / "masks").mkdir(exist_ok=True)
            disc = np.hypot(*np.indices((96, 96)) - 48) < 30 + k
            Image.fromarray(disc.astype(np.uint8) * 255).save(folder / "masks" / f"{k}.png")


@pytest.fixture
def give(tmp_path, write_cells, run_module):
    """Return a function that makes what the reader of a page has."""

    def write_store():
        from monai_sc.datasets import phantom_cases
        from monai_sc.store import LabelStore

        store = LabelStore("output/labels", phantom_cases("data", "train", 2, size=(48, 48)), class_names=["a", "b"])
        with store.write_round(1, {"bias": [-1.5, -1.0]}) as writer:
            for case in store.cases:
                writer.write(case["id"], store.read(case["id"], 0))

    def copy_bundles():
        for name in ("phantom", "jsrt"):
            shutil.copytree(ROOT / "bundles" / name / "configs", tmp_path / "bundles" / name / "configs")
        package = Path(monai_sc.__file__).parent  # not beside the tests where a wheel is tried
        shutil.copytree(package, tmp_path / "monai_sc", ignore=shutil.ignore_patterns("__pycache__"))

    def correct():
        write_files(tmp_path, {"nnUNet_cv", "labelsTr", "expert"})
        folders = ["--predictions=nnUNet_cv", "--labels=labelsTr", "--clean=expert", "--out=corrected"]
        run_module(["python", "-m", "monai_sc", "correct", *folders])

    def compared():
        noises = ["markov_expand", "markov_shrink", "dilate_erode"]
        names = [f"{noise}/{method}" for noise in noises for method in METHODS if method != "clean"]
        settings = {"protocol": "paper", "dataset_dir": str(tmp_path / "DATA")}
        folder = tmp_path / "bundles" / "jsrt"
        write_cells(
            tmp_path / "comparison", folder, "comparison.json", [*names, "none/clean"], seeds=range(5), **settings
        )

    def noise_level():
        names = [f"steps-{steps}/{method}" for steps in (180, 240, 320, 400) for method in ("noisy", "sc")]
        settings = {"ablation": "noise-level", "noise": "markov_expand", "with_clean": True}
        settings["dataset_dir"] = str(tmp_path / "DATA")
        write_cells(
            tmp_path / "level", tmp_path / "bundles" / "jsrt", "settings.json", names, seeds=range(3), **settings
        )

    one_each = {"train": 1, "clean": 1, "test": 1}
    makers = {
        "bundles": copy_bundles,
        "comparison": compared,
        "corrected": correct,
        "ISIC": lambda: STAND_INS["isic2017"](Path("ISIC"), num_cases=one_each),
        "MICCAI_BraTS2020_TrainingData": lambda: STAND_INS["brats2020"](
            Path("MICCAI_BraTS2020_TrainingData"), num_cases=one_each
        ),
        "noise-level": noise_level,
        "output": write_store,
    }

    def give(page):
        assumed = ASSUMED.get(page, [])
        write_files(tmp_path, set(assumed))
        for name in assumed:
            if name in makers:
                makers[name]()

    return give


def has_blocks(page):
    return any(
        language == "python" or (language == "bash" and any(is_run(page, line) for line in lines_of(block)))
        for language, block, _ in fences(read(page))
    )


@pytest.mark.slow
@pytest.mark.usefixtures("fork_cells")
@pytest.mark.parametrize("page", [page for page in PAGES if has_blocks(page)])
def test_blocks_run_in_the_order_of_a_reader(page, tmp_path, give, run_module, monkeypatch):
    monkeypatch.chdir(tmp_path)
    give(page)
    namespace = {"__name__": "__main__"}
    for language, block, line in fences(read(page)):
        if language == "python":
            # as many empty lines as stand before it, for the traceback
            exec(compile("\n" * line + block, ROOT / page, "exec"), namespace)
        elif language == "bash":
            run_shell(block, page, tmp_path, run_module)
    for file, part in WRITTEN.get(page, {}).items():
        assert part in (tmp_path / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_that_could_be_run_are_marked_as_such(page):
    languages = {language for language, _, _ in fences(read(page))}
    assert not languages & UNKNOWN, "mark what is to run as python or bash, and what is not as text"
    assert read(page).count("```") == 2 * len(fences(read(page)))


def test_what_is_not_run_and_what_is_assumed_is_still_there():
    lines = {(page, line) for page in PAGES for _, block, _ in fences(read(page)) for line in lines_of(block)}
    assert {(page, line.split(" #")[0].strip()) for page, line in lines if not is_run(page, line)} == set(NOT_RUN)
    assert {page for page in PAGES if has_blocks(page)} >= {*ASSUMED, *WRITTEN}
    for wanted, _ in ADDED:
        assert any(set(wanted) <= set(line.split()) for _, line in lines), wanted
