"""A folder of masks made noisy: files of the same names, each drawn once; a killed run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.config import PathLike
from monai.transforms import Randomizable
from rich.console import Console
from rich.progress import track

from monai_sc.files.cases import LazyCases
from monai_sc.files.durable import json_object, sha256, sync_folder, write_synced
from monai_sc.files.names import find_masks, refuse_names, refuse_shared_folders
from monai_sc.folders.journal import Row, noting, read_rows
from monai_sc.folders.simulated_case import CaseJob, MakeNoise, SimulationError, read_case, simulate_case
from monai_sc.store.label_store import describe

RECORD = "simulation.json"
MANIFEST = "manifest.jsonl"
PROGRESS = ".manifest.partial.jsonl"
STAGING = ".simulation.partial"
SCHEMA = 1
CALIBRATION_CASES = 20

Calibrate = Callable[[Sequence[np.ndarray], Sequence["tuple[float, ...] | None"]], Mapping[str, Any]]


def simulate_folder(
    source: PathLike,
    out: PathLike,
    make_noise: MakeNoise,
    *,
    description: Mapping[str, Any] | None = None,
    calibrate: Calibrate | None = None,
    foreground: float | None = None,
    classes: Sequence[int] | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Write a noisy version of every mask in a folder into another one: same names, file types, headers and dtypes.

    A file that holds 0 and one other value is a binary mask, whose foreground keeps its value. One that holds more
    values is a label map: each value but 0 is a class, and the noisy file has one value per voxel, too. A file that
    holds 0 only has the foreground of the first mask that is not empty; it stays as it is if that is a map.

    The draw of a case depends on ``seed`` and its relative name alone. A run that was stopped, however hard, goes on
    where it was when it is called again, and ends with the same bytes. ``out`` then holds, beside the masks::

        simulation.json   what was asked for, and the package version
        manifest.jsonl    one line per case: SHA-256 of both files, seed, Dice and displacement of each class

    Args:
        source: the folder of the masks, which is only read, with its sub-folders. Hidden files, and those whose type
            holds no masks, are left out.
        out: the folder for the noisy masks; new, empty, or that of the same simulation.
        make_noise: returns an array transform of labels that is ``Randomizable``. Called with ``None`` for a binary
            mask, which the transform gets as 0 and 1; with the list of the classes for a label map. With more than
            one worker it must be picklable.
        description: of the noise, JSON types only, for ``simulation.json``; by default the settings of the transform.
            It is how a later call is known to be the same one.
        calibrate: called once with the clean masks ``(channels, *spatial)`` of at most 20 cases, read as they are
            asked for, and the sizes of their voxels; ``make_noise`` is then called with ``num_steps``, too, taken from
            the mapping that it returns, which is kept in ``simulation.json``. It needs a ``description``.
        foreground: the value of the foreground, which is then the only one beside 0 that files may hold.
        classes: the classes of every file; other values of a label map stay where they are.
        seed: of the whole folder, at least 0.
        workers: processes, at least 1.
        progress: show a progress bar, on the standard error.

    Returns:
        The manifest, sorted by name.

    Raises:
        ValueError: before anything is written, when an argument is out of range, a folder does not fit, or ``out``
            holds anything else, such as a simulation with other parameters or of other files.
        TypeError: when ``make_noise`` makes nothing ``Randomizable``.
        FileNotFoundError: when there is not a folder ``source``.
        SimulationError: naming the file that cannot be read, made noisy or written.
    """
    source, root = Path(source).resolve(), Path(out).resolve()
    if workers < 1 or seed < 0:
        raise ValueError(f"workers must be at least 1 and seed at least 0, got {workers} and {seed}.")
    if foreground is not None and classes is not None:
        raise ValueError("foreground is of binary masks and classes of label maps, got both; give one of them.")
    if foreground is not None and not foreground > 0:
        raise ValueError(f"foreground must be the value of the foreground in the files, over 0, got {foreground}.")
    if classes is not None and (not classes or len(set(classes)) != len(classes) or 0 in classes):
        raise ValueError(f"classes must be one or more values, each once and not 0, got {list(classes)}.")
    refuse_shared_folders(source, root)
    names, _ = find_masks(source)
    refuse_names(source, names, (RECORD, MANIFEST))
    own_classes = None if classes is None else list(classes)
    if calibrate is None:
        noise = make_noise(own_classes)
        if not isinstance(noise, Randomizable):
            raise TypeError(f"make_noise must make a Randomizable array transform, got {type(noise).__name__}.")
        description = describe(noise) if description is None else description  # type: ignore[arg-type] # a transform
    elif description is None:
        raise ValueError("description must be given with calibrate, since the number of steps is not known yet.")
    asked = json.loads(
        json.dumps(
            {
                "schema": SCHEMA,
                "monai_sc": version("monai-sc"),
                "noise": dict(description),
                "foreground": foreground,
                "classes": own_classes,
                "seed": seed,
                "cases": len(names),
                "names_sha256": hashlib.sha256("\n".join(names).encode()).hexdigest(),
            }
        )
    )
    staging = root / STAGING

    def job(name: str, empty_foreground: float | None, make: MakeNoise) -> CaseJob:
        return CaseJob(name, source / name, staging, make, foreground, own_classes, empty_foreground, seed)

    with _claimed(root):
        record = read_record(root)
        if record is not None:
            _refuse_other_record(record, asked, source, root)
        _refuse_foreign_files(root, names)
        if (root / MANIFEST).is_file():
            lines = (root / MANIFEST).read_bytes().splitlines()
            finished = [_parsed(line, root / MANIFEST) for line in lines]
            _verified(root, source, finished, is_finished=True)
            (root / PROGRESS).unlink(missing_ok=True)
            return finished
        if record is None:
            jobs = [job(name, None, make_noise) for name in names]
            record = {**asked, "source": str(source), "empty_foreground": None, "calibration": None}
            if foreground is None and classes is None:
                record["empty_foreground"] = _first_foreground(jobs)
            if calibrate is not None:
                record["calibration"] = _calibration(calibrate, jobs, seed)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, exist_ok=True)  # a killed run's worker may still have been writing there
        if not (root / RECORD).is_file():
            _put(root, RECORD, json.dumps(record, indent=2) + "\n")
        noted = read_rows(root / PROGRESS).values()
        done = {row["case"]: row for row in _verified(root, source, noted, is_finished=False)}
        if record["calibration"] is not None:
            make_noise = partial(make_noise, num_steps=record["calibration"]["num_steps"])
        jobs = [job(name, record["empty_foreground"], make_noise) for name in names if name not in done]
        try:
            bar = Console(stderr=True)
            with noting(root / PROGRESS) as note, closing(_run(jobs, min(workers, len(jobs)))) as results:
                for entry, staged in track(results, "Simulating", len(jobs), console=bar, disable=not progress):
                    _place(root, entry, staged, note)
                    done[entry["case"]] = entry
        except BaseException:
            if not done:  # nothing binds the folder to these options, which may have been the mistake
                (root / RECORD).unlink(missing_ok=True)
                (root / PROGRESS).unlink(missing_ok=True)
            raise
        manifest = [done[name] for name in names]
        _put(root, MANIFEST, "".join(json.dumps(entry) + "\n" for entry in manifest))
        (root / PROGRESS).unlink(missing_ok=True)
        return manifest


