import json
import logging

import nibabel as nib
import numpy as np
import pytest
import torch
from cleanlab.filter import find_label_issues
from ignite.engine import Engine, Events
from monai.data import CacheDataset, DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler
from monai.transforms import (
    BorderPadd,
    CenterSpatialCropd,
    Compose,
    Flipd,
    LoadImaged,
    Rotate90d,
    SelectItemsd,
    Spacingd,
)
from monai.utils import convert_to_tensor, set_determinism
from scipy import ndimage

from monai_sc.benchmark.methods import ConfidentLearningHandler
from monai_sc.handlers import ResumeHandler
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld
from tests.contents import contents

SIZE = 32
AFFINE = np.diag([0.5, 0.5, 0.5, 1.0])
EPOCHS = 4


def disc(k, state, ndim, size=SIZE):
    """Return the signed distance to the boundary of one disc or ball, which differs from case to case."""
    grid = np.indices((size,) * ndim)
    centre = (size / 2 + state.uniform(-2, 2, size=ndim)).reshape(-1, *[1] * ndim)
    return size / 4 + k % 4 - np.sqrt(((grid - centre) ** 2).sum(axis=0))


def voxel_noise(masks, state):
    drop, add = (0.3, 0.05) if len(masks) == 1 else (0.3, 0.02)
    return np.where(masks, state.rand(*masks.shape) >= drop, state.rand(*masks.shape) < add)


def write_cases(folder, number, *, seed=0, ndim=2, softmax=False, noise=voxel_noise):
    """Write images of discs with labels that have errors at random; a map has the disc, 1, and its core, 4."""
    folder.mkdir(parents=True, exist_ok=True)
    state = np.random.RandomState(seed)
    cases = []
    for k in range(number):
        distance = disc(k, state, ndim, SIZE if ndim == 2 else 16)
        regions = np.digitize(distance, [0, 4]) if softmax else (distance >= 0).astype(int)
        image = np.array([0.0, 1.0, -1.0])[regions] + state.normal(scale=0.3, size=distance.shape)
        clean = regions[None] == np.arange(1, regions.max() + 1).reshape(-1, *[1] * ndim)
        noisy = noise(clean, state)
        values = [1, 4] if softmax else [1]
        case = {"id": f"case{k}"}
        for name, array in (
            ("image", image.astype(np.float32)),
            # where the noise leaves a voxel to both, it is of the core
            ("label", np.max([v * m for v, m in zip(values, noisy, strict=True)], axis=0).astype(np.uint8)),
            ("reference_label", np.max([v * m for v, m in zip(values, clean, strict=True)], axis=0).astype(np.uint8)),
        ):
            case[name] = str(folder / f"case{k}_{name}.nii.gz")
            nib.save(nib.Nifti1Image(array, AFFINE), case[name])
        cases.append(case)
    return cases


class Net(torch.nn.Sequential):
    def __init__(self, channels, ndim=2):
        conv = torch.nn.Conv2d if ndim == 2 else torch.nn.Conv3d
        super().__init__(conv(1, 8, 5, padding=2), torch.nn.ReLU(), conv(8, channels, 5, padding=2))


class Shift(torch.nn.Module):
    """A network whose logits are known: the image, scaled and shifted."""

    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return 4 * (x - 0.5) + self.offset


def loss(logits, label):
    logits, label = (convert_to_tensor(x, track_meta=False) for x in (logits, label))
    if logits.shape[1] == 1:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label.float())
    numbers = (label > 0).long()  # (batch, 2, *spatial), which exclude each other
    return torch.nn.functional.cross_entropy(logits, numbers[:, 0] + 2 * numbers[:, 1])


