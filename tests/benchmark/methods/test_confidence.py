import math

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import BorderPadd, Compose, Flipd, LoadImaged, Rotate90d, SelectItemsd, SpatialCropd
from monai.utils import set_determinism
from scipy import ndimage

from monai_sc.benchmark.methods import ConfidenceHandler, WatchedVoxel
from monai_sc.datasets import phantom_cases
from monai_sc.handlers import ResumeHandler
from monai_sc.store import LabelStore
from monai_sc.transforms import LoadLabeld, RandMarkovLabelNoise

CLASSES = ["disc", "square"]


class Logits(torch.nn.Module):
    """Gives the image back, plus one number that is learnt; with ``softmax`` the two classes and a background of 0."""

    def __init__(self, softmax=False):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(1))
        self.softmax = softmax

    def forward(self, x):
        x = x + self.offset
        return torch.cat([torch.zeros_like(x[:, :1]), x], dim=1) if self.softmax else x


def write(file, array):
    nib.save(nib.Nifti1Image(array, np.diag([2.0, 2.0, 2.0, 1.0])), file)
    return str(file)


def write_cases(folder, number=3, shape=(20, 24)):
    """Write cases whose images hold random logits; given labels of the first class are wrong in random voxels."""
    rng = np.random.default_rng(0)
    grid = np.indices(shape) - np.reshape(shape, (-1, *[1] * len(shape))) // 2
    cases = []
    for k in range(number):
        clean = np.stack([np.linalg.norm(grid, axis=0) < 5 + k, np.abs(grid).max(axis=0) < 3]).astype(np.uint8)
        given = clean.copy()
        given[0] ^= rng.random(shape) < 0.2
        case = {"id": f"case{k}"}
        logits = rng.normal(scale=2, size=(2, *shape)).astype(np.float32)
        for key, arrays in (("image", logits), ("label", given), ("reference_label", clean)):
            names = [folder / f"{case['id']}_{key}_{name}.nii.gz" for name in CLASSES]
            case[key] = [write(file, array) for file, array in zip(names, arrays, strict=True)]
        cases.append(case)
    return cases


def arrays(files):
    return np.stack([nib.load(file).get_fdata() for file in files])


def loader_of(cases, *transforms):
    load = LoadImaged("image", image_only=True, ensure_channel_first=True)
    chain = Compose([load, *transforms, SelectItemsd(["id", "image"])])
    return DataLoader(Dataset(cases, chain), batch_size=2)


def trainer_of(network, cases, handlers, *, epochs=1, lr=0.0, shuffle=False, loss=None):
    load = LoadImaged("image", image_only=True, ensure_channel_first=True)
    chain = Compose([load, LoadLabeld("label"), SelectItemsd(["id", "image", "label"])])
    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=DataLoader(Dataset(cases, chain), batch_size=2, shuffle=shuffle),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=lr),
        loss_function=loss or (lambda pred, label: pred.mean()),
        train_handlers=handlers,
    )


def oracle(cases, band, probability):
    """Return the mean confidences of right and of wrong voxels of the band by class, from the definition."""
    found = {"right": [[], []], "wrong": [[], []]}
    for case in cases:
        logits, given, clean = (arrays(case[key]) for key in ("image", "label", "reference_label"))
        for k in range(2):
            inside = ndimage.distance_transform_edt(clean[k])
            outside = ndimage.distance_transform_edt(1 - clean[k])
            for index in np.ndindex(clean.shape[1:]):
                if max(inside[index], outside[index]) - 0.5 <= band:
                    p = probability(logits[(slice(None), *index)], k)
                    kind = "right" if given[k][index] == clean[k][index] else "wrong"
                    found[kind][k].append(p if given[k][index] else 1 - p)
    return {kind: [np.mean(own) if own else math.nan for own in values] for kind, values in found.items()}


def sigmoid(logits, k):
    return 1 / (1 + math.exp(-logits[k]))


def softmax(logits, k):
    return math.exp(logits[k]) / (1 + sum(math.exp(value) for value in logits))


