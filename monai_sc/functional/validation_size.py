"""How many clean cases the bias needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def required_validation_size(
    epsilon: float, epsilon0: float, epsilon1: float, image_size: int | Sequence[int], alpha: float
) -> int:
    r"""Return how many clean cases suffice for a bias that is off by ``epsilon`` at most, by any law of the errors.

    It is a worst case with the ingredients of Theorem 1 of Yao et al. (ICLR 2023); the derivation is ours, and so are
    the constants, which are not the paper's. Take a network whose boundary lies, in all but a part
    :math:`\varepsilon_1` of the images, within :math:`\varepsilon_0` of where the noise puts it on average. In the
    other images it may lie anywhere, at most :math:`D`, the longest way through the image. Then the displacement of an
    image has a variance of at most :math:`\varepsilon_0^2 + 4 \varepsilon_1 D^2`, is off its mean by :math:`2 D` at
    most, and its mean is off the bias by :math:`2 \varepsilon_1 D` at most. By Bernstein's inequality the mean of
    :math:`n` cases is farther than :math:`t = \varepsilon - 2 \varepsilon_1 D` from its own mean with a probability of
    at most :math:`2 \exp(-n t^2 / (2 \sigma^2 + \tfrac{4}{3} D t))`, which is to be at most :math:`\alpha`. With
    :math:`\varepsilon_1 = 0` no image is off by more than :math:`\varepsilon_0`, which then stands for :math:`D`.

    In plain words: the better the network repeats the noise (small ``epsilon0`` and ``epsilon1``), the fewer cases are
    needed; the size of the image counts only for how bad a failure may be. In practice far fewer do: measure, and look
    at :py:meth:`monai_sc.functional.BoundaryBias.half_width`, which says by how much the interval narrows with the next
    clean case.

    Args:
        epsilon: by how much the bias may be off, in voxels.
        epsilon0: largest displacement of a well predicted image from the bias, in voxels.
        epsilon1: part of the images that are not well predicted, in ``[0, 1)``.
        image_size: sides of the image in voxels, the longest way through which is their sum (taxicab); one number is
            that way itself.
        alpha: accepted probability of being off by more, in ``(0, 1)``.

    Raises:
        ValueError: when an argument is out of range, or no number of cases suffices: ``epsilon`` must be over
            :math:`2 \varepsilon_1 D`.

    Example:
        >>> required_validation_size(1.0, 2.0, 0.0, (256, 256), alpha=0.05)
        40
        >>> required_validation_size(1.0, 2.0, 0.0005, (256, 256), alpha=0.05)
        21527
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be over 0 voxels and finite, got {epsilon}.")
    if not 0 <= epsilon0 < math.inf:
        raise ValueError(f"epsilon0 must be at least 0 voxels and finite, got {epsilon0}.")
    if not 0 <= epsilon1 < 1:
        raise ValueError(f"epsilon1 must be in [0, 1), got {epsilon1}.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}.")
    sides = [image_size] if isinstance(image_size, (int, np.integer)) else list(image_size)
    if not sides or not all(1 <= side < math.inf for side in sides):
        raise ValueError(f"image_size must be sides of at least 1 voxel, got {image_size}.")
    longest = float(sum(sides))
    reach = longest if epsilon1 else min(epsilon0, longest)
    left = float(epsilon) - 2 * epsilon1 * longest
    if left <= 0:
        raise ValueError(
            f"epsilon must be over 2 * epsilon1 * {longest:g} = {2 * epsilon1 * longest:g} voxels, got {epsilon}: the "
            "badly predicted images alone can be off by more, however many cases there are."
        )
    variance = float(epsilon0) * float(epsilon0) + 4 * epsilon1 * longest * longest
    number = math.log(2 / alpha) * (2 * variance + 4 / 3 * reach * left) / left / left
    if not number < math.inf:
        raise ValueError(f"epsilon must be larger, got {epsilon}: no number of cases that can be counted suffices.")
    return math.ceil(number)