def build(
    folder, *, number=6, seed=0, ndim=2, softmax=False, noise=voxel_noise, transforms=(), network=None, rate=0.05,
    epochs=EPOCHS, max_epochs=None, trusted=None, dataset=CacheDataset, **options,
):  # fmt: skip
    set_determinism(seed)
    cases = write_cases(folder / "data", number, seed=seed, ndim=ndim, softmax=softmax, noise=noise)
    if trusted is not None:
        nib.save(nib.Nifti1Image(trusted.astype(np.uint8), AFFINE), folder / "data" / "trusted.nii.gz")
        cases = [{**case, "trusted": str(folder / "data" / "trusted.nii.gz")} for case in cases]
    values = [1, 4] if softmax else None
    store = LabelStore(folder / "labels", cases, class_names=["rim", "core"] if softmax else ["disc"], values=values)
    image = LoadImaged("image", image_only=True, ensure_channel_first=True)
    label = [LoadLabeld("label", values=values), SelectItemsd(["id", "image", "label"])]
    cache = {"progress": False} if dataset is CacheDataset else {}
    training = dataset(store.datalist(0), Compose([image, *label]), **cache)
    relabel = dataset(store.cases, Compose([image, *transforms, SelectItemsd(["id", "image"])]), **cache)
    network = Net(3 if softmax else 1, ndim) if network is None else network
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(1, epochs - 1))
    handler = ConfidentLearningHandler(
        store,
        relabel_loader=DataLoader(relabel, batch_size=2),
        epochs_per_round=epochs,
        lr_scheduler=schedule,
        output="softmax" if softmax else "sigmoid",
        progress=False,
        **options,
    )
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs * (handler.folds + 1) if max_epochs is None else max_epochs,
        train_data_loader=DataLoader(training, batch_size=1, shuffle=True),
        network=network,
        optimizer=optimizer,
        loss_function=loss,
        train_handlers=[LrScheduleHandler(schedule, print_lr=False), handler],
    )
    return trainer, handler, store


def build_resumable(folder, **options):
    trainer, handler, store = build(folder, **options)
    parts = {
        "model": trainer.network,
        "optimizer": trainer.optimizer,
        "lr_scheduler": handler.lr_scheduler,
        "trainer": trainer,
        "correction": handler,
    }
    ResumeHandler(folder / "checkpoint.pt", parts).attach(trainer)
    return trainer, handler, store


def label_dice(store, number):
    pairs = [(store.read(case["id"], number), store.read_clean(case["id"])) for case in store.cases]
    return np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs])


@pytest.mark.parametrize(
    "options",
    [{}, {"folds": 3}, {"prune": "class"}, {"prune": "noise_rate"}, {"softmax": True}, {"ndim": 3}],
    ids=["two-folds", "three-folds", "class", "noise-rate", "softmax-map", "3d"],
)
def test_flagged_voxels_are_flipped_in_a_new_round(tmp_path, options, caplog):
    trainer, handler, store = build(tmp_path, **options)
    originals = contents(tmp_path / "data")
    with caplog.at_level(logging.INFO):
        trainer.run()
    assert (store.rounds, store.current) == ([0, 1], 1)
    assert contents(tmp_path / "data") == originals
    assert label_dice(store, 1) > label_dice(store, 0) + 0.1
    record = trainer.state.confident_learning
    assert record == handler.record
    written, names = store.record(1), store.class_names
    assert json.loads(json.dumps(record)).items() >= {n: written[n] for n in ("thresholds", "joint")}.items()
    assert written["method"] == "confident_learning"
    assert (written["folds"], written["prune"]) == (options.get("folds", 2), options.get("prune", "both"))
    flagged = np.array(record["flagged"])
    assert not flagged.diagonal(axis1=1, axis2=2).any()
    changed = np.sum([entry["voxels_changed"] for entry in store.manifest(1)], axis=0)
    assert changed.tolist() == record["voxels_changed"]
    assert flagged.sum(axis=(1, 2)).tolist() == np.sum([e["flagged"] for e in store.manifest(1)], axis=0).tolist()
    # A voxel that changes its class leaves or enters a mask, or both; it was flagged from its class as another one.
    if options.get("softmax"):
        assert changed.tolist() == [flagged[0, k].sum() + flagged[0, :, k].sum() for k in (1, 2)]
        for case in store.datalist(1):
            assert set(np.unique(nib.load(case["label"]).get_fdata())) <= {0, 1, 4}
    else:
        assert changed.tolist() == flagged.sum(axis=(1, 2)).tolist()
    assert np.sum(record["label_counts"][0]) == sum(store.read(case["id"], 0)[0].size for case in store.cases)
    assert f"voxels labelled {'background' if len(names) > 1 else 'not disc'}" in caplog.text


