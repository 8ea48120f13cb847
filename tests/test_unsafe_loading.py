"""No data that is read from the disk can run code: what the ban of modules in ``pyproject.toml`` cannot tell."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "monai_sc").rglob("*.py"))
CONFIGS = sorted([*(ROOT / "bundles").glob("*/configs/*.json"), *(ROOT / "monai_sc" / "configs").rglob("*.json")])

UNSAFE = re.compile(
    r"^(?!.*weights_only=True).*torch\.load\(|^from torch import .*\bload\b"
    r"|allow_pickle(=(?!False)|\")|weights_only(=(?!True)|\": *false)",
    re.MULTILINE,
)
# Configs are no Python, so no rule of ruff looks at them. The data sets of MONAI keep pickle files.
UNSAFE_IN_CONFIGS = re.compile(
    rf"{UNSAFE.pattern}|\b(cloudpickle|dill|joblib|marshal|pickle|shelve|tarfile|yaml)\b"
    r"|(?<![.\w])(eval|exec|compile)\(|(CacheNTrans|GDS|LMDB|Persistent)Dataset|shell=True|os\.system|torch\.hub"
    r"|extractall|unpack_archive|load_module|memmap",
    re.MULTILINE,
)


def found(pattern, text):
    return [match.group() for match in pattern.finditer(text)]


@pytest.mark.parametrize(("files", "pattern"), [(MODULES, UNSAFE), (CONFIGS, UNSAFE_IN_CONFIGS)])
def test_nothing_is_loaded_that_can_run_code(files, pattern):
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert len(files) > 40
    assert not found(pattern, re.sub(r"\(and weights_only=False\)", "", text))  # which a message says


@pytest.mark.parametrize(
    "line",
    [
        *("from torch import load", "torch.load(file)", "torch.load(file, weights_only=option)"),
        *("np.load(file, allow_pickle=True)", "PersistentDataset(cases, chain, folder, weights_only=False)"),
        *('"weights_only": false', '"allow_pickle": true', '"_target_": "PersistentDataset"', '"$import yaml"'),
        *('"_target_": "pickle.load"', '"$eval(text)"', "\"$torch.load(@ckpt_dir + '/model.pt')\""),
    ],
)
def test_unsafe_line_is_noticed(line):
    assert found(UNSAFE_IN_CONFIGS, line)


@pytest.mark.parametrize(
    "line", ["torch.load(file, weights_only=True)", "np.load(f, allow_pickle=False)", "network.eval()"]
)
def test_safe_line_is_let_through(line):
    assert not found(UNSAFE_IN_CONFIGS, line)
