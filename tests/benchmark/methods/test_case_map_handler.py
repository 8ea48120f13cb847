"""What both handlers of maps share, with that of early-learning regularization; and what each does of its own."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.handlers import MeanAbsoluteError, ValidationHandler, from_engine
from monai.inferers import SlidingWindowInferer
from monai.transforms import (
    Compose,
    EnsureTyped,
    Lambdad,
    OneOf,
    Rand2DElasticd,
    RandFlipd,
    RandRotate90d,
    ScaleIntensityd,
)

from monai_sc.benchmark.methods import (
    CaseMapLoss,
    CaseMemory,
    EarlyLearningRegularizationLoss,
    EarlyLearningTargetHandler,
    GeneralizedCrossEntropyLoss,
    KeptVoxelsHandler,
    LoadCaseMapd,
)
from monai_sc.handlers import ResumeHandler

AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1]])
BOTH = ["image", "label"]


def cases(shape=(8, 6), number=4, channels=1):
    generator = torch.Generator().manual_seed(0)
    made = []
    for k in range(number):
        image = MetaTensor(torch.randn(1, *shape, generator=generator), affine=AFFINE)
        label = MetaTensor((image.as_tensor() > 0.3 * torch.randn(channels, *shape, generator=generator)).float())
        label.affine = torch.as_tensor(AFFINE)
        made.append({"id": f"case{k}", "image": image, "label": label})
    return made


class Net(torch.nn.Module):
    """A convolution over single voxels, so that flips and quarter turns commute with it."""

    def __init__(self, ndim=2, channels=1):
        super().__init__()
        self.conv = (torch.nn.Conv2d if ndim == 2 else torch.nn.Conv3d)(1, channels, 1)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(self.conv(x))


def build(
    kind,
    memory,
    *,
    epochs=3,
    output="sigmoid",
    shape=(8, 6),
    channels=1,
    moves=None,
    workers=0,
    loss=None,
    last=True,
    plain=(),
    length=None,
    loader=None,
    default=None,
    **options,
):
    """Return a trainer with one of the handlers, and the handler."""
    torch.manual_seed(0)
    default = (1 if kind is KeptVoxelsHandler else 0) if default is None else default
    groups = channels if output == "sigmoid" else 1
    classes = (2 * channels if output == "sigmoid" else channels) if kind is EarlyLearningTargetHandler else groups
    data = cases(shape, channels=channels if output == "sigmoid" else 1)
    load = LoadCaseMapd("map", memory, channels=classes, default=default)
    moves = [RandFlipd(BOTH, prob=0.5, spatial_axis=0), RandRotate90d(BOTH, prob=0.5)] if moves is None else moves
    if loss is None:
        loss = CaseMapLoss(
            EarlyLearningRegularizationLoss(output=output)
            if kind is EarlyLearningTargetHandler
            else GeneralizedCrossEntropyLoss(output=output, q=0.7, threshold=0.5)
        )
    network = Net(len(shape), channels)
    chain = Compose([*moves, load] if last else [load, *moves])
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        epoch_length=length,
        train_data_loader=DataLoader(
            CacheDataset(data, chain, progress=False), batch_size=1, shuffle=True, num_workers=workers
        )
        if loader is None
        else loader(Dataset(data, chain)),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9),
        loss_function=loss,
    )
    whole = DataLoader(Dataset(data, Compose(list(plain))), batch_size=3)
    handler = kind(memory, loader=whole, key="map", **options)
    handler.attach(trainer)
    return trainer, handler


@pytest.fixture(params=["memory", "folder"])
def make(request, tmp_path):
    return lambda **options: CaseMemory(tmp_path / "maps" if request.param == "folder" else None, **options)


class Watched(EarlyLearningRegularizationLoss):
    """Keeps the maps of the last batch."""

    def forward(self, input, target, memory=None):  # noqa: A002
        self.seen = memory.as_tensor()
        return super().forward(input, target, memory)


def probabilities(network, image, output):
    with torch.no_grad():
        logits = network.eval()(image.as_tensor()[None])[0]
    network.train()
    return torch.cat([1 - logits.sigmoid(), logits.sigmoid()]) if output == "sigmoid" else logits.softmax(0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("output", "shape", "channels"),
    [("sigmoid", (8, 6), 1), ("softmax", (8, 6), 3), ("sigmoid", (6, 5, 4), 1)],
    ids=["sigmoid-2D", "softmax-2D", "sigmoid-3D"],
)
def test_target_is_the_mean_of_what_was_predicted(make, output, shape, channels, workers):
    memory = make(dtype="float32")
    options = {"output": output, "shape": shape, "channels": channels, "workers": workers}
    trainer, _ = build(EarlyLearningTargetHandler, memory, **options)
    data, expected = cases(shape), {}

    @trainer.on(Events.EPOCH_COMPLETED)
    def follow(engine):
        for case in data:
            p = probabilities(engine.network, case["image"], output).clamp(1e-4, 1 - 1e-4)
            expected[case["id"]] = 0.8 * expected.get(case["id"], 0) + 0.2 * p

    trainer.run()
    for case in data:
        found = memory.read(case["id"])
        np.testing.assert_array_equal(found.affine, AFFINE)
        torch.testing.assert_close(found.as_tensor(), expected[case["id"]], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("workers", [0, 2])
def test_loss_gets_the_maps_of_its_batch_where_augmentation_has_moved_them(make, workers):
    loss = Watched()
    trainer, _ = build(
        EarlyLearningTargetHandler, make(dtype="float32"), epochs=2, workers=workers, loss=CaseMapLoss(loss)
    )
    first = Net().eval()
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED(once=1), lambda engine: first.load_state_dict(engine.network.state_dict())
    )
    differences = []

    @trainer.on(IterationEvents.LOSS_COMPLETED)
    def compare(engine):
        if engine.state.epoch == 1:
            assert loss.seen.shape[1] == 2
            assert (loss.seen == 0).all()
        else:
            foreground = first(engine.state.batch["image"].as_tensor()).sigmoid()
            differences.append(float((loss.seen[:, 1:] - 0.2 * foreground).detach().abs().max()))

    trainer.run()
    assert len(differences) == 4
    assert max(differences) < 1e-4


def test_map_lies_where_the_label_does_if_its_files_have_another_affine(make):
    loss, memory = Watched(), make(dtype="float32")
    other = Lambdad("label", lambda label: MetaTensor(label.as_tensor(), affine=torch.eye(4)))
    trainer, _ = build(
        EarlyLearningTargetHandler, memory, epochs=2, loss=CaseMapLoss(loss), moves=[other], plain=[other]
    )
    maps = {}

    @trainer.on(Events.EPOCH_COMPLETED(once=1))
    def keep(engine):
        maps.update({case["id"]: memory.read(case["id"]).as_tensor() for case in cases()})

    trainer.run()
    torch.testing.assert_close(loss.seen[0], maps[trainer.state.batch[0]["id"]])


def test_kept_voxels_are_those_whose_label_is_likely(make):
    memory = make(dtype="bool")
    trainer, _ = build(KeptVoxelsHandler, memory, epochs=7, start=3, interval=2)
    found = {}

    @trainer.on(Events.EPOCH_COMPLETED)
    def look(engine):
        found[engine.state.epoch] = memory.version
        if engine.state.epoch in (3, 5, 7):
            for case in cases():
                foreground = probabilities(engine.network, case["image"], "sigmoid")[1:]
                likely = torch.where(case["label"].as_tensor() > 0, foreground, 1 - foreground) > 0.5
                kept = memory.read(case["id"]).as_tensor()
                assert torch.equal(kept, likely)
                assert 0 < kept.float().mean() < 1

    trainer.run()
    assert found == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3}


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("output", ["sigmoid", "softmax"])
def test_kept_voxels_of_several_channels(output, channels):
    memory = CaseMemory(dtype="bool")
    trainer, _ = build(KeptVoxelsHandler, memory, start=1, interval=1, output=output, channels=channels)
    trainer.run()
    assert memory.read("case0").shape == (channels if output == "sigmoid" else 1, 8, 6)


def test_voxels_that_are_not_kept_do_not_train():
    memory = CaseMemory(dtype="bool")
    memory.replace([(case["id"], case["label"] * 0) for case in cases()])
    trainer, _ = build(KeptVoxelsHandler, memory, start=9, interval=1)
    before = [p.clone() for p in trainer.network.parameters()]
    trainer.run()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.network.parameters(), strict=True))
    assert trainer.state.output[0]["loss"] == 0


def with_evaluator(memory, values, epochs=4):
    """Return a trainer whose evaluator finds the given values of its key metric, one per epoch."""
    torch.manual_seed(0)
    network = Net()
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(cases(number=1)), batch_size=1),
        network=network,
        key_val_metric={"error": MeanAbsoluteError(output_transform=from_engine(["pred", "label"]))},
    )
    given = iter(values)
    evaluator.add_event_handler(
        Events.EPOCH_COMPLETED, lambda e: e.state.metrics.update(error=next(given))
    )  # behind the metric itself
    trainer, handler = build(KeptVoxelsHandler, memory, epochs=epochs, start=epochs, interval=1, evaluator=evaluator)
    evaluator.network = trainer.network
    ValidationHandler(1, evaluator).attach(trainer)
    return trainer, handler


@pytest.mark.parametrize("resumed", [False, True], ids=["whole", "resumed"])
def test_best_network_on_clean_cases_decides(resumed):
    memory = CaseMemory(dtype="bool")
    trainer, handler = with_evaluator(memory, [0.1, 0.9, 0.2, 0.3])
    weights = {}
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED,
        lambda e: weights.update({e.state.epoch: {k: v.clone() for k, v in e.network.state_dict().items()}}),
    )
    trainer.run()
    if resumed:  # what came before is not forgotten
        memory = CaseMemory(dtype="bool")
        again, other = with_evaluator(memory, [0.3, 0.4, 0.5], epochs=3)
        other.load_state_dict(handler.state_dict())
        again.run()
    network = Net()
    network.load_state_dict(weights[2])
    for case in cases():
        foreground = probabilities(network, case["image"], "sigmoid")[1:]
        likely = torch.where(case["label"].as_tensor() > 0, foreground, 1 - foreground) > 0.5
        assert torch.equal(memory.read(case["id"]).as_tensor(), likely)


def test_evaluator_that_never_ran_is_refused():
    memory = CaseMemory(dtype="bool")
    trainer, handler = with_evaluator(memory, [0.1], epochs=1)
    trainer.state.epoch = 1
    with pytest.raises(ValueError, match="evaluator must have run before the first decision"):
        handler(trainer)


@pytest.mark.parametrize("kind", [EarlyLearningTargetHandler, KeptVoxelsHandler])
@pytest.mark.parametrize("stop", [5, 10])
def test_resumed_run_ends_like_an_uninterrupted_one(tmp_path, make, kind, stop):
    options = {} if kind is EarlyLearningTargetHandler else {"start": 1, "interval": 2}
    dtype = "float16" if kind is EarlyLearningTargetHandler else "bool"

    def run(checkpoint, memory, stop=None):
        trainer, handler = build(kind, memory, epochs=4, **options)
        parts = {"network": trainer.network, "optimizer": trainer.optimizer, "trainer": trainer, "maps": handler}
        ResumeHandler(checkpoint, parts).attach(trainer)

        @trainer.on(Events.ITERATION_COMPLETED(once=stop or 10**9))
        def interrupt(engine):
            raise KeyboardInterrupt

        trainer.run()
        weights = [p.detach().clone() for p in trainer.network.parameters()]
        return weights, [memory.read(case["id"]).clone() for case in cases()]

    whole = run(tmp_path / "whole.pt", make(dtype=dtype))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut.pt", make(dtype=dtype), stop)
    again = run(tmp_path / "cut.pt", make(dtype=dtype))
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_run_that_is_interrupted_between_new_maps_and_checkpoint_goes_on(tmp_path):
    """The folder is then one epoch ahead of the checkpoint."""
    memory = CaseMemory(tmp_path / "maps", dtype="float32")
    trainer, handler = build(EarlyLearningTargetHandler, memory, epochs=2)
    states = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: states.append(handler.state_dict()))
    trainer.run()
    expected = memory.read("case0").clone()
    again, other = build(EarlyLearningTargetHandler, CaseMemory(tmp_path / "maps", dtype="float32"), epochs=1)
    other.load_state_dict(states[0])
    again.network.load_state_dict(trainer.network.state_dict())
    other(again)
    torch.testing.assert_close(other.memory.read("case0").as_tensor(), expected.as_tensor())


def test_case_without_id_in_the_loader_has_no_target():
    memory = CaseMemory()
    trainer, handler = build(EarlyLearningTargetHandler, memory, epochs=2)
    handler.loader = DataLoader(Dataset(cases()[:3]), batch_size=2)
    trainer.run()
    assert memory.read("case2") is not None
    assert memory.read("case3") is None


def test_inferer_for_whole_cases():
    memory = CaseMemory(dtype="float32")
    inferer = SlidingWindowInferer((4, 4))
    trainer, _ = build(EarlyLearningTargetHandler, memory, epochs=1, inferer=inferer)
    trainer.run()
    expected = 0.2 * probabilities(trainer.network, cases()[0]["image"], "sigmoid")
    torch.testing.assert_close(memory.read("case0").as_tensor(), expected, rtol=1e-4, atol=2e-5)


def test_diverged_network_leaves_the_maps_as_they_were():
    memory = CaseMemory()
    trainer, handler = build(EarlyLearningTargetHandler, memory)
    trainer.run()
    before = memory.read("case0").clone()
    torch.nn.init.constant_(trainer.network.conv.weight, float("nan"))
    with pytest.raises(ValueError, match="must be finite"):
        handler(trainer)
    assert torch.equal(memory.read("case0").as_tensor(), before.as_tensor())


ELASTIC = Rand2DElasticd(BOTH, spacing=(2, 2), magnitude_range=(1, 2), prob=1)
LOADED = "must have LoadCaseMapd('map', memory) behind all random ones, with the memory of this handler"
REFUSED = [
    pytest.param(
        {"loss": torch.nn.BCEWithLogitsLoss()}, TypeError, "The trainer's loss must be CaseMapLoss", id="loss"
    ),
    pytest.param(
        {"loss": CaseMapLoss(torch.nn.MSELoss())}, TypeError, "The trainer's loss must be CaseMapLoss", id="inner-loss"
    ),
    pytest.param({"last": False}, ValueError, LOADED, id="not-last"),
    pytest.param({"moves": [ELASTIC]}, ValueError, "got Rand2DElasticd: maps cannot follow it", id="elastic"),
    pytest.param({"moves": [OneOf([ELASTIC])]}, ValueError, "got Rand2DElasticd: maps cannot", id="elastic-in-one-of"),
    pytest.param(
        {"plain": [RandFlipd("image")]},
        ValueError,
        "loader must have deterministic transforms only",
        id="random-loader",
    ),
    pytest.param(
        {"loader": lambda data: DataLoader(data, num_workers=1, persistent_workers=True)},
        ValueError,
        "must have persistent_workers=False, got True",
        id="persistent-workers",
    ),
    pytest.param(
        {"workers": 1, "length": 3},
        ValueError,
        "epoch_length must be that of the trainer's loader",
        id="shorter-epochs",
    ),
]


@pytest.mark.parametrize("kind", [EarlyLearningTargetHandler, KeptVoxelsHandler])
@pytest.mark.parametrize(("options", "error", "wording"), REFUSED)
def test_trainer_whose_maps_would_go_astray_is_refused(kind, options, error, wording):
    dtype = "float16" if kind is EarlyLearningTargetHandler else "bool"
    trainer, _ = build(kind, CaseMemory(dtype=dtype), **options)
    with pytest.raises(error, match=re.escape(wording)):
        trainer.run()
    assert trainer.state.iteration == 0


def test_loss_without_a_threshold_is_refused():
    loss = CaseMapLoss(GeneralizedCrossEntropyLoss(q=0.7))
    trainer, _ = build(KeptVoxelsHandler, CaseMemory(dtype="bool"), loss=loss)
    with pytest.raises(TypeError, match="with a threshold, got another one"):
        trainer.run()


def test_memory_of_another_handler_is_refused():
    trainer, handler = build(EarlyLearningTargetHandler, CaseMemory())
    handler.memory = CaseMemory()
    with pytest.raises(ValueError, match=re.escape(LOADED)):
        trainer.run()


def test_images_without_an_affine_are_refused():
    trainer, _ = build(EarlyLearningTargetHandler, CaseMemory(), plain=[EnsureTyped(BOTH, track_meta=False)])
    with pytest.raises(TypeError, match=r"The images of loader must be MetaTensors, .* got Tensor"):
        trainer.run()


def test_deterministic_transforms_of_the_loader_are_fine():
    build(EarlyLearningTargetHandler, CaseMemory(), plain=[ScaleIntensityd("image")])[0].run()


@pytest.mark.parametrize(
    ("kind", "dtype", "options", "wording"),
    [
        (EarlyLearningTargetHandler, "bool", {}, "memory must have a floating-point dtype for probabilities, got bool"),
        (KeptVoxelsHandler, "float16", {}, "memory must have dtype='bool', a voxel is kept or not, got float16"),
        (KeptVoxelsHandler, "bool", {"start": 0}, r"start must be at least 1 epoch, got 0\."),
        (KeptVoxelsHandler, "bool", {"interval": 0}, r"interval must be at least 1 epoch, got 0\."),
    ],
    ids=["mask-for-targets", "probabilities-for-masks", "start", "interval"],
)
def test_unfit_option_is_refused(kind, dtype, options, wording):
    with pytest.raises(ValueError, match=wording):
        kind(CaseMemory(dtype=dtype), loader=DataLoader(Dataset(cases())), **options)


def test_evaluator_without_a_key_metric_is_refused():
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"), val_data_loader=DataLoader(Dataset(cases())), network=Net()
    )
    with pytest.raises(ValueError, match="evaluator must have a key metric"):
        KeptVoxelsHandler(CaseMemory(dtype="bool"), loader=DataLoader(Dataset(cases())), evaluator=evaluator)
