"""How many of the labels are wrong, as far as clean cases tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from ignite.engine import Events
from monai.config import NdarrayOrTensor
from monai.data import DataLoader
from monai.engines import Trainer

from monai_sc.benchmark.methods.distributions import label_distributions, log_distributions
from monai_sc.functional.checks import OUTPUTS, binary_mask, check_choice, check_same_shape
from monai_sc.handlers.prediction import predict
from monai_sc.handlers.progress import LOGGER
from monai_sc.parallel import broadcast_state, fail_together, gather, unwrapped


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


class NoiseRateHandler:
    r"""Estimate the noise rate :math:`\tau` on clean cases after some epochs, for a method that has to know it.

    The trainer's network, which has learnt from the noisy labels until then, predicts the clean cases, and
    ``noise_rate`` of the target becomes the share of wrong voxels, see
    :py:func:`~monai_sc.benchmark.methods.estimate_noise_rate`. Before that it is what it was. Of the classes of a
    softmax, the background does not count. In several processes, all set the same rate.

    Args:
        clean_loader: batches of clean cases with image and label, as the trainer has them, but without random
            transforms.
        epoch: at the end of which the rate is estimated, at least 1. The network must have learnt the structures by
            then, but not the stray errors of its labels by heart.
        target: an object with an attribute ``noise_rate``; by default the trainer.
        output: of the network, ``"sigmoid"`` or ``"softmax"``.

    Raises:
        ValueError: when an option is out of range; at the end of the epoch, when an output is not finite, no clean case
            shows any foreground, or the network predicts nothing of it.
        TypeError: when the target has no ``noise_rate``.
    """

    def __init__(self, clean_loader: DataLoader, *, epoch: int, target: Any = None, output: str = "sigmoid") -> None:
        if epoch < 1:
            raise ValueError(f"epoch must be at least 1, got {epoch}.")
        self.clean_loader = clean_loader
        self.epoch = epoch
        self.target = target
        self.output = check_choice(output, OUTPUTS, "output")
        self.noise_rate: float | None = None

    def attach(self, engine: Trainer) -> None:
        engine.add_event_handler(Events.EPOCH_STARTED, self.set_rate)
        engine.add_event_handler(Events.EPOCH_COMPLETED(once=self.epoch), self)

    def state_dict(self) -> dict[str, float | None]:
        """Return the rate, ``None`` before it is estimated."""
        return {"noise_rate": self.noise_rate}

    def load_state_dict(self, state_dict: Mapping[str, float | None]) -> None:
        """Go on with the rate that :py:meth:`state_dict` returned."""
        self.noise_rate = state_dict["noise_rate"]

    def set_rate(self, engine: Trainer) -> None:
        """Tell the target the rate, if it is known."""
        target: Any = engine if self.target is None else self.target
        if not hasattr(target, "noise_rate"):
            raise TypeError(f"target must have the attribute noise_rate, got {type(target).__name__} without.")
        if self.noise_rate is not None:
            target.noise_rate = self.noise_rate

    def __call__(self, engine: Any) -> None:
        network: torch.nn.Module = engine.network
        with fail_together():
            broadcast_state(network)  # each process has its own statistics of batch normalisation
            rate = gather(estimate_noise_rate(self._pairs(engine, unwrapped(network))))[0]
        if rate == 1:
            raise ValueError(
                f"The network must predict some of what the clean labels show, got none after {self.epoch} epochs; "
                "estimate the noise rate after more."
            )
        self.noise_rate = rate
        self.set_rate(engine)
        LOGGER.info("Epoch %d: noise rate %.3f, estimated on the clean cases.", engine.state.epoch, rate)

    def _pairs(self, engine: Any, network: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield what is predicted of each clean case and its label, as masks ``(channels, *spatial)``."""
        for case, (logits,) in predict(engine, self.clean_loader, [network]):
            label = label_distributions(case["label"][None].cpu(), logits[None], self.output)
            yield _foreground(log_distributions(logits[None], self.output)), _foreground(label)


def _foreground(distributions: torch.Tensor) -> torch.Tensor:
    """Return the masks of all classes of one case but the first class of each group."""
    likeliest = distributions[0].argmax(dim=1, keepdim=True)  # (groups, 1, *spatial)
    classes = torch.arange(1, distributions.shape[2]).reshape(-1, *[1] * (distributions.ndim - 3))
    return (likeliest == classes).flatten(0, 1)
