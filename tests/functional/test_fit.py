from __future__ import annotations

import numpy as np
import pytest

from monai_sc.functional import case_seed, fit_markov_noise, markov_label_noise
from monai_sc.functional.pair_statistics import CleanMask, correlation_length, pair_statistics, split_strays

SQUARE = np.zeros((24, 24), dtype=bool)
SQUARE[8:16, 8:16] = True


def shapes(number, size=64):
    """Return ellipses of different size and form, each ``(1, size, size)``."""
    rng = np.random.default_rng(5)
    grid = np.indices((size, size)) - size / 2
    return [
        ((grid / rng.uniform(8, 20, size=(2, 1, 1))) ** 2).sum(axis=0)[None] + rng.uniform(-0.1, 0.1) < 1
        for _ in range(number)
    ]


class TestStatistics:
    @pytest.mark.parametrize("k", [-3, -1, 1, 2])
    def test_a_moved_slab_is_displaced_by_as_much(self, k):
        clean, noisy = np.zeros((30, 9), dtype=bool), np.zeros((30, 9), dtype=bool)
        clean[10:20], noisy[10 - k : 20 + k] = True, True
        errors = CleanMask(clean).compare(noisy)
        assert errors.displacement.tolist() == [-k] * 18
        assert CleanMask(clean, (2.0, 1.0)).compare(noisy).displacement.tolist() == [-2 * k] * 18
        statistics = pair_statistics([errors, errors])
        assert statistics.displacement == -k
        assert statistics.magnitude == abs(k)
        assert statistics.spread == statistics.spread_between == statistics.spread_within == 0
        assert statistics.dice == pytest.approx(20 / (20 + 2 * k) if k > 0 else (20 + 4 * k) / (20 + 2 * k))

    def test_spread_is_divided_into_that_between_and_that_within_pairs(self):
        clean = np.zeros((30, 8), dtype=bool)
        clean[:15] = True
        straight, torn = clean.copy(), clean.copy()
        straight[15:17] = True
        torn[15:17, :4], torn[13:15, 4:] = True, False
        errors = [CleanMask(clean).compare(noisy) for noisy in (straight, torn)]
        errors[1] = type(errors[1])(**{**vars(errors[1]), "displacement": errors[1].displacement[:8]})
        own = [e.displacement for e in errors]
        statistics = pair_statistics(errors)
        assert statistics.spread_between == pytest.approx(np.std([o.mean() for o in own]))
        assert statistics.spread_within == pytest.approx(np.sqrt(np.mean([o.var() for o in own])))
        assert statistics.spread**2 == pytest.approx(statistics.spread_between**2 + statistics.spread_within**2)

    def test_strays_are_counted_and_left_out(self):
        noisy = SQUARE.copy()
        noisy[2, 2:5] = True  # three voxels beside the structure
        noisy[11, 11] = False  # and a hole
        kept, number = split_strays(noisy, SQUARE)
        assert number == 4
        assert np.array_equal(kept, SQUARE)
        errors = CleanMask(SQUARE).compare(noisy)
        assert not errors.displacement.any()
        assert pair_statistics([errors]).stray_rate == 4 / 24**2

    def test_correlation_length(self):
        assert correlation_length(np.exp(-np.arange(1, 30) / 7)) == pytest.approx(7, rel=0.01)
        assert correlation_length(np.exp(-np.arange(1, 30) / 7), lag_width=0.5) == pytest.approx(3.5, rel=0.01)
        assert correlation_length(np.ones(20)) == np.inf
        assert correlation_length(np.full(20, np.nan)) == np.inf

    def test_a_smooth_error_is_correlated_farther_than_a_rough_one(self):
        clean = shapes(20)
        lengths = []
        for sigma in (0.6, 2.5):
            errors = [
                CleanMask(mask[0]).compare(
                    markov_label_noise(
                        mask,
                        num_steps=20,
                        expansion_prob=0.5,
                        march_prob=0.4,
                        smoothing="before_flips",
                        smooth_sigma=sigma,
                        seed=k,
                    )[0]
                )
                for k, mask in enumerate(clean)
            ]
            lengths.append(pair_statistics(errors).correlation_length)
        assert lengths[1] > 1.3 * lengths[0] > 0