@pytest.mark.parametrize("prune", ["both", "class", "noise_rate"])
def test_labels_are_those_of_cleanlab_with_out_of_fold_predictions(tmp_path, prune):
    trainer, _handler, store = build(tmp_path, network=Shift(), rate=0.0, prune=prune, epochs=1)
    offsets = [-0.3, 0.4, 9.0]

    @trainer.on(Events.ITERATION_COMPLETED)
    def train(engine):
        with torch.no_grad():
            engine.network.offset.fill_(offsets[engine.state.epoch - 1])

    trainer.run()
    logits, labels = [], []
    for k, case in enumerate(store.cases):
        image = nib.load(case["image"]).get_fdata(dtype=np.float32)
        logits.append(4 * (image - 0.5) + offsets[k % 2])
        labels.append(store.read(case["id"], 0)[0].astype(int))
    foreground = (1 / (1 + np.exp(-np.ravel(logits).astype(np.float64)))).clip(0, 1)
    name = {"both": "both", "class": "prune_by_class", "noise_rate": "prune_by_noise_rate"}[prune]
    issues = find_label_issues(
        np.ravel(labels), np.stack([1 - foreground, foreground], axis=1), filter_by=name, n_jobs=1
    )
    changed = np.ravel([store.read(case["id"], 1)[0] != store.read(case["id"], 0)[0] for case in store.cases])
    assert issues.sum() > 100
    assert not (issues & ~changed).any()
    # Voxels in the bin where each class is cut; a bin is 1/256 of a logit.
    assert (changed & ~issues).sum() <= 4


