import logging
from functools import partial
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Events
from ignite.handlers import param_scheduler
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler, StatsHandler
from monai.transforms import Compose, LoadImaged, SelectItemsd
from torch.optim import lr_scheduler

from monai_sc.handlers import ResumeHandler
from monai_sc.handlers.store_run import StoreRun
from monai_sc.parallel import OtherProcessError
from monai_sc.store import LabelStore
from tests.files.test_durable import claim_elsewhere

# Python 3.12 warns of threads; the children here use none of their parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


class Run(StoreRun):
    """A run that does nothing but what every run does."""

    def __init__(self, *args, options=None, **others):
        super().__init__(*args, **others)
        self.options = options or {"gamma": 1.0}
        self.told = []

    def _start(self, engine):
        self.told.append("start")
        self._go_on(engine, 0, None)

    def _complete_epoch(self, engine):
        self.told.append(engine.state.epoch)

    def _told_options(self):
        return self.options

    def _case_ids(self):
        return {"training": ["a", "b"], "clean": None}


class Rounds(Run):
    """A run that trains anew after every round, on the same labels."""

    def _start(self, engine):
        self._go_on(engine, 0, None)

    def _complete_epoch(self, engine):
        if engine.state.epoch % self.epochs_per_round == 0:
            self._trainings += 1
            self._restart(engine, 0, None)


def step(engine, batch):
    engine.optimizer.step()
    return {"lr": engine.optimizer.param_groups[0]["lr"]}


@pytest.fixture
def build(tmp_path):
    """Return a function that makes a trainer with a run attached, of which ``epochs_per_round`` is 2."""

    def build(kind=Run, handlers=lambda optimizer: (), update=lambda engine, batch: {}, **options):
        cases = []
        for k, name in enumerate("abc"):
            file = str(tmp_path / f"{name}.nii.gz")
            nib.save(nib.Nifti1Image(np.eye(6 + k, dtype=np.uint8), np.eye(4)), file)
            cases.append({"id": name, "image": file, "label": file})
        store = LabelStore(tmp_path / "store", cases)
        chain = Compose([LoadImaged("image", ensure_channel_first=True), SelectItemsd(["id", "image"])])
        options = {"epochs_per_round": 2, "lr_scheduler": None, "folds": 1, **options}
        run = kind(store, relabel_loader=DataLoader(Dataset(cases, chain)), **options)
        network = torch.nn.Conv2d(1, 1, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.5)
        data = [{**case, "image": torch.ones(1, 2, 2), "label": case["label"]} for case in cases]
        trainer = SupervisedTrainer(
            device=torch.device("cpu"),
            max_epochs=4,
            train_data_loader=DataLoader(Dataset(data), batch_size=1),
            network=network,
            optimizer=optimizer,
            loss_function=torch.nn.MSELoss(),
            iteration_update=update,
            train_handlers=handlers(optimizer),
        )
        run.attach(trainer)
        return trainer, run

    return build


def write_round(store, number):
    with store.write_round(number, {}) as writer:
        for case in store.cases:
            writer.write(case["id"], ~store.read(case["id"], 0))


def test_run_starts_once_and_claims_its_store_until_it_ends(build):
    trainer, run = build()
    free = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: free.append(claim_elsewhere(run.store.root)))
    trainer.run()
    assert run.told == ["start", 1, 2, 3, 4]
    assert free == [False] * 4
    assert claim_elsewhere(run.store.root)


class Swallow:
    """Handles an exception without raising it, as MONAI's ``CheckpointSaver`` with ``save_final`` does."""

    def __init__(self):
        self.errors = []

    def attach(self, engine):
        engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: self.errors.append(error))


def stats():
    return StatsHandler(output_transform=lambda x: None)


def fail(error):
    raise error


OTHERS = [
    pytest.param([], [], id="alone"),
    pytest.param([stats()], [], id="raising-before"),
    pytest.param([], [stats()], id="raising-behind"),
    pytest.param([Swallow()], [], id="swallowing-before"),
    pytest.param([], [Swallow()], id="swallowing-behind"),
]
MOMENTS = [Events.EPOCH_STARTED(once=2), Events.ITERATION_COMPLETED(once=2), Events.EPOCH_COMPLETED(once=4)]


