"""Pick-and-Learn: a network beside the segmentation network judges how good the label of each sample is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.networks.blocks import Convolution
from monai.networks.layers import Pool
from monai.utils import convert_to_tensor
from monai.utils.enums import CommonKeys
from torch.nn.parallel import DistributedDataParallel

from monai_sc.benchmark.methods.distributions import label_distributions


class QualityAwarenessModule(torch.nn.Module):
    """Read an image together with its label, and give one score ``u`` per sample: how well the label fits.

    A convolutional encoder without a fully connected part, after VGG: two convolutions per width and a pooling between
    widths; its features are averaged over space, then over channels (Zhu et al., Pick-and-Learn: Automatic Quality
    Evaluation for Noisy-Labeled Image Segmentation, MICCAI 2019). Differences: 3D as well as 2D; group norm in place of
    batch norm, because the score of a sample must not depend on the few others of its batch; and the average over
    channels is a learnt one (a convolution of one voxel, before the average over space, which gives the same), since
    the plain average of rectified and normalized features is nearly the same for every input.

    Args:
        spatial_dims: 2 or 3.
        image_channels: channels of the image.
        label_channels: channels of the label, one for each channel that the segmentation network predicts.
        channels: width of each level; each but the first halves the size. Images may be smaller than the halvings
            allow: an axis of one voxel is kept.
        num_groups: of the group norm; every width must be a multiple, and at least two channels share a group.

    Raises:
        ValueError: when ``num_groups`` is under 1, or ``channels`` is empty or does not fit it.

    Example:
        >>> module = QualityAwarenessModule(2, image_channels=1, label_channels=3)
        >>> label = torch.randint(3, (4, 1, 32, 32))  # class numbers
        >>> module(torch.rand(4, 1, 32, 32), label).shape
        torch.Size([4])
    """

    def __init__(
        self,
        spatial_dims: int,
        image_channels: int,
        label_channels: int,
        *,
        channels: Sequence[int] = (16, 32, 64, 128),
        num_groups: int = 4,
    ) -> None:
        super().__init__()
        if num_groups < 1:
            raise ValueError(f"num_groups must be at least 1, got {num_groups}.")
        if not channels or any(width % num_groups or width < 2 * num_groups for width in channels):
            raise ValueError(
                f"channels must be multiples of num_groups={num_groups}, at least twice as many, got {tuple(channels)}."
            )
        self.label_channels = label_channels
        self.encoder = torch.nn.Sequential()
        width_before = image_channels + label_channels
        for width in channels:
            if len(self.encoder):
                self.encoder.append(Pool["max", spatial_dims](2, ceil_mode=True))
            for _ in range(2):
                norm = ("group", {"num_groups": num_groups})
                self.encoder.append(
                    Convolution(spatial_dims, width_before, width, adn_ordering="NA", act="relu", norm=norm)
                )
                width_before = width
        self.encoder.append(Convolution(spatial_dims, width_before, 1, kernel_size=1, conv_only=True))

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the scores.

        Args:
            image: ``(batch, image_channels, *spatial)``.
            label: ``(batch, label_channels, *spatial)`` of 0 and 1 or probabilities; or ``(batch, 1, *spatial)`` of
                class numbers, if ``label_channels`` is over 1.

        Returns:
            ``(batch,)``, higher for a better label; any real number.

        Raises:
            ValueError: when the label does not fit the image, has another number of channels, or a class number that
                has no channel.
        """
        image, label = (convert_to_tensor(x, track_meta=False) for x in (image, label))
        shape = (image.shape[0], self.label_channels, *image.shape[2:])
        if label.shape[1] == 1 < self.label_channels:
            label = label_distributions(label, image[:, :1].expand(shape), "softmax").squeeze(1)
        if tuple(label.shape) != shape:
            raise ValueError(f"label must have the shape {shape}, as the image does, got {tuple(label.shape)}.")
        scores: torch.Tensor = self.encoder(torch.cat([image, label.to(image.dtype)], dim=1))
        return scores.flatten(1).mean(1)


class PickAndLearnNet(torch.nn.Module):
    r"""A segmentation network, and beside it the module that weighs the samples which it learns from.

    The weights of a batch are :math:`w = \mathrm{softmax}(\lambda \tanh(u))` over its samples, with the scores
    :math:`u` of ``quality``: they sum to 1, and none is more than :math:`e^{2\lambda}` times another (Zhu et al. 2019,
    the overconfidence control). Without a label this is the segmentation network. Evaluate and export ``network``
    itself; this class is for :py:class:`monai_sc.benchmark.methods.PickAndLearnTrainer`, and for the checkpoints to
    resume from.

    Args:
        network: gives the logits of an image.
        quality: gives one score per sample, ``quality(image, label)`` of shape ``(batch,)``.
        limit: :math:`\lambda`, over 0; small values keep all weights near ``1 / batch``.

    Raises:
        ValueError: when ``limit`` is not over 0 and finite.

    Example:
        >>> from monai.networks.nets import UNet
        >>> network = UNet(2, 1, 1, channels=(8, 16), strides=(2,))
        >>> net = PickAndLearnNet(network, QualityAwarenessModule(2, image_channels=1, label_channels=1))
        >>> image, label = torch.rand(4, 1, 32, 32), torch.randint(2, (4, 1, 32, 32))
        >>> net(image).shape
        torch.Size([4, 1, 32, 32])
        >>> logits, weights = net(image, label)
        >>> round(weights.sum().item(), 4)
        1.0
    """

    def __init__(self, network: torch.nn.Module, quality: torch.nn.Module, *, limit: float = 2.0) -> None:
        super().__init__()
        if not 0 < limit < float("inf"):
            raise ValueError(f"limit must be over 0 and finite, got {limit}.")
        self.network = network
        self.quality = quality
        self.limit = limit

    def weights(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the weights ``(batch,)`` of the samples; a batch of one has the weight 1, whatever its label."""
        scores: torch.Tensor = self.quality(image, label)
        return torch.softmax(self.limit * torch.tanh(scores.float()), dim=0)

    def forward(
        self, image: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return what ``network`` gives for the image; with a label, also the weights of the samples."""
        logits: torch.Tensor = self.network(image)
        return logits if label is None else (logits, self.weights(image, label))


QUALITY_WEIGHT = "quality_weight"


class PickAndLearnTrainer(SupervisedTrainer):
    r"""Train a segmentation network on weighted samples, and the module that weighs them, by one loss.

    The loss of a batch is :math:`\sum_b w_b \ell_b`, where :math:`\ell_b` is the loss of sample :math:`b` alone and
    :math:`w` are the weights of :py:class:`monai_sc.benchmark.methods.PickAndLearnNet` (Zhu et al. 2019,
    Pick-and-Learn, with any loss in place of cross-entropy). The gradient of the weights lowers those of samples whose
    loss is over the mean of the batch. ``state.output`` has the key ``"quality_weight"`` beside those of MONAI's
    trainer: the weights, ``(batch,)``; decollated, one number per sample.

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
        >>> from monai_sc.benchmark.methods import QualityAwarenessModule
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
