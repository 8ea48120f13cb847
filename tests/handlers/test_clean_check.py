import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor
from monai.transforms import SpatialPad

from monai_sc.correction.class_fit import Judgement
from monai_sc.correction.fitting import nothing_fitted
from monai_sc.functional.masks import dice
from monai_sc.handlers.clean_check import check_clean_cases, held_out_dice, judged_epochs, nothing_found, remember_best
from tests.handlers.correcting import options_of, trainer_of

NAMES = ["outer", "inner"]
Y, X = np.mgrid[:40, :40]


def depth(radius):
    """Return how deep each pixel lies in a disc."""
    return (radius - np.hypot(Y - 20, X - 19)).astype(np.float32)


def clean_cases(shifts=(3.0, 1.5), radii=(8, 9, 10), voxel_mm=(1.0, 1.0, 1.0), **more):
    """Return discs with a smaller one inside, whose images are logits that are too large by ``shifts``."""
    cases = []
    for k, (radius, size) in enumerate(zip(radii, voxel_mm, strict=True)):
        depths = np.stack([depth(radius), depth(radius - 4)])
        affine = np.diag([size, size, 1.0, 1.0])
        image = MetaTensor(depths + np.reshape(shifts, (2, 1, 1)), affine=affine, meta={"original_affine": affine})
        own = {key: values[k] for key, values in more.items()}
        cases.append({"id": str(k), "image": image, "label": torch.as_tensor(depths >= 0), **own})
    return cases


class Logits(torch.nn.Module):
    """Takes the image for the logits."""

    def __init__(self, softmax=False):
        super().__init__()
        self.softmax = softmax

    def forward(self, x):
        return torch.cat([torch.zeros_like(x[:, :1]), x], dim=1) if self.softmax else x


def check(cases, **options):
    options = options_of(**{"class_names": NAMES, "presence": False, "progress": False, **options})
    loader = DataLoader(Dataset(cases), batch_size=1)
    engine = trainer_of(Logits(options.softmax), loader)
    return check_clean_cases(engine, loader, options, "clean cases")


def test_bias_and_dice_are_those_of_the_clean_cases():
    cases = clean_cases()
    fitted, scores, voxel_mm = check(cases)
    np.testing.assert_allclose(fitted.bias.mean, [-3.0, -1.5], atol=0.3)
    assert fitted.num_clean == 3
    assert voxel_mm == 1.0
    for k, score in enumerate(scores):
        pairs = [(case["image"].numpy()[k] >= 0, case["label"].numpy()[k]) for case in cases]
        assert score == pytest.approx(np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs]))


def test_unit_is_the_mean_size_of_a_voxel():
    # The third case has twice the resolution: three of its voxels are one and a half of the others, two on the mean.
    _, _, voxel_mm = check(clean_cases(voxel_mm=(1.0, 1.0, 0.5)))
    assert voxel_mm == pytest.approx(2.5 / 3)
    fitted, _, _ = check(clean_cases(shifts=(2.0, 2.0), voxel_mm=(1.0, 1.0, 0.5)), representation="distance")
    mean = np.mean([2.0, 2.0, 1.0]) / voxel_mm
    np.testing.assert_allclose(fitted.bias.mean, [-mean, -mean], atol=0.3)


def test_what_was_padded_or_is_to_be_ignored_does_not_count():
    plain = clean_cases()
    fitted, scores, _ = check(plain)
    padded = [{**case, "image": SpatialPad((48, 40))(case["image"])} for case in plain]
    padded = [{**case, "label": SpatialPad((48, 40))(case["label"])} for case in padded]
    for case in padded:
        case["image"][:, :4] = 5.0
    assert check(padded)[1] == scores
    np.testing.assert_array_equal(check(padded)[0].bias.mean, fitted.bias.mean)
    for case in plain:
        case["image"][:, :4] = 5.0
    assert check(plain)[1] != scores
    ignored = [{**case, "ignore": torch.zeros(1, 40, 40)} for case in plain]
    assert check(ignored)[1] == check(plain)[1]
    for case in ignored:
        case["ignore"][:, :5] = 7
    assert check(ignored)[1] == scores


