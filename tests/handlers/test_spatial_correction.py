import hashlib
import logging
import math
import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events
from monai.data import (
    CacheDataset,
    DataLoader,
    Dataset,
    MetaTensor,
    PersistentDataset,
    SmartCacheDataset,
    ThreadDataLoader,
)
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler, MeanDice, SmartCacheHandler, from_engine
from monai.transforms import (
    AsDiscreted,
    BorderPadd,
    Compose,
    ConcatItemsd,
    CopyItemsd,
    EnsureTyped,
    Flipd,
    LoadImaged,
    Rotate90d,
    SelectItemsd,
    Spacingd,
)
from monai.utils import convert_to_tensor

from monai_sc.functional import shift_boundary
from monai_sc.handlers import ResumeHandler, RoundEvents
from monai_sc.reports import summarise_run
from monai_sc.reports.page import RunSource
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld
from tests.handlers.correcting import handler_of

SIZE = 40
AFFINE = np.diag([0.5, 0.5, 0.5, 1.0])


class Offset(torch.nn.Module):
    """Adds one learnt number per class to an image that holds minus the distance to the true boundary."""

    def __init__(self, start=0.0):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor(start))

    def forward(self, x):
        return x + self.offset


def distance_image(radius, centre=SIZE / 2):
    y, x = np.mgrid[:SIZE, :SIZE]
    return (radius - np.hypot(y - centre, x - centre)).astype(np.float32)


def make_cases(folder, number, shift, prefix="case"):
    """Write discs whose labels are dilated by ``shift``, and return the case list."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for k in range(number):
        image = distance_image(7 + k % 4)
        clean = (image >= 0).astype(np.uint8)
        label = shift_boundary(clean[None], shift)[0]
        case = {"id": f"{prefix}{k}"}
        for name, array in (("image", image), ("label", label), ("reference_label", clean)):
            file = folder / f"{prefix}{k}_{name}.nii.gz"
            nib.save(nib.Nifti1Image(array, AFFINE), file)
            case[name] = str(file)
        cases.append(case)
    return cases


def load_image():
    return LoadImaged("image", image_only=True, ensure_channel_first=True)


def build(
    tmp_path,
    *,
    shift=3.0,
    rounds=2,
    epochs=6,
    number=6,
    num_clean=4,
    pairs=0,
    dataset=Dataset,
    transforms=(),
    evaluate=False,
    network=None,
    **options,
):
    torch.manual_seed(0)
    cases = make_cases(tmp_path / "data", number, shift)
    for case in cases[:pairs]:
        case["clean_label"] = case["reference_label"]
    clean = make_cases(tmp_path / "data", num_clean, 0.0, "clean")
    store = LabelStore(tmp_path / "labels", cases, class_names=["disc"])
    select = SelectItemsd(["id", "image", "label"])
    loaders = {}
    for name, data, chain in (
        ("train", store.datalist(), [load_image(), LoadLabeld("label"), select]),
        ("clean", clean, [load_image(), LoadLabeld("label"), select]),
        ("relabel", store.cases, [load_image(), *transforms, SelectItemsd(["id", "image"])]),
    ):
        kind = {"dataset": Dataset} if name != "train" else {"dataset": dataset}
        loaders[name] = DataLoader(kind["dataset"](data, Compose(chain)), batch_size=2, shuffle=name == "train")
    network = Offset() if network is None else network
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    evaluator = None
    if evaluate:
        evaluator = SupervisedEvaluator(
            device=torch.device("cpu"),
            val_data_loader=loaders["clean"],
            network=network,
            postprocessing=AsDiscreted("pred", threshold=0.0),
            key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
        )
    options = {
        "epochs_per_round": epochs,
        "checks_per_round": 2,
        "lr_scheduler": scheduler,
        "evaluator": evaluator,
        "progress": False,
    } | options
    handler = handler_of(store, clean_loader=loaders["clean"], relabel_loader=loaders["relabel"], **options)

    def loss(logits, label):
        logits, label = (convert_to_tensor(x, track_meta=False) for x in (logits, label))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label.float()) * 40

    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs * (rounds + 1),
        train_data_loader=loaders["train"],
        network=network,
        optimizer=optimizer,
        loss_function=loss,
        train_handlers=[LrScheduleHandler(scheduler, print_lr=False), handler],
    )
    return trainer, handler, store


def build_resumable(tmp_path, **options):
    trainer, handler, store = build(tmp_path, **options)
    parts = {
        "model": trainer.network,
        "optimizer": trainer.optimizer,
        "lr_scheduler": handler.lr_scheduler,
        "trainer": trainer,
        "correction": handler,
    }
    ResumeHandler(tmp_path / "checkpoint.pt", parts).attach(trainer)
    return trainer, handler, store


def checksums(folder):
    return {
        file: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(folder).rglob("*"))
        if file.is_file()
    }


def flipped(file):
    """Return the content of a file with one bit flipped."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    return bytes(content)


def label_dice(store, number):
    pairs = [(store.read(case["id"], number), store.read_clean(case["id"])) for case in store.cases]
    return np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs])


@pytest.mark.parametrize(("shift", "sign"), [(3.0, -1), (-3.0, 1)], ids=["dilated-labels", "eroded-labels"])
def test_biased_labels_are_corrected_in_one_round(tmp_path, shift, sign):
    trainer, handler, store = build(tmp_path, shift=shift)
    originals = checksums(tmp_path / "data")
    assert handler.fitted is None
    trainer.run()
    first, second = handler.history
    assert handler.fitted.unit == 0.5  # in mm, of the network that was kept
    assert handler.fitted.bias.mean == pytest.approx(second["bias_mm"])
    assert first["bias"][0] == pytest.approx(3 * sign, abs=0.5)
    assert first["bias_mm"][0] == pytest.approx(first["bias"][0] * 0.5)
    assert abs(second["bias"][0]) < 1
    assert second["stop_reason"] == "the bias of every class is under one voxel"
    assert (first["num_used"], first["num_skipped"]) == ([4], [0])
    assert second["clean_dice"][0] > first["clean_dice"][0]
    assert store.current == 1
    assert label_dice(store, 0) < 0.8
    assert label_dice(store, 1) > 0.97
    assert first["voxels_changed"] == [sum(sum(e["voxels_changed"]) for e in store.manifest(1))]
    assert trainer.state.spatial_correction == handler.history
    assert checksums(tmp_path / "data") == originals


@pytest.mark.parametrize("representation", ["logit", "distance"])
def test_both_representations_improve_the_labels(tmp_path, representation):
    trainer, _handler, store = build(tmp_path, representation=representation, rounds=1)
    trainer.run()
    assert label_dice(store, 1) > label_dice(store, 0) + 0.15
    assert store.record(1)["options"]["representation"] == representation


def test_network_optimizer_and_schedule_restart_after_a_round(tmp_path):
    trainer, handler, _ = build(tmp_path, epochs=5)
    seen = []
    trainer.add_event_handler(
        Events.EPOCH_STARTED,
        lambda e: seen.append(
            (e.network.offset.item(), e.optimizer.param_groups[0]["lr"], handler.lr_scheduler.last_epoch)
        ),
    )
    trainer.run()
    assert seen[0] == seen[5] == (0.0, 1.0, 0)
    assert seen[4][1] == pytest.approx(0.1)


