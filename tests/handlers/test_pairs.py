"""Cases of a store that have both labels: a training begins with labels that they move, and they judge the others."""

import json
import logging
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from ignite.engine import Events
from monai.data import DataLoader, Dataset
from monai.transforms import Compose

from monai_sc.correction.class_fit import ClassBias, ClassFit, Judgement
from monai_sc.correction.fitting import nothing_fitted
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.functional import shift_boundary
from monai_sc.functional.masks import dice
from monai_sc.handlers.pairs import exclusive_masks, file_voxel, is_moved, judge_fit, move_labels, pair_moves
from monai_sc.store import LabelStore
from monai_sc.transforms import RandMarkovLabelNoise
from tests.handlers.correcting import options_of
from tests.handlers.test_spatial_correction import (
    AFFINE,
    Offset,
    build,
    build_resumable,
    checksums,
    distance_image,
    interrupt,
    label_dice,
    make_cases,
    with_offsets,
)

LOGGER = logging.getLogger("monai_sc.test")


def rounds_at_first(trainer, store):
    """Return what will hold the rounds that there are when the first batch is trained on, and the batch."""
    seen = {}

    @trainer.on(Events.ITERATION_STARTED(once=1))
    def look(engine):
        seen["rounds"] = store.rounds
        batch = engine.state.batch
        seen["batch"] = dict(zip(batch["id"], np.asarray(batch["label"]) > 0, strict=True))

    return seen


def test_training_begins_with_moved_labels(tmp_path, caplog):
    trainer, handler, store = build(tmp_path, pairs=4)
    originals = checksums(tmp_path / "data")
    seen = rounds_at_first(trainer, store)
    with caplog.at_level(logging.INFO):
        trainer.run()
    assert seen["rounds"] == [0, 1]
    for case_id, label in seen["batch"].items():
        np.testing.assert_array_equal(label, store.read(case_id, 1))
    assert label_dice(store, 0) < 0.8
    assert label_dice(store, 1) > 0.95
    assert checksums(tmp_path / "data") == originals
    assert [record["round"] for record in handler.history] == [1]
    # What is left of the bias is what the pairs, whose labels are moved by now, show.
    assert handler.history[0]["label_bias"] == [pytest.approx(0, abs=0.5)]
    assert handler.history[0]["kept"] == [True]
    assert store.current == 1
    done = store.record(1)
    assert (done["moved"], done["sources"], done["kept"]) == (True, ["move"], [False])
    assert done["label_shift"] == pytest.approx([-3], abs=0.5)
    assert done["label_bias"]["disc"]["bias_of"] == "labels"
    assert done["label_bias"]["disc"]["held_out"]["after"] > 0.95 > done["label_bias"]["disc"]["held_out"]["before"]
    assert done["options"] == handler.options.as_dict()
    for entry in store.manifest(1):
        assert (entry["source"], entry["label_shift"], entry["to_check"]) == (["move"], done["label_shift"], {})
    held_out = done["label_bias"]["disc"]["held_out"]
    assert (
        f"disc: bias of the labels {done['label_bias']['disc']['bias']:+.2f} voxels, biased, from 4 cases with both "
        f"labels; moved by {done['label_shift'][0]:+.2f} voxels, Dice on held-out cases {held_out['before']:.3f} as "
        f"given, {held_out['after']:.3f} moved."
    ) in caplog.text


@pytest.mark.parametrize(
    ("options", "number"),
    [
        pytest.param({}, 0, id="reference-labels-only"),
        pytest.param({}, 1, id="one-pair"),
        pytest.param({"shift": 0.0}, 4, id="nothing-gains"),
        pytest.param({"representation": "distance"}, 4, id="as-published"),
    ],
)
def test_training_begins_with_the_given_labels(tmp_path, options, number):
    trainer, handler, store = build(tmp_path, pairs=number, rounds=0, epochs=1, **options)
    seen = rounds_at_first(trainer, store)
    trainer.run()
    assert seen["rounds"] == [0]
    assert handler.history[0]["round"] == 0


