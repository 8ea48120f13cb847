"""The grid of a comparison: a bundle, methods, noises and seeds, as cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.config import PathLike

from monai_sc.benchmark.cells import GridCell, cell_of_bundle
from monai_sc.files.cases import check_name
from monai_sc.names import METHODS

SHIPPED_CONFIGS = Path(__file__).parents[1] / "configs"
METHODS_FOLDER = SHIPPED_CONFIGS / "methods"
CLEAN_CASES = SHIPPED_CONFIGS / "clean_cases.json"

CLEAN, NO_NOISE = "clean", "none"
WITHOUT_CLEAN_CASES = ("sc", CLEAN)
OWN_IDS = ("bundle_root", "ckpt_dir", "config_file", "dataset_dir", "logging_file", "meta_file", "output_dir")
GRID_IDS = {"noise": "--noise", "seed": "--seeds", "quick": "--quick"}


class ComparedBundle:
    """A bundle of this package's kind, and the ids and noises that a comparison reads from it."""

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder).resolve()
        self.train_file = self.folder / "configs" / "train.json"
        self.train = _read_json(self.train_file)
        if "noise" not in self.train or not isinstance(self.train.get("noises"), dict):
            raise ValueError(
                f"{self.train_file} must have the ids 'noise' and 'noises', as the bundles of monai_sc have."
            )
        metadata = _read_json(self.folder / "configs" / "metadata.json")
        self.name, self.version = str(metadata.get("name", self.folder.name)), str(metadata.get("version", ""))

    @property
    def noises(self) -> list[str]:
        """The ids under ``noises`` of its config."""
        return list(self.train.get("noises", {}))

    def check_noises(self, noises: Sequence[str]) -> None:
        """Refuse what is no noise of the bundle."""
        unknown = [noise for noise in noises if noise not in self.noises]
        if unknown:
            known, strange = (", ".join(map(repr, names)) for names in (self.noises, unknown))
            raise ValueError(f"noise must be among {known}, got {strange}.")

    def check_overrides(
        self, overrides: Mapping[str, Any], configs: Sequence[Path], quick: bool, *, with_clean: bool
    ) -> None:
        """Refuse ids that no config has, since a config takes any, and those that a comparison gives itself."""
        if quick and "quick" not in self.train:
            raise ValueError(f"--quick needs a bundle with the id 'quick', got {self.folder}; set sizes with --set.")
        files = [self.train_file, *configs, *([CLEAN_CASES] if with_clean else [])]
        merged = ConfigParser.load_config_files([str(file) for file in files])
        for name in overrides:
            if name in GRID_IDS:
                raise ValueError(f"--set must not give {name!r}, which has its own option: {GRID_IDS[name]}.")
            if name in OWN_IDS:
                raise ValueError(f"--set must not give {name!r}, which differs per training.")
            if not _has(merged, name):
                raise ValueError(f"--set must give an id of the configs, got {name!r}, which no config has.")

    def resumes(self, configs: Sequence[Path]) -> bool:
        """Say whether a run of these configs goes on from its checkpoint: whether ``run`` uses ``resume``."""
        merged = ConfigParser.load_config_files([str(config) for config in configs])
        return "@resume" in json.dumps(merged.get("run", ""))


def find_method(method: str) -> tuple[str, Path]:
    """Return the name and the config of a method: one that comes with the package, or a file of the user's.

    Example:
        >>> find_method("guess")
        Traceback (most recent call last):
        ValueError: method must be one of noisy, ..., sc, clean, or the path of your own .json, got 'guess'.
    """
    file = METHODS_FOLDER / f"{method}.json"
    if not method.endswith(".json"):
        if method not in METHODS:
            raise ValueError(
                f"method must be one of {', '.join(METHODS)}, or the path of your own .json, got {method!r}."
            )
        return method, file
    own = Path(method)
    check_name(own.stem, "The name of a method")  # a folder is called so
    if own.stem in METHODS:
        raise ValueError(f"{own} must not have the name of a method of the package; rename it.")
    if not {"run", "+run"} & set(_read_json(own)):
        raise ValueError(
            f"{own} must have an id 'run' that ends with monai_sc.benchmark.write_result; copy that of a "
            f"method in {METHODS_FOLDER}."
        )
    return own.stem, own.resolve()


def grid_cells(
    bundle: ComparedBundle,
    out: Path,
    *,
    methods: Mapping[str, Path],
    noises: Sequence[str],
    seeds: Sequence[int],
    dataset_dir: Path,
    quick: bool = False,
    protocol: str = "paper",
    overrides: Mapping[str, str] | None = None,
) -> list[GridCell]:
    """Return the cells in the order in which they run: all methods of the first seed and noise, the next noise, ...

    The method ``clean`` depends on no noise: it has one cell per seed.
    """
    cells: dict[str, GridCell] = {}
    for seed in seeds:
        for noise in noises:
            for method, config in methods.items():
                own_noise = NO_NOISE if method == CLEAN else noise
                name = f"{own_noise}/{method}/seed-{seed}"
                if name in cells:
                    continue
                with_clean = protocol == "paper" and method not in WITHOUT_CLEAN_CASES
                configs = (bundle.train_file, config, *([CLEAN_CASES] if with_clean else []))
                values = {"dataset_dir": dataset_dir.resolve(), "noise": own_noise, "seed": seed}
                cells[name] = cell_of_bundle(
                    bundle.folder,
                    out / "cells" / name,
                    name=name,
                    labels={"noise": own_noise, "method": method, "seed": seed},
                    configs=configs,
                    overrides=values | ({"quick": True} if quick else {}) | dict(overrides or {}),
                    resumes=bundle.resumes(configs),
                )
    return list(cells.values())


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"There is no {file}.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must hold JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold the ids of a config, got a {type(content).__name__}.")
    return content


def _has(config: Any, name: str) -> bool:
    """Say whether a config has an id; what an expression holds cannot be known before it runs."""
    if name in config:
        return True
    for part in name.replace("#", "::").split("::"):
        if isinstance(config, str):
            return True
        if isinstance(config, list) and part.isdigit() and int(part) < len(config):
            config = config[int(part)]
        elif isinstance(config, dict) and part in config:
            config = config[part]
        else:
            return False
    return True
