"""The handler that estimates how many labels are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from ignite.engine import Events
from monai.data import DataLoader
from monai.engines import Trainer

from monai_sc.functional.checks import OUTPUTS, check_choice
from monai_sc.functional.noise_rate import estimate_noise_rate
from monai_sc.handlers.prediction import predict
from monai_sc.losses.distributions import label_distributions, log_distributions
from monai_sc.parallel import broadcast_state, fail_together, gather, unwrapped


class NoiseRateHandler:
    r"""Estimate the noise rate :math:`\tau` on clean cases after some epochs, for a method that has to know it.

    The trainer's network, which has learnt from the noisy labels until then, predicts the clean cases, and
    ``noise_rate`` of the target becomes the share of wrong voxels, see
    :py:func:`~monai_sc.functional.estimate_noise_rate`. Before that it is what it was. Of the classes of a softmax, the
    background does not count. In several processes, all set the same rate.

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
        engine.logger.info("Epoch %d: noise rate %.3f, estimated on the clean cases.", engine.state.epoch, rate)

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
