"""Make handlers and their options from keywords, of the handler and of its corrector alike."""

from __future__ import annotations

from dataclasses import fields

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
