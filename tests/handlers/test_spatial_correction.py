import hashlib
import logging
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
from tests.handlers.correcting import handler_of, trainer_of

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
    told = []
    trainer.add_event_handler(
        RoundEvents.ROUND_COMPLETED, lambda e: told.append((dict(e.state.metrics), store.current, len(handler.history)))
    )
    trainer.run()
    assert [(current, length) for _, current, length in told] == [(1, 1), (1, 2)]
    for (metrics, _, _), record in zip(told, handler.history, strict=True):
        assert (metrics["round"], metrics["disc_bias"]) == (record["round"], record["bias"][0])
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


@pytest.mark.parametrize("representation", ["auto", "logit"])
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
    told = f"the network has not learnt disc (Dice {score:.2f}), so its bias is unknown"
    assert record["stop_reason"] == f"there is no verdict; {told}: train longer"
    assert "and corrects none of its labels" in caplog.text
    results = summarise_run(store, handler.history)
    (finding,) = (contents := RunSource(store, results, tmp_path).contents()).findings
    assert contents.headline.startswith("These clean cases do not show whether the labels are biased")
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


def test_worse_round_is_rolled_back(tmp_path):
    trainer, handler, store = build(tmp_path, epochs=6, rounds=1, checks_per_round=1)
    trained = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        if engine.state.epoch == 6:
            trained[:] = [engine.network.offset.item()]

    @trainer.on(Events.EPOCH_STARTED(once=12))
    def spoil(engine):
        engine.network.offset.data.fill_(6.0)
        engine.optimizer.param_groups[0]["lr"] = 0.0

    # the scheduler would set the rate again
    handler.lr_scheduler = None
    trainer.run()
    assert handler.history[1]["stop_reason"] == "the clean cases are predicted worse than in round 0"
    assert store.current == 0
    assert store.rounds == [0, 1]
    assert trainer.network.offset.item() == trained[0]


@pytest.mark.filterwarnings("ignore:cache_num is greater or equal than dataset length:UserWarning")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [("cache", 0), ("smart-part", 0), ("smart-whole", 0), ("persistent", 0), ("thread", 0), ("cache", 2)],
)
def test_whatever_caches_the_training_data_sees_the_new_labels_only(tmp_path, kind, workers):
    def dataset(data, transform):
        if kind == "persistent":
            return PersistentDataset(data, transform, cache_dir=tmp_path / "cache", track_meta=True, weights_only=False)
        if kind.startswith("smart"):
            number = 4 if kind == "smart-part" else 6
            return SmartCacheDataset(data, transform, replace_rate=0.5, cache_num=number, progress=False)
        return CacheDataset(data, transform, progress=False, num_workers=None)

    trainer, _handler, store = build(tmp_path, dataset=dataset, epochs=1, rounds=1, representation="logit")
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
            seen.setdefault(engine.state.epoch - 1, {}).setdefault(item["id"], set()).add(int(item["label"].sum()))
            assert isinstance(item["label"], MetaTensor)
            np.testing.assert_array_equal(item["label"].affine, AFFINE)

    trainer.run()
    assert len(seen) == 2
    for number, sizes in seen.items():
        for case_id, own in sizes.items():
            assert own == {int(store.read(case_id, number).sum())}


@pytest.mark.parametrize(("name", "workers"), [("clean_loader", 1), ("relabel_loader", 0)])
def test_image_that_is_damaged_during_a_run_is_named(tmp_path, name, workers):
    trainer, handler, _store = build(tmp_path, epochs=2)
    loader = getattr(handler, name)
    setattr(handler, name, DataLoader(loader.dataset, batch_size=2, num_workers=workers))
    image = Path(loader.dataset.data[-1]["image"])
    trainer.add_event_handler(Events.EPOCH_STARTED(once=2), lambda: image.write_bytes(image.read_bytes()[:-200]))
    # The relabel loader's images are those of the trainer too.
    with pytest.raises(ValueError, match=rf"^Image file .*/{image.name} is truncated or damaged: .*; copy it again"):
        trainer.run()