def test_labels_that_stay_are_told_with_the_reason(tmp_path, caplog):
    _, handler, store = build(tmp_path, pairs=4, shift=0.0)
    with caplog.at_level(logging.INFO):
        assert not move_labels(store, handler.options, LOGGER)
    assert store.rounds == [0]
    assert [entry.getMessage() for entry in caplog.records if entry.name == LOGGER.name] == [
        "disc: bias of the labels +0.00 voxels, unbiased, from 4 cases with both labels; labels stay: no correction "
        "makes held-out labels clearly better."
    ]


def test_case_of_simulated_noise_is_no_pair(tmp_path):
    cases = make_cases(tmp_path / "data", 4, 0.0)
    for case in cases:
        case["clean_label"] = case.pop("reference_label")
    store = LabelStore(tmp_path / "labels", cases)
    assert store.pairs == [f"case{k}" for k in range(4)]
    noise = RandMarkovLabelNoise(1.0, expansion_prob=1.0, march_prob=0.5, num_steps=2)
    store.simulate(noise, progress=False)
    assert store.pairs == []


def test_interrupted_run_ends_like_an_uninterrupted_one(tmp_path):
    options = {"pairs": 4, "rounds": 1, "epochs": 4, "number": 6}
    whole, whole_handler, whole_store = build_resumable(tmp_path / "whole", **options)
    whole.run()
    interrupt(build_resumable(tmp_path / "cut", **options)[0], 3)
    trainer, handler, store = build_resumable(tmp_path / "cut", **options)
    seen = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda e: seen.append((e.state.epoch, store.rounds)))
    trainer.run()
    assert seen[0][1][:2] == [0, 1]
    assert store.rounds == whole_store.rounds
    assert [r["round"] for r in handler.history] == [r["round"] for r in whole_handler.history]
    assert handler.history[-1]["stop_reason"] == whole_handler.history[-1]["stop_reason"]
    for case in store.cases:
        np.testing.assert_array_equal(store.read(case["id"]), whole_store.read(case["id"]))


def test_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path):
    trainer, handler, store = build(tmp_path, pairs=4)
    handler.relabel_loader = DataLoader(Dataset([{"image": 1}], Compose([])), batch_size=1)
    with pytest.raises(KeyError, match="'id' is missing"):
        trainer.run()
    assert store.rounds == [0, 1]
    before = checksums(store.root / "round-001")
    trainer, handler, store = build(tmp_path, pairs=4)
    trainer.run()
    assert checksums(store.root / "round-001") == before
    assert [record["round"] for record in handler.history] == [1]
    trainer, _handler, _store = build(tmp_path, pairs=4, shape_weight=0.25)
    with pytest.raises(ValueError, match=r"holds the rounds \[1\], which this run has not made"):
        trainer.run()


def test_weak_network_corrects_no_moved_labels(tmp_path, caplog):
    trainer, handler, store = build(tmp_path, pairs=4, network=Offset(-6.0), rounds=1, epochs=1)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    with caplog.at_level(logging.WARNING):
        trainer.run()
    (record,) = handler.history
    assert record["dice_present"][0] < 0.5
    assert (record["learnt"], record["sources"]) == ([False], ["keep"])
    assert store.rounds == [0, 1]
    assert store.current == 1
    assert label_dice(store, 1) > 0.95
    assert "and corrects none of its labels" in caplog.text


def wavering(cases):
    """Make the labels waver, and be too large, in their files and in those of pairs."""
    random = np.random.RandomState(0)
    for case in cases:
        clean = nib.load(case["reference_label"])
        noise = np.kron(random.choice([0, 6], (8, 8)), np.ones((5, 5)))
        label = (distance_image(7 + int(case["id"][-1]) % 4) >= -noise).astype(np.uint8)
        nib.save(nib.Nifti1Image(label, clean.affine), case["label"])