@pytest.mark.parametrize("kind", [Dataset, CacheDataset], ids=["plain", "cache"])
def test_each_network_begins_anew_and_leaves_out_its_fold(tmp_path, kind):
    trainer, handler, store = build(
        tmp_path,
        folds=3,
        epochs=2,
        dataset=lambda *a: kind(*a, **({"progress": False} if kind is CacheDataset else {})),
    )
    begun, seen = [], {}
    weight = trainer.network[0].weight
    trainer.add_event_handler(
        Events.EPOCH_STARTED(every=1),
        lambda e: begun.append((weight[0, 0, 0, 0].item(), e.optimizer.param_groups[0]["lr"])),
    )

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        for item in engine.state.batch:
            number = int(bool(item["label"].sum() != store.read(item["id"], 0).sum()))
            seen.setdefault((engine.state.epoch - 1) // 2, set()).add((item["id"], number))

    trainer.run()
    assert begun[0] == begun[2] == begun[4] == begun[6]
    assert begun[1][0] != begun[0][0]
    changed = {
        e["case"]: int(store.read(e["case"], 1).sum() != store.read(e["case"], 0).sum()) for e in store.manifest(1)
    }
    assert sum(changed.values()) > 4
    for fold in range(3):
        assert seen[fold] == {(f"case{k}", 0) for k in range(6) if k % 3 != fold}
    assert seen[3] == set(changed.items())
    assert handler.state_dict()["weights"] == []


def test_trusted_voxels_keep_their_labels(tmp_path):
    trusted = np.zeros((SIZE, SIZE), dtype=bool)
    trusted[:, : SIZE // 2] = True
    trainer, handler, store = build(tmp_path, trusted=trusted)
    trainer.run()
    changes = [store.read(case["id"], 1)[0] != store.read(case["id"], 0)[0] for case in store.cases]
    assert not np.any([change[trusted] for change in changes])
    assert np.sum([change[~trusted] for change in changes]) > 50
    assert np.sum(handler.record["flagged"]) > np.sum(handler.record["voxels_changed"])


def test_trusted_voxels_of_a_map_keep_their_class(tmp_path):
    trusted = np.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 2 == 0
    trainer, _handler, store = build(tmp_path, trusted=trusted, softmax=True)
    trainer.run()
    for case in store.datalist(1):
        given, new = (nib.load(f).get_fdata() for f in (store.case(case["id"])["label"], case["label"]))
        np.testing.assert_array_equal(new[trusted], given[trusted])
        assert (new != given)[~trusted].any()


def test_labels_come_back_to_their_own_grid(tmp_path):
    transforms = [
        Flipd("image", 0),
        Rotate90d("image"),
        Spacingd("image", pixdim=(0.4, 0.4), mode="bilinear"),
        BorderPadd("image", 3, mode="edge"),
    ]
    trainer, handler, store = build(tmp_path, transforms=transforms)
    trainer.run()
    for case, source in zip(store.datalist(1), store.cases, strict=True):
        written, given = nib.load(case["label"]), nib.load(source["label"])
        assert written.shape == given.shape
        assert written.get_data_dtype() == given.get_data_dtype()
        np.testing.assert_array_equal(written.affine, given.affine)
    assert np.sum(handler.record["label_counts"]) == 6 * SIZE * SIZE
    assert label_dice(store, 1) > label_dice(store, 0) + 0.1


@pytest.mark.parametrize("softmax", [False, True], ids=["sigmoid", "softmax"])
def test_what_was_cropped_does_not_count_and_stays(tmp_path, softmax):
    crop = CenterSpatialCropd("image", (20, 24))
    trainer, handler, store = build(tmp_path, transforms=[crop], softmax=softmax)
    trainer.run()
    inside = np.zeros((SIZE, SIZE), dtype=bool)
    inside[6:26, 4:28] = True
    assert np.sum(handler.record["label_counts"]) == 6 * 20 * 24
    changes = [(store.read(c["id"], 1) != store.read(c["id"], 0)).any(axis=0) for c in store.cases]
    assert not np.any([change[~inside] for change in changes])
    assert np.sum(changes) > 50


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    trainer, _, store = build_resumable(tmp_path_factory.mktemp("whole"), epochs=2)
    trainer.run()
    return trainer, store


@pytest.mark.parametrize("moment", ["first fold", "second fold", "relabelling", "after the round", "last training"])
def test_interrupted_run_ends_as_the_whole_one(tmp_path, monkeypatch, whole, moment):
    trainer, handler, store = build_resumable(tmp_path, epochs=2)

    def stop(*_):
        raise KeyboardInterrupt

    epochs = {"first fold": 2, "second fold": 3, "last training": 6}
    if moment in epochs:
        trainer.add_event_handler(Events.EPOCH_STARTED(once=epochs[moment]), stop)
    elif moment == "relabelling":
        monkeypatch.setattr(handler, "_flip", stop)
    else:  # the round is there, but the checkpoint does not know it
        monkeypatch.setattr(handler, "_log", stop)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert store.rounds == ([0, 1] if moment in ("after the round", "last training") else [0])
    trainer, handler, store = build_resumable(tmp_path, epochs=2)
    started = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: started.append(e.state.epoch))
    trainer.run()
    assert started[0] == {**epochs, "relabelling": 4, "after the round": 4}[moment]
    other, other_store = whole
    assert json.dumps(handler.record) == json.dumps(other.state.confident_learning)
    for case in store.cases:
        np.testing.assert_array_equal(store.read(case["id"], 1), other_store.read(case["id"], 1))
    for name, weights in other.network.state_dict().items():
        torch.testing.assert_close(trainer.network.state_dict()[name], weights, rtol=0, atol=0)


def test_finished_run_does_not_train_again(tmp_path):
    for _ in range(2):
        trainer, _handler, store = build_resumable(tmp_path, epochs=1)
        iterations = []
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e, i=iterations: i.append(1))
        trainer.run()
    assert not iterations
    assert store.rounds == [0, 1]


def test_run_goes_on_with_its_own_options_only(tmp_path):
    trainer, _, _ = build_resumable(tmp_path)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=3), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer, _, _ = build_resumable(tmp_path, prune="class")
    with pytest.raises(ValueError, match=r"prune must be 'both', with which the run began, got 'class'"):
        trainer.run()


def test_store_with_rounds_of_another_run_is_refused(tmp_path):
    trainer, _, _ = build(tmp_path, epochs=1)
    trainer.run()
    trainer, _, _ = build(tmp_path, epochs=1)
    with pytest.raises(ValueError, match=r"holds the rounds \[1\], which this run has not made"):
        trainer.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "tanh"}, r"^output must be one of 'sigmoid', 'softmax', got 'tanh'\.$"),
        ({"prune": "all"}, r"^prune must be one of 'both', 'class', 'noise_rate', got 'all'\.$"),
        ({"epochs_per_round": 0}, r"^epochs_per_round must be at least 1 epoch, got 0\.$"),
        ({"folds": 1}, r"^folds must be at least 2, and at most the number of cases \(6\), got 1\.$"),
        ({"folds": 7}, r"at most the number of cases \(6\), got 7\.$"),
    ],
    ids=["output", "prune", "epochs", "one-fold", "many-folds"],
)
def test_option_out_of_range_is_refused(tmp_path, options, message):
    _, handler, store = build(tmp_path)
    given = {"relabel_loader": handler.relabel_loader, "epochs_per_round": 1, **options}
    with pytest.raises(ValueError, match=message):
        ConfidentLearningHandler(store, **given)


