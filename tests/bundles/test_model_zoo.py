"""What MONAI's model zoo asks of a bundle."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import pytest
import tomllib
import torch
from monai.bundle import ConfigParser, ckpt_export, download_large_files, verify_metadata, verify_net_in_out
from monai.data import load_net_with_metadata
from packaging.requirements import Requirement
from packaging.version import Version

SCHEMA = Path(__file__).parent / "meta_schema_20240725.json"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MEGABYTES = 2**20

# In the order of the zoo's template; "Commands" stands for its "Additional Usage Steps".
SECTIONS = [
    *("Model Description", "Data", "Performance", "Commands"),
    *("System Configuration", "Limitations", "Citation Info", "References"),
]


def read_json(file):
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture
def metadata(bundle):
    """Return the metadata of the bundle."""
    return read_json(bundle / "configs" / "metadata.json")


def test_metadata_fit_the_schema_and_what_the_zoo_asks_beyond_it(metadata, tmp_path):
    assert metadata["schema"].endswith(f"/{SCHEMA.name}")
    schema, file = shutil.copy(SCHEMA, tmp_path), tmp_path / "metadata.json"  # where it lies, MONAI loads nothing
    known = {"hash_type": "sha256", "hash_val": hashlib.sha256(SCHEMA.read_bytes()).hexdigest()}
    file.write_text(json.dumps(metadata), encoding="utf-8")
    verify_metadata(meta_file=str(file), filepath=schema, **known)
    file.write_text(json.dumps({**metadata, "task": None}), encoding="utf-8")
    with pytest.raises(ValueError, match="None is not of type 'string'"):
        verify_metadata(meta_file=str(file), filepath=schema, **known)
    assert {"changelog", "name", "intended_use", "references", "data_source", "eval_metrics"} <= set(metadata)
    versions = list(metadata["changelog"])
    assert versions[0] == metadata["version"]
    assert versions == sorted(versions, key=Version, reverse=True)


def test_files_are_those_of_the_zoo(bundle):
    configs = ("metadata", "train", "multi_gpu_train", "evaluate", "inference")
    files = ["LICENSE", "docs/README.md", "docs/data_license.txt", "configs/logging.conf"]
    for file in [*files, *(f"configs/{name}.json" for name in configs)]:
        assert (bundle / file).stat().st_size > 0
    assert (bundle / "models" / "model.pt").exists() or (bundle / "large_files.yml").exists()
    assert [file.name for file in bundle.rglob("*") if file.stat().st_size > 25 * MEGABYTES] == []
    personal = re.compile(r"(?<![\w.@])/(?:home|Users|root|mnt|media|tmp|work|workspace|scratch)\b|\b[A-Z]:\\")
    for file in bundle.rglob("*"):
        if file.is_file() and file.suffix != ".pt":
            assert personal.findall(file.read_text(encoding="utf-8")) == [], file


def test_readme_has_the_sections_of_the_zoo(bundle):
    text = (bundle / "docs" / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
    for part in ("**Authors**: ", "**Tags**: ", "### Preprocessing\n"):
        assert f"\n{part}" in text


@pytest.fixture
def pinned(metadata):
    """Return the one version of each package that the metadata name."""
    packages = {"monai": "monai_version", "torch": "pytorch_version", "numpy": "numpy_version"}
    return {name: metadata[key] for name, key in packages.items()} | metadata["required_packages_version"]


def unmet(requirements, pinned):
    """Return the requirements that the pinned versions do not meet."""
    return [
        str(one)
        for one in map(Requirement, requirements)
        if (one.marker is None or one.marker.evaluate({"extra": ""}))
        and one.name in pinned
        and not one.specifier.contains(pinned[one.name])
    ]


def test_packages_are_those_of_the_project_and_can_be_installed_together(pinned):
    assert unmet(["numpy>=2", "numpy<2", "torch>=2; extra == 'all'", "scipy"], {"numpy": "2.4.6"}) == ["numpy<2"]
    assert pinned["monai-sc"] == PROJECT["version"]
    assert {"monai", "torch", "numpy", "pytorch-ignite", "nibabel"} <= set(pinned)
    assert unmet(PROJECT["dependencies"], pinned) == []
    if any(importlib.metadata.version(name) != pinned[name] for name in ("monai", "numpy")):
        pytest.skip("what other versions require says nothing about these")
    for package in [*pinned, *(Requirement(line).name for line in PROJECT["dependencies"])]:
        assert unmet(importlib.metadata.requires(package) or [], pinned) == [], package


@pytest.mark.parametrize("config", ["train", "inference"])
def test_network_fits_the_metadata(bundle, config):
    verify_net_in_out(
        net_id="network_def",
        meta_file=str(bundle / "configs" / "metadata.json"),
        config_file=str(bundle / "configs" / f"{config}.json"),
        device="cpu",
        bundle_root=str(bundle),
    )


def test_every_channel_has_a_name(bundle, metadata):
    outputs = metadata["network_data_format"]["outputs"]["pred"]
    network = read_json(bundle / "configs" / "train.json")["network_def"]
    network = network.get("network", network)
    assert outputs["num_channels"] == network["out_channels"] == len(outputs["channel_def"])


@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")  # of MONAI's DynUNet
def test_network_is_exported_to_torchscript(bundle, metadata, tmp_path):
    parser = ConfigParser()
    parser.read_config(bundle / "configs" / "inference.json")
    network = parser.get_parsed_content("network_def").eval()
    torch.save({"model": network.state_dict()}, tmp_path / "model.pt")
    configs = {name: bundle / "configs" / f"{name}.json" for name in ("train", "inference")}
    ckpt_export(
        net_id="network_def",
        filepath=str(tmp_path / "model.ts"),
        ckpt_file=str(tmp_path / "model.pt"),
        key_in_ckpt="model",
        meta_file=str(bundle / "configs" / "metadata.json"),
        config_file=[str(file) for file in configs.values()],
    )
    names = [f"{name}.json" for name in configs]
    exported, stored, files = load_net_with_metadata(str(tmp_path / "model.ts"), more_extra_files=names)
    assert metadata.items() <= stored.items()
    for name, file in configs.items():
        assert json.loads(files[f"{name}.json"]) == read_json(file)
    data = metadata["network_data_format"]["inputs"]["image"]
    images = torch.rand(1, data["num_channels"], *[64] * len(data["spatial_shape"]))
    with torch.no_grad():
        torch.testing.assert_close(exported(images), network(images), atol=1e-5, rtol=0)


def test_large_files_are_listed_for_monai(bundle, monkeypatch):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    listed = bundle / "large_files.yml"
    if not listed.exists():
        pytest.skip("the weights are in the folder")
    loaded = []
    monkeypatch.setattr("monai.bundle.scripts.download_url", lambda **entry: loaded.append(entry))
    download_large_files(str(bundle))
    assert loaded == []
    # The entry that stands there as a comment is one that MONAI takes.
    text = listed.read_text(encoding="utf-8").replace("large_files: []", "large_files:")
    listed.write_text(re.sub(r"^# (?=  )", "", text, flags=re.MULTILINE), encoding="utf-8")
    download_large_files(str(bundle))
    (entry,) = loaded
    assert Path(entry["filepath"]) == bundle / "models" / "model.pt"
    assert {"url", "hash_val", "hash_type"} <= set(entry)
