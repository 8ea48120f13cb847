"""The choice of the voxels whose labels are probably right: those that a network has the smallest loss on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from ignite.engine import Events
from ignite.metrics import Metric
from monai.engines import Trainer
from monai.engines.utils import IterationEvents
from monai.inferers import Inferer, SimpleInferer
from monai.utils.enums import CommonKeys as Keys
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from monai_sc.benchmark.methods.distributions import label_distributions, log_distributions
from monai_sc.functional.checks import OUTPUTS, check_choice, check_same_shape


def select_small_loss(loss: torch.Tensor, candidates: torch.Tensor, keep_fraction: float) -> torch.Tensor:
    r"""Select the share of candidates with the smallest loss, in each image by itself.

    Of :math:`n` candidates :math:`\max(1, \mathrm{round}(R n))` are selected, with :math:`R` the ``keep_fraction``; a
    half is rounded to the even number. (Han et al., Co-teaching, NeurIPS 2018, Algorithm 1, which selects among the
    images of a mini-batch.)

    Args:
        loss: ``(batch, groups, *spatial)``, of each voxel; ``nan`` and infinity count as the largest number. Of equal
            losses, that of the voxel which comes first in memory is the smaller one.
        candidates: boolean, of the same shape. Where an image has none in a group, none is selected.
        keep_fraction: in ``[0, 1]``.

    Returns:
        A boolean mask of the shape of ``loss``.

    Raises:
        TypeError: when ``loss`` does not hold floating-point numbers, or ``candidates`` no booleans.
        ValueError: when ``keep_fraction`` is out of range, the shapes differ, or there is no group axis.

    Example:
        >>> loss = torch.tensor([[[0.9, 0.1, 0.5, 0.2]]])
        >>> select_small_loss(loss, loss > 0.15, 0.67).int().tolist()
        [[[0, 0, 1, 1]]]
    """
    if not 0 <= keep_fraction <= 1:
        raise ValueError(f"keep_fraction must be in [0, 1], got {keep_fraction}.")
    check_same_shape(loss, candidates, ("loss", "candidates"))
    if not loss.is_floating_point() or candidates.dtype != torch.bool:
        raise TypeError(
            f"loss must hold floating-point numbers and candidates booleans, got {loss.dtype} and {candidates.dtype}."
        )
    if loss.ndim < 3:
        raise ValueError(f"loss must have the shape (batch, groups, *spatial), got {tuple(loss.shape)}.")
    if keep_fraction == 1:  # there is nothing to sort
        return candidates.clone()
    finite = loss.detach().nan_to_num(nan=torch.finfo(loss.dtype).max)
    order = finite.masked_fill(~candidates, torch.inf).flatten(2).argsort(dim=-1, stable=True)
    number = candidates.flatten(2).sum(dim=-1, keepdim=True)
    kept = torch.minimum((number.double() * keep_fraction).round().clamp(min=1), number)
    is_kept = torch.arange(order.shape[-1], device=loss.device) < kept
    return torch.zeros_like(is_kept).scatter(-1, order, is_kept).reshape(loss.shape)


class CoTeachingPlusTrainer(Trainer):
    r"""Train two networks, each on the voxels of which the other one believes the label (co-teaching+).

    In the warm-up each network ranks all voxels of an image by its cross-entropy, and the *other* one is trained on the
    share

    .. math:: R(e) = 1 - \tau \min(e / E_k, 1)

    with the smallest, after :math:`e` completed epochs. From then on only voxels are candidates whose class the two
    networks predict differently: where they agree, there is no more to learn, and two networks that are trained on all
    voxels become one. (Yu et al., How does Disagreement Help Generalization against Label Corruption?, ICML 2019,
    Algorithm 1; the warm-up is that of Han et al., Co-teaching, NeurIPS 2018.)

    In a segmentation, every voxel is what an image is there; with a sigmoid it is one in each channel. Differences from
    the paper: voxels are selected in each image and channel by itself and not in the mini-batch, and the loss of a
    network is the mean over the images and channels of the mean cross-entropy of the selected voxels, so that each
    counts the same. Where the networks disagree in fewer than ``min_voxels`` voxels of an image, all of its voxels are
    candidates, so that training goes on.

    It stands in for MONAI's ``SupervisedTrainer``, without a loss function: ``network`` and ``optimizer`` are the first
    ones, and so are ``pred`` and ``loss`` in the output of an iteration. Only the first network is to be validated and
    exported. A checkpoint needs both networks, both optimizers and the trainer, and a schedule for each optimizer a
    handler of its own.

    Args:
        device: on which to run.
        max_epochs: epochs of the whole training, the warm-up among them.
        train_data_loader: loader of the training cases.
        networks: two networks with logits ``(batch, channels, *spatial)`` as output. Their first weights must differ.
        optimizers: of the first and of the second network.
        noise_rate: :math:`\tau`, the share of the candidates whose label is wrong, in ``[0, 1)``. ``None``: every
            candidate is kept in the warm-up, and
            :py:class:`~monai_sc.benchmark.methods.NoiseRateHandler` must set it at the end of it.
        warmup_epochs: epochs of the warm-up, at least 0.
        num_gradual: :math:`E_k`, epochs until the full rate is dropped, at least 1.
        min_voxels: candidates that an image must have in a channel, at least 1.
        output: of the networks: ``"sigmoid"``, or ``"softmax"``, where labels may be class numbers
            ``(batch, 1, *spatial)``.
        inferer: as in ``SupervisedTrainer``, of both networks.
        key_train_metric: as there, of the first network.
        train_handlers: as there.
        optim_set_to_none: as there.
        **kwargs: the other arguments of ``SupervisedTrainer``, but for ``iteration_update``, ``compile``,
            ``compile_kwargs`` and ``accumulation_steps``.

    Raises:
        ValueError: when an option is out of range, or an optimizer does not belong to its network; at the start of the
            first epoch, when the networks have the same weights; after the warm-up, when the noise rate is not known.

    Example:
        >>> networks = [torch.nn.Conv2d(1, 1, 3, padding=1) for _ in range(2)]
        >>> trainer = CoTeachingPlusTrainer(
        ...     torch.device("cpu"),
        ...     max_epochs=2,
        ...     train_data_loader=[{"image": torch.rand(2, 1, 8, 8), "label": torch.ones(2, 1, 8, 8)}],
        ...     networks=networks,
        ...     optimizers=[torch.optim.SGD(network.parameters(), lr=0.1) for network in networks],
        ...     noise_rate=0.2,
        ...     warmup_epochs=1,
        ... )
        >>> trainer.run()
        >>> trainer.keep_fraction  # one of ten epochs was over when the last one began
        0.98
    """

    def __init__(
        self,
        device: str | torch.device,
        max_epochs: int,
        train_data_loader: Iterable[Any] | DataLoader[Any],
        networks: Sequence[torch.nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        noise_rate: float | None,
        warmup_epochs: int,
        num_gradual: int = 10,
        min_voxels: int = 1,
        output: str = "sigmoid",
        inferer: Inferer | None = None,
        key_train_metric: dict[str, Metric] | None = None,
        train_handlers: Sequence[Any] | None = None,
        optim_set_to_none: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            device, max_epochs, train_data_loader, key_metric=key_train_metric, handlers=train_handlers, **kwargs
        )
        if noise_rate is not None and not 0 <= noise_rate < 1:
            raise ValueError(f"noise_rate must be at least 0 and under 1, or None, got {noise_rate}.")
        for name, value, least in (
            ("warmup_epochs", warmup_epochs, 0),
            ("num_gradual", num_gradual, 1),
            ("min_voxels", min_voxels, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        for name, given in (("networks", networks), ("optimizers", optimizers)):
            if len(given) != 2:
                raise ValueError(f"{name} must be two, got {len(given)}.")
        if networks[0] is networks[1]:
            raise ValueError("networks must be two different ones, got one twice.")
        self.networks = tuple(networks)
        self.optimizers = tuple(optimizers)
        self.network, self.optimizer = self.networks[0], self.optimizers[0]
        self.noise_rate = noise_rate
        self.warmup_epochs = warmup_epochs
        self.num_gradual = num_gradual
        self.min_voxels = min_voxels
        self.output = check_choice(output, OUTPUTS, "output")
        self.inferer = SimpleInferer() if inferer is None else inferer
        self.optim_set_to_none = optim_set_to_none
        self._check_optimizers()
        # Not at STARTED, where handlers load weights.
        self.add_event_handler(Events.EPOCH_STARTED(once=1), self._check_weights)

    @property
    def keep_fraction(self) -> float:
        """Share of the candidates that is trained on in the present epoch."""
        completed: int = max(0, self.state.epoch - 1)
        if self.noise_rate is None:
            if completed >= self.warmup_epochs:
                raise ValueError(
                    f"noise_rate must be known after {self.warmup_epochs} epochs of warm-up, got None; give a number, "
                    f"or a NoiseRateHandler with epoch={self.warmup_epochs}, which a checkpoint must hold."
                )
            return 1.0
        return 1 - self.noise_rate * min(completed / self.num_gradual, 1)

    def _check_optimizers(self) -> None:
        own = [{id(parameter) for parameter in network.parameters()} for network in self.networks]
        for k, optimizer in enumerate(self.optimizers):
            optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            if optimized - own[k] or optimized & own[1 - k]:
                raise ValueError(
                    f"optimizers must be in the order of networks, each with parameters of its own network only, but "
                    f"number {k + 1} has others."
                )

    def _check_weights(self) -> None:
        first, second = (list(network.parameters()) for network in self.networks)
        if len(first) == len(second) and all(map(torch.equal, first, second)):
            raise ValueError(
                "networks must have different weights at the start, got the same, and such networks never disagree; "
                "initialise the second one with another seed."
            )

    def _iteration(self, engine: CoTeachingPlusTrainer, batchdata: Any) -> Any:
        if batchdata is None:
            raise ValueError("Must provide batch data for current iteration.")
        inputs, targets, *others = engine.prepare_batch(
            batchdata, engine.state.device, engine.non_blocking, **engine.to_kwargs
        )
        args, kwargs = others or ((), {})
        output: dict[str, torch.Tensor] = {Keys.IMAGE: inputs, Keys.LABEL: targets}
        engine.state.output = output
        for network, optimizer in zip(engine.networks, engine.optimizers, strict=True):
            network.train()
            optimizer.zero_grad(set_to_none=engine.optim_set_to_none)
        with torch.autocast("cuda", enabled=engine.scaler is not None, **engine.amp_kwargs):
            output[Keys.PRED], peer = (engine.inferer(inputs, network, *args, **kwargs) for network in engine.networks)
            engine.fire_event(IterationEvents.FORWARD_COMPLETED)
            output[Keys.LOSS], peer_loss = engine.losses(output[Keys.PRED], peer, targets)
            engine.fire_event(IterationEvents.LOSS_COMPLETED)
        total: Any = output[Keys.LOSS] + peer_loss  # no weight is in both: one pass backwards is the two of the paper
        (total if engine.scaler is None else engine.scaler.scale(total)).backward()
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)
        for optimizer in engine.optimizers:
            if engine.scaler is None:
                optimizer.step()
            else:
                engine.scaler.step(optimizer)
        if engine.scaler is not None:
            engine.scaler.update()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # which may be a list of cases by now

    def losses(
        self, first: torch.Tensor, second: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each network on the voxels that the other one selects.

        Args:
            first: logits of the first network, ``(batch, channels, *spatial)``.
            second: logits of the second network.
            target: labels, of the same shape, or class numbers ``(batch, 1, *spatial)`` with a softmax.
        """
        predicted = [log_distributions(logits, self.output) for logits in (first, second)]
        given = label_distributions(target, first, self.output)
        entropies = [-(given * one).sum(dim=2) for one in predicted]  # (batch, groups, *spatial)
        candidates = torch.ones_like(entropies[0], dtype=torch.bool)
        if self.state.epoch > self.warmup_epochs:
            disagree = predicted[0].argmax(dim=2) != predicted[1].argmax(dim=2)
            few = disagree.flatten(2).sum(dim=2) < self.min_voxels
            candidates = disagree | few.reshape(*few.shape, *[1] * (disagree.ndim - 2))
        selected = [select_small_loss(own, candidates, self.keep_fraction) for own in entropies]
        return _mean_of(entropies[0], selected[1]), _mean_of(entropies[1], selected[0])


def _mean_of(loss: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """Return the mean over images and groups of the mean of the selected voxels."""
    return ((loss * selected).flatten(2).sum(dim=2) / selected.flatten(2).sum(dim=2)).mean()