def test_unbiased_labels_stay_as_they_are(tmp_path):
    trainer, handler, store = build(tmp_path, shift=0.0)
    trainer.run()
    assert len(handler.history) == 1
    assert store.rounds == [0]
    assert trainer.state.epoch == 6


def test_loop_ends_at_the_last_epoch(tmp_path):
    trainer, handler, store = build(tmp_path, rounds=0)
    trainer.run()
    assert handler.history[-1]["stop_reason"].startswith("the last round of training is over")
    assert store.rounds == [0]


class Elsewhere(Offset):
    """Draws each object as large as it is, but beside its place."""

    def forward(self, x):
        return torch.roll(super().forward(x), 10, dims=-1)


@pytest.mark.parametrize("representation", ["auto", "distance", "logit"])
def test_network_that_has_learnt_nothing_gives_no_verdict(tmp_path, caplog, representation):
    trainer, handler, store = build(tmp_path, network=Elsewhere(), representation=representation)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    with caplog.at_level(logging.WARNING):
        trainer.run()
    (record,) = handler.history
    assert abs(record["bias"][0]) < 1  # though not a voxel is right
    assert (record["verdict"], record["learnt"], record["kept"]) == (["cannot tell"], [False], [True])
    assert store.rounds == [0]
    (score,) = record["dice_present"]
    told = f"the network has not learnt disc (Dice {score:.2f}), so that its bias cannot be told"
    assert record["stop_reason"] == f"there is no verdict; {told}: train longer"
    assert "that hold it, before the correction, the network has not learnt it; it corrects no labels" in caplog.text
    results = summarise_run(store, handler.history)
    (finding,) = (contents := RunSource(store, results, tmp_path).contents()).findings
    assert contents.headline.startswith("Whether the labels are biased cannot be told")
    assert finding.done == "labels left as they were given, since the network has not learnt the class"
    assert "the network has not learnt the class" in " ".join(finding.notes)


@pytest.mark.parametrize(("offset", "score", "learnt"), [(-6.0, 0.17, False), (-3.0, 0.6, True)])
def test_network_has_learnt_a_class_by_its_dice_before_the_correction(tmp_path, offset, score, learnt):
    trainer, handler, store = build(tmp_path, network=Offset(offset), rounds=1)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    record = handler.history[0]
    assert record["bias"][0] == pytest.approx(-offset, abs=0.7)
    assert record["dice_present"] == [pytest.approx(score, abs=0.05)]
    assert (record["verdict"], record["learnt"]) == (["biased" if learnt else "cannot tell"], [learnt])
    # A shift would bring the predictions to the truth, and the labels with them.
    assert record["correction"]["disc"]["held_out"]["after"] > 0.9
    assert (record["kept"], store.rounds) == (([False], [0, 1]) if learnt else ([True], [0]))


def test_clean_cases_without_the_class_do_not_make_it_one_that_was_not_learnt(tmp_path):
    trainer, handler, _ = build(tmp_path, rounds=0)
    image = distance_image(3)
    without = {"id": "without", "image": image[None], "label": np.zeros((1, SIZE, SIZE), dtype=bool)}
    held = {"id": "held", "image": distance_image(9)[None], "label": distance_image(9)[None] >= 0}
    handler.clean_loader = DataLoader(Dataset([held, *(without | {"id": str(k)} for k in range(3))]), batch_size=1)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    (record,) = handler.history
    assert record["clean_dice"] == [pytest.approx(0.25)]
    assert record["learnt"] == [True]
    assert record["dice_present"] == [1]


def test_after_the_first_epoch_it_says_what_a_round_takes(tmp_path, caplog):
    trainer, _, _ = build(tmp_path, rounds=0)
    with caplog.at_level(logging.INFO):
        trainer.run()
    assert re.search(r"Round 0: \d+ epochs? of training, the first took \d+ s; the clean cases are", caplog.text)
    assert re.search(
        r"Round 0, epoch 6 of 6: Dice on the clean cases, before the correction: disc 0\.\d{3}\.", caplog.text
    )


def test_interval_around_zero_stops_the_published_loop(tmp_path):
    trainer, handler, store = build(tmp_path, representation="distance")
    images = [distance_image(9) + 3, distance_image(9) - 4]  # one far too large, one far too small
    clean = [{"id": str(k), "image": i[None], "label": (distance_image(9) >= 0)[None]} for k, i in enumerate(images)]
    handler.clean_loader = DataLoader(Dataset(clean), batch_size=1)
    trainer.network.offset.data.fill_(0.0)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    assert abs(handler.history[0]["bias"][0]) < 1 or "interval" in handler.history[0]["stop_reason"]
    assert handler.fitted.bias.mean.tolist() == handler.history[0]["bias"]  # in voxels: no file says how large one is
    assert store.rounds == [0]


@pytest.mark.parametrize("offset", [6.0, -1000.0], ids=["worse", "collapsed"])
def test_worse_round_is_rolled_back(tmp_path, offset):
    trainer, handler, store = build(tmp_path, epochs=6, rounds=1, checks_per_round=1)
    trained = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        if engine.state.epoch == 6:
            trained[:] = [engine.network.offset.item()]

    @trainer.on(Events.EPOCH_STARTED(once=12))
    def spoil(engine):
        engine.network.offset.data.fill_(offset)
        engine.optimizer.param_groups[0]["lr"] = 0.0

    # the scheduler would set the rate again
    handler.lr_scheduler = None
    trainer.run()
    assert handler.history[1]["stop_reason"] == "the clean cases are predicted worse than in round 0"
    assert store.current == 0
    assert store.rounds == [0, 1]
    assert trainer.network.offset.item() == trained[0]


@pytest.mark.parametrize(("number", "stays"), [(3, False), (1, True)], ids=["prediction", "single-clean-case"])
def test_converged_class_gets_the_prediction_or_stays(tmp_path, number, stays):
    cases = make_cases(tmp_path / "data", 3, 3.0)
    for case in cases:  # two classes: a biased one and a clean one with a stray voxel
        stray = nib.load(case["reference_label"]).get_fdata().astype(np.uint8)
        stray[0, 0] = 1
        file = case["label"].replace("_label", "_second")
        nib.save(nib.Nifti1Image(stray, AFFINE), file)
        case["label"] = [case["label"], file]
        case.pop("reference_label")
    store = LabelStore(tmp_path / "labels", cases)
    images = [distance_image(9 + k)[None].repeat(2, 0) for k in range(number)]
    clean = [{"id": str(k), "image": image, "label": image >= 0} for k, image in enumerate(images)]

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            x = x[:, :1]
            return torch.cat([x + 3, x], dim=1) + 0 * self.unused

    network = Two()
    relabel = DataLoader(Dataset(store.cases, Compose([load_image(), SelectItemsd(["id", "image"])])), batch_size=1)
    handler = handler_of(
        store,
        clean_loader=DataLoader(Dataset(clean)),
        relabel_loader=relabel,
        epochs_per_round=1,
        progress=False,
    )
    train = DataLoader(
        Dataset(store.datalist(), Compose([load_image(), LoadLabeld("label"), SelectItemsd(["image", "label"])]))
    )
    SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=train,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=lambda p, y: (convert_to_tensor(p, track_meta=False) * 0).sum(),
        train_handlers=[handler],
    ).run()
    label = store.read("case0", 1)
    assert label[1, 0, 0] == stays
    assert (label[0] == (distance_image(7) >= 0)).mean() > 0.99
    assert store.record(1)["kept"] == [False, stays]


