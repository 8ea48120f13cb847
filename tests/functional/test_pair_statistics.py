from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from monai_sc.functional.pair_statistics import (
    NUM_LAGS,
    CleanMask,
    PairErrors,
    correlation_length,
    correlation_sums,
    pair_statistics,
    split_strays,
)


def bar(first, last, shape=(30, 12)):
    """Return a bar across the image, which has no corner."""
    position = np.indices(shape)[0]
    return (position >= first) & (position <= last)


def as_mask(rows):
    return np.array([[character == "#" for character in row] for row in rows])


@pytest.mark.parametrize("spacing", [None, (2.5, 0.7)])
@pytest.mark.parametrize(
    ("noisy", "displacement"),
    [
        pytest.param(bar(10, 19), {0.0}, id="the-same"),
        pytest.param(bar(7, 22), {-3.0}, id="grown-by-3"),
        pytest.param(bar(12, 17), {2.0}, id="shrunk-by-2"),
        pytest.param(bar(11, 20), {1.0, -1.0}, id="moved-by-1"),
    ],
)
def test_displacement_of_a_bar_is_exact_at_every_position(noisy, displacement, spacing):
    errors = CleanMask(bar(10, 19), spacing).compare(noisy)
    unit = spacing[0] if spacing else 1
    assert len(errors.displacement) == 24
    np.testing.assert_allclose(sorted(set(errors.displacement.round(6))), sorted(unit * d for d in displacement))
    assert errors.stray == 0


def test_moved_square_is_displaced_by_the_step_on_two_sides_and_not_at_all_on_the_others():
    clean = np.zeros((20, 20), dtype=bool)
    clean[6:14, 6:14] = True
    errors = CleanMask(clean).compare(np.roll(clean, 1, axis=0))
    values, counts = np.unique(errors.displacement.round(6), return_counts=True)
    count = dict(zip(values.tolist(), counts.tolist(), strict=True))
    # 8 faces ahead, 8 behind and 8 on either side. The outer ones behind are also near the sides of the clean square,
    # and the foremost ones on the sides lie beyond its corners.
    assert len(errors.displacement) == 32
    assert (count[-1.0], count[1.0], count[0.0]) == (8, 6, 14)
    assert errors.dice == pytest.approx(7 / 8)


def test_position_of_a_face_is_between_its_voxels_in_mm():
    points, displacement = CleanMask(bar(1, 2, (4, 2)), (2.0, 0.5)).boundary(bar(1, 2, (4, 2)))
    assert sorted(points.tolist()) == [[1.0, 0.0], [1.0, 0.5], [5.0, 0.0], [5.0, 0.5]]
    assert displacement.tolist() == [0] * 4


def test_displacement_in_3d():
    clean, noisy = bar(5, 9, (16, 3, 4)), bar(4, 10, (16, 3, 4))
    errors = CleanMask(clean, (3.0, 1.0, 1.0)).compare(noisy)
    np.testing.assert_allclose(errors.displacement, np.full(24, -3.0), atol=1e-6)


def test_strays_are_components_without_a_voxel_in_the_clean_mask_and_holes_likewise():
    clean = as_mask(["..........", ".######...", ".######...", ".######...", ".######...", ".........."])
    noisy = as_mask(["........##", ".######...", ".#..##....", ".##.###...", ".#####....", ".#......#."])
    kept, strays = split_strays(noisy, clean)
    # Stray are two voxels above, one below, and the hole of three; a bulge and a dent are not.
    assert strays == 6
    assert (
        kept.tolist()
        == as_mask(["..........", ".######...", ".#####....", ".######...", ".#####....", ".#........"]).tolist()
    )


def test_stray_rate_is_that_of_all_regions_together():
    clean = CleanMask(bar(10, 19))
    noisy = bar(10, 19)
    noisy[2, 3] = True
    noisy[15, 5] = False
    statistics = pair_statistics([clean.compare(noisy), clean.compare(bar(9, 20))])
    assert statistics.stray_rate == pytest.approx(2 / (2 * 30 * 12))
    assert statistics.displacement == pytest.approx(-0.5)


def test_every_pair_counts_alike_and_spread_divides_into_that_between_and_within_pairs():
    long, short = CleanMask(bar(10, 19, (30, 40))), CleanMask(bar(10, 19, (30, 4)))
    statistics = pair_statistics([long.compare(bar(9, 20, (30, 40))), short.compare(bar(11, 20, (30, 4)))])
    assert statistics.displacement == pytest.approx(-0.5)
    assert statistics.magnitude == pytest.approx(1)
    assert statistics.spread_between == pytest.approx(0.5)
    assert statistics.spread_within == pytest.approx(np.sqrt(0.5))
    assert statistics.spread == pytest.approx(np.sqrt(0.75))
    scores = [2 * 10 / 22, 0.9]
    np.testing.assert_allclose(statistics.dices, scores)
    assert statistics.dice == pytest.approx(np.mean(scores))
    assert statistics.dice_spread == pytest.approx(np.std(scores))
    width = np.diff(statistics.histogram_edges)
    assert (statistics.histogram * width).sum() == pytest.approx(1)


