"""Make handlers and their options from keywords, of the handler and of its corrector alike."""

from __future__ import annotations

from dataclasses import fields

import torch
from monai.engines import SupervisedTrainer
from monai.utils import convert_to_tensor

from monai_sc.correction import CorrectionOptions, SpatialCorrector
from monai_sc.handlers import SpatialCorrectionHandler
from monai_sc.handlers.run_options import RunOptions

OF_CORRECTION = {f.name for f in fields(CorrectionOptions)}


def split(options):
    """Return the keywords of a corrector, and the others."""
    own = {name: value for name, value in options.items() if name in OF_CORRECTION}
    return own, {name: value for name, value in options.items() if name not in own}


def handler_of(store, **options):
    own, others = split({"class_names": store.class_names, **options})
    return SpatialCorrectionHandler(store, SpatialCorrector(**own), **others)


def options_of(**changes):
    own, others = split({"class_names": ("liver", "lesion"), "gamma": 0.5, "shape_weight": 0.25, **changes})
    return RunOptions(CorrectionOptions(**own), **others)


def trainer_of(network, loader, *handlers, max_epochs=1, **options):
    """Return a trainer that does not change the network."""
    weights = list(network.parameters()) or [torch.nn.Parameter(torch.zeros(1))]
    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=max_epochs,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD(weights, lr=0.0),
        loss_function=lambda p, y: (convert_to_tensor(p, track_meta=False) * 0).sum(),
        train_handlers=handlers,
        **options,
    )
