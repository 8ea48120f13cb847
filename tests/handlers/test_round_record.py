import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from monai_sc.correction.choice import ClassCorrection
from monai_sc.functional.bias import BoundaryBias
from monai_sc.handlers.correction_options import CorrectionOptions
from monai_sc.handlers.round_record import evaluate, has_collapsed, log_record, make_record, metrics_of, stop_reason

OPTIONS = CorrectionOptions(
    class_names=["liver", "lesion"],
    inferer=None,
    representation="auto",
    gamma=1.0,
    metric="euclidean",
    region="boundary",
    output="sigmoid",
    shape_weight=0.5,
    presence=True,
    max_shift_mm=None,
    group_key=None,
    voxel_mm=None,
    keep_converged=False,
    progress=False,
)


def correction_of(present, **others):
    return {"correction": {"dice_present": present, **others}}


def record_of(bias, *, number=1, interval=((1.5, 4.0), (1.5, 4.0)), learnt=(True, True), kept=(False, False)):
    return {
        "round": number,
        "bias": list(bias),
        "bias_interval": [list(one) for one in interval],
        "learnt": list(learnt),
        "kept": list(kept),
        "correction": {"liver": correction_of(0.8), "lesion": correction_of(0.43)},
    }


UNKNOWN = "; the network has not learnt lesion (Dice 0.43), so that its bias cannot be told: train longer"
WIDE = ((0.0, 4.0), (-2.0, 0.0))
STOPS = [
    pytest.param(record_of((0.9, -0.9)), "auto", "the bias of every class is under one voxel", id="small"),
    pytest.param(record_of((0.9, -1.0)), "auto", "", id="a-voxel-is-not-small"),
    pytest.param(record_of((0.9, -0.9), number=0), "auto", "", id="small-before-a-correction"),
    pytest.param(
        record_of((0.9, -0.9), number=0),
        "logit",
        "the bias of every class is under one voxel",
        id="small-before-a-correction-as-published",
    ),
    pytest.param(record_of((math.nan, 0.3)), "auto", "the bias of every class is under one voxel", id="undefined"),
    pytest.param(
        record_of((3.0, 2.0), kept=(True, True)),
        "auto",
        "nothing speaks against the labels of any class",
        id="all-kept",
    ),
    pytest.param(record_of((3.0, 2.0), kept=(True, False)), "auto", "", id="one-kept"),
    pytest.param(record_of((3.0, 2.0), kept=(True, True)), "distance", "", id="all-kept-as-published"),
    pytest.param(
        record_of((3.0, -1.0), interval=WIDE),
        "distance",
        "the interval of the bias contains 0 for every class",
        id="wide",
    ),
    pytest.param(record_of((3.0, -1.0), interval=WIDE), "auto", "", id="wide-with-auto"),
    pytest.param(record_of((3.0, 3.0), interval=(WIDE[0], (0.1, 4.0))), "distance", "", id="one-wide"),
    pytest.param(record_of((3.0, -3.0), interval=(WIDE[0], (-4.0, -0.1))), "distance", "", id="other-wide"),
    pytest.param(
        record_of((0.2, 3.0), learnt=(True, False), kept=(False, True)),
        "auto",
        f"the bias of every class that the network has learnt is under one voxel{UNKNOWN}",
        id="small-and-unknown",
    ),
    pytest.param(record_of((3.0, 0.1), learnt=(True, False), kept=(False, True)), "auto", "", id="large-and-unknown"),
    pytest.param(
        record_of((3.0, 0.1), learnt=(True, False), kept=(True, True)),
        "auto",
        f"nothing speaks against the labels of any class that the network has learnt{UNKNOWN}",
        id="kept-and-unknown",
    ),
    pytest.param(
        record_of((3.0, 0.1), interval=((-1, 4), (1, 2)), learnt=(True, False)),
        "distance",
        f"the interval of the bias contains 0 for every class that the network has learnt{UNKNOWN}",
        id="wide-and-unknown",
    ),
    pytest.param(
        record_of((0.1, 0.1), learnt=(False, False)),
        "auto",
        "there is no verdict; the network has not learnt liver (Dice 0.80), lesion (Dice 0.43), so that its bias "
        "cannot be told: train longer",
        id="nothing-learnt",
    ),
]


@pytest.mark.parametrize(("record", "representation", "reason"), STOPS)
def test_loop_stops_for_a_reason(record, representation, reason):
    assert stop_reason(record, representation, better=None, is_last=False) == reason