def test_manifest_says_how_each_case_was_corrected(tmp_path):
    trainer, handler, store = build(tmp_path, representation="logit", gamma=0.8, rounds=1)
    trainer.run()
    record = handler.history[0]
    assert label_dice(store, 1) > label_dice(store, 0) + 0.1
    assert store.record(1)["options"]["representation"] == "logit"
    for entry in store.manifest(1):
        assert entry["bias"] == record["bias"]
        assert entry["shift"] == [record["correction"]["disc"]["correction"]["shift"]]
        assert (entry["representation"], entry["gamma"]) == (["logit"], [0.8])


def test_labels_come_back_to_their_own_grid_with_the_taxicab_metric(tmp_path):
    # Relabelling sees voxels of twice the size, turned and padded: the shift is the same length all the same.
    transforms = [
        Flipd("image", 0),
        Rotate90d("image"),
        Spacingd("image", pixdim=(1.0, 1.0), mode="bilinear"),
        BorderPadd("image", 3, mode="edge"),
    ]
    trainer, _handler, store = build(tmp_path, rounds=1, transforms=transforms, metric="taxicab")
    trainer.run()
    for case, source in zip(store.datalist(1), store.cases, strict=True):
        written, given = nib.load(case["label"]), nib.load(source["label"])
        assert written.shape == given.shape
        assert written.get_data_dtype() == given.get_data_dtype()
        np.testing.assert_array_equal(written.affine, given.affine)
    assert label_dice(store, 1) > 0.93


def test_evaluator_metrics_join_the_record(tmp_path):
    trainer, handler, _ = build(tmp_path, evaluate=True, rounds=1)
    trainer.run()
    assert handler.history[0]["metrics"]["dice"] == pytest.approx(handler.history[0]["clean_dice"][0], abs=1e-6)
    assert handler.history[1]["metrics"]["dice"] > handler.history[0]["metrics"]["dice"]


def test_interrupted_relabelling_leaves_nothing_and_the_run_goes_on(tmp_path, monkeypatch):
    from monai_sc.store import rounds as round_writer

    options = {"epochs": 4, "rounds": 1}
    whole, _, whole_store = build_resumable(tmp_path / "whole", **options)
    whole.run()

    trainer, _handler, store = build_resumable(tmp_path / "cut", **options)
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

    trainer, _handler, store = build_resumable(tmp_path / "cut", **options)
    epochs = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: epochs.append(e.state.epoch))
    trainer.run()
    assert epochs[0] == 4
    assert store.rounds == whole_store.rounds
    for case in store.cases:
        np.testing.assert_array_equal(store.read(case["id"], 1), whole_store.read(case["id"], 1))