@pytest.mark.parametrize("moment", MOMENTS, ids=["epoch-started", "iteration", "epoch-completed"])
@pytest.mark.parametrize("error", [RuntimeError("on fire"), KeyboardInterrupt("on fire")], ids=lambda e: repr(e))
@pytest.mark.parametrize(("before", "behind"), OTHERS)
def test_run_that_fails_gives_the_store_up(build, before, behind, error, moment):
    trainer, run = build(handlers=lambda optimizer: before)
    for handler in behind:
        handler.attach(trainer)
    trainer.add_event_handler(moment, lambda: fail(error))
    with pytest.raises(type(error), match=r"^on fire$") as caught:
        trainer.run()
    assert caught.value is error
    assert claim_elsewhere(run.store.root)


def test_run_that_is_ended_without_its_last_handlers_gives_the_store_up(build):
    trainer, run = build()
    # As engine.terminate(skip_completed=True), which ignite has from 0.5.2 on.
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED(once=2), lambda: setattr(trainer, "should_terminate", "skip_completed")
    )
    trainer.run()
    assert run.told == ["start", 1, 2]
    assert claim_elsewhere(run.store.root)


def test_run_goes_on_at_the_training_that_is_due(build):
    trainer, run = build()
    trainer.run()
    trainer.state.max_epochs = 6
    message = r"^A run that goes on at epoch 5 with epochs_per_round=2 must have finished 2 rounds, got 0: save and "
    with pytest.raises(ValueError, match=message):
        trainer.run()
    trainer, run = build()
    trainer.run()
    run._trainings = 2
    trainer.state.max_epochs = 6
    trainer.run()
    assert run.told == ["start", 1, 2, 3, 4, "start", 5, 6]


def test_round_that_was_not_in_the_checkpoint_yet_is_made_again(build):
    trainer, run = build()
    write_round(run.store, 1)
    with pytest.raises(ValueError, match=r"holds the rounds \[1\], which this run has not made; load the checkpoint"):
        trainer.run()
    trainer, run = build()
    run._resumed = True
    trainer.run()
    assert run.store.rounds == [0]
    for number in (1, 2):
        write_round(run.store, number)
    trainer, run = build()
    run._resumed = True
    with pytest.raises(ValueError, match=r"holds the rounds \[1, 2\], which this run has not made"):
        trainer.run()


def test_labels_that_changed_are_refused(build):
    _, run = build()
    write_round(run.store, 1)
    run._refuse_changed_files(1)
    first, second, _ = (run.store.label_files(1, case)[0] for case in run.store.cases)
    for file in (first, second):
        file.write_bytes(file.read_bytes() + b"\0")
    run._refuse_changed_files(0)
    message = r"^The labels of round 1 must stay as they were written, but {} {}, and 1 more; put the old ones back"
    with pytest.raises(ValueError, match=message.format(first, "has changed")):
        run._refuse_changed_files(1)
    first.unlink()
    with pytest.raises(ValueError, match=message.format(first, "is gone")):
        run._refuse_changed_files(1)
    source = run.store.cases[2]["label"]
    nib.save(nib.Nifti1Image(np.zeros((8, 8), dtype=np.uint8), np.eye(4)), source)
    with pytest.raises(ValueError, match=rf"must stay as they were when labels were made from them, but {source} has"):
        run._refuse_changed_files(0)


def test_every_training_begins_with_the_first_weights(build):
    trainer, run = build()
    run.lr_scheduler = lr_scheduler.StepLR(trainer.optimizer, step_size=1)
    first = trainer.network.weight.detach().clone()

    @trainer.on(Events.EPOCH_COMPLETED)
    def train(engine):
        engine.network(torch.ones(1, 1, 2, 2)).sum().backward()
        engine.optimizer.step()
        run.lr_scheduler.step()

    trainer.run()
    for _ in range(2):
        assert not torch.equal(trainer.network.weight, first)
        assert trainer.optimizer.state_dict()["state"]
        assert run.lr_scheduler.last_epoch > 0
        run._restart(trainer, 0, None)
        assert torch.equal(trainer.network.weight, first)
        assert not trainer.optimizer.state_dict()["state"]
        assert trainer.optimizer.param_groups[0]["lr"] == 0.5
        assert run.lr_scheduler.last_epoch == 0
        train(trainer)


class Attached:
    """Attaches a handler of ignite at an event."""

    def __init__(self, handler, event):
        self.handler, self.event = handler, event

    def attach(self, engine):
        engine.add_event_handler(self.event, self.handler)


