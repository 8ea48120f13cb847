"""The commands that read folders of labels: what they are given stays as it is, and a refusal leaves no result."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from monai_sc.__main__ import main

from .file_targets import case_of
from .files import contents, damage, edit_json, nifti, save_nifti, volume
from .inputs import Call, Draw

Files = Callable[[Draw, Path], list[str]]
"""Writes the files of a command into a folder, and returns its arguments; results go into ``out`` in the folder."""


class ToldError(ValueError):
    """What a command refused, in one sentence, with its exit status."""

    def __init__(self, told: str, status: int) -> None:
        super().__init__(told)
        self.status = status


def run_command(arguments: list[str], statuses: tuple[int, ...] = (2,)) -> dict[str, Any]:
    """Return the result of a command.

    Raises:
        ToldError: with the sentence, when it was refused with one of these statuses.
    """
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        status = main([*arguments, "--json", "--quiet"])
    if status in statuses:
        line = told.getvalue().strip()
        assert line.startswith("Error: "), line
        raise ToldError(line, status)
    assert status == 0, told.getvalue()
    return json.loads(out.getvalue())


def command(
    write: Files,
    is_right: Callable[[Path, dict[str, Any]], bool],
    statuses: tuple[int, ...] = (2,),
    may_change: tuple[str, ...] = (),
):
    def target(draw: Draw) -> Call:
        def run():
            with tempfile.TemporaryDirectory() as name:
                folder, out = Path(name), Path(name) / "out"
                arguments = write(draw, folder)
                before = {file: text for file, text in contents(folder).items() if file.name not in may_change}
                try:
                    result = run_command(arguments, statuses)
                except ToldError as error:
                    if error.status == 2:  # else what is done stays, to be gone on with
                        assert not out.exists(), "a refusal has left something"
                    raise
                finally:
                    after = contents(folder)
                    assert {file: after.get(file) for file in before} == before, "a file was changed"
                return is_right(folder, result)

        return Call([], run, bool)

    return target


def label_files(draw: Draw, folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Write a label and a clean label of one case, which is often the same one, a voxel further."""
    values, affine = volume(draw)
    nifti(draw, folder / "labels" / name, values, affine)
    if draw.is_wrong("shape"):
        nifti(draw, folder / "clean" / name, *volume(draw))
    else:
        nifti(draw, folder / "clean" / name, np.roll(values, 1, axis=0), affine)
    return values, affine


def spoil(draw: Draw, folder: Path) -> None:
    """Damage one of the files that were written, if that is what is wrong."""
    if draw.is_wrong("type"):
        damage(draw, draw.one([file for file in sorted(folder.rglob("*")) if file.is_file()]))


def audit(draw: Draw, folder: Path) -> list[str]:
    for k in range(draw.whole(1, 2)):
        label_files(draw, folder, f"{k}.nii.gz")
    spoil(draw, folder)
    arguments = ["audit", "--labels", f"{folder}/labels", "--clean", f"{folder}/clean"]
    arguments += draw.option(([],), (["--tolerance", "-1"], ["--names", "a,a"], ["--ignore-value", "x"], ["--unknown"]))
    return arguments + draw.option(([],), (["--clean", f"{folder}/none"], ["--out", f"{folder}/labels/out"]))


def was_audited(folder: Path, result: dict[str, Any]) -> bool:
    return all(-1e5 < (row["bias"] or 0) < 1e5 and 0 <= row["dice"] <= 1 for row in result["classes"].values())


def simulate(draw: Draw, folder: Path) -> list[str]:
    for k in range(draw.whole(1, 2)):
        nifti(draw, folder / "masks" / f"{k}.nii.gz", *volume(draw))
    spoil(draw, folder)
    steps = draw.option(("2", "0", "3"), ("-1", "x", "1e3", "1,2", ""))
    arguments = ["simulate", f"{folder}/masks", f"{folder}/out", f"--num-steps={steps}"]
    arguments += ["--expansion-prob", draw.option(("0.8", "0"), ("nan", "2")), "--march-prob", "0.5"]
    arguments += draw.option(([], ["--unit", "mm"], ["--flip-prob", "0.1"]), (["--classes", "0"], ["--seed", "-1"]))
    return arguments + draw.option(([],), (["--target-dice", "0.9"], ["--preset", "x"], ["--slice-axis", "3"]))


