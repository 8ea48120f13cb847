"""What reads and writes label files: the label store, whole and damaged, and the transforms that load labels."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor

from monai_sc.benchmark.methods import CaseMemory
from monai_sc.files import check_cases
from monai_sc.store import LabelStore, usable_cases
from monai_sc.transforms import LoadLabel, LoadLabeld

from .files import contents, damage, edit_json, nifti, picture, volume
from .inputs import Call, Draw


def case_of(draw: Draw, folder: Path, name: str) -> dict[str, str]:
    """Write the file of a case, and return the case."""
    values, affine = volume(draw)
    file = folder / f"{name}.nii.gz"
    nifti(draw, file, values, affine)
    return {"id": name, "image": str(file), "label": str(file)}


def store(draw: Draw) -> Call:
    """A label of a file, written as a new round and read again."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case = case_of(draw, folder / "in", "a")
            file = Path(case["label"])
            if draw.is_wrong("type"):
                damage(draw, file)
            before = contents(folder / "in")
            try:
                store = LabelStore(folder / "store", [case])
                label = ~store.read("a", 0)
                label = label[..., :1] if draw.is_wrong("shape") else label
                with store.write_round(1, {}) as writer:
                    writer.write(draw.option(("a",), ("b",)), label)
                written = nib.load(store.files(store.root / "round-001", store.cases[0])[0])
                same = bool((store.read("a", 1) == label).all()) and store.datalist()[0]["label"] != case["label"]
                return same and np.array_equal(written.affine, nib.load(file).affine, equal_nan=True)
            finally:
                assert contents(folder / "in") == before, "an original was changed"
                assert not list((folder / "store").glob(".*.partial")), "half a round was left"

    return Call([], run, bool)


def damaged_store(draw: Draw) -> Call:
    """A store of which one file is not what it was: it is told, or is of no matter, and nothing else is changed."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            draw.flaws = set()
            cases = [case_of(draw, folder / "in", case_id) for case_id in ("a", "b")]
            made = LabelStore(folder / "store", cases)
            with made.write_round(1, {"bias": [0.5]}) as writer:
                for case in cases:
                    writer.write(case["id"], ~made.read(case["id"], 0))
            texts = ["store.json", "current.json", "round-001/round.json", "round-001/manifest.jsonl"]
            file = made.root / draw.one([*texts, *texts, "round-001/a/class_0.nii.gz"])
            whole = file.read_bytes()
            (edit_json if file.suffix != ".gz" and draw.happens(0.7) else damage)(draw, file)
            damaged = not file.is_file() or file.read_bytes() != whole
            before = contents(folder / "in", made.root / "round-001")
            try:
                store = LabelStore.open(folder / "store")
                numbers = store.rounds
                assert store.current in numbers
                changed = [file for number in numbers[1:] for file in store.changed_labels(number)]
                store.refuse_changed_sources()
                if not damaged or file.suffix == ".gz":
                    assert bool(changed) == damaged, "a changed label was not noticed"
                store.datalist()
                [*store.diff(0)]
                return set(numbers) <= {0, 1}
            finally:
                assert contents(folder / "in", made.root / "round-001") == before, "a file was changed"

    return Call([], run, bool)


def case_list(draw: Draw) -> Call:
    """A list of cases of which some do not exist, are damaged, or are there twice."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cases = [case_of(draw, folder, f"case {k}") for k in range(draw.option((1, 2, 3), (0,)))]
            if cases and draw.is_wrong("type"):
                damage(draw, Path(cases[0]["label"]))
            if cases and draw.is_wrong("option"):
                wrong = draw.one(
                    ({"id": draw.one(("", "../a", 3, "con\x00", ".a"))}, {"foreground": 0}, {"image": []}, {"label": 3})
                )
                cases[-1] |= wrong
            if len(cases) > 1 and draw.is_wrong("shape"):
                cases[1] |= {draw.one(("id", "image", "label")): cases[0]["id" if draw.happens(0.5) else "image"]}
            before = contents(folder)
            check_cases(cases)
            usable = usable_cases(cases, on_bad_case=draw.one(("raise", "skip")), progress=False)
            assert contents(folder) == before, "a file was changed"
            return len(usable) + len(usable.skipped) == len(cases) and len(usable) > 0

    return Call([], run, bool)