def test_pairs_let_the_network_correct_what_moving_does_not(tmp_path):
    trainer, handler, store = build(tmp_path, pairs=6, number=8, rounds=1, epochs=1, num_clean=4)
    wavering(store.cases)
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    trainer.run()
    record = handler.history[0]
    assert record["round"] == store.rounds[-2] == 1
    assert record["sources"][0] in ("blend", "predict")
    held_out = record["correction"]["disc"]["held_out"]
    assert (held_out["of"], held_out["cases"]) == ("labels", 6)
    assert held_out["after"] > held_out["before"] + 0.05
    assert label_dice(store, store.rounds[-1]) > label_dice(store, 0) + 0.05


def test_pairs_are_matched_by_their_ids_whatever_the_order_of_the_loader(tmp_path):
    results = []
    for name in ("one", "other"):
        trainer, handler, store = build(tmp_path / name, pairs=5, number=8, rounds=1, epochs=1)
        wavering(store.cases)
        with_offsets(store.cases, *(0.3 * k for k in range(8)))
        if name == "other":
            data = handler.relabel_loader.dataset
            handler.relabel_loader = DataLoader(Dataset(data.data[::-1], data.transform), batch_size=2)
        trainer.optimizer.param_groups[0]["lr"] = 0.0
        trainer.run()
        results.append((handler.history[0]["correction"]["disc"], [store.read(f"case{k}") for k in range(8)]))
    one, other = results
    assert one[0]["held_out"] == pytest.approx(other[0]["held_out"])
    np.testing.assert_array_equal(one[1], other[1])


FIT = ClassFit(
    correction=ClassCorrection("distance", -2.0),
    network=ClassBias(-2.0, (-2.2, -1.8), 5, 0, 0.2, "biased"),
    judged=Judgement("predictions", (0.6,) * 5, (0.9,) * 5, True),
    dice_present=0.9,
)
MOVE = ClassFit(
    move=ClassCorrection("distance", -3.0), labels=ClassBias(-3.0, (-3.2, -2.8), 5, 0, 0.2, "biased"), num_pairs=5
)
NOISE = np.array([0.0, 0.01, -0.01, 0.005, -0.005])


@pytest.mark.parametrize(
    ("keep", "move", "blend", "predict", "changes", "source"),
    [
        (0.8, 0.95, 0.9, 0.85, {}, "move"),
        (0.8, 0.9, 0.95, 0.85, {}, "blend"),
        (0.8, 0.9, 0.85, 0.95, {}, "predict"),
        (0.9, 0.7, 0.8, 0.8, {}, "keep"),
        (0.9, 0.9, 0.9, 0.9, {}, "keep"),
        (0.8, 0.9, 0.95, 0.95, {"dice_present": 0.49}, "move"),
        (0.9, 0.7, 0.95, 0.95, {"dice_present": 0.49}, "keep"),
    ],
    ids=["moved", "blend", "prediction", "worse", "equal", "weak-network", "weak-network-and-worse"],
)
def test_held_out_pairs_choose_what_is_done_with_labels(keep, move, blend, predict, changes, source):
    rows = [
        {
            "keep": [keep + noise],
            "blend": [blend - noise],
            "predict": [predict - noise],
            **{f"{name} from {other}": [0.1] for name in ("blend", "predict") for other in ("keep", "move")},
        }
        for noise in NOISE
    ]
    moved = [{"move": [move + noise / 2], "displacement": [-3.0 + 10 * noise]} for noise in NOISE]
    fit = judge_fit(ClassFit(**{**FIT.__dict__, **changes}), MOVE, 0, rows, moved)
    assert fit.source == source
    assert (fit.labels, fit.num_pairs, fit.correction) == (MOVE.labels, 5, FIT.correction)
    told = fit.judged_labels.summary()
    assert told["before"] == pytest.approx(keep)
    assert told["after"] == pytest.approx({"keep": keep, "move": move, "blend": blend, "predict": predict}[source])
    assert math.isnan(fit.limit) == (source in ("keep", "move"))