def was_simulated(folder: Path, result: dict[str, Any]) -> bool:
    for file in sorted((folder / "masks").iterdir()):
        source, noisy = nib.load(file), nib.load(folder / "out" / file.name)
        values = np.asarray(noisy.dataobj)
        allowed = np.union1d(np.asarray(source.dataobj), [0, 1])
        if noisy.header != source.header or not np.isin(values, allowed).all():
            return False
    return result["cases"] == len(list((folder / "masks").iterdir()))


def correct(draw: Draw, folder: Path) -> list[str]:
    kind, as_npz = draw.option(("logits", "probabilities"), ("labels",)), draw.happens(0.5)
    for k in range(draw.whole(1, 2)):
        values, affine = label_files(draw, folder, f"{k}.nii.gz")
        said = np.where(np.nan_to_num(values) > 0, 4.0, -4.0) + draw.rng.normal(size=values.shape)
        said = 1 / (1 + np.exp(-said)) if kind == "probabilities" else said
        said = said[..., :1] if draw.is_wrong("shape") else said
        said = said * np.nan if draw.is_wrong("values") else said
        (folder / "predictions").mkdir(exist_ok=True)
        if as_npz != draw.is_wrong("option"):
            key = "probabilities" if kind == "probabilities" else "logits"
            both = np.stack([1 - said, said] if kind == "probabilities" else [-said, said])
            np.savez(folder / "predictions" / f"{k}.npz", **{key: both.transpose(0, *range(said.ndim, 0, -1))})
        else:
            save_nifti(folder / "predictions" / f"{k}.nii.gz", said.astype(np.float32), affine)
    spoil(draw, folder)
    places = [f"--{part}={folder}/{part}" for part in ("predictions", "labels", "clean", "out")]
    arguments = ["correct", *places, "--no-report", *([] if as_npz and draw.happens(0.5) else ["--kind", kind])]
    arguments += draw.option(([],), (["--max-shift-mm", "-1"], ["--shape-weight", "nan"], ["--names", "a,b,c"]))
    return arguments + draw.option(([],), (["--trusted", f"{folder}/none"], [f"--out={folder}/labels"]))


def was_corrected(folder: Path, result: dict[str, Any]) -> bool:
    for file in sorted((folder / "labels").iterdir()):
        source, label = nib.load(file), nib.load(folder / "out" / file.name)
        clean = nib.load(folder / "clean" / file.name)
        allowed = [0, 1, *np.unique(np.asarray(source.dataobj)), *np.unique(np.asarray(clean.dataobj))]
        if label.header != source.header or not np.isin(np.asarray(label.dataobj), allowed).all():
            return False
    return result["cases"] == len(list((folder / "labels").iterdir()))


def restore(draw: Draw, folder: Path) -> list[str]:
    from monai_sc.store import LabelStore

    flaws, draw.flaws = draw.flaws, set()
    case = case_of(draw, folder / "in", "a")
    store = LabelStore(folder / "run" / "labels", [case])
    with store.write_round(1, {"bias": [None]}) as writer:
        writer.write("a", ~store.read("a", 0))
    draw.flaws = flaws
    files = [file for file in sorted(store.root.rglob("*.json*"))]
    if draw.is_wrong("values"):
        edit_json(draw, draw.one(files))
    if draw.is_wrong("type"):
        damage(draw, draw.one(files))
    number = draw.option(([], ["--round", "1"]), (["--round", "7"], ["--round", "-1"], ["--round", "x"]))
    return ["restore", f"{folder}/{draw.option(('run', 'run/labels'), ('in', 'none'))}", *number]


TARGETS = {
    "audit": command(audit, was_audited),
    "simulate": command(simulate, was_simulated, statuses=(1, 2)),  # 1 for a mask that cannot be read
    "correct": command(correct, was_corrected),
    "restore": command(
        restore, lambda folder, result: result["current"] in (0, 1), may_change=("current.json", "store.json")
    ),
}
