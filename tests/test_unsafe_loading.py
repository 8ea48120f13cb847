"""No data that is read from the disk can run code: no pickle, no YAML, no weights but as weights, no other archive."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "monai_sc").rglob("*.py"))
CONFIGS = sorted([*(ROOT / "bundles").glob("*/configs/*.json"), *(ROOT / "monai_sc" / "configs").rglob("*.json")])

# Modules whose loading runs code, or that write where an archive says.
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "tarfile", "yaml"}
CALLS = {"eval", "exec", "compile", "extractall", "load_state_dict_from_url", "load_module", "memmap", "unpack_archive"}
# Datasets of MONAI that keep what they have loaded as pickle files, unless they are told otherwise.
CACHES = {"CacheNTransDataset", "GDSDataset", "LMDBDataset", "PersistentDataset"}
# What is imported for the name of an error only.
FOR_ERRORS = {"functional/compiled.py": "pickle.UnpicklingError"}


def called(node):
    """Return the name behind the last dot of what is called, and all of it."""
    text = ast.unparse(node.func)
    return text.rsplit(".", 1)[-1], text


def given(node, name):
    """Return what a call gives for an argument, as it is written; ``None`` where it gives none."""
    return next((ast.unparse(word.value) for word in node.keywords if word.arg == name), None)


def unsafe(text):
    """Return what is unsafe in the source of a module: its line, and what stands there."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
            found += [(node.lineno, name) for name in sorted(names & UNSAFE)]
        elif isinstance(node, ast.ImportFrom):
            name = (node.module or "").split(".")[0]
            names = {alias.name for alias in node.names}
            found += [(node.lineno, name)] if name in UNSAFE or (name == "torch" and "load" in names) else []
        elif isinstance(node, ast.Call):
            name, whole = called(node)
            if whole in ("torch.load", "torch.hub.load") and given(node, "weights_only") != "True":
                found.append((node.lineno, f"{whole} without weights_only=True"))
            if given(node, "allow_pickle") not in (None, "False") or given(node, "weights_only") not in (None, "True"):
                found.append((node.lineno, ast.unparse(node)))
            if whole in CALLS or (name in CALLS and not whole.startswith(("re.", "self."))):
                found.append((node.lineno, whole))
            if given(node, "shell") == "True" or whole == "os.system":
                found.append((node.lineno, f"{whole} by a shell"))
    return found


@pytest.mark.parametrize("file", MODULES, ids=[str(file.relative_to(ROOT / "monai_sc")) for file in MODULES])
def test_module_loads_nothing_that_can_run_code(file):
    text = file.read_text(encoding="utf-8")
    found = unsafe(text)
    allowed = FOR_ERRORS.get(file.relative_to(ROOT / "monai_sc").as_posix())
    if allowed is not None:
        name = allowed.split(".")[0]
        assert set(re.findall(rf"\b{name}\.\w+", text)) == {allowed}
        found = [(line, what) for line, what in found if what != name]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "from torch import load",
        "import os, yaml.nodes",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "torch.load(file, weights_only=option)",
        "np.load(file, allow_pickle=True)",
        "dataset = PersistentDataset(cases, chain, folder, weights_only=False)",
        "archive.extractall(folder)",
        "eval(text)",
        "subprocess.run(command, shell=True)",
    ],
)
def test_unsafe_line_is_noticed(line):
    assert len(unsafe(f"def f():\n    {line}\n")) >= 1


@pytest.mark.parametrize(
    "line",
    ["torch.load(file, weights_only=True)", "np.load(file)", "np.load(f, allow_pickle=False)", "re.compile(text)"],
)
def test_safe_line_is_let_through(line):
    assert unsafe(line) == []


def entries(content):
    """Return all keys of a config with their values, and all strings in lists."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield key, value
            yield from entries(value)
    elif isinstance(content, list):
        for value in content:
            yield None, value
            yield from entries(value)


def unsafe_entry(key, value):
    """Return what is unsafe in an entry of a config: an option, a component of MONAI, or an expression."""
    if key in ("weights_only", "allow_pickle"):
        return [] if value is (key == "weights_only") else [key]
    if not isinstance(value, str):
        return []
    if value.startswith("$"):
        return unsafe(re.sub(r"[@%][\w:#.+-]+", "x", value[1:]))
    if key == "_target_":
        return [name for name in value.split(".") if name in UNSAFE | CALLS | CACHES]
    return []


@pytest.mark.parametrize("file", CONFIGS, ids=[str(file.relative_to(ROOT)) for file in CONFIGS])
def test_config_loads_nothing_that_can_run_code(file):
    found = [
        (key, value, what)
        for key, value in entries(json.loads(file.read_text(encoding="utf-8")))
        for what in unsafe_entry(key, value)
    ]
    assert not found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights_only", False),
        ("allow_pickle", True),
        ("_target_", "PersistentDataset"),
        ("_target_", "pickle.load"),
        ("initialize", "$torch.load(@ckpt_dir + '/model.pt')"),
        (None, "$import yaml"),
    ],
)
def test_unsafe_entry_is_noticed(key, value):
    assert unsafe_entry(key, value)


def test_configs_and_modules_are_found():
    assert len(CONFIGS) > 40
    assert len(MODULES) > 150