def test_class_that_is_never_predicted_keeps_its_labels_and_is_named(tmp_path, caplog):
    trainer, _handler, store = build(tmp_path, network=Offset(-1000.0))
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match=r"must have at least one usable case, but in all 4"):
        trainer.run()
    assert store.rounds == [0]


def test_undefined_class_among_others_is_left_alone(tmp_path, caplog):
    cases = make_cases(tmp_path / "data", 3, 3.0)
    for case in cases:
        case["label"] = [case["label"], case["reference_label"]]
        case.pop("reference_label")
    store = LabelStore(tmp_path / "labels", cases, class_names=["disc", "ghost"])

    class Ghost(Offset):
        def forward(self, x):
            return torch.cat([x[:, :1] + 3 + 0 * self.offset, x[:, :1] - 1000], dim=1)

    network = Ghost()
    image = distance_image(9)[None]
    clean = [{"id": "c", "image": image, "label": (image >= 0).repeat(2, 0)}]
    handler = handler_of(
        store,
        clean_loader=DataLoader(Dataset(clean)),
        relabel_loader=DataLoader(Dataset(store.cases, Compose([load_image(), SelectItemsd(["id", "image"])]))),
        epochs_per_round=1,
        progress=False,
    )
    chain = Compose([load_image(), LoadLabeld("label"), SelectItemsd(["image", "label"])])
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=3,  # one is lost, since a class that is not predicted is a collapse
        train_data_loader=DataLoader(Dataset(store.datalist(), chain)),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=lambda p, y: (convert_to_tensor(p, track_meta=False) * 0).sum(),
        train_handlers=[handler],
    )
    with caplog.at_level(logging.WARNING):
        trainer.run()
    assert math.isnan(handler.history[0]["bias"][1])
    assert handler.history[0]["num_skipped"] == [0, 1]
    assert "Round 0, ghost: the bias is undefined" in caplog.text
    for case in store.cases:
        np.testing.assert_array_equal(store.read(case["id"], 1)[1], store.read(case["id"], 0)[1])
        assert (store.read(case["id"], 1)[0] != store.read(case["id"], 0)[0]).any()


@pytest.mark.filterwarnings("ignore:cache_num is greater or equal than dataset length:UserWarning")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 0) for kind in ("plain", "cache", "smart-part", "smart-whole", "persistent", "thread")),
        *((kind, 2) for kind in ("plain", "cache", "smart-whole", "persistent")),
    ],
)
def test_whatever_caches_the_training_data_sees_the_new_labels_only(tmp_path, kind, workers):
    def dataset(data, transform):
        if kind == "plain":
            return Dataset(data, transform)
        if kind == "persistent":
            return PersistentDataset(data, transform, cache_dir=tmp_path / "cache", track_meta=True, weights_only=False)
        if kind.startswith("smart"):
            number = 4 if kind == "smart-part" else 6
            return SmartCacheDataset(data, transform, replace_rate=0.5, cache_num=number, progress=False)
        return CacheDataset(data, transform, progress=False, num_workers=None)

    trainer, _handler, store = build(tmp_path, dataset=dataset, epochs=2, rounds=2, representation="logit", gamma=0.4)
    loader = DataLoader if kind != "thread" else ThreadDataLoader
    trainer.data_loader = loader(
        trainer.data_loader.dataset, batch_size=2, shuffle=True, num_workers=workers if loader is DataLoader else 0
    )
    trainer.state.epoch_length = len(trainer.data_loader)
    trainer.state.dataloader = trainer.data_loader
    if kind.startswith("smart"):
        SmartCacheHandler(trainer.data_loader.dataset).attach(trainer)
    seen = {}

    @trainer.on(Events.ITERATION_COMPLETED)
    def measure(engine):
        for item in engine.state.batch:
            seen.setdefault((engine.state.epoch - 1) // 2, {}).setdefault(item["id"], set()).add(
                int(item["label"].sum())
            )
            assert isinstance(item["label"], MetaTensor)
            np.testing.assert_array_equal(item["label"].affine, AFFINE)

    trainer.run()
    assert len(seen) >= 2
    for number, sizes in seen.items():
        for case_id, own in sizes.items():
            assert own == {int(store.read(case_id, number).sum())}


def test_smart_cache_has_one_number_of_cases(tmp_path):
    def dataset(data, transform):
        return SmartCacheDataset(data, transform, cache_num=4, progress=False)

    trainer, _handler, _store = build(tmp_path, dataset=dataset, epochs=1, folds=2, rounds=5)
    with pytest.raises(ValueError, match=r"folds must be 1 with a SmartCacheDataset"):
        trainer.run()


def test_clean_case_that_is_also_trained_on_is_refused(tmp_path):
    trainer, handler, store = build(tmp_path)
    clean = handler.clean_loader.dataset
    clean.data = [*clean.data, {**store.cases[2], "id": "renamed"}]
    with pytest.raises(
        ValueError, match=r"'renamed' has the image of 'case2', .*case2_image\.nii\.gz: leave it out of one list"
    ):
        trainer.run()


@pytest.mark.parametrize("name", ["clean_loader", "relabel_loader"])
def test_persistent_data_set_without_metadata_is_refused(tmp_path, name):
    trainer, handler, _ = build(tmp_path)
    loader = getattr(handler, name)
    data = PersistentDataset(loader.dataset.data, loader.dataset.transform, cache_dir=None)
    setattr(handler, name, DataLoader(data, batch_size=2))
    with pytest.raises(ValueError, match=rf"PersistentDataset of {name} must have track_meta=True"):
        trainer.run()


def test_label_file_that_changed_since_a_round_stops_the_run(tmp_path):
    trainer, _handler, store = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=8), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert store.rounds == [0, 1]
    rounds = checksums(tmp_path / "labels")
    trainer, _handler, store = build_resumable(tmp_path)  # which writes all files anew, with the same content
    label = store.cases[1]["label"]
    nib.save(nib.Nifti1Image(np.zeros((SIZE, SIZE), dtype=np.uint8), AFFINE), label)
    with pytest.raises(ValueError, match=r"must stay as they were .*case1_label\.nii\.gz has changed, and 0 more"):
        trainer.run()
    assert checksums(tmp_path / "labels") == rounds


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(flipped(file)), Path.unlink], ids=["bit", "gone"])
def test_label_of_a_round_that_changed_since_stops_the_run(tmp_path, change):
    trainer, _handler, store = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=8), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    change(Path(store.datalist(1)[2]["label"]))
    trainer, _handler, _store = build_resumable(tmp_path)
    with pytest.raises(ValueError, match=r"round 1 must stay as they .*case2/disc\.nii\.gz (has c|is g).*, and 0 m"):
        trainer.run()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["clean_loader", "relabel_loader"])