def test_kill_between_round_and_checkpoint_is_made_good(tmp_path):
    def attach():
        return build_resumable(tmp_path, epochs=1, rounds=1)

    trainer, handler, store = attach()
    trainer.add_event_handler(RoundEvents.ROUND_COMPLETED, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert store.rounds == [0, 1]
    trainer, handler, store = attach()
    trainer.run()
    assert handler.history[-1]["stop_reason"]
    assert trainer.state.epoch == 2


def interrupt(trainer, epoch):
    trainer.add_event_handler(Events.EPOCH_STARTED(once=epoch), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()


def test_interrupted_run_goes_on_with_what_it_began_with_and_made_only(tmp_path):
    trainer, _, store = build_resumable(tmp_path)
    interrupt(trainer, 8)
    assert store.rounds == [0, 1]
    before = checksums(store.root)
    made, given = Path(store.datalist(1)[2]["label"]), Path(store.cases[1]["label"])
    round_1, away, copied = store.root / "round-001", tmp_path / "away", store.root / "round-100"
    empty = nib.Nifti1Image(np.zeros((SIZE, SIZE), dtype=np.uint8), AFFINE)
    other = r"checkpoint\.pt is the checkpoint of another run: "

    for options, change, repair, message in (
        ({"shape_weight": 0.2}, str, str, rf"{other}shape_weight must be 0\.5, with which .*, got 0\.2"),
        ({"checks_per_round": 1}, str, str, rf"{other}checks_per_round must be 2, with which .*, got 1"),
        ({}, lambda h: h.store.cases.reverse(), str, rf"{other}the training cases must be those with which"),
        ({}, lambda h: h.clean_loader.dataset.data.pop(), str, rf"{other}the clean cases must be those with"),
        (
            {},
            lambda h: nib.save(empty, given),
            str,
            r"must stay as they were .*case1_label\.nii\.gz has changed, and 0",
        ),
        ({}, lambda h: round_1.rename(away), lambda h: away.rename(round_1), r"has made, but \[1\] are missing"),
        (
            {},
            lambda h: shutil.copytree(round_1, copied),
            lambda h: shutil.rmtree(copied),
            r"holds the rounds \[100\], which this run has not made",
        ),
        (
            {},
            lambda h: (made.rename(away), made.write_bytes(flipped(away))),
            lambda h: away.replace(made),
            r"round 1 must stay as they .*case2/disc\.nii\.gz has changed, and 0 more",
        ),
    ):
        trainer, handler, _ = build_resumable(tmp_path, **options)  # which writes the given files anew
        change(handler)
        with pytest.raises(ValueError, match=message):
            trainer.run()
        repair(handler)
        assert checksums(store.root) == before
    trainer, handler, store = build_resumable(tmp_path)
    trainer.run()
    assert handler.history[-1]["stop_reason"]


def test_finished_run_does_not_train_again(tmp_path, caplog):
    build_resumable(tmp_path)[0].run()
    trainer, handler, store = build_resumable(tmp_path)
    iterations = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: iterations.append(1))
    trainer.run()
    assert not iterations
    assert len(handler.history) == 2
    assert store.rounds == [0, 1]
    assert abs(trainer.network.offset.item()) < 1
    store.restore(0)
    with caplog.at_level(logging.WARNING):
        build_resumable(tmp_path)[0].run()
    assert "The current labels are those of round 0, not of round 1, which the run kept." in caplog.text
    assert store.current == 0
    store.discard(1)
    with pytest.raises(ValueError, match=r"must hold the rounds that this run has made, but \[1\] are missing"):
        build_resumable(tmp_path)[0].run()


def turn_images(trainer, store):
    for case in store.cases:  # the same picture in space, its first axis stored the other way round
        image = nib.load(case["image"])
        turned = np.asarray(image.dataobj)[::-1].copy()
        nib.save(nib.Nifti1Image(turned, image.affine @ np.diag([-1, 1, 1, 1])), case["image"])


def keep_workers(trainer, store):
    trainer.data_loader = DataLoader(trainer.data_loader.dataset, num_workers=1, persistent_workers=True)


def nothing(trainer, store):
    pass


LOST = [Flipd("image", 0), EnsureTyped("image", track_meta=False)]
COPIED = [CopyItemsd("image", names="scan"), Flipd("scan", 0), ConcatItemsd("scan", name="image")]


@pytest.mark.parametrize(
    ("change", "transforms", "error", "message"),
    [
        (lambda t, s: setattr(t.state, "max_epochs", 7), (), ValueError, r"of epochs_per_round \(6\), got 7\."),
        (keep_workers, (), ValueError, r"must have persistent_workers=False, got True"),
        (turn_images, (), ValueError, r"Image and label files of case 'case0' must lie in one place, but their"),
        (nothing, LOST, TypeError, r"relabel_loader must give images as MetaTensor, got a plain tensor"),
        (nothing, COPIED, ValueError, r"must act on 'image' .*, but these could not be inverted: Flip\."),
    ],
    ids=["epochs", "workers", "orientation", "metadata", "not-inverted"],
)
def test_what_would_fail_at_the_end_of_a_round_is_refused_at_the_start(tmp_path, change, transforms, error, message):
    trainer, _, store = build(tmp_path, transforms=transforms)
    change(trainer, store)
    with pytest.raises(error, match=message):
        trainer.run()
    assert (trainer.state.iteration, store.rounds) == (0, [0])


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


def test_failed_relabelling_is_not_taken_for_a_round(tmp_path, monkeypatch):
    trainer, handler, store = build(tmp_path)
    monkeypatch.setattr(handler, "_relabel", lambda *args: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        trainer.run()
    assert handler.history == []
    assert store.rounds == [0]


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


def test_early_epoch_is_used_where_later_ones_are_worse_on_the_clean_cases(tmp_path):
    trainer, handler, store = build(tmp_path, rounds=1, epochs=6, checks_per_round=6)

    @trainer.on(Events.EPOCH_STARTED(once=5))
    def spoil(engine):
        engine.network.offset.data.fill_(-1000.0)
        engine.optimizer.param_groups[0]["lr"] = 0.0

    handler.lr_scheduler = None
    trainer.run()
    first = handler.history[0]
    assert first["network_epoch"] == first["correction"]["disc"]["network_epoch"] <= 4
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
    options = {"rounds": 3, "epochs": 4, "folds": 2, "checks_per_round": 1}
    interrupt(build_resumable(tmp_path, **options)[0], 10)
    trainer, handler, store = build_resumable(tmp_path, **options)
    epochs = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: epochs.append(e.state.epoch))
    trainer.run()
    assert epochs[0] == 10
    assert len(handler.history) == 2
    assert label_dice(store, 1) > 0.95


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


def with_offsets(cases, *offsets):
    """Give each image an own offset, so that the network lies as far off."""
    for case, offset in zip(cases, offsets, strict=True):
        image = nib.load(case["image"])
        nib.save(nib.Nifti1Image(np.asarray(image.dataobj) + np.float32(offset), image.affine), case["image"])


def test_single_clean_case_with_a_large_bias_carries_the_correction(tmp_path, caplog):
    trainer, handler, store = build(tmp_path, network=Offset(3.0), rounds=1, epochs=1, num_clean=1)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    with caplog.at_level(logging.INFO):
        trainer.run()
    assert handler.history[0]["sources"] == ["blend"]
    assert label_dice(store, 1) > 0.95
    report = handler.history[0]["correction"]["disc"]
    assert report["held_out"]["after"] is None
    assert report["correction"]["note"].startswith("based on a single clean case, whose bias is large")
    assert "; a single clean case carries it." in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.5}, r"^gamma must be in \(0, 1\], got 1\.5\.$"),
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
    handler = handler_of(
        store,
        clean_loader=DataLoader(Dataset(lists["clean"], Compose([load_image(), *label])), batch_size=2),
        relabel_loader=DataLoader(Dataset(store.cases, Compose([load_image(), SelectItemsd(["id", "image"])]))),
        epochs_per_round=1,
        output="softmax",
        progress=False,
    )
    train = DataLoader(Dataset(store.datalist(), Compose([load_image(), *label])), batch_size=2)
    trainer_of(Pair(3.0), train, handler, max_epochs=2).run()
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


def test_what_a_round_takes_is_logged_once(tmp_path, capsys, caplog):
    trainer, *_ = build(tmp_path, rounds=1, epochs=2, checks_per_round=2)
    with caplog.at_level(logging.INFO):
        trainer.run()
    plan = r"Round 0: 2 epochs of training, the first took \d+ s; the clean cases are predicted after epoch 1, 2\."
    check = (
        r"Round 0, epoch 1 of 2: Dice on the clean cases, before the correction: disc 0\.\d{3}; about \d+ s left in "
    )
    assert [len(re.findall(told, caplog.text)) for told in (plan, check)] == [1, 1]
    assert "Round 0" not in capsys.readouterr().out


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
    reason = "the last round of training is over" if rounds == 2 else "no correction clearly improves the labels of any"
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