@pytest.mark.parametrize(("output", "probability"), [("sigmoid", sigmoid), ("softmax", softmax)])
@pytest.mark.parametrize("shape", [(20, 24), (12, 14, 16)], ids=["2d", "3d"])
@pytest.mark.parametrize("band", [1.5, 100])
def test_confidence_is_that_of_the_definition(tmp_path, output, probability, shape, band):
    cases = write_cases(tmp_path, shape=shape)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    handler = ConfidenceHandler(store, loader_of(cases), output=output, band=band)
    trainer_of(Logits(output == "softmax"), cases, [handler]).run()
    (record,) = handler.history
    expected = oracle(cases, band, probability)
    for kind in ("right", "wrong"):
        # The distance to a face is not that to a voxel less a half everywhere, so the bands differ in some voxels.
        assert record[kind] == pytest.approx(expected[kind], abs=1e-5 if band > 99 else 0.02, nan_ok=True)
    voxel = handler.voxel
    assert (voxel.case, voxel.class_name) == ("case0", "disc")
    logits, given, clean = (
        arrays(cases[0][key])[(slice(None), *voxel.index)] for key in ("image", "label", "reference_label")
    )
    assert given[0] != clean[0]
    p = probability(logits, 0)
    assert record["voxel"] == pytest.approx(p if given[0] else 1 - p, abs=1e-5)
    assert record["epoch"] == 1


def test_the_grid_is_that_of_the_label_files(tmp_path):
    cases = write_cases(tmp_path)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    turned = [Flipd("image", spatial_axis=0), Rotate90d("image"), BorderPadd("image", (1, 2, 3, 0), mode="constant")]
    plain, other = ConfidenceHandler(store, loader_of(cases)), ConfidenceHandler(store, loader_of(cases, *turned))
    trainer_of(Logits(), cases, [plain, other]).run()
    assert other.voxel == plain.voxel
    for key in ("right", "wrong", "voxel"):
        assert other.history[0][key] == pytest.approx(plain.history[0][key], abs=1e-5, nan_ok=True)


def test_what_the_network_has_not_seen_does_not_count(tmp_path):
    cases = write_cases(tmp_path)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    half = SpatialCropd("image", roi_start=(0, 0), roi_end=(20, 12))
    voxel = WatchedVoxel("case1", "square", (10, 5))
    handler = ConfidenceHandler(store, loader_of(cases, half), band=100, voxel=voxel)
    trainer_of(Logits(), cases, [handler]).run()
    cut = [{**case} for case in cases]
    for case in cut:
        for key in ("image", "label", "reference_label"):
            case[key] = [
                write(tmp_path / f"cut_{case['id']}_{key}_{k}.nii.gz", nib.load(file).get_fdata()[:, :12])
                for k, file in enumerate(case[key])
            ]
    assert handler.history[0]["right"] == pytest.approx(oracle(cut, 100, sigmoid)["right"], abs=1e-5)
    assert handler.history[0]["voxel"] == pytest.approx(1 - sigmoid(arrays(cases[1]["image"])[:, 10, 5], 1), abs=1e-5)


def network_with_everything():
    set_determinism(0)
    return UNet(2, 2, 2, channels=(4, 8), strides=(2,), norm="batch", dropout=0.3)


def test_recording_changes_nothing_of_the_training(tmp_path):
    cases = write_cases(tmp_path)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    weights = []
    for record in (True, False):
        network = network_with_everything()
        handlers = [ConfidenceHandler(store, loader_of(cases))] if record else []
        loss = DiceCELoss(sigmoid=True)
        trainer = trainer_of(network, cases, handlers, epochs=3, lr=0.1, shuffle=True, loss=loss)
        trainer.run()
        assert network.training
        weights.append(network.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_that_was_interrupted_goes_on_to_the_same_record(tmp_path):
    cases = write_cases(tmp_path)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)

    def run(epochs, name):
        network, handler = network_with_everything(), ConfidenceHandler(store, loader_of(cases))
        loss = DiceCELoss(sigmoid=True)
        trainer = trainer_of(network, cases, [handler], epochs=epochs, lr=0.1, shuffle=True, loss=loss)
        parts = {"model": network, "trainer": trainer, "confidence": handler, "optimizer": trainer.optimizer}
        ResumeHandler(tmp_path / name, parts).attach(trainer)
        trainer.run()
        return handler

    whole = run(4, "whole.pt")
    run(2, "parts.pt")
    parts = run(4, "parts.pt")
    assert [record["epoch"] for record in parts.history] == [1, 2, 3, 4]
    assert parts.voxel == whole.voxel
    for one, other in zip(parts.history, whole.history, strict=True):
        for key in ("right", "wrong", "voxel"):
            assert one[key] == pytest.approx(other[key], nan_ok=True)


