"""The fit as a whole: what is chosen on clean cases is judged by others, in one unit, with or without a network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from monai_sc.correction import SpatialCorrector, compare_given
from monai_sc.correction.class_fit import judge_labels, upper_bound
from monai_sc.correction.fitting import fold_numbers
from tests.correction.discs import SIZE, dice, disc, distance_to

UNITS = [0.7, 700.0, 0.00025]


def wavy(rng, radius, offset, rough=0.7):
    """Return the signed distance to a disc whose boundary lies ``offset`` outside, and wavers."""
    noise = ndimage.gaussian_filter(rng.normal(size=(SIZE, SIZE)), 4)
    return distance_to(radius + offset) + rough * (noise / noise.std())[None]


def reader_cases(seed, number, *, bias=3.0, spread=0.4, rough=0.7):
    """Return predictions, clean labels and given labels, the latter and the former too large by about ``bias``."""
    rng = np.random.default_rng(seed)
    radii = rng.uniform(9, 15, number)
    clean = [disc(r) for r in radii]
    given = [wavy(rng, r, bias + rng.normal(0, spread), rough) >= 0 for r in radii]
    predictions = [wavy(rng, r, bias + rng.normal(0, spread), rough / 2) for r in radii]
    return predictions, clean, given


class TestNoNetwork:
    @pytest.mark.parametrize("k", [-4, -2, 2, 4])
    @pytest.mark.parametrize(
        ("shape", "spacing"), [((SIZE, SIZE), None), ((40, 40, 20), (1.0, 1.0, 2.0))], ids=["2d", "3d-anisotropic"]
    )
    def test_labels_of_other_cases_are_moved_by_the_bias(self, shape, spacing, k):
        radii = (8, 9, 10, 11)
        clean = [disc(r, shape=shape, spacing=spacing) for r in radii]
        given = [disc(r + k, shape=shape, spacing=spacing) for r in radii]
        corrector = SpatialCorrector(["ball"]).fit(None, clean, given=given, spacing=spacing)
        assert corrector.label_bias.mean[0] == pytest.approx(-k, abs=0.25)
        assert corrector.label_bias.verdict == ("biased",)
        new, true = (disc(r, shape=shape, spacing=spacing) for r in (9.5 + k, 9.5))
        moved = corrector.transform(given=new.astype(np.int16), spacing=spacing)
        assert moved.dtype == np.int16
        assert dice(moved == 1, true) > 0.95 > dice(new, true)

    def test_map_stays_a_map_and_each_class_is_moved_by_its_own_bias(self):
        def label(first, second):
            left, right = disc(first, centre=(20, 32))[0], disc(second, centre=(46, 32))[0]
            return np.where(left, 1, np.where(right, 2, 0))[None].astype(np.uint8)

        sizes = [(8, 8), (9, 7), (7, 9), (10, 8)]
        clean, given = [label(a, b) for a, b in sizes], [label(a + 3, b - 2) for a, b in sizes]
        corrector = SpatialCorrector(["a", "b"], output="softmax").fit(None, clean, given=given)
        np.testing.assert_allclose(corrector.label_bias.mean, [-3, 2], atol=0.3)
        moved = corrector.transform(given=given[0])
        assert set(np.unique(moved)) == {0, 1, 2}
        assert min(dice(moved == k, clean[0] == k) for k in (1, 2)) > 0.95

    def test_class_that_is_right_stays_to_the_voxel_beside_one_that_is_moved(self):
        def label(large):
            spot = disc(4, centre=(32, 12))
            return np.where(spot, 2, np.where(disc(large), 1, 0)).astype(np.uint8)

        sizes = (16, 17, 18, 19)
        clean, given = [label(r) for r in sizes], [label(r + 3) for r in sizes]
        corrector = SpatialCorrector(["large", "spot"], output="softmax").fit(None, clean, given=given)
        moved = corrector.transform(given=given[0])
        assert np.array_equal(moved == 2, given[0] == 2)
        assert dice(moved == 1, clean[0] == 1) > 0.95 > dice(given[0] == 1, clean[0] == 1)

    def test_unknown_and_trusted_voxels_stay(self):
        clean, given = ([disc(r + k).astype(np.int16) for r in (9, 10, 11, 12)] for k in (0, 3))
        corrector = SpatialCorrector(["disc"], ignore_value=255).fit(None, clean, given=given)
        drawn = given[0].copy()
        drawn[:, :20] = 255
        trusted = np.zeros((1, SIZE, SIZE))
        trusted[:, :, :32] = 1
        moved = corrector.transform(given=drawn, trusted=trusted)
        assert np.array_equal(moved[:, :20], drawn[:, :20])
        assert np.array_equal(moved[:, :, :32], drawn[:, :, :32])
        assert (moved == 1).sum() < (drawn == 1).sum()

    @pytest.mark.parametrize("output", ["sigmoid", "softmax"])
    def test_boundary_is_not_moved_away_from_what_is_unknown(self, output):
        """A class that meets unknown voxels has no boundary there."""

        def label(half):
            drawn = np.zeros((1, SIZE, SIZE), dtype=np.int16)
            drawn[:, 32 - half : 32 + half] = 1
            drawn[:, :, 40:] = 255
            return drawn

        clean, given = ([label(half + k) for half in (9, 10, 11, 12)] for k in (0, 3))
        corrector = SpatialCorrector(["slab"], output=output, ignore_value=255)
        assert np.array_equal(corrector.fit(None, clean, given=given).transform(given=given[0]), clean[0])
        predictions = [np.where(given_label == 1, 4.0, -4.0) for given_label in given]
        if output == "softmax":
            predictions = [np.concatenate([-p, p]) for p in predictions]
        corrector = corrector.fit(predictions, clean, given=given)
        assert np.array_equal(corrector.transform(predictions[0], given=given[0])[:, :, :30], clean[0][:, :, :30])

    def test_nothing_to_compare_is_refused(self):
        with pytest.raises(ValueError, match=r"^Give predictions or given labels, got neither"):
            SpatialCorrector(["disc"]).fit(None, [disc(9)])
        corrector = SpatialCorrector(["disc"]).fit(None, [disc(9)] * 3, given=[disc(12)] * 3)
        with pytest.raises(ValueError, match=r"^prediction or given must be there, got neither\.$"):
            corrector.transform()


class TestOneUnitInside:
    @pytest.mark.parametrize("sides", [(1.0, 1.0), (0.6, 1.7)], ids=["squares", "anisotropic"])
    @pytest.mark.parametrize("unit", UNITS)
    def test_the_same_cases_in_another_unit_give_the_same_masks(self, unit, sides):
        predictions, clean, given = reader_cases(1, 6)
        spacings = [tuple(side * u for side in sides) for u in (1.0, unit)]
        found = []
        for spacing in spacings:
            corrector = SpatialCorrector(["disc"]).fit(predictions, clean, given=given, spacing=spacing)
            corrector = compare_given(corrector, predictions, given, spacing=spacing)
            labels = [corrector.transform(p, given=g, spacing=spacing) for p, g in zip(predictions, given, strict=True)]
            found.append((corrector, labels, [corrector.transform(p, spacing=spacing) for p in predictions]))
        (first, *masks), (second, *others) = found
        assert all(np.array_equal(a, b) for x, y in zip(masks, others, strict=True) for a, b in zip(x, y, strict=True))
        assert second.bias.mean / unit == pytest.approx(first.bias.mean)
        assert second.corrections[0].shift / unit == pytest.approx(first.corrections[0].shift)
        assert second.bias.verdict == first.bias.verdict

    def test_order_of_cases_with_voxels_of_other_sizes_does_not_matter(self):
        sizes, radii = [(0.2,) * 2, (2.0,) * 2, (2.0,) * 2, (2.0,) * 2], (12, 14, 16, 13)
        clean, predictions = [disc(r) for r in radii], [distance_to(r + 5) for r in radii]
        shifts = []
        for order in ([0, 1, 2, 3], [1, 2, 3, 0], [3, 1, 0, 2]):
            columns = [[column[i] for i in order] for column in (predictions, clean, sizes)]
            corrector = SpatialCorrector(["disc"]).fit(*columns[:2], spacing=columns[2])
            shifts.append((corrector.unit, corrector.corrections[0].shift, float(corrector.bias.mean[0])))
        assert shifts[1] == pytest.approx(shifts[0])
        assert shifts[2] == pytest.approx(shifts[0])

    @pytest.mark.parametrize(("fitted", "asked"), [((1.0, 1.0), None), (None, (1.0, 1.0))])
    def test_spacing_is_given_always_or_never(self, fitted, asked):
        predictions, clean, _ = reader_cases(3, 4)
        corrector = SpatialCorrector(["disc"]).fit(predictions, clean, spacing=fitted)
        with pytest.raises(ValueError, match=r"^spacing must be given (always or never|here as it was for fit), got"):
            corrector.transform(predictions[0], spacing=asked)


class TestJudgedByOthers:
    def test_held_out_dice_is_that_of_correctors_that_have_not_seen_the_case(self):
        """Of moved labels: each case by a corrector of the others, which moves whatever serves on average."""
        _, clean, given = reader_cases(4, 6)
        corrector = SpatialCorrector(["disc"]).fit(None, clean, given=given)
        (fit,) = corrector.fits
        for i in range(6):
            others = [j for j in range(6) if j != i]
            own = SpatialCorrector(["disc"]).fit(None, [clean[j] for j in others], given=[given[j] for j in others])
            assert own.fits[0].source == "move"
            expected = dice(own.transform(given=given[i]) == 1, clean[i])
            assert fit.judged_labels.after[i] == pytest.approx(expected)
            assert fit.judged_labels.before[i] == pytest.approx(dice(given[i], clean[i]))
        held_out = corrector.report()["classes"]["disc"]["held_out"]
        assert held_out["after"] == pytest.approx(np.mean(fit.judged_labels.after))
        assert (held_out["of"], held_out["cases"], held_out["accepted"]) == ("labels", 6, True)

    def test_each_case_is_a_fold_until_there_are_many(self):
        assert fold_numbers(5).tolist() == [0, 1, 2, 3, 4]
        assert sorted(np.bincount(fold_numbers(27))) == [2, 2, 2, 3, 3, 3, 3, 3, 3, 3]

    @pytest.mark.parametrize("number", [3, 24])
    def test_predictions_are_read_twice_at_most(self, number):
        class Counting(list):
            reads = 0

            def __iter__(self):
                self.reads += 1
                return super().__iter__()

        predictions, clean, given = reader_cases(5, number)
        exclusive = Counting([np.concatenate([0 * p, p]) for p in predictions])
        labels = [m.astype(np.uint8) for m in clean]
        corrector = SpatialCorrector(["disc"], output="softmax")
        corrector = corrector.fit(exclusive, labels, given=[g.astype(np.uint8) for g in given])
        assert exclusive.reads <= 3  # one of them looks whether it can be read again

    @pytest.mark.parametrize("number", [2, 8])
    def test_labels_and_predictions_without_a_bias_stay_on_new_cases(self, number):
        """Each case is off by its own distance, with a mean of 0: nothing that clean cases show holds for others."""
        worse, change = 0, []
        y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
        for seed in range(40):
            rng = np.random.default_rng(seed)

            def cases(count, rng=rng):
                radii = rng.uniform(6, 14, count)
                return [((r + rng.normal(0, 2.0) - np.hypot(y, x))[None], (np.hypot(y, x) <= r)[None]) for r in radii]

            clean, new = cases(number), cases(12)
            corrector = SpatialCorrector(["disc"]).fit([p for p, _ in clean], [t for _, t in clean])
            before = np.mean([dice(p >= 0, t) for p, t in new])
            change.append(np.mean([dice(corrector.transform(p) == 1, t) for p, t in new]) - before)
            worse += change[-1] < -0.005
        assert worse <= (4 if number == 2 else 2)
        assert np.mean(change) > (-0.012 if number == 2 else -0.004)

    def test_one_case_alone_moves_nothing(self):
        corrector = SpatialCorrector(["disc"]).fit(None, [disc(10)], given=[disc(13)])
        assert corrector.fits[0].source == "keep"
        assert np.array_equal(corrector.transform(given=disc(14)), disc(14))

    @pytest.mark.parametrize(("bias", "spread", "moved"), [(4.0, 0.4, True), (1.0, 1.2, False)])
    @pytest.mark.parametrize("pair", [True, False], ids=["pair", "no-pair"])
    def test_one_case_counts_where_it_is_large_against_what_others_differ_by(self, bias, spread, moved, pair):
        predictions, clean, given = reader_cases(6, 16, bias=bias, spread=spread)
        corrector = SpatialCorrector(["disc"]).fit(predictions[:1], clean[:1], given=given[:1] if pair else None)
        assert corrector.corrections[0].representation == "none"
        corrector = compare_given(corrector, predictions[1:], given[1:])
        (fit,) = corrector.fits
        assert (fit.source != "keep") == moved
        assert "a single clean case" in fit.judged.note
        report = corrector.report()["classes"]["disc"]
        assert report["held_out"]["after"] is None
        if moved:
            gains = [
                dice(corrector.transform(p, given=g) == 1, c) - dice(g, c)
                for p, c, g in zip(predictions[1:], clean[1:], given[1:], strict=True)
            ]
            assert np.mean(gains) > 0.1


class TestSources:
    def test_network_that_knows_more_than_the_reader_is_used(self):
        predictions, clean, given = reader_cases(7, 8, spread=1.5, rough=2.5)
        predictions = [distance_to(np.sqrt(c.sum() / np.pi) + 3) for c in clean]  # too large, but always by three
        corrector = SpatialCorrector(["disc"]).fit(predictions, clean, given=given)
        assert corrector.fits[0].source in ("blend", "predict")
        new, truth, drawn = reader_cases(8, 6, spread=1.5, rough=2.5)
        new = [distance_to(np.sqrt(c.sum() / np.pi) + 3) for c in truth]
        after = [dice(corrector.transform(p, given=g) == 1, c) for p, c, g in zip(new, truth, drawn, strict=True)]
        assert min(after) > 0.9
        assert np.mean(after) > np.mean([dice(g, c) for c, g in zip(truth, drawn, strict=True)]) + 0.1

    def test_weak_network_corrects_nothing_and_labels_are_moved(self):
        _, clean, given = reader_cases(9, 6)
        rng = np.random.default_rng(0)
        weak = [distance_to(9, centre=rng.uniform(20, 44, 2).tolist()) for _ in clean]
        corrector = compare_given(SpatialCorrector(["disc"]).fit(weak, clean, given=given), weak, given)
        assert not corrector.fits[0].learnt
        assert corrector.fits[0].source == "move"
        alone = compare_given(SpatialCorrector(["disc"]).fit(weak, clean), weak, given)
        assert alone.fits[0].source == "keep"

    def test_without_pairs_labels_are_corrected_by_what_they_are_off_from_corrected_predictions(self):
        predictions, clean, given = reader_cases(10, 24)
        corrector = SpatialCorrector(["disc"]).fit(predictions[:8], clean[:8])
        corrector = compare_given(corrector, predictions[8:], given[8:])
        assert corrector.fits[0].source in ("move", "blend")
        assert corrector.moves[0].shift == pytest.approx(-3, abs=0.6)
        after = [
            dice(corrector.transform(p, given=g) == 1, c)
            for p, c, g in zip(predictions[8:], clean[8:], given[8:], strict=True)
        ]
        assert np.mean(after) > 0.95

    def test_groups_and_the_given_shape_go_together(self):
        """Two annotators, one too wide and one too narrow: the blend is no worse than the prediction alone."""
        y, x = np.mgrid[:80, :80] - 40
        means = []
        for seed in range(3):
            rng = np.random.default_rng(seed)

            def cases(count, rng=rng):
                found = []
                for i in range(count):
                    group, r, phases = "ab"[i % 2], rng.uniform(13, 20), rng.uniform(0, 6, 2)
                    off = {"a": 2.0, "b": -2.0}[group]
                    angle = np.arctan2(y, x)
                    waves = np.hypot(y, x) + 1.5 * np.sin(3 * angle + phases[0])
                    predicted = r + off + rng.normal(0, 0.5) - waves + 0.8 * np.sin(5 * angle + phases[1])
                    given = r + off + rng.normal(0, 0.5) - waves >= 0
                    found.append((predicted[None], (waves <= r)[None], given[None], group))
                return found

            clean, training = cases(10), cases(20)
            columns = list(zip(*training, strict=True))
            own = []
            for weight in (0.0, 0.5):
                corrector = SpatialCorrector(["disc"], shape_weight=weight)
                corrector = corrector.fit([c[0] for c in clean], [c[1] for c in clean], groups=[c[3] for c in clean])
                corrector = compare_given(corrector, columns[0], columns[2], groups=columns[3])
                labels = [corrector.transform(p, given=g, group=group) == 1 for p, _, g, group in training]
                own.append(np.mean([dice(label, c[1]) for label, c in zip(labels, training, strict=True)]))
            means.append(own)
        alone, blended = np.mean(means, axis=0)
        assert blended >= alone
        assert blended > 0.958

    def test_groups_of_pairs_are_moved_each_by_its_own_bias(self):
        radii = [9, 10, 11, 12, 13] * 2
        groups = ["ann"] * 5 + ["ben"] * 5
        clean = [disc(r) for r in radii]
        given = [disc(r + (4 if g == "ann" else -2)) for r, g in zip(radii, groups, strict=True)]
        corrector = SpatialCorrector(["disc"]).fit(None, clean, given=given, groups=groups)
        for true, drawn, group in zip(clean, given, groups, strict=True):
            assert dice(corrector.transform(given=drawn, group=group) == 1, true) > 0.95

    def test_labels_are_judged_by_all_but_each_case(self):
        """Without the second case the network would be taken, and what it does to that case is what is told."""
        predictions, clean, given = reader_cases(11, 5)
        fit = SpatialCorrector(["disc"]).fit(predictions, clean, given=given).fits[0]
        keep = np.full(5, 0.8)
        scores = {
            "move": np.array([0.9, 0.91, 0.9, 0.92, 0.9]),
            "blend": np.array([0.99, 0.7, 0.95, 0.8, 0.92]),
            "predict": np.array([0.7] * 5),
        }
        differs = {(name, other): np.full(5, 0.1) for name in scores for other in ("keep", "move")}
        judged = judge_labels(fit, keep, scores, differs, np.full(5, -3.0))
        assert judged.source == "move"
        assert judged.judged_labels.after == pytest.approx([0.9, 0.7, 0.9, 0.92, 0.9])
        worse = judge_labels(fit, np.full(5, 0.95), scores, differs, np.full(5, -3.0))
        assert worse.source == "keep"
        assert worse.judged_labels.after == worse.judged_labels.before


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        pytest.param([0.1] * 5, 0.1, 0.1, id="all-equal"),
        pytest.param([0.05, 0.1, 0.07, 0.12, 0.06], 0.12, 0.5, id="above-the-largest"),
        pytest.param([0.04], 0.1, 0.1, id="one"),
    ],
)
def test_upper_bound_is_at_least_the_largest(values, low, high):
    assert low - 1e-9 <= upper_bound(values) <= high + 1e-9
    assert np.isnan(upper_bound([]))


def test_labels_of_new_cases_hardly_ever_get_worse_in_random_set_ups():
    source = Path(__file__).parents[1] / "benchmarks" / "set_ups.py"
    spec = importlib.util.spec_from_file_location("set_ups", source)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = np.array([module.gains(module.draw(seed)) for seed in range(12)])
    assert (found < -0.005).sum() <= 1
    assert found.mean(axis=0).min() > 0.03


@pytest.mark.parametrize("scatter", [0.0, 4.0])
def test_labels_that_scatter_by_more_than_a_close_network_are_blended_with_it(scatter):
    """Without a case that has both labels; the labels have no bias that all of them share."""
    rng = np.random.default_rng(3)

    def depth(radius):
        y, x = np.mgrid[:SIZE, :SIZE] - 32
        return (radius - np.hypot(y, x))[None]

    clean = [depth(radius) for radius in rng.uniform(14, 18, 8)]
    truth = [prediction >= rng.normal(0, 0.5) for prediction in clean]
    radii = rng.uniform(14, 18, 24)
    predictions = [depth(r + e) for r, e in zip(radii, rng.normal(0, 0.5, 24), strict=True)]
    given = [depth(r + sign * scatter) >= 0 for r, sign in zip(radii, np.tile([1, -1], 12), strict=True)]
    corrector = compare_given(SpatialCorrector(["disc"]).fit(clean, truth), predictions, given)
    assert corrector.fits[0].source == ("blend" if scatter else "keep")
    new, true = depth(16.3), depth(16) >= 0
    if scatter:
        assert dice(corrector.transform(new, given=depth(20) >= 0), true) > 0.93 > dice(depth(20) >= 0, true)