@pytest.mark.parametrize(
    ("record", "representation", "reason"),
    [
        (record_of((3.0, 0.1)), "auto", "the last round of training is over, the bias is not under one voxel yet"),
        (record_of((0.3, 0.1), number=0), "auto", "the last round of training is over"),
        (record_of((0.3, 0.1)), "auto", "the bias of every class is under one voxel"),
    ],
    ids=["large", "small", "small-after-a-correction"],
)
def test_loop_stops_after_the_last_round(record, representation, reason):
    assert stop_reason(record, representation, better=None, is_last=True) == reason


def test_loop_stops_when_the_clean_cases_get_worse():
    record = record_of((0.3, 0.1), learnt=(False, False))
    assert stop_reason(record, "auto", better=0, is_last=True) == "the clean cases are predicted worse than in round 0"


@pytest.mark.parametrize(
    ("missed", "clean_dice", "best_dice", "collapsed"),
    [
        pytest.param([[0, 3], [2, 3]], [0.9, 0.1], None, False, id="one-is-found"),
        pytest.param([[0, 3], [3, 3]], [0.9, 0.0], None, True, id="none-is-found"),
        pytest.param([[0, 8], [1, 1]], [0.9, 0.0], None, False, id="the-only-one-is-missed"),
        pytest.param([[0, 8], [2, 2]], [0.9, 0.0], None, False, id="both-are-missed"),
        pytest.param([[0, 3], [0, 0]], [0.9, 0.1], None, False, id="no-case-has-it"),
        pytest.param([[0, 0], [0, 0]], [0.0, 0.0], None, False, id="no-case-has-any"),
        pytest.param([[1, 1], [2, 2]], [0.0, 0.0], None, True, id="nothing-is-predicted"),
        pytest.param([[1, 1], [0, 0]], [0.0, 0.0], None, True, id="nothing-is-predicted-of-one-class"),
        pytest.param([[2, 2], [1, 2]], [0.0, 0.1], None, False, id="one-of-all-is-found"),
        pytest.param([[0, 3], [3, 3]], [0.9, 0.0], 0.55, True, id="none-is-found-any-more"),
        pytest.param([[0, 3], [3, 3]], [0.9, 0.0], 0.45, False, id="none-was-found-before"),
        pytest.param([[0, 8], [1, 1]], [0.9, 0.0], 0.55, False, id="the-only-one-is-missed-now"),
        pytest.param([[1, 1], [1, 1]], [0.0, 0.0], 0.1, True, id="nothing-is-predicted-any-more"),
        pytest.param([[0, 3], [0, 3]], [0.5, 0.0], 0.5, True, id="far-worse"),
        pytest.param([[0, 3], [0, 3]], [0.625, 0.0], 0.5, False, id="a-little-worse"),
    ],
)
def test_network_has_collapsed(missed, clean_dice, best_dice, collapsed):
    classes = {str(k): {"existence": {"missed": own}} for k, own in enumerate(missed)}
    assert has_collapsed({"correction": classes, "clean_dice": clean_dice}, best_dice) is collapsed


def test_metrics_have_one_number_each():
    record = {"round": 2, "bias": [-1.5, 0.5], "bias_mm": [-0.75, math.nan], "clean_dice": [0.75, 0.5]}
    metrics = metrics_of(record, ["liver", "lesion"])
    assert metrics == {
        "round": 2.0,
        "liver_bias": -1.5,
        "liver_bias_mm": -0.75,
        "liver_clean_dice": 0.75,
        "lesion_bias": 0.5,
        "lesion_clean_dice": 0.5,
    }
    assert type(metrics["round"]) is float


