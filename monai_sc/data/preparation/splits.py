"""Cases drawn into training, clean and test cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from monai_sc.data.preparation.layout import SPLITS, SourceCase


def draw_splits(cases: Sequence[SourceCase], sizes: Mapping[str, int], seed: int) -> dict[str, list[SourceCase]]:
    """Return the cases of each split, in their order; those that the data set gives to a split stay there.

    The others are drawn by group, in proportion to ``sizes``: of groups of one case, as many as the proportion says; of
    larger ones, about as many. No split whose size is over 0 stays empty where there are enough groups.

    Args:
        cases: of the data set.
        sizes: shares of the splits, such as their number of cases in the whole data set.
        seed: of the draw.
    """
    split_of = {case.group: case.split for case in cases if case.split is not None}
    given = {case.split for case in cases}
    drawn: dict[str, list[SourceCase]] = {}
    for case in cases:
        if case.group not in split_of:
            drawn.setdefault(case.group, []).append(case)
    groups = sorted(drawn)
    wanted = _shares(sum(len(group) for group in drawn.values()), sizes)
    wanted_splits = [split for split in SPLITS if sizes[split]]
    order = [groups[k] for k in np.random.default_rng(seed).permutation(len(groups))]
    for number, group in enumerate(order):
        empty = [split for split in wanted_splits if split not in given and split not in split_of.values()]
        must = len(groups) >= len(wanted_splits) and len(groups) - number <= len(empty)
        split_of[group] = max(empty if must else wanted_splits, key=lambda split: wanted[split])
        wanted[split_of[group]] -= len(drawn[group])
    return {split: [case for case in cases if (case.split or split_of[case.group]) == split] for split in SPLITS}


def _shares(number: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return whole shares of a number in proportion to the sizes: the largest remainders are rounded up."""
    exact = {split: number * sizes[split] / sum(sizes.values()) for split in SPLITS}
    shares = {split: int(share) for split, share in exact.items()}
    for split in sorted(SPLITS, key=lambda split: shares[split] - exact[split])[: number - sum(shares.values())]:
        shares[split] += 1
    return shares