@pytest.mark.parametrize("mask", [np.zeros((30, 12), dtype=bool), bar(25, 27)], ids=["empty", "elsewhere"])
def test_mask_without_a_boundary_beside_strays_has_a_dice_and_no_displacement(mask):
    clean = CleanMask(bar(10, 19))
    statistics = pair_statistics([clean.compare(mask), clean.compare(bar(8, 21))])
    assert (statistics.num_pairs, statistics.num_lost) == (2, 1)
    assert statistics.displacement == pytest.approx(-2)
    assert statistics.dice == pytest.approx(20 / 24 / 2)
    assert np.isnan(pair_statistics([clean.compare(mask)]).displacement)


def walk(size, memory, rng):
    """Return a stationary process whose correlation falls by ``memory`` with each position."""
    noise = rng.normal(size=size + 200)
    values = np.empty_like(noise)
    values[0] = 0
    for k in range(1, len(noise)):
        values[k] = memory * values[k - 1] + noise[k]
    return values[200:]


@pytest.mark.parametrize(
    ("memory", "length", "tolerance"),
    [pytest.param(0, 1 - 1 / np.e, 0.02, id="independent"), pytest.param(np.exp(-1 / 6), 6, 0.5, id="lag-of-6")],
)
@pytest.mark.parametrize("width", [1.0, 0.4])
def test_correlation_length_is_that_of_the_process_along_the_line(memory, length, tolerance, width):
    rng, sums = np.random.default_rng(0), np.zeros((2, NUM_LAGS))
    points = width * np.stack([np.arange(300), np.zeros(300)], axis=1)
    for _ in range(200):
        correlation_sums(points, walk(300, memory, rng), width, sums)
    correlation = sums[0] / sums[1]
    assert correlation_length(correlation, width) == pytest.approx(width * length, abs=width * tolerance)
    np.testing.assert_allclose(correlation[:5], memory ** np.arange(1, 6), atol=0.05)


def test_displacement_that_does_not_vary_has_no_end_of_correlation():
    statistics = pair_statistics([CleanMask(bar(10, 19)).compare(bar(7, 22))])
    assert np.isnan(statistics.correlation).all()
    assert statistics.correlation_length == np.inf
    assert statistics.spread_within == pytest.approx(0, abs=1e-6)


def test_smooth_error_is_correlated_over_a_longer_way_than_a_rough_one():
    rng = np.random.default_rng(0)
    clean = bar(30, 60, (90, 120))
    lengths = []
    for sigma in (1, 4, 10):
        errors = []
        for _ in range(20):
            shift = ndimage.gaussian_filter(rng.normal(size=120), sigma, mode="wrap")
            edge = 60 + 4 * shift / shift.std()
            errors.append(
                CleanMask(clean).compare(clean & (np.indices(clean.shape)[0] <= edge) | bar(30, 40, (90, 120)))
            )
        lengths.append(pair_statistics(errors).correlation_length)
    assert lengths == sorted(lengths)
    assert lengths[2] > 2 * lengths[0]


def test_histogram_covers_the_displacements_but_for_the_most_extreme_hundredth():
    edge = np.repeat([-4, 4], [500, 500]).astype(float)  # one half of the boundary is too far in, one too far out
    edge[:3], edge[-3:] = -50, 50
    errors = PairErrors(0.9, edge, 0, 100, np.zeros((2, NUM_LAGS)))
    statistics = pair_statistics([errors])
    assert statistics.histogram_edges[[0, -1]].tolist() == [-4, 4]
    assert (statistics.histogram * np.diff(statistics.histogram_edges)).sum() == pytest.approx(0.994)
    assert statistics.lags[:3].tolist() == [1, 2, 3]
    wide = pair_statistics([errors], lag_width=7.0)
    assert wide.histogram_edges[[0, -1]].tolist() == [-7, 7]
    assert wide.lags[:3].tolist() == [7, 14, 21]
    same = pair_statistics([errors], histogram_edges=np.array([-60.0, 0.0, 60.0]))
    np.testing.assert_allclose(same.histogram, [0.5 / 60] * 2)


def test_statistics_of_no_pair_are_refused():
    with pytest.raises(ValueError, match=r"^errors must be of at least one pair, got none\.$"):
        pair_statistics([])
