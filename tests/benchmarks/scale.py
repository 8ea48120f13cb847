"""Memory and time per case of a relabelling round: ``python tests/benchmarks/scale.py 1000 20000``.

Both should be as large at the last case as at the first, however many there are.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.transforms import Compose, LoadImaged, SelectItemsd
from monai.utils import convert_to_tensor

from monai_sc.functional import shift_boundary
from monai_sc.handlers import SpatialCorrectionHandler
from monai_sc.store import LabelStore, RoundWriter
from monai_sc.transforms import LoadLabeld

SIZE = 32


class Dilated(torch.nn.Module):
    """Finds a boundary that is three voxels too far out: the image tells the distance to the true one."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + 3 + 0 * self.unused


def write_cases(folder, prefix, number, shift):
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:SIZE, :SIZE]
    cases = []
    for k in range(number):
        image = (8 + k % 4 - np.hypot(y - 16, x - 15 - k % 2)).astype(np.float32)
        files = {"image": image, "label": shift_boundary((image >= 0).astype(np.uint8)[None], shift)[0]}
        case = {"id": f"{prefix}{k}"}
        for kind, array in files.items():
            file = folder / f"{prefix}{k}_{kind}.nii"
            nib.save(nib.Nifti1Image(array, np.eye(4)), file)
            case[kind] = str(file)
        cases.append(case)
    return cases


def memory():
    """Return the resident memory of this process in MB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def build(folder, number, *, epochs=1, rounds=1):
    """Return the trainer, the handler and the store of a run that never finds its labels right."""
    store = LabelStore(folder / "labels", write_cases(folder / "train", "case", number, 3.0))
    clean = write_cases(folder / "clean", "clean", 6, 0.0)
    image = LoadImaged("image", image_only=True, ensure_channel_first=True)
    both = Compose([image, LoadLabeld("label"), SelectItemsd(["id", "image", "label"])])
    relabel = Compose([image, SelectItemsd(["id", "image"])])
    network = Dilated()
    handler = SpatialCorrectionHandler(
        store,
        clean_loader=DataLoader(Dataset(clean, both), batch_size=2),
        relabel_loader=DataLoader(Dataset(store.cases, relabel), batch_size=8),
        epochs_per_round=epochs,
        progress=False,
    )
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs * (rounds + 1),
        epoch_length=1,
        train_data_loader=DataLoader(Dataset(store.datalist(), both), batch_size=2),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.0),
        loss_function=lambda p, y: convert_to_tensor(p, track_meta=False).sum() * 0,
        train_handlers=[handler],
    )
    return trainer, handler, store


def measure(number):
    marks = []
    write = RoundWriter.write

    def marked(writer, *arguments, **details):
        changed = write(writer, *arguments, **details)
        marks.append(time.perf_counter())
        if len(marks) in (number // 10, number):
            memories.append(memory())
        return changed

    memories = []
    RoundWriter.write = marked
    with tempfile.TemporaryDirectory() as name:
        trainer, _, store = build(Path(name), number)
        trainer.run()
        steps = 1000 * np.diff(marks)
        tenth = number // 10
        begin = time.perf_counter()
        assert len(store.manifest(1)) == number
        manifest = time.perf_counter() - begin
    first, last = np.median(steps[:tenth]), np.median(steps[-tenth:])
    print(
        f"{number:6d} cases: {memories[0]} MB after a tenth of them, {memories[1]} MB after all; median {first:.1f} ms "
        f"a case in the first tenth, {last:.1f} ms in the last; the manifest is read in {manifest:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[1:]] or [1000]
    if len(numbers) == 1:
        measure(numbers[0])
    else:  # each in a process of its own, so that none sees the memory of another
        for number in numbers:
            subprocess.run([sys.executable, __file__, str(number)], check=True)
