"""The handler that lets only the critical weights of a network learn from noisy labels."""

from __future__ import annotations

import torch
from monai.engines import IterationEvents, SupervisedTrainer


class CriticalGradientHandler:
    r"""Let only the critical weights of a network learn, since it is the others that memorise wrong labels (CDR).

    After each backward pass the weights :math:`w_j` are ranked by

    .. math:: g_j = |w_j \, \partial L / \partial w_j|

    (Xia et al., *Robust early-learning: Hindering the memorization of noisy labels*, ICLR 2021). The fraction
    :math:`1 - \tau` of them with the largest :math:`g_j` is critical, and its gradients are multiplied by
    :math:`1 - \tau`; the gradients of the other weights become 0, so that only the weight decay and the momentum of
    the optimizer move those, towards 0 in the long run. The method needs a weight decay, and a stop at the best epoch.
    Differences from the paper: the decay is the optimizer's (the paper's is that of an L1 norm).

    Weights are the parameters of two axes and more, those of ``Conv3d`` too, ranked together over the whole network;
    biases and the parameters of normalisations learn as ever, and weights without a gradient or with
    ``requires_grad=False`` are left alone. Weights that are as critical as the last critical one are critical too. In a
    training of several processes all have the mean gradients, and find the same weights. Where gradients are
    accumulated, only their sum is ranked, before the optimizer's step. A gradient that overflowed in half precision
    stays infinite or NaN, so that the scaler skips the step.

    Args:
        noise_rate: :math:`\tau`, the fraction of wrong labels, in ``[0, 1)``; 0 changes nothing.

    Raises:
        ValueError: when ``noise_rate`` is out of range.

    Example:
        >>> import torch
        >>> from monai.engines import SupervisedTrainer
        >>> network = torch.nn.Linear(2, 1, bias=False)
        >>> network.weight.data = torch.tensor([[0.1, 1.0]])
        >>> trainer = SupervisedTrainer(
        ...     device=torch.device("cpu"),
        ...     max_epochs=1,
        ...     train_data_loader=[{"image": torch.ones(1, 2), "label": torch.zeros(1, 1)}],
        ...     network=network,
        ...     optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ...     loss_function=lambda predicted, label: (predicted - label).mean(),
        ...     train_handlers=[CriticalGradientHandler(0.5)],
        ... )
        >>> trainer.run()
        >>> network.weight.data.round(decimals=3).tolist()
        [[0.10000000149011612, 0.5]]
    """

    def __init__(self, noise_rate: float) -> None:
        if not 0 <= noise_rate < 1:
            raise ValueError(f"noise_rate must be in [0, 1), got {noise_rate}.")
        self.noise_rate = noise_rate

    def attach(self, engine: SupervisedTrainer) -> None:
        """Attach to a MONAI trainer; one with an ``iteration_update`` of its own must fire ``BACKWARD_COMPLETED``."""
        engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self)

    @torch.no_grad()
    def __call__(self, engine: SupervisedTrainer) -> None:
        weights = [
            (weight, weight.grad)
            for weight in engine.network.parameters()
            if weight.ndim > 1 and weight.requires_grad and weight.grad is not None
        ]
        if not weights or not _steps_now(engine):
            return
        scores = [(weight * gradient).abs() for weight, gradient in weights]
        joined = torch.cat([score.flatten() for score in scores])
        critical = max(1, round((1 - self.noise_rate) * joined.numel()))
        least = joined.topk(critical, sorted=False).values.min()
        for (_, gradient), score in zip(weights, scores, strict=True):
            # A product, because it leaves infinity and NaN to the scaler of gradients.
            gradient.mul_(score >= least).mul_(1 - self.noise_rate)


def _steps_now(engine: SupervisedTrainer) -> bool:
    """Return whether the optimizer steps after this backward pass, as MONAI's trainer decides it."""
    steps: int = engine.accumulation_steps
    number, length = engine.state.iteration, engine.state.epoch_length
    if length is not None:
        number = (number - 1) % length + 1
    return bool(number % steps == 0 or number == length)