def test_log_says_what_was_found_of_each_class(caplog):
    moved = {"representation": "distance", "shift": -2.25, "note": "it serves best"}
    record = {
        "round": 3,
        "bias": [-2.0, math.nan],
        "bias_mm": [-1.0, math.nan],
        "bias_interval": [[-3.0, 1.5], [math.nan, math.nan]],
        "verdict": ["biased", "cannot tell"],
        "num_used": [4, 0],
        "num_skipped": [1, 5],
        "clean_dice": [0.75, 0.25],
        "learnt": [True, False],
        "correction": {
            "liver": {"network_epoch": 8, **correction_of(0.9, **moved)},
            "lesion": {"network_epoch": 6, **correction_of(0.25, representation="none", shift=0.0, note="none serves")},
        },
    }
    with caplog.at_level(logging.INFO):
        log_record(logging.getLogger("monai_sc.test"), record)
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        (
            "INFO",
            "Round 3, liver: boundary bias -2.00 voxels = -1.00 mm, 95% interval [-3.00, +1.50], biased, from 4 clean "
            "cases (1 skipped); Dice on the clean cases 0.750.",
        ),
        ("INFO", "Round 3, liver: correction distance by -2.25, with the network of epoch 8: it serves best."),
        (
            "INFO",
            "Round 3, lesion: boundary bias +nan voxels, no interval, cannot tell, from 0 clean cases (5 skipped); "
            "Dice on the clean cases 0.250.",
        ),
        ("INFO", "Round 3, lesion: correction none by +0.00, with the network of epoch 6: none serves."),
        (
            "WARNING",
            "Round 3, lesion: with a Dice of 0.25 on the clean cases that hold it, corrected, the network has not "
            "learnt it, so that its bias cannot be told; its labels stay as they are. Train longer.",
        ),
        (
            "WARNING",
            "Round 3, lesion: the bias is undefined, since in every clean case the label or the prediction is empty or "
            "full; the labels of this class stay as they are.",
        ),
    ]


def corrector_of(*corrections):
    corrector = OPTIONS.corrector(0.5).without_bias(5)
    corrector.bias = BoundaryBias(
        mean=np.array([-2.0, 0.25]),
        interval=np.array([[-3.0, -1.0], [-0.5, 0.75]]),
        num_used=np.array([4, 1]),
        num_skipped=np.array([1, 4]),
        spread=np.array([0.5, 0.25]),
        verdict=("biased", "unbiased"),
    )
    corrector.corrections = list(corrections)
    return corrector


@pytest.mark.parametrize(("present", "learnt"), [(0.5, True), (0.49, False)])
def test_record_tells_the_best_check_of_all_and_of_each_class(present, learnt):
    both = corrector_of(ClassCorrection(dice_present=0.9), ClassCorrection(dice_present=0.1))
    other = corrector_of(
        ClassCorrection(dice_present=0.2), ClassCorrection("distance", 1.5, dice_present=present, note="why")
    )
    state = {"epoch": 4, "corrector": both.state_dict(), "clean_dice": [0.75, 0.5], "voxel_mm": 0.5}
    classes = [state, {**state, "epoch": 2, "corrector": other.state_dict()}]
    others = {"round": 1, "epoch": 8, "metrics": {"a": 1.0}, "restarts": 1}
    record = make_record({"state": state, "classes": classes}, OPTIONS, **others)
    reports = record.pop("correction")
    assert {name: own["network_epoch"] for name, own in reports.items()} == {"liver": 4, "lesion": 2}
    assert reports["liver"]["correction"]["dice_present"] == 0.9
    assert reports["lesion"]["correction"]["dice_present"] == present
    assert reports["lesion"]["correction"]["dice_before"] is None  # no nan, which JSON has not
    agreement = record.pop("agreement")
    assert len(agreement) == 2
    assert np.isnan(agreement).all()
    assert record == {
        **others,
        "network_epoch": 4,
        "bias": [-2.0, 0.25],
        "bias_interval": [[-3.0, -1.0], [-0.5, 0.75]],
        "bias_mm": [-1.0, 0.125],
        "voxel_mm": 0.5,
        "verdict": ["biased", "unbiased" if learnt else "cannot tell"],
        "learnt": [True, learnt],
        "num_used": [4, 1],
        "num_skipped": [1, 4],
        "clean_dice": [0.75, 0.5],
        "memorised": [False, False],
        "kept": [False, False],
        "voxels_changed": [],
        "stop_reason": "",
    }


@pytest.mark.parametrize(
    ("evaluated", "is_last", "runs"), [(6, True, []), (6, False, [(6, 2.0)]), (5, True, [(6, 2.0)])]
)
def test_evaluator_runs_with_the_weights_unless_it_has(evaluated, is_last, runs):
    network = torch.nn.Linear(1, 1, bias=False)
    network.weight.data.fill_(1.0)
    seen = []
    metrics = {"tensor": torch.tensor([0.5, 0.25]), "number": np.float32(0.5)}
    evaluator = SimpleNamespace(state=SimpleNamespace(epoch=evaluated, metrics=metrics))
    evaluator.run = lambda epoch: seen.append((epoch, network.weight.item()))
    engine = SimpleNamespace(state=SimpleNamespace(epoch=6), network=network)
    found = evaluate(engine, evaluator, {"weight": torch.tensor([[2.0]])}, is_last)
    assert seen == runs
    assert network.weight.item() == 1.0
    assert found == {"tensor": [0.5, 0.25], "number": 0.5}
