import logging
import math
from dataclasses import asdict, replace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.transforms import BorderPadd, Compose, LoadImaged, SelectItemsd

from monai_sc.correction import Fitted, PresenceRule
from monai_sc.correction.boundaries import GivenShape
from monai_sc.correction.class_fit import ClassBias, ClassFit, Judgement
from monai_sc.correction.label import DIFFERS, EMPTIED
from monai_sc.correction.presence import presence_rates
from monai_sc.correction.shifts import ClassCorrection
from monai_sc.correction.state import plain, read
from monai_sc.functional.masks import dice
from monai_sc.handlers import relabelling as module
from monai_sc.handlers.relabelling import Relabelling, as_judged, told_source
from monai_sc.store import LabelStore
from tests.handlers.correcting import options_of, trainer_of
from tests.handlers.test_clean_check import NAMES, depth

AFFINE = np.diag([0.5, 0.5, 1.0, 1.0])
WRONG = (3, 1)  # voxels by which the labels of each class are too large


class Offsets(torch.nn.Module):
    """Adds a number per class to images that hold how deep each pixel lies in each class."""

    def __init__(self, *offsets, softmax=False):
        super().__init__()
        self.offsets = torch.nn.Parameter(torch.tensor(offsets)[:, None, None])
        self.softmax = softmax

    def forward(self, x):
        x = x + self.offsets
        return torch.cat([torch.zeros_like(x[:, :1]), x], dim=1) if self.softmax else x


def fit_of(shift, dice_after=0.95, **changes):
    """Return a fit whose correction moves predictions by ``shift``, as three clean cases have said."""
    fit = ClassFit(
        correction=ClassCorrection("distance", shift) if shift else ClassCorrection(),
        network=ClassBias(shift, (shift - 0.2, shift + 0.2), 3, 0, 0.1, "biased"),
        rates=presence_rates([True] * 3, [True] * 3),
        judged=Judgement("predictions", (0.5,) * 3, (dice_after,) * 3, bool(shift)),
        dice_present=0.9,
    )
    return replace(fit, **changes)


@pytest.fixture
def build(tmp_path):
    """Return a function that makes what relabels a store of discs, with a smaller one in each."""

    def build(
        networks=((3.0, 1.0),),
        shifts=(-3.0, -1.0),
        number=4,
        transforms=(),
        folds=1,
        dice_after=0.95,
        fits=None,
        **options,
    ):
        cases = []
        for k in range(number):
            files = {}
            for name, radius, wrong in zip(NAMES, (9 + k % 3, 5 + k % 3), WRONG, strict=True):
                array = depth(radius)
                for kind, own in (("image", array), ("label", (array >= -wrong).astype(np.uint8))):
                    file = str(tmp_path / f"{k}_{name}_{kind}.nii.gz")
                    nib.save(nib.Nifti1Image(own, AFFINE), file)
                    files.setdefault(kind, []).append(file)
            cases.append({"id": f"case{k}", "site": "ab"[k % 2], **files})
        store = LabelStore(tmp_path / "store", cases, class_names=NAMES)
        load = LoadImaged("image", image_only=True, ensure_channel_first=True)
        chain = Compose([load, *transforms, SelectItemsd(["id", "image", "site"])])
        loader = DataLoader(Dataset(cases, chain), batch_size=2)
        options = options_of(**{"class_names": NAMES, "shape_weight": 0.0, "progress": False, **options})
        found = []
        for fold, offsets in enumerate(networks):
            known = tuple(fit_of(shift, dice_after, **(fits or {})) for shift in shifts)
            fitted = Fitted(options.in_voxels(0.5), known, 1.0, 3)
            weights = Offsets(*offsets).state_dict()
            state = {"epoch": 1, "fitted": fitted.to_dict(), "voxel_mm": 0.5, "dice": dice_after}
            classes = [{**state, "network": weights} for _ in NAMES]
            found.append({"fold": fold if folds > 1 else None, "classes": classes})
        network = Offsets(0.0, 0.0, softmax=options.softmax)
        return Relabelling(trainer_of(network, loader), store, loader, options, folds, found), store

    return build