def test_groups_have_shifts_of_their_own():
    cases = clean_cases(shifts=(3.0, 3.0), radii=(8, 8, 9, 9, 10, 10), voxel_mm=(1.0,) * 6, site=["a", "b"] * 3)
    for case in cases[1::2]:
        case["image"] = case["image"] - 4.0
    assert [correction.group_shifts for correction in check(cases)[0].corrections] == [{}, {}]
    outer = check(cases, group_key="site")[0].corrections[0]
    assert sorted(outer.group_shifts) == ["a", "b"]
    assert outer.group_shifts["a"] < outer.group_shifts["b"] - 3


def test_label_of_a_softmax_is_a_map_or_masks():
    masks = clean_cases()
    for case in masks:
        case["label"][0] &= ~case["label"][1]
        case["image"][0] = torch.where(case["label"][1], -9.0, case["image"][0])
    fitted, scores, _ = check(masks, output="softmax")
    maps = [{**case, "label": case["label"][:1] + 2 * case["label"][1:].int()} for case in masks]
    assert check(maps, output="softmax")[1] == scores
    np.testing.assert_array_equal(check(maps, output="softmax")[0].bias.mean, fitted.bias.mean)
    with pytest.raises(ValueError, match=r"^With output='softmax' the classes of a clean label must not overlap\.$"):
        check(clean_cases(), output="softmax")


def test_class_under_one_voxel_is_not_moved_as_published():
    cases = clean_cases(shifts=(3.0, 0.6))
    fitted, _, _ = check(cases, representation="distance")
    first, second = fitted.corrections
    assert (first.representation, first.shift) == ("distance", pytest.approx(-3.0, abs=0.3))
    assert (second.representation, second.shift, second.note) == ("none", 0.0, "its bias is under one voxel")
    assert second.dice_after == second.dice_before < 1
    judged = fitted.fits[1].judged
    assert judged.after == judged.before
    assert check(cases)[0].corrections[1].note != "its bias is under one voxel"


def test_voxel_under_which_nothing_is_moved_as_published_is_that_of_the_network():
    # A file has voxels of 0.5, the network works on voxels of 1.
    moved = []
    for shift in (1.6, 3.0):
        cases = clean_cases(shifts=(3.0, shift / 2), voxel_mm=(1.0,) * 3)
        for case in cases:
            case["image"].meta["original_affine"] = np.diag([0.5, 0.5, 1.0, 1.0])
        fitted, _, voxel_mm = check(cases, representation="distance")
        assert (fitted.unit, voxel_mm) == (2.0, 0.5)
        assert fitted.bias.mean[1] == pytest.approx(-shift, abs=0.4)
        moved.append(fitted.corrections[1].representation)
    assert moved == ["none", "distance"]


def test_without_a_usable_case_there_is_no_bias():
    cases = clean_cases()
    for case in cases:
        case["image"] -= 99
    fitted, scores, _ = check(cases)
    assert np.isnan(fitted.bias.mean).all()
    assert fitted.bias.num_skipped.tolist() == [3, 3]
    assert fitted.num_clean == 3
    assert scores == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda c: c.update(label=c["label"][:, 1:]), {}, r"output and the clean label must have the same shape, got "),
        (
            lambda c: c.update(label=c["label"][:1], image=c["image"][:1]),
            {},
            r"must have one output channel per class of the store \['outer', 'inner'\], got 1\.$",
        ),
        (lambda c: c.update(label=c["label"].int() * 2), {}, r"label must hold the values 0 to 1 only, got 2;"),
        (
            lambda c: c["image"].meta.pop("original_affine"),
            {"max_shift": 2.0},
            r"^max_shift is in mm, and needs the size of a voxel, which the files do not say; give voxel_mm\.$",
        ),
    ],
    ids=["shape", "channels", "values", "no-mm"],
)
def test_unfit_clean_cases_are_refused(change, options, message):
    cases = clean_cases()
    for case in cases:
        change(case)
    with pytest.raises(ValueError, match=message):
        check(cases, **options)


