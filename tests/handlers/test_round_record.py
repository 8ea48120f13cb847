import logging
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from monai_sc.correction.class_fit import ClassBias
from monai_sc.correction.fitting import nothing_fitted
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.handlers.round_record import evaluate, has_collapsed, log_record, make_record, metrics_of, stop_reason
from tests.handlers.correcting import options_of

OPTIONS = options_of(progress=False)
UNBIASED, CANNOT_TELL, UNDEFINED = (("unbiased",) * 2, ("unbiased", "cannot tell"), ("cannot tell",) * 2)
WIDE, FIRST, LAST, PUBLISHED = ((0.0, 4.0), (-2.0, 0.0)), {"is_first": True}, {"is_last": True}, {"as_asked": True}
SMALL = "the bias of every class is under one voxel"
NONE_BETTER = "no correction clearly improves the labels of any class"
MEASURED = "the measured bias of every class is under one voxel, though its interval is wider"
TOLD = "the bias of every class whose bias can be told is under one voxel"
OVER = "the last round of training is over"
UNKNOWN = "; the network has not learnt lesion (Dice 0.43), so its bias is unknown: train longer"
NOTHING = (
    "there is no verdict; the network has not learnt liver (Dice 0.80), lesion (Dice 0.43), so its bias is unknown: "
    "train longer"
)


@pytest.mark.parametrize(
    ("bias", "changes", "how", "reason"),
    [
        ((0.9, -0.9), {"verdict": UNBIASED}, {}, SMALL),
        ((0.9, -0.9), {"verdict": CANNOT_TELL}, {}, ""),
        ((0.9, -1.0), {"verdict": UNBIASED}, {}, ""),
        ((2.9, -2.9), {"verdict": UNBIASED, "tolerance": 3.0}, {}, SMALL),
        ((0.9, -0.9), {"verdict": UNBIASED}, FIRST, ""),
        ((0.9, -0.9), {"verdict": UNBIASED}, FIRST | PUBLISHED, SMALL),
        (
            (0.9, -0.9),
            {"verdict": CANNOT_TELL},
            PUBLISHED,
            MEASURED,
        ),
        (
            (math.nan, 0.3),
            {"verdict": UNDEFINED[:1] + UNBIASED[:1]},
            {},
            TOLD,
        ),
        ((math.nan, math.nan), {"verdict": UNDEFINED}, {}, "there is no verdict"),
        ((3.0, 2.0), {"kept": (True, True)}, {}, NONE_BETTER),
        ((0.3, 0.2), {"kept": (True, True), "verdict": CANNOT_TELL}, {}, NONE_BETTER),
        ((3.0, 2.0), {"kept": (True, False)}, {}, ""),
        ((3.0, 2.0), {"kept": (True, True)}, PUBLISHED, ""),
        ((3.0, -1.0), {"bias_interval": WIDE}, PUBLISHED, "the interval of the bias contains 0 for every class"),
        ((3.0, -1.0), {"bias_interval": WIDE}, {}, ""),
        ((3.0, 3.0), {"bias_interval": (WIDE[0], (0.1, 4.0))}, PUBLISHED, ""),
        ((3.0, -3.0), {"bias_interval": (WIDE[0], (-4.0, -0.1))}, PUBLISHED, ""),
        (
            (0.2, 3.0),
            {"learnt": (True, False), "kept": (False, True), "verdict": CANNOT_TELL},
            {},
            f"the bias of every class that the network has learnt is under one voxel{UNKNOWN}",
        ),
        ((3.0, 0.1), {"learnt": (True, False), "kept": (False, True)}, {}, ""),
        (
            (3.0, 0.1),
            {"learnt": (True, False), "kept": (True, True)},
            {},
            f"no correction clearly improves the labels of any class that the network has learnt{UNKNOWN}",
        ),
        (
            (3.0, 0.1),
            {"bias_interval": ((-1, 4), (1, 2)), "learnt": (True, False)},
            PUBLISHED,
            f"the interval of the bias contains 0 for every class that the network has learnt{UNKNOWN}",
        ),
        ((0.1, 0.1), {"learnt": (False, False)}, {}, NOTHING),
        ((3.0, 0.1), {}, LAST, f"{OVER}, the bias is not under one voxel yet"),
        ((0.3, 0.1), {"verdict": UNBIASED}, FIRST | LAST, OVER),
        ((0.3, 0.1), {"verdict": UNBIASED}, LAST, SMALL),
        ((0.3, 0.1), {"verdict": CANNOT_TELL}, LAST, OVER),
        (
            (0.3, 0.1),
            {"learnt": (False, False)},
            LAST | {"better": 0},
            "the clean cases are predicted worse than in round 0",
        ),
    ],
)
def test_loop_stops_for_a_reason(bias, changes, how, reason):
    record = {
        "bias": list(bias),
        "bias_interval": [[1.5, 4.0], [1.5, 4.0]],
        "tolerance": 1.0,
        "verdict": ["biased", "biased"],
        "learnt": [True, True],
        "dice_present": [0.8, 0.43],
        "kept": [False, False],
        "correction": {"liver": {}, "lesion": {}},
        **changes,
    }
    told = stop_reason(record, **{"as_asked": False, "better": None, "is_first": False, "is_last": False, **how})
    assert told == reason


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
    none = {"representation": "none", "shift": 0.0, "note": "none serves"}
    record = {
        "round": 3,
        "bias": [-2.0, math.nan],
        "bias_mm": [-1.0, math.nan],
        "bias_interval": [[-3.0, 1.5], [math.nan, math.nan]],
        "verdict": ["biased", "cannot tell"],
        "num_used": [4, 0],
        "num_skipped": [1, 5],
        "clean_dice": [0.75, 0.25],
        "dice_present": [0.9, 0.25],
        "learnt": [True, False],
        "correction": {
            "liver": {"network_epoch": 8, "correction": moved, "held_out": {"after": 0.875}},
            "lesion": {"network_epoch": 6, "correction": none, "held_out": {"after": None}},
        },
    }
    with caplog.at_level(logging.INFO):
        log_record(logging.getLogger("monai_sc.test"), record)
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        (
            "INFO",
            "Round 3, liver: boundary bias of the network -2.00 voxels = -1.00 mm, 95% interval [-3.00, +1.50], "
            "biased, from 4 clean cases (1 skipped); Dice on the clean cases 0.750.",
        ),
        (
            "INFO",
            "Round 3, liver: correction distance by -2.25, with the network of epoch 8: it serves best; Dice on "
            "held-out clean cases 0.875.",
        ),
        (
            "INFO",
            "Round 3, lesion: boundary bias of the network +nan voxels, no interval, cannot tell, from 0 clean cases "
            "(5 skipped); Dice on the clean cases 0.250.",
        ),
        (
            "INFO",
            "Round 3, lesion: correction none by +0.00, with the network of epoch 6: none serves; a single clean case "
            "carries it.",
        ),
        (
            "WARNING",
            "Round 3, lesion: the network has not learnt this class (Dice 0.25 on the clean cases with it, "
            "before correction) and corrects none of its labels. Train longer.",
        ),
        (
            "WARNING",
            "Round 3, lesion: the bias is undefined, since in every clean case the label or the prediction is empty or "
            "full; the labels of this class stay as they are.",
        ),
    ]


