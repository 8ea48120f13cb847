"""The compared methods and the data sets by name, without the import of what they name, which takes seconds."""

from __future__ import annotations

METHODS = (
    "noisy",
    "gce",
    "sce",
    "ct_plus",
    "elr",
    "cdr",
    "qam",
    "cle",
    "sc",
    "clean",
)
"""The methods that come with the package, in the order of tables: no method, the compared ones, ours, no noise. Each is
a file ``NAME.json`` in ``monai_sc/configs/methods``."""

DATA_SETS = (
    "brats2020",
    "cityscapes",
    "isic2017",
    "jsrt",
    "lidc_idri",
)
"""The data sets that can be prepared. Each is a module ``NAME`` in ``monai_sc.datasets`` with its ``LAYOUT``
and one in ``monai_sc.datasets.stand_ins`` with ``write_NAME``."""