def store_of(tmp_path, shift=3.0, number=5, spacings=(0.5,), key=None, pairs=4, classes=1):
    """Return a store of discs whose labels are ``shift`` mm too large, or a shift of its own for each case."""
    (tmp_path / "data").mkdir(exist_ok=True, parents=True)
    cases = []
    for k in range(number):
        side = spacings[k % len(spacings)]
        mm = shift if np.isscalar(shift) else shift[k % len(shift)]
        shape = round(40 / side)
        y, x = np.mgrid[:shape, :shape] * side - 20
        clean = np.stack([np.hypot(y, x + 9 * (2 * c - 1) * (classes > 1)) <= 6 + k % 3 for c in range(classes)])
        label = shift_boundary(clean.astype(np.uint8), mm, spacing=(side, side))
        case = {"id": f"case{k}"}
        if key:
            case["site"] = key[k % len(key)]
        numbers = np.arange(1, classes + 1, dtype=np.uint8)[:, None, None]
        maps = [("label", (label * numbers).max(axis=0)), ("clean_label", (clean * numbers).max(axis=0))]
        for kind, array in (("image", clean[0].astype(np.float32)), *maps):
            file = tmp_path / "data" / f"{k}_{kind}.nii.gz"
            nib.save(nib.Nifti1Image(array, np.diag([side] * 3 + [1])), file)
            if kind != "clean_label" or k < pairs:
                case[kind] = str(file)
        cases.append(case)
    values = {"values": [1, 2]} if classes > 1 else {}
    return LabelStore(tmp_path / "labels", cases, **values)


def truth(store, case_id):
    return np.asarray(nib.load(store.case(case_id)["image"]).dataobj) > 0


def options_for(store, **changes):
    return options_of(**{"class_names": store.class_names, "progress": False, "shape_weight": 0.5, **changes})


def mean_dice(store, number):
    return np.mean([dice(store.read(c["id"], number), truth(store, c["id"])[None])[0] for c in store.cases])


def test_cases_with_voxels_of_other_sizes_are_moved_by_the_same_length(tmp_path):
    store = store_of(tmp_path, shift=2.0, number=6, spacings=(1.0, 0.5))
    options = options_for(store)
    assert move_labels(store, options, LOGGER)
    moves = pair_moves(store, 0, options)
    assert moves.unit_mm == 0.75
    assert moves.fitted.fits[0].labels.spread * moves.fitted.unit < 0.4  # in voxels of .75 mm
    assert store.record(1)["label_shift"][0] * moves.unit_mm == pytest.approx(-2.0, abs=0.4)
    for case in store.cases:
        assert dice(store.read(case["id"], 1), truth(store, case["id"])[None])[0] > 0.96 > 0.85


def test_groups_of_pairs_are_moved_by_shifts_of_their_own(tmp_path):
    store = store_of(tmp_path, shift=(1.0, 3.0), number=10, key="ab", pairs=8)
    assert move_labels(store, options_for(store, group_key="site"), LOGGER)
    for k, entry in enumerate(store.manifest(1)):
        assert entry["label_shift"][0] == pytest.approx(-6.0 if k % 2 else -2.0, abs=0.5)
    assert mean_dice(store, 1) > 0.97
    store.discard(1)
    assert not move_labels(store, options_for(store), LOGGER)  # one shift for all serves nobody


def test_labels_are_moved_no_farther_than_max_shift(tmp_path):
    store = store_of(tmp_path)
    assert move_labels(store, options_for(store, max_shift=1.0), LOGGER)
    assert store.record(1)["label_shift"] == [-2.0]
    store.discard(1)
    assert move_labels(store, options_for(store, max_shift=1.0, voxel_mm=1.0), LOGGER)
    assert store.record(1)["label_shift"] == [-1.0]


