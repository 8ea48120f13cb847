"""The axes of two files of a case: are they the same, where only their shapes say it?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.config import PathLike

from monai_sc.files.write import PICTURES

CHECKED = 8  # cases; the axes of the others are theirs
SAMPLE = 2**17  # voxels of a case that are compared
GAIN = 0.03  # of Dice, over all cases
ALONE = 0.2  # the same, of one case or two
FEWER_ERRORS = 0.75  # 1 - Dice must fall to this part
CASES = 0.9  # of them must be better


class Axes:
    """How the axes of an array lie in those of a label.

    Raises:
        ValueError: when it is none of these.
    """

    def __init__(self, text: str) -> None:
        self.text = str(text).replace(" ", "")
        self.code = self.text.upper()
        self.order: tuple[int, ...] = ()
        if re.fullmatch(r"-?[1-9](,-?[1-9])*", self.text):
            self.order = tuple(map(int, self.text.split(",")))
        is_order = sorted(map(abs, self.order)) == list(range(1, len(self.order) + 1))
        is_code = sorted(self.code.translate(str.maketrans("LPI", "RAS"))) == ["A", "R", "S"]
        if not (self.order and is_order) and not is_code:
            raise ValueError(
                "axes must be an orientation such as RAS, or the number of each axis, such as 2,1 or -1,-2,3, got "
                f"{text!r}."
            )

    def of(self, ndim: int, affine: np.ndarray | None) -> tuple[int, ...]:
        """Return for each axis of a label which of the array it is, from 1, negative where it runs the other way.

        Raises:
            ValueError: when they are of another number of axes, or there is no affine.
        """
        if self.order:
            if len(self.order) != ndim:
                raise ValueError(f"axes must be of {ndim} axes, as labels have them, got {self.text}.")
            return self.order
        if affine is None or ndim != 3:
            raise ValueError(
                f"axes must be numbers where labels have no orientation, such as 2,1, got {self.text}, which is of "
                "volumes with geometry."
            )
        orientations: Any = nib.orientations
        own = orientations.io_orientation(affine)
        moved = orientations.ornt_transform(orientations.axcodes2ornt(tuple(self.code)), own)
        order = [0, 0, 0]
        for source, (target, way) in enumerate(moved):
            order[int(target)] = int(way) * (source + 1)
        return tuple(order)


def turned(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return a view of an array ``(*spatial)`` whose axes are some of the array, as :py:meth:`Axes.of` tells them."""
    view = np.transpose(array, [abs(axis) - 1 for axis in order])
    return view[tuple(slice(None, None, -1 if axis < 0 else None) for axis in order)]


PIL_NAMES: dict[tuple[int, ...], str] = {
    (-1, 2): "FLIP_LEFT_RIGHT",
    (1, -2): "FLIP_TOP_BOTTOM",
    (-1, -2): "ROTATE_180",
    (2, 1): "TRANSPOSE",
    (-2, -1): "TRANSVERSE",
    (2, -1): "ROTATE_90",
    (-2, 1): "ROTATE_270",
}


def turning(order: Sequence[int], file: Path) -> str:
    """Return how to turn copies of files like one: a command for pictures, an expression of numpy for volumes."""
    if file.suffix.lower() in PICTURES and tuple(order) in PIL_NAMES:
        return (
            'python -c "import sys; from PIL import Image; [Image.open(f).transpose(Image.Transpose.'
            f'{PIL_NAMES[tuple(order)]}).save(f) for f in sys.argv[1:]]" copies/*{file.suffix}'
        )
    axes = [abs(axis) - 1 for axis in order]
    text = "a" if axes == sorted(axes) else f"np.transpose(a, {axes})"
    flipped = [k for k, axis in enumerate(order) if axis < 0]
    return f"np.flip({text}, {flipped})" if flipped else text


class AxesCheck:
    """Do labels of the same cases fit much better when the axes of one of them are turned?"""

    def __init__(self) -> None:
        self.given: list[float] = []
        self.scores: dict[str, list[float]] = {}

    def add(self, reference: np.ndarray, other: np.ndarray, affine: np.ndarray | None = None) -> None:
        """Compare the two labels of a case, of which each holds something.

        Args:
            reference: ``(*spatial)``, whole numbers, 0 for the background, under 0 where it is unknown.
            other: the same, whose axes are in question.
            affine: of the reference.
        """
        ndim = reference.ndim
        if not (reference > 0).any() or not (other > 0).any() or ndim > 3:
            return
        step = int(np.ceil((reference.size / SAMPLE) ** (1 / ndim)))
        points = (slice(None, None, step),) * ndim
        ways = {}
        for order in itertools.permutations(range(1, ndim + 1)):
            for signs in itertools.product((1, -1), repeat=ndim):
                turn = tuple(sign * axis for sign, axis in zip(signs, order, strict=True))
                ways[",".join(map(str, turn))] = turn
        if affine is not None and ndim == 3:
            ways = {"RAS": Axes("RAS").of(ndim, affine), **ways}
        drawn = reference[points]

        def agreement(turn: Sequence[int]) -> float:
            view = turned(other, turn)
            if view.shape != reference.shape:
                return 0.0
            found = view[points]
            known = (drawn >= 0) & (found >= 0)
            size = np.count_nonzero(known & (drawn > 0)) + np.count_nonzero(known & (found > 0))
            return 2 * np.count_nonzero((drawn == found) & (drawn > 0)) / size if size else 0.0

        self.given.append(agreement(range(1, ndim + 1)))
        for text, turn in ways.items():
            self.scores.setdefault(text, []).append(agreement(turn))

    @property
    def is_full(self) -> bool:
        """Whether there are enough cases."""
        return len(self.given) >= CHECKED

    def better(self) -> tuple[str, float, float] | None:
        """Return the axes that fit much better, their mean Dice, and that of the axes as they are."""
        if not self.given:
            return None
        given, best = np.array(self.given), (0.0, "")
        for text, scores in self.scores.items():  # of equal ones the first
            if len(scores) == len(given) and np.mean(scores) > best[0]:
                best = float(np.mean(scores)), text
        score, text = best
        gains = np.array(self.scores[text]) - given if text else -given
        least = GAIN if len(given) > 2 else ALONE
        clearly = gains.mean() > least and 1 - score < FEWER_ERRORS * (1 - given.mean())
        return (text, score, float(given.mean())) if clearly and (gains > 0).mean() >= CASES else None

    def refuse_turned(self, others: str, references: str, file: PathLike) -> None:
        """Refuse labels that fit others of the same cases much better when they are turned.

        Raises:
            ValueError: with how to turn them.
        """
        found = self.better()
        if found is None:
            return
        text, best, given = found
        raise ValueError(
            f"{others} must lie as {references} do, but fit them better with their axes turned, to {text}: mean Dice "
            f"{best:.2f} instead of {given:.2f}; look at one, and turn copies of them with "
            f"{turning(Axes(text).order, Path(file))}."
        )
