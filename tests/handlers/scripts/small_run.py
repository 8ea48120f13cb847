"""A small run with everything that has a state: batch norm, dropout, random transforms, schedule, several rounds.

    python small_run.py DATA OUT [--workers N] [--fail-on-rank R] ...

writes the result, which does not depend on interruptions or on the number of processes, to OUT/result.json.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import signal
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.distributed as dist
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader, Dataset, DistributedSampler
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler, MeanDice, from_engine
from monai.networks.layers import Conv, Norm
from monai.transforms import AsDiscreted, Compose, LoadImaged, RandAxisFlipd, SelectItemsd
from monai.utils import convert_to_tensor, set_determinism

from monai_sc.benchmark.methods import ConfidentLearningHandler
from monai_sc.correction import SpatialCorrector
from monai_sc.functional import shift_boundary
from monai_sc.handlers import ResumeHandler, SpatialCorrectionHandler
from monai_sc.parallel import gather
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld

SHAPE = (32, 32)
CLASSES = ["large", "small"]


class Net(torch.nn.Module):
    """Nearly the image, which holds minus the distance to the true boundary of each class."""

    def __init__(self, norm=True, ndim=2):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(1, len(CLASSES), *(1,) * ndim))
        self.conv = Conv["conv", ndim](len(CLASSES), len(CLASSES), 3, padding=1)
        self.norm = Norm["batch", ndim](len(CLASSES)) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(0.2 if norm else 0.0)

    def forward(self, x):
        return x + self.offset + 0.1 * self.dropout(self.norm(self.conv(x)))


class AsTwoProcesses(torch.utils.data.Sampler):
    """The cases of a data set, which may get fewer, in the order in which two processes share them."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter([i for i in (0, 2, 1, 3, 4, 6, 5, 7) if i < len(self.dataset)])

    def __len__(self):
        return len(self.dataset)


def write_cases(folder, number, shifts, prefix, shape=SHAPE, pairs=0):
    """Write discs or balls whose labels are dilated, by one of the shifts after the other; return the case list.

    So many cases name their true label too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for k in range(number):
        center = np.array([shape[0] // 2 + k % 2, shape[1] // 2 - 1, *(n // 2 for n in shape[2:])])
        away = np.linalg.norm(np.moveaxis(np.indices(shape), 0, -1) - center, axis=-1)
        distances = np.stack([r + k % 3 - away for r in (9, 5)]).astype(np.float32)
        case = {"id": f"{prefix}{k}"}
        for name, distance in zip(CLASSES, distances, strict=True):
            label = shift_boundary((distance >= 0).astype(np.uint8)[None], shifts[k % len(shifts)])[0]
            kinds = [("image", distance), ("label", label)]
            if k < pairs:
                kinds.append(("clean_label", (distance >= 0).astype(np.uint8)))
            for kind, array in kinds:
                file = folder / f"{prefix}{k}_{name}_{kind}.nii.gz"
                if not file.exists():
                    nib.save(nib.Nifti1Image(array, np.diag([0.5, 0.5, 0.5, 1.0])), file)
                case.setdefault(kind, []).append(str(file))
        cases.append(case)
    return cases


def loss(logits, label):
    logits, label = (convert_to_tensor(x, track_meta=False) for x in (logits, label))
    return 20 * torch.nn.functional.binary_cross_entropy_with_logits(logits, label.float())


def build(
    data,
    out,
    *,
    number=8,
    shape=SHAPE,
    epochs=2,
    rounds=2,
    workers=0,
    random=True,
    micro_batches=1,
    confident=False,
    pairs=0,
):
    """Return the trainer, the handler and the store of a run; what is random in it needs one number of processes."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    set_determinism(0)
    # Confident learning finds what differs between the folds, which take every second case.
    shifts = [0.0, 4.0] if confident else [4.0]
    if pairs:  # errors that a shift cannot take away are left for the network
        shifts = [4.0, 3.0, 4.0, 5.0]
    cases = write_cases(data, number, shifts, "case", shape, pairs)
    clean = write_cases(data, 5, [0.0], "clean", shape)
    store = LabelStore(out / "labels", cases, class_names=CLASSES, config_version="1.2.3")
    image = LoadImaged("image", image_only=True, ensure_channel_first=True)
    label = [LoadLabeld("label"), SelectItemsd(["id", "image", "label"])]
    flips = [RandAxisFlipd(["image", "label"], prob=0.5)] if random else []
    training = CacheDataset(store.datalist(), Compose([image, *label, *flips]), progress=False)
    if ranks > 1:
        sampler = {"sampler": DistributedSampler(training, shuffle=False)}
    elif micro_batches == 2:  # the batches of two processes, one after the other
        sampler = {"sampler": AsTwoProcesses(training)}
    else:
        sampler = {"shuffle": random}
    train_loader = DataLoader(training, batch_size=2, num_workers=workers, **sampler)
    clean_loader = DataLoader(Dataset(clean, Compose([image, *label])), batch_size=2)
    relabel = Dataset(store.cases, Compose([image, SelectItemsd(["id", "image"])]))
    network = Net(norm=random, ndim=len(shape))
    if ranks > 1:
        network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.7)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=clean_loader,
        network=network,
        postprocessing=AsDiscreted("pred", threshold=0.0),
        key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    )
    common = {
        "relabel_loader": DataLoader(relabel, batch_size=3),
        "epochs_per_round": epochs,
        "lr_scheduler": schedule,
        "progress": False,
    }
    if confident:
        handler = ConfidentLearningHandler(store, **common, folds=rounds)
    else:
        handler = SpatialCorrectionHandler(
            store,
            SpatialCorrector(store.class_names, **({} if pairs else {"representation": "logit", "gamma": 0.6})),
            **common,
            clean_loader=clean_loader,
            evaluator=evaluator,
            checks_per_round=2,
        )
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs * (rounds + 1),
        train_data_loader=train_loader,
        network=network,
        optimizer=optimizer,
        loss_function=loss,
        train_handlers=[LrScheduleHandler(schedule, print_lr=False), handler],
        **({"accumulation_steps": micro_batches} if micro_batches > 1 else {}),
    )
    parts = {
        "model": network,
        "optimizer": optimizer,
        "lr_scheduler": schedule,
        "trainer": trainer,
        "correction": handler,
    }
    ResumeHandler(out / "checkpoint.pt", parts).attach(trainer)
    return trainer, handler, store


