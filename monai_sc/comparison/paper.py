"""What the paper reports, to print beside one's own results."""

from __future__ import annotations

_JSRT = "JSRT chest X-ray segmentation with spatial correction"
_ISIC = "ISIC 2017 skin lesion segmentation with spatial correction"
_BRATS = "BraTS 2020 brain tumour segmentation with spatial correction"
_CITYSCAPES = "Cityscapes car segmentation with spatial correction"
_LIDC = "LIDC-IDRI lung nodule segmentation with spatial correction"

PAPER_TOTALS: dict[str, dict[str, dict[str, float]]] = {
    _JSRT: {
        "markov_expand": {"sc": 0.8604, "elr": 0.7951},
        "markov_shrink": {"sc": 0.8741, "gce": 0.8356},
        "dilate_erode": {"sc": 0.8355, "elr": 0.8276},
    },
    _ISIC: {
        "markov_expand": {"sc": 0.8064, "sce": 0.7406},
        "markov_shrink": {"sc": 0.7597, "ct_plus": 0.6755},
        "dilate_erode": {"sc": 0.7944, "cdr": 0.7916},
    },
    _BRATS: {
        "markov_expand": {"sc": 0.7778, "ct_plus": 0.7069},
        "markov_shrink": {"sc": 0.7271, "ct_plus": 0.7169},
        "dilate_erode": {"sc": 0.7289, "cle": 0.7503},
    },
    _CITYSCAPES: {"files": {"sc": 0.8230, "sce": 0.7635}},
    _LIDC: {"files": {"sc": 0.5372, "sce": 0.5040}},
}
"""Dice over all classes, by bundle, noise and method: of SC and of the best other method, each the mean of 5 networks
(Yao et al. 2023, the tables of results)."""

PAPER_SIZES: dict[str, tuple[int, ...]] = {_JSRT: (256, 256), _CITYSCAPES: (512, 256), _LIDC: (128, 128)}
"""Of the images, where the paper gives it."""

PAPER_ITERATIONS = 1500
"""Of the training (Yao et al. 2023)."""