def read_record(root: Path) -> dict[str, Any] | None:
    """Return what was asked for when the simulation of a folder began, ``None`` where none did.

    Raises:
        ValueError: when the record is damaged.
    """
    file = root / RECORD
    return _parsed(file.read_bytes(), file) if file.is_file() else None


def summarise_simulation(manifest: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over the cases of a manifest for each class: one dictionary per class, sorted.

    Each has ``class``, the number of ``cases`` that hold it, clean or noisy, and the means of ``dice``,
    ``displacement_voxels`` and ``displacement_mm`` over the cases that have one, else ``None``.
    """
    measures = ("dice", "displacement_voxels", "displacement_mm")
    values: dict[float, dict[str, list[float]]] = {}
    for entry in manifest:
        for k, c in enumerate(entry["classes"]):
            own = values.setdefault(c, {measure: [] for measure in measures})
            for measure in measures:
                if entry[measure][k] is not None:
                    own[measure].append(entry[measure][k])
    return [
        {
            "class": c,
            "cases": len(own["dice"]),
            **{measure: float(np.mean(own[measure])) if own[measure] else None for measure in measures},
        }
        for c, own in sorted(values.items())
    ]


@contextmanager
def _claimed(root: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it; in the end the staging folder goes, and the folder if empty."""
    import fcntl  # not on every system, where the rest of the package may be of use

    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another run writes into {root} right now; wait for it.") from None
        except OSError:
            pass  # some network disks have no such locks
        try:
            yield
        finally:
            shutil.rmtree(root / STAGING, ignore_errors=True)
    finally:
        os.close(descriptor)
        if made:
            with suppress(OSError):
                root.rmdir()


def _put(root: Path, name: str, text: str) -> None:
    write_synced(root / STAGING / name, text)
    (root / STAGING / name).replace(root / name)
    sync_folder(root)


def _place(root: Path, entry: Row, staged: Path, note: Callable[[Row], None]) -> None:
    """Give a finished file its name, and note it.

    Raises:
        SimulationError: when another file has that name, or the disk cannot take it.
    """
    target = root / entry["case"]
    try:
        if target.exists() and sha256(target) != entry["sha256"]:
            raise SimulationError(f"{target} is not the file that this simulation writes; move it away.")
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.replace(target)
        sync_folder(target.parent)
        note(entry)
    except OSError as error:
        raise SimulationError(f"{target} could not be written: {error.strerror or error}.") from error


def _parsed(text: bytes, file: Path) -> dict[str, Any]:
    content = json_object(text)
    if content is None:
        raise ValueError(f"{file} is damaged; delete its folder and simulate again.")
    return content


def _refuse_foreign_files(root: Path, names: Collection[str]) -> None:
    """Refuse a folder that holds anything but a simulation of files of these names."""
    own = {RECORD, MANIFEST, PROGRESS, *names} if (root / RECORD).is_file() else set()
    for folder, folders, files in os.walk(root):
        where = Path(folder)
        links = [name for name in folders if (where / name).is_symlink()]
        for name in sorted([*files, *links]):
            file = where / name
            relative = file.relative_to(root)
            if file.is_symlink() or (relative.as_posix() not in own and relative.parts[0] != STAGING):
                raise ValueError(
                    f"{root} holds {relative}, which this simulation did not write; choose an empty or a new folder."
                )


def _refuse_other_record(record: Mapping[str, Any], asked: Mapping[str, Any], source: Path, root: Path) -> None:
    for key, value in asked.items():
        if record.get(key) == value:
            continue
        if key in ("cases", "names_sha256"):
            raise ValueError(
                f"{source} holds other masks than when {root} was begun ({record.get('cases')} then, "
                f"{asked['cases']} now); choose another folder for the noisy ones."
            )
        name, old, new = _difference(key, record.get(key), value)
        raise ValueError(
            f"{root} holds a simulation with {name} {old!r}, but {new!r} was asked for; choose another folder."
        )


def _difference(name: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Return the first entry that differs, since a noise has many."""
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in [*new, *old] if old.get(key) != new.get(key))
        return _difference(f"{name}.{key}", old.get(key), new.get(key))
    return name, old, new


def _verified(root: Path, source: Path, entries: Iterable[Row], *, is_finished: bool) -> list[Row]:
    """Return the entries that are done, after a check that neither the masks nor the noisy files have changed."""
    done = []
    for entry in entries:
        name = entry["case"]
        if sha256(source / name) != entry["source_sha256"]:
            raise ValueError(
                f"{source / name} has changed since {root} was made from it; choose another folder for the noisy masks."
            )
        file = root / name
        if not is_finished and not file.exists():
            continue  # it is made again
        if not file.exists() or sha256(file) != entry["sha256"]:
            state = "has changed since it was written" if file.exists() else "is missing"
            raise ValueError(f"{file} {state}; choose another folder, or delete {root} to simulate again.")
        done.append(entry)
    return done


def _first_foreground(jobs: Iterable[CaseJob]) -> float | None:
    for job in jobs:
        case = read_case(job)
        if case.classes:
            return None if case.is_map else case.classes[0]
    return None


def _clean_masks(job: CaseJob) -> np.ndarray:
    """Return the masks of a case ``(channels, *spatial)``."""
    case = read_case(job)
    return np.stack([case.label[0] == c for c in case.classes]) if case.is_map else case.label > 0


def _calibration(calibrate: Calibrate, jobs: Sequence[CaseJob], seed: int) -> dict[str, Any]:
    chosen = np.random.default_rng(seed).permutation(len(jobs))[:CALIBRATION_CASES]
    sample = [jobs[k] for k in sorted(chosen)]
    found = calibrate(LazyCases(_clean_masks, sample), [read_case(job).spacing for job in sample])
    return {**found, "sample": [job.name for job in sample]}


def _run(jobs: Sequence[CaseJob], workers: int) -> Generator[tuple[Row, Path], None, None]:
    """Simulate cases in some processes, and yield each result as it comes."""
    if workers <= 1:
        yield from map(simulate_case, jobs)
        return
    # not "fork", which hangs when the parent has threads
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            for future in as_completed([pool.submit(simulate_case, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool as error:
            raise SimulationError("A worker process died, perhaps out of memory; use fewer workers.") from error
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C or an error, only what has begun is waited for


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed parent cannot end its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # type: ignore[func-returns-value]
