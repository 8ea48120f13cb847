from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import IgniteMetricHandler, from_engine
from monai.metrics import DiceMetric, MSEMetric
from monai.transforms import AsDiscreted

from monai_sc.benchmark import write_result
from tests.forked import CONTEXT


def engines(cases, metric):
    network = torch.nn.Identity()
    network.unused = torch.nn.Parameter(torch.zeros(1))
    loader = DataLoader(Dataset(cases), batch_size=2)
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=3,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=lambda pred, label: (pred - label).mean() + 0 * network.unused,
    )
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=loader,
        network=network,
        postprocessing=AsDiscreted("pred", threshold=0.0),
        key_val_metric={"dice": IgniteMetricHandler(metric_fn=metric, output_transform=from_engine(["pred", "label"]))},
    )
    return trainer, evaluator


def three_cases():
    """Return three cases of two classes: all right; half of the first class; the second where there is none."""
    label = torch.zeros(2, 4, 4)
    label[:, :2] = 1
    half = label.clone()
    half[0, 0] = 0
    empty = label.clone()
    empty[1] = 0
    pairs = [("b", label, label), ("a", half, label), ("c", label, empty)]
    return [{"id": name, "image": 2 * pred - 1, "label": truth} for name, pred, truth in pairs]


@pytest.fixture
def cases():
    return three_cases()


def test_result_holds_the_dice_of_each_case_and_class(tmp_path, cases):
    trainer, evaluator = engines(cases, DiceMetric(ignore_empty=False))
    trainer.run()
    file = write_result(trainer, evaluator, tmp_path / "new", class_names=["x", "y"], image_size=[4, 4])
    result = json.loads(file.read_text())
    assert file == tmp_path / "new" / "result.json"
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
    assert result["cases"] == ["b", "a", "c"]
    np.testing.assert_allclose(result["dice"], [[1, 1], [2 / 3, 1], [1, 0]], atol=1e-6)
    assert {name: result[name] for name in ("classes", "epochs", "image_size", "label_dice")} == {
        "classes": ["x", "y"], "epochs": 3, "image_size": [4, 4], "label_dice": {},
    }  # fmt: skip
    assert result["seconds"] == pytest.approx(trainer.state.times["COMPLETED"])


def test_measuring_again_adds_no_case(tmp_path, cases):
    trainer, evaluator = engines(cases, DiceMetric(ignore_empty=False))
    trainer.run()
    texts = [
        write_result(trainer, evaluator, tmp_path, class_names=["x", "y"], image_size=[4, 4]).read_text()
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("metric", "classes", "got"),
    [(MSEMetric(), ["x", "y"], r"\(3, 1\)"), (DiceMetric(ignore_empty=False), ["x"], r"\(3, 2\)")],
    ids=["another-metric", "other-classes"],
)
def test_metric_without_a_dice_per_case_and_class_is_refused(tmp_path, cases, metric, classes, got):
    trainer, evaluator = engines(cases, metric)
    trainer.run()
    with pytest.raises(ValueError, match=rf"one value for each of 3 cases and {len(classes)} classes, got {got}\.$"):
        write_result(trainer, evaluator, tmp_path, class_names=classes, image_size=[4, 4])
    assert list(tmp_path.iterdir()) == []


def run_rank(rank, folder):
    """Write the result as one of two processes, each with every second case."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    trainer, evaluator = engines(three_cases()[rank::2], DiceMetric(ignore_empty=False))
    trainer.run()
    write_result(trainer, evaluator, folder, class_names=["x", "y"], image_size=[4, 4])
    os._exit(0)  # gloo now and then aborts a process that ends by itself


@pytest.mark.slow
def test_dice_is_that_of_its_case_where_processes_share_the_cases(tmp_path):
    torch.multiprocessing.start_processes(run_rank, (tmp_path,), nprocs=2, start_method=CONTEXT.get_start_method())
    result = json.loads((tmp_path / "result.json").read_text())
    found = dict(zip(result["cases"], result["dice"], strict=True))
    assert found == {"b": [1, 1], "a": [pytest.approx(2 / 3), 1], "c": [1, 0]}