LIVER = ClassBias(-1.0, (-1.5, -0.5), 4, 1, 0.25, "biased")
NOTHING = ClassCorrection()
LESION = ClassBias(0.125, (-0.25, 0.375), 1, 4, 0.125, "unbiased")


def fitted_of(*present, correction=NOTHING):
    """Return a fit whose voxels are two of the files', with what it knows of liver and lesion."""
    fitted = nothing_fitted(OPTIONS.in_voxels(0.5), 5, 2.0)
    fits = (
        replace(fit, network=bias, dice_present=score, correction=correction)
        for fit, bias, score in zip(fitted.fits, (LIVER, LESION), present, strict=True)
    )
    return replace(fitted, fits=tuple(fits))


@pytest.mark.parametrize(("present", "learnt"), [(0.5, True), (0.49, False)])
def test_record_tells_the_best_check_of_all_and_of_each_class(present, learnt):
    both = fitted_of(0.9, 0.1)
    other = fitted_of(0.2, present, correction=ClassCorrection("distance", 1.5, note="why"))
    state = {"epoch": 4, "fitted": both.to_dict(), "clean_dice": [0.75, 0.5], "voxel_mm": 0.5}
    classes = [state, {**state, "epoch": 2, "fitted": other.to_dict()}]
    # Lesion: the other two cases choose the second check for the first one, and the first check for the others.
    before = [[[0.5, 0.5, 0.5], [0.25, 0.5, 0.75]], [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0]]]
    after = [[[0.5, 0.75, 1.0], [1.0, 0.5, 0.5]], [[0.5, 0.5, 0.5], [0.0, 0.75, 0.75]]]
    known = {"learnt": [True, True]}
    checks = [{"epoch": e, "before": b, "after": a, **known} for e, b, a in zip((2, 4), before, after, strict=True)]
    others = {"round": 1, "epoch": 8, "metrics": {"a": 1.0}, "restarts": 1}
    record = make_record({"state": state, "classes": classes, "checks": checks}, OPTIONS, **others)
    reports = record.pop("correction")
    assert {name: own["network_epoch"] for name, own in reports.items()} == {"liver": 4, "lesion": 2}
    assert reports["lesion"]["correction"]["shift"] == 3.0  # in voxels of the files
    assert reports["lesion"]["correction"]["dice_before"] is None  # no nan, which JSON has not
    held_out = {name: (own["held_out"]["before"], own["held_out"]["after"]) for name, own in reports.items()}
    assert held_out == {
        "liver": (0.5, 0.75),
        "lesion": (pytest.approx((0.0 + 0.5 + 0.75) / 3), pytest.approx((0.0 + 0.5 + 0.5) / 3)),
    }
    for name in ("agreement", "label_bias"):
        values = record.pop(name)
        assert len(values) == 2
        assert np.isnan(values).all()
    assert record == {
        **others,
        "network_epoch": 4,
        "bias": [-2.0, 0.25],
        "bias_interval": [[-3.0, -1.0], [-0.5, 0.75]],
        "bias_mm": [-1.0, 0.125],
        "voxel_mm": 0.5,
        "tolerance": 2.0,
        "verdict": ["biased", "unbiased" if learnt else "cannot tell"],
        "learnt": [True, learnt],
        "dice_present": [0.9, present],
        "num_used": [4, 1],
        "num_skipped": [1, 4],
        "clean_dice": [0.75, 0.5],
        "memorised": [False, False],
        "kept": [False, False],
        "sources": ["keep", "keep"],
        "fits": [],
        "to_check": {},
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
