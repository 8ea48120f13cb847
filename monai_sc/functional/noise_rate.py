"""How many of the labels are wrong, as far as clean cases tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from monai.config import NdarrayOrTensor

from monai_sc.functional.checks import binary_mask, check_same_shape


def estimate_noise_rate(pairs: Iterable[tuple[NdarrayOrTensor, NdarrayOrTensor]]) -> float:
    r"""Estimate the noise rate of labels from what a network that was trained on them predicts for clean cases.

    With the predicted foreground :math:`P` and the clean foreground :math:`L` of each case,

    .. math:: \hat\tau = \frac{\sum |P \setminus L| + |L \setminus P|}{\sum |P \cup L|},

    with the sums over the cases; of several channels, the mean. So it is the share of wrong voxels among those that
    matter, and an image with more background has no smaller one. (Yu et al. 2019 and Xia et al. 2021 take the rate as
    known; Yao et al., ICLR 2023, estimate it on the clean validation set and do not say how.)

    Errors of the labels that the network has not learnt, such as stray voxels, do not count; its own errors do.

    Args:
        pairs: of each case the predicted and the clean masks, both ``(channels, *spatial)`` of 0 and 1. A case where
            both are empty adds nothing.

    Returns:
        The rate, in ``[0, 1]``; 1 where prediction and label have nothing in common. A channel that is empty
        everywhere does not count.

    Raises:
        ValueError: when masks are not binary or do not fit each other, or all of them are empty.

    Example:
        >>> estimate_noise_rate([(np.array([[0, 1, 1, 1]]), np.array([[0, 0, 1, 1]]))])  # one of three is wrong
        0.3333333333333333
    """
    counts = np.zeros((2, 1))  # of the wrong voxels and of all that matter, by channel
    for number, (prediction, label) in enumerate(pairs):
        predicted, clean = binary_mask(prediction, "prediction"), binary_mask(label)
        check_same_shape(predicted, clean, ("prediction", "label"))
        if number and len(clean) != counts.shape[1]:
            raise ValueError(f"All masks must have the same channels, got {counts.shape[1]} and {len(clean)}.")
        axes = tuple(range(1, clean.ndim))
        counts = counts + np.stack([(predicted ^ clean).sum(axis=axes), (predicted | clean).sum(axis=axes)])
    wrong, present = counts[:, counts[1] > 0]
    if not present.size:
        raise ValueError("pairs must have foreground in at least one mask, got none; give clean cases that show some.")
    return float(np.mean(wrong / present))