def blank_record(bias=(-3.0, math.nan), learnt=(True, True), number=0, tolerance=1.0):
    return {
        "round": number,
        "bias": list(bias),
        "tolerance": tolerance,
        "learnt": list(learnt),
        "agreement": [math.nan] * 2,
        "label_bias": [math.nan] * 2,
        "memorised": [False] * 2,
        "kept": [False] * 2,
        "sources": ["keep"] * 2,
        "fits": [],
        "to_check": {},
        "correction": {name: {"network_epoch": 1, "held_out": {"before": 0.5, "after": 0.9}} for name in NAMES},
    }


def record_of(relabelling, **changes):
    record = blank_record(**changes)
    relabelling.judge(record)
    return record


def change_fit(relabelling, fold, k, **changes):
    fitted = relabelling.fitted[fold]
    fits = [replace(fit, **changes) if k == i else fit for i, fit in enumerate(fitted.fits)]
    relabelling.fitted[fold] = replace(fitted, fits=tuple(fits))


def told(caplog):
    """Return what was logged of the round."""
    return [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("Round")]


def depths_of(store, k):
    return np.stack([np.asarray(nib.load(file).dataobj) for file in store.cases[k]["image"]])


def test_labels_are_moved_and_what_was_done_is_noted(build, caplog):
    relabelling, store = build(shifts=(-3.0, -1.0))
    with caplog.at_level(logging.INFO):
        record = record_of(relabelling)
        changed = relabelling.write_round(record)
    assert record["kept"] == [False, True]  # the bias of the other class is not known
    assert record["sources"] == ["predict", "keep"]
    assert record["to_check"] == {}
    for k, case in enumerate(store.cases):
        given, corrected = (store.read(case["id"], number) for number in (0, 1))
        assert (corrected[0] == (depths_of(store, k)[0] >= 0)).mean() > 0.99
        np.testing.assert_array_equal(corrected[1], given[1])
    assert changed == np.sum([line["voxels_changed"] for line in store.manifest(1)], axis=0).tolist()
    assert [type(number) for number in changed] == [int, int]
    done = store.record(1)
    assert done["corrections"] == record["correction"]
    names = ("bias", "shift", "kept", "sources", "folds")
    assert {name: done[name] for name in names} == {
        "bias": [-3.0, None],
        "shift": [-3.0, -1.0],
        "kept": [False, True],
        "sources": ["predict", "keep"],
        "folds": 1,
    }
    assert done["options"] == relabelling.options.as_dict()
    assert done["label_shift"] == pytest.approx([-3.0, -1.0], abs=0.3)
    line = store.manifest(1)[2]
    assert (line["bias"], line["shift"], line["gamma"]) == ([-3.0, None], [-3.0, -1.0], [1.0, 1.0])
    assert line["representation"] == ["distance", "distance"]
    assert line["source"] == ["predict", "keep"]
    assert line["label_shift"] == done["label_shift"]
    assert line["to_check"] == {}
    part = 100 * changed[0] / (4 * 40 * 40)
    assert told(caplog)[-2:] == [
        f"Round 1, outer: the boundaries of the network, moved by -3.00 voxels; {changed[0]} voxels changed "
        f"({part:.2f} % of the images).",
        "Round 1, inner: labels stay; 0 voxels changed (0.00 % of the images).",
    ]


def test_agreement_is_that_of_the_predictions_with_their_labels(build):
    relabelling, store = build(networks=[(3.0, 0.0)])
    record = record_of(relabelling)
    expected = [
        dice(depths_of(store, k) + np.reshape((3.0, 0.0), (2, 1, 1)) >= 0, store.read(case["id"]))
        for k, case in enumerate(store.cases)
    ]
    assert record["agreement"] == pytest.approx(np.mean(expected, axis=0).tolist())
    assert record["agreement"][0] > 0.98 > record["agreement"][1] > 0.75
    for k, name in enumerate(NAMES):
        learnt = record["correction"][name]["given_labels"]
        assert learnt["agreement"] == record["agreement"][k]
        assert learnt["num_cases"] == 4
    # The labels of the second class are a voxel too large, and its network, which is right, is moved by one inward.
    assert record["correction"]["inner"]["given_labels"]["offset"] == pytest.approx(-2.0, abs=0.3)


