"""Pick-and-Learn: training in which a second network weighs the samples of each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.utils import convert_to_tensor
from monai.utils.enums import CommonKeys
from torch.nn.parallel import DistributedDataParallel

from monai_sc.networks import PickAndLearnNet

QUALITY_WEIGHT = "quality_weight"


class PickAndLearnTrainer(SupervisedTrainer):
    r"""Train a segmentation network on weighted samples, and the module that weighs them, by one loss.

    The loss of a batch is :math:`\sum_b w_b \ell_b`, where :math:`\ell_b` is the loss of sample :math:`b` alone and
    :math:`w` are the weights of :py:class:`monai_sc.networks.PickAndLearnNet` (Zhu et al. 2019, Pick-and-Learn, with
    any loss in place of cross-entropy). The gradient of the weights lowers those of samples whose loss is over the
    mean of the batch. ``state.output`` has the key ``"quality_weight"`` beside those of MONAI's trainer: the weights,
    ``(batch,)``; decollated, one number per sample.

    What is learnt first is trusted. Garbage that is easier than the truth, such as a third of all labels empty, can win
    from a random start; a network that was first trained on the clean cases for a few epochs did not fall for it.

    The samples of one batch are compared. A batch of one has the weight 1, which is plain training: this is logged
    once. In several processes each compares its own part of the batch, and with ``accumulation_steps`` each of the
    small batches is weighed for itself.

    Args:
        device: as for ``SupervisedTrainer``, like all that follows.
        max_epochs: number of epochs.
        train_data_loader: its batches should have two samples or more.
        network: a ``PickAndLearnNet``, or one in ``DistributedDataParallel``.
        optimizer: of the parameters of ``network``, so that the quality module learns too.
        loss_function: called with the prediction and the label of one sample, ``(1, channels, *spatial)`` each; what
            it returns is averaged.
        **kwargs: other arguments of ``SupervisedTrainer``. ``prepare_batch`` must give the image and the label alone,
            and ``inferer`` pass the whole image on to the network.

    Raises:
        TypeError: when ``network`` is no ``PickAndLearnNet``.

    Example:
        >>> from monai.losses import DiceCELoss
        >>> from monai.networks.nets import UNet
        >>> from monai_sc.networks import QualityAwarenessModule
        >>> quality = QualityAwarenessModule(2, image_channels=1, label_channels=1)
        >>> net = PickAndLearnNet(UNet(2, 1, 1, channels=(8, 16), strides=(2,)), quality)
        >>> batch = {"image": torch.rand(4, 1, 32, 32), "label": torch.ones(4, 1, 32, 32)}
        >>> trainer = PickAndLearnTrainer(
        ...     device="cpu",
        ...     max_epochs=1,
        ...     train_data_loader=[batch],
        ...     network=net,
        ...     optimizer=torch.optim.Adam(net.parameters()),
        ...     loss_function=DiceCELoss(sigmoid=True),
        ...     decollate=False,
        ... )
        >>> trainer.run()
        >>> trainer.state.output["quality_weight"].shape
        torch.Size([4])
    """

    def __init__(
        self,
        device: str | torch.device,
        max_epochs: int,
        train_data_loader: Iterable[Any],
        network: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        **kwargs: Any,
    ) -> None:
        inner = network.module if isinstance(network, DistributedDataParallel) else network
        if not isinstance(inner, PickAndLearnNet):
            name = type(inner).__name__
            raise TypeError(f"network must be a PickAndLearnNet, got {name}; give PickAndLearnNet(network, quality).")
        super().__init__(device, max_epochs, train_data_loader, network, optimizer, loss_function, **kwargs)
        # SupervisedTrainer calls these two, so that amp, accumulation and events stay its own
        self.inferer, self.inferer_of_network = self._predict, self.inferer  # type: ignore[assignment]  # as callables
        self.loss_function, self.loss_of_sample = self._weighted_loss, loss_function
        self.batch_sizes: set[int] = set()

    def _predict(self, image: torch.Tensor, network: torch.nn.Module) -> torch.Tensor:
        """Return the prediction, and in training leave the weights of the samples in the output."""
        if not network.training:  # a handler predicts other cases by the inferer of its trainer
            plain: torch.Tensor = self.inferer_of_network(image, network)
            return plain
        output = self.state.output
        # by one call, since DistributedDataParallel follows only what happens inside the call
        both: tuple[torch.Tensor, torch.Tensor]
        both = self.inferer_of_network(image, network, label=output[CommonKeys.LABEL])
        pred, output[QUALITY_WEIGHT] = both
        self._note_batch_size(len(pred))
        return pred

    def _weighted_loss(self, pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        pred, label = (convert_to_tensor(x, track_meta=False) for x in (pred, label))
        weights: torch.Tensor = self.state.output[QUALITY_WEIGHT]
        losses = [self.loss_of_sample(pred[b : b + 1], label[b : b + 1]).mean() for b in range(len(weights))]
        return (weights * torch.stack(losses)).sum()

    def _note_batch_size(self, size: int) -> None:
        if size == 1 and size not in self.batch_sizes:
            self.logger.log(
                logging.INFO if self.batch_sizes else logging.WARNING,
                "A batch of one sample has the weight 1, which is plain training; Pick-and-Learn compares the samples "
                "of a batch, so train_data_loader should give two or more.",
            )
        self.batch_sizes.add(size)
