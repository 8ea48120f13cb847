"""What a network needs to predict: images, and weights."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from monai.config import PathLike


def image_files(folder: PathLike, pattern: str) -> list[str]:
    """Return the files of a folder to predict, ordered by their paths; hidden ones do not count.

    Args:
        folder: with the images; the list is empty if it does not exist.
        pattern: of their paths in it, as of ``glob``; ``**`` stands for any number of folders.
    """
    found = glob.glob(os.path.join(glob.escape(os.path.abspath(folder)), pattern), recursive=True)
    return sorted(file for file in found if os.path.isfile(file))


def check_images(files: Sequence[str], folder: PathLike, pattern: str) -> None:
    """Refuse to predict where there is nothing to predict.

    Args:
        files: that :py:func:`image_files` found.
        folder: where it looked.
        pattern: that it looked for.

    Raises:
        ValueError: when there are none.
    """
    if not files:
        lacks = f"hold images {pattern}" if os.path.isdir(folder) else "exist, since it holds the images"
        raise ValueError(f"Folder {os.path.abspath(folder)} must {lacks}; correct dataset_dir or pattern.")


def check_weights(file: PathLike) -> None:
    """Refuse to predict without weights.

    Args:
        file: of the weights.

    Raises:
        ValueError: when it does not exist.
    """
    if not os.path.isfile(file):
        raise ValueError(
            f"Weights {os.path.abspath(file)} must exist; train the network first, or correct ckpt_dir, where its "
            "training wrote them."
        )