def test_some_cases_are_judged_from_the_first_to_the_last(build, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 3)
    relabelling, store = build(number=6)
    seen = []
    read = store.read
    monkeypatch.setattr(store, "read", lambda case_id, number: seen.append((case_id, number)) or read(case_id, number))
    record = record_of(relabelling)
    assert seen == [("case0", 0), ("case2", 0), ("case5", 0)]
    assert record["correction"]["outer"]["given_labels"]["num_cases"] == 3


@pytest.mark.parametrize(("weight", "source"), [(0.0, "predict"), (0.5, "blend")])
def test_network_that_clean_cases_confirm_corrects_the_labels(build, weight, source):
    relabelling, _ = build(shape_weight=weight)
    record = record_of(relabelling, bias=(-3.0, -1.0))
    assert record["sources"] == [source, source]
    assert record["correction"]["outer"]["network_epoch"] == 1
    assert record["correction"]["outer"]["held_out"] == {"before": 0.5, "after": 0.9}  # of the predictions
    assert np.isnan(record["label_bias"]).all()  # no case has both labels
    assert [read(ClassFit, fit).source for fit in record["fits"]] == [source, source]


def test_network_that_is_no_better_than_the_labels_moves_them_or_lets_them_stay(build):
    relabelling, store = build(dice_after=0.6, shape_weight=0.5)
    record = record_of(relabelling, bias=(-3.0, -1.0))
    assert record["sources"] == ["move", "move"]
    relabelling.write_round(record)
    for k, case in enumerate(store.cases):  # the offset is that of the labels
        assert (store.read(case["id"], 1) == (depths_of(store, k) >= 0)).mean() > 0.99
    store.discard(1)
    relabelling, _ = build(networks=[(0.0, 0.0)], shifts=(0.0, 0.0), dice_after=0.6)
    poor = {"judged": Judgement("predictions", (0.6,) * 3, (0.6,) * 3), "network": ClassBias(0.0, (-9, 9), 3, 0, 4.0)}
    for k in range(2):
        change_fit(relabelling, None, k, **poor)
    assert record_of(relabelling, bias=(0.0, 0.0))["sources"] == ["keep", "keep"]


KEPT = [
    pytest.param({}, 0.5, False, False, id="corrected"),
    pytest.param({"bias": math.nan}, 0.5, False, True, id="no-bias"),
    pytest.param({"learnt": False}, 0.5, False, True, id="not-learnt"),
    pytest.param({"source": "keep"}, 0.75, False, True, id="nothing-serves"),
    pytest.param({"learnt": False, "source": "move"}, 0.5, False, False, id="not-learnt-but-pairs-move-it"),
    pytest.param({}, 0.96, True, False, id="memorised"),
    pytest.param({"bias": 0.9}, 0.5, False, False, id="small"),
]


@pytest.mark.parametrize(("changes", "agreement", "memorised", "kept"), KEPT)
def test_class_keeps_its_labels_for_a_reason(build, caplog, changes, agreement, memorised, kept):
    relabelling, _ = build()
    record = blank_record(
        number=2,
        bias=[9.0, changes.get("bias", 3.0)],
        learnt=[True, changes.get("learnt", True)],
    )
    source = changes.get("source", "predict")
    change_fit(relabelling, None, 1, source=source, shape=GivenShape(-1.0, math.nan, 0.0, 4, agreement))
    with caplog.at_level(logging.INFO):
        relabelling._judge_class(record, 1, "inner")
    assert (record["agreement"][1], record["memorised"], record["kept"]) == (
        agreement,
        [False, memorised],
        [False, kept],
    )
    assert record["sources"][1] == relabelling.fitted[None].fits[1].source == ("keep" if kept else source)
    assert record["correction"]["inner"]["given_labels"]["spread"] is None  # no nan, which JSON has not
    expected = (
        f"Round 2, inner: the network agrees with the labels that it learnt from (Dice {agreement:.3f}) more than with "
        "the clean ones, corrected (0.950): it has memorised them. Try more checks_per_round, or folds."
    )
    assert told(caplog) == ([expected] if memorised else [])