class Plain:
    """A schedule that MONAI's handler takes, without a state."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self._last_lr = [0.5]

    def step(self):
        self.optimizer.param_groups[0]["lr"] /= 2


def monai_steps(make, **options):
    return lambda optimizer: LrScheduleHandler(make(optimizer), print_lr=False, **options)


def ignite_steps(make, event=Events.ITERATION_STARTED):
    return lambda optimizer: Attached(make(optimizer), event)


def step_it(schedule, engine):
    schedule.step()


def cyclical(optimizer, start=1.0):
    return param_scheduler.LinearCyclicalScheduler(optimizer, "lr", start, 0.1, 14)


def halving(optimizer):
    return lr_scheduler.ExponentialLR(optimizer, 0.5)


SCHEDULES = [
    pytest.param(monai_steps(halving), id="epochs"),
    pytest.param(monai_steps(halving, epoch_level=False), id="iterations"),
    pytest.param(
        monai_steps(
            lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), epoch_level=False, step_transform=lambda e: 1.0
        ),
        id="plateau",
    ),
    pytest.param(ignite_steps(cyclical), id="ignite"),
    pytest.param(ignite_steps(cyclical, Events.ITERATION_STARTED(every=2)), id="ignite-with-a-filter"),
    pytest.param(ignite_steps(lambda o: param_scheduler.LRScheduler(halving(o))), id="ignite-of-pytorch"),
    pytest.param(
        ignite_steps(lambda o: param_scheduler.ConcatScheduler([cyclical(o), cyclical(o, 2.0)], [10])),
        id="ignite-concat",
    ),
    pytest.param(ignite_steps(lambda o: param_scheduler.ParamGroupScheduler([cyclical(o)])), id="ignite-groups"),
]


@pytest.mark.parametrize("make", SCHEDULES)
def test_every_training_begins_with_the_schedules_that_handlers_step(build, make):
    rates = []

    def update(engine, batch):
        rates.append(step(engine, batch)["lr"])

    trainer, _run = build(Rounds, lambda optimizer: [make(optimizer)], update)
    trainer.run()
    assert len(set(rates[:6])) > 1
    assert rates[6:] == rates[:6]


@pytest.mark.parametrize("given", [True, False])
def test_schedule_is_reset_once_whoever_knows_it(build, given):
    trainer, run = build(Rounds, lambda optimizer: [monai_steps(halving)(optimizer)] * 2, step)
    handler = next(h for h, *_ in trainer._event_handlers[Events.EPOCH_COMPLETED] if isinstance(h, LrScheduleHandler))
    if given:
        run.lr_scheduler = handler.lr_scheduler
    trainer.run()
    assert sorted(run._initial) == sorted(["network", "optimizer", "lr_scheduler" if given else "lr_scheduler_1"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            monai_steps(Plain),
            r"^The learning-rate schedule Plain must begin anew in each round, but its state cannot be",
        ),
        (
            ignite_steps(lambda o: param_scheduler.LRScheduler(lr_scheduler.CosineAnnealingWarmRestarts(o, 4))),
            r"^The learning-rate schedule LRScheduler must .*; take one of torch\.optim\.lr_scheduler with MONAI's",
        ),
        (
            lambda o: Attached(partial(step_it, halving(o)), Events.EPOCH_COMPLETED),
            r"^The learning-rate schedule of the optimizer must .* no LrScheduleHandler of the trainer has it; pass it",
        ),
        (
            ignite_steps(cyclical, Events.EPOCH_STARTED),
            r"^The handler of a learning-rate schedule must be attached behind Rounds, otherwise training would start",
        ),
    ],
    ids=["no-state", "no-state-to-save", "function", "before-at-the-start"],
)
def test_schedule_that_could_not_begin_anew_is_refused(build, make, message):
    trained = []
    trainer, run = build(Rounds, lambda optimizer: [make(optimizer)], lambda engine, batch: trained.append(batch))
    with pytest.raises(ValueError, match=message):
        trainer.run()
    assert not trained
    assert claim_elsewhere(run.store.root)


def test_schedule_that_is_given_may_be_stepped_by_a_function(build):
    rates = []

    def update(engine, batch):
        rates.append(step(engine, batch)["lr"])

    schedules = []

    def handlers(optimizer):
        schedules.append(halving(optimizer))
        return [Attached(lambda: schedules[0].step(), Events.EPOCH_COMPLETED)]

    trainer, run = build(Rounds, handlers, update)
    run.lr_scheduler = schedules[0]
    trainer.run()
    assert rates == [0.5] * 3 + [0.25] * 3 + [0.5] * 3 + [0.25] * 3


def test_schedule_is_stepped_behind_the_start_and_before_the_end(build):
    trainer, _run = build(Rounds, update=step)
    monai_steps(halving)(trainer.optimizer).attach(trainer)
    with pytest.raises(
        ValueError, match=r"must be attached before Rounds, otherwise training would start at the second"
    ):
        trainer.run()
    trainer, _run = build(Rounds, update=step)
    rates = []
    ignite_steps(cyclical, Events.EPOCH_STARTED)(trainer.optimizer).attach(trainer)
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda e: rates.append(e.optimizer.param_groups[0]["lr"]))
    trainer.run()
    assert rates[0] != rates[3]
    assert rates[:6] == rates[6:]


def scaled_step(scales):
    def update(engine, batch):
        engine.optimizer.zero_grad()
        engine.scaler.scale(engine.network(batch["image"]).mean()).backward()
        engine.scaler.step(engine.optimizer)
        engine.scaler.update()
        scales.append(engine.scaler.get_scale())
        return {}

    return update


def with_scaler(trainer, **options):
    """Give a trainer a scaler when it starts, as MONAI does with ``amp=True`` on a GPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2, **options)
    trainer._event_handlers[Events.STARTED].insert(0, (lambda: setattr(trainer, "scaler", scaler), (), {}))