TRUE = {"num_steps": 24, "expansion_prob": 0.7, "march_prob": 0.15, "flip_prob": 0.0}


@pytest.fixture(scope="module")
def recovered():
    """Return the fit of pairs that were made with known parameters."""
    clean = shapes(60)
    smooth = {"smoothing": "before_flips", "smooth_sigma": 1.0}
    noisy = [markov_label_noise(m, **TRUE, **smooth, seed=case_seed(3, str(k))) for k, m in enumerate(clean)]
    return fit_markov_noise(clean, noisy, max_steps=60, budget=50_000, seed=0)


@pytest.mark.slow
class TestRecovery:
    def test_statistics_are_matched(self, recovered):
        for name, error in recovered.standard_errors.items():
            if name not in ("stray_rate", "correlation_length"):
                difference = getattr(recovered.simulated, name) - getattr(recovered.real, name)
                assert abs(difference) < 3.5 * error + 0.01, name
        assert recovered.p_value > 0.001
        assert (recovered.num_used, recovered.num_skipped, recovered.num_groups) == (60, 0, 60)

    def test_the_true_parameters_lie_in_their_intervals(self, recovered):
        for name, value in {**TRUE, "smooth_sigma": 1.0}.items():
            low, high = recovered.intervals[name]
            assert low - 1e-3 <= value <= high + 1e-3, name
        low, high = recovered.intervals["expansion_prob"]
        assert high - low < 0.5

    def test_the_draws_know_that_steps_and_march_prob_trade_off(self, recovered):
        steps, march = (np.log(recovered.draws[name]) for name in ("num_steps", "march_prob"))
        assert np.corrcoef(steps, march)[0, 1] < -0.5

    def test_parameters_make_noise_of_the_real_size(self, recovered):
        clean = shapes(40)
        noisy = [markov_label_noise(m, **recovered.parameters_of(str(k)), seed=k)[0] for k, m in enumerate(clean)]
        found = pair_statistics([CleanMask(m[0]).compare(n) for m, n in zip(clean, noisy, strict=True)])
        assert found.dice == pytest.approx(recovered.real.dice, abs=0.03)


def pairs(number=6):
    clean = shapes(number)
    return clean, [np.roll(m, 1, axis=1) for m in clean]


REFUSED = [
    pytest.param(
        lambda c, n: fit_markov_noise(c, n[:-1]), "must have the same number of masks, got 6 and 5", id="number"
    ),
    pytest.param(lambda c, n: fit_markov_noise(c[:3], n[:3]), "usable pairs in at least 5 groups, got 3", id="few"),
    pytest.param(lambda c, n: fit_markov_noise(c, c), "noisy must differ from clean", id="equal"),
    pytest.param(
        lambda c, n: fit_markov_noise(c, [0 * m for m in n]), "6 of 6 pairs have a mask that is empty", id="empty"
    ),
    pytest.param(lambda c, n: fit_markov_noise(c, n, groups=[1]), "groups must have one entry per pair", id="groups"),
    pytest.param(lambda c, n: fit_markov_noise(c, n, spacing=[(1, 1)]), "spacing must be one for all", id="spacing"),
    pytest.param(
        lambda c, n: fit_markov_noise(c, n, weights={"area": 1}), "weights must be of displacement", id="weight"
    ),
    pytest.param(
        lambda c, n: fit_markov_noise(c, n, weights={"dice": -1}), "weights must be at least 0", id="negative"
    ),
    pytest.param(lambda c, n: fit_markov_noise(c, n, budget=10), "budget must be at least 20000, got 10", id="budget"),
    pytest.param(lambda c, n: fit_markov_noise(c, n, max_steps=0), "max_steps must be at least 1, got 0", id="steps"),
    pytest.param(lambda c, n: fit_markov_noise(c, [m[:, 1:] for m in n]), "must have the same shape", id="shape"),
    pytest.param(lambda c, n: fit_markov_noise([5 * m for m in c], n), "clean must be binary", id="binary"),
]


@pytest.mark.parametrize(("fit", "message"), REFUSED)
def test_refused(fit, message):
    clean, noisy = pairs()
    with pytest.raises(ValueError, match=message):
        fit([m.astype(np.uint8) for m in clean], [m.astype(np.uint8) for m in noisy])