def test_each_case_gets_the_network_and_the_corrector_of_its_fold(build):
    relabelling, store = build(networks=[(3.0, 1.0), (5.0, 2.0)], shifts=(-3.0, -1.0), folds=2)
    assert list(relabelling.fitted) == [0, 1]
    change_fit(relabelling, 1, 0, correction=ClassCorrection("distance", -3.5))
    record = record_of(relabelling, bias=(-3.0, -1.0))
    relabelling.write_round(record)
    for k, case in enumerate(store.cases):
        expected = depths_of(store, k) + np.reshape([(0, 0), (1.5, 1)][k % 2], (2, 1, 1)) >= 0
        assert (store.read(case["id"], 1) == expected).mean() > 0.99
        assert store.manifest(1)[k]["shift"] == [-3.5 if k % 2 else -3.0, -1.0]
    assert store.record(1)["shift"] == [-3.0, -1.0]
    assert store.record(1)["folds"] == 2


def test_training_without_folds_counts_only_where_there_is_no_other(build):
    relabelling, store = build(networks=[(3.0, 1.0), (5.0, 2.0)], folds=2)
    whole = {**relabelling.found[0], "fold": None}
    again = Relabelling(
        relabelling.engine, store, relabelling.loader, relabelling.options, 2, [whole, *relabelling.found]
    )
    assert list(again.fitted) == [0, 1]
    alone = Relabelling(relabelling.engine, store, relabelling.loader, relabelling.options, 2, [whole])
    assert list(alone.fitted) == [None]


