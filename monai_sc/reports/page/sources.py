"""What a report is made of, found in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from monai.config import PathLike

from monai_sc.folders.correct import MANIFEST, REPORT
from monai_sc.reports.page.folder import AUDIT, AuditSource, FolderSource
from monai_sc.reports.page.run import RESULTS, RunSource
from monai_sc.reports.page.write import Source
from monai_sc.store.label_store import LabelStore


def open_source(folder: PathLike, *, images: PathLike | None = None) -> Source:
    """Return what the report of a folder is made of.

    Args:
        folder: of a run that has ended, or that ``python -m monai_sc correct`` or ``audit`` wrote.
        images: folder with images of the names of the labels, for the latter two.

    Raises:
        ValueError: when the folder is none of these, or is damaged.
        FileNotFoundError: when it, ``images``, or a file of a case does not exist.
    """
    run = Path(folder)
    if not run.is_dir():
        raise FileNotFoundError(f"{run} is not a folder.")
    if images is not None and not Path(images).is_dir():
        raise FileNotFoundError(f"{images} is not a folder.")
    pictures = None if images is None else Path(images)
    if (run / RESULTS).is_file():
        try:
            results = json.loads((run / RESULTS).read_text(encoding="utf-8"))
            store, _ = results["store"], results["rounds"][results["kept_round"]]["voxel_mm"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _damaged(run / RESULTS, error) from error
        return _whole(RunSource(LabelStore.open(run.resolve() / store), results, run), run / RESULTS)
    if (run / AUDIT).is_file():
        return _whole(AuditSource(run, pictures), run / AUDIT)
    if (run / REPORT).is_file() and (run / MANIFEST).is_file():
        return _whole(FolderSource(run, pictures), run / REPORT)
    raise ValueError(
        f"{run} must be the folder of a run that has ended, with {RESULTS}, or one that `python -m monai_sc correct` "
        "or `audit` wrote."
    )


def _whole(source: Source, file: Path) -> Source:
    """Return a source whose ``file`` holds what the report needs.

    Raises:
        ValueError: when it does not.
    """
    try:
        source.contents()
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, error) from error
    return source


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is damaged, or of another version: {type(error).__name__}: {error}.")
