import numpy as np
import pytest
from ignite.engine import Engine
from PIL import Image

from monai_sc.datasets import phantom_cases
from monai_sc.functional import shift_boundary
from monai_sc.handlers import RoundEvents
from monai_sc.reports import RoundPictureHandler, round_pictures
from monai_sc.reports.shown_cases import ShownCases
from monai_sc.store import LabelStore


@pytest.fixture
def store(tmp_path):
    cases = phantom_cases(tmp_path / "data", "train", 5, size=(48, 48))
    return LabelStore(tmp_path / "labels", cases, class_names=["large", "small"])


@pytest.fixture
def correct(store):
    def write():
        with store.write_round(1, {}) as writer:
            for k, case in enumerate(store.cases):
                writer.write(case["id"], shift_boundary(store.read(case["id"]), k))

    return write


def record(number):
    return {
        "round": number,
        "bias": [-3.0 + 2 * number, float("nan")],
        "bias_interval": [[-4.0, 1.0], [float("nan")] * 2],
        "clean_dice": [0.7 + 0.1 * number, 0.0],
        "learnt": [True, False],
        "verdict": ["unbiased", "cannot tell"],
    }


def finish_round(engine, number):
    engine.state.spatial_correction = [record(k) for k in range(number + 1)]
    engine.state.epoch = 10 * (number + 1)
    engine.fire_event(RoundEvents.ROUND_COMPLETED)


def trainer(handler):
    engine = Engine(lambda engine, batch: None)
    handler.attach(engine)
    return engine


def test_each_round_gets_a_picture(store, correct, tmp_path):
    engine = trainer(RoundPictureHandler(store, tmp_path / "out"))
    finish_round(engine, 0)
    correct()
    finish_round(engine, 1)
    folder = tmp_path / "out" / "rounds"
    assert sorted(file.name for file in folder.iterdir()) == ["round-000.png", "round-001.png"]
    yellow = []
    for file in sorted(folder.iterdir()):
        with Image.open(file) as picture:
            colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        yellow.append((np.abs(colours.astype(int) - (0xF0, 0xE4, 0x42)).max(axis=1) < 30).any())
    assert yellow == [False, True]  # the corrected labels


def test_picture_goes_to_tensorboard_too(store, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path / "events")) as writer:
        finish_round(trainer(RoundPictureHandler(store, tmp_path / "out", summary_writer=writer)), 0)
    events = accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    (image,) = events.Images("labels")
    assert image.step == 10
    assert image.width > 1000


def test_only_the_first_process_draws(store, tmp_path, monkeypatch):
    monkeypatch.setattr(round_pictures, "is_main", lambda: False)
    finish_round(trainer(RoundPictureHandler(store, tmp_path / "out")), 0)
    assert not (tmp_path / "out").exists()


def test_picture_that_cannot_be_written_leaves_nothing(store, tmp_path, monkeypatch):
    def fill(figure, file, **_):
        file.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fill)
    with pytest.raises(OSError, match=r"No space left"):
        finish_round(trainer(RoundPictureHandler(store, tmp_path / "out")), 0)
    assert list((tmp_path / "out" / "rounds").iterdir()) == []


def test_cases_are_those_that_changed_most_least_and_between(store, correct):
    assert ShownCases(store, 3).ids == ["train_000", "train_002", "train_004"]
    assert all(case["corrected"] is None for case in ShownCases(store, 3))
    correct()
    shown = ShownCases(store, 3)
    assert shown.ids[0] == "train_004"
    assert shown.ids[-1] == "train_000"
    np.testing.assert_array_equal(shown[0]["corrected"], store.read("train_004"))
    assert len(ShownCases(store, 9)) == 5


def test_no_case_at_all_is_refused(store):
    with pytest.raises(ValueError, match=r"num_cases must be at least 1, got 0\.$"):
        RoundPictureHandler(store, "unused", num_cases=0)