def test_classes_have_the_networks_of_their_own_best_checks(build):
    relabelling, _ = build(networks=[(1.0, 2.0), (3.0, 4.0)], folds=2)
    first, second = relabelling.found
    equal = {name: value.clone() for name, value in first["classes"][0]["network"].items()}
    second["classes"][1]["network"] = equal
    networks, index = relabelling._networks()
    assert [network.offsets.flatten().tolist() for network in networks] == [[1.0, 2.0], [3.0, 4.0]]
    assert index == {(0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 0}
    assert all(network is not relabelling.engine.network for network in networks)
    case, logits, fold = next(relabelling._predictions(relabelling.loader, ""))
    assert (logits - case["image"]).flatten(1).mean(dim=1).tolist() == pytest.approx([1.0, 2.0])
    assert fold == 0


def test_fold_is_judged_as_the_training_on_all_cases(build):
    judged = fit_of(-3.0, source="blend", limit=0.5)
    own = fit_of(-3.5)
    fit = as_judged(own, judged)
    assert (fit.correction, fit.source, fit.limit) == (own.correction, "blend", 0.5)
    for first, second in ((own, fit_of(0.0)), (fit_of(0.0), judged)):  # one of them has no correction
        assert as_judged(first, second) is second
    waiting = replace(fit_of(0.0), pending=ClassCorrection("distance", -4.0))
    assert as_judged(waiting, judged).correction.shift == -4.0


def test_class_that_the_network_has_not_predicted_is_moved_as_labels_are(build, caplog):
    relabelling, store = build(shape_weight=0.5)
    record = record_of(relabelling, bias=(-3.0, -1.0))
    for part in relabelling.found:  # at first it found the class
        for chosen in part["classes"]:
            chosen["network"] = Offsets(3.0, -99.0).state_dict()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        relabelling.write_round(record)
    for k, case in enumerate(store.cases):
        assert (store.read(case["id"], 1) == (depths_of(store, k) >= 0)).mean() > 0.99
    assert not told(caplog)


def test_class_of_which_nothing_is_left_keeps_its_labels_as_published(build, caplog):
    relabelling, store = build(networks=[(3.0, -99.0)], representation="distance")
    record = record_of(relabelling, bias=(-3.0, -1.0))
    caplog.clear()  # of what a run tells where tests before have set another level
    with caplog.at_level(logging.WARNING):
        relabelling.write_round(record)
    for case, line in zip(store.cases, store.manifest(1), strict=True):
        np.testing.assert_array_equal(store.read(case["id"], 1)[1], store.read(case["id"], 0)[1])
        assert line["to_check"] == record["to_check"][case["id"]] == {"inner": EMPTIED}
    assert told(caplog) == ["Round 1, inner: 4 cases to check, listed in the manifest."]


@pytest.mark.parametrize("drops_given", [False, True])
def test_rule_leaves_nothing_of_a_class_only_if_clean_cases_showed_that(build, caplog, drops_given):
    rule = PresenceRule("size", 1e9, drops_given, True, 0.1, (0.5, 0.5), (0.9, 0.9))
    relabelling, store = build(fits={"rule": rule})
    record = record_of(relabelling, bias=(-3.0, -1.0))
    record["fits"] = plain([asdict(fit_of(shift, rule=rule, source="predict")) for shift in (-3.0, -1.0)])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        relabelling.write_round(record)
    for case in store.cases:
        assert store.read(case["id"], 1).any(axis=(1, 2)).all() or drops_given


def test_shift_that_leaves_too_little_is_refused(build, caplog):
    relabelling, store = build()
    record = record_of(relabelling, bias=(-3.0, -6.0))
    fits = (fit_of(shift, source="move", move=ClassCorrection("distance", shift)) for shift in (-3.0, -6.0))
    record["fits"] = plain([asdict(fit) for fit in fits])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        relabelling.write_round(record)
    for k, case in enumerate(store.cases):
        given, label = (store.read(case["id"], number) for number in (0, 1))
        assert (label[0] == (depths_of(store, k)[0] >= 0)).mean() > 0.99
        np.testing.assert_array_equal(label[1], given[1])
    assert told(caplog) == [
        "Round 1, inner: 4 objects were not shifted: less than half of them would be left.",
    ]


def test_label_that_differs_from_the_moved_one_too_much_is_to_be_checked(build, caplog):
    relabelling, store = build(networks=[(3.0, 1.0)], shape_weight=0.5)
    record = record_of(relabelling, bias=(-3.0, -1.0))
    lost = store.cases[1]  # where the network sees half of a disc
    for file in lost["image"]:
        image = nib.load(file)
        array = np.asarray(image.dataobj).copy()
        array[:20] = -50
        nib.save(nib.Nifti1Image(array, image.affine), file)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        relabelling.write_round(record)
    assert record["to_check"] == {"case1": {"outer": DIFFERS, "inner": DIFFERS}}
    assert [line["to_check"] for line in store.manifest(1)] == [{}, record["to_check"]["case1"], {}, {}]
    assert set(told(caplog)) >= {f"Round 1, {name}: 1 cases to check, listed in the manifest." for name in NAMES}
    for name in range(2):  # they are the moved ones
        truth = depth((10, 6)[name]) >= 0
        assert (store.read("case1", 1)[name] == truth).mean() > 0.99


def test_label_is_moved_no_farther_than_the_largest_shift(build):
    relabelling, store = build(dice_after=0.6, shape_weight=0.5, max_shift=1.0)  # two voxels
    record = record_of(relabelling, bias=(-3.0, -1.0))
    assert record["sources"] == ["move", "move"]
    relabelling.write_round(record)
    for k, case in enumerate(store.cases):
        assert (store.read(case["id"], 1)[0] == (depths_of(store, k)[0] >= -1)).mean() > 0.98
    assert store.record(1)["label_shift"] == pytest.approx([-2.0, -1.0], abs=0.3)


def trust_first_half(cases, file):
    trust = np.zeros((40, 40), dtype=np.uint8)
    trust[:20] = 1
    nib.save(nib.Nifti1Image(trust, AFFINE), file)
    for case in cases:
        case["trusted"] = str(file)


def test_trusted_voxels_of_each_class_stay(build, tmp_path):
    relabelling, store = build()
    trust_first_half(store.cases[:2], tmp_path / "trust.nii.gz")
    relabelling.write_round(record_of(relabelling, bias=(-3.0, -1.0)))
    for k, case in enumerate(store.cases):
        given, corrected = (store.read(case["id"], number) for number in (0, 1))
        clean = depths_of(store, k) >= 0
        half = given[:, :20] if k < 2 else clean[:, :20]
        assert (corrected[:, :20] == half).mean() > (0.999 if k < 2 else 0.98)
        assert (corrected[:, 20:] == clean[:, 20:]).mean() > 0.98
        assert not np.array_equal(given[:, :20], clean[:, :20])


def test_padding_is_no_part_of_a_structure(build):
    relabelling, store = build()
    relabelling.write_round(record_of(relabelling, bias=(-3.0, -1.0)))
    plain = [store.read(case["id"], 1) for case in store.cases]
    store.discard(1)
    relabelling, store = build(transforms=[BorderPadd("image", (2, 3), mode="constant", value=50.0)])
    record = record_of(relabelling, bias=(-3.0, -1.0))
    relabelling.write_round(record)
    for case, label in zip(store.cases, plain, strict=True):
        np.testing.assert_array_equal(store.read(case["id"], 1), label)


def test_groups_are_moved_by_their_own_shift(build):
    relabelling, store = build(group_key="site", number=6)
    own = ClassCorrection("distance", -2.0, group_shifts={"a": -1.0, "b": -3.0})
    change_fit(relabelling, None, 0, network=fit_of(-2.0).network, correction=own)
    record = record_of(relabelling, bias=(-2.0, -1.0))
    assert record["sources"] == ["predict", "predict"]
    relabelling.write_round(record)
    learnt = record["correction"]["outer"]["given_labels"]
    # All labels are three voxels too large: against the corrected predictions, which differ by group, they are not.
    assert learnt["group_offsets"]["b"] < -2.5 < -1.5 < learnt["group_offsets"]["a"]
    for k, case in enumerate(store.cases):
        shift = -3.0 if k % 2 else -1.0
        line = store.manifest(1)[k]
        assert line["shift"] == [shift, -1.0]
        assert line["label_shift"][0] == pytest.approx(shift, abs=0.3)
        assert (store.read(case["id"], 1)[0] == (depths_of(store, k)[0] + 3 + shift >= 0)).mean() > 0.98


def test_shape_of_the_given_label_is_kept(build):
    relabelling, store = build(shape_weight=1.0)
    record = record_of(relabelling, bias=(-3.0, -1.0))
    relabelling.write_round(record)
    assert [shape.offset for shape in relabelling.fitted[None].shapes] == pytest.approx([-3.0, -1.0], abs=0.3)
    for k, case in enumerate(store.cases):
        assert (store.read(case["id"], 1) == (depths_of(store, k) >= 0)).mean() > 0.98


def test_label_that_does_not_fit_its_files_is_refused(build):
    relabelling, _ = build()
    fitted = relabelling.fitted[None]
    case = {"id": "case0", "image": torch.zeros(2, 40, 40)}
    with pytest.raises(TypeError, match="relabel_loader must give images as MetaTensor"):
        relabelling._fields(case, torch.zeros(2, 40, 40), fitted, np.zeros((2, 40, 40), dtype=bool))
    case = next(iter(relabelling.loader.dataset))
    message = (
        r"^The label made for case 'case0' and its label files must have the same shape, got \(40, 40\) and \(9, 9\)"
    )
    with pytest.raises(ValueError, match=message):
        relabelling._fields(case, torch.zeros(2, 40, 40), fitted, np.zeros((2, 9, 9), dtype=bool))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("keep", "labels stay"),
        ("move", "labels moved by -5.00 voxels"),
        ("predict", "the boundaries of the network, moved by -3.00 voxels"),
        ("blend", "the boundaries of the network, moved by -3.00 voxels, with the shape of the labels"),
    ],
)
def test_words_say_what_is_done_with_the_labels(source, words):
    assert told_source(fit_of(-1.5, source=source, move=ClassCorrection("distance", -2.5)), 2.0) == words
