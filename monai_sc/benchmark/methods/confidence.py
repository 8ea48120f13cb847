"""The handler that watches a network learn wrong labels by heart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer
from scipy.special import expit

from monai_sc.correction.cases import LabelFormat
from monai_sc.functional.checks import check_same_shape
from monai_sc.functional.distance import signed_distance
from monai_sc.handlers.prediction import predict
from monai_sc.handlers.relabelling import to_file_grid
from monai_sc.parallel import unwrapped
from monai_sc.store.label_store import LabelStore


@dataclass(frozen=True)
class WatchedVoxel:
    """A voxel whose confidence is recorded by itself.

    Attributes:
        case: id of its case.
        class_name: of the label.
        index: its place in the label files, one number per spatial axis.
    """

    case: str
    class_name: str
    index: tuple[int, ...]


class ConfidenceHandler:
    r"""Record after every epoch how probable a network finds the labels that it learns from, where right and where not.

    The confidence of a voxel is the probability of its given label: :math:`p` of the class where it was given, else
    :math:`1 - p`, on the grid of the label files. Wrong labels whose errors have no direction are disbelieved first,
    while the network learns what the images have in common, and are learnt by heart later; errors in one direction
    (a bias) are learnt from the start, as if they were right. In the end the network is as sure of the wrong labels as
    of the right ones, so that no threshold of the probability tells them apart (the over-confidence of which Yao et
    al., ICLR 2023, write).

    Each epoch adds a dictionary to ``history``: ``epoch``; ``right`` and ``wrong``, the mean confidence of each class
    where the given label is that of the clean label and where it is not (``nan`` where there is no such voxel), both in
    the band along the clean boundary; and ``voxel``, the confidence of one voxel. Recording changes nothing of the
    training. In a training of several processes each records for itself; batch norm may differ a little in them.

    Args:
        store: with the training cases; round 0 is the given labels, and the clean ones must be known.
        loader: batches of some of the store's cases with ``image`` and ``id``, and no random transform; the relabel
            loader of a :py:class:`~monai_sc.handlers.SpatialCorrectionHandler` is one. A few cases are enough.
        output: of the network, ``"sigmoid"`` or ``"softmax"`` (the background, then the classes of the store).
        band: distance from the clean boundary up to which voxels count, over 0, in voxels of the files; far from it
            nearly every label is right, and every network sure of it.
        voxel: to record by itself. By default it is chosen among the wrongly labelled ones in the band, in the first
            class and case that have some: as far from the clean boundary as the median of these.
        inferer: for the cases; by default the trainer's own.

    Raises:
        ValueError: when an option is out of range, or ``voxel`` is of no case, class or place; after the first epoch,
            when a clean label is not known, ``loader`` lacks the case of ``voxel``, or there is none and no label in
            the band is wrong.
        TypeError: when it is attached to an engine that is not a ``SupervisedTrainer``.
    """

    def __init__(
        self,
        store: LabelStore,
        loader: DataLoader,
        *,
        output: str = "sigmoid",
        band: float = 8.0,
        voxel: WatchedVoxel | None = None,
        inferer: Inferer | None = None,
    ) -> None:
        if not band > 0:
            raise ValueError(f"band must be over 0 voxels, got {band}.")
        self.format = LabelFormat(store.class_names, output)
        if voxel is not None:
            _check_voxel(voxel, store)
        self.store = store
        self.loader = loader
        self.band = band
        self.voxel = voxel
        self.inferer = inferer
        self.history: list[dict[str, Any]] = []
        self._known: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        if not isinstance(engine, SupervisedTrainer):
            raise TypeError(f"engine must be a monai.engines.SupervisedTrainer, got {type(engine).__name__}.")
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded, and the voxel."""
        voxel = None if self.voxel is None else (self.voxel.case, self.voxel.class_name, self.voxel.index)
        return {"history": deepcopy(self.history), "voxel": voxel}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what :py:meth:`state_dict` returned."""
        self.history = deepcopy(list(state_dict["history"]))
        self.voxel = None if state_dict["voxel"] is None else WatchedVoxel(*state_dict["voxel"])

    def __call__(self, engine: SupervisedTrainer) -> None:
        classes = len(self.store.class_names)
        sums, counts = np.zeros((2, classes)), np.zeros((2, classes), dtype=np.int64)
        watched = np.nan
        with torch.random.fork_rng(devices=[]):  # a loader draws a seed from the generator of the training
            for case, (logits,) in predict(engine, self.loader, [unwrapped(engine.network)], inferer=self.inferer):
                case_id = str(case["id"])
                given, wrong, near = self._labels(case_id)
                foreground, seen = self._probabilities(case, logits, given)
                confidence = np.where(given, foreground, 1 - foreground)
                for k, which in enumerate((~wrong & near & seen, wrong & near & seen)):
                    axes = tuple(range(1, which.ndim))
                    sums[k] += np.where(which, confidence, 0).sum(axis=axes)
                    counts[k] += which.sum(axis=axes)
                if self.voxel is not None and self.voxel.case == case_id:
                    watched = confidence[(self.store.class_names.index(self.voxel.class_name), *self.voxel.index)]
        if self.voxel is None:
            raise ValueError(
                f"No label within {self.band:g} voxels of a clean boundary is wrong in the cases of loader; give "
                "voxel, or cases with wrong labels."
            )
        if np.isnan(watched):
            raise ValueError(f"loader must hold the case of voxel, {self.voxel.case!r}, but it does not.")
        right, wrong_mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).tolist()
        self.history.append({"epoch": engine.state.epoch, "right": right, "wrong": wrong_mean, "voxel": float(watched)})

    def _labels(self, case_id: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the given label of a case, where it is wrong, and the band; and choose the voxel, if there is none."""
        if case_id not in self._known:
            given, clean = self.store.read(case_id, 0), self.store.read_clean(case_id)
            if clean is None:
                raise ValueError(f"The clean label of case {case_id!r} must be known; give it as reference_label.")
            distance = np.abs(np.asarray(signed_distance(clean, origin="face")))
            near, wrong = np.asarray(distance <= self.band), given ^ clean
            self._known[case_id] = given, wrong, near
            if self.voxel is None:
                self._choose(case_id, np.where(wrong & near, distance, np.nan))
        return self._known[case_id]

    def _choose(self, case_id: str, distance: np.ndarray) -> None:
        for name, own in zip(self.store.class_names, distance, strict=True):
            if not np.isnan(own).all():
                index = np.unravel_index(int(np.nanargmin(np.abs(own - np.nanmedian(own)))), own.shape)
                self.voxel = WatchedVoxel(case_id, name, tuple(int(i) for i in index))
                return

    def _probabilities(
        self, case: Mapping[str, Any], logits: torch.Tensor, given: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of each class in each voxel of the files, and which of them the network has seen."""
        joint = to_file_grid(self.store, self.loader, case, torch.cat([logits, torch.ones_like(logits[:1])])).numpy()
        probabilities = expit(self.format.logits(joint[:-1]))
        check_same_shape(probabilities, given, (f"The prediction of case {case['id']!r}", "its label"))
        return probabilities, joint[-1:] > 0


def _check_voxel(voxel: WatchedVoxel, store: LabelStore) -> None:
    ids: Sequence[str] = [str(case["id"]) for case in store.cases]
    if voxel.case not in ids:
        raise ValueError(f"voxel must be of a case of the store, got {voxel.case!r}.")
    if voxel.class_name not in store.class_names:
        raise ValueError(f"voxel must be of one of the classes {store.class_names}, got {voxel.class_name!r}.")
    shape = store.read(voxel.case, 0).shape[1:]
    if len(voxel.index) != len(shape) or not all(0 <= i < n for i, n in zip(voxel.index, shape, strict=True)):
        raise ValueError(f"voxel must lie in its label, which is {shape}, got {voxel.index}.")