def test_sigmoid_on_maps_of_several_classes_is_refused(tmp_path):
    _, handler, store = build(tmp_path, softmax=True)
    with pytest.raises(ValueError, match=r"^output must be 'softmax' where the labels of the store are maps"):
        ConfidentLearningHandler(store, relabel_loader=handler.relabel_loader, epochs_per_round=1)


def test_epochs_that_do_not_fit_are_refused(tmp_path):
    trainer, _, _ = build(tmp_path, folds=3, max_epochs=12)
    with pytest.raises(ValueError, match=r"must be \(folds \+ 1\) \* epochs_per_round \(16\), got 12\.$"):
        trainer.run()


def test_other_engine_is_refused(tmp_path):
    _, handler, _ = build(tmp_path)
    with pytest.raises(TypeError, match=r"engine must be a monai\.engines\.SupervisedTrainer, got Engine\.$"):
        handler.attach(Engine(lambda *_: None))


def test_relabel_loader_must_hold_the_cases_of_the_store(tmp_path):
    trainer, handler, _ = build(tmp_path)
    handler.relabel_loader.dataset.data = handler.relabel_loader.dataset.data[1:]
    with pytest.raises(ValueError, match=r"^relabel_loader must hold every case of the store once, and no other\.$"):
        trainer.run()


def test_network_with_other_channels_is_refused(tmp_path):
    trainer, _, _ = build(tmp_path, network=Net(2), epochs=1)
    trainer.loss_function = lambda logits, _: convert_to_tensor(logits, track_meta=False).mean()
    with pytest.raises(ValueError, match=r"must have one output channel per class of the store \['disc'\], got 2\.$"):
        trainer.run()


def wobbly_noise(masks, state):
    """Move the boundary by a smooth random distance of either sign, another one in each place and image."""
    noisy = []
    for mask in masks:
        distance = ndimage.distance_transform_edt(mask) - ndimage.distance_transform_edt(~mask)
        field = ndimage.gaussian_filter(state.normal(size=mask.shape), 3)
        noisy.append(distance + 3 * field / field.std() > 0)
    return np.stack(noisy)


def network_dice(trainer, folder):
    """Return the mean Dice of the trainer's network on other images, whose labels have no errors."""
    scores = []
    for case in write_cases(folder, 8, seed=99):
        image = torch.from_numpy(nib.load(case["image"]).get_fdata(dtype=np.float32))[None, None]
        with torch.no_grad():
            predicted = trainer.network.eval()(image)[0, 0].numpy() > 0
        clean = nib.load(case["reference_label"]).get_fdata() > 0
        scores.append(2 * (predicted & clean).sum() / (predicted.sum() + clean.sum()))
    return np.mean(scores)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("noise", "gain"), [(voxel_noise, 0.005), (wobbly_noise, -0.04)], ids=["voxels", "wobble"])
def test_errors_at_random_are_corrected(tmp_path, noise, gain, seed):
    dice = []
    for name in ("plain", "confident"):
        trainer, handler, store = build(tmp_path / name, seed=seed, noise=noise, epochs=8)
        if name == "plain":  # as many epochs as the last training has, on the labels that were given
            trainer.remove_event_handler(handler.start, Events.EPOCH_STARTED)
            trainer.remove_event_handler(handler, Events.EPOCH_COMPLETED)
            trainer.state.max_epochs = 8
        trainer.run()
        dice.append(network_dice(trainer, tmp_path / "test"))
    assert label_dice(store, 1) > label_dice(store, 0) + 0.05
    # Plain training does well on boundaries that wobble about the true one, and little is left to gain.
    assert dice[1] > dice[0] + gain