def test_image_that_is_damaged_during_a_run_is_named(tmp_path, name, workers):
    trainer, handler, _store = build(tmp_path)
    loader = getattr(handler, name)
    setattr(handler, name, DataLoader(loader.dataset, batch_size=2, num_workers=workers))
    image = Path(loader.dataset.data[-1]["image"])
    trainer.add_event_handler(Events.EPOCH_STARTED(once=6), lambda: image.write_bytes(image.read_bytes()[:-200]))
    # The relabel loader's images are those of the trainer too.
    with pytest.raises(ValueError, match=rf"^Image file .*/{image.name} is truncated or damaged: .*; copy it again"):
        trainer.run()


def test_run_goes_on_with_its_own_options_only(tmp_path):
    trainer, _handler, _store = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=3), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer, _handler, _store = build_resumable(tmp_path, shape_weight=0.2)
    with pytest.raises(ValueError, match=r"shape_weight must be 0\.5, with which the run began, got 0\.2"):
        trainer.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.__setattr__("checks", {1}), r"checks_per_round must be 2, with which the run began, got 1"),
        (lambda h: h.store.cases.reverse(), r"the training cases must be those with which the run began"),
        (lambda h: h.clean_loader.dataset.data.pop(), r"the clean cases must be those with which the run began"),
    ],
    ids=["checks", "training-cases", "clean-cases"],
)
def test_run_goes_on_with_its_own_cases_and_checks_only(tmp_path, change, message):
    trainer, _handler, _store = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=3), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer, handler, _store = build_resumable(tmp_path)
    change(handler)
    with pytest.raises(ValueError, match=rf"checkpoint\.pt is the checkpoint of another run: {message}"):
        trainer.run()


@pytest.mark.parametrize("epochs", [None, 8], ids=["finished", "interrupted"])
def test_run_whose_rounds_are_lost_does_not_pass_for_a_good_one(tmp_path, epochs):
    trainer, _handler, store = build_resumable(tmp_path)
    if epochs is None:
        trainer.run()
    else:
        trainer.add_event_handler(Events.EPOCH_STARTED(once=epochs), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
    store.discard(1)
    trainer, _handler, store = build_resumable(tmp_path)
    with pytest.raises(ValueError, match=r"must hold the rounds that this run has made, but \[1\] are missing"):
        trainer.run()


def test_finished_run_says_if_other_labels_are_in_force(tmp_path, caplog):
    trainer, _handler, store = build_resumable(tmp_path)
    trainer.run()
    store.restore(0)
    trainer, _handler, store = build_resumable(tmp_path)
    with caplog.at_level(logging.WARNING):
        trainer.run()
    assert "The current labels are those of round 0, not of round 1, which the run has kept." in caplog.text
    assert store.current == 0


def test_copy_of_a_round_is_not_deleted(tmp_path):
    trainer, _handler, store = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=8), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    shutil.copytree(store.root / "round-001", store.root / "round-100")
    before = checksums(store.root)
    trainer, _handler, store = build_resumable(tmp_path)
    with pytest.raises(ValueError, match=r"holds the rounds \[100\], which this run has not made"):
        trainer.run()
    assert checksums(store.root) == before


def test_every_round_fires_an_event_and_leaves_metrics(tmp_path):
    trainer, handler, store = build(tmp_path)
    told = []
    trainer.add_event_handler(
        RoundEvents.ROUND_COMPLETED, lambda e: told.append((dict(e.state.metrics), store.current, len(handler.history)))
    )
    trainer.run()
    assert [(current, length) for _, current, length in told] == [(1, 1), (1, 2)]
    for (metrics, _, _), record in zip(told, handler.history, strict=True):
        assert metrics["round"] == record["round"]
        assert metrics["disc_bias"] == record["bias"][0]
        assert metrics["disc_bias_mm"] == record["bias_mm"][0]
        assert metrics["disc_clean_dice"] == record["clean_dice"][0]


def test_manifest_says_how_each_case_was_corrected(tmp_path):
    trainer, handler, store = build(tmp_path, representation="logit", gamma=0.8)
    trainer.run()
    record = handler.history[0]
    for entry in store.manifest(1):
        assert entry["bias"] == record["bias"]
        assert entry["shift"] == [record["correction"]["disc"]["correction"]["shift"]]
        assert (entry["representation"], entry["gamma"]) == (["logit"], [0.8])


@pytest.mark.parametrize("metric", ["euclidean", "taxicab"])
def test_labels_come_back_to_their_own_grid(tmp_path, metric):
    # Relabelling sees voxels of twice the size, turned and padded: the shift is the same length all the same.
    transforms = [
        Flipd("image", 0),
        Rotate90d("image"),
        Spacingd("image", pixdim=(1.0, 1.0), mode="bilinear"),
        BorderPadd("image", 3, mode="edge"),
    ]
    trainer, _handler, store = build(tmp_path, rounds=1, transforms=transforms, metric=metric)
    trainer.run()
    for case, source in zip(store.datalist(1), store.cases, strict=True):
        written, given = nib.load(case["label"]), nib.load(source["label"])
        assert written.shape == given.shape
        assert written.get_data_dtype() == given.get_data_dtype()
        np.testing.assert_array_equal(written.affine, given.affine)
    assert label_dice(store, 1) > 0.93


def test_evaluator_metrics_join_the_record(tmp_path):
    trainer, handler, _ = build(tmp_path, evaluate=True)
    trainer.run()
    assert handler.history[0]["metrics"]["dice"] == pytest.approx(handler.history[0]["clean_dice"][0], abs=1e-6)
    assert handler.history[1]["metrics"]["dice"] > handler.history[0]["metrics"]["dice"]


def test_interrupted_relabelling_leaves_nothing_and_the_run_goes_on(tmp_path, monkeypatch):
    from monai_sc.store import rounds as round_writer

    whole, _, whole_store = build_resumable(tmp_path / "whole")
    whole.run()

    trainer, _handler, store = build_resumable(tmp_path / "cut")
    write, calls = round_writer.write_label_like, []

    def fail_at_the_third(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(round_writer, "write_label_like", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert store.rounds == [0]
    assert not list(store.root.glob(".round*"))
    monkeypatch.setattr(round_writer, "write_label_like", write)

    trainer, _handler, store = build_resumable(tmp_path / "cut")
    epochs = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: epochs.append(e.state.epoch))
    trainer.run()
    assert epochs[0] == 6
    assert store.rounds == whole_store.rounds
    for case in store.cases:
        np.testing.assert_array_equal(store.read(case["id"], 1), whole_store.read(case["id"], 1))


def test_finished_run_does_not_train_again(tmp_path):
    for _ in range(2):
        trainer, handler, store = build_resumable(tmp_path)
        iterations = []
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e, i=iterations: i.append(1))
        trainer.run()
    assert not iterations
    assert len(handler.history) == 2
    assert store.rounds == [0, 1]
    assert abs(trainer.network.offset.item()) < 1


def write_foreign_rounds(store, *numbers):
    for number in numbers:
        with store.write_round(number, {}) as writer:
            for case in store.cases:
                writer.write(case["id"], store.read(case["id"], 0))


def test_round_written_just_before_a_kill_is_made_again(tmp_path):
    trainer, handler, store = build(tmp_path)
    write_foreign_rounds(store, 1)
    handler.load_state_dict(handler.state_dict())  # what a checkpoint of the first round does
    trainer.run()
    assert store.rounds == [0, 1]
    assert label_dice(store, 1) > 0.97


