"""A comparison: methods that learn from noisy labels, on the noises and seeds of one bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monai.config import PathLike

from monai_sc.benchmark.cells import read_result
from monai_sc.benchmark.grid import CLEAN, WITHOUT_CLEAN_CASES, ComparedBundle, find_method, grid_cells
from monai_sc.benchmark.progress import GridProgress
from monai_sc.benchmark.runner import claimed, run_cells, settle
from monai_sc.benchmark.summary import Run, summarise
from monai_sc.benchmark.tables import PAPER_SIZES, PAPER_TOTALS, write_tables
from monai_sc.functional.checks import check_choice
from monai_sc.names import METHODS

SETTINGS = "comparison.json"


def compare(
    bundle: PathLike,
    out: PathLike,
    *,
    methods: Sequence[str] = METHODS,
    noises: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    dataset_dir: PathLike | None = None,
    quick: bool = False,
    protocol: str = "paper",
    overrides: Mapping[str, str] | None = None,
    jobs: int = 1,
    against: str = "sc",
    progress: bool = True,
) -> dict[str, Any]:
    """Train each method on each noise with each seed, and return what came of it.

    Each training is a process of its own in ``out/cells/NOISE/METHOD/seed-S``. The call may end at any time and in any
    way: the next one goes on, and may ask for more methods, noises or seeds. After each training ``results.csv``,
    ``results.json``, ``results.md`` and ``results.png`` in ``out`` are of all that is done there, by earlier calls too.

    Args:
        bundle: folder of the bundle.
        out: folder of the comparison, new or that of an earlier call with the same settings.
        methods: names of those that come with the package, or paths of configs of one's own.
        noises: ids under ``noises`` of the bundle; by default the one that it trains with.
        seeds: of noise and training.
        dataset_dir: of the bundle's data; by default ``data`` in its folder.
        quick: use the smaller settings of the bundle.
        protocol: ``"paper"``: the compared methods are trained on the clean cases first, and then with them, as the
            paper does; ``"plain"``: they do not see them. ``sc`` measures its bias on them in both.
        overrides: values of ids of the configs, for all trainings.
        jobs: trainings at the same time.
        against: the method that the others are compared with.
        progress: whether to show it.

    Raises:
        FileNotFoundError: when the bundle or a config is not there.
        ValueError: when a method, noise, id or protocol is unknown, ``out`` has other settings or is claimed by another
            process, or a config has changed since its cells were trained.
        CellsFailedError: at the end, when trainings have failed, such as for want of the data.
    """
    compared, folder, changed = ComparedBundle(bundle), Path(out), dict(overrides or {})
    chosen = dict(find_method(method) for method in methods)
    if len(chosen) < len(set(methods)):
        raise ValueError(f"methods must have different names, got {', '.join(methods)}.")
    wanted = list(dict.fromkeys([compared.train["noise"]] if noises is None else noises))
    compared.check_noises(wanted)
    check_choice(protocol, ("paper", "plain"), "protocol")
    with_clean = protocol == "paper" and any(method not in WITHOUT_CLEAN_CASES for method in chosen)
    compared.check_overrides(changed, list(chosen.values()), quick, with_clean=with_clean)
    if not (seeds and wanted and chosen):
        raise ValueError("A comparison needs at least one method, one noise and one seed.")
    if against not in (*METHODS, *chosen, *(run.method for run in find_runs(folder / "cells"))):
        raise ValueError(f"against must be one of {', '.join(METHODS)}, or the name of your own method, got {against}.")
    data = compared.folder / "data" if dataset_dir is None else Path(dataset_dir)
    settings = {
        "bundle": compared.name,
        "bundle_version": compared.version,
        "dataset_dir": str(data.resolve()),
        "quick": quick,
        "protocol": protocol,
        "overrides": {name: str(value) for name, value in changed.items()},
        "monai_sc": version("monai-sc"),
    }
    cells = grid_cells(
        compared,
        folder,
        methods=chosen,
        noises=wanted,
        seeds=list(dict.fromkeys(seeds)),
        dataset_dir=data,
        quick=quick,
        protocol=protocol,
        overrides=changed,
    )
    found: dict[str, Any] = {}

    def update() -> None:
        runs = find_runs(folder / "cells", wanted)
        found.update(summarise(runs, against=against, paper=PAPER_TOTALS.get(compared.name)))
        write_tables(folder, runs, found, settings, paper_size=PAPER_SIZES.get(compared.name, ()))

    with claimed(folder), ExitStack() as stack:
        settle(folder / SETTINGS, settings)
        watcher = stack.enter_context(GridProgress(cells, jobs=jobs)) if progress else None
        run_cells(cells, folder, jobs=jobs, watcher=watcher, update=update)
    return found


def find_runs(cells: Path, noises: Sequence[str] = ()) -> list[Run]:
    """Return what is done in a folder of cells ``NOISE/METHOD/seed-S``, in the order of tables.

    The results of the method ``clean``, which knows no noise, stand under each noise.
    """
    done = []
    for file in sorted(cells.glob("*/*/seed-*/result.json")):
        result, noise, method = read_result(file.parent), file.parts[-4], file.parts[-3]
        seed = file.parent.name.removeprefix("seed-")
        if result is not None and seed.lstrip("-").isdigit():
            done.append(Run(noise, method, int(seed), result))
    own = [run for run in done if run.method != CLEAN]
    all_noises = [*noises, *sorted({run.noise for run in own} - set(noises))]
    runs = own + [Run(noise, CLEAN, r.seed, r.result) for noise in all_noises for r in done if r.method == CLEAN]
    places = {name: k for k, name in enumerate(METHODS[:-2])}
    places |= {"sc": len(METHODS) + 1, CLEAN: len(METHODS) + 2}  # other people's methods before ours
    return sorted(runs, key=lambda r: (all_noises.index(r.noise), places.get(r.method, len(METHODS)), r.method, r.seed))