def test_largest_shift_is_told_in_mm():
    options = {"max_shift": 1.0, "representation": "distance"}
    fitted, _, _ = check(clean_cases(voxel_mm=(0.5,) * 3), **options)
    assert fitted.options.max_shift == 2.0
    assert fitted.corrections[0].shift == -2.0
    assert check(clean_cases(voxel_mm=(0.5,) * 3), **options, voxel_mm=0.25)[0].options.max_shift == 4.0


def fitted_with(*scores, output="sigmoid"):
    """Return a fit whose corrections have these Dice on three held-out cases each."""
    fitted = nothing_fitted(options_of(class_names=NAMES, output=output).correction, 3, None)
    fits = (
        replace(fit, judged=Judgement("predictions", (0.125,) * 3, (score,) * 3, True), dice_present=0.75)
        for fit, score in zip(fitted.fits, scores, strict=True)
    )
    return replace(fitted, fits=tuple(fits))


def remembered(*checks, output="sigmoid"):
    """Return what a training has found whose checks had these Dice; its only weight is the number of the epoch."""
    found = nothing_found(None, 2)
    for epoch, scores in enumerate(checks, start=1):
        network = torch.nn.Linear(1, 1, bias=False)
        network.weight.data.fill_(float(epoch))
        remember_best(found, network, epoch, fitted_with(*scores, output=output), [0.25, 0.5], 2.0)
        network.weight.data.fill_(-1.0)  # as training goes on
    return found


def test_nothing_is_found_before_the_first_check():
    found = nothing_found(1, 2)
    assert found == {"fold": 1, "score": (-1, -math.inf), "classes": [{}, {}], "checks": []}


@pytest.mark.parametrize(
    ("checks", "best", "by_class"),
    [
        ([(0.5, 0.75)], 1, [1, 1]),
        ([(0.5, 0.75), (0.75, 0.25)], 1, [2, 1]),
        ([(0.5, 0.75), (0.75, 0.5), (0.25, 0.75)], 2, [2, 3]),
        ([(0.0, 0.0), (0.0, 0.0)], 2, [2, 2]),
    ],
    ids=["one", "one-class-better", "as-good", "nothing"],
)
def test_best_check_of_each_class_is_remembered_the_last_of_equals(checks, best, by_class):
    found = remembered(*checks)
    assert found["network"]["weight"].item() == found["state"]["epoch"] == best
    assert found["score"] == (2, np.mean(checks[best - 1]))
    assert [own["epoch"] for own in found["classes"]] == by_class
    assert [own["network"]["weight"].item() for own in found["classes"]] == by_class
    assert [own["dice"] for own in found["classes"]] == [checks[epoch - 1][k] for k, epoch in enumerate(by_class)]
    assert found["state"]["clean_dice"] == [0.25, 0.5]
    assert found["state"]["voxel_mm"] == 2.0
    for state, epoch in ((found["state"], best), (found["classes"][0], by_class[0])):
        assert state["fitted"]["fits"][0]["judged"]["after"] == [checks[epoch - 1][0]] * 3
    assert [check["epoch"] for check in found["checks"]] == list(range(1, len(checks) + 1))
    assert [check["before"] for check in found["checks"]] == [[[0.125] * 3] * 2] * len(checks)
    assert [check["after"] for check in found["checks"]] == [[[score] * 3 for score in own] for own in checks]


def test_classes_of_a_softmax_have_one_check():
    found = remembered((0.5, 0.75), (0.75, 0.25), output="softmax")
    assert [own["epoch"] for own in found["classes"]] == [1, 1]
    found = remembered((0.5, 0.75), (0.75, 0.5), output="softmax")
    assert [own["epoch"] for own in found["classes"]] == [2, 2]