@pytest.mark.parametrize("epochs", [1, 3], ids=["one-epoch-rounds", "three-epoch-rounds"])
def test_kill_between_round_and_checkpoint_is_made_good(tmp_path, epochs):
    def attach():
        return build_resumable(tmp_path, epochs=epochs, rounds=1)

    trainer, handler, store = attach()
    trainer.add_event_handler(RoundEvents.ROUND_COMPLETED, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert store.rounds == [0, 1]
    trainer, handler, store = attach()
    trainer.run()
    assert handler.history[-1]["stop_reason"]
    assert trainer.state.epoch == 2 * epochs


def test_finished_round_is_not_deleted_without_its_checkpoint(tmp_path):
    build(tmp_path)[0].run()
    trainer, _, store = build(tmp_path)
    with pytest.raises(ValueError, match=r"holds the rounds \[1\], which this run has not made; load the checkpoint"):
        trainer.run()
    assert store.rounds == [0, 1]


def test_store_of_another_run_is_refused(tmp_path):
    trainer, _handler, store = build(tmp_path)
    write_foreign_rounds(store, 1, 2)
    with pytest.raises(
        ValueError, match=r"holds the rounds \[1, 2\], which this run has not made; load the checkpoint"
    ):
        trainer.run()


class Diverged(Offset):
    def forward(self, x):
        return x * float("nan") + self.offset


def test_diverged_network_relabels_nothing(tmp_path):
    trainer, _handler, store = build(tmp_path, network=Diverged())
    trainer.loss_function = lambda p, y: (p.nan_to_num() * 0).sum()
    with pytest.raises(ValueError, match=r"must be finite, got nan or infinite values for case 'clean0'"):
        trainer.run()
    assert store.rounds == [0]


class Coarse(Offset):
    def forward(self, x):
        return super().forward(x)[..., ::2, ::2]


def test_output_on_another_grid_is_refused(tmp_path):
    trainer, _handler, _store = build(tmp_path, network=Coarse())
    trainer.loss_function = lambda p, y: p.sum() * 0
    with pytest.raises(ValueError, match=r"The network's output and the clean label must have the same shape"):
        trainer.run()


def test_empty_clean_set_is_refused(tmp_path):
    trainer, handler, _store = build(tmp_path)
    handler.clean_loader = DataLoader(Dataset([]))
    with pytest.raises(ValueError, match=r"clean_loader must hold at least one case, got none\."):
        trainer.run()


def test_epochs_that_do_not_fill_rounds_are_refused(tmp_path):
    trainer, _, _ = build(tmp_path)
    trainer.state.max_epochs = 7
    with pytest.raises(ValueError, match=r"must be a multiple of epochs_per_round \(6\), got 7\."):
        trainer.run()


def test_persistent_workers_are_refused(tmp_path):
    trainer, _, _store = build(tmp_path)
    trainer.data_loader = DataLoader(trainer.data_loader.dataset, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match=r"must have persistent_workers=False, got True"):
        trainer.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, r"gamma must be in \(0, 1\], got 0\.0\."),
        ({"gamma": 1.5}, r"gamma must be in \(0, 1\], got 1\.5\."),
        ({"epochs_per_round": 0}, r"epochs_per_round must be at least 1 epoch, got 0\."),
        ({"representation": "magic"}, r"representation must be one of 'auto', 'distance', 'logit', got 'magic'\."),
        ({"metric": "chess"}, r"metric must be one of 'euclidean', 'taxicab', got 'chess'\."),
        ({"region": "moon"}, r"region must be one of 'boundary', 'image', got 'moon'\."),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_bad_option_is_refused(tmp_path, options, message):
    cases = make_cases(tmp_path / "data", 1, 0.0)
    options = {"epochs_per_round": 1} | options
    with pytest.raises(ValueError, match=message):
        handler_of(LabelStore(tmp_path / "labels", cases), clean_loader=None, relabel_loader=None, **options)


def test_corrector_of_other_classes_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"^corrector must have the classes of the store, \['disc'\], in the same order, got \['lung'\]\.$",
    ):
        build(tmp_path, class_names=["lung"])


def test_other_engine_is_refused(tmp_path):
    _, handler, _ = build(tmp_path)
    with pytest.raises(TypeError, match=r"engine must be a monai\.engines\.SupervisedTrainer, got Engine\."):
        handler.attach(Engine(lambda e, b: None))


def test_image_and_label_of_different_orientation_are_refused(tmp_path):
    trainer, _, store = build(tmp_path)
    for case in store.cases:  # the same picture in space, its first axis stored the other way round
        image = nib.load(case["image"])
        turned = np.asarray(image.dataobj)[::-1].copy()
        nib.save(nib.Nifti1Image(turned, image.affine @ np.diag([-1, 1, 1, 1])), case["image"])
    with pytest.raises(
        ValueError, match=r"Image and label files of case 'case0' must lie in one place, but their corners"
    ):
        trainer.run()
    assert store.rounds == [0]


def test_lost_metadata_are_refused(tmp_path):
    trainer, _, _ = build(tmp_path, transforms=[Flipd("image", 0), EnsureTyped("image", track_meta=False)])
    with pytest.raises(TypeError, match=r"relabel_loader must give images as MetaTensor, got a plain tensor"):
        trainer.run()


def test_transform_that_cannot_be_inverted_is_refused(tmp_path):
    other = [CopyItemsd("image", names="scan"), Flipd("scan", 0), ConcatItemsd("scan", name="image")]
    trainer, _, _ = build(tmp_path, transforms=other)
    with pytest.raises(ValueError, match=r"must act on 'image' .*, but these could not be inverted: Flip\."):
        trainer.run()


def test_training_data_keep_their_own_cases_and_keys(tmp_path):
    trainer, _, store = build(tmp_path, epochs=4, rounds=1)
    extra = make_cases(tmp_path / "more", 1, 0.0, "extra")
    own = [*extra, *({**case, "weight": np.ones(3)} for case in store.datalist()[::-1][:3])]
    trainer.data_loader.dataset.data = own
    trainer.state.epoch_length = len(trainer.data_loader)
    trainer.run()
    data = trainer.data_loader.dataset.data
    assert [case["id"] for case in data] == ["extra0", "case5", "case4", "case3"]
    assert data[0]["label"] == extra[0]["label"]
    assert data[1]["label"] == store.datalist(1)[5]["label"]
    assert "weight" in data[1]


@pytest.mark.parametrize(
    "options",
    [{}, {"shape_weight": 0.0}, {"shape_weight": 0.0, "representation": "distance", "shift": 2.0}],
    ids=["with-the-given-shape", "prediction-only", "as-published"],
)
def test_object_that_the_network_missed_is_not_deleted(tmp_path, caplog, options):
    trainer, handler, store = build(tmp_path, rounds=1, **options)
    lost = store.cases[0]
    image = nib.load(lost["image"])
    nib.save(nib.Nifti1Image(np.full(image.shape, -50, dtype=np.float32), image.affine), lost["image"])
    with caplog.at_level(logging.WARNING):
        trainer.run()
    given, corrected = store.read("case0", 0), store.read("case0", 1)
    to_check = handler.history[0]["to_check"]
    if "representation" not in options:  # it is moved as the labels of the other cases are
        assert given.sum() * 0.4 < corrected.sum() < given.sum() * 0.8
        assert not (corrected & ~given).any()
        assert to_check == {}
    else:
        np.testing.assert_array_equal(corrected, given)
        assert to_check == {"case0": {"disc": "nothing of it would be left: it stays as it was"}}
        assert store.manifest(1)[0]["to_check"] == to_check["case0"]
        assert "Round 1, disc: 1 cases to check, listed in the manifest." in caplog.text