@pytest.mark.parametrize("enabled", [True, False])
def test_every_training_begins_with_the_first_scale_of_gradients(build, enabled):
    scales = []
    trainer, run = build(Rounds, update=scaled_step(scales))
    with_scaler(trainer, enabled=enabled)
    trainer.run()
    assert scales[:6] == ([4.0, 8.0, 8.0, 16.0, 16.0, 32.0] if enabled else [1.0] * 6)
    assert scales[6:] == scales[:6]
    assert bool(run._initial["scaler"]) is enabled


def test_run_that_began_without_half_precision_goes_on_with_it(build):
    trainer, run = build(Rounds, update=scaled_step([]))
    first = {"network": trainer.network.state_dict(), "optimizer": trainer.optimizer.state_dict(), "scaler": {}}
    run.load_state_dict(run.state_dict() | {"initial": first})
    with_scaler(trainer)
    trainer.run()
    assert run._trainings == 2


@pytest.mark.parametrize("epoch", [2, 4])
def test_interrupted_run_goes_on_with_the_first_schedule_and_scale(build, tmp_path, epoch):
    def start(folder):
        rates, scales, schedules = [], [], []

        def update(engine, batch):
            rates.append(engine.optimizer.param_groups[0]["lr"])
            return scaled_step(scales)(engine, batch)

        def handlers(optimizer):
            schedules.append(halving(optimizer))
            return [LrScheduleHandler(schedules[0], print_lr=False)]

        trainer, run = build(Rounds, handlers, update)
        with_scaler(trainer)
        parts = {"network": trainer.network, "optimizer": trainer.optimizer, "schedule": schedules[0], "run": run}
        ResumeHandler(tmp_path / folder / "checkpoint.pt", {**parts, "trainer": trainer}).attach(trainer)
        return trainer, rates, scales

    whole, rates, scales = start("whole")
    whole.run()
    cut, *_ = start("cut")
    cut.add_event_handler(Events.EPOCH_STARTED(once=epoch), lambda: fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    again, *found = start("cut")
    again.run()
    done = 3 * (epoch - 1)
    assert found == [rates[done:], scales[done:]]
    assert rates[6:] == rates[:6]
    assert scales[6:] == scales[:6]


def test_schedule_that_the_run_began_without_is_refused(build):
    _, run = build(Rounds)
    saved = run.state_dict() | {"initial": {"network": {}, "optimizer": {}}}
    trainer, run = build(Rounds, lambda optimizer: [monai_steps(halving)(optimizer)])
    run.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"^The checkpoint must hold the first state of lr_scheduler_1, without which"):
        trainer.run()


