"""The case list of JSRT, the chest X-rays with the SCR masks, in its layout of 256 x 256 PNG files."""

from __future__ import annotations

from pathlib import Path

from monai.config import PathLike

from monai_sc.data.cases import Case
from monai_sc.functional.checks import check_choice

__all__ = ["JSRT_CLASSES", "JSRT_PIXEL_MM", "jsrt_cases"]

JSRT_CLASSES = ("lung", "heart", "clavicle")
JSRT_PIXEL_MM = 0.175 * 2048 / 256
"""Size of a pixel of the 256 x 256 files in mm: the films were scanned at 0.175 mm and 2048 x 2048."""

NOISY_FOLDERS = ("lung_180_0.8_0.05_0.2", "heart_180_0.8_0.05_0.2", "clavicle_100_0.8_0.02_0.2")


def jsrt_cases(dataset_dir: PathLike, split: str, *, noisy: bool = False) -> list[Case]:
    """Return the cases of one split: lung, heart and clavicle masks, of 0 and 255, in that order.

    Args:
        dataset_dir: with ``images_{split}`` and ``{lung,heart,clavicle}_gts_{split}``, the same file names in each.
        split: ``"train"``, ``"val"`` (the clean cases) or ``"test"``.
        noisy: take the released expansion-noise masks (``lung_180_0.8_0.05_0.2`` and so on) as labels, and the clean
            masks as ``clean_label``; for ``"train"`` only, the others have none.

    Raises:
        FileNotFoundError: when a folder does not exist.
        ValueError: when the folders do not hold the same file names, or hold none.
    """
    check_choice(split, ("train", "val", "test"), "split")
    if noisy and split != "train":
        raise ValueError(f"noisy must be False for split {split!r}: noisy masks exist for 'train' only, got True.")
    root = Path(dataset_dir)
    images = root / f"images_{split}"
    clean = [root / f"{name}_gts_{split}" for name in JSRT_CLASSES]
    given = [root / name for name in NOISY_FOLDERS] if noisy else clean
    names = _png_names(images)
    for folder in dict.fromkeys([*given, *clean]):
        odd = sorted(names ^ _png_names(folder))
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise ValueError(
                f"{images} and {folder} must hold the same file names, but only one of them has "
                f"{', '.join(odd[:3])}{more}."
            )
    cases: list[Case] = []
    for name in sorted(names):
        case: Case = {
            "id": Path(name).stem,
            "image": str(images / name),
            "label": [str(folder / name) for folder in given],
            "foreground": 255,
        }
        if noisy:
            case["clean_label"] = [str(folder / name) for folder in clean]
        cases.append(case)
    return cases


def _png_names(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"Folder {folder} does not exist; dataset_dir must hold JSRT as 256 x 256 PNG files.")
    names = {file.name for file in folder.iterdir() if file.suffix.lower() == ".png" and not file.name.startswith(".")}
    if not names:
        raise ValueError(f"Folder {folder} must hold PNG files, got none.")
    return names