def test_failed_relabelling_is_not_taken_for_a_round(tmp_path, monkeypatch):
    trainer, handler, store = build(tmp_path)
    monkeypatch.setattr(handler, "_relabel", lambda *args: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        trainer.run()
    assert handler.history == []
    assert store.rounds == [0]


@pytest.mark.parametrize(
    ("loader", "change", "error", "message"),
    [
        (
            "relabel_loader",
            lambda d: d.pop("id") and d,
            KeyError,
            r"batches of relabel_loader must hold .* 'id' is missing",
        ),
        (
            "clean_loader",
            lambda d: {"image": d["image"]},
            KeyError,
            r"batches of clean_loader must hold .* 'label' is miss",
        ),
        (
            "relabel_loader",
            None,
            TypeError,
            r"relabel_loader must be a DataLoader over a MONAI data set with a transform",
        ),
    ],
    ids=["no-id", "no-clean-label", "subset"],
)
def test_unfit_loader_is_refused_at_the_start(tmp_path, loader, change, error, message):
    trainer, handler, _ = build(tmp_path)
    old = getattr(handler, loader).dataset
    dataset = (
        torch.utils.data.Subset(old, [0]) if change is None else Dataset(old.data, Compose([old.transform, change]))
    )
    setattr(handler, loader, DataLoader(dataset, batch_size=2))
    with pytest.raises(error, match=message):
        trainer.run()
    assert trainer.state.iteration == 0


@pytest.mark.parametrize("lacking", ["clean_loader", "relabel_loader"])
def test_loader_without_the_group_is_refused_at_the_start(tmp_path, lacking):
    trainer, handler, _ = build(tmp_path, group_key="site")
    for name in {"clean_loader", "relabel_loader"} - {lacking}:
        old = getattr(handler, name).dataset
        chain = Compose([old.transform, lambda case: {**case, "site": "a"}])
        setattr(handler, name, DataLoader(Dataset(old.data, chain), batch_size=2))
    with pytest.raises(KeyError, match=rf"batches of {lacking} must hold .*'site'\), but 'site' is missing"):
        trainer.run()
    assert trainer.state.iteration == 0


def test_training_data_without_ids_are_refused(tmp_path):
    trainer, _, _ = build(tmp_path)
    trainer.data_loader.dataset.data = [{"image": "a", "label": "b"}]
    with pytest.raises(TypeError, match=r"a list of dictionaries with 'id' and 'label', got Dataset\."):
        trainer.run()


def test_resume_without_this_handler_is_refused(tmp_path):
    trainer, handler, _ = build(tmp_path)
    ResumeHandler(tmp_path / "checkpoint.pt", {"trainer": trainer, "model": trainer.network}).attach(trainer)
    trainer.run()
    trainer, handler, _ = build(tmp_path / "other")
    ResumeHandler(tmp_path / "checkpoint.pt", {"trainer": trainer, "model": trainer.network}).attach(trainer)
    trainer.state.max_epochs = 24
    with pytest.raises(
        ValueError, match=r"goes on at epoch 13 .* must have finished 2 rounds, got 0: save and load this"
    ):
        trainer.run()
    assert handler.history == []


def test_early_epoch_is_used_where_later_ones_are_worse_on_the_clean_cases(tmp_path):
    trainer, handler, store = build(tmp_path, shift=3.0, rounds=1, epochs=12, checks_per_round=6)

    @trainer.on(Events.EPOCH_STARTED(once=9))
    def spoil(engine):
        engine.network.offset.data.fill_(-1000.0)
        engine.optimizer.param_groups[0]["lr"] = 0.0

    handler.lr_scheduler = None
    trainer.run()
    first = handler.history[0]
    assert first["network_epoch"] == first["correction"]["disc"]["network_epoch"] <= 8
    assert label_dice(store, 1) > 0.97


def test_checks_are_spread_over_a_round(tmp_path):
    _, handler, _ = build(tmp_path, epochs=12, checks_per_round=5)
    assert sorted(handler.checks) == [2, 5, 7, 10, 12]
    _, handler, _ = build(tmp_path / "short", epochs=2, checks_per_round=6)
    assert sorted(handler.checks) == [1, 2]


def test_each_case_is_relabelled_by_a_network_that_has_not_seen_its_label(tmp_path):
    trainer, _handler, store = build(tmp_path, rounds=3, epochs=4, folds=2, checks_per_round=1)
    seen = {}

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        training = (engine.state.epoch - 1) // 4
        for item in engine.state.batch:
            seen.setdefault(training, set()).add(item["id"])

    trainer.run()
    everything = {case["id"] for case in store.cases}
    assert seen[0] == everything
    assert seen[1] == {"case1", "case3", "case5"}
    assert seen[2] == {"case0", "case2", "case4"}
    assert seen[3] == everything
    assert store.record(1)["folds"] == 2
    assert label_dice(store, 1) > 0.95


def test_run_with_folds_goes_on_after_an_interruption_within_them(tmp_path):
    def attach():
        trainer, handler, store = build(tmp_path, rounds=3, epochs=4, folds=2, checks_per_round=1)
        parts = {"model": trainer.network, "optimizer": trainer.optimizer, "trainer": trainer, "correction": handler}
        ResumeHandler(tmp_path / "checkpoint.pt", parts).attach(trainer)
        return trainer, handler, store

    trainer, handler, store = attach()

    @trainer.on(Events.EPOCH_STARTED(once=10))
    def stop(engine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer, handler, store = attach()
    epochs = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: epochs.append(e.state.epoch))
    trainer.run()
    assert epochs[0] == 10
    assert len(handler.history) == 2
    assert label_dice(store, 1) > 0.95


def test_folds_that_leave_no_case_are_refused(tmp_path):
    trainer, _, store = build(tmp_path, rounds=3, epochs=4, folds=2)
    trainer.data_loader.dataset.data = store.datalist()[:1]
    with pytest.raises(ValueError, match=r"^folds must leave cases to train on, got 2 for"):
        trainer.run()


def test_collapsed_network_is_trained_again_once_and_never_relabels(tmp_path, caplog):
    trainer, handler, store = build(tmp_path, rounds=2, epochs=4, checks_per_round=1)
    handler.lr_scheduler = None
    network_when_relabelling = []
    write = handler._relabel

    def relabel(*args):
        network_when_relabelling.append(trainer.network.offset.item())
        return write(*args)

    handler._relabel = relabel

    @trainer.on(Events.ITERATION_COMPLETED)
    def collapse(engine):
        if engine.state.epoch <= 4:
            engine.network.offset.data.fill_(-1000.0)

    with caplog.at_level(logging.WARNING):
        trainer.run()
    assert (
        "Round 0: the network has collapsed (Dice on the clean cases 0.00); it is trained again, once." in caplog.text
    )
    assert handler.history[0]["epoch"] == 8
    assert handler.history[0]["restarts"] == 1
    assert len(network_when_relabelling) == 1
    assert abs(network_when_relabelling[0]) < 10
    assert label_dice(store, 1) > 0.95


class TwoChannels(Offset):
    """Background and disc, as the logits of a softmax."""

    def forward(self, x):
        x = super().forward(x)
        return torch.cat([torch.zeros_like(x), x], dim=1)


def test_network_with_a_softmax_is_corrected(tmp_path):
    trainer, handler, store = build(tmp_path, network=TwoChannels(), output="softmax", rounds=1)

    def loss(logits, label):
        logits, label = (convert_to_tensor(x, track_meta=False) for x in (logits, label))
        return torch.nn.functional.cross_entropy(logits, label[:, 0].long()) * 40

    trainer.loss_function = loss
    trainer.run()
    assert handler.history[0]["bias"][0] == pytest.approx(-3, abs=0.5)
    assert label_dice(store, 1) > 0.97


def with_offsets(cases, *offsets):
    """Give each image an own offset, so that the network lies as far off."""
    for case, offset in zip(cases, offsets, strict=True):
        image = nib.load(case["image"])
        nib.save(nib.Nifti1Image(np.asarray(image.dataobj) + np.float32(offset), image.affine), case["image"])


def run_untrained(tmp_path, offset, clean_offsets, case_offsets=(0,) * 6, **options):
    """Correct once by a network that adds ``offset``, and is off by so much more in each case."""
    trainer, handler, store = build(
        tmp_path, network=Offset(offset), rounds=1, epochs=1, num_clean=len(clean_offsets), **options
    )
    with_offsets(handler.clean_loader.dataset.data, *clean_offsets)
    with_offsets(store.cases, *case_offsets)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    return handler.history, store


def test_single_clean_case_with_a_large_bias_carries_the_correction(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        history, store = run_untrained(tmp_path, 3.0, [0])
    assert history[0]["sources"] == ["blend"]
    assert label_dice(store, 1) > 0.95
    report = history[0]["correction"]["disc"]
    assert report["held_out"]["after"] is None
    assert report["correction"]["note"].startswith("a single clean case carries it, whose bias is large against")
    assert "; a single clean case carries it." in caplog.text


def test_single_clean_case_whose_bias_is_as_large_as_cases_differ_changes_nothing(tmp_path):
    history, store = run_untrained(tmp_path, 2.0, [0], (-2, 2, -2, 2, -2, 2), shift=0.0)
    assert history[0]["bias"][0] == pytest.approx(-2, abs=0.4)
    assert history[0]["sources"] == ["keep"]
    assert store.rounds == [0]
    note = "a single clean case gives it, and it is not large against what the other cases differ by"
    assert history[0]["correction"]["disc"]["correction"]["note"] == note


@pytest.mark.parametrize(("offsets", "moved"), [((0, 0), True), ((3, -2), False)])
def test_two_clean_cases_shift_a_boundary_if_the_interval_excludes_zero(tmp_path, offsets, moved):
    history, store = run_untrained(tmp_path, 3.0, offsets)
    assert (history[0]["bias_interval"][0][1] < 0) == moved
    assert store.rounds == ([0, 1] if moved else [0])
    if moved:
        assert label_dice(store, 1) > 0.95


def test_unbiased_network_with_errors_changes_no_labels(tmp_path):
    history, store = run_untrained(tmp_path, 0.0, (2, -2, 1.5, -1.5), (1.5, -2, 2, -1.5, 1, -1), shift=0.0)
    assert (history[0]["sources"], store.rounds) == (["keep"], [0])
    assert history[0]["stop_reason"] == "no correction of any class makes labels clearly better"


def test_trusted_voxels_keep_their_label(tmp_path):
    trainer, _, store = build(tmp_path, rounds=1)
    trust = np.zeros((SIZE, SIZE), dtype=np.uint8)
    trust[: SIZE // 2] = 1
    nib.save(nib.Nifti1Image(trust, AFFINE), tmp_path / "trust.nii.gz")
    for case in store.cases:
        case["trusted"] = str(tmp_path / "trust.nii.gz")
    trainer.run()
    for case in store.cases:
        before, after = (store.read(case["id"], number)[0] for number in (0, 1))
        np.testing.assert_array_equal(before[: SIZE // 2], after[: SIZE // 2])
        assert (before[SIZE // 2 :] != after[SIZE // 2 :]).any()


def test_boundary_moves_no_farther_than_max_shift(tmp_path):
    trainer, _, store = build(tmp_path, rounds=1, max_shift=0.5, shape_weight=0.0)  # a voxel is half a mm
    trainer.run()
    assert store.record(1)["shift"] == [-1.0]


def test_max_shift_without_the_size_of_a_voxel_is_refused(tmp_path):
    trainer, handler, _ = build(tmp_path, rounds=1, max_shift=0.5)
    plain = [{"id": "c", "image": distance_image(9)[None], "label": (distance_image(9) >= 0)[None]}]
    handler.clean_loader = DataLoader(Dataset(plain), batch_size=1)
    with pytest.raises(ValueError, match=r"^max_shift is in mm, and needs the size of a voxel, .*; give voxel_mm\.$"):
        trainer.run()


def test_groups_are_moved_by_their_own_bias(tmp_path):
    trainer, handler, store = build(tmp_path, rounds=1, num_clean=8, group_key="site", shape_weight=0.0)
    # Images of site b show the distance to a boundary that lies 2 voxels farther out than the label of its case says.
    for data in (handler.clean_loader.dataset.data, store.cases):
        for k, case in enumerate(data):
            case["site"] = "ab"[k % 2]
            if k % 2:
                image = nib.load(case["image"])
                moved = np.asarray(image.dataobj) + np.float32(2)
                nib.save(nib.Nifti1Image(moved, image.affine), case["image"])
    keep = SelectItemsd(["id", "image", "label", "site"], allow_missing_keys=True)
    for loader in (handler.clean_loader, handler.relabel_loader):
        loader.dataset.transform = Compose([*loader.dataset.transform.transforms[:-1], keep])
    trainer.run()
    shifts = handler.history[0]["correction"]["disc"]["correction"]["group_shifts"]
    assert shifts["b"] - shifts["a"] == pytest.approx(-2, abs=0.6)
    for entry in store.manifest(1):
        assert entry["shift"] == [shifts["ab"[int(entry["case"][-1]) % 2]]]


def test_ignored_voxels_of_clean_cases_do_not_count(tmp_path):
    results = []
    for part, ignore in (("all", False), ("half", True)):
        trainer, handler, _ = build(tmp_path / part, rounds=0)
        clean = []
        for k in range(3):
            image = distance_image(8 + k)
            label = (image >= 0).astype(np.float32)
            label[: SIZE // 2] = distance_image(13 + k)[: SIZE // 2] >= 0  # wrong in one half
            unknown = np.zeros_like(label)
            unknown[: SIZE // 2 + 1] = ignore
            clean.append({"id": str(k), "image": image[None], "label": label[None], "ignore": unknown[None]})
        handler.clean_loader = DataLoader(Dataset(clean), batch_size=1)
        trainer.network.offset.data.fill_(0.0)
        trainer.optimizer.param_groups[0]["lr"] = 0.0
        handler.lr_scheduler = None
        trainer.run()
        results.append(handler.history[0]["bias"][0])
    assert results[0] > 1
    assert abs(results[1]) < 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "tanh"}, r"^output must be one of 'sigmoid', 'softmax', got 'tanh'\.$"),
        ({"shape_weight": 2}, r"^shape_weight must be in \[0, 1\], got 2\.$"),
        ({"max_shift": -1}, r"^max_shift must be at least 0 or None, got -1\.$"),
        ({"checks_per_round": 0}, r"^checks_per_round must be at least 1 check, got 0\.$"),
        ({"folds": 0}, r"^folds must be at least 1 fold, got 0\.$"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_bad_option_of_the_correction_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        build(tmp_path, **options)


class Pair(Offset):
    """Background and two discs that lie apart, as the logits of a softmax; the image holds minus their distances."""

    def forward(self, x):
        x = super().forward(x)
        return torch.cat([torch.zeros_like(x[:, :1]), x], dim=1)


def pair_of(radius, shift=0):
    """Return minus the distances to the boundaries of two discs, and their label map of the values 1 and 4."""
    distances = np.stack([distance_image(radius - 1, 10), distance_image(radius, 29)])
    return distances, np.select([distances[0] >= -shift, distances[1] >= -shift], [1, 4]).astype(np.int16)


def correct_pairs(tmp_path):
    """Train on label maps of pairs, correct them once, and return the store."""
    lists = {}
    for name, number, shift in (("case", 5, 3), ("clean", 4, 0)):
        lists[name] = []
        for k in range(number):
            distances, label = pair_of(7 + k % 3, shift)
            _, clean = pair_of(7 + k % 3)
            files = {}
            for kind, array in (("left", distances[0]), ("right", distances[1]), ("label", label), ("clean", clean)):
                files[kind] = str(tmp_path / f"{name}{k}_{kind}.nii.gz")
                nib.save(nib.Nifti1Image(array, AFFINE), files[kind])
            image = [files["left"], files["right"]]
            lists[name].append(
                {"id": f"{name}{k}", "image": image, "label": files["label"], "reference_label": files["clean"]}
            )
    values = {"values": [1, 4]}
    store = LabelStore(tmp_path / "labels", lists["case"], class_names=["left", "right"], **values)
    label = [LoadLabeld("label", **values), SelectItemsd(["id", "image", "label"])]
    network = Pair(3.0)
    handler = handler_of(
        store,
        clean_loader=DataLoader(Dataset(lists["clean"], Compose([load_image(), *label])), batch_size=2),
        relabel_loader=DataLoader(Dataset(store.cases, Compose([load_image(), SelectItemsd(["id", "image"])]))),
        epochs_per_round=1,
        output="softmax",
        progress=False,
    )
    SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=DataLoader(Dataset(store.datalist(), Compose([load_image(), *label])), batch_size=2),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.0),
        loss_function=lambda p, y: (convert_to_tensor(p, track_meta=False) * 0).sum(),
        train_handlers=[handler],
    ).run()
    return store


def test_label_maps_are_corrected_and_stay_label_maps(tmp_path):
    store = correct_pairs(tmp_path)
    assert store.rounds == [0, 1]
    for case in store.datalist(1):
        written = nib.load(case["label"])
        assert written.get_data_dtype() == np.int16
        found, clean = np.asarray(written.dataobj), np.asarray(nib.load(case["reference_label"]).dataobj)
        given = np.asarray(nib.load(store.case(case["id"])["label"]).dataobj)
        assert set(np.unique(found)) == {0, 1, 4}
        assert (found == clean).mean() > 0.95 > 0.85 > (given == clean).mean()


@pytest.mark.parametrize("progress", [False, True])
def test_what_a_round_takes_is_printed_with_the_progress(tmp_path, capsys, progress):
    trainer, handler, _ = build(tmp_path, rounds=0, epochs=1, checks_per_round=1, progress=progress)
    trainer.run()
    out = " ".join(capsys.readouterr().out.split())
    told = r"Round 0: 1 epoch of training, the first took \d+ s; the clean cases are predicted after epoch 1\."
    assert bool(re.search(told, out)) == progress
    handler._tell(trainer, "a class [red] of a user")
    assert capsys.readouterr().out == "a class [red] of a user\n" * progress


def test_cases_are_known_where_their_data_set_lists_them(tmp_path):
    _, handler, store = build(tmp_path)
    assert handler._case_ids() == {
        "training": [case["id"] for case in store.cases],
        "clean": ["clean0", "clean1", "clean2", "clean3"],
    }
    for data in ([{"image": 1}], [1], {"id": 1}):
        handler.clean_loader = DataLoader(Dataset(data))
        assert handler._case_ids()["clean"] is None
    handler.clean_loader = DataLoader([1])
    assert handler._case_ids()["clean"] is None


def test_checkpoint_holds_all_that_a_run_goes_on_with(tmp_path):
    _, handler, _ = build(tmp_path, checks_per_round=3, folds=2)
    state = handler.state_dict()
    assert (state["trainings"], state["fold"], state["found"], state["record"], state["restarts"]) == (
        0,
        None,
        [],
        {},
        0,
    )
    told = state["options"]
    assert (told["epochs_per_round"], told["checks_per_round"], told["folds"], told["gamma"]) == (6, 3, 2, 1.0)
    own = {"history": [{"round": 0}], "initial": {"network": {}}, "best": {"round": 0}, "trainings": 2, "fold": 1}
    own |= {"found": [{"fold": 1}], "record": {"round": 1}, "restarts": 1}
    handler.load_state_dict({**state, **own})
    again = handler.state_dict()
    assert {name: again[name] for name in own} == own
    assert handler._resumed


@pytest.mark.parametrize("rounds", [2, 3])
def test_round_with_folds_needs_epochs_for_each_of_them(tmp_path, rounds):
    trainer, handler, store = build(tmp_path, rounds=rounds, epochs=2, folds=2, checks_per_round=1, network=Offset(3.0))
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    assert store.rounds == ([0, 1] if rounds == 3 else [0])
    assert len(handler.history) == rounds - 1
    assert handler.state_dict()["trainings"] == {2: 1, 3: 4}[rounds]
    reason = "the last round of training is over" if rounds == 2 else "no correction of any class makes labels clearly"
    assert handler.history[-1]["stop_reason"].startswith(reason)


def test_network_that_collapses_in_the_last_epochs_is_not_trained_again(tmp_path, caplog):
    trainer, handler, _ = build(tmp_path, network=Offset(-1000.0), rounds=0, epochs=1, checks_per_round=1)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(
        ValueError,
        match=r"^labels must have at least one usable case, but in all 4 clean cases the label or prediction is "
        r"empty or full in every class; give clean cases that show the structures, or train the network longer\.$",
    ):
        trainer.run()
    assert "it is trained again" not in caplog.text
    assert handler.history == []


def test_epochs_must_be_known(tmp_path):
    trainer, handler, _ = build(tmp_path)
    trainer.state.max_epochs = None
    with pytest.raises(ValueError, match=r"must be a multiple of epochs_per_round \(6\), got None\."):
        handler._start(trainer)