def test_training_without_a_fold_begins_with_fresh_batches(build):
    trainer, run = build(folds=2)
    trainer.run()
    loader = trainer.data_loader
    trainer._dataloader_iter = old = iter(loader)
    run._restart(trainer, 0, 1)
    assert [case["id"] for case in loader.dataset.data] == ["a", "c"]
    assert run._fold == 1
    assert trainer._dataloader_iter is not old
    write_round(run.store, 1)
    run._restart(trainer, 1, None)
    assert [case["label"] for case in loader.dataset.data] == [case["label"] for case in run.store.datalist(1)]


IN_MONAI = "applying transform <monai.transforms.io.dictionary.LoadImaged object at 0x7f>"
IN_OURS = "applying transform <monai_sc.transforms.load.LoadLabeld object at 0x7f>"


@pytest.mark.parametrize("loader", ["relabel_loader", "clean_loader", "data_loader"])
@pytest.mark.parametrize("message", [IN_MONAI, IN_OURS])
def test_file_that_no_loader_could_load_is_named(build, tmp_path, caplog, message, loader):
    trainer, run = build()
    (tmp_path / "x.nii.gz").write_bytes(b"")
    case = {"id": "x", "image": str(tmp_path / "x.nii.gz"), "label": str(tmp_path / "x.nii.gz")}
    errors = [RuntimeError(message)]
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: fail(errors[0]))
    with pytest.raises(RuntimeError) as caught:  # no file is damaged
        trainer.run()
    assert caught.value is errors[0]
    # The exception handler of StatsHandler, which is called first, raises.
    trainer, run = build(handlers=lambda optimizer: [stats()])
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: fail(errors[0]))
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=1),
        lambda: setattr(trainer if loader == "data_loader" else run, loader, DataLoader(Dataset([case]))),
    )
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match=r"x\.nii\.gz is empty") as caught:
        trainer.run()
    assert caught.value.__cause__ is errors[0]
    assert "A file could not be loaded; looking for a damaged file." in caplog.text
    run._fail(trainer, RuntimeError("something else"))  # of which nothing is said


@pytest.mark.parametrize("moment", MOMENTS, ids=["epoch-started", "iteration", "epoch-completed"])
def test_handlers_that_are_attached_before_are_called_with_what_is_told_of_an_error(build, tmp_path, caplog, moment):
    file = tmp_path / "x.nii.gz"
    file.write_bytes(b"")
    swallow = Swallow()
    trainer, run = build(handlers=lambda optimizer: [swallow, stats()])
    damaged = DataLoader(Dataset([{"id": "x", "image": str(file), "label": str(file)}]))
    trainer.add_event_handler(Events.EPOCH_STARTED(once=1), lambda: setattr(run, "relabel_loader", damaged))
    error = RuntimeError(IN_MONAI)
    trainer.add_event_handler(moment, lambda: fail(error))
    with pytest.raises(ValueError, match=r"x\.nii\.gz is empty") as caught:
        trainer.run()
    assert caught.value.__cause__ is error
    assert set(swallow.errors) == {caught.value}
    assert f"Exception: {caught.value}" in caplog.text
    assert claim_elsewhere(run.store.root)


@pytest.mark.parametrize("moment", MOMENTS, ids=["epoch-started", "iteration", "epoch-completed"])
def test_lost_process_is_named_whichever_handler_raises_first(build, monkeypatch, caplog, moment):
    monkeypatch.setattr(  # it looks at what an error came from, too
        "monai_sc.handlers.store_run.is_lost", lambda error: "closed" in f"{error} {error.__cause__}"
    )
    trainer, run = build(handlers=lambda optimizer: [stats()])
    error = RuntimeError("connection closed")
    trainer.add_event_handler(moment, lambda: fail(error))
    message = r"^Rank 0 stops because another process of this run ended;"
    with pytest.raises(OtherProcessError, match=message) as caught:
        trainer.run()
    assert caught.value.__cause__ is error
    assert f"Exception: {caught.value}" in caplog.text
    assert claim_elsewhere(run.store.root)


def test_epochs_of_a_round_are_at_least_one(build):
    assert build(epochs_per_round=1)[1].epochs_per_round == 1
    with pytest.raises(ValueError, match=r"^epochs_per_round must be at least 1 epoch, got 0\.$"):
        build(epochs_per_round=0)
    with pytest.raises(TypeError, match=r"^engine must be a monai\.engines\.SupervisedTrainer, got SimpleNamespace\."):
        build()[1].attach(SimpleNamespace())
