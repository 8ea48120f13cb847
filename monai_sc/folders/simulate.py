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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
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
from monai_sc.folders.parts import Exchange, Part
from monai_sc.folders.simulated_case import CaseJob, MakeNoise, SimulationError, read_case, simulate_case
from monai_sc.store.label_store import describe

RECORD = "simulation.json"
MANIFEST = "manifest.jsonl"
PROGRESS = ".manifest.partial.jsonl"
STAGING = ".simulation.partial"

Entry = dict[str, Any]


class SimulationFolder:
    """The masks of a simulation under their own names, and what was done to them.

    Every file is written in a hidden folder inside, flushed and renamed, then noted in a hidden manifest, which becomes
    the manifest when the last case is done. So whatever has its final name is whole, and what is not noted is done
    again, with the same bytes. Of several parts each stages and notes its own files, and the last to end makes the
    manifest.

    Args:
        root: the folder, which need not exist yet.
        part: which this process is; by default the only one.
    """

    def __init__(self, root: Path, part: Part | None = None) -> None:
        self.root = root
        self.part = part or Part()
        self.exchange = Exchange(root / STAGING, self.part, root, root / PROGRESS)
        self.staging = self.exchange.scratch

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other runs out of the folder, which is made if need be, and goes again if it stays empty.

        Other parts may come in, but for a process that does everything. In the end the staging folder goes.

        Raises:
            ValueError: when another run writes into it.
        """
        import fcntl  # not on every system, where the rest of the package may be of use

        made = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if self.part.count > 1 else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"Another run writes into {self.root} right now; wait for it.") from None
            except OSError:
                pass  # some network disks have no such locks
            with ExitStack() as stack:
                if self.exchange.is_needed:
                    stack.enter_context(self.exchange.claimed())
                else:
                    stack.callback(shutil.rmtree, self.exchange.folder, ignore_errors=True)
                yield
        finally:
            os.close(descriptor)
            if made:
                with suppress(OSError):
                    self.root.rmdir()

    def record(self) -> dict[str, Any] | None:
        """Return what was asked for when the simulation began; ``None`` where none did."""
        file = self.root / RECORD
        return _parsed(file.read_bytes(), file) if file.is_file() else None

    def begin(self, record: Mapping[str, Any]) -> None:
        """Clear the remains of a killed run away, and write down what is asked for if that has not been done."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True, exist_ok=True)  # a killed run's worker may still have been writing there
        if self.record() is None:
            self._put(RECORD, json.dumps(record, indent=2) + "\n")

    def forget(self) -> None:
        """Delete the record and the lists of what is done, if nothing is and no other part is at work."""
        with self.exchange.alone():
            if self.exchange.is_only() and not self.exchange.rows():
                for file in (self.root / RECORD, *self.exchange.logs()):
                    file.unlink(missing_ok=True)

    def refuse_foreign_files(self, names: Collection[str]) -> None:
        """Refuse a folder that holds anything but a simulation of files of these names.

        Raises:
            ValueError: naming the first other file.
        """
        logs = [log.name for log in self.exchange.logs()]
        own = {RECORD, MANIFEST, *logs, *names} if (self.root / RECORD).is_file() else set()
        for folder, folders, files in os.walk(self.root):
            where = Path(folder)
            links = [name for name in folders if (where / name).is_symlink()]
            for name in sorted([*files, *links]):
                file = where / name
                relative = file.relative_to(self.root)
                if file.is_symlink() or (relative.as_posix() not in own and relative.parts[0] != STAGING):
                    raise ValueError(
                        f"{self.root} holds {relative}, which this simulation did not write; choose an empty or a new "
                        "folder."
                    )

    def finished(self) -> list[Entry] | None:
        """Return the manifest of a simulation that is complete, else ``None``."""
        file = self.root / MANIFEST
        return [_parsed(line, file) for line in file.read_bytes().splitlines()] if file.is_file() else None

    def place(self, entry: Entry, staged: Path, note: Callable[[Entry], None]) -> None:
        """Give a finished file its name, and note it.

        Raises:
            SimulationError: when another file has that name, or the disk cannot take it.
        """
        target = self.root / entry["case"]
        try:
            if target.exists() and sha256(target) != entry["sha256"]:
                raise SimulationError(f"{target} is not the file that this simulation writes; move it away.")
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(target)
            sync_folder(target.parent)
            note(entry)
        except OSError as error:
            raise SimulationError(f"{target} could not be written: {error.strerror or error}.") from error

    def finish(self, entries: Sequence[Entry]) -> list[Entry]:
        """Write the manifest, in the order of the names, and return it.

        Raises:
            SimulationError: when a file has gone since it was noted.
        """
        for entry in entries:
            if not (self.root / entry["case"]).exists():
                raise SimulationError(f"{self.root / entry['case']} has gone; simulate again, and it is made again.")
        lines = sorted(entries, key=lambda entry: entry["case"])
        self._put(MANIFEST, "".join(json.dumps(line) + "\n" for line in lines))
        self.clean()
        self.exchange.merged()
        return lines

    def clean(self) -> None:
        """Delete the lists that the manifest has taken the place of."""
        for log in self.exchange.logs():
            log.unlink(missing_ok=True)

    def _put(self, name: str, text: str) -> None:
        write_synced(self.staging / name, text)
        (self.staging / name).replace(self.root / name)
        sync_folder(self.root)