def digest(content):
    return hashlib.sha256(content).hexdigest()


def result_of(trainer, handler, store):
    """Return everything that a run leaves behind, as JSON types."""
    network = getattr(trainer.network, "module", trainer.network)
    return {
        "history": json.loads(json.dumps([handler.record] if hasattr(handler, "record") else handler.history)),
        "current": store.current,
        "rounds": store.rounds,
        "manifests": {number: store.manifest(number) for number in store.rounds[1:]},
        "labels": {
            f"{number}/{case['id']}": [digest(Path(file).read_bytes()) for file in case["label"]]
            for number in store.rounds
            for case in store.datalist(number)
        },
        "weights": {name: w.tolist() for name, w in network.state_dict().items()},
    }


def train(options):
    rank = int(os.environ.get("RANK", 0))
    random = not options.fixed
    trainer, handler, store = build(
        options.data,
        options.out,
        workers=options.workers,
        random=random,
        micro_batches=options.micro_batches,
        confident=options.confident,
        pairs=options.pairs,
    )

    def break_down(*_):
        if rank == options.fail_on_rank:
            raise RuntimeError("the scanner is on fire")
        if rank == options.kill_on_rank:
            os.kill(os.getpid(), signal.SIGKILL)

    if options.at == "training":
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), break_down)
    elif options.at == "evaluation":
        handler.evaluator.add_event_handler(Events.ITERATION_STARTED(once=1), break_down)
    else:
        write = type(store).read
        store.read = lambda *arguments: break_down() or write(store, *arguments)
    trainer.run()
    if rank == 0:
        text = json.dumps(result_of(trainer, handler, store), indent=1)
        (options.out / "result.json").write_text(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="nothing random, so that processes make no difference")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--confident", action="store_true", help="confident learning instead of the correction")
    parser.add_argument("--pairs", type=int, default=0, help="cases that name a clean label; the choice is free then")
    parser.add_argument("--fail-on-rank", type=int)
    parser.add_argument("--kill-on-rank", type=int)
    parser.add_argument("--at", choices=["training", "relabelling", "evaluation"], default="training")
    options = parser.parse_args()
    if "RANK" in os.environ:
        meeting = os.environ.get("RENDEZVOUS")  # a file; without it the port that torchrun gives
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}" if meeting else None,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
    train(options)
    if dist.is_initialized():
        # What is left of a network, or a process that outlives the other one, now and then makes gloo abort at the end.
        gc.collect()
        gather()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
