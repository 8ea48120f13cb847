"""The settings of a comparison, kept with its results, so that cells of different settings never meet in a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_sc.comparison.cells import nothing_trained
from monai_sc.data.durable import json_object, replace_synced


def settle(file: Path, settings: Mapping[str, Any]) -> None:
    """Keep the settings of a grid of cells in a file of its folder, or see that they are those kept there.

    Settings bind nobody as long as no cell in ``cells`` has trained anything, as after a wrong path of the data.

    Args:
        file: such as ``OUT/comparison.json``.
        settings: JSON types, by name.

    Raises:
        ValueError: when the file holds other settings, naming what differs, or its folder holds something else.
    """
    if file.is_file():
        before = json_object(file.read_bytes())
        if before is None:
            raise ValueError(f"{file} is damaged; put it back from a copy, or choose another folder.")
        names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        if not names:
            return
        if not nothing_trained(file.parent / "cells"):
            changes = "; ".join(f"{name} was {before.get(name)!r}, not {settings.get(name)!r}" for name in names)
            raise ValueError(f"{file.parent} holds cells of other settings ({changes}); choose another folder.")
    elif file.parent.is_dir() and any(not path.name.startswith(".") for path in file.parent.iterdir()):
        raise ValueError(f"{file.parent} must be a new or empty folder, or one with {file.name}.")
    replace_synced(file, json.dumps(dict(settings), indent=2) + "\n")