def load_label(dictionary: bool):
    def target(draw: Draw) -> Call:
        """One file per class, or a label map."""

        def run():
            with tempfile.TemporaryDirectory() as name:
                values, affine = volume(draw)
                number = draw.option((1, 1, 2), (0,))
                as_map = draw.happens(0.3)
                foreground = None if as_map else draw.option((None, 1, 255), (0, -1, np.nan, "1"))
                if foreground == 255:
                    values = np.where(values == 1, 255, values)
                is_picture = values.ndim == 2 and values.size > 0 and draw.happens(0.5)
                files = [Path(name) / f"{k}{'.png' if is_picture else '.nii.gz'}" for k in range(number)]
                for file in files:
                    content = values[..., :1] if file != files[0] and draw.is_wrong("shape") else values
                    picture(draw, file, content) if is_picture else nifti(draw, file, content, affine)
                damaged = bool(files) and draw.is_wrong("type")
                if damaged:
                    damage(draw, files[-1])
                classes = list(draw.option(((1,), (1, 2)), ((0,), (1, 1), (0.5,)))) if as_map else None
                given = str(files[0]) if number == 1 else [str(file) for file in files]
                if dictionary:
                    data = {"label": given, "id": "a"} | ({} if foreground is None else {"foreground": foreground})
                    result = LoadLabeld("label", values=classes)(data)
                    assert result["id"] is data["id"]
                    label = result["label"]
                else:
                    label = LoadLabel(foreground=foreground, values=classes)(given)
                own = max(1, values.max()) if foreground is None and not as_map else foreground
                expected = np.stack([values == c for c in classes] if as_map else [values == own] * number)
                # of a file in which one bit has changed, only a checksum that the reader does not ask for would tell
                return isinstance(label, MetaTensor) and (damaged or bool((label.numpy() == expected).all()))

        return Call([], run, bool)

    return target


def case_memory(draw: Draw) -> Call:
    """Maps of cases, kept in memory or in a folder, are what they were, or nothing is changed."""

    def run():
        with tempfile.TemporaryDirectory() as name:
            memory = CaseMemory(Path(name) / "maps" if draw.happens(0.5) else None, dtype=draw.one(("float16", "bool")))
            maps = {case_id: draw.mask(draw.shape()) == 1 for case_id in ("a", "b")}
            memory.replace([(case_id, MetaTensor(torch.as_tensor(one))) for case_id, one in maps.items()])

            def interrupted():
                yield "a", MetaTensor(torch.zeros(1, 1))
                yield draw.option(("c",), ("A", "../a", "", 3, "a\x00")), MetaTensor(torch.zeros(1, 1))
                raise ZeroDivisionError

            try:
                with suppress(ZeroDivisionError):
                    memory.replace(interrupted())
            finally:
                now = {case_id: memory.read(case_id).numpy() > 0.5 for case_id in maps}
                assert all(np.array_equal(now[case_id], one) for case_id, one in maps.items()), "a map was changed"
            other = CaseMemory(memory.folder, dtype=str(memory.dtype))
            other.load_state_dict(memory.state_dict())
            assert np.array_equal(other.read("a"), memory.read("a"))
            return memory.read("c") is None

    return Call([], run, bool)


TARGETS = {
    "LabelStore": store,
    "LabelStore, damaged": damaged_store,
    "usable_cases": case_list,
    "LoadLabel": load_label(dictionary=False),
    "LoadLabeld": load_label(dictionary=True),
    "CaseMemory": case_memory,
}