@pytest.mark.slow
def test_errors_without_a_direction_are_first_disbelieved_and_then_learnt_by_heart(tmp_path):
    cases = phantom_cases(tmp_path, "train", 2, size=(48, 48))
    set_determinism(0)
    store = LabelStore(tmp_path / "labels", cases, class_names=["large", "small"])
    store.simulate(RandMarkovLabelNoise(1.0, num_steps=8, expansion_prob=0.5, march_prob=0.4), seed=0)
    handler = ConfidenceHandler(store, loader_of(cases))
    network = UNet(2, 1, 2, channels=(16, 32, 64), strides=(2, 2), norm="batch")
    trainer = trainer_of(network, store.datalist(), [handler], epochs=80, loss=DiceCELoss(sigmoid=True))
    trainer.optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    trainer.run()
    wrong, right = (np.array([record[kind][0] for record in handler.history]) for kind in ("wrong", "right"))
    assert wrong[10:30].mean() < 0.45
    assert wrong[-1] > 0.65
    assert right[-1] > 0.95


REFUSED = [
    pytest.param({"band": 0}, r"band must be over 0 voxels, got 0\.$", id="band"),
    pytest.param({"output": "relu"}, "output must be one of 'sigmoid', 'softmax', got 'relu'", id="output"),
    pytest.param(
        {"voxel": WatchedVoxel("x", "disc", (1, 1))}, "voxel must be of a case of the store, got 'x'", id="case"
    ),
    pytest.param(
        {"voxel": WatchedVoxel("case0", "x", (1, 1))},
        r"of one of the classes \['disc', 'square'\], got 'x'",
        id="class",
    ),
    pytest.param(
        {"voxel": WatchedVoxel("case0", "disc", (1, 24))},
        r"must lie in its label, which is \(20, 24\), got",
        id="place",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
    cases = write_cases(tmp_path, 1)
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    with pytest.raises(ValueError, match=message):
        ConfidenceHandler(store, loader_of(cases), **options)


def test_labels_that_say_nothing_are_refused(tmp_path):
    cases = write_cases(tmp_path, 2)
    unknown = [{key: value for key, value in case.items() if key != "reference_label"} for case in cases]
    right = [{**case, "label": case["reference_label"]} for case in cases]
    for name, own, message in (
        ("unknown", unknown, "The clean label of case 'case0' must be known; give it as reference_label"),
        ("right", right, "No label within 8 voxels of a clean boundary is wrong in the cases of loader"),
    ):
        handler = ConfidenceHandler(LabelStore(tmp_path / name, own, class_names=CLASSES), loader_of(own))
        with pytest.raises(ValueError, match=message):
            trainer_of(Logits(), own, [handler]).run()
    store = LabelStore(tmp_path / "labels", cases, class_names=CLASSES)
    handler = ConfidenceHandler(store, loader_of(cases[:1]), voxel=WatchedVoxel("case1", "disc", (1, 1)))
    with pytest.raises(ValueError, match="loader must hold the case of voxel, 'case1', but it does not"):
        trainer_of(Logits(), cases, [handler]).run()


def test_another_engine_is_refused(tmp_path):
    cases = write_cases(tmp_path, 1)
    handler = ConfidenceHandler(LabelStore(tmp_path / "labels", cases, class_names=CLASSES), loader_of(cases))
    with pytest.raises(TypeError, match=r"engine must be a monai\.engines\.SupervisedTrainer, got Engine"):
        handler.attach(Engine(lambda engine, batch: None))