def _parsed(text: bytes, file: Path) -> dict[str, Any]:
    content = json_object(text)
    if content is None:
        raise ValueError(f"{file} is damaged; delete its folder and simulate again.")
    return content


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
    part: Part | None = None,
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
        part: of several processes with the same call, which draw the masks between them; by default the only one. What
            is drawn stays so, whatever the number of parts of a later call.

    Returns:
        The manifest, sorted by name; empty for a part that ends before all masks are drawn.

    Raises:
        ValueError: before anything is written, when an argument is out of range, a folder does not fit, or ``out``
            holds anything else, such as a simulation with other parameters or of other files.
        TypeError: when ``make_noise`` makes nothing ``Randomizable``.
        FileNotFoundError: when there is no folder ``source``.
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
    part = part or Part()
    own = part.own(names)
    folder = SimulationFolder(root, part)

    def job(name: str, empty_foreground: float | None, make: MakeNoise) -> CaseJob:
        return CaseJob(name, source / name, folder.staging, make, foreground, own_classes, empty_foreground, seed)

    with folder.claimed():
        with folder.exchange.alone():
            record = folder.record()
            if record is not None:
                _refuse_other_record(record, asked, source, root)
            folder.refuse_foreign_files(names)
            finished = folder.finished()
            if record is None:
                jobs = [job(name, None, make_noise) for name in names]
                record = {**asked, "source": str(source), "empty_foreground": None, "calibration": None}
                if foreground is None and classes is None:
                    record["empty_foreground"] = _first_foreground(jobs)
                if calibrate is not None:
                    record["calibration"] = _calibration(calibrate, jobs, seed)
            if finished is None:
                folder.begin(record)
        known = folder.exchange.rows() if finished is None else {entry["case"]: entry for entry in finished}
        done = _verified(folder, source, {name: known[name] for name in own if name in known}, finished is not None)
        if finished is not None:
            folder.clean()
            return finished
        if record["calibration"] is not None:
            make_noise = partial(make_noise, num_steps=record["calibration"]["num_steps"])
        jobs = [job(name, record["empty_foreground"], make_noise) for name in own if name not in done]
        try:
            bar = Console(stderr=True)
            with folder.exchange.noting() as note, closing(_run(jobs, min(workers, len(jobs)))) as results:
                for entry, staged in track(results, "Simulating", len(jobs), console=bar, disable=not progress):
                    folder.place(entry, staged, note)
                    known[entry["case"]] = entry
            with folder.exchange.gathered(names) as entries:
                return folder.finish(entries) if entries else []
        except BaseException:
            if not known:  # nothing binds the folder to these options, which may have been the mistake
                folder.forget()
            raise


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


def _refuse_other_record(record: Mapping[str, Any], asked: Mapping[str, Any], source: Path, root: Path) -> None:
    for key, value in asked.items():
        if key in ("cases", "names_sha256") and record.get(key) != value:
            raise ValueError(
                f"{source} holds other masks than when {root} was begun ({record.get('cases')} then, "
                f"{asked['cases']} now); choose another folder for the noisy ones."
            )
        if record.get(key) != value:
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


def _verified(
    folder: SimulationFolder, source: Path, entries: Mapping[str, Mapping[str, Any]], is_finished: bool
) -> list[str]:
    """Return which entries are done, after a check that neither the masks nor the noisy files are others by now."""
    done = []
    for name, entry in entries.items():
        if sha256(source / name) != entry["source_sha256"]:
            raise ValueError(
                f"{source / name} has changed since {folder.root} was made from it; choose another folder for the "
                "noisy masks."
            )
        file = folder.root / name
        if not is_finished and not file.exists():
            continue  # it is made again
        if not file.exists() or sha256(file) != entry["sha256"]:
            state = "has changed since it was written" if file.exists() else "is missing"
            raise ValueError(f"{file} {state}; choose another folder, or delete {folder.root} to simulate again.")
        done.append(name)
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


def _run(jobs: Sequence[CaseJob], workers: int) -> Generator[tuple[dict[str, Any], Path], None, None]:
    """Simulate as many cases at once as there are workers, so that memory and Ctrl-C wait for no more than these."""
    if workers <= 1:
        yield from map(simulate_case, jobs)
        return
    # not "fork", which hangs when the parent has threads
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload([__name__])
    running: set[Future[tuple[dict[str, Any], Path]]] = set()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            for job in jobs:
                if len(running) == workers:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
                running.add(pool.submit(simulate_case, job))
            yield from (future.result() for future in as_completed(running))
        except BrokenProcessPool as error:
            raise SimulationError("A process ended, perhaps for lack of memory; use fewer workers.") from error


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed parent cannot end its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # type: ignore[func-returns-value]
