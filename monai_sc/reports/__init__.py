"""Figures and the page of an audit, a corrected folder or a training."""

from __future__ import annotations

from monai_sc.reports.audit import plot_audit, write_audit
from monai_sc.reports.figures import (
    BOUNDARY_COLOURS,
    draw_boundaries,
    plot_changes,
    plot_correction,
    plot_displacements,
    plot_noise_fit,
    plot_rounds,
)
from monai_sc.reports.page import Source, open_source, write_page
from monai_sc.reports.round_pictures import RoundPictureHandler
from monai_sc.reports.run import dice_by_class, print_results, summarise_run, write_reference, write_report

__all__ = [
    "BOUNDARY_COLOURS",
    "RoundPictureHandler",
    "Source",
    "dice_by_class",
    "draw_boundaries",
    "open_source",
    "plot_audit",
    "plot_changes",
    "plot_correction",
    "plot_displacements",
    "plot_noise_fit",
    "plot_rounds",
    "print_results",
    "summarise_run",
    "write_audit",
    "write_page",
    "write_reference",
    "write_report",
]