def test_check_that_has_learnt_a_class_is_better_than_one_that_has_not():
    """A network that has not learnt a class may seem far off, and its correction to be worth much."""
    found = nothing_found(None, 2)
    for epoch, (scores, before) in enumerate([((0.75, 0.5), (0.25, 0.75)), ((0.5, 0.25), (0.5, 0.75))], start=1):
        fitted = fitted_with(*scores)
        fits = (replace(f, dice_present=b) for f, b in zip(fitted.fits, before, strict=True))
        fitted = replace(fitted, fits=tuple(fits))
        remember_best(found, torch.nn.Linear(1, 1), epoch, fitted, [0.25, 0.5], 1.0)
    assert [check["learnt"] for check in found["checks"]] == [[False, True], [True, True]]
    assert [own["epoch"] for own in found["classes"]] == [2, 1]
    assert found["state"]["epoch"] == 2
    assert judged_epochs(found["checks"], 0)[1] == 0.5
    assert judged_epochs(found["checks"], 1)[1] == 0.5
    assert judged_epochs(found["checks"], 1, joint=True)[1] == 0.25


def test_correction_that_is_not_made_has_the_dice_without_it():
    fitted = fitted_with(0.75, 0.5)
    fit = fitted.fits[0]
    assert held_out_dice(fit, 3) == [0.75] * 3
    assert held_out_dice(replace(fit, judged=replace(fit.judged, accepted=False)), 3) == [0.125] * 3


def test_single_case_has_the_dice_of_its_own_correction():
    case = clean_cases()[:1]
    fitted, _, _ = check(case)
    found = nothing_found(None, 2)
    remember_best(found, torch.nn.Linear(1, 1), 4, fitted, [0.5, 0.5], 1.0)
    (told,) = found["checks"]
    image, label = case[0]["image"].numpy(), case[0]["label"].numpy()
    assert told["before"] == [[pytest.approx(score)] for score in dice(image >= 0, label)]
    assert told["after"][0][0] > 0.98 > told["before"][0][0]
    assert [own["dice"] for own in found["classes"]] == [own[0] for own in told["after"]]


def test_check_without_a_usable_case_stands_beside_others():
    lost = clean_cases()
    for case in lost:
        case["image"] = case["image"] - 99
    found = nothing_found(None, 2)
    for epoch, cases in enumerate((lost, clean_cases()), start=1):
        fitted, scores, voxel_mm = check(cases)
        remember_best(found, torch.nn.Linear(1, 1), epoch, fitted, scores, voxel_mm)
    assert found["checks"][0]["before"] == found["checks"][0]["after"] == [[0.0] * 3] * 2
    before, after = judged_epochs(found["checks"], 0)
    assert before == np.mean(found["checks"][1]["before"][0])
    assert after == np.mean(found["checks"][1]["after"][0]) > before


def judged_slowly(checks, k, classes):
    """Return what the Dice of a class are before and after if each case is left out of the choice of the epoch."""
    cases = range(len(checks[0]["after"][k]))
    before, after = [], []
    for left_out in cases:
        best, chosen = (-1, -math.inf), None
        for check in checks:
            scores = [check["after"][own][case] for own in classes for case in cases if case != left_out]
            score = (sum(check["learnt"][own] for own in classes), round(np.mean(scores), 9))
            if score >= best:
                best, chosen = score, check
        before.append(chosen["before"][k][left_out])
        after.append(chosen["after"][k][left_out])
    return np.mean(before), np.mean(after)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_held_out_dice_repeats_the_choice_of_the_epoch(seed, joint):
    random = np.random.RandomState(seed)
    # A few values only, so that some checks are as good as others.
    before, after = random.randint(0, 4, (2, 6, 2, 5)) / 4
    learnt = random.randint(0, 3, (6, 2)) > 0
    checks = [
        {"epoch": epoch, "before": before[epoch], "after": after[epoch], "learnt": learnt[epoch].tolist()}
        for epoch in range(6)
    ]
    for k in range(2):
        expected = judged_slowly(checks, k, range(2) if joint else [k])
        assert judged_epochs(checks, k, joint=joint) == pytest.approx(expected)
        # The best of all, which the cases themselves have chosen, is never told.
        if not joint:
            assert expected[1] <= after[:, k].mean(axis=1).max() + 1e-9


def test_single_case_judges_no_epoch():
    checks = [
        {"before": [[b]], "after": [[a]], "learnt": [True]}
        for b, a in ((0.25, 0.5), (0.5, 0.75), (0.375, 0.75), (0.75, 0.25))
    ]
    before, after = judged_epochs(checks, 0)
    assert before == 0.375  # the last of the best
    assert math.isnan(after)
