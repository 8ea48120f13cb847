"""The label noise of the paper's tables and of its released data, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

__all__ = ["NOISE_PRESETS", "NoisePreset"]


@dataclass(frozen=True)
class NoisePreset:
    """A noise with its parameters.

    Args:
        kind: ``"markov"``, with the parameters of :py:func:`monai_sc.functional.markov_label_noise`; or
            ``"dilate_erode"``, with those of :py:class:`monai_sc.transforms.RandDilateErodeLabel`.
        items: names and values of the parameters. Of a preset with several structures, what differs between these is a
            tuple with a value for each of them.
        structures: the structures of a label, one per channel.
        source: where the parameters come from.
    """

    kind: str
    items: tuple[tuple[str, Any], ...]
    structures: tuple[str, ...]
    source: str

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as keyword arguments."""
        return dict(self.items)

    def of_structure(self, structure: str) -> NoisePreset:
        """Return the noise of one structure.

        Raises:
            ValueError: when there is no such structure.
        """
        if structure not in self.structures:
            raise ValueError(f"structure must be one of {', '.join(self.structures)}, got {structure!r}.")
        if len(self.structures) == 1:
            return self
        k = self.structures.index(structure)
        own = tuple((name, value[k] if isinstance(value, tuple) else value) for name, value in self.items)
        return replace(self, items=own, structures=(structure,))


PAPER = "table of Yao et al., ICLR 2023"
RELEASED = "masks that were released with Yao et al., ICLR 2023"
RELEASED_2D = {"flip_prob": 0.2, "smoothing": "after_flips", "smooth_sigma": 2.0, "smooth_radius": 2}
RELEASED_3D = {"flip_prob": 0.0, "smoothing": "after_flips", "smooth_sigma": 1.0}
# The paper says that it smooths before it flips, but not how much; as much as the released masks, then.
PAPER_2D = {"flip_prob": 0.1, "smoothing": "before_flips", "smooth_sigma": 2.0, "smooth_radius": 2}
PAPER_3D = {"flip_prob": 0.1, "smoothing": "before_flips", "smooth_sigma": 1.0}
CHEST = ("lung", "heart", "clavicle")


def _markov(
    steps: Any, expansion: Any, march: Any, rest: Mapping[str, Any], structures: tuple[str, ...], source: str
) -> NoisePreset:
    parameters = {"num_steps": steps, "expansion_prob": expansion, "march_prob": march, **rest}
    return NoisePreset("markov", tuple(parameters.items()), structures, source)


def _dilate_erode(radius: Any, structures: tuple[str, ...]) -> NoisePreset:
    return NoisePreset("dilate_erode", (("radius", radius),), structures, PAPER)


SKIN, TUMOUR = ("lesion",), ("tumour",)
NOISE_PRESETS: Mapping[str, NoisePreset] = MappingProxyType(
    {
        "jsrt-expand": _markov((180, 180, 100), 0.8, (0.05, 0.05, 0.02), RELEASED_2D, CHEST, RELEASED),
        "jsrt-expand-paper": _markov((180, 180, 100), 0.7, 0.03, PAPER_2D, CHEST, PAPER),
        "jsrt-shrink": _markov((180, 180, 100), 0.2, (0.05, 0.05, 0.02), RELEASED_2D, CHEST, RELEASED),
        "jsrt-shrink-paper": _markov((200, 200, 120), 0.3, 0.05, PAPER_2D, CHEST, PAPER),
        "jsrt-mixed": _dilate_erode(((7.0, 9.0), (7.0, 9.0), (3.0, 5.0)), CHEST),
        "isic-expand": _markov(200, 0.8, 0.05, RELEASED_2D, SKIN, RELEASED),
        "isic-expand-paper": _markov(200, 0.8, 0.05, PAPER_2D, SKIN, PAPER),
        "isic-shrink": _markov(200, 0.2, 0.05, RELEASED_2D, SKIN, RELEASED),
        "isic-shrink-paper": _markov(200, 0.2, 0.05, PAPER_2D, SKIN, PAPER),
        "isic-mixed": _dilate_erode((7.0, 9.0), SKIN),
        "brats-expand": _markov(80, 0.7, 0.05, RELEASED_3D, TUMOUR, RELEASED),
        "brats-expand-paper": _markov(80, 0.7, 0.05, PAPER_3D, TUMOUR, PAPER),
        "brats-shrink": _markov(80, 0.3, 0.05, RELEASED_3D, TUMOUR, RELEASED),
        "brats-shrink-paper": _markov(80, 0.3, 0.05, PAPER_3D, TUMOUR, PAPER),
        "brats-mixed": _dilate_erode((3.0, 5.0), TUMOUR),
    }
)
"""The presets by name, which has the data set, the direction, and ``-paper`` where paper and released masks differ."""