def test_voxel_of_a_file_is_told_in_its_smallest_side(tmp_path):
    store = store_of(tmp_path, number=2)
    for case in store.cases:
        label = nib.load(case["label"])
        nib.save(nib.Nifti1Image(np.asarray(label.dataobj), np.diag([1.0, 0.5, 1, 1])), case["label"])
    assert file_voxel(store, "case0", options_for(store)) == ((2.0, 1.0), 0.5)
    assert file_voxel(store, "case1", options_for(store, metric="taxicab")) == ((1.0, 1.0), 0.5)
    assert file_voxel(store, "case0", options_for(store, voxel_mm=3.0)) == ((2.0, 1.0), 3.0)


def test_trusted_voxels_stay_where_labels_are_moved(tmp_path):
    store = store_of(tmp_path)
    trust = np.zeros((80, 80), dtype=np.uint8)
    trust[:40] = 1
    nib.save(nib.Nifti1Image(trust, AFFINE), tmp_path / "trust.nii.gz")
    for case in store.cases:
        case["trusted"] = str(tmp_path / "trust.nii.gz")
    assert move_labels(store, options_for(store), LOGGER)
    for case in store.cases:
        given, moved = (store.read(case["id"], number)[0] for number in (0, 1))
        np.testing.assert_array_equal(moved[:40], given[:40])
        assert (moved[40:] == truth(store, case["id"])[40:]).mean() > 0.98


def test_label_maps_are_moved_and_stay_label_maps(tmp_path):
    # Too small by 3 mm: where the two classes grow towards each other, neither takes what the other one holds.
    store = store_of(tmp_path, shift=-3.0, classes=2)
    assert move_labels(store, options_for(store, output="softmax"), LOGGER)
    for case in store.cases:
        given, moved = (store.read(case["id"], number) for number in (0, 1))
        assert not (moved.sum(axis=0) > 1).any()
        assert (moved | ~given).all()
        if (clean := store.read_clean(case["id"])) is not None:
            assert dice(moved, clean).min() > 0.9 > dice(given, clean).max()


def test_class_keeps_what_it_held_before_another_one_gets_it():
    given = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]], dtype=bool)
    moved = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 1]], dtype=bool)
    expected = [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1]]
    np.testing.assert_array_equal(exclusive_masks(moved, given), np.array(expected, dtype=bool))


def test_case_that_moves_farther_than_pairs_ever_show_is_listed(tmp_path, caplog):
    store = store_of(tmp_path, number=6, pairs=5)
    lost = store.cases[5]  # a disc so small that nothing would be left
    label = np.zeros((80, 80), dtype=np.uint8)
    label[40:43, 40:43] = 1
    nib.save(nib.Nifti1Image(label, np.diag([0.5, 0.5, 0.5, 1])), lost["label"])
    store = LabelStore(tmp_path / "other", store.cases)
    with caplog.at_level(logging.WARNING):
        assert move_labels(store, options_for(store), LOGGER)
    assert store.read("case5", 1).any()
    checks = {entry["case"]: entry["to_check"] for entry in store.manifest(1)}
    assert {name for name, notes in checks.items() if notes} == {"case5"}
    assert "Round 1: 1 cases to check, listed in the manifest." in caplog.text


def test_moves_have_the_unit_of_a_network(tmp_path):
    store = store_of(tmp_path)
    options = options_for(store)
    like = nothing_fitted(options.correction, 5, 2.0)  # it works on voxels of two of the files'
    moves = pair_moves(store, 0, options, like=like, unit_mm=0.5)
    assert moves.fitted.fits[0].labels.mean == pytest.approx(-3.0, abs=0.3)
    assert moves.fitted.moves[0].shift == pytest.approx(-6.0, abs=0.5)


def test_round_of_other_options_or_of_another_kind_is_none_of_moved_labels(tmp_path):
    store = store_of(tmp_path)
    options = options_for(store)
    assert not is_moved(store, options)
    move_labels(store, options, LOGGER)
    assert is_moved(store, options)
    assert not is_moved(store, options_for(store, gamma=1.0))
    record = Path(store.root / "round-001" / "round.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "moved": False}))
    assert not is_moved(store, options)
