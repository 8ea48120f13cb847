"""Pick-and-Learn: a network beside the segmentation network judges how good the label of each sample is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from monai.networks.blocks import Convolution
from monai.networks.layers import Pool
from monai.utils import convert_to_tensor

from monai_sc.losses.distributions import label_distributions


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
    itself; this class is for :py:class:`monai_sc.engines.PickAndLearnTrainer`, and for the checkpoints to resume from.

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
